"""What a record says about the machine and the versions it was made with."""

from __future__ import annotations

import platform
import socket
from typing import Any

import torch


def environment() -> dict[str, Any]:
    """Versions, platform, host, GPUs and how torch is set, as JSON takes them."""
    return {
        "python": platform.python_version(),
        "torch": str(torch.__version__),
        "platform": platform.platform(terse=True),
        "host": socket.gethostname(),
        "cuda": torch.cuda.is_available(),
        "devices": devices(),
        "deterministic": torch.are_deterministic_algorithms_enabled(),
    }


def devices() -> list[dict[str, Any]]:
    """The GPUs that torch sees; empty without one, and after an error that stays with them."""
    if not torch.cuda.is_available():
        return []
    try:
        return [_device(index) for index in range(torch.cuda.device_count())]
    except RuntimeError:
        return []


def _device(index: int) -> dict[str, Any]:
    properties = torch.cuda.get_device_properties(index)
    return {
        "index": index,
        "name": properties.name,
        "total_memory_bytes": properties.total_memory,
        "multiprocessors": properties.multi_processor_count,
        "compute_capability": f"{properties.major}.{properties.minor}",
    }
