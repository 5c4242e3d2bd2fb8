"""The allocator's state: the segments it got from the driver, and the blocks in each of them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from gpuprof_widgets.trace.memory_snapshot.content import Content, Entry, number, text
from gpuprof_widgets.trace.memory_snapshot.stacks import Stacks

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
