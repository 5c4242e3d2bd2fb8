"""Findings on GPU work that the trace lacks, or whose launch it lacks."""

from __future__ import annotations

import re

import numpy as np
import numpy.typing as npt
import pandas as pd

from gpuprof_widgets.analyses.columns import format_count, format_ns, format_share
from gpuprof_widgets.analyses.findings.finding import Finding, code, share_of, spread
from gpuprof_widgets.analyses.host_states import LAUNCHES
from gpuprof_widgets.analyses.reasons import NSYS, NVPROF, recorder_of
from gpuprof_widgets.trace.model import Record, Trace
from gpuprof_widgets.trace.schema import WINDOW

NAMED = 3  # calls
OF_HIP = re.compile(r"hip\w+")
PROFILER_BUSY = (
    "another profiler held {library} (only one can at a time), or the profiler had no permission "
    "({permission})"
)
CUPTI = PROFILER_BUSY.format(
    library="CUPTI",
    permission="CUPTI_ERROR_INSUFFICIENT_PRIVILEGES, NVIDIA's ERR_NVGPUCTRPERM; in a container: "
    "--cap-add=SYS_ADMIN",
)
ROCTRACER = PROFILER_BUSY.format(
    library="roctracer",
    permission="in a container: --device=/dev/kfd --device=/dev/dri",
)
NO_KERNELS_REMEDY = "Either ProfilerActivity.CUDA was not among the activities, or {held}."
UNDER_NSYS = "Record with nsys profile --trace=cuda. If you did, {held}."


def no_kernels(record: Record) -> list[Finding]:
    """Fires if the trace has calls that launch GPU work, but no GPU work.

    Not for a range in which the GPU did nothing, of a trace that has GPU work elsewhere.

    Cost: none. This finding comes before all others.
    """
    trace = record.trace
    rows = unanswered_launches(trace)
    if not len(rows):
        return []
    names = pd.Series(trace.slices["name"].to_numpy(object)[rows]).value_counts()
    counted = ", ".join(f"{code(str(name))} {count:,}" for name, count in names.head(NAMED).items())
    counts = "1 launch" if len(rows) == 1 else f"{len(rows):,} launches"
    text = (
        f"The trace has {counts} of GPU work ({counted}), but not the work itself. It does not "
        "show how long kernels and copies took. The time of an op is only the time of the CPU, "
        "which launches them."
    )
    held = ROCTRACER if all(OF_HIP.fullmatch(str(name)) for name in names.index) else CUPTI
    by_nsight = recorder_of(record) in (NSYS, NVPROF)
    remedy = (UNDER_NSYS if by_nsight else NO_KERNELS_REMEDY).format(held=held)
    shown = spread(rows)
    return [
        Finding(text, rows=shown, remedy=remedy, title="GPU work was launched, but not recorded")
    ]


def unanswered_launches(trace: Trace) -> npt.NDArray[np.intp]:
    """Return the calls that launched GPU work in a trace without any GPU work; else none."""
    if trace.tracks["kind"].isin(["gpu", "copy"]).any():
        return np.empty(0, np.intp)
    calls = trace.index.is_launch
    counted = trace.slices["count"].to_numpy() > 0
    return np.flatnonzero(calls & trace.index.matching(LAUNCHES) & counted)


LAUNCHED_BEFORE = (
    "This work was launched before the recording began: it ran in the first {first}, before all "
    "work whose launch is known. Select the time after it by dragging. "
)
SYNCHRONISE = "Call torch.cuda.synchronize() right before recording."
UNLINKED_REMEDY = (
    "This work may have been launched before the recording began: call torch.cuda.synchronize() "
    "right before recording. Or the recorder dropped the launches: record fewer steps."
)


def unlinked(record: Record, *, unlinked_share: float = 0.02) -> list[Finding]:
    """Fires if 2 % of the GPU's events or of their time lack a launch.

    Cost: none. If a tenth of the GPU's time belongs to no op, this finding comes before all others.
    """
    slices = record.trace.slices
    gpu = record.trace.index.gpu
    gpu = gpu[slices["count"].to_numpy()[gpu] > 0]
    loose = gpu[slices["launch"].to_numpy()[gpu] < 0]
    dur = slices["dur"].to_numpy()
    shares = (len(loose) / max(len(gpu), 1), share_of(dur[loose].sum(), dur[gpu].sum()))
    if not len(loose) or max(shares) < unlinked_share:
        return []
    without_op = int(np.count_nonzero(slices["op"].to_numpy()[loose] < 0))
    have = "has" if len(loose) == 1 else "have"
    text = (
        f"{format_count(len(loose), 'GPU event')} of {len(gpu):,} "
        f"({format_share(shares[0])}, and {format_share(shares[1])} of the GPU's time) {have} no "
        f"launch in the trace. Their time is counted{_owned(len(loose), without_op)}."
    )
    title, rows = "Some GPU work lacks its launch in the trace", tuple(int(row) for row in loose)
    before = _launched_before(record, loose, gpu)
    if (missing := time_without_op(record.trace)) >= MUCH_WITHOUT_OP:
        title = f"The op is unknown for {format_share(missing)} of GPU time"
        if not before:
            text += " Ops, modules and functions may cause more GPU time than their rows show."
    return [Finding(text, rows=rows, remedy=before or UNLINKED_REMEDY, title=title)]


def _launched_before(record: Record, loose: npt.NDArray[np.intp], gpu: npt.NDArray[np.intp]) -> str:
    """Return what to do about work that was launched before the recording; "" if it may not be.

    It is that if it ran before all other work, and all launches by then have work in the trace.
    """
    trace, index = record.trace, record.trace.index
    others, end = np.setdiff1d(gpu, loose), int(index.end[loose].max())
    if WINDOW in record.metadata or not len(others) or end > int(index.ts[others].min()):
        return ""
    launches = np.flatnonzero(index.is_launch & index.matching(LAUNCHES) & (index.ts < end))
    if not np.isin(launches, index.column("launch")[others]).all():
        return ""
    return LAUNCHED_BEFORE.format(first=format_ns(end - trace.start_ns)) + SYNCHRONISE


MUCH_WITHOUT_OP = 0.1
"""Share of a GPU's time that belongs to no op from which on no op's share can be relied on."""


def time_without_op(trace: Trace) -> float:
    """Return the share of the GPU's time whose op is not known; 0 where no ops were recorded."""
    index, gpu = trace.index, trace.index.gpu
    if not index.is_op.any():
        return 0.0
    without_op = gpu[(index.column("launch")[gpu] < 0) & (index.column("op")[gpu] < 0)]
    return share_of(int(index.dur[without_op].sum()), int(index.dur[gpu].sum()))


def _owned(events: int, without_op: int) -> str:
    """Say whether the ops are known without launches, by their external ids."""
    if not without_op:
        return ", and its op is known" if events == 1 else ", and their ops are known"
    if without_op == events:
        return ", but belongs to no op"
    return f", but no op is known for {without_op:,} of them"
