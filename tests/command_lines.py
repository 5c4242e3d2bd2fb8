"""Calling `gpuprof` in tests: in this process, or as a user does."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from gpuprof_widgets.cli import main
from gpuprof_widgets.trace.archive import save
from tests.traces import annotation, copy, kernel, module, op, runtime, trace_of

TIMEOUT_S = 120


@dataclass(frozen=True)
class Called:
    """What a call left: its exit code and what it printed."""

    code: int
    out: str
    err: str


def gpuprof(capsys: pytest.CaptureFixture[str], *words: object) -> Called:
    """Call the command in this process."""
    code = main([str(word) for word in words])
    printed = capsys.readouterr()
    return Called(code, printed.out, printed.err)


def gpuprof_process(*words: object, **given: Any) -> subprocess.CompletedProcess[str]:
    """Call it as a process of its own."""
    command = [sys.executable, "-m", "gpuprof_widgets", *map(str, words)]
    settings: dict[str, Any] = {"capture_output": True, "text": True, "timeout": TIMEOUT_S}
    return subprocess.run(command, **settings | given)


def small_trace(folder: Path) -> Path:
    """A saved profile of two steps with a module, an op with shapes, kernels and a copy."""
    shapes = {"shapes": [[64, 32], [32, 16]], "Input type": ["float", "float"]}
    rows = []
    for step in (0, 1):
        start, first = 10_000 * step, 6 * step
        rows += [
            annotation(f"ProfilerStep#{step}", ts=start, dur=9_000),
            module("encoder", ts=start + 500, dur=5_000),
            op("aten::mm", ts=start + 1_000, dur=2_000 + 500 * step, **shapes),
            runtime("cudaLaunchKernel", ts=start + 1_500, dur=500),
            kernel("gemm", ts=start + 2_500, dur=4_000, launched_by=first + 3),
            copy(ts=start + 7_000, dur=1_000, bytes=4_096),
        ]
    rows.append(op("aten::add", ts=20_000, dur=100))
    path = folder / "small.gpuprof"
    save(trace_of(*rows), path)
    return path
