"""Who is inside whom, who launched whom: the joins between slices.

All functions take and return plain arrays over slice rows; -1 (`schema.NONE`) means "nobody".
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpuprof_widgets.trace.schema import NONE

Ints = NDArray[np.signedinteger[Any]]
Mask = NDArray[np.bool_]


def nest(ts: Ints, end: Ints, group: Ints) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
    """Parent row and depth of every slice, among the slices of its group.

    The parent is the latest-started slice that is still open (``end > ts``) when this one starts;
    it need not outlast its child. The input is sorted by group, ts, longest first.
    """
    rows = np.arange(len(ts), dtype=np.int32)
    parent = rows - 1
    first = np.ones(len(ts), dtype=bool)
    first[1:] = group[1:] != group[:-1]
    parent[first] = NONE
    active = rows[~first]
    # Pointer jumping: what lies between a slice and the row it points to had ended before that
    # slice started, so it is also over for any later slice: following the pointer is safe.
    while len(active):
        candidate = parent[active]
        active = active[end[candidate] <= ts[active]]
        parent[active] = parent[parent[active]]
        active = active[parent[active] >= 0]
    return parent, depths(parent)


def depths(parent: NDArray[np.int32]) -> NDArray[np.int32]:
    """Number of ancestors, by doubling the length of the known part of every path."""
    depth = (parent >= 0).astype(np.int32)
    ancestor = parent.copy()
    active = np.flatnonzero(ancestor >= 0)
    while len(active):
        above = ancestor[active]
        depth[active] += depth[above]
        ancestor[active] = ancestor[above]
        active = active[ancestor[active] >= 0]
    return depth


def subtree_end(end: Ints, parent: Ints) -> NDArray[np.int64]:
    """Latest end of a slice and of everything below it (a child may outlast its parent)."""
    latest = end.astype(np.int64)
    ancestor = parent.copy()
    active = np.flatnonzero(parent >= 0)
    if not np.any(latest[active] > latest[parent[active]]):
        return latest  # as in every trace whose slices nest
    # Doubling: after a round, each slice knows of twice as many generations below it.
    while len(active):
        above = ancestor[active]
        np.maximum.at(latest, above, latest[active])
        ancestor[active] = ancestor[above]
        active = active[ancestor[active] >= 0]
    return latest


def self_times(ts: Ints, end: Ints, parent: Ints) -> NDArray[np.int64]:
    """Time (ns) during which a slice is the latest-started open one of its track.

    Whether slices nest or cross, the self times of a track add up to the union of its slices.
    """
    latest = subtree_end(end, parent)
    own = (end - ts).astype(np.int64)
    child = np.flatnonzero(parent >= 0)
    above = parent[child]
    covered = np.minimum(latest[child], end[above]) - ts[child]
    np.subtract.at(own, above, covered)
    return own


def nearest_ancestor(parent: Ints, wanted: Mask) -> NDArray[np.int32]:
    """Row of the innermost ancestor (not the slice itself) for which ``wanted`` is true."""
    found = parent.astype(np.int32)
    active = np.flatnonzero(found >= 0)
    while len(active):
        active = active[~wanted[found[active]]]
        found[active] = found[found[active]]
        active = active[found[active] >= 0]
    return found


def itself_or_ancestor(parent: Ints, wanted: Mask) -> NDArray[np.int32]:
    """Row of the slice itself where it is ``wanted``, else of its nearest ancestor that is."""
    own = np.arange(len(parent), dtype=np.int32)
    return np.where(wanted, own, nearest_ancestor(parent, wanted))


def climbed(rows: Ints, parent: Ints, past: Callable[[Ints, Ints], Mask]) -> NDArray[np.int32]:
    """Each of these rows, or the innermost of its ancestors that is not ``past``; -1 where all are.

    ``past(place, row)`` says it of rows, each for the one that was given at that place.
    """
    found = rows.astype(np.int32)
    active = np.flatnonzero(found >= 0)
    while len(active):
        active = active[past(active, found[active])]
        found[active] = parent[found[active]]
        active = active[found[active] >= 0]
    return found


def latest_before(key: Ints, ts: Ints, other_key: Ints, other_ts: Ints) -> NDArray[np.int64]:
    """For each (key, ts): index of the other with that key that started last, but not after it.

    Where all others with the key start later, the first of them (clocks of two devices differ).
    """
    order = np.lexsort((other_ts, other_key))
    sorted_key, sorted_ts = other_key[order], other_ts[order]
    low = np.searchsorted(sorted_key, key, side="left")
    high = np.searchsorted(sorted_key, key, side="right")
    found = np.full(len(key), NONE, dtype=np.int64)
    known = low < high
    low, high, ts = low[known], high[known] - 1, ts[known]
    while np.any(low < high):  # one binary search for all rows at once
        middle = (low + high + 1) // 2
        not_after = sorted_ts[middle] <= ts
        low = np.where(not_after, middle, low)
        high = np.where(not_after, high, np.maximum(middle - 1, low))
    found[known] = order[low]
    return found
