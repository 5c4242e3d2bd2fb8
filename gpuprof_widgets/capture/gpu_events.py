"""Whether torch recorded the GPU at all: it says nothing where CUPTI is missing or taken."""

from __future__ import annotations

import torch
from torch.profiler import ProfilerActivity

from gpuprof_widgets.capture.nvtx import emits_nvtx
from gpuprof_widgets.capture.part import Context
from gpuprof_widgets.trace.model import Trace
from gpuprof_widgets.trace.schema import GPU_CATEGORIES

_LAUNCHES = ("cuda_runtime", "cuda_driver")
_ALLOCATIONS = "allocation.all.allocated"


def gpu_events(context: Context) -> GpuEvents | None:
    """The part, where torch sees a GPU and records it."""
    if emits_nvtx(context.options) or not torch.cuda.is_available():
        return None
    return GpuEvents()


class GpuEvents:
    """Compares what the allocator of the GPUs counted with what the trace holds of them.

    Kineto would warn of CUPTI on stderr, but among lines that nobody wants in a cell.
    """

    loses = "whether GPU work is missing is not known"

    def __init__(self) -> None:
        self._before = 0
        self._allocated = 0
        self._running = False
        self._recorded = False

    def start(self) -> None:
        self._before, self._running = _allocations(), True

    def stop(self) -> None:
        if self._running:
            self._running = False
            self._allocated += _allocations() - self._before

    def refine(self, trace: Trace) -> Trace:
        kinds = set(trace.slices["category"].unique())
        self._recorded |= bool(kinds & {*GPU_CATEGORIES, *_LAUNCHES})
        return trace

    def notes(self) -> list[str]:
        """That the GPU was used but is not in the record, and what may be the reason."""
        if self._recorded or not self._allocated:
            return []
        return [
            f"no GPU work is in this record, although the run put {self._allocated:,} tensors on "
            f"the GPU: {_why()}"
        ]

    def metadata(self) -> dict[str, int]:
        return {}


def _allocations() -> int:
    """How often memory of a GPU was taken so far; 0 while CUDA is not in use."""
    if not torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        return 0
    stats = (torch.cuda.memory_stats(device) for device in range(torch.cuda.device_count()))
    return sum(int(one.get(_ALLOCATIONS, 0)) for one in stats)


def _why() -> str:
    supported = torch.profiler.supported_activities()  # type: ignore[no-untyped-call]
    if ProfilerActivity.CUDA not in supported:
        return "this build of torch has no CUPTI; install one with CUDA from pytorch.org"
    return (
        "CUPTI could not be used. End other tools that hold it (Nsight Systems, Nsight Compute, "
        "DCGM, another profiler), restart the process and record again; KINETO_LOG_LEVEL=1, set "
        "before the first profile, shows torch's own words"
    )
