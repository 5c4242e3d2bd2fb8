"""How busy each GPU was, and the longest stretch in which it had nothing to do."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from gpuprof_widgets.analyses.breakdown import IDLE, QUEUED, breakdown, breakdown_segments
from gpuprof_widgets.analyses.cold_start import LAUNCH, cold_spans, cold_start
from gpuprof_widgets.analyses.columns import format_ns, format_share
from gpuprof_widgets.analyses.findings.finding import (
    Finding,
    about_one_call,
    code,
    function_name,
    kernel_code,
    of_gpu_work,
)
from gpuprof_widgets.analyses.gpu_work import device_busy
from gpuprof_widgets.analyses.host_states import (
    CPU_OPS,
    INPUT,
    LAUNCHING,
    OTHER,
    PYTHON,
    RUNTIME,
    SYNCHRONISING,
)
from gpuprof_widgets.analyses.idle import idle, python_meanwhile
from gpuprof_widgets.analyses.owners import is_mostly_replayed
from gpuprof_widgets.analyses.waits import DATALOADER
from gpuprof_widgets.trace import intervals
from gpuprof_widgets.trace.model import Record, Trace
from gpuprof_widgets.trace.schema import NONE

Ints = npt.NDArray[np.int64]

HOST_REMEDIES = {
    PYTHON: "make the Python between the ops shorter (logging, metrics, loops over tensors), or "
    "batches larger",
    CPU_OPS: "make batches larger, or ops fewer (torch.compile, CUDA graphs, fused or foreach "
    "optimizers)",
    RUNTIME: "set up, allocate and load modules before what is timed, and keep memory cached",
    LAUNCHING: "make launches fewer (torch.compile, CUDA graphs, fused or foreach optimizers), or "
    "batches larger",
}
"""What to do about a CPU that launches too late, by what kept it."""
REPLAYING = {
    CPU_OPS: "make batches larger, or ops fewer (torch.compile, more of the step in one graph, "
    "fused or foreach optimizers)",
    LAUNCHING: "capture more in one graph, or make batches larger",
}
"""The same where graphs are replayed already."""
COLD = "first calls"
"""What keeps the CPU that loads libraries and kernels, in ops, launches or other calls."""
WARM_UP = "warm up before what is timed, as it is paid once per process"

KEEP_FED = "fewer .item(), .cpu(), prints of tensors and other synchronising calls keep it fed"

MOSTLY = 0.5
"""Of a GPU's idle time, in gaps that began as the CPU waited for it: then both causes are named."""

BETWEEN = "between ops"
"""Cause where the CPU came late and nobody knows what it did (see `host_states.ran_python`)."""
GPU_ALONE = "no ops recorded"
"""The same in a trace that has no ops at all."""
LATE = "late"
"""Cause of idle time behind launches that had returned, where most of it is longer than latency."""
LATENCY_NS = 1_000_000
"""No launch takes that long to reach an idle GPU: microseconds are usual (`BACK_TO_BACK_NS`)."""

REMEDIES = {
    INPUT: "it waited for the DataLoader: give that workers (num_workers), pin_memory=True, and do "
    "costly transforms beforehand.",
    SYNCHRONISING: f"the CPU had just waited for it, so that nothing was queued: {KEEP_FED}.",
    QUEUED: "its next work had been launched already: that is the GPU's own time from one kernel "
    "to the next. Fewer and longer kernels have less of it.",
    LATE: "its next work had been launched already and did not begin, and the trace does not tell "
    "why: work that is not in it, another program on the GPU, another GPU that it waited for, or "
    "clocks of CPU and GPU that disagree.",
    "start": "its first work had not come yet: set-up, data and warm-up belong outside of what is "
    "timed.",
    "end": "its last work was done: end the recording there, or let the CPU do the rest while the "
    "GPU works.",
    BETWEEN: "it waited for the CPU, which was in no op and in no call that the trace holds: "
    "recorded Python frames (--stack, with_stack=True) tell where it was.",
    GPU_ALONE: "it waited for the CPU, of which the trace holds no ops: record these as well "
    "(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]).",
    "unknown": "the trace does not tell why: it lacks the launches of what came next. Record the "
    "CPU's side as well, from before the first of them.",
}

DEVICE_IDLE_SHARE = 0.05


@of_gpu_work
def device_idle(record: Record, *, device_idle_share: float = DEVICE_IDLE_SHARE) -> list[Finding]:
    """One finding per GPU that the run used; with the longest gap from 5 % idle time on.

    ``device_idle_share``: GPU idle: below it the longest gap is not mentioned.
    """
    gaps = idle(record)
    rows = device_busy(record)
    if not rows["slices"].any():  # a range of which `cpu_ops` says that no GPU work ran in it
        return []
    return [
        _finding(record, row, gaps[gaps["device"] == row.device], device_idle_share)
        for row in rows.itertuples(index=False)
    ]


def _finding(record: Record, busy: Any, gaps: pd.DataFrame, least_share: float) -> Finding:
    device = f"GPU {busy.device}" if busy.device >= 0 else "The GPU"
    text = f"{device} was busy {format_share(busy.busy_share)} of {format_ns(busy.span_ns)}"
    idle_share = 1 - busy.busy_share
    if not busy.slices or not len(gaps) or idle_share < least_share:
        return Finding(f"{text}.", busy.idle_ns, idle_share)
    gap = gaps.iloc[0]
    text += f"; the longest gap, {format_ns(gap['dur_ns'])}, lies {_place(gap)}{_cpu(record, gap)}."
    return Finding(
        text,
        int(busy.idle_ns),
        idle_share,
        int(gap["start_ns"]),
        int(gap["end_ns"]),
        tuple(int(gap[key]) for key in ("before", "after", "cpu") if gap[key] >= 0),
        _remedy(record, gaps),
    )


def _place(gap: Any) -> str:
    before, after = (kernel_code(gap[f"{side}_name"]) for side in ("before", "after"))
    if gap["before"] < 0:
        return f"before its first work, {after}"
    if gap["after"] < 0:
        return f"after its last work, {before}"
    return f"between {before} and {after}"


def _cpu(record: Record, gap: Any) -> str:
    """What the launching thread did meanwhile; its Python frame where it was in no op."""
    mostly = "mostly " if gap["cpu_share"] < 0.9 else ""
    if gap["cause"] == "dataloader" or DATALOADER.fullmatch(gap["cpu_name"]):
        return f", while the CPU {mostly}waited for the DataLoader"
    slices = record.trace.slices
    annotated = gap["cpu"] >= 0 and slices["category"].iloc[gap["cpu"]] == "user_annotation"
    if gap["cpu_name"] and not annotated:
        return f", while the CPU {mostly}ran {code(gap['cpu_name'])}"
    frame = python_meanwhile(
        record.trace, int(gap["thread"]), int(gap["start_ns"]), int(gap["end_ns"])
    )
    if frame:
        return f", while the CPU ran Python, mostly in {code(function_name(frame))}"
    if not record.trace.index.is_op.any():
        return ""
    inside = f", inside {code(gap['cpu_name'])}" if annotated else ""
    return f", while the CPU was {mostly}in no PyTorch op{inside}"


def _remedy(record: Record, gaps: pd.DataFrame) -> str:
    """What to do about the cause of most of the idle time; all that keeps the CPU is one cause."""
    device = int(gaps["device"].iloc[0])
    cause = _cause(record, device)
    if cause.name == HOST:
        why = "it waited for the CPU to launch work, mostly in "
        why += _in_what_kept_it(record, device, cause, gaps)
    elif cause.name == OTHER:
        why = REMEDIES[_of_the_trace(record, device, gaps)]
    else:
        late = cause.name == QUEUED and _is_late(record, device)
        why = REMEDIES[LATE if late else cause.name]
    return f"In {format_share(cause.share)} of the GPU's idle time {why}"


@dataclass(frozen=True)
class _Cause:
    """What most of a GPU's idle time is due to, its share; what kept the CPU most, how long."""

    name: str
    share: float
    kept: str
    kept_ns: int


def _cause(record: Record, device: int) -> _Cause:
    """Where a launch found nothing to do on the GPU, its way there is part of launching it."""
    table = breakdown(record)
    idle = table[(table["device"] == device) & (table["state"] == IDLE)]
    times = {
        str(name): int(time) for name, time in zip(idle["class"], idle["time_ns"], strict=True)
    }
    on_the_way = _on_the_way_ns(record, device)
    times[QUEUED] -= on_the_way
    times[LAUNCHING] += on_the_way
    late = {name: times.pop(name) for name in HOST_REMEDIES}
    cold = {name: cold_ns(record, device, name) for name in COLD_KINDS}
    late = {name: late[name] - cold.get(name, 0) for name in late} | {COLD: sum(cold.values())}
    causes = {HOST: sum(late.values()), **times}
    cause = max(causes, key=lambda name: causes[name])
    kept = max(late, key=lambda name: late[name])
    return _Cause(cause, causes[cause] / max(sum(causes.values()), 1), kept, late[kept])


def _on_the_way_ns(record: Record, device: int) -> int:
    """How long launches that were made in a gap took to reach the GPU, as far as that is usual."""
    gaps = idle(record)[["device", "start_ns", "launch_ns"]]
    gaps = gaps[gaps["device"] == device].sort_values("start_ns")
    start, end = segments_of(record, device, QUEUED)
    at = np.searchsorted(gaps["start_ns"].to_numpy(), start, side="right") - 1
    in_gap = (gaps["launch_ns"] >= gaps["start_ns"]).to_numpy(bool)[at]
    return int((end - start)[in_gap & (end - start < LATENCY_NS)].sum())


def _in_what_kept_it(record: Record, device: int, cause: _Cause, gaps: pd.DataFrame) -> str:
    kept = cause.kept
    for kind in ONE if kept == COLD else {kept} & ONE.keys():
        one = longest_call(record, *segments_of(record, device, kind))
        if one.is_most and 2 * (one.end_ns - one.start_ns) > cause.kept_ns:
            name = code(str(record.trace.slices["name"].iloc[one.row]))
            which, time = ONE[kind].format(name=name), format_ns(one.end_ns - one.start_ns)
            return f"{which}, of {time}: {about_one_call(record.trace, one.row)}"
    if kept == COLD:
        return f"first calls, which load libraries and kernels{of_launches(record)}: {WARM_UP}."
    remedies = HOST_REMEDIES | (REPLAYING if is_mostly_replayed(record.trace) else {})
    return IN[kept] + (_how_it_began(gaps, remedies[kept]) or f": {remedies[kept]}.")


def of_launches(record: Record) -> str:
    """How many launches were first ones of their kernels, and what a later one takes."""
    cold = cold_start(record)
    cold = cold[cold["kind"] == LAUNCH]
    if not len(cold):
        return ""
    usual = int(cold["later_ns"].iloc[0])
    later = f", where a later one takes {format_ns(usual)}" if usual else ""
    longest = format_ns(int(cold["dur_ns"].max()))
    if len(cold) == 1:
        return f" (one was the first launch of a kernel, of {longest}{later})"
    return f" ({len(cold):,} were the first launch of a kernel, of up to {longest}{later})"


def cold_ns(record: Record, device: int, kind: str) -> int:
    """For how long a GPU waited for calls of this kind that were first calls (`cold_start`)."""
    segments = segments_of(record, device, kind)
    return int(intervals.overlap(segments, cold_spans(record)).sum())


@dataclass(frozen=True)
class LongestCall:
    """The longest of the stretches in which a GPU waited for calls.

    ``row``: the call that took most of it, -1 if none did; ``is_most``: whether there is one, and
    the stretch is most of all of them.
    """

    start_ns: int
    end_ns: int
    row: int
    is_most: bool


def longest_call(record: Record, start: Ints, end: Ints) -> LongestCall:
    """Of a GPU that waited from each start to its end: for launches, or other calls."""
    if not len(start):
        return LongestCall(0, 0, NONE, False)
    longest = int((end - start).argmax())
    t0, t1 = int(start[longest]), int(end[longest])
    row = _call_during(record.trace, t0, t1)
    is_most = row >= 0 and 2 * (t1 - t0) > int((end - start).sum())
    return LongestCall(t0, t1, row, bool(is_most))


def _call_during(trace: Trace, t0: int, t1: int) -> int:
    """The call of the runtime that took more than half of this time, -1 if none did.

    In traces without these (TensorFlow's) what launches is an op.
    """
    launches = np.isin(np.arange(len(trace)), trace.slices["launch"].to_numpy())
    calls = trace.index.is_launch | launches
    rows = np.flatnonzero(calls & trace.index.on_tracks("cpu"))
    ts, dur = (trace.slices[name].to_numpy(np.int64)[rows] for name in ("ts", "dur"))
    shared = np.minimum(ts + dur, t1) - np.maximum(ts, t0)
    return int(rows[shared.argmax()]) if len(rows) and 2 * shared.max() > t1 - t0 else -1


def tells_of_first_calls(record: Record, device: int, least_share: float) -> bool:
    """Whether the finding on this GPU's idle time puts it down to first calls."""
    table = device_busy(record)
    idle_share = 1 - float(table["busy_share"][table["device"] == device].max())
    cause = _cause(record, device)
    return cause.name == HOST and cause.kept == COLD and idle_share >= least_share


def tells_of_one_launch(record: Record, device: int, least_share: float) -> bool:
    """Whether the finding on this GPU's idle time puts it down to a single launch."""
    table = device_busy(record)
    idle_share = 1 - float(table["busy_share"][table["device"] == device].max())
    cause = _cause(record, device)
    told = cause.name == HOST and cause.kept == LAUNCHING
    one = longest_call(record, *segments_of(record, device, LAUNCHING))
    is_most = one.is_most and 2 * (one.end_ns - one.start_ns) > cause.kept_ns
    return told and is_most and idle_share >= least_share


def _how_it_began(gaps: pd.DataFrame, remedy: str) -> str:
    """What emptied the queue before the CPU was kept: mostly a wait for the GPU; else ""."""
    times = gaps.groupby("cause")["dur_ns"].sum()
    share = int(times.get("synchronise", 0)) / max(int(times.sum()), 1)
    if share < MOSTLY:
        return ""
    return (
        f". {format_share(share)} of the idle time is gaps that began while the CPU waited for the "
        f"GPU, so that nothing was queued: {KEEP_FED}. Then {remedy}."
    )


def _of_the_trace(record: Record, device: int, gaps: pd.DataFrame) -> str:
    """Which of the causes of which the trace knows no more took most time."""
    gaps = gaps.sort_values("start_ns")
    start, end = segments_of(record, device, OTHER)
    at = np.searchsorted(gaps["start_ns"].to_numpy(), start, side="right") - 1
    between = BETWEEN if record.trace.index.is_op.any() else GPU_ALONE
    cause = gaps["cause"].where(gaps["cause"].isin(["unknown", "start", "end"]), between)
    return str(pd.Series(end - start).groupby(cause.to_numpy()[at]).sum().idxmax())


def _is_late(record: Record, device: int) -> bool:
    """Whether most of the time in which launched work did not begin is longer than latency."""
    start, end = segments_of(record, device, QUEUED)
    late = end - start >= LATENCY_NS
    return 2 * int((end - start)[late].sum()) > int((end - start).sum())


def segments_of(record: Record, device: int, kind: str) -> tuple[Ints, Ints]:
    """When the stretches of a GPU's time that are of this class began and ended."""
    table = breakdown_segments(record)
    table = table[(table["device"] == device) & (table["class"] == kind)]
    return table["start_ns"].to_numpy(np.int64), table["end_ns"].to_numpy(np.int64)


HOST = "host"
IN = {
    PYTHON: "Python",
    CPU_OPS: "PyTorch's ops",
    RUNTIME: "calls of the runtime",
    LAUNCHING: "the launches themselves and their way to the GPU",
}
COLD_KINDS = (CPU_OPS, RUNTIME, LAUNCHING)
"""In which of these a CPU may be that makes first calls."""
ONE = {RUNTIME: "one call of the runtime, {name}", LAUNCHING: "one launch"}
"""How the only one that matters is named, of what can be one call."""
