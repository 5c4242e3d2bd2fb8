"""A profiler's database while it is read: what was left out, and what nobody has looked at."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from gpuprof_widgets.exceptions import TraceError
from gpuprof_widgets.trace.assemble import assemble
from gpuprof_widgets.trace.databases.activity import LATEST, Group, gpu_annotations, joined, timed
from gpuprof_widgets.trace.databases.sqlite_tables import MISSING, Database, Ints, Table
from gpuprof_widgets.trace.events import Names
from gpuprof_widgets.trace.model import Record, Trace

TIMES = ("start", "timestamp")
"""A table with such a column holds events."""

MOST_TABLES = 12
LONGEST_NAME = 80
"""Files of profilers have few tables with short names; others may have any."""


class Reading:
    """Reads tables and keeps count; ``latest`` is the last moment (ns) of what was read."""

    def __init__(self, database: Database) -> None:
        self.database = database
        self.latest = 0
        self.notes: list[str] = []
        self._rows = self._untimed = 0
        self._read: set[str] = set()

    def events(self, table: str, ints: Sequence[str], texts: Sequence[str] = ()) -> Table:
        """Rows that have a ``start`` and an ``end`` (ns); the others are counted."""
        found = self.table(table, ["start", "end", *ints], texts)
        good = timed(found["start"], found["end"])
        self._rows += len(found)
        self._untimed += int(np.count_nonzero(~good))
        return self._noted(found.chosen(good), "end")

    def moments(
        self,
        table: str,
        at: str,
        ints: Sequence[str],
        texts: Sequence[str] = (),
        *,
        beside: Mapping[str, Ints] | None = None,
    ) -> Table:
        """Rows that have a time (ns) in the column ``at``; the others are counted.

        ``beside``: more columns of all rows, which are chosen with them.
        """
        found = self.table(table, [at, *ints], texts).with_ints(**beside or {})
        good = (found[at] >= 0) & (found[at] < LATEST)
        self._rows += len(found)
        self._untimed += int(np.count_nonzero(~good))
        return self._noted(found.chosen(good), at)

    def table(self, table: str, ints: Sequence[str], texts: Sequence[str] = ()) -> Table:
        """All rows of a table; none where it is not there."""
        self._read.add(table)
        return self.database.read(table, ints, texts)

    def passed_over(self, *tables: str) -> None:
        """These tables say nothing that a trace holds: they are not missed."""
        self._read.update(tables)

    def all_notes(self) -> list[str]:
        """One line for each thing that was repaired, left out or not looked at."""
        left = f"{self._untimed:,} of {self._rows:,} rows have no valid times and were left out"
        return [*([left] if self._untimed else []), *self.notes, *self._unread()]

    def _noted(self, table: Table, end: str) -> Table:
        if len(table):
            self.latest = max(self.latest, int(table[end].max()))
        return table

    def _unread(self) -> list[str]:
        held = self.database
        events = [name for name in held.tables if held.has_column(name, *TIMES)]
        rows = {name: held.count(name) for name in events if name not in self._read}
        notes = [f"{_short(name)} is not read ({n:,} rows)" for name, n in rows.items() if n]
        more = len(notes) - MOST_TABLES
        rest = [f"{more:,} tables more are not read"] if more > 0 else []
        return notes[:MOST_TABLES] + rest


def _short(name: str) -> str:
    return name if len(name) <= LONGEST_NAME else f"{name[:LONGEST_NAME]}…"


def first_known(first: Ints, second: Ints) -> Ints:
    """Row by row the first of these numbers that is not missing."""
    return np.where(first == MISSING, second, first)


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
