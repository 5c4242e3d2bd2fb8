"""All slices of a Chrome trace: of one event each, of two, on threads and on none.

What is on no thread (async events, objects) gets lanes of its own in its process: a tree of slices
lies on the lowest lane that is free all the time it takes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from gpuprof_widgets.trace import links
from gpuprof_widgets.trace.arrows import scoped_id
from gpuprof_widgets.trace.begin_end import Begun, begun
from gpuprof_widgets.trace.dialects.dialect import Parts
from gpuprof_widgets.trace.dialects.rows import joined
from gpuprof_widgets.trace.events import Events, from_codes, text_codes
from gpuprof_widgets.trace.gather import Gathered, id_text, times
from gpuprof_widgets.trace.sub_tracks import lanes, sub_tracks
from gpuprof_widgets.trace.tracks import kind_of

OBJECT_PHASES = "NOD"

Ints = NDArray[np.int64]
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
