"""Arrows between slices, as a file of Chrome trace events says them.

The format ("Trace Event Format", Google; what it leaves open as Perfetto has it) knows two ways:

- events of their own, ``s`` (start), ``t`` (step) and ``f`` (end), joined by category, name and id.
  An arrow goes from each start or step to the next step or end of that id. A start, a step and an
  end with ``"bp": "e"`` meet the innermost slice that is open on their thread at that time, another
  end the next slice that starts there;
- slices with a ``bind_id``, at which arrows begin (``flow_out``), end (``flow_in``), or both.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from gpuprof_widgets.trace import links
from gpuprof_widgets.trace.events import EventFlows, Events
from gpuprof_widgets.trace.gather import Gathered, id_text, times
from gpuprof_widgets.trace.schema import NONE
from gpuprof_widgets.trace.trace_events import Event

FORWARD = "fwdbwd"
"""torch's arrows from forward to backward ops, which sequence numbers join."""

_ROLES = {"s": 0, "t": 1, "f": 2}

Ints = NDArray[np.int64]


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

    def lane(self, process: Sequence[str], thread: Sequence[str]) -> Ints:
        """The numbers of these threads; -1 where no slice is on them."""
        first = self._processes.get_indexer(pd.Index(process, dtype=object))
        second = self._threads.get_indexer(pd.Index(thread, dtype=object))
        known = (first >= 0) & (second >= 0)
        return np.where(known, first.astype(np.int64) * len(self._threads) + second, NONE)

    def open_at(self, lane: Ints, ts: Ints) -> Ints:
        if not len(self.rows):
            return np.full(len(lane), NONE, dtype=np.int64)
        last = links.latest_before(lane, ts, self._lane, self._ts)
        last[(last >= 0) & (self._ts[last] > ts)] = NONE
        place = links.last_above(self._end, last + 1, ts - 1)
        same = (place >= 0) & (self._lane[place] == lane)
        return np.where(same, self.rows[place], NONE)

    def next_from(self, lane: Ints, ts: Ints) -> Ints:
        """The first that starts then or later: the last not before, on the clock turned round."""
        if not len(self.rows):
            return np.full(len(lane), NONE, dtype=np.int64)
        place = links.latest_before(lane, -ts, self._lane, -self._ts)
        place[(place >= 0) & (self._ts[place] < ts)] = NONE
        return np.where(place >= 0, self.rows[place], NONE)


def _met(written: Sequence[Event], ts: Ints, events: Events) -> Ints:
    """The row that each of these ends meets, -1 if there is none."""
    on = _OnThreads(events)
    lane = on.lane([id_text(e.pid) for e in written], [id_text(e.tid) for e in written])
    meets_next = np.array([e.ph == "f" and e.bp != "e" for e in written], dtype=bool)
    met = on.open_at(lane, ts)
    following = on.next_from(lane, ts)
    return np.where(meets_next & (following >= 0), following, met)


def _bound(slices: Mapping[int, Event]) -> tuple[Ints, Ints]:
    rows = np.array(list(slices), dtype=np.int64)
    roles = [1 if e.flow_in and e.flow_out else 2 if e.flow_in else 0 for e in slices.values()]
    return rows, np.array(roles, dtype=np.int64)


def _numbers(keys: Iterable[Hashable]) -> Ints:
    number: dict[Any, int] = {}
    return np.array([number.setdefault(key, len(number)) for key in keys], dtype=np.int64)


def _chained(key: Ints, ts: Ints, role: Ints, rows: Ints) -> tuple[Ints, Ints]:
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
