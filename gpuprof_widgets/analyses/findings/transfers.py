"""Findings on moving data: needless and slow copies, constants made anew, work on one stream."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from gpuprof_widgets.analyses.columns import format_bytes, format_count, format_ns, format_share
from gpuprof_widgets.analyses.copies import EVERY_STEP, THERE_AND_BACK, copies
from gpuprof_widgets.analyses.findings.finding import (
    EVIDENCE,
    Finding,
    code,
    copies_counted,
    gpu_name,
    longest_slice,
    of_gpu_work,
    run_ns,
    share_of,
    slice_range,
    table_range,
)
from gpuprof_widgets.analyses.findings.waits import SYNCHRONISING_SHARE, synchronising
from gpuprof_widgets.analyses.gpu_work import COMMUNICATION, COPY, gpu_kinds
from gpuprof_widgets.analyses.idle import stream_of
from gpuprof_widgets.analyses.owners import line_of
from gpuprof_widgets.analyses.streams import could_overlap, streams
from gpuprof_widgets.trace.model import Record, Trace
from gpuprof_widgets.trace.schema import NONE

REMEDIES = {
    THERE_AND_BACK: "Leave the data where it is needed next: do the work of the CPU on the GPU, or "
    "copy only the result.",
    EVERY_STEP: "Copy the data once: use register_buffer, which moves it with the module, or "
    "create it on the device (device=x.device).",
}


TITLES = {
    THERE_AND_BACK: "Data goes between CPU and GPU and straight back",
    EVERY_STEP: "The same data is copied to the GPU each step",
}


def needless_copies(record: Record, *, needless_copies_share: float = 0.01) -> list[Finding]:
    """Report each reason (see `copies`) whose needless copies took 1 % of the run or more.

    Cost: the time of each copy on the GPU, or the CPU's wait for it if that is longer.
    """
    table = copies(record)
    findings = [
        _finding(record, table[(table["needless"] == why).to_numpy(bool)], why) for why in REMEDIES
    ]
    return [finding for finding in findings if finding.share >= needless_copies_share]


def _finding(record: Record, table: pd.DataFrame, why: str) -> Finding:
    cost = _costs(table)
    total = int(cost.sum())
    share = share_of(total, run_ns(record))
    if not len(table):
        return Finding("")
    longest = table.iloc[int(cost.argmax())]
    took = f"{format_ns(total)} ({format_share(share)} of the time)"
    text = f"{_needless_text(table, why)}{_mostly(table, cost)}. This took {took}."
    rows, remedy = tuple(table["row"]), REMEDIES[why]
    return Finding(text, total, share, *table_range(longest), rows, remedy, title=TITLES[why])


def _costs(table: pd.DataFrame) -> npt.NDArray[np.int64]:
    waiting = table["call_ns"].where(table["blocking"].astype(bool), 0) + table["wait_ns"]
    took = table["dur_ns"].to_numpy(np.int64)
    return np.asarray(np.maximum(took, waiting.to_numpy(np.int64)), np.int64)


def _needless_text(table: pd.DataFrame, reason: str) -> str:
    size = format_bytes(int(table["bytes"].sum()))
    if reason == THERE_AND_BACK:
        count = copies_counted(len(table))
        return f"{size} went between CPU and GPU and straight back, in {count}"
    each = format_bytes(int(table["bytes"].iloc[0])) if table["bytes"].nunique() == 1 else size
    return f"Every step copies the same {each} to the GPU"


def _mostly(table: pd.DataFrame, cost: npt.NDArray[np.int64]) -> str:
    """Name the op and the module that cost most."""
    by = table.assign(cost=cost).groupby(["op_name", "module"])["cost"].sum()
    place: Any = by.idxmax()
    op, module = place
    words = " of ".join(code(name) for name in (op, module) if name)
    return f", mostly in {words}" if words else ""


PIN_REMEDY = (
    "Copy from pinned memory: use pin_memory=True in the DataLoader (or .pin_memory() once), and "
    ".to(device, non_blocking=True). Then the CPU goes on, and the copy runs beside kernels."
)


@of_gpu_work
def pageable_copies(
    record: Record,
    *,
    pageable_copies_share: float = 0.02,
    synchronising_share: float = SYNCHRONISING_SHARE,
) -> list[Finding]:
    """Fires if calls that copy from pageable memory to a GPU took 2 % of the run or more.

    Not for copies whose waits `synchronising` has reported.

    Cost: the time of the calls, and of waits after them for these copies.

    Source: the runtime first copies such data into pinned memory of its own, within the call (CUDA
    Runtime API, "API synchronization behavior"; ``nsys analyze``: cuda_memcpy_async).
    """
    table = copies(record)
    slow = (table["direction"] == "HtoD") & (table["source"] == "pageable")
    table = table[slow.to_numpy(bool)]
    waits = synchronising(record, synchronising_share=synchronising_share)
    waited_for = [row for finding in waits for row in finding.rows]
    table = table[~np.isin(table["launch"].to_numpy(np.int64), waited_for)]
    held = table["call_ns"].to_numpy(np.int64) + table["wait_ns"].to_numpy(np.int64)
    cost = int(held.sum())
    share = share_of(cost, run_ns(record))
    if not len(table) or share < pageable_copies_share:
        return []
    longest = table.iloc[int(held.argmax())]
    text = (
        f"{copies_counted(len(table))} from pageable memory to the GPU{_size(table)} blocked the "
        f"CPU for {format_ns(cost)} ({format_share(share)} of the time){_slowest_op(table, held)}."
    )
    place = (*table_range(longest), tuple(table["row"]))
    title = "Copies from pageable memory block the CPU"
    return [Finding(text, cost, share, *place, PIN_REMEDY, title=title)]


def _size(table: pd.DataFrame) -> str:
    """Return how much was copied, and how fast."""
    known = table[(table["bytes"] >= 0).to_numpy(bool)]
    size, took = int(known["bytes"].sum()), int(known["dur_ns"].sum())
    if not size or not took:
        return ""
    return f" ({format_bytes(size)} at {format_bytes(size * 1e9 / took)}/s)"


def _slowest_op(table: pd.DataFrame, held: npt.NDArray[np.int64]) -> str:
    by = pd.Series(held, table["op_name"].to_numpy(object)).groupby(level=0).sum()
    op = str(by.idxmax())
    return f", mostly in {code(op)}" if op else ""


ALWAYS_THE_SAME = frozenset(
    {"aten::zeros", "aten::ones", "aten::full", "aten::arange", "aten::eye", "aten::linspace"}
)
"""Factories whose result depends on their arguments alone: no random numbers, no user data."""

MADE_ANEW_REMEDY = (
    "Make the tensor once before the loop (register_buffer in a module). Where it changes, use "
    "zero_() or copy_()."
)


def made_anew(
    record: Record, *, made_anew_share: float = 0.02, made_anew_rounds: int = 3
) -> list[Finding]:
    """Report the line and factory whose calls cost most CPU time, from 2 % of the run on.

    Only the outermost calls on cell lines that ran three times or more count: elsewhere nothing
    shows that they are repeated.

    Cost: the CPU time of these calls.
    """
    table = _calls(record.trace)
    loops = [loop for _, loop in table.groupby(["cell", "line", "name"])]
    loops = [loop for loop in loops if loop["execution"].nunique() >= made_anew_rounds]
    if not loops:
        return []
    most = max(loops, key=lambda loop: int(loop["dur_ns"].sum()))
    cost = int(most["dur_ns"].sum())
    share = share_of(cost, run_ns(record))
    if share < made_anew_share:
        return []
    longest = most.iloc[int(most["dur_ns"].to_numpy().argmax())]
    text = (
        f"{code(longest['name'])} on line {longest['line']} made a new tensor in each of "
        f"{format_count(len(most), 'call')}. This took {format_ns(cost)} "
        f"({format_share(share)} of the time)."
    )
    place = (*table_range(longest), tuple(most["row"]))
    title = f"{code(longest['name'])} makes new tensors on line {longest['line']}"
    return [Finding(text, cost, share, *place, MADE_ANEW_REMEDY, title=title)]


def _calls(trace: Trace) -> pd.DataFrame:
    """Return the outermost factory calls in cell lines: slice, cell and line, times.

    Calls that another op makes for itself, as ops of the backward pass do, do not count.
    """
    makes = trace.index.named(ALWAYS_THE_SAME) & trace.index.on_tracks("cpu")
    inside = np.append(trace.index.op_around, NONE)[trace.index.parent] >= 0
    around = line_of(trace)
    rows = np.flatnonzero(makes & ~inside & (around >= 0))
    slices = trace.slices.iloc[rows]
    cell, line = (trace.args.get(key, pd.Series(dtype=object)) for key in ("cell", "line"))
    places = around[rows]
    return pd.DataFrame(
        {
            "row": rows,
            "name": slices["name"].to_numpy(object),
            "cell": cell.reindex(places).to_numpy(object),
            "line": line.reindex(places).to_numpy(),
            "execution": places,
            "start_ns": slices["ts"].to_numpy(),
            "dur_ns": slices["dur"].to_numpy(),
        }
    )


ONE_STREAM_REMEDIES = {
    COPY: "Copy the next batch on a separate stream while this one is computed: use pinned memory "
    "(pin_memory=True), non_blocking=True, a torch.cuda.Stream() and wait_stream() before use.",
    COMMUNICATION: "Run communication on a separate stream: use asynchronous collectives "
    "(async_op=True, and wait() only where the result is needed), as DDP and FSDP do.",
}


@of_gpu_work
def one_stream(record: Record, *, one_stream_share: float = 0.05) -> list[Finding]:
    """Report each stream on which copies and communication hold up compute for 5 % of the run.

    Cost: the most that overlap could save, at most the stream's compute. The trace does not show
    whether any compute was independent of the copies.
    """
    table = streams(record)
    cost = table[["serialised_ns", "compute_ns"]].min(axis=1)
    share = cost / max(record.trace.span_ns, 1)
    rows = table.assign(cost_ns=cost, share=share)[share >= one_stream_share]
    return [
        _one_stream_finding(record, row) for row in rows[rows["cost_ns"] > 0].to_dict("records")
    ]


def _one_stream_finding(record: Record, row: dict[Any, Any]) -> Finding:
    slices = record.trace.slices
    rows, kinds = _moving(record, int(row["device"]), int(row["stream"]))
    dur = slices["dur"].to_numpy()[rows]
    longest = longest_slice(record.trace, rows)
    alone = int(row["serialised_ns"])
    alone_share = alone / max(record.trace.span_ns, 1)
    device = gpu_name(row["device"]).replace("The", "the")
    text = (
        f"Stream {row['stream']} of {device} computes and moves data in turns. For "
        f"{format_ns(alone)} ({format_share(alone_share)} of the time), nothing was computed while "
        f"{_count_moving(kinds)} ran on this stream. The longest is "
        f"{code(str(slices['name'].iloc[longest]))}."
    )
    evidence = tuple(rows[np.argsort(-dur, kind="stable")][:EVIDENCE])
    times = {kind: int(dur[kinds == kind].sum()) for kind in ONE_STREAM_REMEDIES}
    mostly = max(times, key=lambda kind: times[kind])
    remedy = ONE_STREAM_REMEDIES[mostly]
    moving = "copies" if mostly == COPY else "communication"
    title = f"Compute and {moving} take turns on one stream"
    place = slice_range(record.trace, longest)
    return Finding(text, row["cost_ns"], row["share"], *place, evidence, remedy, title=title)


def _count_moving(kinds: npt.NDArray[np.object_]) -> str:
    copies, collectives = (int((kinds == kind).sum()) for kind in (COPY, COMMUNICATION))
    counted = [copies_counted(copies)] if copies else []
    counted += [format_count(collectives, "collective")] if collectives else []
    return " and ".join(counted)


def _moving(
    record: Record, device: int, stream: int
) -> tuple[npt.NDArray[np.intp], npt.NDArray[np.object_]]:
    """Return the copies and communication on a stream, and the kind of each."""
    trace = record.trace
    rows, kinds = gpu_kinds(trace)
    on_stream = (trace.index.device[rows] == device) & (stream_of(trace, rows) == stream)
    on_stream &= could_overlap(trace, rows, kinds)
    return rows[on_stream], kinds[on_stream]


DATA_PARALLEL = re.compile(
    r"DataParallel\.forward|Scatter|ReduceAddCoalesced|nn\.Module: DataParal.*"
)
"""What torch.nn.DataParallel leaves in a trace (the first is the TensorBoard plugin's sign)."""

PARALLEL = (
    "torch.nn.DataParallel scatters inputs and gathers outputs and gradients in each step. Use "
    "DistributedDataParallel, with one process per GPU: it exchanges only gradients, during "
    "backward."
)
PEER_REMEDY = (
    "Keep tensors that are used together on one GPU, or exchange them with torch.distributed, "
    "which overlaps with compute."
)


@of_gpu_work
def peer_copies(record: Record, *, peer_copies_share: float = 0.02) -> list[Finding]:
    """Fires if copies between GPUs took 2 % of the run or more.

    Cost: the time of these copies.
    """
    table = copies(record)
    table = table[(table["direction"] == "PtoP").to_numpy(bool)]
    cost = int(table["dur_ns"].sum())
    share = share_of(cost, run_ns(record))
    if not len(table) or share < peer_copies_share:
        return []
    longest = table.iloc[int(table["dur_ns"].to_numpy().argmax())]
    size = int(table["bytes"].clip(lower=0).sum())
    amount = f" ({format_bytes(size)})" if size else ""
    text = (
        f"{copies_counted(len(table))} from GPU to GPU{amount} "
        f"took {format_ns(cost)} ({format_share(share)} of the time)."
    )
    remedy = PARALLEL if record.trace.index.matching(DATA_PARALLEL).any() else PEER_REMEDY
    place, title = (*table_range(longest), tuple(table["row"])), "Copies between GPUs take time"
    return [Finding(text, cost, share, *place, remedy, title=title)]
