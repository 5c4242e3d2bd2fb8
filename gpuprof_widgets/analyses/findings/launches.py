"""Findings on launches: short kernels, waits for launches, first calls."""

from __future__ import annotations

import re

import numpy as np
import pandas as pd

from gpuprof_widgets.analyses.breakdown import breakdown
from gpuprof_widgets.analyses.cold_start import cold_spans, cold_start, paid_once
from gpuprof_widgets.analyses.columns import format_count, format_ns, format_share
from gpuprof_widgets.analyses.critical_path import cpu_path_ns
from gpuprof_widgets.analyses.findings.finding import (
    EVIDENCE,
    Finding,
    code,
    gpu_name,
    run_ns,
    share_of,
    shorter,
    spread,
)
from gpuprof_widgets.analyses.findings.gpu_idle import DEVICE_IDLE_SHARE, first_launches
from gpuprof_widgets.analyses.findings.idle_cause import (
    COLD_KINDS,
    blames_first_calls,
    blames_one_launch,
    cold_ns,
    longest_call,
    segments_of,
)
from gpuprof_widgets.analyses.findings.uneven_calls import about_one_call
from gpuprof_widgets.analyses.gpu_work import busy_intervals, devices_at_work, gaps_between
from gpuprof_widgets.analyses.host_states import LAUNCHING
from gpuprof_widgets.analyses.launches import launch_times, launched_by
from gpuprof_widgets.analyses.owners import graph_launches, is_mostly_replayed
from gpuprof_widgets.analyses.waits import is_synchronising
from gpuprof_widgets.trace.arrays import Rows
from gpuprof_widgets.trace.intervals import difference, gaps, overlap, union
from gpuprof_widgets.trace.model import Record, Trace
from gpuprof_widgets.trace.owners import EVALUATE

FUSE = "torch.compile fuses chains of small ops into one kernel. "
GRAPH = (
    'Use mode="reduce-overhead" of torch.compile, or torch.cuda.make_graphed_callables, to launch '
    "many kernels as one CUDA graph. Larger batches make the kernels longer."
)
BY_OPS = "ran the ops that launch them"
OUTSIDE_GRAPHS = (
    "These kernels ran outside of the CUDA graphs that are replayed: capture them as well, or run "
    "them less often."
)
COMPILED = re.compile(r"CompiledFunction|Torch-Compiled Region.*|## Call CompiledFxGraph.*")
"""Ops of torch.compile, which has fused already what it could."""

SHORT_KERNELS_SHARE = 0.5
SHORT_KERNELS_LEAST = 10
SHORT_KERNELS_COST_SHARE = 0.03


def short_kernels(
    record: Record,
    *,
    short_kernels_share: float = SHORT_KERNELS_SHARE,
    short_kernels_least: int = SHORT_KERNELS_LEAST,
    short_kernels_cost_share: float = SHORT_KERNELS_COST_SHARE,
) -> list[Finding]:
    """Fires if half of the launches, at least ten, outlast what they launch, for 3 % of the run.

    The replay of a graph is one launch, and never counts: another graph would not save it.

    Cost: the CPU time of the launching ops (of the calls, if no op is known), as a graph saves
    both, but only while the GPU is idle between its first and its last work: while it is busy, a
    slow launch costs nothing. Waiting for the GPU does not count. The cost is at most the time of
    these ops on the critical path.
    """
    table = launch_times(record)
    if not len(table):
        return []
    replays = graph_launches(record.trace)[table["launch"].to_numpy()]
    short = table[table["short"].to_numpy(bool) & ~replays]
    calls = table["launch"].nunique()
    enough = max(short_kernels_share * calls, short_kernels_least, 1)
    if len(short) < enough:
        return []
    idle = _launching_while_idle(record, short)
    cost = min(idle, cpu_path_ns(record, _callers(short)))
    share = share_of(cost, run_ns(record))
    if share < short_kernels_cost_share:
        return []
    gpu, call = (float(short[key].median()) for key in ("dur_ns", "call_ns"))
    text = (
        f"{len(short):,} of {calls:,} launches ({format_share(len(short) / calls)}) took longer "
        f"than the kernel or copy that they launched (median {format_ns(call)} against "
        f"{format_ns(gpu)}).{_mostly(record.trace, short)} The GPU had nothing to do for "
        f"{format_ns(idle)} ({format_share(share_of(idle, run_ns(record)))} of the time) while the "
        f"CPU {BY_OPS}. If all were launched at once, {shorter(cost, record)}."
    )
    is_short = table["short"].to_numpy(bool)
    run = np.cumsum(~is_short)  # runs of launches, in the order of the calls, that were all short
    stretch = table[is_short & (run == int(np.bincount(run[is_short]).argmax()))]
    rows = spread((short if len(short) <= EVIDENCE else stretch)["row"].to_numpy())
    start = int(stretch["call_start_ns"].min())
    end = max(
        int((stretch["call_start_ns"] + stretch["call_ns"]).max()),
        int((stretch["start_ns"] + stretch["dur_ns"]).max()),
    )
    graph = OUTSIDE_GRAPHS if is_mostly_replayed(record.trace) else GRAPH
    remedy = graph if record.trace.index.matching(COMPILED).any() else FUSE + graph
    title = "Many kernels are shorter than their launches"
    return [Finding(text, cost, share, start, end, rows, remedy, title=title)]


def _launching_while_idle(record: Record, short: pd.DataFrame) -> int:
    """Return the time (ns) of the launching ops within the gaps of the GPU that they launch on.

    First calls and the recording's own start do not count: no graph saves these.
    """
    trace, index, once = record.trace, record.trace.index, paid_once(record)
    waiting = np.flatnonzero(is_synchronising(trace))
    caller = _callers(short)
    total = 0
    for device in short["device"].unique():
        busy = busy_intervals(trace, int(device))
        if len(busy[0]):
            rows = caller[(short["device"] == device).to_numpy(bool)]
            launching = difference(union(index.ts[rows], index.end[rows]), once)
            start = np.append(busy[0], index.ts[waiting])
            held = union(start, np.append(busy[1], index.end[waiting]))
            idle = gaps(held, int(busy[0][0]), int(busy[1][-1]))
            total += int(overlap(launching, idle).sum())
    return total


def _callers(short: pd.DataFrame) -> Rows:
    """Return the op that launched each, or the call where the op is not known."""
    return np.where(short["op"] >= 0, short["op"], short["launch"]).astype(np.intp)


def _mostly(trace: Trace, short: pd.DataFrame) -> str:
    """Name the op that launched most of them, and its module."""
    owners = launched_by(trace, short["row"].to_numpy(np.intp))
    owners = owners[(owners["op_name"] != "").to_numpy(bool)]
    if not len(owners):
        return ""
    by = owners.groupby("op_name", sort=False).size()
    op = str(by.index[int(by.to_numpy().argmax())])
    shown = code(op.removeprefix(EVALUATE))
    modules = owners.loc[(owners["op_name"] == op).to_numpy(bool), "module"].unique()
    where = f" in {code(modules[0])}" if len(modules) == 1 and modules[0] else ""
    return f" {shown}{where} made {int(by.max()):,} of them."


REPLAYED = (
    "CUDA graphs replay most of the work already. Capture more in one graph, or use larger "
    "batches, so that a replay keeps the GPU busy for longer than its launch takes."
)
REMEDY = (
    'Launch less: CUDA graphs (torch.compile with mode="reduce-overhead", or '
    "torch.cuda.make_graphed_callables) replay a whole step with one call. Fused and foreach "
    "optimizers and larger batches need fewer kernels."
)


def launch_bound(
    record: Record,
    *,
    launching_share: float = 0.15,
    device_idle_share: float = DEVICE_IDLE_SHARE,
    short_kernels_share: float = SHORT_KERNELS_SHARE,
    short_kernels_least: int = SHORT_KERNELS_LEAST,
    short_kernels_cost_share: float = SHORT_KERNELS_COST_SHARE,
) -> list[Finding]:
    """Report each GPU that waits for its launches for 15 % of the run.

    First launches of kernels, which load them, do not count: fewer launches would not save them.
    Not if `short_kernels` reports the kernels that cause it, or `device_idle` a single launch.

    Cost: the time in which the GPU was idle and the CPU was in calls that launch work.
    """
    table, at_work = breakdown(record), devices_at_work(record.trace)
    table = table[(table["class"] == LAUNCHING) & (table["state"] == "idle")]
    waited = []
    for row in table[table["device"].isin(at_work)].to_dict("records"):
        device = int(row["device"])
        time_ns = int(row["time_ns"]) - cold_ns(record, device, LAUNCHING)
        share = share_of(time_ns, row["span_ns"])
        if time_ns and share >= launching_share:
            waited.append((device, time_ns, share))
    if not waited or short_kernels(
        record,
        short_kernels_share=short_kernels_share,
        short_kernels_least=short_kernels_least,
        short_kernels_cost_share=short_kernels_cost_share,
    ):
        return []
    return [
        _finding(record, *of_device)
        for of_device in waited
        if not blames_one_launch(record, of_device[0], device_idle_share)
    ]


def _finding(record: Record, device: int, time_ns: int, share: float) -> Finding:
    trace = record.trace
    waited = difference(segments_of(record, device, LAUNCHING), cold_spans(record))
    longest = longest_call(record, *waited)
    rows = trace.index.gpu
    gaps = gaps_between(trace, rows[trace.index.device[rows] == device])
    late = (gaps.launch >= 0) & (gaps.launched_ns > gaps.start) & (gaps.after >= 0)
    late &= ~np.isin(gaps.launch, cold_start(record)["row"])
    order = np.argsort(-(gaps.end - gaps.start)[late], kind="stable")[:EVIDENCE]
    text = (
        f"{gpu_name(device)} waited {format_ns(time_ns)} ({format_share(share)} of the time) while "
        "the CPU was in the calls that launch its work. This happened "
        f"{format_count(int(late.sum()), 'time')}, for up to {format_ns(longest.dur_ns)}."
    )
    remedy = REPLAYED if is_mostly_replayed(trace) else REMEDY
    if longest.is_most:
        remedy = f"Most of that time is a single call: {about_one_call(trace, longest.row)}"
    place = longest.start_ns, longest.end_ns, tuple(gaps.launch[late][order])
    title = f"{gpu_name(device)} waits for its launches"
    return Finding(text, time_ns, share, *place, remedy, title=title)


COLD_CALLS_REMEDY = (
    "Warm up before measuring: this cost is paid once per process, and neither CUDA graphs nor "
    "larger batches make it shorter."
)


def cold_calls(
    record: Record, *, cold_calls_share: float = 0.05, device_idle_share: float = DEVICE_IDLE_SHARE
) -> list[Finding]:
    """Report each GPU that was idle for 5 % of the run while first calls were made.

    Not if `device_idle` puts most of the GPU's idle time down to them.

    Cost: the GPU's idle time during first calls.
    """
    findings = []
    for device in devices_at_work(record.trace):
        cost = sum(cold_ns(record, device, kind) for kind in COLD_KINDS)
        share = share_of(cost, run_ns(record))
        if not cost or share < cold_calls_share:
            continue
        if blames_first_calls(record, device, device_idle_share):
            continue
        text = (
            f"{gpu_name(device)} had nothing to do for {format_ns(cost)} ({format_share(share)} of "
            "the time) while the CPU made first calls, which load libraries and "
            f"kernels{first_launches(record)}."
        )
        start, end = cold_spans(record)
        longest = int((end - start).argmax())
        rows = tuple(cold_start(record).nlargest(EVIDENCE, "dur_ns")["row"])
        place = (int(start[longest]), int(end[longest]), rows, COLD_CALLS_REMEDY)
        title = f"{gpu_name(device)} waits for first calls, which load kernels"
        findings.append(Finding(text, cost, share, *place, title=title))
    return findings
