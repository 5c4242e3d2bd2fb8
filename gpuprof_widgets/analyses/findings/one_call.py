"""What to do about one long call of the runtime, by what it is and when it was made."""

from __future__ import annotations

import re

import numpy as np

from gpuprof_widgets.analyses.allocator import ALLOCATING, FREEING
from gpuprof_widgets.analyses.op_rows import gpu_rows, in_category
from gpuprof_widgets.trace.model import Trace

SETTING_UP = "the first calls set the GPU up and load its kernels. Warm up before what is timed."
LOADING = "the first launch of a kernel loads it. Warm up before what is timed."
BY_NAME = {
    re.compile(r"cu(Module|Library)(Load|GetFunction|GetKernel)\w*"): "it loads kernels. Warm up "
    "before what is timed.",
    re.compile(r"cudaHostAlloc|cudaMallocHost|hipHost(Malloc|Alloc)|cuMem(HostAlloc|AllocHost)\w*|"
    r"(cuda|hip)HostRegister|cuMemHostRegister\w*"): "it pins memory of the CPU, which takes long: "
    "pin a buffer once and use it again.",
    ALLOCATING: "the allocator had no cached block of this size. Warm up before what is timed, and "
    "keep sizes alike from step to step.",
    FREEING: "memory is given back: keep it cached (no torch.cuda.empty_cache()), and use less of "
    "it where it runs short.",
    re.compile(r"(cuda|hip|cu)Memcpy\w*"): "nothing is launched before it returns: copy from "
    "pinned memory with non_blocking=True, and less often.",
    re.compile(r"(cuda|hip|cu)\w*Launch\w*"): "other launches take microseconds: look on the "
    "timeline what else ran then, on this thread and on others.",
}  # fmt: skip
OTHERWISE = "make it before what is timed, or less often, if you can."


def about_one_call(trace: Trace, row: int) -> str:
    """The half of a sentence on the call in this row of the trace, and what to do about it.

    Only what comes before all GPU work is put down to setting the GPU up.
    """
    gpu, slices = gpu_rows(trace), trace.slices
    ts = slices["ts"].to_numpy()
    if not len(gpu) or ts[row] < ts[gpu].min():
        return SETTING_UP
    if _launches_first(trace, row):
        return LOADING
    name = str(slices["name"].iloc[row])
    return next((said for kind, said in BY_NAME.items() if kind.fullmatch(name)), OTHERWISE)


def _launches_first(trace: Trace, row: int) -> bool:
    """Whether a call launched a kernel that was not launched before."""
    slices, gpu = trace.slices, gpu_rows(trace)
    launch = slices["launch"].to_numpy()
    mine = gpu[launch[gpu] == row]
    kernels = mine[in_category(trace, "kernel")[mine]]
    if not len(kernels):
        return False
    names = slices["name"].to_numpy(object)
    same = gpu[np.isin(names[gpu], names[kernels].tolist())]
    ts = slices["ts"].to_numpy()
    return bool(ts[same].min() == ts[kernels].min())
