"""One device's history: what it allocated and released, with the totals that followed from it.

The snapshot has no totals. They are worked out from its end, where the segments say what was there:
what the device held before the first entry is what is active in the end, less all that was added.
Sizes are those that were asked for, as torch writes them; the allocator rounds them up.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from gpuprof_widgets.trace.memory_snapshot.content import LARGEST, Entry, number, text
from gpuprof_widgets.trace.memory_snapshot.segments import FREE, Block
from gpuprof_widgets.trace.memory_snapshot.stacks import Stacks

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
