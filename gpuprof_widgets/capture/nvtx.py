"""`--nvtx`: NVTX ranges of ops, modules and lines, and the CUDA profiler's start and stop calls.

A kernel that was started under `nsys profile -c cudaProfilerApi` then records just this cell. Ops
become ranges by torch's `emit_nvtx`, which is a profiler of its own: torch.profiler cannot run
beside it, nor could it see the GPU, whose one interface for profilers is taken by Nsight.
Lines and modules are marked by record functions, which `emit_nvtx` turns into ranges like ops: they
need no calls of ours, only names that can be read: their parts see to it where `emits_nvtx`.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

import torch
import torch.autograd.profiler
from torch.autograd import profiler as autograd_profiler

from gpuprof_widgets.capture.part import Context
from gpuprof_widgets.options import Options
from gpuprof_widgets.trace.model import Trace

# Untyped in torch.
_autograd_profiler: Any = torch.autograd.profiler
_cuda_profiler: Any = torch.cuda.profiler
_nvtx: Any = torch.cuda.nvtx

_NO_CUDA = "no NVTX ranges: torch sees no CUDA device; the cell was recorded as without --nvtx"
_INSTEAD = "no ops: with --nvtx they are NVTX ranges for Nsight Systems, and torch.profiler is off"
_NO_NSYS = (
    "this kernel does not seem to run under nsys, so that nothing has recorded the NVTX ranges; "
    "`gpuprof kernelspec --nsys` installs one that does"
)
_NOT_OURS = "no NVTX ranges of ops: your own torch.profiler is running"
_GAVE_WAY = "NVTX ranges of ops end where your own torch.profiler started"


def emits_nvtx(options: Options) -> bool:
    """Whether a recording with these options is for Nsight Systems, and not for torch.profiler."""
    return options.nvtx and torch.cuda.is_available()


def nvtx_ranges(context: Context) -> NvtxRanges | None:
    """The part, where the options ask for it."""
    return NvtxRanges(context) if context.options.nvtx else None


class NvtxRanges:
    """The part of a recording that speaks to Nsight Systems."""

    loses = "no NVTX ranges"

    def __init__(self, context: Context) -> None:
        self._label = context.label
        self._shapes = context.options.shapes
        self._emits = emits_nvtx(context.options)
        self._ops: Any = None
        self._entrances = Entrances(self._give_way)
        self._capturing = self._in_range = False
        self._notes: list[str] = []

    def start(self) -> None:
        if not self._emits:
            self._note(_NO_CUDA)
            return
        if profiler_is_running():
            self._note(_NOT_OURS)
        else:
            self._start_ops()
        _cuda_profiler.start()
        self._capturing = True
        _nvtx.range_push(self._label)
        self._in_range = True

    def stop(self) -> None:
        with ExitStack() as ends:  # each one happens whatever becomes of those before it
            if self._capturing:
                ends.callback(_cuda_profiler.stop)
            ends.callback(self._stop_ops)
            if self._in_range:
                ends.callback(_nvtx.range_pop)
            self._capturing = self._in_range = False

    def refine(self, trace: Trace) -> Trace:
        return trace

    def notes(self) -> list[str]:
        if not self._emits:
            return self._notes
        under_nsys = "NSYS_PROFILING_SESSION_ID" in os.environ
        return [_INSTEAD, *([] if under_nsys else [_NO_NSYS]), *self._notes]

    def metadata(self) -> dict[str, Any]:
        return {}

    def _start_ops(self) -> None:
        """Ranges from here on; both ends wait for the GPU, so that no other work is in between."""
        ops = _autograd_profiler.emit_nvtx(record_shapes=self._shapes)
        ops.__enter__()
        self._ops = ops
        self._entrances.watch()

    def _stop_ops(self) -> None:
        self._entrances.unwatch()
        ops, self._ops = self._ops, None
        if ops is None:
            return
        try:
            ops.__exit__(None, None, None)
        except BaseException:  # a CUDA error of the cell, under which torch leaves itself on
            if profiler_is_running():
                _autograd_profiler._disable_profiler()
                _autograd_profiler._run_on_profiler_stop()
            raise

    def _give_way(self) -> None:
        self._stop_ops()
        self._note(_GAVE_WAY)

    def _note(self, sentence: str) -> None:
        if sentence not in self._notes:  # one window after the other says the same
            self._notes.append(sentence)


_ENTRANCES = ("_prepare_profiler", "_enable_profiler")
"""What every profiler of torch calls on its way in."""


class Entrances:
    """Calls ``give_way`` just before another profiler of torch starts: of two one stays empty."""

    def __init__(self, give_way: Callable[[], None]) -> None:
        self._give_way = give_way
        self._originals: dict[str, Callable[..., Any]] = {}

    def watch(self) -> None:
        """From now on, and until `unwatch`."""
        for name in _ENTRANCES:
            original = getattr(autograd_profiler, name, None)
            if original is not None:
                self._originals[name] = original
                setattr(autograd_profiler, name, self._watched(original))

    def unwatch(self) -> None:
        """Put the entrances back; may be called twice."""
        while self._originals:
            name, original = self._originals.popitem()
            setattr(autograd_profiler, name, original)

    def _watched(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def entrance(*args: Any, **kwargs: Any) -> Any:
            self._give_way()
            return original(*args, **kwargs)

        return entrance


def profiler_is_running() -> bool:
    """Whether any torch profiler runs, in this thread or for all threads."""
    everywhere = getattr(autograd_profiler, "_is_profiler_enabled", False)
    return bool(everywhere or torch._C._autograd._profiler_enabled())
