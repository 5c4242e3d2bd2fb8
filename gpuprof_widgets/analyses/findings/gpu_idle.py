"""Finding on GPU idle time: how busy each GPU was, what caused its gaps, and the longest one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from gpuprof_widgets.analyses.breakdown import (
    CLASSES,
    IDLE,
    QUEUED,
    breakdown,
    breakdown_segments,
)
from gpuprof_widgets.analyses.cold_start import LAUNCH, cold_spans, cold_start
from gpuprof_widgets.analyses.columns import format_ns, format_share
from gpuprof_widgets.analyses.findings.finding import (
    LATENCY_NS,
    Finding,
    code,
    function_name,
    gpu_name,
    kernel_code,
    of_gpu_work,
)
from gpuprof_widgets.analyses.findings.input import dataloader
from gpuprof_widgets.analyses.findings.stalls import main_stalls, of_stalls
from gpuprof_widgets.analyses.findings.uneven_calls import about_one_call
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
from gpuprof_widgets.trace.intervals import Intervals
from gpuprof_widgets.trace.model import Record, Trace
from gpuprof_widgets.trace.schema import NONE

Ints = npt.NDArray[np.int64]

HOST_REMEDIES = {
    PYTHON: "shorten the Python between the ops (logging, metrics, loops over tensors), or use "
    "larger batches",
    CPU_OPS: "use larger batches, or fewer ops (torch.compile, CUDA graphs, fused or foreach "
    "optimizers)",
    RUNTIME: "set up, allocate and load modules before the timed part, and keep memory cached",
    LAUNCHING: "launch less (torch.compile, CUDA graphs, fused or foreach optimizers), or use "
    "larger batches",
}
"""What to do about a CPU that launches too late, by what delayed it."""
REPLAYING = {
    CPU_OPS: "use larger batches, or fewer ops (torch.compile, more of the step in one graph, "
    "fused or foreach optimizers)",
    LAUNCHING: "capture more in one graph, or use larger batches",
}
"""The same where CUDA graphs are replayed already."""
COLD = "first calls"
"""Ops, launches or other calls in which the CPU loads libraries and kernels."""
WARM_UP = "warm up before measuring, as this cost is paid once per process"

HOST = "host"
HOST_WORDS = {
    PYTHON: "Python",
    CPU_OPS: "PyTorch's ops",
    RUNTIME: "calls of the runtime",
    LAUNCHING: "the launches themselves and their way to the GPU",
}
COLD_KINDS = (CPU_OPS, RUNTIME, LAUNCHING)
"""What first calls can be: ops, calls of the runtime or launches."""
SINGLE_CALL = {RUNTIME: "one call of the runtime, {name}", LAUNCHING: "one launch"}
"""How the finding names a single call that took most of the time."""

KEEP_FED = "avoid .item(), .cpu(), printing tensors and other synchronising calls"

MOSTLY = 0.5
"""Share of a time from which on it is mostly of one kind."""

BETWEEN = "between ops"
"""Cause where the CPU was late and the trace does not show why (see `host_states.ran_python`)."""
EDGES = ("start", "end")
"""Causes in which the GPU had no work yet, or no more."""
GPU_ALONE = "no ops recorded"
"""The same in a trace without any ops."""
LATE = "late"
"""Cause of idle time after launches returned, where most of it is longer than launch latency."""

REMEDIES = {
    INPUT: "it waited for the DataLoader: give it workers (num_workers) and pin_memory=True, and "
    "do costly transforms beforehand.",
    SYNCHRONISING: f"the CPU had just waited for it, so that nothing was queued: {KEEP_FED}.",
    QUEUED: "its next work had been launched already: that is the GPU's own delay from one kernel "
    "to the next. Use fewer, longer kernels.",
    LATE: "its next work had been launched already but did not begin, and the trace does not show "
    "why: work that is not in it, another program on the GPU, another GPU that it waited for, or "
    "CPU and GPU clocks that disagree.",
    "start": "its first work had not come yet: move set-up, data and warm-up out of the timed "
    "part.",
    "end": "its last work was done: end the recording there, or let the CPU do the rest while the "
    "GPU works.",
    BETWEEN: "it waited for the CPU, which was in no op and in no call that the trace shows: "
    "record Python frames (--stack, with_stack=True) to see where it was.",
    GPU_ALONE: "it waited for the CPU, whose ops are not in the trace: record them as well "
    "(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]).",
    "unknown": "the trace does not show why: it lacks the launches of the next work. Record the "
    "CPU as well, from before the first launch.",
}

WHEN = {
    PYTHON: ("while Python runs between ops", "while Python ran between ops"),
    CPU_OPS: ("while PyTorch's ops prepare launches", "while PyTorch's ops prepared launches"),
    RUNTIME: ("during calls of the runtime", "during calls of the runtime"),
    LAUNCHING: ("while its work is launched", "while its work was launched or on its way"),
    COLD: ("while first calls load kernels", "while first calls loaded kernels"),
    INPUT: ("waiting for the DataLoader", "waiting for the DataLoader"),
    SYNCHRONISING: ("after synchronising calls", "after synchronising calls"),
    QUEUED: ("between queued kernels", "between queued kernels"),
    LATE: ("while launched work waits", "while launched work waited"),
    "start": ("before its first work", "before its first work"),
    "end": ("after its last work", "after its last work"),
    BETWEEN: ("while no op runs", "while the CPU ran no op"),
    GPU_ALONE: ("waiting for the unrecorded CPU", "waiting for the CPU, which was not recorded"),
    "unknown": ("for unknown reasons", "for unknown reasons"),
}
"""When a GPU is idle, by the main cause: as its title says it (in five words), and as its text."""

DEVICE_IDLE_SHARE = 0.05


@of_gpu_work
def device_idle(record: Record, *, device_idle_share: float = DEVICE_IDLE_SHARE) -> list[Finding]:
    """Report how busy each GPU was; from 5 % idle time on also the cause and a gap.

    The cost is all idle time, without that of the DataLoader where `dataloader` has it; the main
    cause has its own time, and the gap shown is its longest.

    ``device_idle_share``: GPU idle time; below it the longest gap is not mentioned.
    """
    gaps = idle(record)
    rows = device_busy(record)
    if not rows["slices"].any():  # `cpu_ops` says that no GPU work ran in this range
        return []
    return [
        _finding(record, row, gaps[gaps["device"] == row.device], device_idle_share)
        for row in rows.itertuples(index=False)
    ]


def _finding(record: Record, busy: Any, gaps: pd.DataFrame, least_share: float) -> Finding:
    busy_share = format_share(busy.busy_share)
    gpu, text = gpu_name(busy.device), f"was busy {busy_share} of {format_ns(busy.span_ns)}"
    idle_share = 1 - busy.busy_share
    if not busy.slices or not len(gaps) or idle_share < least_share:
        works = "is busy nearly all the time" if busy.slices else "has nothing to do"
        return Finding(f"{gpu} {text}.", busy.idle_ns, idle_share, title=f"{gpu} {works}")
    main = _main_cause(record, gaps)
    if main in HOST_REMEDIES and (stalls := main_stalls(record, gaps)):
        return of_stalls(record, busy, f"{gpu} {text}", stalls)
    segments = _segments_of_cause(record, gaps, main)
    caused_ns = intervals.length(segments)
    often = "mostly" if caused_ns >= MOSTLY * busy.idle_ns else "partly"
    title, when = WHEN[main]
    is_told_elsewhere = main == INPUT and bool(dataloader(record))
    caused = f"{format_ns(caused_ns)}, {format_share(caused_ns / busy.span_ns)} of the time"
    caused += ", which has a finding of its own" if is_told_elsewhere else ""
    text += f" and idle for {format_ns(busy.idle_ns)}, {often} {when} ({caused})"
    gap, words = _gap_of_cause(gaps, segments)
    text += f"; {words}, {format_ns(gap['dur_ns'])}, lies {_where(record, gap)}"
    longest = gaps.iloc[0]
    if longest["start_ns"] != gap["start_ns"] and min(longest["before"], longest["after"]) >= 0:
        text += (
            f"; the longest of all, {format_ns(longest['dur_ns'])}, lies {_where(record, longest)}"
        )
    cost = busy.idle_ns - (caused_ns if is_told_elsewhere else 0)
    return Finding(
        f"{gpu} {text}.",
        int(cost),
        idle_share * cost / busy.idle_ns,
        int(gap["start_ns"]),
        int(gap["end_ns"]),
        tuple(int(gap[key]) for key in ("before", "after", "cpu") if gap[key] >= 0),
        _remedy(record, gaps, main, caused_ns / busy.idle_ns),
        title=f"{gpu} is idle, {often} {title}",
    )


def _gap_of_cause(gaps: pd.DataFrame, segments: Intervals) -> tuple[pd.Series, str]:
    """Return the longest gap that is mostly of the cause with these segments, and what it is.

    Where there is none, the gap with most of them. The gaps are sorted by length.
    """
    caused = intervals.overlap((gaps["start_ns"].to_numpy(), gaps["end_ns"].to_numpy()), segments)
    # A gap of next to nothing is no example, even if all of it is of that cause.
    mostly = (caused >= MOSTLY * gaps["dur_ns"].to_numpy()) & (caused >= MOSTLY * caused.max())
    if not mostly.any():
        return gaps.iloc[int(caused.argmax())], "the gap with most of that"
    return gaps.iloc[int(mostly.argmax())], "the longest gap" + " of that kind" * (not mostly[0])


def _where(record: Record, gap: Any) -> str:
    return f"{_place(gap)}{_cpu_meanwhile(record, gap)}"


def _place(gap: Any) -> str:
    before, after = (kernel_code(gap[f"{side}_name"]) for side in ("before", "after"))
    if gap["before"] < 0:
        return f"before its first work, {after}"
    if gap["after"] < 0:
        return f"after its last work, {before}"
    return f"between {before} and {after}"


def _cpu_meanwhile(record: Record, gap: Any) -> str:
    """Say what the launching thread did during the gap; its Python frame where it was in no op."""
    mostly = "mostly " if gap["cpu_share"] < 0.9 else ""
    if gap["cause"] == "dataloader" or DATALOADER.fullmatch(gap["cpu_name"]):
        return f", while the CPU {mostly}waited for the DataLoader"
    slices = record.trace.slices
    annotated = gap["cpu"] >= 0 and slices["category"].iloc[gap["cpu"]] == "user_annotation"
    if gap["cpu_name"] and not annotated:
        ran = code(gap["cpu_name"])
        if gap["cpu_name"].isdigit():  # a line whose source is redacted
            ran = f"line {gap['cpu_name']}"
        return f", while the CPU {mostly}ran {ran}"
    frame = python_meanwhile(
        record.trace, int(gap["thread"]), int(gap["start_ns"]), int(gap["end_ns"])
    )
    if frame:
        return f", while the CPU ran Python, mostly in {code(function_name(frame))}"
    if not record.trace.index.is_op.any():
        return ""
    inside = f", inside {code(gap['cpu_name'])}" if annotated else ""
    return f", while the CPU was {mostly}in no PyTorch op{inside}"


def _remedy(record: Record, gaps: pd.DataFrame, main: str, share: float) -> str:
    """Name the cause of most of the idle time, and the remedy; all delays of the CPU are one.

    ``share``: of the main cause in the idle time.
    """
    device = int(gaps["device"].iloc[0])
    cause = _cause(record, device)
    if cause.name == HOST:
        why, share_of_cause = "it waited for the CPU to launch work, mostly in ", cause.share
        why += _host_cause(record, device, cause, gaps)
    else:
        why, share_of_cause = REMEDIES[main], share
    return f"In {format_share(share_of_cause)} of the GPU's idle time {why}"


def _main_cause(record: Record, gaps: pd.DataFrame) -> str:
    """Return the cause of most of the idle time: a key of `WHEN`."""
    device = int(gaps["device"].iloc[0])
    cause = _cause(record, device)
    if cause.name == HOST:
        return cause.delayed_by
    if cause.name == OTHER:
        return _unexplained_cause(record, device, gaps)
    return LATE if cause.name == QUEUED and _is_late(record, device) else cause.name


def _segments_of_cause(record: Record, gaps: pd.DataFrame, cause: str) -> Intervals:
    """Return the idle time of a cause (a key of `WHEN`): the breakdown's where it has a class.

    The usual latency of a launch counts for launching, not as queued work. Time before the first
    and after the last work is that, whatever the CPU did.
    """
    device = int(gaps["device"].iloc[0])
    if cause == COLD:
        parts = [segments_of(record, device, kind) for kind in COLD_KINDS]
        return intervals.intersection(_joined(parts), cold_spans(record))
    if cause == LAUNCHING:
        return _joined([segments_of(record, device, LAUNCHING), _on_the_way(record, device)])
    if cause in (QUEUED, LATE):
        return intervals.difference(
            segments_of(record, device, QUEUED), _on_the_way(record, device)
        )
    if cause in CLASSES:
        return segments_of(record, device, cause)
    if cause in EDGES:
        gaps = gaps[gaps["cause"] == cause]
        return gaps["start_ns"].to_numpy(np.int64), gaps["end_ns"].to_numpy(np.int64)
    (start, end), causes = _unexplained(record, device, gaps)
    return start[causes == cause], end[causes == cause]


def _joined(parts: list[Intervals]) -> Intervals:
    return intervals.union(*(np.concatenate(edges) for edges in zip(*parts, strict=True)))


@dataclass(frozen=True)
class _Cause:
    """The main cause of a GPU's idle time and its share; what delayed the CPU most, how long."""

    name: str
    share: float
    delayed_by: str
    delayed_ns: int


def _cause(record: Record, device: int) -> _Cause:
    """Return the main cause; a launch to an idle GPU takes until its work begins there."""
    table = breakdown(record)
    idle = table[(table["device"] == device) & (table["state"] == IDLE)]
    times = {
        str(name): int(time) for name, time in zip(idle["class"], idle["time_ns"], strict=True)
    }
    on_the_way = intervals.length(_on_the_way(record, device))
    times[QUEUED] -= on_the_way
    times[LAUNCHING] += on_the_way
    late = {name: times.pop(name) for name in HOST_REMEDIES}
    cold = {name: cold_ns(record, device, name) for name in COLD_KINDS}
    late = {name: late[name] - cold.get(name, 0) for name in late} | {COLD: sum(cold.values())}
    causes = {HOST: sum(late.values()), **times}
    cause = max(causes, key=lambda name: causes[name])
    delayed_by = max(late, key=lambda name: late[name])
    return _Cause(cause, causes[cause] / max(sum(causes.values()), 1), delayed_by, late[delayed_by])


def _on_the_way(record: Record, device: int) -> Intervals:
    """Return the usual latency of launches that were made in a gap."""
    gaps = idle(record)[["device", "start_ns", "launch_ns"]]
    gaps = gaps[gaps["device"] == device].sort_values("start_ns")
    start, end = segments_of(record, device, QUEUED)
    at = np.searchsorted(gaps["start_ns"].to_numpy(), start, side="right") - 1
    in_gap = (gaps["launch_ns"] >= gaps["start_ns"]).to_numpy(bool)[at]
    usual = in_gap & (end - start < LATENCY_NS)
    return start[usual], end[usual]


def _host_cause(record: Record, device: int, cause: _Cause, gaps: pd.DataFrame) -> str:
    """Say what delayed the CPU most, and what to do about it."""
    delayed_by = cause.delayed_by
    for kind in SINGLE_CALL if delayed_by == COLD else {delayed_by} & SINGLE_CALL.keys():
        longest = longest_call(record, *segments_of(record, device, kind))
        if longest.is_most and 2 * longest.dur_ns > cause.delayed_ns:
            name = code(str(record.trace.slices["name"].iloc[longest.row]))
            call, time = SINGLE_CALL[kind].format(name=name), format_ns(longest.dur_ns)
            return f"{call}, of {time}: {about_one_call(record.trace, longest.row)}"
    if delayed_by == COLD:
        return f"first calls, which load libraries and kernels{first_launches(record)}: {WARM_UP}."
    remedies = HOST_REMEDIES | (REPLAYING if is_mostly_replayed(record.trace) else {})
    return HOST_WORDS[delayed_by] + (
        _how_it_began(gaps, remedies[delayed_by]) or f": {remedies[delayed_by]}."
    )


def first_launches(record: Record) -> str:
    """Say how many launches were the first of their kernel, and what a later one takes."""
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
    """Return how long a GPU waited for first calls of this kind (`cold_start`), in ns."""
    segments = segments_of(record, device, kind)
    return int(intervals.overlap(segments, cold_spans(record)).sum())


@dataclass(frozen=True)
class LongestCall:
    """The longest stretch in which a GPU waited for calls.

    ``row``: the call that took most of it, -1 if none did; ``is_most``: whether such a call exists
    and this stretch is more than half of all waiting.
    """

    start_ns: int
    end_ns: int
    row: int
    is_most: bool

    @property
    def dur_ns(self) -> int:
        return self.end_ns - self.start_ns


def longest_call(record: Record, start: Ints, end: Ints) -> LongestCall:
    """Return the longest of the stretches from start to end in which a GPU waited."""
    if not len(start):
        return LongestCall(0, 0, NONE, False)
    longest = int((end - start).argmax())
    t0, t1 = int(start[longest]), int(end[longest])
    row = _call_during(record.trace, t0, t1)
    is_most = row >= 0 and 2 * (t1 - t0) > int((end - start).sum())
    return LongestCall(t0, t1, row, bool(is_most))


def _call_during(trace: Trace, t0: int, t1: int) -> int:
    """Return the runtime call that took more than half of this time, -1 if none did.

    In traces without runtime calls (TensorFlow's), ops launch.
    """
    launches = np.isin(np.arange(len(trace)), trace.slices["launch"].to_numpy())
    calls = trace.index.is_launch | launches
    rows = np.flatnonzero(calls & trace.index.on_tracks("cpu"))
    ts, dur = (trace.slices[name].to_numpy(np.int64)[rows] for name in ("ts", "dur"))
    shared = np.minimum(ts + dur, t1) - np.maximum(ts, t0)
    return int(rows[shared.argmax()]) if len(rows) and 2 * shared.max() > t1 - t0 else -1


def blames_first_calls(record: Record, device: int, least_share: float) -> bool:
    """Whether the finding on this GPU's idle time blames first calls."""
    cause = _cause(record, device)
    by_first_calls = cause.name == HOST and cause.delayed_by == COLD
    return by_first_calls and _idle_share(record, device) >= least_share


def blames_one_launch(record: Record, device: int, least_share: float) -> bool:
    """Whether the finding on this GPU's idle time blames a single launch."""
    cause = _cause(record, device)
    by_launches = cause.name == HOST and cause.delayed_by == LAUNCHING
    longest = longest_call(record, *segments_of(record, device, LAUNCHING))
    is_most = longest.is_most and 2 * longest.dur_ns > cause.delayed_ns
    return by_launches and is_most and _idle_share(record, device) >= least_share


def _idle_share(record: Record, device: int) -> float:
    table = device_busy(record)
    return 1 - float(table["busy_share"][table["device"] == device].max())


def _how_it_began(gaps: pd.DataFrame, remedy: str) -> str:
    """Say that gaps mostly began with a wait for the GPU, which emptied its queue; else ""."""
    times = gaps.groupby("cause")["dur_ns"].sum()
    if int(times.get("synchronise", 0)) < MOSTLY * max(int(times.sum()), 1):
        return ""
    return (
        ". Most of it began when the CPU had just waited for the GPU, so that nothing was queued: "
        f"{KEEP_FED}. Then {remedy}."
    )


def _unexplained_cause(record: Record, device: int, gaps: pd.DataFrame) -> str:
    """Return which of the causes that the trace does not explain took most time."""
    (start, end), causes = _unexplained(record, device, gaps)
    return str(pd.Series(end - start).groupby(causes).sum().idxmax())


def _unexplained(
    record: Record, device: int, gaps: pd.DataFrame
) -> tuple[Intervals, npt.NDArray[np.object_]]:
    """Return the segments that the trace does not explain, and the cause of each one's gap."""
    gaps = gaps.sort_values("start_ns")
    start, end = segments_of(record, device, OTHER)
    at = np.searchsorted(gaps["start_ns"].to_numpy(), start, side="right") - 1
    between = BETWEEN if record.trace.index.is_op.any() else GPU_ALONE
    cause = gaps["cause"].where(gaps["cause"].isin([*EDGES, "unknown"]), between)
    return (start, end), cause.to_numpy(object)[at]


def _is_late(record: Record, device: int) -> bool:
    """Whether launched work mostly began later than launch latency explains."""
    start, end = segments_of(record, device, QUEUED)
    late = end - start >= LATENCY_NS
    return 2 * int((end - start)[late].sum()) > int((end - start).sum())


def segments_of(record: Record, device: int, kind: str) -> tuple[Ints, Ints]:
    """Return starts and ends of a GPU's time in this class of the breakdown."""
    table = breakdown_segments(record)
    table = table[(table["device"] == device) & (table["class"] == kind)]
    return table["start_ns"].to_numpy(np.int64), table["end_ns"].to_numpy(np.int64)
