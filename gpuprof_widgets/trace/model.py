"""The record of one profiled run: plain frozen tables on one clock.

A `Trace` holds events in time: slices, tracks, counters, flows. cProfile has no timestamps, so its
result is separate, in `Calls`. A `Record` is both with their metadata; analyses take a `Record` and
return a table. `schema` has the columns and units.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import pandas as pd

from gpuprof_widgets.trace.index import Index


@dataclass(frozen=True, eq=False)
class Trace:
    """Slices, tracks, counters and flows on one clock (int64 ns since the trace's start).

    ``slices`` is sorted by track, then start, then longest first, then file order. Its index is the
    row number that every link (``parent``, ``launch``, ``op``, ``forward``, flows) refers to.
    ``args`` holds all other values of the events: for each key a Series whose index is the slice's
    row. ``start_ns`` and ``end_ns`` are the bounds of the trace, or of the window.
    """

    slices: pd.DataFrame
    tracks: pd.DataFrame
    counters: pd.DataFrame
    flows: pd.DataFrame
    args: Mapping[str, pd.Series]
    start_ns: int
    end_ns: int
    epoch_ns: int = 0

    def __len__(self) -> int:
        return len(self.slices)

    @property
    def span_ns(self) -> int:
        """Length of the trace or window in ns."""
        return self.end_ns - self.start_ns

    @cached_property
    def index(self) -> Index:
        """Arrays derived from these tables, which are computed once."""
        return Index(self.slices, self.tracks, self.args, self.start_ns, self.end_ns)

    def __getstate__(self) -> dict[str, Any]:
        """Leave out the index: a process that receives the trace makes its own."""
        return {name: value for name, value in vars(self).items() if name != "index"}


@dataclass(frozen=True, eq=False)
class Calls:
    """cProfile's result: functions and caller-callee edges; no timestamps.

    ``functions``: ``file``, ``line``, ``name``, ``calls``, ``primitive_calls``, ``self_ns``
    (cProfile's tottime), ``total_ns`` (its cumtime).
    ``edges``: ``caller``, ``callee`` (rows of functions), ``calls``, ``primitive_calls``,
    ``self_ns``, ``total_ns`` (the callee's share on behalf of this caller).
    """

    functions: pd.DataFrame
    edges: pd.DataFrame


@dataclass(frozen=True, eq=False)
class Record:
    """One run: its trace, its Python calls (None if cProfile did not run) and its metadata.

    ``calls_of_workers``: cProfile's result in each recorded worker process of a DataLoader, by the
    worker's name ("worker2.pid1234").
    """

    trace: Trace
    calls: Calls | None = None
    metadata: Mapping[str, Any] = field(default_factory=dict)
    calls_of_workers: Mapping[str, Calls] = field(default_factory=dict)
