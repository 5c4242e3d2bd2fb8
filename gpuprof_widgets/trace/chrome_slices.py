"""Slices and arrows of a Chrome trace, from its events.

The format is Google's "Trace Event Format"; where it leaves something open, Perfetto's reading
counts. A slice is one event (``X``), or a pair of events, which need not be in order in the file:

- ``B`` and ``E`` nest on a thread;
- ``b`` and ``e`` (``S`` and ``F`` in old files) nest under one category and id, on no thread;
- ``N`` and ``D`` are the life of an object.

As in Perfetto and chrome://tracing, an end closes the innermost open slice of its name, or the
innermost one of all if it has no name or no open slice has its name. A slice that never ends lasts
until the trace ends. Slices that are on no thread get lanes in their process: a tree of slices lies
on the lowest lane that is free for as long as it lasts.

Arrows between slices come in two forms:

- events ``s`` (start), ``t`` (step) and ``f`` (end), joined by category, name and id. An arrow goes
  from each start or step to the next step or end of that id. Starts, steps, and ends with
  ``"bp": "e"`` meet the innermost slice open on their thread at that time; other ends meet the next
  slice that starts there;
- slices with a ``bind_id``, at which arrows begin (``flow_out``), end (``flow_in``), or both.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import msgspec
import numpy as np
import pandas as pd

from gpuprof_widgets.trace import links
from gpuprof_widgets.trace.arrays import Ints
from gpuprof_widgets.trace.dialects.dialect import Parts, joined
from gpuprof_widgets.trace.event_json import Event
from gpuprof_widgets.trace.events import EventFlows, Events, text_codes
from gpuprof_widgets.trace.gather import Gathered, events_of, id_text, times
from gpuprof_widgets.trace.index import take
from gpuprof_widgets.trace.schema import NONE
from gpuprof_widgets.trace.tracks import kind_of, lanes, sub_tracks

Lanes = Mapping[tuple[str, str], str]
"""Names of lanes, by process and thread."""

OBJECT_PHASES = "NOD"
BEGINS = frozenset("BbSN")
ENDS = frozenset("EeFD")

DEEPEST = 64
"""Number of open slices in which an end looks for its name, so that no file makes this slow."""

FORWARD = "fwdbwd"
"""Category of torch's arrows from forward to backward ops, which sequence numbers join as well."""

_ARROW_ROLES = {"s": 0, "t": 1, "f": 2}


def chrome_slices(file: Gathered) -> tuple[Events, Lanes, int, list[str]]:
    """Return all slices but objects, the names of new lanes, and notes.

    The number is that of the slices, the last ones, that are on no thread but on such a lane.
    """
    events = file.events()
    on_threads, on_none = file.others["B"], file.others["b"]
    if not on_threads and not on_none:
        return events, {}, 0, []
    last = max(_last(events), *map(int, times([*on_threads, *on_none])[0]))
    nested = begun(on_threads, ((id_text(e.pid), id_text(e.tid)) for e in on_threads), last)
    loose = begun(on_none, ((e.cat or "", scoped_id(e)) for e in on_none), last)
    laid_out, names = _on_lanes(loose, loose.events.category, "async")
    notes = [
        *_notes(nested, len(on_threads), "begin and end"),
        *_notes(loose, len(on_none), "async"),
    ]
    return joined(joined(events, nested.events), laid_out), names, len(laid_out), notes


def with_objects(parts: Parts, file: Gathered) -> Parts:
    """Add the lives of the file's objects, and their snapshots, as slices."""
    written = [event for phase in OBJECT_PHASES for event in file.others[phase]]
    if not written:
        return parts
    last = max(_last(parts.events), *map(int, times(written)[0]))
    objects = begun(written, ((id_text(e.pid), e.name, scoped_id(e)) for e in written), last)
    labels = getattr(objects.events, parts.objects_by)
    laid_out, names = _on_lanes(objects, labels, "objects")
    return replace(
        parts,
        events=joined(parts.events, laid_out),
        threadless=np.append(parts.threadless, len(parts.events) + np.arange(len(laid_out))),
        names=replace(parts.names, threads={**parts.names.threads, **names}),
        notes=[*parts.notes, *_notes(objects, len(written), "object")],
    )


def _last(events: Events) -> int:
    """Return the latest end (ns) of the events."""
    return int((events.ts + events.dur).max(initial=0))


def _on_lanes(loose: Begun, labels: pd.Categorical, kind: str) -> tuple[Events, Lanes]:
    """Put the slices on lanes of their process and label; return them and the lanes' names."""
    events = loose.events
    order = np.lexsort((-events.dur, events.ts, loose.key))
    end = events.ts + events.dur
    _, depth = links.nest(events.ts[order], end[order], loose.key[order])
    roots = np.flatnonzero(depth == 0)
    ends = np.maximum.reduceat(end[order], roots) if len(roots) else end
    group = events.process.codes.astype(np.int64) * len(labels.categories) + labels.codes
    lane_of_root = lanes(events.ts[order[roots]], ends, group[order[roots]])
    lane = np.empty(len(events), dtype=np.int64)
    lane[order] = np.repeat(lane_of_root, np.diff(np.append(roots, len(order))))
    texts = [
        f"{label} · {kind}" + (f" {n + 1}" if n else "")
        for label, n in zip(labels, lane.tolist(), strict=True)
    ]
    names = {(process, text): text for process, text in zip(events.process, texts, strict=True)}
    return replace(events, thread=text_codes(texts)), names


def _notes(slices: Begun, count: int, kind: str) -> list[str]:
    """Return a line on each kind of error in the ``count`` events."""
    of = f"of {count:,} {kind} events"
    counted = [
        (slices.open, f"{of} begin slices that never end: they last until the trace does"),
        (slices.lone, f"{of} end slices that never began, and were left out"),
        (slices.untimed, f"{of} have no valid ts and were left out"),
    ]
    return [f"{number:,} {text}" for number, text in counted if number]


@dataclass(frozen=True)
class Begun:
    """Slices made of two events each, then instants; ``key`` is the number of each one's key.

    ``open`` counts slices that never end, ``lone`` ends without a beginning, ``untimed`` events
    without a valid time.
    """

    events: Events
    key: Ints
    open: int
    lone: int
    untimed: int


def begun(written: Sequence[Event], keys: Iterable[Hashable], last: int) -> Begun:
    """Return the slices that these events (in file order) begin and end, and the instants.

    Events with equal keys belong together; ``last`` is the trace's end (ns).
    """
    ts, _, timed = times(written)
    key = _codes(keys)
    order = np.lexsort((ts, key))
    order = order[timed[order]]
    first, second, lone = _matched(written, key, order)
    instants = [row for row in order.tolist() if written[row].ph not in BEGINS | ENDS]
    rows = np.concatenate([first, np.array(instants, dtype=np.int64)])
    until = np.where(second >= 0, ts[second], np.maximum(ts[first], last))
    slices = []
    for b, e in zip(first.tolist(), second.tolist(), strict=True):
        begin, more = written[b], written[e].args if e >= 0 else None
        args = {**(begin.args or {}), **more} if more else begin.args  # that of the end counts
        slices.append(msgspec.structs.replace(begin, ph="X", args=args))
    events = events_of(
        [*slices, *(written[row] for row in instants)],
        ts[rows],
        np.concatenate([until - ts[first], np.zeros(len(instants), dtype=np.int64)]),
    )
    untimed = int(np.count_nonzero(~timed))
    return Begun(events, key[rows], int(np.count_nonzero(second < 0)), lone, untimed)


def _matched(written: Sequence[Event], key: Ints, order: Ints) -> tuple[Ints, Ints, int]:
    """Return rows of beginnings by time, rows of their ends (-1: none), number of lone ends."""
    opened: dict[int, list[int]] = defaultdict(list)
    end: dict[int, int] = {}
    lone = 0
    for row, number in zip(order.tolist(), key[order].tolist(), strict=True):
        event, stack = written[row], opened[number]
        if event.ph in BEGINS:
            stack.append(row)
            end[row] = NONE
        elif event.ph in ENDS and stack:
            end[stack.pop(_place_to_end(event.name, stack, written))] = row
        elif event.ph in ENDS:
            lone += 1
    return np.array(list(end), np.int64), np.array(list(end.values()), np.int64), lone


def _place_to_end(name: str, stack: Sequence[int], written: Sequence[Event]) -> int:
    """Return the place on the stack, from its top, of the slice that an end of this name ends."""
    if name and written[stack[-1]].name != name:
        for place in range(-1, -min(len(stack), DEEPEST) - 1, -1):
            if written[stack[place]].name == name:
                return place
    return -1


def scoped_id(event: Event) -> str:
    """Return the id of an event, with its process if the id is local to that."""
    scoped = event.id2
    if isinstance(scoped, dict) and "local" in scoped:
        return f"{id_text(event.pid)}/{scoped['local']}"
    return str(scoped["global"] if isinstance(scoped, dict) and "global" in scoped else event.id)


def _codes(keys: Iterable[Hashable]) -> Ints:
    """Number the keys in the order in which they first come."""
    number: dict[Hashable, int] = {}
    return np.array([number.setdefault(key, len(number)) for key in keys], dtype=np.int64)


def on_sub_tracks(parts: Parts) -> Parts:
    """Move slices that cross others of their thread to sub-tracks of that thread.

    torch's own slices stay: they cross by a few ns, because a region ends after the frame in which
    it began, and belong together all the same.
    """
    events = parts.events
    categories = [str(name) for name in events.category.categories]
    may_be_split = [kind_of(one) == "other" and one != "cuda_sync" for one in categories]
    rows = np.flatnonzero(np.array(may_be_split, dtype=bool)[events.category.codes])
    threads = len(events.thread.categories)
    track = events.process.codes[rows].astype(np.int64) * threads + events.thread.codes[rows]
    number = sub_tracks(events.ts[rows], events.dur[rows], track)
    moved = rows[number > 0]
    if not len(moved):
        return parts
    given, names = parts.names.threads, {}
    thread = np.asarray(events.thread, dtype=object)
    columns = zip(moved, number[number > 0].tolist(), events.process.take(moved), strict=True)
    for row, n, process in columns:
        original, thread[row] = thread[row], f"{thread[row]} ({n + 1})"
        name = given.get((process, original), f"thread {original}")
        names[process, thread[row]] = f"{name} ({n + 1})"
    note = (
        f"{len(moved):,} of {len(events):,} slices cross others of their thread, and are on "
        "sub-tracks"
    )
    return replace(
        parts,
        events=replace(events, thread=text_codes(thread.tolist())),
        names=replace(parts.names, threads={**parts.names.threads, **names}),
        notes=[*parts.notes, note],
    )


def arrows(file: Gathered, events: Events) -> tuple[EventFlows, str]:
    """Return the arrows whose ends both meet a slice, and a line on the others ("" if none)."""
    written = [e for phase in _ARROW_ROLES for e in file.others[phase] if e.cat != FORWARD]
    if not written and not file.bound:
        return EventFlows(), ""
    ts, _, valid = times(written)
    rows = np.where(valid, _rows_met(written, ts, events), NONE)
    role = np.array([_ARROW_ROLES[event.ph] for event in written], dtype=np.int64)
    bound_rows = np.array(list(file.bound), dtype=np.int64)
    bound_role = [
        1 if e.flow_in and e.flow_out else 2 if e.flow_in else 0 for e in file.bound.values()
    ]
    at = np.concatenate([ts, events.ts[bound_rows]])
    rows = np.concatenate([rows, bound_rows])
    role = np.concatenate([role, np.array(bound_role, dtype=np.int64)])
    ends = [*written, *file.bound.values()]
    keys = [(e.cat or "", e.name, scoped_id(e)) for e in written]
    keys += [("", "", str(e.bind_id)) for e in file.bound.values()]
    source, target = _chained(_codes(keys), at, role, rows)
    loose = len(rows) - len(np.union1d(source, target))
    kinds = [ends[row].cat or ends[row].name or "flow" for row in target.tolist()]
    note = f"{loose:,} of {len(rows):,} ends of arrows have no other end, or meet no slice"
    return EventFlows(rows[source], rows[target], kinds), note if loose else ""


class _ThreadSlices:
    """Looks up the slices (no instants) of threads by time."""

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
        """Return the numbers of these threads; -1 for threads without slices."""
        first = self._processes.get_indexer(pd.Index(process, dtype=object))
        second = self._threads.get_indexer(pd.Index(thread, dtype=object))
        known = (first >= 0) & (second >= 0)
        return np.where(known, first.astype(np.int64) * len(self._threads) + second, NONE)

    def open_at(self, lane: Ints, ts: Ints) -> Ints:
        """Return the row of the innermost slice open on each thread at each time; else -1."""
        last = links.latest_before(lane, ts, self._lane, self._ts)
        last[take(self._ts, last) > ts] = NONE
        place = links.last_above(self._end, last + 1, ts - 1)
        return np.where(take(self._lane, place) == lane, take(self.rows, place), NONE)

    def next_from(self, lane: Ints, ts: Ints) -> Ints:
        """Return the row of the first slice that starts on each thread at or after each time."""
        # With times negated, the first slice from here on is the latest one before.
        place = links.latest_before(lane, -ts, self._lane, -self._ts)
        place[take(self._ts, place) < ts] = NONE
        return take(self.rows, place)


def _rows_met(written: Sequence[Event], ts: Ints, events: Events) -> Ints:
    """Return the slice row that each of these arrow ends meets; -1 if there is none."""
    slices = _ThreadSlices(events)
    lane = slices.lane([id_text(e.pid) for e in written], [id_text(e.tid) for e in written])
    meets_next = np.array([e.ph == "f" and e.bp != "e" for e in written], dtype=bool)
    current = slices.open_at(lane, ts)
    following = slices.next_from(lane, ts)
    return np.where(meets_next & (following >= 0), following, current)


def _chained(key: Ints, ts: Ints, role: Ints, rows: Ints) -> tuple[Ints, Ints]:
    """Return the places of both ends of each arrow: every start or step, and what follows it."""
    known = np.flatnonzero(rows >= 0)
    order = known[np.lexsort((role[known], ts[known], key[known]))]
    place = np.arange(len(order))
    leaves = role[order] != _ARROW_ROLES["f"]
    before = np.maximum.accumulate(np.where(leaves, place, NONE))
    before = np.concatenate([[NONE], before[:-1]]) if len(order) else before
    arrives = (role[order] != _ARROW_ROLES["s"]) & (before >= 0)
    arrives &= key[order[before]] == key[order]
    return order[before[arrives]], order[arrives]
