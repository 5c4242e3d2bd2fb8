"""Dialects of Chrome traces, and the tools to translate one: rows, layers of ops, tensors.

A dialect gets the `Parts` of a Chrome trace as the format describes them and returns them with our
categories, tracks, ids and counters. `taken`, `joined`, `recoded`... are its tools: new events from
given ones, which stay as they are.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

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
from gpuprof_widgets.trace.schema import (
    CPU_DEVICE_TYPE,
    GPU_DEVICE_TYPE,
    MEMORY_EVENT,
    NODE,
    NONE,
    RESUMED,
)
from gpuprof_widgets.trace.trace_events import Event
from gpuprof_widgets.trace.tracks import lanes

Mask = NDArray[np.bool_]
Rows = NDArray[np.intp]
Texts = NDArray[np.object_]
Thread = tuple[str, str]


def _no_rows() -> NDArray[np.int64]:
    return np.empty(0, dtype=np.int64)


@dataclass(frozen=True)
class Parts:
    """The parts from which a trace is assembled, on the clock of the file (ns).

    ``flows`` are arrows of any kind between rows of ``events``: who drops or sorts rows has to
    renumber them. ``forward_flows`` are fwdbwd arrows, matched by thread and time. ``moments``
    (instants) and ``threadless`` (async slices, objects) are rows as well; a dialect need not keep
    them up to date, as only untranslated parts use them. ``metadata`` is added to the record's;
    ``notes`` (one line each) say what could not be read.
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
    """Chrome traces of one program: how to recognise them, and what their rows mean.

    ``translate`` gets the parts as any Chrome trace has them, and everything that was in the file;
    it returns the parts with our categories, tracks, ids and counters.
    """

    name: str
    recognises: Callable[[Parts, Gathered], bool]
    translate: Callable[[Parts, Gathered], Parts]


def taken(events: Events, rows: Rows) -> Events:
    """Return these rows of the events, in this order."""
    new = _new_numbers(rows, len(events))
    args = {key: _renumbered(values, new) for key, values in events.args.items()}
    return Events(
        ts=events.ts[rows],
        dur=events.dur[rows],
        name=events.name.take(rows).remove_unused_categories(),
        category=events.category.take(rows).remove_unused_categories(),
        process=events.process.take(rows).remove_unused_categories(),
        thread=events.thread.take(rows).remove_unused_categories(),
        args={key: values for key, values in args.items() if len(values)},
    )


def kept_flows(flows: EventFlows, rows: Rows, count: int) -> EventFlows:
    """Return the arrows between these rows of ``count`` events, renumbered to the rows' order."""
    new = _new_numbers(rows, count)
    source, target = new[flows.source], new[flows.target]
    kept = (source >= 0) & (target >= 0)
    kinds = [kind for kind, is_kept in zip(flows.kind, kept.tolist(), strict=True) if is_kept]
    return EventFlows(source[kept], target[kept], kinds)


def _new_numbers(rows: Rows, count: int) -> Rows:
    new = np.full(count, NONE, dtype=np.int64)
    new[rows] = np.arange(len(rows))
    return new


def _renumbered(values: pd.Series, new: Rows) -> pd.Series:
    at = new[values.index.to_numpy(dtype=np.int64)]
    return values.set_axis(pd.Index(at, dtype=np.int64))[at >= 0]


def joined(first: Events, second: Events) -> Events:
    """Return the rows of both, one after the other."""
    args: dict[str, Any] = dict(first.args)
    for key, values in second.args.items():
        moved = values.set_axis(values.index + len(first))
        args[key] = pd.concat([args[key], moved]) if key in args else moved
    return Events(
        ts=np.concatenate([first.ts, second.ts]),
        dur=np.concatenate([first.dur, second.dur]),
        name=_joined_texts(first.name, second.name),
        category=_joined_texts(first.category, second.category),
        process=_joined_texts(first.process, second.process),
        thread=_joined_texts(first.thread, second.thread),
        args=args,
    )


def _joined_texts(first: pd.Categorical, second: pd.Categorical) -> pd.Categorical:
    texts = [*map(str, first.categories), *map(str, second.categories)]
    shifted = np.where(
        second.codes >= 0, second.codes.astype(np.int32) + len(first.categories), NONE
    )
    return from_codes(np.concatenate([first.codes, shifted]).astype(np.int32), texts)


def recoded(values: pd.Categorical, rows: Mask, text: str) -> pd.Categorical:
    """Return the values with this text in these rows; unused texts leave the dictionary."""
    texts = [*map(str, values.categories), text]
    used, codes = np.unique(np.where(rows, len(texts) - 1, values.codes), return_inverse=True)
    return from_codes(codes.astype(np.int32), [texts[code] for code in used])


def texts_of(values: pd.Series | None, count: int) -> Texts:
    """Return an arg of each of ``count`` events as text, "" for events without it."""
    texts = np.full(count, "", dtype=object)
    if values is not None:
        texts[values.index.to_numpy()] = [str(value) for value in values]
    return texts


def marked(mask: Mask, values: NDArray[Any]) -> pd.Series:
    """Return an arg that the marked events have: the value at their place."""
    rows = np.flatnonzero(mask)
    return typed(values[rows].tolist(), rows)


@dataclass(frozen=True)
class Place:
    """The layer ("" for none) and the pass of a node, which is an op's name in its program."""

    layer: str = ""
    is_backward: bool = False


def in_layers(
    events: Events,
    flows: EventFlows,
    places_of: Callable[[Collection[str]], Mapping[str, Place]],
) -> tuple[Events, EventFlows]:
    """Put the events behind the regions of layers; also return the arrows between the events.

    Some programs tell layers by the names of ops alone (arg `NODE`), which ``places_of`` reads. The
    ops of a layer may run at once and on several threads, so that no single slice is as long as the
    layer: each op gets a region, and a call of the layer begins with each run of its first node.
    """
    nodes = np.where(events.category == "cpu_op", texts_of(events.args.get(NODE), len(events)), "")
    places = places_of(set(nodes))
    place = [places.get(node, Place()) for node in nodes.tolist()]
    rows = np.array([row for row, at in enumerate(place) if at.layer], dtype=np.int64)
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


TENSOR_CATEGORY = "tensor"
"""Category of the slices that last as long as a tensor did."""


@dataclass(frozen=True)
class Life:
    """An object of the trace (phases N, O, D): creation, last description and deletion (ns)."""

    created: Event
    created_ns: int
    described: Event
    description: Mapping[str, Any]
    described_ns: int
    deleted_ns: int | None


@dataclass(frozen=True)
class Tensor:
    """A tensor and when (ns) it was made and released (None: it was still there at the end).

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


def tensors_of(
    file: Gathered,
    is_tensor: Callable[[Event], bool],
    tensor_of: Callable[[Life], Tensor | None],
    lacking: str,
) -> tuple[list[Tensor], list[str]]:
    """Return the file's tensors, and a note on those that ``tensor_of`` cannot make.

    ``lacking`` is what these have, as in "no size".
    """
    tensors = [tensor for life in _lives(file, is_tensor) if (tensor := tensor_of(life))]
    count = sum(map(is_tensor, file.others["N"]))
    left = count - len(tensors)
    note = f"{left:,} of {count:,} tensors have {lacking}, and are not in the memory views"
    return tensors, [note] if left else []


def _lives(file: Gathered, wanted: Callable[[Event], bool]) -> list[Life]:
    """Return the objects that have a description, in the order of their creation in the file."""
    created = {_key(event): (event, ts) for event, ts in _timed(file.others["N"], wanted)}
    described = {_key(event): (event, ts) for event, ts in _timed(file.others["O"], wanted)}
    deleted = {_key(event): ts for event, ts in _timed(file.others["D"], wanted)}
    lives = []
    for key, (event, ts) in created.items():
        if key not in described:
            continue
        last, last_ns = described[key]
        snapshot = (last.args or {}).get("snapshot")
        if isinstance(snapshot, dict):
            lives.append(Life(event, ts, last, snapshot, last_ns, deleted.get(key)))
    return lives


def _timed(events: Sequence[Event], wanted: Callable[[Event], bool]) -> list[tuple[Event, int]]:
    chosen = [event for event in events if wanted(event)]
    ts, _, valid = times(chosen)
    rows = zip(chosen, ts.tolist(), valid.tolist(), strict=True)
    return [(event, at) for event, at, is_valid in rows if is_valid]


def _key(event: Event) -> tuple[Any, ...]:
    return event.pid, event.id, event.name


def with_tensors(events: Events, tensors: Sequence[Tensor]) -> tuple[Events, Names]:
    """Add allocations and slices of tensors behind the events; also return the slices' rows."""
    end = int((events.ts + events.dur).max(initial=0))
    slices, names = _tensor_slices(tensors, end)
    return joined(joined(events, _allocations(tensors)), slices), names


class _Change(NamedTuple):
    ts: int
    is_made: bool
    number: int
    tensor: Tensor


def _allocations(tensors: Sequence[Tensor]) -> Events:
    """Return ``[memory]`` instants: where a tensor was made, and where its device releases it."""
    changes = []
    for number, tensor in enumerate(tensors):
        changes.append(_Change(tensor.made, True, number, tensor))
        if tensor.released is not None:
            changes.append(_Change(tensor.released, False, number, tensor))
    changes.sort(key=_order)
    threads = [c.tensor.maker if c.is_made else c.tensor.holder for c in changes]
    on_gpu = np.array([c.tensor.gpu >= 0 for c in changes], dtype=bool)
    args: dict[str, list[Any]] = {
        "Bytes": [c.tensor.size if c.is_made else -c.tensor.size for c in changes],
        "Addr": [change.number for change in changes],
        "Ev Idx": list(range(len(changes))),
        "Device Type": np.where(on_gpu, GPU_DEVICE_TYPE, CPU_DEVICE_TYPE).tolist(),
        "Device Id": [change.tensor.gpu for change in changes],
        "tensor": [change.tensor.name for change in changes],
    }
    ts = np.array([change.ts for change in changes], dtype=np.int64)
    names, categories = ([text] * len(ts) for text in (MEMORY_EVENT, "cpu_instant_event"))
    return _events(ts, ts, names, categories, threads, args)


def _order(change: _Change) -> tuple[int, ...]:
    """At one time, releases come first, then tensors made and released at that time, one by one."""
    if change.tensor.made == change.tensor.released:
        return change.ts, 1, change.number, not change.is_made
    return change.ts, 2 if change.is_made else 0, change.number


def _tensor_slices(tensors: Sequence[Tensor], end: int) -> tuple[Events, Names]:
    """Return slices as long as each tensor was there (until ``end``), and the names of their rows.

    Each is on the first row of its device's tensors that is free.
    """
    start = np.array([tensor.made for tensor in tensors], dtype=np.int64)
    until = [end if tensor.released is None else tensor.released for tensor in tensors]
    stop = np.maximum(np.array(until, dtype=np.int64), start)
    holders = list(dict.fromkeys(tensor.holder for tensor in tensors))
    group = np.array([holders.index(tensor.holder) for tensor in tensors], dtype=np.int64)
    rows = [f"tensors {number + 1}" for number in lanes(start, stop, group).tolist()]
    threads = [(tensor.holder[0], row) for tensor, row in zip(tensors, rows, strict=True)]
    keys = dict.fromkeys(key for tensor in tensors for key in tensor.args)
    args: dict[str, list[Any]] = {key: [t.args.get(key, "") for t in tensors] for key in keys}
    args["bytes"] = [tensor.size for tensor in tensors]
    names, categories = [tensor.name for tensor in tensors], [TENSOR_CATEGORY] * len(tensors)
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
