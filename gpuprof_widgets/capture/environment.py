"""The machine, its settings and its speed, as a record's metadata has them.

`environment` lists versions, CPUs and GPUs. `measured_peaks` measures FLOP/s and bytes/s for
`roofline`. `ProcessState` is the part that measures the CPU time of the process. `uses_cuda` and
`allocator_totals` read CUDA's state without changing it.
"""

from __future__ import annotations

import math
import os
import platform
import socket
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from threading import get_ident
from time import perf_counter, perf_counter_ns
from timeit import timeit
from typing import Any

import torch

from gpuprof_widgets.capture.part import Context, Part
from gpuprof_widgets.exceptions import OptionError
from gpuprof_widgets.trace.known_metadata import Peaks

CGROUPS = Path("/sys/fs/cgroup")
SCHEDSTAT = Path("/proc/thread-self/schedstat")
_UNLIMITED = 2**31


FORMATS = {
    "fp64": torch.float64,
    "fp32": torch.float32,
    "tf32": torch.float32,
    "fp16": torch.float16,
    "bf16": torch.bfloat16,
}
"""Number formats that torch can multiply; "tf32" is fp32 with TF32 allowed."""
SLOW = {"cpu": ("fp16",)}
"""Formats measured only on request, by device: most CPUs have no products in them."""
SIDES = {"cuda": 8192, "cpu": 1024}
"""Side of the square matrices, by kind of device."""
COPIED_BYTES = {"cuda": 2**30, "cpu": 2**28}
"""Bytes of the copy, many times any cache, by kind of device."""
ROUNDS = 5


def environment() -> dict[str, Any]:
    """Return versions, platform, host, CPUs, GPUs and torch's settings, as JSON can hold them.

    ``cpus``: how many the process may use; ``torch_threads``: how many threads an op may use;
    ``cpu_bf16``: whether the CPU multiplies bfloat16 matrices in hardware (AVX512-BF16 or AMX).
    """
    return {
        "python": platform.python_version(),
        "torch": str(torch.__version__),
        "platform": platform.platform(terse=True),
        "host": socket.gethostname(),
        "cpus": cpus(),
        "torch_threads": torch.get_num_threads(),
        "cpu_bf16": any(
            getattr(torch.cpu, name, bool)()
            for name in ("_is_avx512_bf16_supported", "_is_amx_tile_supported")
        ),
        "cuda": torch.cuda.is_available(),
        "devices": devices(),
        "deterministic": torch.are_deterministic_algorithms_enabled(),
    }


def cpus() -> int:
    """Return how many CPUs this process may use: those it may run on, or fewer under a quota."""
    try:
        allowed = len(os.sched_getaffinity(0))
    except AttributeError:  # neither on macOS nor on Windows
        allowed = os.cpu_count() or 1
    return max(1, min(allowed, _quota(CGROUPS)))


def _quota(cgroups: Path) -> int:
    """Return how many CPUs a container's CPU quota is worth; a very large number without one.

    Source: Linux' Documentation/admin-guide/cgroup-v2.rst (cpu.max), scheduler/sched-bwc.rst.
    """
    with suppress(OSError, ValueError):
        quota, period = (cgroups / "cpu.max").read_text().split()
        return math.ceil(int(quota) / int(period))
    with suppress(OSError, ValueError):
        quota, period = (
            (cgroups / "cpu" / f"cpu.cfs_{key}_us").read_text() for key in ("quota", "period")
        )
        return math.ceil(int(quota) / int(period)) if int(quota) > 0 else _UNLIMITED
    return _UNLIMITED


def devices() -> list[dict[str, Any]]:
    """Return the GPUs that torch sees; none after a CUDA error, which stays in the process."""
    if not torch.cuda.is_available():
        return []
    try:
        every = map(torch.cuda.get_device_properties, range(torch.cuda.device_count()))
        return [
            {
                "index": index,
                "name": properties.name,
                "total_memory_bytes": properties.total_memory,
                "multiprocessors": properties.multi_processor_count,
                "compute_capability": f"{properties.major}.{properties.minor}",
            }
            for index, properties in enumerate(every)
        ]
    except RuntimeError:
        return []


def uses_cuda() -> bool:
    """Whether this process has a CUDA context; asking does not make one."""
    return torch.cuda.is_available() and bool(torch.cuda.is_initialized())  # type: ignore[no-untyped-call]


def allocator_totals(*keys: str) -> list[int]:
    """Return these statistics of CUDA's caching allocator, summed over devices; 0 without CUDA."""
    devices = range(torch.cuda.device_count() if uses_cuda() else 0)
    stats = [torch.cuda.memory_stats(device) for device in devices]
    return [sum(int(device_stats.get(key, 0)) for device_stats in stats) for key in keys]


def measured_peaks(
    device: str | None = None, *, dtypes: Sequence[str] | None = None, seconds: float = 0.1
) -> Peaks:
    """Measure how fast this device multiplies matrices and copies memory, for ``roofline``.

    Pass the result as ``roofline(peaks=...)``. ``device``: torch's name for it; by default the GPU,
    or the CPU without one. ``dtypes``: number formats ("fp32", "bf16", ...), by default all but the
    slow ones; formats that the device cannot multiply are left out. ``seconds``: duration of each
    of a few rounds. The best round counts, because the others were disturbed. A copy reads and
    writes, so its bytes count twice.

    Raises an `OptionError` for an unknown number format.
    """
    unknown = [name for name in dtypes or () if name not in FORMATS]
    if unknown:
        raise OptionError(f"cannot measure {', '.join(unknown)}: there are {', '.join(FORMATS)}.")
    target = torch.device(device or ("cuda" if torch.cuda.is_available() else "cpu"))
    wanted = dtypes or [name for name in FORMATS if name not in SLOW.get(target.type, ())]
    flops = {name: _multiplied(name, target, seconds) for name in wanted}
    known = {name: speed for name, speed in flops.items() if speed}
    device_name = f"{platform.machine()} CPU, {torch.get_num_threads()} threads"
    if target.type == "cuda":
        device_name = str(torch.cuda.get_device_name(target))
    return Peaks(device_name, known, _copied(target, seconds), "measured")


def _multiplied(name: str, device: torch.device, seconds: float) -> float:
    """Return the FLOP/s of a product of square matrices; 0 where the format has no product."""
    is_nvidia = device.type == "cuda" and torch.version.hip is None
    if name == "tf32" and not (is_nvidia and torch.cuda.get_device_capability(device) >= (8, 0)):
        return 0.0
    side = SIDES.get(device.type, SIDES["cpu"])
    allowed = torch.backends.cuda.matmul.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = name == "tf32"
    try:
        left, right = (torch.ones(side, side, dtype=FORMATS[name], device=device) for _ in range(2))
        result = torch.empty_like(left)
        took = _best(lambda: torch.mm(left, right, out=result), device, seconds)
    except RuntimeError:  # no product in this format, or no room for it
        return 0.0
    finally:
        torch.backends.cuda.matmul.allow_tf32 = allowed
    return 2 * side**3 / took


def _copied(device: torch.device, seconds: float) -> float:
    """Return the bytes per second that a copy in device memory reads and writes."""
    size = COPIED_BYTES.get(device.type, COPIED_BYTES["cpu"])
    source = torch.ones(size // 4, dtype=torch.float32, device=device)
    target = torch.empty_like(source)
    return 2 * size / _best(lambda: target.copy_(source), device, seconds)


def _best(work: Callable[[], Any], device: torch.device, seconds: float) -> float:
    """Return the seconds per call in the fastest round, after one call to warm up."""
    _timed(work, 1, device)
    calls = max(1, int(seconds / max(_timed(work, 1, device), 1e-9)))
    return min(_timed(work, calls, device) for _ in range(ROUNDS))


def _timed(work: Callable[[], Any], calls: int, device: torch.device) -> float:
    def once_done() -> float:
        if device.type != "cpu":
            torch.accelerator.synchronize(device)
        return perf_counter()

    return timeit(work, timer=once_done, number=calls) / calls


class ProcessState(Part):
    """Measures CPU time and preemptions of the process from start to stop of each window."""

    loses = "no CPU time of the process"

    def __init__(self, _: Context) -> None:
        self._before: dict[str, int] = {}
        self._sums = Counter[str]()
        self._thread = 0
        self._anomaly_mode = False

    def start(self) -> None:
        self._anomaly_mode |= torch.is_anomaly_enabled()
        self._before, self._thread = _usage(), get_ident()

    def stop(self) -> None:
        self._anomaly_mode |= torch.is_anomaly_enabled()  # the code may have set it
        after = _usage()
        if get_ident() != self._thread:
            after.pop("queued_ns", None)  # it is that of the thread that asks
        before, self._before = self._before, {}
        self._sums.update({key: after[key] - n for key, n in before.items() if key in after})

    def metadata(self) -> dict[str, Any]:
        """Return ``cpu_use``: wall and CPU time of all threads, and how often one was preempted.

        On Linux also how long the thread of the run was ready to run and had no CPU, ``queued_ns``.
        """
        known = {"cpu_use": dict(self._sums)} if self._sums else {}
        return {"anomaly_mode": self._anomaly_mode, **known}


def _usage() -> dict[str, int]:
    """Return the usage so far; nothing on Windows, which does not count it.

    ``queued_ns``, how long this thread has waited for a CPU, is known on Linux: see its
    Documentation/scheduler/sched-stats.rst (/proc/<pid>/schedstat).
    """
    if sys.platform == "win32":
        return {}
    import resource

    used = resource.getrusage(resource.RUSAGE_SELF)
    usage = {
        "wall_ns": perf_counter_ns(),
        "cpu_ns": round((used.ru_utime + used.ru_stime) * 1e9),
        "preemptions": used.ru_nivcsw,
    }
    with suppress(OSError, ValueError, IndexError):
        usage["queued_ns"] = int(SCHEDSTAT.read_text().split()[1])
    return usage
