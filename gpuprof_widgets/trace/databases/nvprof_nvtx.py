"""NVTX ranges and marks of an nvprof file: a row where one starts, and one where it ends."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd

from gpuprof_widgets.trace.databases.activity import Group, of_one, texts
from gpuprof_widgets.trace.databases.nvtx_ops import emitted_group
from gpuprof_widgets.trace.databases.nvtx_rows import UNNAMED, crossing_group
from gpuprof_widgets.trace.databases.readings import Reading
from gpuprof_widgets.trace.databases.sqlite_tables import Ints, Table, Texts

MARKERS = "CUPTI_ACTIVITY_KIND_MARKER"
INSTANT, START, END = 1, 2, 4
"""CUPTI's CUpti_ActivityFlag of markers."""
PROCESS, THREAD = 1, 2
"""CUPTI's CUpti_ActivityObjectKind."""


def marker_groups(reading: Reading, strings: Mapping[int, str]) -> list[Group]:
    """Ranges on their threads, ranges of a whole process or across threads, and marks."""
    held = _held(reading)
    said = _texts(held, strings)
    marks = (held["flags"] & INSTANT) > 0
    first, last = _pairs(reading, held)
    start = held["timestamp"][first]
    ends = np.append(held["timestamp"], 0)[last]
    end = np.where(last >= 0, np.maximum(ends, start), max(reading.latest, 0))
    process, thread = held["process"][first], held["thread"][first]
    ended = np.append(held["thread"], -1)[last]
    on_thread = (held["objectKind"][first] == THREAD) & ((last < 0) | (ended == thread))
    across = ~on_thread
    domain = _domains(held, strings)
    ours = np.array([name is None for name in domain[first][on_thread]], bool)
    pushed = emitted_group(
        start[on_thread],
        end[on_thread],
        said[first][on_thread],
        process[on_thread],
        thread[on_thread],
        ours,
        several=len(np.unique(process)) > 1,
    )
    crossing = crossing_group(start[across], end[across], said[first][across], process[across])
    return [
        pushed.with_args(domain=domain[first][on_thread]),
        crossing.with_args(domain=domain[first][across]),
        _marks(held.chosen(marks), said[marks]).with_args(domain=domain[marks]),
    ]


def object_ids(blobs: Sequence[bytes]) -> tuple[Ints, Ints]:
    """Process and thread of CUPTI's ``objectId``: 32 bits each, little-endian."""
    whole = b"".join(blob[:8].ljust(8, b"\0") for blob in blobs)
    numbers = np.frombuffer(whole, "<u4").reshape(-1, 2).astype(np.int64)
    return numbers[:, 0], numbers[:, 1]


def _held(reading: Reading) -> Table:
    columns = ["flags", "id", "objectKind", "name", "domain"]
    process, thread = object_ids(reading.database.blobs(MARKERS, "objectId"))
    return reading.moments(
        MARKERS, "timestamp", columns, beside={"process": process, "thread": thread}
    )


def _texts(held: Table, strings: Mapping[int, str]) -> Texts:
    said = np.empty(len(held), object)
    said[:] = [strings.get(number, UNNAMED) for number in held["name"].tolist()]
    return said


def _domains(held: Table, strings: Mapping[int, str]) -> Texts:
    """The name of each row's domain; None for the one that needs none."""
    found = np.empty(len(held), object)
    found[:] = [strings.get(number) or None for number in held["domain"].tolist()]
    return found


def _pairs(reading: Reading, held: Table) -> tuple[Ints, Ints]:
    """Rows of starts, and for each the row of its end; -1 where there is none.

    They share an id; where it is used again, the first start has the first end.
    """
    starts, ends = (np.flatnonzero((held["flags"] & flag) > 0) for flag in (START, END))
    by_id = pd.Series(ends, index=_uses(held, ends))
    last = by_id.reindex(_uses(held, starts), fill_value=-1).to_numpy(np.int64)
    missing = int(np.count_nonzero(last < 0))
    if missing:
        reading.notes.append(
            f"{missing:,} of {len(starts):,} NVTX ranges were open when the recording ended; "
            "they end with it"
        )
    if loose := len(ends) - len(starts) + missing:
        reading.notes.append(f"{loose:,} ends of NVTX ranges have no start and were left out")
    return starts, last


def _uses(held: Table, rows: Ints) -> pd.MultiIndex:
    """The process and id of each row, and how often they were in use before."""
    ids = pd.DataFrame({key: held[key][rows] for key in ("process", "id", "timestamp")})
    in_time = ids.sort_values("timestamp", kind="stable")
    use = in_time.groupby(["process", "id"]).cumcount().reindex(ids.index)
    return pd.MultiIndex.from_arrays([ids["process"], ids["id"], use])


def _marks(held: Table, said: Texts) -> Group:
    none = np.zeros(len(held), np.int64)
    category = of_one("cpu_instant_event", len(held))
    process, thread = texts(held["process"]), texts(held["thread"])
    return Group(held["timestamp"], none, said, category, process, thread)
