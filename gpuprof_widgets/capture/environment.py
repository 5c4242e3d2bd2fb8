"""What a record says about the machine and the versions it was made with."""

from __future__ import annotations

import math
import os
import platform
import socket
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from time import perf_counter, perf_counter_ns
from typing import Any

import torch

from gpuprof_widgets.capture.part import Context
from gpuprof_widgets.exceptions import OptionError
from gpuprof_widgets.trace.known_metadata import Peaks
from gpuprof_widgets.trace.model import Trace

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


FORMATS = {
    "fp64": torch.float64,
    "fp32": torch.float32,
    "tf32": torch.float32,
    "fp16": torch.float16,
    "bf16": torch.bfloat16,
}
"""What torch can multiply in; "tf32" is fp32 with TF32 allowed."""
SLOW = {"cpu": ("fp16",)}
"""Formats that are measured on request alone: most processors have no products in them."""
SIDES = {"cuda": 8192, "cpu": 1024}
"""Side of the square matrices, by kind of device."""
COPIED_BYTES = {"cuda": 2**30, "cpu": 2**28}
"""Many times any cache, by kind of device."""
ROUNDS = 5


def measured_peaks(
    device: str | None = None, *, dtypes: Sequence[str] | None = None, seconds: float = 0.1
) -> Peaks:
    """What this device reaches in matrix products and in a copy, as ``roofline(peaks=...)`` takes.

    ``device``: as torch names it; the GPU where there is one, unless given, else the CPU.
    ``dtypes``: number formats, of `FORMATS`, as a rule all that are not slow; one that the device
    cannot multiply is left out. ``seconds``: for about how long each of `ROUNDS` rounds runs; the
    best one counts: others were disturbed. A copy reads and writes, which counts twice its bytes.
    """
    unknown = [name for name in dtypes or () if name not in FORMATS]
    if unknown:
        raise OptionError(f"cannot measure {', '.join(unknown)}: there are {', '.join(FORMATS)}.")
    where = torch.device(device or ("cuda" if torch.cuda.is_available() else "cpu"))
    wanted = dtypes or [name for name in FORMATS if name not in SLOW.get(where.type, ())]
    flops = {name: _multiplied(name, where, seconds) for name in wanted}
    known = {name: speed for name, speed in flops.items() if speed}
    return Peaks(_name(where), known, _copied(where, seconds), "measured")


def _multiplied(name: str, where: torch.device, seconds: float) -> float:
    """FLOP/s of a product of square matrices; 0 where the device has none in that format."""
    if name == "tf32" and not _has_tf32(where):
        return 0.0
    side = SIDES.get(where.type, SIDES["cpu"])
    allowed = torch.backends.cuda.matmul.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = name == "tf32"
    try:
        left, right = (torch.ones(side, side, dtype=FORMATS[name], device=where) for _ in range(2))
        result = torch.empty_like(left)
        took = _best(lambda: torch.mm(left, right, out=result), where, seconds)
    except RuntimeError:  # no product in this format, or no room for it
        return 0.0
    finally:
        torch.backends.cuda.matmul.allow_tf32 = allowed
    return 2 * side**3 / took


def _copied(where: torch.device, seconds: float) -> float:
    """Bytes read and written per second by a copy within the device's memory."""
    size = COPIED_BYTES.get(where.type, COPIED_BYTES["cpu"])
    source = torch.ones(size // 4, dtype=torch.float32, device=where)
    target = torch.empty_like(source)
    return 2 * size / _best(lambda: target.copy_(source), where, seconds)


def _best(work: Callable[[], Any], where: torch.device, seconds: float) -> float:
    """Seconds per call in the fastest round, after one call that warms up."""
    _timed(work, 1, where)
    calls = max(1, int(seconds / max(_timed(work, 1, where), 1e-9)))
    return min(_timed(work, calls, where) for _ in range(ROUNDS))


def _timed(work: Callable[[], Any], calls: int, where: torch.device) -> float:
    _wait(where)
    began = perf_counter()
    for _ in range(calls):
        work()
    _wait(where)
    return (perf_counter() - began) / calls


def _wait(where: torch.device) -> None:
    if where.type != "cpu":
        torch.accelerator.synchronize(where)


def _has_tf32(where: torch.device) -> bool:
    if where.type != "cuda" or torch.version.hip is not None:
        return False
    return torch.cuda.get_device_capability(where) >= (8, 0)


def _name(where: torch.device) -> str:
    if where.type == "cuda":
        return str(torch.cuda.get_device_name(where))
    return f"{platform.machine()} CPU, {torch.get_num_threads()} threads"


Usage = tuple[int, int, int]


def process_state(_: Context) -> ProcessState:
    """The part, whatever the options ask for: it looks twice and costs microseconds."""
    return ProcessState()


class ProcessState:
    """Looks at the process as a window starts and stops."""

    loses = "no CPU time of the process"

    def __init__(self) -> None:
        self._before: Usage | None = None
        self._sums = (0, 0, 0)
        self._anomaly_mode = False

    def start(self) -> None:
        self._look()
        self._before = _usage()

    def stop(self) -> None:
        self._look()
        after = _usage()
        if self._before is not None and after is not None:
            between = zip(self._sums, self._before, after, strict=True)
            wall, cpu, preemptions = (known + new - old for known, old, new in between)
            self._sums = (wall, cpu, preemptions)
        self._before = None

    def _look(self) -> None:
        """Autograd's anomaly mode may have been set before the cell, or be left set by it."""
        self._anomaly_mode |= torch.is_anomaly_enabled()

    def refine(self, trace: Trace) -> Trace:
        return trace

    def notes(self) -> list[str]:
        return []

    def metadata(self) -> dict[str, Any]:
        """``cpu_use`` of all threads: how often the system took a CPU from one that had work."""
        use = dict(zip(("wall_ns", "cpu_ns", "preemptions"), self._sums, strict=True))
        known = {"cpu_use": use} if self._sums[0] else {}
        return {"anomaly_mode": self._anomaly_mode, **known}


def _usage() -> Usage | None:
    """Clock, CPU time (ns) and involuntary context switches; None where they are not counted."""
    if sys.platform == "win32":
        return None
    import resource

    used = resource.getrusage(resource.RUSAGE_SELF)
    return perf_counter_ns(), round((used.ru_utime + used.ru_stime) * 1e9), used.ru_nivcsw
