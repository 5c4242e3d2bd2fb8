"""Finding on GPU idle time: how busy each GPU was, what caused its gaps, and the longest one."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd

from gpuprof_widgets.analyses.breakdown import QUEUED
from gpuprof_widgets.analyses.cold_start import LAUNCH, cold_start
from gpuprof_widgets.analyses.columns import format_ns, format_share
from gpuprof_widgets.analyses.findings.finding import (
    Finding,
    code,
    function_name,
    gpu_name,
    kernel_code,
)
from gpuprof_widgets.analyses.findings.idle_cause import (
    BETWEEN,
    COLD,
    GPU_ALONE,
    HOST,
    LATE,
    RECORDING,
    IdleCause,
    began_with_waits,
    idle_cause,
    longest_call,
    main_cause,
    segments_of,
    segments_of_cause,
)
from gpuprof_widgets.analyses.findings.input import dataloader
from gpuprof_widgets.analyses.findings.uneven_calls import about_one_call, main_stalls, of_stalls
from gpuprof_widgets.analyses.gpu_work import device_busy
from gpuprof_widgets.analyses.host_states import (
    CPU_OPS,
    INPUT,
    LAUNCHING,
    PYTHON,
    RUNTIME,
    SYNCHRONISING,
)
from gpuprof_widgets.analyses.idle import device_gaps, python_meanwhile
from gpuprof_widgets.analyses.owners import is_mostly_replayed
from gpuprof_widgets.analyses.waits import DATALOADER
from gpuprof_widgets.trace import intervals
from gpuprof_widgets.trace.intervals import Intervals
from gpuprof_widgets.trace.model import Record

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
WARM_UP = "Warm up before measuring: this cost is paid once per process"

HOST_WORDS = {
    PYTHON: "Python",
    CPU_OPS: "PyTorch's ops",
    RUNTIME: "calls of the runtime",
    LAUNCHING: "the launches themselves and their way to the GPU",
}
SINGLE_CALL = {
    RUNTIME: "one call of the runtime, {name} ({time})",
    LAUNCHING: "one launch ({time})",
}
"""How the finding names a single call that took most of the time."""

KEEP_FED = "avoid .item(), .cpu(), printing tensors and other synchronising calls"

MOSTLY = 0.5
"""Share of a time from which on it is mostly of one kind."""


REMEDIES = {
    INPUT: "waited for the DataLoader. Give the DataLoader workers (num_workers) and "
    "pin_memory=True, and do costly transforms beforehand.",
    SYNCHRONISING: f"had nothing queued, because the CPU had just waited for it: {KEEP_FED}.",
    QUEUED: "had its next work queued already: this is the GPU's own delay from one kernel to the "
    "next. Use fewer, longer kernels.",
    LATE: "had its next work queued, but did not begin it. The trace does not show why. Possible "
    "reasons: work that is not in the trace, another program on this GPU, a wait for another GPU, "
    "or clocks of CPU and GPU that disagree.",
    "start": "had not received its first work yet: move set-up, data and warm-up out of the timed "
    "part.",
    "end": "had finished its last work: end the recording there, or let the CPU do the rest while "
    "the GPU works.",
    BETWEEN: "waited for the CPU, which was in no op and in no call that the trace shows. Record "
    "Python frames (--stack, with_stack=True) to see where it was.",
    GPU_ALONE: "waited for the CPU, whose ops are not in the trace. Record them as well "
    "(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]).",
    "unknown": "waited for work whose launches are not in the trace, which does not show why. "
    "Record the CPU as well, from before the first launch.",
}
"""What the GPU did in its idle time by the main cause, and what to do about it."""

WHEN = {
    PYTHON: ("while Python runs between ops", "while Python ran between ops"),
    CPU_OPS: ("while PyTorch's ops prepare launches", "while PyTorch's ops prepared launches"),
    RUNTIME: ("during calls of the runtime", "during calls of the runtime"),
    LAUNCHING: ("while its work is launched", "while its work was launched or on its way"),
    COLD: ("while first calls load kernels", "while first calls loaded kernels"),
    RECORDING: ("during the recording's own work", "while the recording asked for memory"),
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


def device_idle(record: Record, *, device_idle_share: float = DEVICE_IDLE_SHARE) -> list[Finding]:
    """Report how busy each GPU was; from 5 % idle time on also the cause and a gap.

    Cost: all idle time of the GPU, without the time in which it waited for the DataLoader if
    `dataloader` reports that. The main cause has its own time in the sentence, and the gap shown is
    its longest.
    """
    gaps, rows = device_gaps(record), device_busy(record)
    if not rows["slices"].any():  # `cpu_ops` says that no GPU work ran in this range
        return []
    return [
        _finding(record, row, gaps[gaps["device"] == row.device], device_idle_share)
        for row in rows.itertuples(index=False)
    ]


def _finding(record: Record, busy: Any, gaps: pd.DataFrame, least_share: float) -> Finding:
    busy_share = format_share(busy.busy_share)
    gpu, text = gpu_name(busy.device), f"was busy {busy_share} of {format_ns(busy.span_ns)}."
    idle_share = 1 - busy.busy_share
    if not busy.slices or not len(gaps) or idle_share < least_share:
        works = "is busy nearly all the time" if busy.slices else "has nothing to do"
        return Finding(f"{gpu} {text}", busy.idle_ns, idle_share, title=f"{gpu} {works}")
    main = main_cause(record, gaps)
    if main in HOST_REMEDIES and (stalls := main_stalls(record, gaps)):
        return of_stalls(record, busy, f"{gpu} {text}", stalls)
    segments = segments_of_cause(record, gaps, main)
    caused_ns = intervals.length(segments)
    often = "mostly" if caused_ns >= MOSTLY * busy.idle_ns else "partly"
    title, when = WHEN[main]
    is_told_elsewhere = main == INPUT and bool(dataloader(record))
    caused = f"{format_ns(caused_ns)}, {format_share(caused_ns / busy.span_ns)} of the time"
    caused += "; the finding on the DataLoader counts that" if is_told_elsewhere else ""
    text += f" It was idle for {format_ns(busy.idle_ns)}, {often} {when} ({caused})."
    gap, words = _gap_of_cause(gaps, segments)
    text += f" {words} ({format_ns(gap['dur_ns'])}) lies {_where(record, gap)}."
    longest = gaps.iloc[0]
    if longest["start_ns"] != gap["start_ns"] and min(longest["before"], longest["after"]) >= 0:
        text += (
            f" The longest gap of all ({format_ns(longest['dur_ns'])}) lies "
            f"{_where(record, longest)}."
        )
    cost = busy.idle_ns - (caused_ns if is_told_elsewhere else 0)
    if is_told_elsewhere and cost:
        often, title = "also", "besides waiting for the DataLoader"
    rows = tuple(gap[key] for key in ("before", "after", "cpu") if gap[key] >= 0)
    remedy = _remedy(record, gaps, main, caused_ns / busy.idle_ns)
    place, share = (gap["start_ns"], gap["end_ns"], rows), idle_share * cost / busy.idle_ns
    title = f"{gpu} is idle, {often} {title}"
    return Finding(f"{gpu} {text}", cost, share, *place, remedy, title=title)


def _gap_of_cause(gaps: pd.DataFrame, segments: Intervals) -> tuple[pd.Series, str]:
    """Return the longest gap that is mostly of the cause with these segments, and what it is.

    Where there is none, the gap with most of them. The gaps are sorted by length.
    """
    caused = intervals.overlap((gaps["start_ns"].to_numpy(), gaps["end_ns"].to_numpy()), segments)
    # A gap of next to nothing is no example, even if all of it is of that cause.
    mostly = (caused >= MOSTLY * gaps["dur_ns"].to_numpy()) & (caused >= MOSTLY * caused.max())
    if not mostly.any():
        return gaps.iloc[int(caused.argmax())], "The gap with most of that time"
    return gaps.iloc[int(mostly.argmax())], "The longest gap" + " of that kind" * (not mostly[0])


def _where(record: Record, gap: Any) -> str:
    sides = record.trace.index.names_of(np.array([gap["before"], gap["after"]]))
    before, after = map(kernel_code, sides)
    place = f"between {before} and {after}"
    if gap["before"] < 0:
        place = f"before the GPU's first work, {after}"
    elif gap["after"] < 0:
        place = f"after the GPU's last work, {before}"
    return place + _cpu_meanwhile(record, gap)


def _cpu_meanwhile(record: Record, gap: Any) -> str:
    """Say what the launching thread did during the gap; its Python frame where it was in no op."""
    mostly = "mostly " if gap["cpu_share"] < 0.9 else ""
    (name,) = record.trace.index.names_of(np.array([gap["cpu"]]))
    if gap["cause"] == "dataloader" or DATALOADER.fullmatch(name):
        return f". The CPU {mostly}waited for the DataLoader meanwhile"
    categories = record.trace.slices["category"]
    annotated = gap["cpu"] >= 0 and categories.iloc[gap["cpu"]] == "user_annotation"
    if name and not annotated:
        ran = f"line {name}" if name.isdigit() else code(name)  # a line whose source is redacted
        return f". The CPU {mostly}ran {ran} meanwhile"
    frame = python_meanwhile(
        record.trace, int(gap["thread"]), int(gap["start_ns"]), int(gap["end_ns"])
    )
    if frame:
        return f". The CPU ran Python meanwhile, mostly in {code(function_name(frame))}"
    if not record.trace.index.is_op.any():
        return ""
    inside = f", inside {code(name)}" if annotated else ""
    return f". The CPU was {mostly}in no PyTorch op meanwhile{inside}"


def _remedy(record: Record, gaps: pd.DataFrame, main: str, share: float) -> str:
    """Name the cause of most of the idle time, and the remedy; all delays of the CPU are one.

    ``share``: of the main cause in the idle time.
    """
    device = int(gaps["device"].iloc[0])
    cause = idle_cause(record, device)
    if cause.name == HOST:
        why, share = "waited for the CPU to launch work. ", cause.share
        why += f"Most of that time went into {_host_cause(record, device, cause, gaps)}"
    else:
        why = REMEDIES[main]
    return f"In {format_share(share)} of its idle time, the GPU {why}"


def _host_cause(record: Record, device: int, cause: IdleCause, gaps: pd.DataFrame) -> str:
    """Say what delayed the CPU most, and what to do about it."""
    delayed_by = cause.delayed_by
    for kind in SINGLE_CALL if delayed_by == COLD else {delayed_by} & SINGLE_CALL.keys():
        longest = longest_call(record, *segments_of(record, device, kind))
        if longest.is_most and 2 * longest.dur_ns > cause.delayed_ns:
            name = code(str(record.trace.slices["name"].iloc[longest.row]))
            call = SINGLE_CALL[kind].format(name=name, time=format_ns(longest.dur_ns))
            return f"{call}: {about_one_call(record.trace, longest.row)}"
    if delayed_by == RECORDING:
        return (
            "the recording itself, which asks for memory in some launches. Record more iterations, "
            "so that it weighs less."
        )
    if delayed_by == COLD:
        return f"first calls, which load libraries and kernels{first_launches(record)}. {WARM_UP}."
    remedy = (HOST_REMEDIES | (REPLAYING if is_mostly_replayed(record.trace) else {}))[delayed_by]
    if not began_with_waits(gaps):
        return f"{HOST_WORDS[delayed_by]}: {remedy}."
    return (
        f"{HOST_WORDS[delayed_by]}. Most of the idle time began when the CPU had just waited for "
        f"the GPU, so nothing was queued: {KEEP_FED}. Then {remedy}."
    )


def first_launches(record: Record) -> str:
    """Say how many launches were the first of their kernel, and what a later one takes."""
    cold = cold_start(record)
    cold = cold[cold["kind"] == LAUNCH]
    if not len(cold):
        return ""
    usual = int(cold["later_ns"].iloc[0])
    later = f"; a later one takes {format_ns(usual)}" if usual else ""
    longest = format_ns(int(cold["dur_ns"].max()))
    if len(cold) == 1:
        return f" (the first launch of a kernel took {longest}{later})"
    return f" ({len(cold):,} first launches of a kernel took up to {longest}{later})"
