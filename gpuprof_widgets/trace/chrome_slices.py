"""All slices of a Chrome trace: of one event each, of two, on threads and on none.

What is on no thread (async events, objects) gets lanes of its own in its process: a tree of slices
lies on the lowest lane that is free all the time it takes.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import msgspec
import numpy as np
import pandas as pd
from numpy.typing import NDArray

from gpuprof_widgets.trace import links
from gpuprof_widgets.trace.dialects.dialect import Parts, joined
from gpuprof_widgets.trace.events import Events, from_codes, text_codes
from gpuprof_widgets.trace.gather import Gathered, events_of, id_text, times
from gpuprof_widgets.trace.links import scoped_id
from gpuprof_widgets.trace.schema import NONE
from gpuprof_widgets.trace.trace_events import Event
from gpuprof_widgets.trace.tracks import kind_of, lanes, sub_tracks

Ints = NDArray[np.int64]

OBJECT_PHASES = "NOD"

Lanes = Mapping[tuple[str, str], str]


def chrome_slices(file: Gathered) -> tuple[Events, Lanes, int, list[str]]:
    """All slices but objects, the names of lanes that had to be made for the last ones, and notes.

    The number is how many of them, the last ones, are on such lanes.
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
    """The parts with the lives of the file's objects, and what is said of them, as slices."""
    written = [event for phase in OBJECT_PHASES for event in file.others[phase]]
    if not written:
        return parts
    last = max(_last(parts.events), *map(int, times(written)[0]))
    objects = begun(written, ((id_text(e.pid), e.name, scoped_id(e)) for e in written), last)
    laid_out, names = _on_lanes(objects, objects.events.name, "objects")
    return replace(
        parts,
        events=joined(parts.events, laid_out),
        threadless=np.append(parts.threadless, len(parts.events) + np.arange(len(laid_out))),
        names=replace(parts.names, threads={**parts.names.threads, **names}),
        notes=[*parts.notes, *_notes(objects, len(written), "object")],
    )


def on_sub_tracks(parts: Parts) -> Parts:
    """The parts with slices that cross on a thread on sub-tracks of it.

    Only where a thread's rows are not torch's: these cross by a few ns, as one region ends after
    the frame in which it began, and belong together all the same.
    """
    events = parts.events
    kinds = np.array([_may_be_split(str(name)) for name in events.category.categories], dtype=bool)
    rows = np.flatnonzero(kinds[events.category.codes])
    threads = len(events.thread.categories)
    track = events.process.codes[rows].astype(np.int64) * threads + events.thread.codes[rows]
    number = sub_tracks(events.ts[rows], events.dur[rows], track)
    moved = rows[number > 0]
    if not len(moved):
        return parts
    extra = number[number > 0]
    pairs, place = np.unique(
        np.stack([events.thread.codes[moved], extra]), axis=1, return_inverse=True
    )
    texts = list(map(str, events.thread.categories))
    added = [f"{texts[code]} ({n + 1})" for code, n in pairs.T.tolist()]
    codes = events.thread.codes.astype(np.int32)
    codes[moved] = threads + place.reshape(-1)
    names = _sub_track_names(parts, moved, extra, [added[p] for p in place.reshape(-1).tolist()])
    note = f"{len(moved):,} of {len(events):,} slices cross others of their thread: on sub-tracks"
    return replace(
        parts,
        events=replace(events, thread=from_codes(codes, [*texts, *added])),
        names=replace(parts.names, threads={**parts.names.threads, **names}),
        notes=[*parts.notes, note],
    )


def _may_be_split(category: str) -> bool:
    return kind_of(category) == "other" and category != "cuda_sync"


def _sub_track_names(parts: Parts, rows: Ints, number: Ints, threads: list[str]) -> Lanes:
    """A sub-track is called as its thread is, with its number."""
    given = parts.names.threads
    processes, originals = parts.events.process.take(rows), parts.events.thread.take(rows)
    columns = zip(processes, originals, threads, number.tolist(), strict=True)
    return {
        (process, thread): f"{given.get((process, original), f'thread {original}')} ({n + 1})"
        for process, original, thread, n in columns
    }


def _last(events: Events) -> int:
    return int((events.ts + events.dur).max(initial=0))


def _on_lanes(loose: Begun, labels: pd.Categorical, kind: str) -> tuple[Events, Lanes]:
    """The slices on lanes of their process and label; the names of these lanes."""
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


def _notes(found: Begun, count: int, kind: str) -> list[str]:
    """One line each on what was odd among the events of this kind."""
    of = f"of {count:,} {kind} events"
    counted = [
        (found.open, f"{of} begin slices that never end: they last until the trace does"),
        (found.lone, f"{of} end slices that never began, and were left out"),
        (found.untimed, f"{of} have no valid ts and were left out"),
    ]
    return [f"{number:,} {text}" for number, text in counted if number]


BEGINS = frozenset("BbSN")
ENDS = frozenset("EeFD")

DEEPEST = 64
"""So far up an end looks for the slice of its name, so that no file makes this search long."""


@dataclass(frozen=True)
class Begun:
    """Slices put together of two events each, instants after them, and the number of their ``key``.

    ``open``: how many never end; ``lone``: how many ends had nothing to end; ``untimed``: how many
    events do not say when they are.
    """

    events: Events
    key: Ints
    open: int
    lone: int
    untimed: int


def begun(written: Sequence[Event], keys: Iterable[Hashable], last: int) -> Begun:
    """What these events (in file order) begin and end; ``last`` is the trace's end (ns)."""
    ts, _, timed = times(written)
    key = _numbers(keys)
    order = np.lexsort((ts, key))
    order = order[timed[order]]
    first, second, lone = _matched(written, key, order)
    instants = [row for row in order.tolist() if written[row].ph not in BEGINS | ENDS]
    rows = np.concatenate([first, np.array(instants, dtype=np.int64)])
    until = np.where(second >= 0, ts[second], np.maximum(ts[first], last))
    nothing = np.zeros(len(instants), dtype=np.int64)
    slices = [
        _slice(written[b], written[e].args if e >= 0 else None)
        for b, e in zip(first.tolist(), second.tolist(), strict=True)
    ]
    events = events_of(
        [*slices, *(written[row] for row in instants)],
        ts[rows],
        np.concatenate([until - ts[first], nothing]),
    )
    untimed = int(np.count_nonzero(~timed))
    return Begun(events, key[rows], int(np.count_nonzero(second < 0)), lone, untimed)


def _matched(written: Sequence[Event], key: Ints, order: Ints) -> tuple[Ints, Ints, int]:
    """Rows of beginnings in the order of time, of their ends (-1: none), and how many are lone."""
    opened: dict[int, list[int]] = defaultdict(list)
    end: dict[int, int] = {}
    lone = 0
    for row, number in zip(order.tolist(), key[order].tolist(), strict=True):
        event, stack = written[row], opened[number]
        if event.ph in BEGINS:
            stack.append(row)
            end[row] = NONE
        elif event.ph in ENDS and stack:
            end[stack.pop(_ended(event.name, stack, written))] = row
        elif event.ph in ENDS:
            lone += 1
    return np.array(list(end), np.int64), np.array(list(end.values()), np.int64), lone


def _ended(name: str, stack: Sequence[int], written: Sequence[Event]) -> int:
    """The place on the stack, from its top, of what an end of this name ends."""
    if name and written[stack[-1]].name != name:
        for place in range(-1, -min(len(stack), DEEPEST) - 1, -1):
            if written[stack[place]].name == name:
                return place
    return -1


def _slice(begin: Event, told_at_the_end: dict[str, object] | None) -> Event:
    """One event of the two; what the end says in its args counts where both say something."""
    args = {**(begin.args or {}), **told_at_the_end} if told_at_the_end else begin.args
    return msgspec.structs.replace(begin, ph="X", args=args)


def _numbers(keys: Iterable[Hashable]) -> Ints:
    number: dict[Hashable, int] = {}
    return np.array([number.setdefault(key, len(number)) for key in keys], dtype=np.int64)
