"""The GPU stands still while the CPU is in the very calls that launch its work."""

from __future__ import annotations

from typing import Any

import numpy as np

from gpuprof_widgets.analyses.breakdown import breakdown
from gpuprof_widgets.analyses.cold_start import cold_spans, cold_start
from gpuprof_widgets.analyses.device_busy import devices_at_work
from gpuprof_widgets.analyses.findings.device_idle import (
    DEVICE_IDLE_SHARE,
    LongestCall,
    cold_ns,
    longest_call,
    segments_of,
    tells_of_one_launch,
)
from gpuprof_widgets.analyses.findings.finding import Finding, of_gpu_work
from gpuprof_widgets.analyses.findings.one_call import about_one_call
from gpuprof_widgets.analyses.findings.short_kernels import (
    SHORT_KERNELS_COST_SHARE,
    SHORT_KERNELS_LEAST,
    SHORT_KERNELS_SHARE,
    short_kernels,
)
from gpuprof_widgets.analyses.findings.wording import share_of
from gpuprof_widgets.analyses.gaps import gaps_between
from gpuprof_widgets.analyses.graph_replays import is_mostly_replayed
from gpuprof_widgets.analyses.host_states import LAUNCHING
from gpuprof_widgets.analyses.quantity import format_count, format_ns, format_share
from gpuprof_widgets.trace import intervals
from gpuprof_widgets.trace.model import Record, Trace

EVIDENCE = 2_000
REPLAYED = (
    "CUDA graphs replay most of it already: capture more in one graph, or make batches larger, so "
    "that a replay keeps the GPU busy for longer than its launch takes."
)
REMEDY = (
    'Launch less: CUDA graphs (torch.compile with mode="reduce-overhead", or '
    "torch.cuda.make_graphed_callables) replay a whole step with one call; fused and foreach "
    "optimizers and larger batches need fewer kernels."
)


@of_gpu_work
def launch_bound(
    record: Record,
    *,
    launching_share: float = 0.15,
    device_idle_share: float = DEVICE_IDLE_SHARE,
    short_kernels_share: float = SHORT_KERNELS_SHARE,
    short_kernels_least: int = SHORT_KERNELS_LEAST,
    short_kernels_cost_share: float = SHORT_KERNELS_COST_SHARE,
) -> list[Finding]:
    """One finding per GPU that waits for its launches for 15 % of the run.

    First launches of kernels, which load them, do not count: fewer launches would not spare them.
    Not where `short_kernels` says the same with the kernels that cause it, or `device_idle` of the
    only launch that matters.

    ``launching_share``: GPU idle from the launch call to the kernel (XProf: kernel launch 3 %, 15 %
        high).

    The other thresholds are those of `device_idle` and `short_kernels`.
    """
    table = breakdown(record)
    rows = table[(table["class"] == LAUNCHING) & (table["state"] == "idle")].to_dict("records")
    at_work = devices_at_work(record.trace)
    rows = [_warm(record, row) for row in rows if row["device"] in at_work]
    rows = [row for row in rows if row["time_ns"] and row["share"] >= launching_share]
    if not rows or short_kernels(
        record,
        short_kernels_share=short_kernels_share,
        short_kernels_least=short_kernels_least,
        short_kernels_cost_share=short_kernels_cost_share,
    ):
        return []
    return [
        _finding(record, row)
        for row in rows
        if not tells_of_one_launch(record, int(row["device"]), device_idle_share)
    ]


def _warm(record: Record, row: dict[Any, Any]) -> dict[Any, Any]:
    """The row of the breakdown without the time of first launches."""
    time = int(row["time_ns"]) - cold_ns(record, int(row["device"]), LAUNCHING)
    return row | {"time_ns": time, "share": share_of(time, row["span_ns"])}


def _finding(record: Record, row: dict[Any, Any]) -> Finding:
    device, trace = int(row["device"]), record.trace
    waited = intervals.difference(segments_of(record, device, LAUNCHING), cold_spans(record))
    longest = longest_call(record, *waited)
    most = longest.end_ns - longest.start_ns
    rows = trace.index.gpu
    gaps = gaps_between(trace, rows[trace.index.device[rows] == device])
    late = (gaps.launch >= 0) & (gaps.launched_ns > gaps.start) & (gaps.after >= 0)
    late &= ~np.isin(gaps.launch, cold_start(record)["row"])
    order = np.argsort(-(gaps.end - gaps.start)[late], kind="stable")[:EVIDENCE]
    text = (
        f"{'The GPU' if device < 0 else f'GPU {device}'} waited {format_ns(int(row['time_ns']))} "
        f"({format_share(row['share'])} of the time) while the CPU was in the calls that launch "
        f"its work, {format_count(int(late.sum()), 'time')}, the longest {format_ns(most)}."
    )
    return Finding(
        text,
        int(row["time_ns"]),
        row["share"],
        longest.start_ns,
        longest.end_ns,
        tuple(gaps.launch[late][order]),
        _remedy(trace, longest),
    )


def _remedy(trace: Trace, longest: LongestCall) -> str:
    if longest.is_most:
        return f"Most of it is a single call: {about_one_call(trace, longest.row)}"
    return REPLAYED if is_mostly_replayed(trace) else REMEDY
