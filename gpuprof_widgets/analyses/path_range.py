"""Which part of a run is meant: a step, a region by its name, or a pair of times."""

from __future__ import annotations

from difflib import get_close_matches

import numpy as np

from gpuprof_widgets.analyses.steps import steps
from gpuprof_widgets.exceptions import OptionError
from gpuprof_widgets.trace.model import Record

Region = str | tuple[int, int] | None


def path_range(record: Record, step: int | None, region: Region) -> tuple[int, int]:
    """Start and end in ns; the whole run where neither is given."""
    trace = record.trace
    if step is not None and region is not None:
        raise OptionError("give a step or a region, not both")
    if step is not None:
        return _step(record, step)
    if isinstance(region, str):
        return _region(record, region)
    t0, t1 = (trace.start_ns, trace.end_ns) if region is None else region
    if t0 > t1:
        raise OptionError(f"a time range has to start before it ends, not [{t0}, {t1}) ns")
    if t1 < trace.start_ns or t0 > trace.end_ns:
        raise OptionError(
            f"[{t0}, {t1}) ns is no part of the trace, which is [{trace.start_ns}, "
            f"{trace.end_ns}) ns"
        )
    low, high = (min(max(int(t), trace.start_ns), trace.end_ns) for t in (t0, t1))
    return low, high


def _step(record: Record, step: int) -> tuple[int, int]:
    table = steps(record)
    found = table[table["step"] == step]
    if not len(found):
        known = ", ".join(str(number) for number in table["step"][:20])
        raise OptionError(f"there is no step {step}: the trace has {known or 'no steps'}")
    return int(found["start_ns"].iloc[0]), int(found["end_ns"].iloc[0])


def _region(record: Record, name: str) -> tuple[int, int]:
    slices = record.trace.slices
    on_cpu = record.trace.index.on_tracks("cpu", "python") & (slices["count"].to_numpy() > 0)
    rows = np.flatnonzero(record.trace.index.named(frozenset({name})) & on_cpu)
    if not len(rows):
        names = slices["name"].to_numpy(object)[on_cpu]
        near = get_close_matches(name, [str(n) for n in np.unique(names.astype(str))], 1)
        hint = f"; did you mean {near[0]!r}?" if near else ""
        raise OptionError(f"no region or op of the CPU is called {name!r}{hint}")
    first = rows[np.argmin(slices["ts"].to_numpy()[rows])]
    start = int(slices["ts"].iloc[first])
    return start, start + int(slices["dur"].iloc[first])
