"""NVTX ranges that nest in nothing: rows of the timeline of their own."""

from __future__ import annotations

import heapq

import numpy as np

from gpuprof_widgets.trace.databases.activity import Group, of_one, texts
from gpuprof_widgets.trace.databases.sqlite_tables import Ints, Texts
from gpuprof_widgets.trace.schema import NVTX_RANGE

ROW = "NVTX start/end"
UNNAMED = "(unnamed range)"


def crossing_group(start: Ints, end: Ints, said: Texts, process: Ints) -> Group:
    """Ranges that were started and ended by their number, on rows of their own.

    They may begin on one thread, end on another, and cross all others: as many rows as are open at
    once, and they own nothing.
    """
    rows = _rows(process, start, end)
    thread = np.array([ROW if row == 0 else f"{ROW} {row + 1}" for row in rows], object)
    category = of_one(NVTX_RANGE, len(start))
    return Group(start, end - start, said, category, texts(process), thread)


def _rows(process: Ints, start: Ints, end: Ints) -> list[int]:
    """Per range the first row of its process that is free when it starts."""
    free: dict[int, list[int]] = {}
    busy: dict[int, list[tuple[int, int]]] = {}
    found = [0] * len(start)
    for at in np.argsort(start, kind="stable").tolist():
        owner = int(process[at])
        ends, rows = busy.setdefault(owner, []), free.setdefault(owner, [])
        while ends and ends[0][0] <= start[at]:
            heapq.heappush(rows, heapq.heappop(ends)[1])
        found[at] = heapq.heappop(rows) if rows else len(ends)
        heapq.heappush(ends, (int(end[at]), found[at]))
    return found
