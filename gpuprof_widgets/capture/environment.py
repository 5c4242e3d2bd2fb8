"""What a record says about the machine and the versions it was made with."""

from __future__ import annotations

import math
import os
import platform
import socket
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch

CGROUPS = Path("/sys/fs/cgroup")
CFS = ("quota", "period")
ALL = 2**31


def environment() -> dict[str, Any]:
    """Versions, platform, host, CPUs, GPUs and how torch is set, as JSON takes them.

    ``cpus``: how many the process may use; ``torch_threads``: how many threads an op may have;
    ``cpu_bf16``: whether the CPU multiplies matrices in bfloat16 itself (AVX512-BF16 or AMX).
    """
    return {
        "python": platform.python_version(),
        "torch": str(torch.__version__),
        "platform": platform.platform(terse=True),
        "host": socket.gethostname(),
        "cpus": cpus(),
        "torch_threads": torch.get_num_threads(),
        "cpu_bf16": _multiplies_bf16(),
        "cuda": torch.cuda.is_available(),
        "devices": devices(),
        "deterministic": torch.are_deterministic_algorithms_enabled(),
    }


def cpus() -> int:
    """The CPUs that this process may use: those it may run on, or fewer where a quota says so."""
    try:
        allowed = len(os.sched_getaffinity(0))
    except AttributeError:  # neither on macOS nor on Windows
        allowed = os.cpu_count() or 1
    return max(1, min(allowed, _quota(CGROUPS)))


def _quota(cgroups: Path) -> int:
    """How many CPUs the control group's time is worth, in a container; a very large one if all.

    Source: Linux' Documentation/admin-guide/cgroup-v2.rst (cpu.max), scheduler/sched-bwc.rst.
    """
    with suppress(OSError, ValueError):
        quota, period = (cgroups / "cpu.max").read_text().split()
        return math.ceil(int(quota) / int(period))
    with suppress(OSError, ValueError):
        quota, period = ((cgroups / "cpu" / f"cpu.cfs_{key}_us").read_text() for key in CFS)
        return math.ceil(int(quota) / int(period)) if int(quota) > 0 else ALL
    return ALL


def _multiplies_bf16() -> bool:
    checks = ("_is_avx512_bf16_supported", "_is_amx_tile_supported")
    return any(getattr(torch.cpu, name, bool)() for name in checks)


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
