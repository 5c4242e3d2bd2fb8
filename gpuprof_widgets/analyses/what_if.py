"""What would be saved if an op or a kernel took less time, everything else being as it was."""

from __future__ import annotations

from collections.abc import Sequence
from difflib import get_close_matches

import numpy as np
import numpy.typing as npt
import pandas as pd

from gpuprof_widgets.analyses.critical_path import DELAYS, critical_path, graph_of
from gpuprof_widgets.analyses.lacking import lacking
from gpuprof_widgets.analyses.op_rows import (
    are_ops,
)
from gpuprof_widgets.analyses.path_range import Region, path_range
from gpuprof_widgets.analyses.path_replay import replayed
from gpuprof_widgets.analyses.remembered import remembered
from gpuprof_widgets.analyses.table_with_reason import what_is_lacking
from gpuprof_widgets.exceptions import OptionError
from gpuprof_widgets.trace.links import nearest_ancestor, outermost
from gpuprof_widgets.trace.model import Record, Trace
from gpuprof_widgets.trace.schema import NONE

Ints = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]

COLUMNS = (
    *("name", "what", "scale", "calls", "time_ns", "path_ns"),
    *("span_ns", "new_span_ns", "saved_ns", "saved_share"),
)
LARGEST_SCALE = 1_000
"""A trace of days still has its times in 64 bits then."""
CANDIDATES = 8
"""Names of each sort that `what_ifs` tries: more would rarely save anything."""


def what_if(
    record: Record,
    name: str,
    *,
    scale: float = 0.0,
    step: int | None = None,
    region: Region = None,
) -> pd.DataFrame:
    """How long the run would take if what is called ``name`` took ``scale`` times as long: one row.

    Columns: ``name``, ``what`` ("op", or "function" of Python, with all that runs in it and all
    GPU work launched in it; or "kernel", GPU work of that name alone), ``scale``, ``calls``,
    ``time_ns`` (its CPU and GPU time in the range), ``path_ns`` (of that, on the critical path),
    ``span_ns`` (of the range, as recorded), ``new_span_ns``, ``saved_ns``, ``saved_share`` (of the
    span).

    The graph of `critical_path` is gone through anew, forwards, with the changed durations:

    - a thread's own time (of its ops, calls, Python) lasts as long as recorded, times the scale
      where it belongs to what is changed; time in which it waited lasts until what it waits for;
    - a GPU slice begins when its launch, all that had ended before it on its stream and all events
      it waits for allow it: the one that bound it with the delay that was recorded, the others with
      the usual delay of their kind in this trace (a median), or the recorded one if that was
      shorter; one that overlaps the slice that it follows begins as far into that as recorded;
    - the delay between the end of GPU work and the return of the call that waits for it stays.

    So a scale of 1 gives exactly the recorded span, and a larger scale never a shorter one. What a
    faster op would change beyond that (a launch queue that was full, clocks, cache, contention of
    streams for the GPU) is not modelled. The range is as in `critical_path`.
    """
    if not 0 <= scale <= LARGEST_SCALE:
        raise OptionError(f"a scale is 0 (no time at all) to {LARGEST_SCALE:,}, not {scale}")
    t0, t1 = path_range(record, step, region)
    changed = _changed(record.trace, name)
    return _table(record, t0, t1, [(name, *changed)], scale)


def what_ifs(record: Record, *, step: int | None = None, region: Region = None) -> pd.DataFrame:
    """What each of the likeliest ops and kernels would save if it cost nothing, the most first.

    Columns and rules as in `what_if`: ``name``, ``what``, ``scale`` (0), ``calls``, ``time_ns``,
    ``path_ns``, ``span_ns``, ``new_span_ns``, ``saved_ns``, ``saved_share``. Tried
    are the eight ops, the eight ops called by Python and the eight kernels or copies that take most
    of the critical path.
    """
    t0, t1 = path_range(record, step, region)
    if (t0, t1) == (record.trace.start_ns, record.trace.end_ns):
        return _of_the_run(record)
    return _what_ifs(record, t0, t1)


@remembered
def _of_the_run(record: Record) -> pd.DataFrame:
    return _what_ifs(record, record.trace.start_ns, record.trace.end_ns)


def _what_ifs(record: Record, t0: int, t1: int) -> pd.DataFrame:
    path = critical_path(record, region=(t0, t1))
    if not len(path):
        return lacking(COLUMNS, what_is_lacking(path))
    names = _candidates(record.trace, path)
    if not names:
        return lacking(COLUMNS, "no op and no kernel is on the critical path")
    table = _table(record, t0, t1, [(name, *_changed(record.trace, name)) for name in names], 0.0)
    return table.sort_values(["saved_ns", "path_ns"], ascending=False, kind="stable").reset_index(
        drop=True
    )


def _candidates(trace: Trace, path: pd.DataFrame) -> list[str]:
    """Names by their time on the path: of innermost ops, of outermost ops, of GPU work."""
    names = np.append(trace.slices["name"].to_numpy(object), "")
    on_path = path["op"].to_numpy()
    gpu = np.isin(path["row"], trace.index.gpu) & path["kind"].isin(
        ["compute", "communication", "copy", "memset"]
    )
    sorts = (
        names[on_path],
        names[_outermost_op(trace, on_path)],
        np.where(gpu, path["name"].to_numpy(object), ""),
    )
    found: list[str] = []
    for words in sorts:
        time = path["dur_ns"].groupby(words).sum().drop("", errors="ignore")
        found += [str(word) for word in time.nlargest(CANDIDATES).index]
    return list(dict.fromkeys(found))


def _outermost_op(trace: Trace, rows: Ints) -> Ints:
    """The op around each of these that is in no other op."""
    around = outermost(trace.slices["parent"].to_numpy(), are_ops(trace))
    return np.append(around, NONE)[rows].astype(np.int64)


def _changed(trace: Trace, name: str) -> tuple[str, Mask]:
    """Whether it is an op, a function or a kernel, and which slices change with it.

    An op outside of a window may own what is in it.
    """
    chosen = trace.index.named(frozenset({name}))
    gpu = trace.index.gpu
    on_gpu = np.zeros(len(trace), bool)
    on_gpu[gpu] = True
    if (chosen & on_gpu).any():
        return "kernel", chosen & on_gpu
    chosen &= np.isin(
        trace.slices["track"].to_numpy(),
        np.flatnonzero(trace.tracks["kind"].isin(["cpu", "python"]).to_numpy()),
    )
    if not chosen.any():
        known = [str(n) for n in trace.slices["name"].cat.categories]
        # The name of a recorded frame begins with its file: a function is in it, not near it.
        near = get_close_matches(name, known, 1) or [one for one in known if name and name in one]
        hint = f"; did you mean {near[0]!r}?" if near else ""
        raise OptionError(
            f"no op, kernel or Python function of this trace is called {name!r}{hint}; "
            "what_ifs() names those that would save most"
        )
    inside = chosen | (nearest_ancestor(trace.slices["parent"].to_numpy(), chosen) >= 0)
    launch = trace.slices["launch"].to_numpy()[gpu]
    owner = np.where(launch >= 0, launch, trace.slices["op"].to_numpy()[gpu])
    inside[gpu] = np.append(inside, False)[owner]
    is_python = not (chosen & trace.index.on_tracks("cpu")).any()
    return "function" if is_python else "op", inside


def _table(
    record: Record, t0: int, t1: int, changes: Sequence[tuple[str, str, Mask]], scale: float
) -> pd.DataFrame:
    graph = graph_of(record, t0, t1)
    path = critical_path(record, region=(t0, t1))
    gone = np.stack([np.append(mask, False) for _, _, mask in changes])
    threads, work = graph.threads, graph.work
    own = ~graph.waiting * (threads.end - threads.start)
    time = (gone[:, threads.row] * own).sum(axis=1) + (
        gone[:, work.row] * (work.end - work.start)
    ).sum(axis=1)
    spent = ~path["kind"].isin(DELAYS).to_numpy(bool)
    on_path = (gone[:, path["row"].to_numpy()] * (path["dur_ns"].to_numpy() * spent)).sum(axis=1)
    new = replayed(graph, gone, scale) if len(path) else np.zeros(len(changes), np.int64)
    span = t1 - t0
    is_named = [record.trace.index.named(frozenset({name})) for name, _, _ in changes]
    calls = [
        int((mask & again & (record.trace.slices["count"].to_numpy() > 0)).sum())
        for (_, _, mask), again in zip(changes, is_named, strict=True)
    ]
    return pd.DataFrame(
        {
            "name": pd.Series([name for name, _, _ in changes], dtype=object),
            "what": pd.Series([what for _, what, _ in changes], dtype=object),
            "scale": float(scale),
            "calls": np.array(calls, np.int64),
            "time_ns": time.astype(np.int64),
            "path_ns": on_path.astype(np.int64),
            "span_ns": span,
            "new_span_ns": new,
            "saved_ns": span - new,
            "saved_share": (span - new) / max(span, 1),
        }
    )[list(COLUMNS)]
