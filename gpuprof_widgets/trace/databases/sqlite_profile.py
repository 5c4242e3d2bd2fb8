"""What the reader of a profiler's database found, and the record of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pandas as pd

from gpuprof_widgets.exceptions import TraceError
from gpuprof_widgets.trace.assemble import assemble
from gpuprof_widgets.trace.databases.activity import Group, joined
from gpuprof_widgets.trace.databases.gpu_annotations import gpu_annotations
from gpuprof_widgets.trace.events import Names
from gpuprof_widgets.trace.model import Record, Trace


@dataclass(frozen=True)
class Found:
    """Rows in our words on the clock of the file (ns), which began at ``epoch_ns``."""

    groups: Sequence[Group]
    names: Names
    counters: pd.DataFrame
    epoch_ns: int = 0
    notes: Sequence[str] = ()
    metadata: Mapping[str, Any] = field(default_factory=dict)


def _trace(found: Found, groups: Sequence[Group]) -> Trace:
    events, names = joined(groups), _names(found)
    return assemble(events, names=names, counters=found.counters, epoch_ns=found.epoch_ns)


def _names(found: Found) -> Names:
    """Those of the file; threads of ours, which are no numbers, are called as they are."""
    ours = {
        (process, thread): thread
        for group in found.groups
        for process, thread in set(zip(group.process.tolist(), group.thread.tolist(), strict=True))
        if not thread.isdecimal()
    }
    return Names(found.names.processes, ours | dict(found.names.threads))


def record_of(found: Found, path: Path) -> Record:
    """The record; a `TraceError` where there is nothing in it."""
    if not any(map(len, found.groups)):
        left = f" ({'; '.join(found.notes)})" if found.notes else ""
        raise TraceError(
            f"{path}: a profiler's database without a single event of CUDA or NVTX{left}. "
            "Record again with --trace=cuda,nvtx, with the work inside the profiled region."
        )
    trace = _trace(found, found.groups)
    covered = gpu_annotations(trace, trace.epoch_ns - found.epoch_ns)
    if len(covered):
        trace = _trace(found, [*found.groups, covered])
    told = {"source": str(path), "notes": list(found.notes)}
    return Record(trace, None, {"devices": [], **found.metadata, **told})
