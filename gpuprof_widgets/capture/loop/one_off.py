"""Costs that only first iterations have: compilation, cuDNN's search, the allocator's growth."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import Any, Self

import torch

_COMPILATION = ("_compile.compile_inner", "entire_frame_compile")
"""Under which of its timers torch's versions keep a whole compilation, the newest first."""


@dataclass(frozen=True)
class Costs:
    """What this process has spent so far on things that are paid once.

    ``compile_ns`` and ``graphs`` of torch.compile; ``reserved_bytes`` and ``alloc_retries`` of
    CUDA's caching allocator, all devices together.
    """

    compile_ns: int = 0
    graphs: int = 0
    reserved_bytes: int = 0
    alloc_retries: int = 0

    @classmethod
    def now(cls) -> Self:
        """As it stands. Nothing is imported or started in order to look."""
        return cls(*_compiled(), *_allocated())

    def since(self, before: Costs) -> dict[str, int]:
        """What came since then."""
        return {name: value - getattr(before, name) for name, value in vars(self).items()}


def _compiled() -> tuple[int, int]:
    counts: Any = sys.modules.get("torch._dynamo.utils")
    if counts is None:
        return 0, 0
    # torch keeps these in private names, which may go: then there is nothing to tell.
    timers = getattr(counts, "compilation_time_metrics", {})
    seconds = next((sum(timers[name]) for name in _COMPILATION if name in timers), 0.0)
    stats = getattr(counts, "counters", {}).get("stats", {})
    return round(seconds * 1e9), int(stats.get("unique_graphs", 0))


def _allocated() -> tuple[int, int]:
    if not uses_cuda():
        return 0, 0
    reserved = retries = 0
    for device in range(torch.cuda.device_count()):
        stats = torch.cuda.memory_stats(device)
        reserved += int(stats.get("reserved_bytes.all.current", 0))
        retries += int(stats.get("num_alloc_retries", 0))
    return reserved, retries


def uses_cuda() -> bool:
    """Whether this process has a CUDA context; asking makes none."""
    return torch.cuda.is_available() and bool(torch.cuda.is_initialized())  # type: ignore[no-untyped-call]


def searches_algorithms() -> bool:
    """Whether cuDNN tries its algorithms on the first call of every shape."""
    return uses_cuda() and bool(torch.backends.cudnn.benchmark)
