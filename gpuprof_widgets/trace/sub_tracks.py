"""Rows of a thread on which its slices lie without crossing.

The rule: a slice that starts while another one lasts and outlasts it goes to the first sub-track of
its thread on which it crosses nothing. Where that would take more than `MOST` sub-tracks, the last
one holds what crosses, and the nesting there is that of the slice which started last.
"""

from __future__ import annotations

import heapq
from collections import defaultdict

import numpy as np
from numpy.typing import NDArray

from gpuprof_widgets.trace import links

MOST = 64

Ints = NDArray[np.int64]


def sub_tracks(ts: Ints, dur: Ints, track: Ints) -> Ints:
    """The number of the sub-track of every slice, 0 where nothing crosses."""
    number = np.zeros(len(ts), dtype=np.int64)
    order = np.lexsort((-dur, ts, track))
    start, end = ts[order], ts[order] + dur[order]
    parent, _ = links.nest(start, end, track[order])
    crossing = (parent >= 0) & (end > end[parent])
    tracks = np.unique(track[order][crossing])
    firsts = np.searchsorted(track[order], tracks, side="left")
    lasts = np.searchsorted(track[order], tracks, side="right")
    for first, last in zip(firsts.tolist(), lasts.tolist(), strict=True):
        number[order[first:last]] = _first_fit(start[first:last].tolist(), end[first:last].tolist())
    return number


def _first_fit(starts: list[int], ends: list[int]) -> list[int]:
    """For slices in the order of their starts, longest first."""
    open_until: list[list[int]] = [[]]
    numbers = []
    for start, end in zip(starts, ends, strict=True):
        for stack in open_until:
            while stack and stack[-1] <= start:
                stack.pop()
        fits = (n for n, stack in enumerate(open_until) if not stack or end <= stack[-1])
        number = next(fits, len(open_until))
        if number == len(open_until) and number < MOST:
            open_until.append([])
        number = min(number, MOST - 1)
        open_until[number].append(end)
        numbers.append(number)
    return numbers


def lanes(starts: Ints, ends: Ints, group: Ints) -> Ints:
    """The lowest number, in its group, of a lane that is free from each start to its end.

    As long as there are less than `MOST`; what needs more is on the last one.
    """
    number = np.zeros(len(starts), dtype=np.int64)
    busy: dict[int, list[tuple[int, int]]] = defaultdict(list)
    free: dict[int, list[int]] = defaultdict(list)
    made: dict[int, int] = defaultdict(int)
    order = np.lexsort((-ends, starts))
    columns = (order, starts[order], ends[order], group[order])
    for row, start, end, of in zip(*(column.tolist() for column in columns), strict=True):
        while busy[of] and busy[of][0][0] <= start:
            heapq.heappush(free[of], heapq.heappop(busy[of])[1])
        if not free[of]:
            heapq.heappush(free[of], made[of])
            made[of] += 1
        number[row] = heapq.heappop(free[of])
        heapq.heappush(busy[of], (end, int(number[row])))
    return np.minimum(number, MOST - 1)
