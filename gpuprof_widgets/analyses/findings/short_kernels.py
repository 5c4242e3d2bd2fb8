"""Many kernels that are shorter than their launch: the CPU cannot keep the GPU busy with them."""

from __future__ import annotations

import re

import numpy as np
import numpy.typing as npt
import pandas as pd

from gpuprof_widgets.analyses.cold_start import cold_spans
from gpuprof_widgets.analyses.device_busy import busy_intervals
from gpuprof_widgets.analyses.findings.finding import Finding, of_gpu_work
from gpuprof_widgets.analyses.findings.wording import code, run_ns, share_of, shorter
from gpuprof_widgets.analyses.graph_replays import graph_launches, is_mostly_replayed
from gpuprof_widgets.analyses.launched_by import launched_by
from gpuprof_widgets.analyses.launches import launches
from gpuprof_widgets.analyses.path_time import cpu_path_ns
from gpuprof_widgets.analyses.quantity import format_ns, format_share
from gpuprof_widgets.analyses.stacks import BACKWARD_PREFIX
from gpuprof_widgets.analyses.waits import is_synchronising
from gpuprof_widgets.trace.intervals import difference, gaps, overlap, union
from gpuprof_widgets.trace.model import Record, Trace

EVIDENCE = 2_000
"""Slices that light up; where there are more, those of the longest stretch."""

FUSE = "torch.compile fuses chains of small ops into one kernel; "
GRAPH = (
    'mode="reduce-overhead" of torch.compile, or torch.cuda.make_graphed_callables, launches a '
    "whole stretch as one CUDA graph; larger batches make the kernels longer."
)
BY_OPS = "ran the ops that launch them"
BESIDE_GRAPHS = (
    "these ran beside the graphs that are replayed: capture them as well, or do them less often."
)
COMPILED = re.compile(r"CompiledFunction|Torch-Compiled Region.*|## Call CompiledFxGraph.*")
"""Ops of torch.compile: what it could fuse, it has."""

SHORT_KERNELS_SHARE = 0.5
SHORT_KERNELS_LEAST = 10
SHORT_KERNELS_COST_SHARE = 0.03


@of_gpu_work
def short_kernels(
    record: Record,
    *,
    short_kernels_share: float = SHORT_KERNELS_SHARE,
    short_kernels_least: int = SHORT_KERNELS_LEAST,
    short_kernels_cost_share: float = SHORT_KERNELS_COST_SHARE,
) -> list[Finding]:
    """Fires where half of the launches take longer than what they launch, ten and 3 % of the run.

    The replay of a graph is one launch, and never one of these: another graph would not spare it.

    The cost is the time that the CPU spent in the ops that launched them (in the calls, where no
    op is known), as a graph spares both, and in which the GPU, between its first and its last work,
    had nothing to do: while it is busy, a slow launch costs nothing. Waiting for the GPU is none of
    it, nor is what these ops have less of the critical path.

    ``short_kernels_share``: Of the GPU slices: shorter than their launch (HTA shows them from the
        first on).
    ``short_kernels_least``: Fewer short ones are not many, whatever their share.
    ``short_kernels_cost_share``: Launching short kernels while the GPU is idle (XProf: kernel
        launch 3 %, 15 % high).
    """
    table = launches(record)
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
        f"than the kernel or copy that they launched ({format_ns(call)} against {format_ns(gpu)} "
        f"at the median){_mostly(record.trace, short)}:"
        f" for {format_ns(idle)} ({format_share(share_of(idle, run_ns(record)))} of the time) the "
        f"GPU had nothing to do while the CPU {BY_OPS}; launched at once, "
        f"{shorter(cost, record)}."
    )
    stretch = _longest_stretch(table)
    rows = (short if len(short) <= EVIDENCE else stretch)["row"].to_numpy()[:EVIDENCE]
    start, end = int(stretch["call_start_ns"].min()), int(_ends(stretch).max())
    graph = BESIDE_GRAPHS if is_mostly_replayed(record.trace) else GRAPH
    remedy = graph if record.trace.index.matching(COMPILED).any() else FUSE + graph
    return [Finding(text, cost, share, start, end, tuple(rows), remedy)]


def _launching_while_idle(record: Record, short: pd.DataFrame) -> int:
    """Time (ns) of the launching ops within the gaps of the device for which they launched.

    Without first calls, which load libraries and kernels: no graph spares these.
    """
    trace, cold = record.trace, cold_spans(record)
    ts, dur = trace.slices["ts"].to_numpy(), trace.slices["dur"].to_numpy()
    waiting = np.flatnonzero(is_synchronising(trace))
    caller = _callers(short)
    total = 0
    for device in short["device"].unique():
        busy = busy_intervals(trace, int(device))
        if len(busy[0]):
            rows = caller[(short["device"] == device).to_numpy(bool)]
            launching = difference(union(ts[rows], ts[rows] + dur[rows]), cold)
            start = np.append(busy[0], ts[waiting])
            held = union(start, np.append(busy[1], (ts + dur)[waiting]))
            idle = gaps(held, int(busy[0][0]), int(busy[1][-1]))
            total += int(overlap(launching, idle).sum())
    return total


def _callers(short: pd.DataFrame) -> npt.NDArray[np.intp]:
    """The op that launched each, or the call where that is not known."""
    return np.where(short["op"] >= 0, short["op"], short["launch"]).astype(np.intp)


def _longest_stretch(table: pd.DataFrame) -> pd.DataFrame:
    """The most launches in a row, in the order of the calls, that were all short."""
    short = table["short"].to_numpy(bool)
    number = np.cumsum(~short)
    longest = int(np.bincount(number[short]).argmax())
    stretch: pd.DataFrame = table[short & (number == longest)]
    return stretch


def _ends(table: pd.DataFrame) -> npt.NDArray[np.int64]:
    calls = (table["call_start_ns"] + table["call_ns"]).to_numpy(np.int64)
    worked = (table["start_ns"] + table["dur_ns"]).to_numpy(np.int64)
    return np.asarray(np.maximum(calls, worked), np.int64)


def _mostly(trace: Trace, short: pd.DataFrame) -> str:
    """The op that launched most of them, and the module in which it did."""
    owners = launched_by(trace, short["row"].to_numpy(np.intp))
    owners = owners[(owners["op_name"] != "").to_numpy(bool)]
    if not len(owners):
        return ""
    by = owners.groupby("op_name", sort=False).size()
    op = str(by.index[int(by.to_numpy().argmax())])
    shown = code(op.removeprefix(BACKWARD_PREFIX))
    modules = owners.loc[(owners["op_name"] == op).to_numpy(bool), "module"].unique()
    where = f" in {code(modules[0])}" if len(modules) == 1 and modules[0] else ""
    return f", {int(by.max()):,} of them made by {shown}{where}"
