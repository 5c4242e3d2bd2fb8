"""Findings on moving data: needless and slow copies, constants made anew, work on one stream.

Also on tensors that a program copies on the CPU: clones, casts, other layouts.
"""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pandas as pd

from gpuprof_widgets.analyses.attribution import in_backward
from gpuprof_widgets.analyses.columns import (
    format_bytes,
    format_count,
    format_ns,
    format_share,
    group_rows,
)
from gpuprof_widgets.analyses.copies import EVERY_STEP, THERE_AND_BACK, copies
from gpuprof_widgets.analyses.critical_path import cpu_path_ns
from gpuprof_widgets.analyses.findings.finding import (
    EVIDENCE,
    WORTH_NS,
    Finding,
    code,
    copies_counted,
    gpu_name,
    listed,
    place_in,
    place_of,
    run_ns,
    share_of,
    slice_range,
)
from gpuprof_widgets.analyses.findings.waits import SYNCHRONISING_SHARE, synchronising
from gpuprof_widgets.analyses.gpu_work import COMMUNICATION, COPY, gpu_kinds
from gpuprof_widgets.analyses.idle import stream_of
from gpuprof_widgets.analyses.lines import cell_lines
from gpuprof_widgets.analyses.op_bytes import OUTPUTS, SIMPLE
from gpuprof_widgets.analyses.owners import line_of
from gpuprof_widgets.analyses.streams import could_overlap, streams
from gpuprof_widgets.trace import intervals, links
from gpuprof_widgets.trace.arrays import Mask, Rows
from gpuprof_widgets.trace.index import take
from gpuprof_widgets.trace.model import Record, Trace

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
    tables = [(why, table[table["needless"] == why]) for why in REMEDIES]
    findings = [_needless(record, copied, why) for why, copied in tables if len(copied)]
    return [finding for finding in findings if finding.share >= needless_copies_share]


def _needless(record: Record, table: pd.DataFrame, why: str) -> Finding:
    waiting = table["call_ns"].where(table["blocking"].astype(bool), 0) + table["wait_ns"]
    cost = np.maximum(table["dur_ns"].to_numpy(np.int64), waiting.to_numpy(np.int64))
    total, size = int(cost.sum()), format_bytes(int(table["bytes"].sum()))
    share = share_of(total, run_ns(record))
    if why == THERE_AND_BACK:
        counted = copies_counted(len(table))
        text = f"{size} went between CPU and GPU and straight back, in {counted}"
    else:
        each = format_bytes(int(table["bytes"].iloc[0])) if table["bytes"].nunique() == 1 else size
        text = f"Every step copies the same {each} to the GPU"
    place: Any = table.assign(cost=cost).groupby(["op_name", "module"])["cost"].sum().idxmax()
    words = " of ".join(code(name) for name in place if name)
    text += f", mostly in {words}" if words else ""
    text += f". This took {format_ns(total)} ({format_share(share)} of the time)."
    where = place_in(table, table.iloc[int(cost.argmax())])
    return Finding(text, total, share, remedy=REMEDIES[why], title=TITLES[why], **where)


PIN_REMEDY = (
    "Copy from pinned memory: use pin_memory=True in the DataLoader (or .pin_memory() once), and "
    ".to(device, non_blocking=True). Then the CPU goes on, and the copy runs beside kernels."
)


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
    table = table[(table["direction"] == "HtoD") & (table["source"] == "pageable")]
    waits = synchronising(record, synchronising_share=synchronising_share)
    waited_for = [row for finding in waits for row in finding.rows]
    table = table[~np.isin(table["launch"].to_numpy(np.int64), waited_for)]
    held = table["call_ns"].to_numpy(np.int64) + table["wait_ns"].to_numpy(np.int64)
    cost = int(held.sum())
    share = share_of(cost, run_ns(record))
    if not len(table) or share < pageable_copies_share:
        return []
    known = table[table["bytes"] >= 0]
    size, took = int(known["bytes"].sum()), int(known["dur_ns"].sum())
    per_second = size * 1e9 / max(took, 1)
    speed = f" ({format_bytes(size)} at {format_bytes(per_second)}/s)" if size and took else ""
    op = str(pd.Series(held).groupby(table["op_name"].to_numpy(object)).sum().idxmax())
    mostly = f", mostly in {code(op)}" if op else ""
    text = (
        f"{copies_counted(len(table))} from pageable memory to the GPU{speed} blocked the CPU for "
        f"{format_ns(cost)} ({format_share(share)} of the time){mostly}."
    )
    place = place_in(table, table.iloc[int(held.argmax())])
    title = "Copies from pageable memory block the CPU"
    return [Finding(text, cost, share, remedy=PIN_REMEDY, title=title, **place)]


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
    place = place_in(most, longest)
    title = f"{code(longest['name'])} makes new tensors on line {longest['line']}"
    return [Finding(text, cost, share, remedy=MADE_ANEW_REMEDY, title=title, **place)]


def _calls(trace: Trace) -> pd.DataFrame:
    """Return the outermost factory calls in cell lines: slice, cell and line, times.

    Calls that another op makes for itself, as ops of the backward pass do, do not count.
    """
    makes = trace.index.named(ALWAYS_THE_SAME) & trace.index.on_tracks("cpu")
    inside = take(trace.index.op_around, trace.index.parent) >= 0
    around = line_of(trace)
    rows = np.flatnonzero(makes & ~inside & (around >= 0))
    cell, line = (trace.args.get(key, pd.Series(dtype=object)) for key in ("cell", "line"))
    places = around[rows]
    return pd.DataFrame(
        {
            "row": rows,
            "name": trace.index.names_of(rows),
            "cell": cell.reindex(places).to_numpy(object),
            "line": line.reindex(places).to_numpy(),
            "execution": places,
            "start_ns": trace.index.ts[rows],
            "dur_ns": trace.index.dur[rows],
        }
    )


ONE_STREAM_REMEDIES = {
    COPY: "Copy the next batch on a separate stream while this one is computed: use pinned memory "
    "(pin_memory=True), non_blocking=True, a torch.cuda.Stream() and wait_stream() before use.",
    COMMUNICATION: "Run communication on a separate stream: use asynchronous collectives "
    "(async_op=True, and wait() only where the result is needed), as DDP and FSDP do.",
}


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
    trace = record.trace
    rows, kinds = gpu_kinds(trace)
    here = (trace.index.device[rows] == row["device"]) & (stream_of(trace, rows) == row["stream"])
    here &= could_overlap(trace, rows, kinds)  # copies and communication
    rows, kinds = rows[here], kinds[here]
    longest_first = np.argsort(-trace.index.dur[rows], kind="stable")
    rows, kinds = rows[longest_first], kinds[longest_first]
    dur = trace.index.dur[rows]
    copied, collectives = (int((kinds == kind).sum()) for kind in (COPY, COMMUNICATION))
    counted = [copies_counted(copied)] if copied else []
    counted += [format_count(collectives, "collective")] if collectives else []
    alone = int(row["serialised_ns"])
    alone_share = alone / max(trace.span_ns, 1)
    device = gpu_name(row["device"]).replace("The", "the")
    (longest,) = trace.index.names_of(rows[:1])
    text = (
        f"Stream {row['stream']} of {device} computes and moves data in turns. For "
        f"{format_ns(alone)} ({format_share(alone_share)} of the time), nothing was computed while "
        f"{listed(counted)} ran on this stream. The longest is {code(longest)}."
    )
    times = {kind: int(dur[kinds == kind].sum()) for kind in ONE_STREAM_REMEDIES}
    mostly = max(times, key=lambda kind: times[kind])
    remedy = ONE_STREAM_REMEDIES[mostly]
    moving = "copies" if mostly == COPY else "communication"
    title = f"Compute and {moving} take turns on one stream"
    place = (*slice_range(trace, int(rows[0])), tuple(rows[:EVIDENCE]))
    return Finding(text, row["cost_ns"], row["share"], *place, remedy, title=title)


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


def peer_copies(record: Record, *, peer_copies_share: float = 0.02) -> list[Finding]:
    """Fires if copies between GPUs took 2 % of the run or more.

    Cost: the time of these copies.
    """
    table = copies(record)
    table = table[table["direction"] == "PtoP"]
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
    place, title = place_in(table, longest), "Copies between GPUs take time"
    return [Finding(text, cost, share, remedy=remedy, title=title, **place)]


COPIES = frozenset({"aten::clone", "aten::_to_copy", "aten::copy_"})
"""Ops that always copy."""
CLONES = frozenset({"aten::clone"})
CASTS = frozenset({"aten::to", "aten::_to_copy", "aten::type_as"})
LAYOUTS = frozenset({"aten::contiguous", "aten::reshape", "aten::flatten"})
COPYING = COPIES | CASTS | LAYOUTS
"""Ops that a program calls to copy, or that copy where they must."""
WRITES = frozenset({"aten::copy_"})
"""Writing into another tensor, as `x[i] = y` and `load_state_dict` do, is no needless copy."""
COMPUTING = frozenset({*SIMPLE, *OUTPUTS}) - WRITES
ROUNDS = 3
"""Rounds of a loop in which a line copies: copying data once is what is advised."""
NO_USER = re.compile(r"Optimizer\.\w+#.*|enumerate\(Data(Loader|Pipe)\)#.*")
"""Regions whose copies are not the user's to leave out, or that `dataloader` reports."""
OF_TORCH = re.compile(r".+::.+")

COPIES_REMEDIES = {
    "clone": (
        CLONES,
        "A clone is needed only if the clone or its original is changed in place afterwards. Leave "
        "out the other clones.",
    ),
    "cast": (
        CASTS,
        "Make the data in the format in which it is used (`np.float32`), or convert all of it "
        "once. Do not convert it in each iteration, or back and forth.",
    ),
    "layout": (
        LAYOUTS,
        "`contiguous()` copies a transposed or permuted tensor into another layout. So do "
        "`reshape` and `flatten` of such a tensor. Leave them out if the next op takes the tensor "
        "as it is, as most ops do. Or make the data in the layout in which it is used.",
    ),
}
"""Per kind of copies its ops and what to do."""
NAMED_SHARE = 0.2
"""Share of the copying from which on an op is named, and gets its remedy."""


def cpu_copies(record: Record, *, cpu_copies_share: float = 0.1) -> list[Finding]:
    """Fires if the program's own copies of tensors on the CPU took a tenth of the run or more.

    Only the outermost call counts, and only what the program called: not the copies that other ops
    make for themselves, nor those of the backward pass, an optimizer or a DataLoader, nor what is
    written into another tensor. An op on a line counts if three runs of the line called it, or if
    the program computed something between its calls. Copies to or from a GPU are those of other
    rules.

    Cost: the time of these copies; if a GPU took part, at most that on the critical path.
    """
    trace, run, metadata = record.trace, run_ns(record), record.metadata
    rows = _copies_of_the_program(trace)
    # Another program recorded the CPU alone beside GPUs: a copy may be to or from one.
    if "cuda" not in metadata and metadata.get("devices") and not len(trace.index.gpu):
        return []
    cost = intervals.length(intervals.union(trace.index.ts[rows], trace.index.end[rows]))
    if cost < WORTH_NS or share_of(cost, run) < cpu_copies_share:
        return []
    if len(trace.index.gpu):
        cost = min(cost, cpu_path_ns(record, rows))
        if cost < WORTH_NS or share_of(cost, run) < cpu_copies_share:
            return []
    share = share_of(cost, run)
    by_name = pd.Series(trace.index.dur[rows]).groupby(trace.index.names_of(rows)).sum()
    by_name = by_name.sort_values(ascending=False, kind="stable") / by_name.sum()
    text = (
        f"Copying tensors on the CPU took {format_ns(cost)} ({format_share(share)} of the time) "
        f"in {format_count(len(rows), 'call')}{_mostly_of(by_name)}."
    )
    title, place = "Copies of tensors take the CPU's time", place_of(trace, rows)
    return [Finding(text, cost, share, remedy=_copies_remedy(by_name), title=title, **place)]


def _copies_of_the_program(trace: Trace) -> Rows:
    """Return the outermost calls, in order, that copied on the CPU because the program says so."""
    index = trace.index
    copies = index.named(COPIES) & index.is_op & index.on_tracks("cpu")
    if not copies.any():
        return np.empty(0, np.intp)
    copying = index.named(COPYING) & index.is_op
    others = index.is_op & index.matching(OF_TORCH) & ~copying
    others |= index.matching(NO_USER)
    copies &= ~in_backward(trace) & (links.nearest_ancestor(index.parent, others) < 0)
    outermost = links.outermost(index.parent, copying)
    of_work = take(outermost, index.column("op")[index.gpu])
    rows = np.setdiff1d(outermost[copies], np.append(outermost[index.is_launch], of_work))
    rows = rows[~index.named(WRITES)[rows]]
    return _repeated(trace, np.asarray(rows, np.intp), outermost < 0)


def _repeated(trace: Trace, rows: Rows, apart: Mask) -> Rows:
    """Return the calls of those ops that a line calls in round after round.

    ``apart``: slices that lie in no copy.
    """
    index = trace.index
    order = np.lexsort((index.ts, index.track))
    computed = np.empty(len(trace), np.int64)
    computed[order] = np.cumsum((index.named(COMPUTING) & apart)[order])
    execution = line_of(trace)[rows]
    line = take(cell_lines(trace).of_slice, execution)
    group, _ = group_rows({"line": line, "name": index.name[rows]})
    rounds = pd.DataFrame({"run": execution, "computed": computed[rows]}).groupby(group)
    often = rounds.transform("nunique").max(axis=1) >= ROUNDS
    return rows[often.to_numpy(bool)]


def _mostly_of(by_name: pd.Series) -> str:
    """Name the ops that copied most, of shares of the copying."""
    if len(by_name) == 1:
        return f" of {code(str(by_name.index[0]))}"
    named = by_name[(by_name >= NAMED_SHARE).to_numpy()]
    if not len(named):
        return f", the most in {code(str(by_name.index[0]))}"
    words = [f"{code(str(name))} ({format_share(share)})" for name, share in named.items()]
    return f", mostly of {listed(words)}"


def _copies_remedy(by_name: pd.Series) -> str:
    """Return what to do about each kind of copies that took much of the copying."""
    shares = {
        kind: float(by_name[by_name.index.isin(ops)].sum())
        for kind, (ops, _) in COPIES_REMEDIES.items()
    }
    kinds = sorted(shares, key=lambda kind: -shares[kind])
    chosen = [kind for kind in kinds if shares[kind] >= NAMED_SHARE]
    return " ".join(COPIES_REMEDIES[kind][1] for kind in chosen or kinds[:1])
