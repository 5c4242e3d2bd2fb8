"""`--nvtx`: NVTX ranges of ops, modules and lines, and the CUDA profiler's start and stop calls.

A kernel that was started under `nsys profile -c cudaProfilerApi` then records just this cell.
torch's `emit_nvtx` turns ops into ranges. It is a profiler of its own: torch.profiler cannot run at
the same time, nor could it see the GPU, whose one interface for profilers Nsight has taken. Lines
and modules are record functions, which `emit_nvtx` turns into ranges as well; where `emits_nvtx`,
their parts give them readable names instead of numbers.
"""

from __future__ import annotations

import os
from contextlib import ExitStack
from typing import Any

import torch
import torch.autograd.profiler

from gpuprof_widgets.capture.part import Context, Part
from gpuprof_widgets.capture.torch_profiler import emits_nvtx, profiler_is_running

# Untyped in torch.
_autograd_profiler: Any = torch.autograd.profiler
_cuda_profiler: Any = torch.cuda.profiler
_nvtx: Any = torch.cuda.nvtx

_NO_CUDA = "no NVTX ranges: torch sees no CUDA device; the cell was recorded as without --nvtx"
_INSTEAD = "no ops: with --nvtx they are NVTX ranges for Nsight Systems, and torch.profiler is off"
_NO_NSYS = (
    "this kernel does not seem to run under nsys, so nothing recorded the NVTX ranges; "
    "`gpuprof kernelspec --nsys` installs one that does"
)
_NOT_OURS = "no NVTX ranges of ops: your own torch.profiler is running"
_GAVE_WAY = "NVTX ranges of ops end where your own torch.profiler started"


def nvtx_ranges(context: Context) -> NvtxRanges | None:
    """Return the part, where the options ask for it."""
    return NvtxRanges(context) if context.options.nvtx else None


class NvtxRanges(Part):
    """Emits NVTX ranges, and starts and stops the recording of Nsight Systems."""

    loses = "no NVTX ranges"

    def __init__(self, context: Context) -> None:
        self._label = context.label
        self._shapes = context.options.shapes
        self._emits = emits_nvtx(context.options)
        self._ops: Any = None
        self._capturing = self._in_range = False
        self._notes: list[str] = []

    def start(self) -> None:
        if not self._emits:
            self._notes.append(_NO_CUDA)
            return
        if profiler_is_running():
            self._notes.append(_NOT_OURS)
        else:
            # Its start and stop wait for the GPU, to keep other work outside.
            ops = _autograd_profiler.emit_nvtx(record_shapes=self._shapes)
            ops.__enter__()
            self._ops = ops
        _cuda_profiler.start()
        self._capturing = True
        _nvtx.range_push(self._label)
        self._in_range = True

    def stop(self) -> None:
        with ExitStack() as ends:  # each runs even if an earlier one fails
            if self._capturing:
                ends.callback(_cuda_profiler.stop)
            ends.callback(self._stop_ops)
            if self._in_range:
                ends.callback(_nvtx.range_pop)
            self._capturing = self._in_range = False

    def notes(self) -> list[str]:
        if not self._emits:
            return self._notes
        under_nsys = "NSYS_PROFILING_SESSION_ID" in os.environ
        return [_INSTEAD, *([] if under_nsys else [_NO_NSYS]), *self._notes]

    def _stop_ops(self) -> None:
        ops, self._ops = self._ops, None
        if ops is None:
            return
        try:
            ops.__exit__(None, None, None)
        except BaseException:  # after a CUDA error of the cell torch leaves itself on
            if profiler_is_running():
                _autograd_profiler._disable_profiler()
                _autograd_profiler._run_on_profiler_stop()
            raise

    def give_way(self) -> None:
        if self._ops is not None:
            self._stop_ops()
            self._notes.append(_GAVE_WAY)
