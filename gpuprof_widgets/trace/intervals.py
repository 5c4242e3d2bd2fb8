"""Sets of half-open time intervals [start, end) as pairs of sorted int64 arrays.

All arithmetic is exact. ``union`` makes any intervals disjoint and sorted; the other functions take
such unions. Intervals of length 0 are dropped.
"""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from gpuprof_widgets.trace.arrays import Ints, Mask

Intervals: TypeAlias = tuple[Ints, Ints]


def union(start: npt.ArrayLike, end: npt.ArrayLike) -> Intervals:
    """Return disjoint, sorted intervals that cover the same time; touching ones become one."""
    start, end = np.asarray(start, np.int64), np.asarray(end, np.int64)
    kept = end > start
    start, end = start[kept], end[kept]
    if not len(start):
        return start, end
    order = np.argsort(start, kind="stable")
    start, reach = start[order], np.maximum.accumulate(end[order])
    opens = np.append(True, start[1:] > reach[:-1])
    closes = np.append(opens[1:], True)
    return start[opens], reach[closes]


def distinct(*values: npt.ArrayLike) -> Ints:
    """Return all of these numbers, sorted and without repeats.

    It sorts, because `numpy.unique` (a hash table) takes a hundred times as long on times, nearly
    all of which differ.
    """
    ordered = np.sort(np.concatenate([np.asarray(each, np.int64) for each in values]))
    is_first = np.append(True, ordered[1:] != ordered[:-1])[: len(ordered)]
    return np.asarray(ordered[is_first])


def length(intervals: Intervals) -> int:
    """Return the total time in ns of disjoint intervals."""
    return int((intervals[1] - intervals[0]).sum())


def clip(intervals: Intervals, t0: int, t1: int) -> Intervals:
    """Return the part of disjoint intervals that lies in [t0, t1)."""
    start, end = np.clip(intervals[0], t0, t1), np.clip(intervals[1], t0, t1)
    kept = end > start
    return start[kept], end[kept]


def gaps(intervals: Intervals, t0: int, t1: int) -> Intervals:
    """Return the time of [t0, t1) that disjoint intervals do not cover."""
    start, end = clip(intervals, t0, t1)
    return union(np.append(t0, end), np.append(start, t1))


def overlap(left: Intervals, right: Intervals) -> Ints:
    """Return per interval of ``left`` the ns that the disjoint intervals ``right`` cover."""
    return covered_until(right, left[1]) - covered_until(right, left[0])


def inside(times: Ints, intervals: Intervals) -> Mask:
    """Whether each of these moments lies in one of the disjoint, sorted intervals."""
    start, end = intervals
    latest = np.searchsorted(start, times, side="right")  # the interval before each of these
    return np.asarray(np.append(np.iinfo(np.int64).min, end)[latest] > times)


def covered_until(intervals: Intervals, times: npt.ArrayLike) -> Ints:
    """Return per time the ns before it that disjoint intervals cover."""
    start, end = intervals
    times = np.asarray(times, np.int64)
    if not len(start):
        return np.zeros(len(times), np.int64)
    before = np.append(0, np.cumsum(end - start))
    index = np.searchsorted(start, times, side="right")
    last_end = np.where(index > 0, end[index - 1], times)
    covered: Ints = before[index] - np.maximum(last_end - times, 0)
    return covered


def intersection(left: Intervals, right: Intervals) -> Intervals:
    """Return the time that two sets of disjoint intervals have in common."""
    if not len(left[0]) or not len(right[0]):
        return np.empty(0, np.int64), np.empty(0, np.int64)
    t0, t1 = min(left[0][0], right[0][0]), max(left[1][-1], right[1][-1])
    free_left, free_right = gaps(left, t0, t1), gaps(right, t0, t1)
    free = union(np.append(free_left[0], free_right[0]), np.append(free_left[1], free_right[1]))
    return gaps(free, t0, t1)


def difference(left: Intervals, right: Intervals) -> Intervals:
    """Return the time of ``left`` that ``right`` does not cover."""
    if not len(left[0]):
        return left
    free = gaps(right, int(left[0][0]), int(left[1][-1]))
    return intersection(left, free)


def length_by(group: npt.ArrayLike, start: Ints, end: Ints, groups: int) -> Ints:
    """Return per group the length of the union of its intervals, which may overlap."""
    group = np.asarray(group, np.int64)
    if not len(start):
        return np.zeros(groups, np.int64)
    origin = start.min()
    room = end.max() - origin + 1  # groups are laid one after another on a line, without touching
    shift = group * room - origin
    line = union(start + shift, end + shift)
    total = np.zeros(groups, np.int64)
    np.add.at(total, line[0] // room, line[1] - line[0])
    return total
