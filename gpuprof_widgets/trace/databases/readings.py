"""Reading of a profiler's database: rows with valid times, notes on the rest, and the record.

`Reading` reads tables for nvprof's and Nsight Systems' readers and counts what is left out. They
return `Contents`; `record_of` assembles it and adds the GPU rows of annotations, which Kineto
writes and databases lack.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from gpuprof_widgets.exceptions import TraceError
from gpuprof_widgets.trace.arrays import Ints, Mask
from gpuprof_widgets.trace.assemble import assemble
from gpuprof_widgets.trace.databases.activity import Group, joined
from gpuprof_widgets.trace.databases.sqlite_tables import MISSING, Database, Table
from gpuprof_widgets.trace.events import Names
from gpuprof_widgets.trace.model import Record, Trace
from gpuprof_widgets.trace.owners import in_categories, is_gpu

TIME_COLUMNS = ("start", "timestamp")
"""A table with such a column holds events."""

LATEST = 2**62
"""Later times (ns) are damage: the sum of two would not fit int64."""

MOST_NOTES = 12
LONGEST_NAME = 80
"""Limits of notes: profilers' files have few tables with short names, other files may have any."""


@dataclass(frozen=True)
class Contents:
    """Events, names and counters of a file on its own clock (ns), which is 0 at ``epoch_ns``."""

    groups: Sequence[Group]
    names: Names
    counters: pd.DataFrame
    epoch_ns: int = 0
    notes: Sequence[str] = ()
    metadata: Mapping[str, Any] = field(default_factory=dict)


class Reading:
    """Reads tables and counts rows without valid times; ``latest`` is the last time read (ns)."""

    def __init__(self, database: Database) -> None:
        self.database = database
        self.latest = 0
        self.notes: list[str] = []
        self._rows = self._untimed = 0
        self._read: set[str] = set()

    def events(self, table: str, ints: Sequence[str], texts: Sequence[str] = ()) -> Table:
        """Return the rows with a valid ``start`` and ``end`` (ns); count the others."""
        rows = self.table(table, ["start", "end", *ints], texts)
        start, end = rows["start"], rows["end"]
        # CUPTI writes 0 and 0 for times that it could not determine.
        valid = (start >= 0) & (end >= start) & (end < LATEST) & ((start > 0) | (end > 0))
        return self._timed(rows, valid, "end")

    def moments(
        self,
        table: str,
        time: str,
        ints: Sequence[str],
        texts: Sequence[str] = (),
        *,
        more: Mapping[str, Ints] | None = None,
    ) -> Table:
        """Return the rows with a valid time (ns) in the column ``time``; count the others.

        ``more``: further columns of all rows of the table.
        """
        rows = self.table(table, [time, *ints], texts).with_ints(**more or {})
        return self._timed(rows, (rows[time] >= 0) & (rows[time] < LATEST), time)

    def table(self, table: str, ints: Sequence[str], texts: Sequence[str] = ()) -> Table:
        """Return all rows of a table; no rows where the file lacks it."""
        self._read.add(table)
        return self.database.read(table, ints, texts)

    def ignore(self, *tables: str) -> None:
        """Do not report these tables as unread: they hold nothing that a trace shows."""
        self._read.update(tables)

    def note_open_ranges(self, count: int, total: int) -> None:
        """Note that ``count`` of ``total`` NVTX ranges have no end."""
        if count:
            self.notes.append(
                f"{count:,} of {total:,} NVTX ranges were open when the recording ended; "
                "they end with it"
            )

    def all_notes(self) -> list[str]:
        """Return a line for each kind of damage, omission or unread table."""
        left = f"{self._untimed:,} of {self._rows:,} rows have no valid times and were left out"
        database = self.database
        events = [name for name in database.tables if database.has_column(name, *TIME_COLUMNS)]
        rows = {name: database.count(name) for name in events if name not in self._read}
        unread = [
            f"{name if len(name) <= LONGEST_NAME else f'{name[:LONGEST_NAME]}…'} is not read "
            f"({n:,} rows)"
            for name, n in rows.items()
            if n
        ]
        more = len(unread) - MOST_NOTES
        rest = [f"{more:,} more tables are not read"] if more > 0 else []
        return [*([left] if self._untimed else []), *self.notes, *unread[:MOST_NOTES], *rest]

    def _timed(self, rows: Table, valid: Mask, end: str) -> Table:
        self._rows += len(rows)
        self._untimed += int(np.count_nonzero(~valid))
        timed = rows.chosen(valid)
        self.latest = max(self.latest, int(timed[end].max(initial=0)))
        return timed


def first_known(first: Ints, second: Ints) -> Ints:
    """Return row by row the first of two numbers that is not missing."""
    return np.where(first == MISSING, second, first)


def record_of(contents: Contents, path: Path) -> Record:
    """Return the record; raise a `TraceError` where the file holds no events."""
    if not any(map(len, contents.groups)):
        notes = f" ({'; '.join(contents.notes)})" if contents.notes else ""
        raise TraceError(
            f"{path}: a profiler's database without a single event of CUDA or NVTX{notes}. "
            "Record again with --trace=cuda,nvtx, with the work inside the profiled region."
        )
    trace = _trace(contents)
    annotations = _gpu_annotations(trace, trace.epoch_ns - contents.epoch_ns)
    if len(annotations):
        trace = _trace(replace(contents, groups=[*contents.groups, annotations]))
    source = {"source": str(path), "notes": list(contents.notes)}
    return Record(trace, None, {"devices": [], **contents.metadata, **source})


def _trace(contents: Contents) -> Trace:
    events = joined(contents.groups)
    lanes = pd.DataFrame({"process": events.process, "thread": events.thread}).drop_duplicates()
    # Threads that our readers made up, which are no numbers, name themselves.
    made_up = {
        (process, thread): thread
        for process, thread in zip(lanes["process"], lanes["thread"], strict=True)
        if not thread.isdecimal()
    }
    names = Names(contents.names.processes, made_up | dict(contents.names.threads))
    counters, epoch_ns = contents.counters, contents.epoch_ns
    return assemble(events, names=names, counters=counters, epoch_ns=epoch_ns)


def _gpu_annotations(trace: Trace, start: int) -> Group:
    """Return a row per annotation and stream, from the first to the last slice launched in it.

    Nsight Systems calls this `nvtx_gpu_proj_trace`. ``start``: of the trace on the file's clock.
    """
    slices, tracks = trace.slices, trace.tracks
    pairs = _annotated_gpu_slices(trace)
    pairs["track"] = slices["track"].to_numpy()[pairs["gpu"]]
    pairs["ts"] = slices["ts"].to_numpy()[pairs["gpu"]]
    pairs["end"] = pairs["ts"] + slices["dur"].to_numpy()[pairs["gpu"]]
    place = tracks[["process", "thread", "device", "stream"]]
    placed = pairs.join(place, on="track").groupby(["owner", "process", "thread"], sort=False)
    table = placed.agg(
        ts=("ts", "min"), end=("end", "max"), device=("device", "first"), stream=("stream", "first")
    ).reset_index()
    return Group(
        ts=table["ts"].to_numpy(np.int64) + start,
        dur=(table["end"] - table["ts"]).to_numpy(np.int64),
        name=slices["name"].to_numpy(object)[table["owner"]],
        category="gpu_user_annotation",
        process=table["process"].to_numpy(object),
        thread=table["thread"].to_numpy(object),
        args={key: table[key].to_numpy(np.int64) for key in ("device", "stream")},
    )


def _annotated_gpu_slices(trace: Trace) -> pd.DataFrame:
    """Return each pair of a GPU slice (``gpu``) and an annotation around its launch (``owner``)."""
    slices = trace.slices
    is_annotation = in_categories(slices["category"], ("user_annotation",))
    parent = slices["parent"].to_numpy()
    gpu = np.flatnonzero(is_gpu(slices["category"]))
    owner = slices["op"].to_numpy()[gpu]
    pairs = [(np.empty(0, np.intp), np.empty(0, np.intp))]
    while len(gpu := gpu[owner >= 0]):
        owner = owner[owner >= 0]
        annotated = is_annotation[owner]
        pairs.append((gpu[annotated], owner[annotated]))
        owner = parent[owner]
    gpus, owners = map(np.concatenate, zip(*pairs, strict=True))
    return pd.DataFrame({"gpu": gpus, "owner": owners})
