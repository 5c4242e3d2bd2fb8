"""What a Chrome trace of some program says in its own words, and how it is told in ours."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from gpuprof_widgets.trace.events import (
    EventFlows,
    Events,
    FlowEnd,
    Names,
    from_codes,
    text_codes,
    typed,
)
from gpuprof_widgets.trace.gather import Gathered, times
from gpuprof_widgets.trace.schema import MEMORY_EVENT, NONE, RESUMED
from gpuprof_widgets.trace.trace_events import Event
from gpuprof_widgets.trace.tracks import lanes

Mask = NDArray[np.bool_]
Rows = NDArray[np.intp]


def _no_rows() -> NDArray[np.int64]:
    return np.empty(0, dtype=np.int64)


@dataclass(frozen=True)
class Parts:
    """What a trace is assembled from, on the clock of the file (ns).

    ``flows`` are arrows of any kind between rows of ``events``: who leaves rows out or sorts them
    anew has to renumber those. ``forward_flows`` are fwdbwd arrows, found by thread and time.
    ``moments`` (instants) and ``threadless`` (async slices, objects) are rows as well, which no
    dialect has to keep up: they are read where none has translated the parts.
    ``metadata`` is added to the record's; ``notes`` (one line each) say what could not be read.
    """

    events: Events
    names: Names
    counters: pd.DataFrame
    forward_flows: tuple[Sequence[FlowEnd], Sequence[FlowEnd]] = ((), ())
    flows: EventFlows = field(default_factory=EventFlows)
    moments: NDArray[np.int64] = field(default_factory=_no_rows)
    threadless: NDArray[np.int64] = field(default_factory=_no_rows)
    notes: Sequence[str] = ()
    metadata: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Dialect:
    """Chrome traces of one program: how they are told from others, and what their rows mean.

    ``translate`` gets the parts as any Chrome trace has them, and everything that was in the file;
    it returns the parts with our categories, tracks, ids and counters.
    """

    name: str
    recognises: Callable[[Parts, Gathered], bool]
    translate: Callable[[Parts, Gathered], Parts]


@dataclass(frozen=True)
class Place:
    """Of a node: its layer, "" for none, and whether it is of the backward pass."""

    layer: str = ""
    is_backward: bool = False


def in_layers(
    events: Events, flows: EventFlows, nodes: NDArray[np.object_], places: dict[str, Place]
) -> tuple[Events, EventFlows]:
    """The events behind the regions of layers, and the arrows between them.

    ``nodes``: of each event its node, "" for none; ``places``: where each node is.
    """
    place = [places.get(node, Place()) for node in nodes.tolist()]
    rows = np.array([row for row, one in enumerate(place) if one.layer], dtype=np.int64)
    if not len(rows):
        return events, flows
    kinds = ["module_backward" if place[row].is_backward else "module" for row in rows]
    layers = [place[row].layer for row in rows]
    runs = pd.DataFrame({
        "process": events.process.codes[rows],
        "layer": layers,
        "kind": kinds,
        "node": nodes[rows],
        "ts": events.ts[rows],
    })  # fmt: skip
    first = runs.sort_values("ts", kind="stable").groupby(["process", "layer", "kind"])["node"]
    resumed = first.transform("first").sort_index() != runs["node"]
    regions = Events(
        ts=events.ts[rows],
        dur=events.dur[rows],
        name=text_codes(layers),
        category=text_codes(kinds),
        process=events.process.take(rows),
        thread=events.thread.take(rows),
        args={RESUMED: marked(resumed.to_numpy(), np.ones(len(rows)))},
    )
    moved = replace(flows, source=flows.source + len(rows), target=flows.target + len(rows))
    return joined(regions, events), moved


def taken(events: Events, rows: Rows) -> Events:
    """These rows of the events, in this order."""
    new = _new_numbers(rows, len(events))
    return Events(
        ts=events.ts[rows],
        dur=events.dur[rows],
        name=events.name.take(rows).remove_unused_categories(),
        category=events.category.take(rows).remove_unused_categories(),
        process=events.process.take(rows).remove_unused_categories(),
        thread=events.thread.take(rows).remove_unused_categories(),
        args={
            key: moved for key, values in events.args.items() if len(moved := _moved(values, new))
        },
    )


def kept_flows(flows: EventFlows, rows: Rows, count: int) -> EventFlows:
    """The arrows between these rows of ``count`` events, as they are numbered among them."""
    new = _new_numbers(rows, count)
    source, target = new[flows.source], new[flows.target]
    left = (source >= 0) & (target >= 0)
    kinds = [kind for kind, kept in zip(flows.kind, left.tolist(), strict=True) if kept]
    return EventFlows(source[left], target[left], kinds)


def joined(first: Events, second: Events) -> Events:
    """The rows of both, one after the other."""
    return Events(
        ts=np.concatenate([first.ts, second.ts]),
        dur=np.concatenate([first.dur, second.dur]),
        **{
            column: _both(getattr(first, column), getattr(second, column))
            for column in ("name", "category", "process", "thread")
        },
        args=_joined_args(first, second),
    )


def recoded(values: pd.Categorical, rows: Mask, text: str) -> pd.Categorical:
    """The values, with this text in these rows; what none has any more is not in the dictionary."""
    texts = [*map(str, values.categories), text]
    used, codes = np.unique(np.where(rows, len(texts) - 1, values.codes), return_inverse=True)
    return from_codes(codes.astype(np.int32), [texts[code] for code in used])


def texts_of(values: pd.Series | None, count: int) -> NDArray[np.object_]:
    """An arg of each of ``count`` events as text, "" where it has none."""
    texts = np.full(count, "", dtype=object)
    if values is not None:
        texts[values.index.to_numpy()] = [str(value) for value in values]
    return texts


def marked(mask: Mask, numbers: NDArray[Any]) -> pd.Series:
    """An arg of the marked events: of each the number at its place."""
    rows = np.flatnonzero(mask)
    return typed(numbers[rows].tolist(), rows)


def _new_numbers(rows: Rows, count: int) -> Rows:
    new = np.full(count, NONE, dtype=np.int64)
    new[rows] = np.arange(len(rows))
    return new


def _moved(values: pd.Series, new: Rows) -> pd.Series:
    at = new[values.index.to_numpy(dtype=np.int64)]
    return values.set_axis(pd.Index(at, dtype=np.int64))[at >= 0]


def _both(first: pd.Categorical, second: pd.Categorical) -> pd.Categorical:
    texts = [*map(str, first.categories), *map(str, second.categories)]
    shifted = np.where(
        second.codes >= 0, second.codes.astype(np.int32) + len(first.categories), NONE
    )
    return from_codes(np.concatenate([first.codes, shifted]).astype(np.int32), texts)


def _joined_args(first: Events, second: Events) -> Mapping[str, pd.Series]:
    args: dict[str, Any] = dict(first.args)
    for key, values in second.args.items():
        moved = values.set_axis(values.index + len(first))
        args[key] = pd.concat([args[key], moved]) if key in args else moved
    return args


CPU_DEVICE_TYPE, GPU_DEVICE_TYPE = 0, 1
"""torch's numbers of device types, as far as they are needed here."""

ROWS = "tensor"
"""Category of the slices that last as long as a tensor did."""

Thread = tuple[str, str]


@dataclass(frozen=True)
class Life:
    """An object's creation, its last description and the times (ns) of both, and of its end."""

    created: Event
    created_ns: int
    described: Event
    description: Mapping[str, Any]
    described_ns: int
    deleted_ns: int | None


@dataclass(frozen=True)
class Tensor:
    """A tensor: where and when (ns) it was made and released (None: it was still there at the end).

    ``maker`` is the process and thread of the op that made it, ``holder`` those of its device's
    tensors; ``gpu`` is the GPU that holds it, -1 for the CPU.
    """

    name: str
    maker: Thread
    holder: Thread
    made: int
    released: int | None
    size: int
    gpu: int
    args: Mapping[str, str]


def lives(file: Gathered, wanted: Callable[[Event], bool]) -> list[Life]:
    """The objects that were described, in the order in which the file creates them."""
    begun = {_key(event): (event, ts) for event, ts in _timed(file.others["N"], wanted)}
    told = {_key(event): (event, ts) for event, ts in _timed(file.others["O"], wanted)}
    ended = {_key(event): ts for event, ts in _timed(file.others["D"], wanted)}
    found = []
    for key, (event, ts) in begun.items():
        snapshot = (told[key][0].args or {}).get("snapshot") if key in told else None
        if isinstance(snapshot, dict):
            found.append(Life(event, ts, told[key][0], snapshot, told[key][1], ended.get(key)))
    return found


def _timed(events: Sequence[Event], wanted: Callable[[Event], bool]) -> list[tuple[Event, int]]:
    chosen = [event for event in events if wanted(event)]
    ts, _, valid = times(chosen)
    pairs = zip(chosen, ts.tolist(), valid.tolist(), strict=True)
    return [(event, at) for event, at, good in pairs if good]


def _key(event: Event) -> tuple[Any, ...]:
    return event.pid, event.id, event.name


def allocations(found: Sequence[Tensor]) -> Events:
    """Two ``[memory]`` instants each: on the thread of the op that made it, and of the tensors.

    Of one moment the releases come first, then what was made and released at that very moment, each
    made and released before the next.
    """
    changes = [(one.made, True, number, one) for number, one in enumerate(found)]
    ends = [(one.released, False, number, one) for number, one in enumerate(found)]
    changes += [(ts, made, number, one) for ts, made, number, one in ends if ts is not None]
    changes.sort(key=_order)
    threads = [one.maker if made else one.holder for _, made, _, one in changes]
    args: dict[str, list[Any]] = {
        "Bytes": [one.size if made else -one.size for _, made, _, one in changes],
        "Addr": [number for _, _, number, _ in changes],
        "Ev Idx": list(range(len(changes))),
        "Device Type": [GPU_DEVICE_TYPE if c[3].gpu >= 0 else CPU_DEVICE_TYPE for c in changes],
        "Device Id": [one.gpu for _, _, _, one in changes],
        "tensor": [one.name for _, _, _, one in changes],
    }
    ts = np.array([ts for ts, _, _, _ in changes], dtype=np.int64)
    names, categories = ([text] * len(ts) for text in (MEMORY_EVENT, "cpu_instant_event"))
    return _events(ts, ts, names, categories, threads, args)


def _order(change: tuple[int, bool, int, Tensor]) -> tuple[int, ...]:
    ts, made, number, one = change
    if one.made == one.released:
        return ts, 1, number, not made
    return ts, 2 if made else 0, number


def on_rows(found: Sequence[Tensor], end: int) -> tuple[Events, Names]:
    """Slices as long as each tensor was there (until ``end``), on rows of their device's tensors.

    Each is on the first row that is free; names of the rows.
    """
    start = np.array([one.made for one in found], dtype=np.int64)
    until = [end if one.released is None else one.released for one in found]
    stop = np.maximum(np.array(until, dtype=np.int64), start)
    holders = list(dict.fromkeys(one.holder for one in found))
    group = np.array([holders.index(one.holder) for one in found], dtype=np.int64)
    row = lanes(start, stop, group).tolist()
    texts = [f"tensors {number + 1}" for number in row]
    threads = [(one.holder[0], text) for one, text in zip(found, texts, strict=True)]
    keys = dict.fromkeys(key for one in found for key in one.args)
    args: dict[str, list[Any]] = {key: [one.args.get(key, "") for one in found] for key in keys}
    args["bytes"] = [one.size for one in found]
    names, categories = [one.name for one in found], [ROWS] * len(found)
    events = _events(start, stop, names, categories, threads, args)
    return events, Names(threads={thread: thread[1] for thread in threads})


def _events(
    start: Any, end: Any, names: list[str], categories: list[str], threads: Sequence[Thread],
    args: Mapping[str, list[Any]],
) -> Events:  # fmt: skip
    rows = np.arange(len(names))
    return Events(
        ts=start,
        dur=end - start,
        name=text_codes(names),
        category=text_codes(categories),
        process=text_codes([process for process, _ in threads]),
        thread=text_codes([thread for _, thread in threads]),
        args={key: typed(values, rows) for key, values in args.items() if values},
    )
