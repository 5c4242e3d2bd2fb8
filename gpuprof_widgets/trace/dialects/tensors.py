"""Tensors that a Chrome trace has as objects (phases N, O and D): as allocations, and as rows."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from gpuprof_widgets.trace.events import Events, Names, text_codes, typed
from gpuprof_widgets.trace.gather import Gathered, times
from gpuprof_widgets.trace.schema import MEMORY_EVENT
from gpuprof_widgets.trace.sub_tracks import lanes
from gpuprof_widgets.trace.trace_events import Event

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
