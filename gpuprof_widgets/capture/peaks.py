"""Measure what the present device can do: matrix products and a copy, as large as they like."""

from __future__ import annotations

import platform
from collections.abc import Callable, Sequence
from time import perf_counter
from typing import Any

import torch

from gpuprof_widgets.exceptions import OptionError
from gpuprof_widgets.trace.peaks import Peaks

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
