"""Who is inside whom, who launched whom: the joins between slices.

All functions take and return plain arrays over slice rows; -1 (`schema.NONE`) means "nobody".
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from typing import Any, TypeVar

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from gpuprof_widgets.trace.events import EventFlows, Events
from gpuprof_widgets.trace.gather import Gathered, id_text, times
from gpuprof_widgets.trace.schema import NONE
from gpuprof_widgets.trace.trace_events import Event

Mask = NDArray[np.bool_]
Int64s = NDArray[np.int64]

Ints = NDArray[np.signedinteger[Any]]
Number = TypeVar("Number", np.int32, np.int64)


def nest(ts: Ints, end: Ints, group: Ints) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
    """Parent row and depth of every slice, among the slices of its group.

    The parent is the latest-started slice that is still open (``end > ts``) when this one starts;
    it need not outlast its child. The input is sorted by group, ts, longest first.
    """
    rows = np.arange(len(ts))
    first = np.ones(len(ts), dtype=bool)
    first[1:] = group[1:] != group[:-1]
    parent = last_above(end, rows, ts)
    parent[parent < np.maximum.accumulate(np.where(first, rows, 0))] = NONE
    return parent, depths(parent)


def last_above(values: Ints, before: Ints, bound: Ints) -> NDArray[np.int32]:
    """Per query the last place before ``before`` whose value is above ``bound``; -1 without one.

    Of slices in the order of their starts and of their ends as values, it is the innermost one that
    is still open. The search goes up and down a pyramid of maxima of 2, 4, 8, ... neighbours: as
    many rounds as these have levels, however deep the slices nest.
    """
    pyramid = [values]
    while len(pyramid[-1]) > 1:
        pyramid.append(np.maximum.reduceat(pyramid[-1], np.arange(0, len(pyramid[-1]), 2)))
    query, at = np.arange(len(before)), before
    hits = []
    for level in pyramid:  # ``at``: how many blocks of this level lie before, none of them seen yet
        query, at = query[at > 0], at[at > 0]
        hit = at % 2 == 1
        hit[hit] = level[at[hit] - 1] > bound[query[hit]]
        hits.append((query[hit], at[hit] - 1))
        query, at = query[~hit], at[~hit] // 2
    found = np.full(len(before), NONE, dtype=np.int32)
    query, place = hits[-1]
    for level, (more, where) in zip(pyramid[-2::-1], hits[-2::-1], strict=True):
        right = np.minimum(2 * place + 1, len(level) - 1)
        place = np.where(level[right] > bound[query], right, 2 * place)
        query, place = np.append(query, more), np.append(place, where)
    found[query] = place
    return found


def innermost_open(ts: Ints, end: Ints, moments: Ints) -> Ints:
    """Per moment which of the slices, sorted by their start, is open and the last; -1 for none."""
    return last_above(end, np.searchsorted(ts, moments, side="right"), moments)


def depths(parent: NDArray[np.int32]) -> NDArray[np.int32]:
    """Number of ancestors."""
    return path_sum((parent >= 0).astype(np.int32), parent)


def rows_by(key: Ints) -> dict[int, NDArray[np.intp]]:
    """The rows of each value, by value and in their order: in one pass, however many values."""
    order = np.argsort(key, kind="stable")
    groups = np.split(order, np.flatnonzero(np.diff(key[order])) + 1)
    return {int(key[rows[0]]): rows for rows in groups if len(rows)}


def path_sum(values: NDArray[Number], parent: Ints, add: np.ufunc = np.add) -> NDArray[Number]:
    """Per row the sum over itself and its ancestors, by doubling the known part of every path."""
    total, ancestor = values.copy(), parent.copy()
    active = np.flatnonzero(ancestor >= 0)
    while len(active):
        above = ancestor[active]
        total[active] = add(total[active], total[above])
        ancestor[active] = ancestor[above]
        active = active[ancestor[active] >= 0]
    return total


def subtree_sum(values: NDArray[Number], parent: Ints) -> NDArray[Number]:
    """Per row the sum over itself and all below it, of twice as many generations each round."""
    total, ancestor = values.copy(), parent.copy()
    active = np.flatnonzero(ancestor >= 0) if values.any() else np.empty(0, np.intp)
    while len(active):
        above = ancestor[active]
        np.add.at(total, above, total[active])
        ancestor[active] = ancestor[above]
        active = active[ancestor[active] >= 0]
    return total


def preorder(parent: Ints, rank: Ints) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Place and size of every row's subtree where each row is followed by all below it.

    Children of one parent, and those of none, stand by ``rank``, then as they come.
    """
    size = subtree_sum(np.ones(len(parent), np.int64), parent)
    siblings = np.lexsort((rank, parent))
    before = np.cumsum(size[siblings]) - size[siblings]
    is_first = np.diff(parent[siblings], prepend=NONE - 1) != 0
    offset = np.empty(len(parent), np.int64)
    offset[siblings] = before - np.maximum.accumulate(np.where(is_first, before, 0))
    return path_sum(offset + (parent >= 0), parent), size


def below_its_like(parent: Ints, key: Ints) -> Mask:
    """Which rows have an ancestor with the same key."""
    place, size = preorder(parent, np.zeros(len(parent), np.int64))
    order = np.lexsort((place, key))
    # Subtrees lie apart or in one another: a row is in one of those before it if any reaches it.
    line = key[order].astype(np.int64) * (len(parent) + 1) + place[order]
    reached = np.maximum.accumulate(line + size[order])
    inside = np.zeros(len(parent), bool)
    inside[order[1:]] = reached[:-1] > line[1:]
    return inside


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
    if not wanted.any():  # as of most that one looks for in a trace
        return np.full(len(parent), NONE, np.int32)
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


def open_above(above: Ints, ts: Ints, end: Ints) -> NDArray[np.int32]:
    """Of each slice's ancestors the innermost that is still open when it starts.

    ``above``: the nearest ancestor of each among these slices. Where these are a part of slices
    that were nested, the result is their parents if they are nested alone.
    """
    found = above.astype(np.int32)
    closed = np.flatnonzero(found >= 0)
    while len(closed := closed[end[found[closed]] <= ts[closed]]):
        found[closed] = found[found[closed]]  # what ended before that one starts has ended by now
        closed = closed[found[closed] >= 0]
    return found


def outermost(parent: Ints, wanted: Mask) -> NDArray[np.int32]:
    """Row of the last ``wanted`` one on the way up from each slice, itself included; -1 if none."""
    above = nearest_ancestor(parent, wanted)
    top = np.where(above >= 0, above, np.arange(len(parent), dtype=np.int32))
    while not np.array_equal(top, higher := top[top]):  # each step is twice as long as the last
        top = higher
    return np.where(wanted | (above >= 0), top, np.int32(NONE))


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


FORWARD = "fwdbwd"
"""torch's arrows from forward to backward ops, which sequence numbers join."""

_ROLES = {"s": 0, "t": 1, "f": 2}


def arrows(file: Gathered, events: Events) -> tuple[EventFlows, str]:
    """The arrows of which both ends meet a slice, and a line on the rest ("" if there is none)."""
    written = [e for phase in _ROLES for e in file.others[phase] if e.cat != FORWARD]
    if not written and not file.bound:
        return EventFlows(), ""
    ts, _, valid = times(written)
    rows = np.where(valid, _met(written, ts, events), NONE)
    role = np.array([_ROLES[event.ph] for event in written], dtype=np.int64)
    bound_rows, bound_role = _bound(file.bound)
    at = np.concatenate([ts, events.ts[bound_rows]])
    rows = np.concatenate([rows, bound_rows])
    role = np.concatenate([role, bound_role])
    joined = [*written, *file.bound.values()]
    keys = [*map(flow_key, written), *(("", "", str(e.bind_id)) for e in file.bound.values())]
    source, target = _chained(_numbers(keys), at, role, rows)
    loose = len(rows) - len(np.union1d(source, target))
    kinds = [joined[end].cat or joined[end].name or "flow" for end in target.tolist()]
    note = f"{loose:,} of {len(rows):,} ends of arrows have no other end, or meet no slice"
    return EventFlows(rows[source], rows[target], kinds), note if loose else ""


def flow_key(event: Event) -> Hashable:
    """What the ends of one arrow have in common."""
    return event.cat or "", event.name, scoped_id(event)


def scoped_id(event: Event) -> str:
    """The id of an event, which counts within its process where it is written as a local one."""
    scoped = event.id2
    if isinstance(scoped, dict) and "local" in scoped:
        return f"{id_text(event.pid)}/{scoped['local']}"
    return str(scoped["global"] if isinstance(scoped, dict) and "global" in scoped else event.id)


class _OnThreads:
    """The slices (no instants) by thread and time, to be looked up at moments."""

    def __init__(self, events: Events) -> None:
        self._processes, self._threads = events.process.categories, events.thread.categories
        lane = events.process.codes.astype(np.int64) * len(self._threads) + events.thread.codes
        instants = events.category.categories == "cpu_instant_event"
        slices = np.flatnonzero(~instants[events.category.codes])
        order = np.lexsort((-events.dur[slices], events.ts[slices], lane[slices]))
        self.rows = slices[order]
        self._lane, self._ts = lane[self.rows], events.ts[self.rows]
        self._end = self._ts + events.dur[self.rows]

    def lane(self, process: Sequence[str], thread: Sequence[str]) -> Int64s:
        """The numbers of these threads; -1 where no slice is on them."""
        first = self._processes.get_indexer(pd.Index(process, dtype=object))
        second = self._threads.get_indexer(pd.Index(thread, dtype=object))
        known = (first >= 0) & (second >= 0)
        return np.where(known, first.astype(np.int64) * len(self._threads) + second, NONE)

    def open_at(self, lane: Int64s, ts: Int64s) -> Int64s:
        if not len(self.rows):
            return np.full(len(lane), NONE, dtype=np.int64)
        last = latest_before(lane, ts, self._lane, self._ts)
        last[(last >= 0) & (self._ts[last] > ts)] = NONE
        place = last_above(self._end, last + 1, ts - 1)
        same = (place >= 0) & (self._lane[place] == lane)
        return np.where(same, self.rows[place], NONE)

    def next_from(self, lane: Int64s, ts: Int64s) -> Int64s:
        """The first that starts then or later: the last not before, on the clock turned round."""
        if not len(self.rows):
            return np.full(len(lane), NONE, dtype=np.int64)
        place = latest_before(lane, -ts, self._lane, -self._ts)
        place[(place >= 0) & (self._ts[place] < ts)] = NONE
        return np.where(place >= 0, self.rows[place], NONE)


def _met(written: Sequence[Event], ts: Int64s, events: Events) -> Int64s:
    """The row that each of these ends meets, -1 if there is none."""
    on = _OnThreads(events)
    lane = on.lane([id_text(e.pid) for e in written], [id_text(e.tid) for e in written])
    meets_next = np.array([e.ph == "f" and e.bp != "e" for e in written], dtype=bool)
    met = on.open_at(lane, ts)
    following = on.next_from(lane, ts)
    return np.where(meets_next & (following >= 0), following, met)


def _bound(slices: Mapping[int, Event]) -> tuple[Int64s, Int64s]:
    rows = np.array(list(slices), dtype=np.int64)
    roles = [1 if e.flow_in and e.flow_out else 2 if e.flow_in else 0 for e in slices.values()]
    return rows, np.array(roles, dtype=np.int64)


def _numbers(keys: Iterable[Hashable]) -> Int64s:
    number: dict[Any, int] = {}
    return np.array([number.setdefault(key, len(number)) for key in keys], dtype=np.int64)


def _chained(key: Int64s, ts: Int64s, role: Int64s, rows: Int64s) -> tuple[Int64s, Int64s]:
    """Places of the two ends of each arrow: each step or end after the start or step before it."""
    known = np.flatnonzero(rows >= 0)
    order = known[np.lexsort((role[known], ts[known], key[known]))]
    place = np.arange(len(order))
    leaves = role[order] != _ROLES["f"]
    before = np.maximum.accumulate(np.where(leaves, place, NONE))
    before = np.concatenate([[NONE], before[:-1]]) if len(order) else before
    arrives = (role[order] != _ROLES["s"]) & (before >= 0)
    arrives &= key[order[before]] == key[order]
    return order[before[arrives]], order[arrives]
