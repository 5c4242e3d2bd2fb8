"""What to do about one long call, by what it is and when it was made."""

from __future__ import annotations

import re

import numpy as np

from gpuprof_widgets.analyses.allocator import ALLOCATING, FREEING
from gpuprof_widgets.analyses.iterations import UNRECORDED, iterations
from gpuprof_widgets.analyses.quantity import format_ns
from gpuprof_widgets.trace.model import Record, Trace

SETTING_UP = "the first calls set the GPU up and load its kernels. Warm up before what is timed."
LOADING = "the first launch of a kernel loads it. Warm up before what is timed."
COPYING = re.compile(r"(cuda|hip|cu)Memcpy\w*")
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
    COPYING: "nothing is launched before it returns: copy from "
    "pinned memory with non_blocking=True, and less often.",
    re.compile(r"(cuda|hip|cu)\w*Launch\w*"): "other launches take microseconds: look on the "
    "timeline what else ran then, on this thread and on others.",
}  # fmt: skip
OTHERWISE = "make it before what is timed, or less often, if you can."

MOSTLY_ONE = "Most of that is one call, of {longest}; {others}: {why}"
SETTING_A_LIBRARY_UP = (
    "the first one may set a library or its threads up. Warm up before what is timed (--steps with "
    "--warmup), or look whether its tensors are larger."
)
LONGER_THAN_OTHERS = (
    "look whether its tensors are larger, and on the timeline what else ran then, on this thread "
    "and on others."
)
MOSTLY_FEW = (
    "Most of that is few of the calls, of up to {longest}; the median one takes {other}: look "
    "whether their tensors are larger, and on the timeline what else ran then."
)
THREADS_WAIT = " More threads than free cores also wait for one another (torch.set_num_threads)."
MOST = 0.5
"""Of the time of all calls."""
TIMES_OTHERS = 5
"""From which on a call is no longer just the longest of some alike."""


def uneven_calls(
    record: Record, row: int, *, longest_ns: float, all_ns: float, other_ns: float, calls: int
) -> str:
    """What to say of an op's calls on the CPU if one or few of them took most; else "".

    ``row`` is that of the longest, ``other_ns`` what one of the others takes.
    """
    if longest_ns < TIMES_OTHERS * other_ns or calls < 2:
        return ""
    if longest_ns < MOST * all_ns:
        few = all_ns >= TIMES_OTHERS * other_ns * calls
        named = {"longest": format_ns(longest_ns), "other": format_ns(other_ns)}
        said = MOSTLY_FEW.format(**named)
        said += "" if record.metadata.get("torch_threads") else THREADS_WAIT
        return said if few else ""
    others = f"the others take {format_ns(other_ns)} each"
    if calls == 2:
        others = f"the other takes {format_ns(other_ns)}"
    first = not _is_warmed_up(record) and _is_first(record.trace, row)
    why = SETTING_A_LIBRARY_UP if first else LONGER_THAN_OTHERS
    return MOSTLY_ONE.format(longest=format_ns(longest_ns), others=others, why=why)


def _is_warmed_up(record: Record) -> bool:
    return bool(iterations(record)["kind"].isin(UNRECORDED).any())


def _is_first(trace: Trace, row: int) -> bool:
    slices = trace.slices
    same = slices["name"] == slices["name"].iloc[row]
    return bool(slices["ts"].iloc[row] == slices.loc[same, "ts"].min())


def about_one_call(trace: Trace, row: int) -> str:
    """The half of a sentence on the call in this row of the trace, and what to do about it.

    Only what comes before all GPU work is put down to setting the GPU up.
    """
    gpu, slices = trace.index.gpu, trace.slices
    ts = slices["ts"].to_numpy()
    if not len(gpu) or ts[row] < ts[gpu].min():
        return SETTING_UP
    if _launches_first(trace, row):
        return LOADING
    name = str(slices["name"].iloc[row])
    return next((said for kind, said in BY_NAME.items() if kind.fullmatch(name)), OTHERWISE)


def _launches_first(trace: Trace, row: int) -> bool:
    """Whether a call launched a kernel that was not launched before."""
    slices, gpu = trace.slices, trace.index.gpu
    launch = slices["launch"].to_numpy()
    mine = gpu[launch[gpu] == row]
    kernels = mine[trace.index.in_category("kernel")[mine]]
    if not len(kernels):
        return False
    names = slices["name"].to_numpy(object)
    same = gpu[np.isin(names[gpu], names[kernels].tolist())]
    ts = slices["ts"].to_numpy()
    return bool(ts[same].min() == ts[kernels].min())
