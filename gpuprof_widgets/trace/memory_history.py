"""CUDA memory snapshots: their segments and blocks, call stacks, and each device's history.

The structure is documented in ``torch/cuda/memory.py`` (``_snapshot``) and written by
``torch/csrc/cuda/Module.cpp`` (``THCPModule_memorySnapshot``). `content_of` checks its lists, and
counts entries of wrong types. `segments_of` returns the allocator's final state: the segments from
the driver, and the blocks in them. `Stacks` holds each call stack once, because entries repeat a
few stacks many times. `history_of` gives a device's allocations and releases with running totals.

A snapshot has no totals. They follow from its end, where the segments list all memory: a device
held before the first entry what is active at the end, less all that the entries added. Sizes are
the requested ones, as torch writes them; the allocator rounds them up.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from gpuprof_widgets.exceptions import TraceError
from gpuprof_widgets.trace.arrays import Ints
from gpuprof_widgets.trace.schema import NONE

Entry = dict[str, Any]

SNAPSHOT_PROCESS = "memory snapshot"
"""Process of a snapshot's tracks, because a snapshot does not name its process."""

ALLOC, OUT_OF_MEMORY = "alloc", "oom"
RELEASED, ASKED_FOR_RELEASE = ("free_completed", "free"), "free_requested"
GROWING, SHRINKING = ("segment_alloc", "segment_map"), ("segment_free", "segment_unmap")
KNOWN = frozenset(
    {ALLOC, OUT_OF_MEMORY, *RELEASED, ASKED_FOR_RELEASE, *GROWING, *SHRINKING, "snapshot"}
)

ALLOCATED, AWAITING, FREE = "allocated", "awaiting free", "free"

LARGEST = 2**62
"""Limit of addresses and sizes, so that their sums fit an int64."""
MOST_DEVICES = 4096


@dataclass(frozen=True)
class Content:
    """The checked parts of a snapshot.

    ``histories``: the trace entries of each device; ``segments``: those of all devices;
    ``left_out``: number of entries, segments and annotations that are not dicts.
    """

    histories: tuple[list[Entry], ...]
    segments: list[Entry]
    settings: dict[str, Any]
    annotations: list[Entry]
    left_out: int


def content_of(plain: Any, size: int, path: Path) -> Content:
    """Return the parts of a snapshot of ``size`` bytes; raise a `TraceError` if it is none."""
    if isinstance(plain, list):  # torch.cuda.memory_snapshot() of 1.13 has segments only
        plain = {"segments": plain, "device_traces": []}
    if not isinstance(plain, dict) or not {"segments", "device_traces"} <= set(plain):
        holds = f"one {type(plain).__name__}"
        if isinstance(plain, dict):
            keys = ", ".join(repr(key)[:40] for key in list(plain)[:6])
            holds = f"a dict with {keys or 'nothing in it'}"
        raise TraceError(
            f"{path}: a pickle, but not a memory snapshot: it holds {holds}, where a dict with "
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
    *histories, segments, annotations = (
        [entry for entry in part if type(entry) is dict] for part in parts
    )
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
    """Return the whole number under a key; None if there is no plausible one."""
    value = entry.get(key)
    return value if type(value) is int and 0 <= value < LARGEST else None


def text(entry: Entry, key: str) -> str:
    """Return the text under a key; "" if there is none."""
    value = entry.get(key)
    return value if type(value) is str else ""


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


class Stacks:
    """Distinct stacks, numbered; each is a list of frame numbers, innermost first.

    ``frames`` are as in torch.profiler, ``train.py(12): step``; a C++ frame without a file has its
    name only.
    """

    def __init__(self) -> None:
        self.frames: list[str] = []
        self.stacks: list[list[int]] = []
        self._frame_of_object: dict[int, int] = {}
        self._frame_of_text: dict[str, int] = {}
        self._stack_of_object: dict[int, int] = {}
        self._stack_of_frames: dict[tuple[int, ...], int] = {}

    def number(self, entry: Entry) -> int:
        """Return the number of the stack under an entry's ``frames``; `NONE` if it has none."""
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
        stack = self._stack_of_frames.setdefault(key, len(self.stacks))
        if stack == len(self.stacks):
            self.stacks.append(list(key))
        return stack

    def _frame(self, frame: Entry) -> int:
        known = self._frame_of_object.get(id(frame))
        if known is None:
            file, words = text(frame, "filename"), text(frame, "name")
            if file not in ("", "??", "none"):
                words = f"{file}({number(frame, 'line') or 0}): {words}"
            known = self._frame_of_text.setdefault(words, len(self.frames))
            if known == len(self.frames):
                self.frames.append(words)
            self._frame_of_object[id(frame)] = known
        return known


@dataclass(frozen=True)
class Block:
    """A piece of a segment; ``size`` in bytes, and ``requested`` before rounding up."""

    device: int
    address: int
    size: int
    requested: int
    state: str
    stack: int


def segments_of(content: Content, stacks: Stacks) -> tuple[list[dict[str, Any]], list[Block], int]:
    """Return the segments as plain dicts, all their blocks, and the number of invalid ones.

    A segment has ``device``, ``stream``, ``pool`` (of a CUDA graph or a MemPool, else "0.0"),
    ``kind`` ("small", "large"), ``expandable``, ``address``, ``bytes``, and ``blocks`` with the
    columns ``address``, ``bytes``, ``requested``, ``state``, ``stack``.
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
        of_segment = list(_blocks(entry, listed, address, stacks))
        wrong += len(listed) - len(of_segment)
        blocks += of_segment
        pool = entry.get("segment_pool_id")
        pair = pool if isinstance(pool, tuple | list) and len(pool) == 2 else (0, 0)
        ids = [part if type(part) is int and 0 <= part < 2**64 else 0 for part in pair]
        segments.append(
            {
                "device": number(entry, "device") or 0,
                "stream": number(entry, "stream") or 0,
                "pool": ".".join(map(str, ids)),
                "kind": text(entry, "segment_type"),
                "expandable": entry.get("is_expandable") is True,
                "address": address,
                "bytes": size,
                "blocks": {
                    "address": [block.address for block in of_segment],
                    "bytes": [block.size for block in of_segment],
                    "requested": [block.requested for block in of_segment],
                    "state": [block.state for block in of_segment],
                    "stack": [block.stack for block in of_segment],
                },
            }
        )
    return segments, blocks, wrong


def _blocks(entry: Entry, listed: list[Any], address: int, stacks: Stacks) -> Iterator[Block]:
    """Yield the blocks of a segment; they are adjacent, and only newer snapshots have addresses."""
    device = number(entry, "device") or 0
    for block in listed:
        size = number(block, "size") if type(block) is dict else None
        if size is None:
            continue
        written = number(block, "address")
        address = address if written is None else written
        described, requested = block, number(block, "requested_size")
        history = block.get("history")  # of torch 1.13 and 2.0
        if type(history) is list and history and type(history[0]) is dict:
            described = history[0]
            real = number(described, "real_size")
            requested = requested if real is None else real
        state = text(block, "state")
        if state == "active_allocated":
            state = ALLOCATED
        else:  # torch writes active_pending_free for awaiting free
            state = AWAITING if state.startswith("active") else FREE
        wanted = size if requested is None or state == FREE else requested
        yield Block(device, address, size, wanted, state, stacks.number(described))
        address += size


@dataclass(frozen=True)
class History:
    """The readable entries of one device, in order of time.

    ``ts``: ns of the epoch if the snapshot has times (torch 2.1 and later), else 1 µs apart;
    ``change``: bytes that an entry added to the allocated ones; ``allocated`` and ``reserved``: the
    device's bytes after the entry; ``free``: bytes free on the device when it ran out of memory;
    ``before``: blocks from before the first entry; ``left_out``: number of unreadable entries;
    ``gone``: number of allocated blocks that the segments do not have.
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
    """Return the history of a device whose segments hold these blocks.

    A device without entries gets one allocation per active block, all at the same time.
    """
    active = [block for block in blocks if block.state != FREE]
    at_once = [{"action": ALLOC, "addr": b.address, "size": b.requested} for b in active]
    kept: list[Entry] = [entry for entry in entries if _is_valid(entry)] if entries else at_once
    action = [text(entry, "action") for entry in kept]
    size, address = _column(kept, "size"), _column(kept, "addr")
    change, at_first, living = _changes(action, address, size)
    before = [block for block in active if block.address not in living]
    at_first += sum(block.requested for block in before)
    ts, has_times = _moments(kept)
    sign = [(word in GROWING) - (word in SHRINKING) for word in action]
    moved, at_last = np.array(sign, np.int64) * size, sum(block.size for block in blocks)
    numbers = [stacks.number(entry) for entry in kept] if entries else [b.stack for b in active]
    return History(
        device=device,
        action=action,
        ts=ts,
        address=address,
        size=size,
        change=change,
        allocated=min(at_first, LARGEST) + np.cumsum(change),
        reserved=np.maximum(min(at_last, LARGEST) - moved.sum() + np.cumsum(moved), 0),
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
    return np.array([number(entry, key) or 0 for entry in entries], np.int64)


def _moments(entries: list[Entry]) -> tuple[Ints, bool]:
    """Return times in ns that never go back, as entries are in order; and whether they are real."""
    times = [number(entry, "time_us") for entry in entries]
    valid = [time is not None and time < 2**63 // 1000 for time in times]
    if not any(valid):
        return np.arange(len(entries), dtype=np.int64) * 1000, False
    written = [time if good else 0 for time, good in zip(times, valid, strict=True)]
    return np.maximum.accumulate(np.array(written, np.int64)) * 1000, True


def _changes(action: list[str], address: Ints, size: Ints) -> tuple[Ints, int, set[int]]:
    """Return per entry the bytes that it added to the allocated ones.

    Also return the bytes of blocks that were released but not allocated in the history, and the
    addresses that it leaves allocated. If no release was completed, requested ones count.
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
