"""One device's history: what it allocated and released, with the totals that followed from it.

The snapshot has no totals. They are worked out from its end, where the segments say what was there:
what the device held before the first entry is what is active in the end, less all that was added.
Sizes are those that were asked for, as torch writes them; the allocator rounds them up.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpuprof_widgets.exceptions import TraceError
from gpuprof_widgets.trace.schema import NONE

SNAPSHOT_PROCESS = "memory snapshot"
"""The process of the tracks of a snapshot: it does not say of which one it is."""

Ints = NDArray[np.int64]

ALLOC, OUT_OF_MEMORY = "alloc", "oom"
RELEASED, ASKED_FOR_RELEASE = ("free_completed", "free"), "free_requested"
GROWING, SHRINKING = ("segment_alloc", "segment_map"), ("segment_free", "segment_unmap")
KNOWN = frozenset(
    {ALLOC, OUT_OF_MEMORY, *RELEASED, ASKED_FOR_RELEASE, *GROWING, *SHRINKING, "snapshot"}
)


@dataclass(frozen=True)
class History:
    """The entries of one device that can be read, in the order in which they happened.

    ``ts``: ns, of the epoch where the snapshot has times (torch 2.1 and later), else 1 µs apart;
    ``change``: bytes by which an entry changed what is allocated; ``allocated`` and ``reserved``:
    the device's bytes after it; ``free``: what was free on the device when it ran out of memory.
    """

    device: int
    action: list[str]
    ts: Ints
    address: Ints
    size: Ints
    change: Ints
    allocated: Ints
    reserved: Ints
    stream: Ints
    stack: Ints
    free: Ints
    category: list[str]
    before: list[Block]
    has_times: bool
    left_out: int
    gone: int

    def __len__(self) -> int:
        return len(self.action)


def history_of(device: int, entries: list[Entry], blocks: list[Block], stacks: Stacks) -> History:
    """The history of a device whose segments hold these blocks.

    Of a device without a history: what it holds, as if it had been allocated at once.
    """
    active = [block for block in blocks if block.state != FREE]
    kept = [entry for entry in entries if _is_valid(entry)] if entries else _at_once(active)
    action = [text(entry, "action") for entry in kept]
    size, address = _column(kept, "size"), _column(kept, "addr")
    change, at_first, living = _changes(action, address, size)
    before = [block for block in active if block.address not in living]
    at_first += sum(block.requested for block in before)
    ts, has_times = _moments(kept)
    numbers = [stacks.number(entry) for entry in kept] if entries else [b.stack for b in active]
    return History(
        device=device,
        action=action,
        ts=ts,
        address=address,
        size=size,
        change=change,
        allocated=min(at_first, LARGEST) + np.cumsum(change),
        reserved=_reserved(action, size, sum(block.size for block in blocks)),
        stream=_column(kept, "stream"),
        stack=np.array(numbers, np.int64),
        free=_column(kept, "device_free"),
        category=[text(entry, "category") for entry in kept],
        before=before,
        has_times=has_times,
        left_out=len(entries) - len(kept) if entries else 0,
        gone=len(living - {block.address for block in active}) if blocks else 0,
    )


def _is_valid(entry: Entry) -> bool:
    action = text(entry, "action")
    needs_address = action not in (OUT_OF_MEMORY, "snapshot")
    has_address = number(entry, "addr") is not None or not needs_address
    return action in KNOWN and number(entry, "size") is not None and has_address


def _column(entries: list[Entry], key: str) -> Ints:
    values = (number(entry, key) for entry in entries)
    return np.array([0 if value is None else value for value in values], np.int64)


def _at_once(active: list[Block]) -> list[Entry]:
    return [{"action": ALLOC, "addr": b.address, "size": b.requested} for b in active]


def _moments(entries: list[Entry]) -> tuple[Ints, bool]:
    """Times in ns, which never go back: entries stand in their order."""
    times = [number(entry, "time_us") for entry in entries]
    known = [time for time in times if time is not None and time < 2**63 // 1000]
    if not known:
        return np.arange(len(entries), dtype=np.int64) * 1000, False
    given = [0 if time is None or time >= 2**63 // 1000 else time for time in times]
    return np.maximum.accumulate(np.array(given, np.int64)) * 1000, True


def _changes(action: list[str], address: Ints, size: Ints) -> tuple[Ints, int, set[int]]:
    """Per entry by how much it changed what is allocated.

    Then the bytes of blocks that were released without having been allocated in the history, and
    the addresses of those that it leaves allocated. Where a history has no completed releases,
    those asked for count.
    """
    completed = any(word in RELEASED for word in action)
    releasing = frozenset(RELEASED if completed else (ASKED_FOR_RELEASE,))
    change = np.zeros(len(action), np.int64)
    living: dict[int, int] = {}
    at_first = 0
    pairs = zip(action, address.tolist(), size.tolist(), strict=True)
    for row, (word, place, amount) in enumerate(pairs):
        if word == ALLOC:
            change[row] = amount - living.get(place, 0)
            living[place] = amount
        elif word in releasing:
            at_first += amount if place not in living else 0
            change[row] = -living.pop(place, amount)
    return change, at_first, set(living)


def _reserved(action: list[str], size: Ints, at_last: int) -> Ints:
    """What was reserved after each entry, from what is in the end."""
    sign = [(word in GROWING) - (word in SHRINKING) for word in action]
    change = np.array(sign, np.int64) * size
    first = min(at_last, LARGEST) - change.sum()
    reserved: Ints = np.maximum(first + np.cumsum(change), 0)
    return reserved


ALLOCATED, AWAITING, FREE = "allocated", "awaiting free", "free"


@dataclass(frozen=True)
class Block:
    """A piece of a segment; sizes in bytes, ``requested`` before the allocator rounded it up."""

    device: int
    address: int
    size: int
    requested: int
    state: str
    stack: int


def segments_of(content: Content, stacks: Stacks) -> tuple[list[dict[str, Any]], list[Block], int]:
    """The segments as plain dicts, the blocks of all of them, and how many have no valid size.

    Of a segment: ``device``, ``stream``, ``pool`` (of a CUDA graph or a MemPool, else "0.0"),
    ``kind`` ("small", "large"), ``expandable``, ``address``, ``bytes``, and ``blocks``: columns
    ``address``, ``bytes``, ``requested``, ``state``, ``stack``.
    """
    segments, blocks, wrong = [], [], 0
    seen: set[int] = set()
    for entry in content.segments:
        size, address = number(entry, "total_size"), number(entry, "address")
        listed = entry.get("blocks")
        if size is None or address is None or type(listed) is not list or id(listed) in seen:
            wrong += 1
            continue
        seen.add(id(listed))
        own = list(_blocks(entry, listed, address, stacks))
        wrong += len(listed) - len(own)
        blocks += own
        segments.append(_segment(entry, address, size, own))
    return segments, blocks, wrong


def _segment(entry: Entry, address: int, size: int, blocks: list[Block]) -> dict[str, Any]:
    return {
        "device": number(entry, "device") or 0,
        "stream": number(entry, "stream") or 0,
        "pool": _pool(entry.get("segment_pool_id")),
        "kind": text(entry, "segment_type"),
        "expandable": entry.get("is_expandable") is True,
        "address": address,
        "bytes": size,
        "blocks": {
            "address": [block.address for block in blocks],
            "bytes": [block.size for block in blocks],
            "requested": [block.requested for block in blocks],
            "state": [block.state for block in blocks],
            "stack": [block.stack for block in blocks],
        },
    }


def _pool(value: Any) -> str:
    pair = value if isinstance(value, tuple | list) and len(value) == 2 else (0, 0)
    numbers = [part if type(part) is int and 0 <= part < 2**64 else 0 for part in pair]
    return ".".join(map(str, numbers))


def _blocks(entry: Entry, listed: list[Any], address: int, stacks: Stacks) -> Iterator[Block]:
    """Blocks lie one behind the other; only newer snapshots say where."""
    device = number(entry, "device") or 0
    for block in listed:
        size = number(block, "size") if type(block) is dict else None
        if size is None:
            continue
        given = number(block, "address")
        address = address if given is None else given
        described, requested = _history(block)
        state = _state(text(block, "state"))
        requested = number(block, "requested_size") if requested is None else requested
        wanted = size if requested is None or state == FREE else requested
        yield Block(device, address, size, wanted, state, stacks.number(described))
        address += size


def _history(block: Entry) -> tuple[Entry, int | None]:
    """Where a block's frames are, and its size as torch 1.13 and 2.0 wrote it."""
    history = block.get("history")
    if type(history) is list and history and type(history[0]) is dict:
        return history[0], number(history[0], "real_size")
    return block, None


def _state(state: str) -> str:
    """What torch documents as ``active_awaiting_free`` it writes as ``active_pending_free``."""
    if state == "active_allocated":
        return ALLOCATED
    return AWAITING if state.startswith("active") else FREE


LARGEST = 2**62
"""Addresses and sizes stay below it, so that their sums do."""
MOST_DEVICES = 4096

Entry = dict[str, Any]


@dataclass(frozen=True)
class Content:
    """``histories``: per device its trace entries; ``segments``: of all devices.

    ``left_out``: how many entries, segments and annotations were not dicts.
    """

    histories: tuple[list[Entry], ...]
    segments: list[Entry]
    settings: dict[str, Any]
    annotations: list[Entry]
    left_out: int


def content_of(plain: Any, size: int, path: Path) -> Content:
    """The parts of a snapshot of ``size`` bytes; a `TraceError` says what it is instead."""
    if isinstance(plain, list):  # torch.cuda.memory_snapshot() of 1.13 has no more than segments
        plain = {"segments": plain, "device_traces": []}
    if not isinstance(plain, dict) or not {"segments", "device_traces"} <= set(plain):
        raise TraceError(
            f"{path}: a pickle, but not a memory snapshot: {_described(plain)}, where a dict with "
            "'segments' and 'device_traces' was expected. Write one with "
            "torch.cuda.memory._dump_snapshot."
        )
    traces = [trace for trace in _list(plain["device_traces"]) if isinstance(trace, list)]
    parts = [*traces[:MOST_DEVICES], _list(plain["segments"])]
    parts.append(_list(plain.get("external_annotations", [])))
    if sum(map(len, parts)) > size:
        raise TraceError(
            f"{path}: {sum(map(len, parts)):,} entries in a file of {size:,} bytes: its lists hold "
            "one another, which a memory snapshot does not. Dump the snapshot again."
        )
    *histories, segments, annotations = (list(_dicts(part)) for part in parts)
    kept = sum(map(len, histories)) + len(segments) + len(annotations)
    settings = plain.get("allocator_settings")
    return Content(
        tuple(histories),
        segments,
        settings if isinstance(settings, dict) else {},
        annotations,
        sum(map(len, parts)) - kept,
    )


def number(entry: Entry, key: str) -> int | None:
    """The whole number under a key, None where there is no plausible one."""
    value = entry.get(key)
    return value if type(value) is int and 0 <= value < LARGEST else None


def text(entry: Entry, key: str) -> str:
    """The text under a key, "" where there is none."""
    value = entry.get(key)
    return value if type(value) is str else ""


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _dicts(values: list[Any]) -> Iterable[Entry]:
    return (value for value in values if type(value) is dict)


def _described(plain: Any) -> str:
    if not isinstance(plain, dict):
        return f"it holds one {type(plain).__name__}"
    keys = ", ".join(repr(key[:40]) for key in list(plain)[:6])
    return f"it holds a dict with {keys or 'nothing in it'}"


class Stacks:
    """Distinct stacks by number, as lists of numbers of frames, innermost first.

    ``frames``: as torch.profiler writes them, ``train.py(12): step``; a C++ frame without a file by
    its name alone.
    """

    def __init__(self) -> None:
        self.frames: list[str] = []
        self.stacks: list[list[int]] = []
        self._frame_of_object: dict[int, int] = {}
        self._frame_of_text: dict[str, int] = {}
        self._stack_of_object: dict[int, int] = {}
        self._stack_of_frames: dict[tuple[int, ...], int] = {}

    def number(self, entry: Entry) -> int:
        """The number of the stack under an entry's ``frames``; `NONE` where it has none."""
        frames = entry.get("frames")
        if type(frames) is not list or not frames:
            return NONE
        known = self._stack_of_object.get(id(frames))  # the snapshot keeps every object alive
        if known is None:
            known = self._stack_of_object[id(frames)] = self._numbered(frames)
        return known

    def _numbered(self, frames: list[Any]) -> int:
        key = tuple(self._frame(frame) for frame in frames if type(frame) is dict)
        if not key:
            return NONE
        found = self._stack_of_frames.setdefault(key, len(self.stacks))
        if found == len(self.stacks):
            self.stacks.append(list(key))
        return found

    def _frame(self, frame: Entry) -> int:
        known = self._frame_of_object.get(id(frame))
        if known is None:
            words = _words(frame)
            known = self._frame_of_text.setdefault(words, len(self.frames))
            if known == len(self.frames):
                self.frames.append(words)
            self._frame_of_object[id(frame)] = known
        return known


def _words(frame: Entry) -> str:
    file, name = text(frame, "filename"), text(frame, "name")
    if file in ("", "??", "none"):
        return name
    return f"{file}({number(frame, 'line') or 0}): {name}"
