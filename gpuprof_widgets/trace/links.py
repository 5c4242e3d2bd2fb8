"""Nesting of slices: parents, depths, ancestors, self times, and lookups by id or time.

All functions take and return plain arrays over slice rows; -1 (`schema.NONE`) means that there is
no such row. They work in rounds of array operations, mostly by pointer doubling, so that deep
stacks cost no more Python than flat ones.
"""

from __future__ import annotations

from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from gpuprof_widgets.trace.arrays import Codes, Ints, Mask, Rows
from gpuprof_widgets.trace.schema import NONE

Signed = NDArray[np.signedinteger[Any]]
Number = TypeVar("Number", np.int32, np.int64)


def nest(ts: Signed, end: Signed, group: Signed) -> tuple[Codes, Codes]:
    """Return parent row and depth of every slice within its group.

    The parent is the latest-started slice that is still open (``end > ts``) when this one starts;
    it need not outlast its child. The input is sorted by group, ts, longest first.
    """
    rows = np.arange(len(ts))
    first = np.ones(len(ts), dtype=bool)
    first[1:] = group[1:] != group[:-1]
    parent = last_above(end, rows, ts)
    parent[parent < np.maximum.accumulate(np.where(first, rows, 0))] = NONE
    return parent, depths(parent)


NEIGHBOURS = 4
"""Number of places that are looked at one by one, as the last one above is mostly near."""


def last_above(values: Signed, before: Signed, bound: Signed) -> Codes:
    """Return per query the last place before ``before`` whose value is above ``bound``; else -1.

    With the ends of slices (sorted by start) as values, that is the innermost slice still open.
    """
    last = before.astype(np.int32) - 1
    query = np.flatnonzero(last >= 0)
    for _ in range(NEIGHBOURS):
        query = query[values[last[query]] <= bound[query]]
        last[query] -= 1
        query = query[last[query] >= 0]
    if len(query):
        last[query] = _last_above_by_pyramid(values, last[query].astype(np.intp) + 1, bound[query])
    return last


def _last_above_by_pyramid(values: Signed, before: Signed, bound: Signed) -> Codes:
    """Search up and down a pyramid of maxima of 2, 4, 8, ... neighbours.

    So the number of rounds is the number of levels, however deep the slices nest.
    """
    pyramid = [values]
    while len(pyramid[-1]) > 1:
        pyramid.append(np.maximum.reduceat(pyramid[-1], np.arange(0, len(pyramid[-1]), 2)))
    query, at = np.arange(len(before)), before
    hits = []
    for level in pyramid:  # ``at``: number of blocks of this level before the query, none seen yet
        query, at = query[at > 0], at[at > 0]
        hit = at % 2 == 1
        hit[hit] = level[at[hit] - 1] > bound[query[hit]]
        hits.append((query[hit], at[hit] - 1))
        query, at = query[~hit], at[~hit] // 2
    last = np.full(len(before), NONE, dtype=np.int32)
    query, place = hits[-1]
    for level, (more, where) in zip(pyramid[-2::-1], hits[-2::-1], strict=True):
        right = np.minimum(2 * place + 1, len(level) - 1)
        place = np.where(level[right] > bound[query], right, 2 * place)
        query, place = np.append(query, more), np.append(place, where)
    last[query] = place
    return last


def innermost_open(ts: Signed, end: Signed, moments: Signed) -> Signed:
    """Return per moment the latest-started open slice, of slices sorted by start; else -1."""
    return last_above(end, np.searchsorted(ts, moments, side="right"), moments)


def depths(parent: Codes) -> Codes:
    """Return the number of ancestors of each row."""
    return path_sum((parent >= 0).astype(np.int32), parent)


def places_in(order: Signed) -> Ints:
    """Return the place of each row in an order of all rows."""
    place = np.empty(len(order), dtype=np.int64)
    place[order] = np.arange(len(order))
    return place


def rows_by(key: Signed) -> dict[int, Rows]:
    """Group the rows by key value, each group in row order: one pass, however many values."""
    order = np.argsort(key, kind="stable")
    groups = np.split(order, np.flatnonzero(np.diff(key[order])) + 1)
    return {int(key[rows[0]]): rows for rows in groups if len(rows)}


def path_sum(values: NDArray[Number], parent: Signed, add: np.ufunc = np.add) -> NDArray[Number]:
    """Sum per row over itself and its ancestors, by doubling the known part of every path."""
    total, ancestor = values.copy(), parent.copy()
    active = np.flatnonzero(ancestor >= 0)
    while len(active):
        above = ancestor[active]
        total[active] = add(total[active], total[above])
        ancestor[active] = ancestor[above]
        active = active[ancestor[active] >= 0]
    return total


def subtree_sum(values: NDArray[Number], parent: Signed, add: np.ufunc = np.add) -> NDArray[Number]:
    """Sum per row over itself and its descendants, of twice as many generations each round."""
    total, ancestor = values.copy(), parent.copy()
    active = np.flatnonzero(ancestor >= 0) if values.any() else np.empty(0, np.intp)
    while len(active):
        above = ancestor[active]
        add.at(total, above, total[active])
        ancestor[active] = ancestor[above]
        active = active[ancestor[active] >= 0]
    return total


def preorder(parent: Signed, rank: Signed) -> tuple[Ints, Ints]:
    """Return place and size of every subtree when each row is followed by its descendants.

    Siblings, and the roots, are sorted by ``rank``, then by row.
    """
    size = subtree_sum(np.ones(len(parent), np.int64), parent)
    siblings = np.lexsort((rank, parent))
    before = np.cumsum(size[siblings]) - size[siblings]
    is_first = np.diff(parent[siblings], prepend=NONE - 1) != 0
    offset = np.empty(len(parent), np.int64)
    offset[siblings] = before - np.maximum.accumulate(np.where(is_first, before, 0))
    return path_sum(offset + (parent >= 0), parent), size


def below_its_like(parent: Signed, key: Signed) -> Mask:
    """Which rows have an ancestor with the same key."""
    place, size = preorder(parent, np.zeros(len(parent), np.int64))
    order = np.lexsort((place, key))
    # Subtrees are disjoint or nested: a row is inside an earlier one if any of these reaches it.
    line = key[order].astype(np.int64) * (len(parent) + 1) + place[order]
    reached = np.maximum.accumulate(line + size[order])
    inside = np.zeros(len(parent), bool)
    inside[order[1:]] = reached[:-1] > line[1:]
    return inside


def subtree_end(end: Signed, parent: Signed) -> Ints:
    """Return the latest end of each slice and its descendants (a child may outlast its parent)."""
    latest = end.astype(np.int64)
    inner = np.flatnonzero(parent >= 0)
    if not np.any(latest[inner] > latest[parent[inner]]):
        return latest  # as in every trace whose slices nest
    return subtree_sum(latest, parent, np.maximum)


def self_times(ts: Signed, end: Signed, parent: Signed) -> Ints:
    """Return the time (ns) during which each slice is the latest-started open one of its track.

    Whether slices nest or cross, the self times of a track add up to the union of its slices.
    """
    latest = subtree_end(end, parent)
    self_ns = (end - ts).astype(np.int64)
    child = np.flatnonzero(parent >= 0)
    above = parent[child]
    covered = np.minimum(latest[child], end[above]) - ts[child]
    np.subtract.at(self_ns, above, covered)
    return self_ns


def nearest_ancestor(parent: Signed, wanted: Mask) -> Codes:
    """Return the row of the innermost ``wanted`` ancestor (not the slice itself); else -1."""
    if not wanted.any():  # the common case: most categories are absent from a trace
        return np.full(len(parent), NONE, np.int32)
    # Wanted slices, and the end of every path, are their own ancestors: there doubling stops.
    ancestor = np.append(parent.astype(np.int32), np.int32(NONE))
    rows = np.flatnonzero(wanted)
    ancestor[rows] = rows
    while not np.array_equal(higher := ancestor.take(ancestor), ancestor):
        ancestor = higher
    return ancestor.take(parent)


def itself_or_ancestor(parent: Signed, wanted: Mask) -> Codes:
    """Return the row of the slice itself if it is ``wanted``, else of its nearest such ancestor."""
    rows = np.arange(len(parent), dtype=np.int32)
    return np.where(wanted, rows, nearest_ancestor(parent, wanted))


def open_ancestor(above: Signed, ts: Signed, end: Signed) -> Codes:
    """Return the innermost ancestor of each slice that is still open when the slice starts.

    ``above`` is the nearest ancestor of each slice within the set given. For a subset of nested
    slices, the result is the parent that each slice has when the subset is nested alone.
    """
    ancestor = above.astype(np.int32)
    closed = np.flatnonzero(ancestor >= 0)
    while len(closed := closed[end[ancestor[closed]] <= ts[closed]]):
        # An ancestor that had ended when the skipped one started has ended by now too.
        ancestor[closed] = ancestor[ancestor[closed]]
        closed = closed[ancestor[closed] >= 0]
    return ancestor


def outermost(parent: Signed, wanted: Mask) -> Codes:
    """Return the row of the outermost ``wanted`` slice: the slice or an ancestor; else -1."""
    above = nearest_ancestor(parent, wanted)
    top = np.where(above >= 0, above, np.arange(len(parent), dtype=np.int32))
    while not np.array_equal(top, higher := top[top]):  # each step is twice as long as the last
        top = higher
    return np.where(wanted | (above >= 0), top, np.int32(NONE))


def latest_before(key: Signed, ts: Signed, other_key: Signed, other_ts: Signed) -> Ints:
    """Return for each (key, ts) the index of the latest other with that key and a ts not later.

    Where all others with the key start later, it is the first of them, because the clocks of two
    devices differ.
    """
    order = np.lexsort((other_ts, other_key))
    sorted_key, sorted_ts = other_key[order], other_ts[order]
    low = np.searchsorted(sorted_key, key, side="left")
    high = np.searchsorted(sorted_key, key, side="right")
    latest = np.full(len(key), NONE, dtype=np.int64)
    known = low < high
    low, high, ts = low[known], high[known] - 1, ts[known]
    while np.any(low < high):  # one binary search for all rows at once
        middle = (low + high + 1) // 2
        not_after = sorted_ts[middle] <= ts
        low = np.where(not_after, middle, low)
        high = np.where(not_after, high, np.maximum(middle - 1, low))
    latest[known] = order[low]
    return latest
