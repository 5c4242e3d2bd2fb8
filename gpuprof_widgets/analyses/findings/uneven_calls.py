"""Why some calls of an op take longer than others: first ones, larger tensors, other programs."""

from __future__ import annotations

import re

import numpy as np
import numpy.typing as npt

from gpuprof_widgets.analyses.allocator import ALLOCATING, FREEING
from gpuprof_widgets.analyses.columns import format_ns
from gpuprof_widgets.analyses.regions import UNRECORDED, iterations
from gpuprof_widgets.trace.model import Record, Trace

Rows = npt.NDArray[np.intp]

SETTING_UP = "the first calls set up the GPU and load its kernels. Warm up before measuring."
LOADING = "the first launch of a kernel loads it. Warm up before measuring."
COPYING = re.compile(r"(cuda|hip|cu)Memcpy\w*")
BY_NAME = {
    re.compile(r"cu(Module|Library)(Load|GetFunction|GetKernel)\w*"): "it loads kernels. Warm up "
    "before measuring.",
    re.compile(r"cudaHostAlloc|cudaMallocHost|hipHost(Malloc|Alloc)|cuMem(HostAlloc|AllocHost)\w*|"
    r"(cuda|hip)HostRegister|cuMemHostRegister\w*"): "it pins CPU memory, which is slow. Pin a "
    "buffer once and reuse it.",
    ALLOCATING: "the allocator had no cached block of this size. Warm up before measuring, and "
    "keep sizes the same from step to step.",
    FREEING: "it returns memory to the driver. Keep memory cached (do not call "
    "torch.cuda.empty_cache()), and use less memory if it runs short.",
    COPYING: "the CPU launches nothing until it returns. Copy from pinned memory with "
    "non_blocking=True, and less often.",
    re.compile(r"(cuda|hip|cu)\w*Launch\w*"): "other launches take microseconds. Look at the "
    "timeline for what else ran then, on this thread and on others.",
}  # fmt: skip
OTHERWISE = "move it before the timed part, or call it less often, if you can."

MOSTLY_ONE = "One call took most of that time ({longest}); {others}{why}"
FIRST_CALL = (
    "The first call may set up a library or its threads: warm up before measuring (--steps with "
    "--warmup)"
)
SETTING_A_LIBRARY_UP = f"{FIRST_CALL}, or check whether its tensors are larger."
LONGER_THAN_OTHERS = (
    "Check whether its tensors are larger, and look at the timeline for what else ran then, on "
    "this thread and on others."
)
MOSTLY_FEW = (
    "A few calls (of up to {longest}) took most of that time; the median call takes {other}{why}"
)
FEW_LONGER = (
    ". Check whether their tensors are larger, and look at the timeline for what else ran then."
)
INTERRUPTED = (
    ". The system interrupted its threads {times:,} times for other programs, ranks or workers. "
    "That may be the reason: measure again while nothing else runs."
)
"""In place of the question about sizes where other programs use the CPUs too."""
ALSO_INTERRUPTED = (
    ". Measure while nothing else runs: the system interrupted its threads {times:,} times for "
    "other programs, ranks or workers."
)
THREADS_WAIT = (
    " Threads also wait for one another if there are more of them than free cores "
    "(torch.set_num_threads)."
)
MOST = 0.5
"""Share of the time of all calls that counts as most of it."""
TIMES_OTHERS = 5
"""Times the others' duration: a call this much longer stands out."""

PREEMPTIONS_PER_S = 50
"""Preemptions per second of CPU time from which on CPUs are contested: a thread that shares a CPU
is preempted 100 to 300 times (Linux gives it 3 to 10 ms at a time), one alone only a few times."""
LEAST_PREEMPTIONS = 20
"""Preemptions from which on they count at all."""


def uneven_calls(
    record: Record, row: int, *, longest_ns: float, all_ns: float, other_ns: float, calls: int
) -> str:
    """Return the remedy for an op on the CPU of which one or a few calls took most time; else "".

    ``row``: the longest call; ``other_ns``: the duration of one of the others. Where other programs
    interrupted this one often, that is the likely cause, not the sizes of tensors.
    """
    if longest_ns < TIMES_OTHERS * other_ns or calls < 2:
        return ""
    interrupted = interrupted_by_others(record)
    if longest_ns < MOST * all_ns:
        if all_ns < TIMES_OTHERS * other_ns * calls:
            return ""
        why = INTERRUPTED.format(times=interrupted) if interrupted else FEW_LONGER
        why += "" if record.metadata.get("torch_threads") else THREADS_WAIT
        named = {"longest": format_ns(longest_ns), "other": format_ns(other_ns)}
        return MOSTLY_FEW.format(**named, why=why)
    others = f"the others take {format_ns(other_ns)} each"
    if calls == 2:
        others = f"the other takes {format_ns(other_ns)}"
    if not _is_warmed_up(record) and _is_first(record.trace, row):
        tail = f"{FIRST_CALL}{ALSO_INTERRUPTED.format(times=interrupted)}"
        why = f". {tail if interrupted else SETTING_A_LIBRARY_UP}"
    else:
        why = INTERRUPTED.format(times=interrupted) if interrupted else f". {LONGER_THAN_OTHERS}"
    return MOSTLY_ONE.format(longest=format_ns(longest_ns), others=others, why=why)


def interruptions(record: Record) -> int:
    """Return how often the system preempted threads of the process, where that is often; else 0."""
    use = record.metadata.get("cpu_use") or {}
    preemptions, cpu_ns = int(use.get("preemptions", 0)), int(use.get("cpu_ns", 0))
    often = preemptions * 1_000_000_000 >= PREEMPTIONS_PER_S * cpu_ns
    return preemptions if often and preemptions >= LEAST_PREEMPTIONS else 0


def interrupted_by_others(record: Record) -> int:
    """Return the same; 0 where threads of its own, more than there are CPUs, are the cause."""
    threads, cpus = (int(record.metadata.get(key) or 0) for key in ("torch_threads", "cpus"))
    return 0 if cpus and threads > cpus else interruptions(record)


def _is_warmed_up(record: Record) -> bool:
    return bool(iterations(record)["kind"].isin(UNRECORDED).any())


def _is_first(trace: Trace, row: int) -> bool:
    slices = trace.slices
    same = slices["name"] == slices["name"].iloc[row]
    return bool(slices["ts"].iloc[row] == slices.loc[same, "ts"].min())


def about_one_call(trace: Trace, row: int) -> str:
    """Return half a sentence on a slow call: why it is slow and what to do.

    Only a call before all GPU work is put down to setting up the GPU.
    """
    gpu, slices = trace.index.gpu, trace.slices
    ts = slices["ts"].to_numpy()
    if not len(gpu) or ts[row] < ts[gpu].min():
        return SETTING_UP
    if _launches_first(trace, row):
        return LOADING
    name = str(slices["name"].iloc[row])
    return next(
        (advice for pattern, advice in BY_NAME.items() if pattern.fullmatch(name)), OTHERWISE
    )


def _launches_first(trace: Trace, row: int) -> bool:
    """Whether a call launched a kernel for the first time."""
    slices, gpu = trace.slices, trace.index.gpu
    launch = slices["launch"].to_numpy()
    launched = gpu[launch[gpu] == row]
    kernels = launched[trace.index.in_category("kernel")[launched]]
    if not len(kernels):
        return False
    name = trace.index.name
    same = gpu[np.isin(name[gpu], name[kernels])]
    ts = slices["ts"].to_numpy()
    return bool(ts[same].min() == ts[kernels].min())
