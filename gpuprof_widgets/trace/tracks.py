"""Tracks: the thread or stream of every event, their order and labels, and rows without crossings.

Slices of a thread may cross. They go to sub-tracks by this rule: a slice that starts during another
one and outlasts it goes to the first sub-track of its thread on which it crosses nothing. The last
of `MOST` sub-tracks takes all that would need more; there, slices nest in the latest-started one.

The writer of Chrome traces puts ops, Python frames and annotations of a thread on one row, as
Kineto does. Perfetto drops a slice that crosses another one of its row, so such a slice is written
on a row of its own, named after the thread with a number.
"""

from __future__ import annotations

import heapq
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from gpuprof_widgets.trace import links
from gpuprof_widgets.trace.arrays import Codes, Ints, Mask, Rows
from gpuprof_widgets.trace.events import Events, Names
from gpuprof_widgets.trace.model import Trace
from gpuprof_widgets.trace.schema import NONE, RUNTIME_ENDINGS, TRACK_COLUMNS, TRACK_KINDS

KIND_OF_CATEGORY = {
    "cpu_op": "cpu",
    "user_annotation": "cpu",
    "overhead": "cpu",
    "cpu_instant_event": "cpu",
    "cell_line": "cpu",
    "module": "cpu",
    "module_backward": "cpu",
    "python_function": "python",
    "worker": "worker",
    "worker_idle": "worker",
    "gpu_user_annotation": "annotation",
    "kernel": "gpu",
    "gpu_memcpy": "copy",
    "gpu_memset": "copy",
}
DEVICE_KINDS = ("annotation", "gpu", "copy")
SUFFIX = {"annotation": " · annotations", "copy": " · copies"}

MOST = 64
"""Number of sub-tracks of a thread, or lanes of a group, at most."""

_NAMING = ("cpu", "gpu", *TRACK_KINDS)
"""Kinds of tracks, in the order in which they give a shared row its name."""


def kind_of(category: str) -> str:
    """Return the kind of track for slices of this category."""
    if category.endswith(RUNTIME_ENDINGS):
        return "cpu"
    return KIND_OF_CATEGORY.get(category, "other")


def lay_out(events: Events, names: Names, rank: int) -> tuple[pd.DataFrame, Codes]:
    """Return the tracks table in display order, and the track of every event."""
    kinds = [TRACK_KINDS.index(kind_of(c)) for c in events.category.categories]
    kind = np.array(kinds, dtype=np.int64)[events.category.codes]
    process, thread = events.process.codes.astype(np.int64), events.thread.codes.astype(np.int64)
    lane = process * len(events.thread.categories) + thread
    key = lane * len(TRACK_KINDS) + kind
    _, first, track, rows = np.unique(
        key, return_index=True, return_inverse=True, return_counts=True
    )
    track = track.astype(np.int32)
    table = _described(events, names, kind, first, rows, rank)
    table["lane"] = lane[first]
    order = _display_order(table)
    used = ["kind", "process", "thread", "rank", "device", "stream", "lane", "first"]
    table = table[used].iloc[order].reset_index(drop=True)
    table["lane"] = pd.factorize(table["lane"])[0]
    category = _texts(events.category, table.pop("first").to_numpy())
    columns = (table[name] for name in ("kind", "process", "thread", "device", "stream"))
    labels = [_label(names, *track) for track in zip(*columns, category, strict=True)]
    table["label"] = pd.Series(labels, dtype=object)
    return with_types(table), links.places_in(order).astype(np.int32)[track]


def _described(
    events: Events, names: Names, kind: Ints, first: Rows, rows: Rows, rank: int
) -> pd.DataFrame:
    """Return a row per track, unsorted: names, device and stream from its first event."""
    table = pd.DataFrame(
        {
            "kind": pd.Series(np.array(TRACK_KINDS, dtype=object)[kind[first]], dtype=object),
            "process": _texts(events.process, first),
            "thread": _texts(events.thread, first),
            "rank": rank,
            "events": rows,
            "first": first,
        }
    )
    on_device = table["kind"].isin(DEVICE_KINDS).to_numpy()
    table["device"] = _arg(events, "device", first, table["process"], on_device, np.int32)
    table["stream"] = _arg(events, "stream", first, table["thread"], on_device, np.int64)
    # No list or dict per track, because a file may have millions of tracks of one event each.
    processes, threads = table["process"], table["thread"]
    orders = names.process_order, names.thread_order
    table["process_order"] = np.fromiter((orders[0].get(each, 0.0) for each in processes), float)
    lanes = zip(processes, threads, strict=True)
    table["thread_order"] = np.fromiter((orders[1].get(lane, 0.0) for lane in lanes), float)
    return table


def _texts(values: pd.Categorical, rows: Rows) -> pd.Series:
    """Return these values as the dictionary's own objects, without copies."""
    texts: NDArray[np.object_] = values.categories.to_numpy(dtype=object)
    return pd.Series(texts[values.codes[rows]], dtype=object)


def _arg(
    events: Events,
    key: str,
    rows: Rows,
    written: pd.Series,
    on_device: Mask,
    kind: type[np.integer[Any]],
) -> Ints:
    """Return the number under this key in the events' args, else in the ``written`` id.

    Tracks that are not on a device get `NONE`.
    """
    known = events.args.get(key)
    numbers = np.full(len(rows), NONE, dtype=np.int64)
    texts = written.to_numpy()
    for place in np.flatnonzero(on_device).tolist():
        value = texts[place] if known is None else known.get(rows[place], texts[place])
        numbers[place] = _number(value, kind)
    return numbers


def _number(value: Any, kind: type[np.integer[Any]] = np.int64) -> int:
    """Return the value as a number; `NONE` if it is no number, or beyond this integer type."""
    whole = isinstance(value, float) and value.is_integer()
    try:
        number = int(value) if whole else int(str(value).removeprefix("stream "))
    except ValueError:
        return NONE
    return number if abs(number) <= np.iinfo(kind).max else NONE


def _label(
    names: Names, kind: str, process: str, thread: str, device: int, stream: int, category: str
) -> str:
    if category == "cuda_sync":
        waiting = _number(thread)  # -1 if the host waits
        of = "" if waiting == NONE else f" · stream {waiting}"
        return f"GPU {process}{of} · synchronisation"
    if kind in DEVICE_KINDS:
        text = f"GPU {device} · stream {stream}"
    else:
        text = names.threads.get((process, thread), "").strip() or f"thread {thread}"
        if kind == "other":
            of = names.processes.get(process, process).strip()
            text = f"{of} · {text}" if of else text
    if kind == "python":
        return f"{text} · Python"
    return text + SUFFIX.get(kind, "")


def _display_order(table: pd.DataFrame) -> Rows:
    """Order CPU threads (busiest process, main thread, then busiest), then devices, then the rest.

    The rest is in the order that the file asks for, process by process.
    """
    kind = table["kind"].map(TRACK_KINDS.index).to_numpy()
    cpu = table["kind"].isin(["cpu", "python", "worker"]).to_numpy()
    section = np.where(cpu, 0, np.where(table["kind"] == "other", 2, 1))
    events, first = table["events"].to_numpy(), table["first"].to_numpy()
    process, _ = pd.factorize(table["process"])
    lane = 3 * table["lane"].to_numpy() + section
    by_process = pd.Series(np.where(cpu, events, 0)).groupby(process).transform("sum")
    by_lane = pd.Series(events).groupby(lane).transform("sum")
    other_thread = (table["process"] != table["thread"]).to_numpy()
    lane_first = pd.Series(first).groupby(lane).transform("min")
    process_first = pd.Series(first).groupby(3 * process + section).transform("min")
    rest = section == 2
    keys = (
        kind,
        table["lane"],
        lane_first,
        np.where(rest, table["thread_order"], 0),
        np.where(rest, process_first, 0),
        np.where(rest, table["process_order"], 0),
        np.where(cpu, -by_lane, 0),
        np.where(cpu, other_thread, False),
        table["stream"],
        table["device"],
        np.where(cpu, -by_process, 0),
        section,
    )
    return np.lexsort(keys)


def with_types(columns: Mapping[str, Any] | pd.DataFrame) -> pd.DataFrame:
    """Return a tracks table of these columns, with the types of `TRACK_COLUMNS`.

    Raises `ValueError` for kinds that are none of `TRACK_KINDS`.
    """
    typed: dict[str, Any] = {}
    column: Any
    for name, column in TRACK_COLUMNS.items():
        values = columns[name]
        values = values.to_numpy() if isinstance(values, pd.Series) else np.asarray(values, object)
        if column == "category":
            if not set(values) <= set(TRACK_KINDS):
                raise ValueError("its tracks are of no known kind")
            typed[name] = pd.Categorical(values, categories=pd.Index(TRACK_KINDS, dtype=object))
        else:
            typed[name] = pd.Series(values.astype(column))
    return pd.DataFrame(typed, copy=False)


def sub_tracks(ts: Ints, dur: Ints, track: Ints) -> Ints:
    """Return the number of the sub-track of every slice, 0 where nothing crosses."""
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
    """Return the sub-track numbers of slices of one track, sorted by start, longest first."""
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
    """Return for each interval the lowest lane of its group that is free from start to end.

    The last of `MOST` lanes takes all that would need more.
    """
    number = np.zeros(len(starts), dtype=np.int64)
    busy: dict[int, list[tuple[int, int]]] = defaultdict(list)
    free: dict[int, list[int]] = defaultdict(list)
    made: dict[int, int] = defaultdict(int)
    order = np.lexsort((-ends, starts))
    columns = (order, starts[order], ends[order], group[order])
    for row, start, end, key in zip(*(column.tolist() for column in columns), strict=True):
        while busy[key] and busy[key][0][0] <= start:
            heapq.heappush(free[key], heapq.heappop(busy[key])[1])
        if not free[key]:
            heapq.heappush(free[key], made[key])
            made[key] += 1
        number[row] = heapq.heappop(free[key])
        heapq.heappush(busy[key], (end, int(number[row])))
    return np.minimum(number, MOST - 1)


@dataclass(frozen=True)
class WrittenLanes:
    """The rows of a written Chrome trace.

    ``table``: ``process``, ``thread`` (ids as text) and ``label`` of each row, in order;
    ``of_slice``: the row of that table for each slice.
    """

    table: pd.DataFrame
    of_slice: Ints


def written_lanes(trace: Trace) -> WrittenLanes:
    """Return the rows on which to write the slices of a trace."""
    tracks, slices = trace.tracks, trace.slices
    of_track = tracks.groupby(["process", "thread"], sort=False).ngroup().to_numpy().astype(np.intp)
    thread = of_track[slices["track"].to_numpy()].astype(np.int64)
    number = sub_tracks(slices["ts"].to_numpy(), slices["dur"].to_numpy(), thread)
    first = of_track.astype(np.int64) * MOST  # tracks without a slice get a row as well
    keys, place = np.unique(np.append(thread * MOST + number, first), return_inverse=True)
    rank = [_NAMING.index(kind) if kind in _NAMING else len(_NAMING) for kind in tracks["kind"]]
    order = np.lexsort((np.array(rank, dtype=np.int64), of_track))
    _, naming = np.unique(of_track[order], return_index=True)  # the track that names each thread
    rows = tracks.iloc[order[naming[keys // MOST]]]
    extra = [f" ({sub_track + 1})" if sub_track else "" for sub_track in (keys % MOST).tolist()]
    table = pd.DataFrame(
        {
            "process": rows["process"].to_list(),
            "thread": [f"{text}{more}" for text, more in zip(rows["thread"], extra, strict=True)],
            "label": [f"{text}{more}" for text, more in zip(rows["label"], extra, strict=True)],
        }
    )
    return WrittenLanes(table, place.reshape(-1)[: len(slices)].astype(np.int64))
