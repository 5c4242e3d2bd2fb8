"""Calls that take longer than others of their name, and why: first ones, larger tensors, stalls.

In a stall, whatever op runs is not to blame: something held up its thread, and with it the
launches.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from gpuprof_widgets.analyses.allocator import ALLOCATING, FREEING
from gpuprof_widgets.analyses.cold_start import cold_spans
from gpuprof_widgets.analyses.columns import format_count, format_ns, format_share
from gpuprof_widgets.analyses.findings.finding import Finding, code, gpu_name, spread
from gpuprof_widgets.analyses.regions import UNRECORDED, iterations
from gpuprof_widgets.analyses.remembered import remembered
from gpuprof_widgets.trace import intervals
from gpuprof_widgets.trace.arrays import Mask, Rows
from gpuprof_widgets.trace.index import take
from gpuprof_widgets.trace.model import Record, Trace
from gpuprof_widgets.trace.schema import LAUNCH_CATEGORIES

SETTING_UP = "the first calls set up the GPU and load its kernels. Warm up before measuring."
LOADING = "the first launch of a kernel loads it. Warm up before measuring."
LAUNCH = re.compile(r"(cuda|hip|cu)\w*Launch\w*")
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
    LAUNCH: "other launches take microseconds. Look at the "
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
    longest, other = format_ns(longest_ns), format_ns(other_ns)
    if longest_ns < MOST * all_ns:
        if all_ns < TIMES_OTHERS * other_ns * calls:
            return ""
        why = INTERRUPTED.format(times=interrupted) if interrupted else FEW_LONGER
        why += "" if record.metadata.get("torch_threads") else THREADS_WAIT
        return MOSTLY_FEW.format(longest=longest, other=other, why=why)
    others = f"the other takes {other}" if calls == 2 else f"the others take {other} each"
    index, warmed_up = record.trace.index, iterations(record)["kind"].isin(UNRECORDED).any()
    if not warmed_up and index.ts[row] == index.ts[index.name == index.name[row]].min():
        tail = f"{FIRST_CALL}{ALSO_INTERRUPTED.format(times=interrupted)}"
        why = f". {tail if interrupted else SETTING_A_LIBRARY_UP}"
    else:
        why = INTERRUPTED.format(times=interrupted) if interrupted else f". {LONGER_THAN_OTHERS}"
    return MOSTLY_ONE.format(longest=longest, others=others, why=why)


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


def about_one_call(trace: Trace, row: int) -> str:
    """Return half a sentence on a slow call: why it is slow and what to do.

    Only a call before all GPU work is put down to setting up the GPU.
    """
    index, gpu = trace.index, trace.index.gpu
    if not len(gpu) or index.ts[row] < index.ts[gpu].min():
        return SETTING_UP
    launched = gpu[index.column("launch")[gpu] == row]
    kernels = launched[index.in_category("kernel")[launched]]
    same = gpu[np.isin(index.name[gpu], index.name[kernels])]
    if len(kernels) and index.ts[same].min() == index.ts[kernels].min():
        return LOADING
    (name,) = index.names_of(np.array([row]))
    fitting = (advice for pattern, advice in BY_NAME.items() if pattern.fullmatch(name))
    return next(fitting, OTHERWISE)


TIMES_USUAL = 20
"""Times the median of its kind: an op this much longer stalled."""
LEAST_CALLS = 5
"""Ops of a kind from which on their median tells what is usual."""
LEAST_NS = 1_000_000
"""Length of a gap from which on a stall is looked for."""
MOSTLY = 0.5
"""Share of a gap in which the stalled op ran, of all idle time that is mostly stalls, and of an op
that is a first call."""
STALLED = (
    "The op is not to blame: something held up the thread that launches. Possible reasons: other "
    "programs, ranks or threads on its CPUs, garbage collection, first calls, or the recording "
    "itself. Give each rank separate CPUs, warm up for longer, and record again."
)


@dataclass(frozen=True)
class StalledOps:
    """The ops that stalled: their rows, and for each the median duration of its kind in ns."""

    row: Rows
    usual_ns: npt.NDArray[np.float64]


@remembered
def stalled_ops(record: Record) -> StalledOps:
    """Return the ops that took 20 times the median of their kind.

    Of one kind are ops of one name that all launch GPU work, or all none: on tensors of the CPU an
    op takes as long as it computes. The first of a kind, and what first calls take time of, is no
    stall.
    """
    trace, index = record.trace, record.trace.index
    row = np.flatnonzero(index.is_op)
    kinds = pd.DataFrame(
        {"name": index.name[row], "launches": _launches(trace)[row], "dur": index.dur[row]}
    )
    by_kind = kinds.groupby(["name", "launches"])["dur"]
    usual, calls = by_kind.transform("median"), by_kind.transform("size")
    long = (calls >= LEAST_CALLS) & (usual > 0) & (kinds["dur"] >= TIMES_USUAL * usual)
    long &= by_kind.cumcount() > 0
    cold = intervals.overlap((index.ts[row], index.end[row]), cold_spans(record))
    chosen = long.to_numpy(bool) & (cold < MOSTLY * index.dur[row])
    return StalledOps(row[chosen], usual.to_numpy(float)[chosen])


def _launches(trace: Trace) -> Mask:
    """Which slices launched GPU work, themselves or in what they called."""
    launches = np.zeros(len(trace), bool)
    parent, op = trace.index.parent, trace.index.column("op")[trace.index.gpu]
    rows = intervals.distinct(op[op >= 0])
    while len(rows):
        launches[rows] = True
        rows = intervals.distinct(parent[rows])
        rows = rows[rows >= 0]
        rows = rows[~launches[rows]]
    return launches


@dataclass(frozen=True)
class Stalls:
    """The gaps of a GPU (rows of `idle`, the longest first) and the op that stalled in each."""

    gaps: pd.DataFrame
    ops: StalledOps


def main_stalls(record: Record, gaps: pd.DataFrame) -> Stalls | None:
    """Return the stalls that caused most of a GPU's idle time; None where they did not.

    ``gaps``: those of the GPU, the longest first. Runtime calls that are no launches take long for
    reasons of their own (allocations, copies, set-up).
    """
    whole, index = int(gaps["dur_ns"].sum()), record.trace.index
    cpu = gaps["cpu"].to_numpy(np.int64)
    is_call = take(index.in_category(*LAUNCH_CATEGORIES), cpu, False)
    launches = take(index.matching(LAUNCH), cpu, False)
    long = gaps[(gaps["dur_ns"] >= LEAST_NS).to_numpy(bool) & (~is_call | launches)]
    if int(long["dur_ns"].sum()) <= MOSTLY * whole:
        return None
    stalled = stalled_ops(record)
    at = np.array([_stalled_in(record.trace, stalled, gap) for _, gap in long.iterrows()], int)
    found = long[at >= 0]
    if int(found["dur_ns"].sum()) <= MOSTLY * whole:
        return None
    at = at[at >= 0]
    return Stalls(found, StalledOps(stalled.row[at], stalled.usual_ns[at]))


def _stalled_in(trace: Trace, stalled: StalledOps, gap: pd.Series) -> int:
    """Return which of the stalled ops ran most of a gap on its thread, the innermost; -1: none."""
    index, row = trace.index, stalled.row
    start = np.maximum(index.ts[row], gap["start_ns"])
    during = np.minimum(index.end[row], gap["end_ns"]) - start
    on_thread = index.column("track")[row] == gap["thread"]
    found = np.flatnonzero(on_thread & (during >= MOSTLY * gap["dur_ns"]))
    return int(found[index.dur[row[found]].argmin()]) if len(found) else -1


def of_stalls(record: Record, busy: Any, before: str, stalls: Stalls) -> Finding:
    """Return the finding on a GPU (a row of `device_busy`) that waits for stalls."""
    index, longest, took = record.trace.index, stalls.gaps.iloc[0], int(stalls.gaps["dur_ns"].sum())
    (name,) = index.names_of(stalls.ops.row[:1])
    text = (
        f"{before} It was idle for {format_ns(busy.idle_ns)}, mostly in "
        f"{format_count(len(stalls.gaps), 'gap')} ({format_ns(took)}, "
        f"{format_share(took / busy.span_ns)} of the time) in which an op on the CPU stalled. In "
        f"the longest gap ({format_ns(longest['dur_ns'])}), {code(name)} took "
        f"{format_ns(index.dur[stalls.ops.row[0]])}; its median call takes "
        f"{format_ns(stalls.ops.usual_ns[0])}."
    )
    place = longest["start_ns"], longest["end_ns"], spread(np.unique(stalls.ops.row))
    title = f"{gpu_name(busy.device)} is idle, mostly while the CPU stalls"
    return Finding(text, busy.idle_ns, 1 - busy.busy_share, *place, STALLED, title=title)
