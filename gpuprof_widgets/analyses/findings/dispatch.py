"""A Python function whose own time goes into the dispatch of many small ops."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from gpuprof_widgets.analyses.collectives import world_size_of
from gpuprof_widgets.analyses.columns import format_count, format_ns, format_share
from gpuprof_widgets.analyses.critical_path import cpu_path_ns
from gpuprof_widgets.analyses.findings.finding import Finding, code, run_ns, share_of, shorter
from gpuprof_widgets.analyses.lines import cell_lines
from gpuprof_widgets.analyses.modules import STEP, kinds, single_tensor_ops
from gpuprof_widgets.analyses.op_calls import BACKWARD_PREFIX
from gpuprof_widgets.analyses.owners import region_around
from gpuprof_widgets.analyses.regions import calls_per_traced_step
from gpuprof_widgets.analyses.sequences import indexing_loops
from gpuprof_widgets.analyses.waits import run_lane, waits
from gpuprof_widgets.trace import intervals, links
from gpuprof_widgets.trace.model import Record, Trace
from gpuprof_widgets.trace.owners import open_beside
from gpuprof_widgets.trace.pstats import BUILT_IN, functions_of_frames
from gpuprof_widgets.trace.schema import NONE

Rows = npt.NDArray[np.intp]

OPERATORS = re.compile(r"(?:^|[/\\])torch[/\\]_tensor\.py$")
"""Where some operators of tensors are Python functions (``x ** 3``)."""
MANY = 3
"""Ops per call."""
DISPATCH_NS = 15_000
"""Of the function's own time per op: dispatch takes a few microseconds, recording as much again."""
SMALL_NS = 100_000
"""Of the median op on the CPU: of longer ones the dispatch is no matter."""

REMEDY = "It is mostly the dispatch of {count} small ops per call: fuse them ({means})."
TORCH_COMPILE = "`torch.compile`"


@dataclass(frozen=True)
class DirectOps:
    """The ops that a function called itself: their rows, for so many of its calls."""

    row: Rows
    calls: int


def dispatch_remedy(record: Record, function: pd.Series, own_ns: int) -> str:
    """What to do about a function (a row of `python_time`) of many small ops; "" for others."""
    ops = direct_ops(record, function)
    if ops is None or len(ops.row) < MANY * ops.calls:
        return ""
    each = own_ns / calls_per_traced_step(record) / len(ops.row)
    if each > DISPATCH_NS or np.median(record.trace.slices["dur"].to_numpy()[ops.row]) > SMALL_NS:
        return ""
    names = record.trace.slices["name"].iloc[ops.row].astype(str)
    per_call = Counter(names.str.removeprefix("aten::").str.rstrip("_").tolist())
    per_call = Counter({name: round(count / ops.calls) for name, count in per_call.items()})
    means = ", ".join([*_gelu(per_call), TORCH_COMPILE])
    return REMEDY.format(count=round(len(ops.row) / ops.calls), means=means)


def direct_ops(record: Record, function: pd.Series) -> DirectOps | None:
    """The ops that a function (a row of `python_time`) called itself; None where nothing says."""
    ops = _in_frames(record, function)
    return _in_regions(record, function) if ops is None else ops


def _gelu(ops: Counter[str]) -> list[str]:
    """``F.gelu`` for the chain of ops that it is, in either form."""
    used = {name for name, count in ops.items() if count}
    if not used <= {"mul", "add", "pow", "div", "tanh", "erf"} or ops["mul"] + ops["div"] < 2:
        return []
    if ops["erf"] == 1 and not ops["tanh"] and ops["add"]:
        return ["`F.gelu(x)`"]
    cubed = ops["pow"] == 1 or ops["mul"] >= 5
    if ops["tanh"] == 1 and not ops["erf"] and cubed and ops["add"] >= 2:
        return ['`F.gelu(x, approximate="tanh")`']
    return []


def _outermost_ops(trace: Trace) -> Rows:
    """Ops that are in no other, those of the backward pass left out."""
    ops = trace.index.is_op & trace.index.on_tracks("cpu")
    parent = trace.index.parent
    late = trace.index.column("forward") >= 0
    return np.flatnonzero(ops & ~late & (links.nearest_ancestor(parent, ops) < 0))


def _in_frames(record: Record, function: pd.Series) -> DirectOps | None:
    """The ops right in the function's frames, or in operators and built-ins that it called."""
    trace = record.trace
    if not trace.index.on_tracks("python").any():
        return None
    functions, of_frame = functions_of_frames(trace)
    same = np.all([functions[key] == function[key] for key in ("file", "line", "name")], axis=0)
    between = (functions["file"] == BUILT_IN) | functions["file"].str.contains(OPERATORS)
    opaque = ~np.append(between.to_numpy(bool), False)[of_frame]
    mine = np.append(np.append(same, False)[of_frame], False)
    ops = _outermost_ops(trace)
    frame = open_beside(trace, *trace.index.uncut)[ops]
    caller = links.itself_or_ancestor(trace.slices["parent"].to_numpy(), opaque)
    around = np.append(caller, NONE)[frame]
    return DirectOps(ops[mine[around]], max(int(function["calls"]), 1))


def _in_regions(record: Record, function: pd.Series) -> DirectOps | None:
    """The ops right in what the function was: the forward of a class of modules, or a line.

    cProfile does not say in which function an operator ran. A ``forward``, and what such alone call
    once each, is that of the only class that was called as often and has many ops of its own; any
    other is called on the only line that names it, and ran as often.
    """
    trace = record.trace
    calls = round(int(function["calls"]) / calls_per_traced_step(record))
    ops = _outermost_ops(trace)
    lane = trace.tracks["lane"].to_numpy()[trace.slices["track"].to_numpy()]
    ops = ops[lane[ops] == run_lane(record)]
    if function["name"] == "forward" or _is_called_by_forwards(record, function):
        found = _of_classes(trace, ops, calls)
    else:
        found = _of_lines(trace, ops, calls, str(function["name"]))
    found = [rows for rows in found if len(rows) >= MANY * calls]
    return DirectOps(found[0], calls) if len(found) == 1 and calls else None


def _is_called_by_forwards(record: Record, function: pd.Series) -> bool:
    """Whether cProfile saw no other function call this one."""
    if record.calls is None:
        return False
    functions, edges = record.calls.functions, record.calls.edges
    same = np.all([functions[key] == function[key] for key in ("file", "line", "name")], axis=0)
    callers = functions["name"].to_numpy(object)[edges["caller"][same[edges["callee"]]]]
    return bool(len(callers)) and bool((callers == "forward").all())


def _of_classes(trace: Trace, ops: Rows, calls: int) -> list[Rows]:
    """Per class whose modules were called so often the ops right in these."""
    module = np.flatnonzero(trace.index.in_category("module"))
    if not len(module) or "class" not in trace.args:
        return []
    codes, _ = pd.factorize(trace.args["class"].reindex(module).astype(str))
    kind = np.full(len(trace) + 1, NONE, np.int64)
    kind[module] = codes
    counted = np.bincount(codes)
    of_op = kind[region_around(trace, "module")[ops]]
    return [ops[of_op == one] for one in np.flatnonzero(counted == calls)]


def _of_lines(trace: Trace, ops: Rows, calls: int, name: str) -> list[Rows]:
    """Per line that calls a function of that name, and ran so often, the ops in no module of it."""
    known = cell_lines(trace)
    if not len(known.row):
        return []
    names_it = known.lines["code"].str.contains(rf"\b{re.escape(name)}\s*\(", regex=True)
    counted = np.bincount(known.of_slice[known.row], minlength=len(known.lines))
    line = np.append(known.of_slice, NONE)[region_around(trace, "cell_line")[ops]]
    line = np.where(region_around(trace, "module")[ops] >= 0, NONE, line)
    return [
        ops[line == one] for one in np.flatnonzero(names_it.to_numpy(bool) & (counted == calls))
    ]


LOOP_INDEXING_REMEDY = (
    "Index all rows at once: slices, boolean masks, `torch.gather`, `torch.where` or broadcasting "
    "do in one call what the loop does in one per row."
)
UNLIKE_ROUNDS = 10
"""Times as many rounds have to be there where they are not alike: then it is a loop for sure."""
UNLIKE_OPS = 5
"""Per select where rounds are not alike: no step of a training indexes as often, nor a module."""
SHORT_NS = 50_000
"""Of an op: where it takes longer, its work costs more than that there are so many calls."""
TRAINING = re.compile(rf"{BACKWARD_PREFIX}.*|Optimizer\.(step|zero_grad)#.*")
"""What a loop that only indexes does not do."""
EVIDENCE = 2_000
"""Slices that light up."""


def loop_indexing(
    record: Record, *, loop_indexing_rounds: int = 10, loop_indexing_share: float = 0.01
) -> list[Finding]:
    """Fires where the same short ops follow `aten::select` ten times in a row, for 1 % of the run.

    torch's ForLoopIndexingPattern (10 repeats). Of rounds that are not alike there have to be 100.
    The loop of a training, which takes one batch per step, is none; those in a DataLoader are told
    by `dataloader`. The cost is the loop's time but for one round.

    ``loop_indexing_rounds``: Rounds from which on a loop that indexes row by row counts (torch:
        10).
    ``loop_indexing_share``: In such loops, but for one round of each.
    """
    loops = indexing_loops(record)
    least = loop_indexing_rounds
    unlike = (loops["rounds"] >= UNLIKE_ROUNDS * least) & (loops["per_select"] <= UNLIKE_OPS)
    of_rows = (loops["alike"] >= least) | unlike
    loops = loops[of_rows & (loops["per_op_ns"] < SHORT_NS)]
    loops = loops[~(_train(record, loops) | in_a_loader(record, loops))]
    cost = int((loops["dur_ns"] - loops["dur_ns"] // loops["rounds"].clip(lower=1)).sum())
    share = share_of(cost, run_ns(record))
    if not cost or share < loop_indexing_share:
        return []
    longest = loops.iloc[int(loops["dur_ns"].to_numpy(int).argmax())]
    rounds, start = int(loops["rounds"].sum()), int(longest["start_ns"])
    whole = format_ns(int(loops["dur_ns"].sum()))
    text = (
        f"Indexing a tensor row by row took {whole} ({format_share(share)} of the time): "
        f"{rounds:,} calls of {code('aten::select')}{_with(longest)}."
    )
    end = start + int(longest["dur_ns"])
    rows = tuple(int(row) for loop in loops["rows"] for row in loop)
    return [Finding(text, cost, share, start, end, rows[:EVIDENCE], LOOP_INDEXING_REMEDY)]


def _train(record: Record, loops: pd.DataFrame) -> npt.NDArray[np.bool_]:
    """Which loops go back through a graph or step an optimizer in every tenth round or more."""
    slices = record.trace.slices
    steps = np.sort(slices["ts"].to_numpy(np.int64)[record.trace.index.matching(TRAINING)])
    start = loops["start_ns"].to_numpy(np.int64)
    inside = np.searchsorted(steps, [start, start + loops["dur_ns"].to_numpy(np.int64)])
    return np.asarray(10 * (inside[1] - inside[0]) >= loops["rounds"].to_numpy(np.int64))


def in_a_loader(record: Record, loops: pd.DataFrame) -> npt.NDArray[np.bool_]:
    """Which loops run while a DataLoader of the main process makes its batch."""
    loading = waits(record)
    loading = loading[loading["kind"] == "dataloader"]
    start = loading["start_ns"].to_numpy(np.int64)
    spans = intervals.union(start, start + loading["dur_ns"].to_numpy(np.int64))
    return intervals.inside(loops["start_ns"].to_numpy(np.int64), spans)


def _with(loop: pd.Series) -> str:
    """The other ops of a round, where all rounds are alike."""
    others = loop["ops"].split(", ")[1:] if loop["alike"] == loop["rounds"] else []
    return f", each with {', '.join(code(op) for op in others)}" if others else ""


OPTIMIZER_LOOPS_EVIDENCE = 2_000
"""Slices that light up."""
OPTIMIZER_LOOPS_REMEDY = (
    "Pass `foreach=True` to the optimizer (the default on GPUs since PyTorch 2.0), or `fused=True` "
    "where it has it: one launch then updates many tensors."
)


def optimizer_loops(
    record: Record, *, optimizer_loops_share: float = 0.02, optimizer_loops_ops: int = 20
) -> list[Finding]:
    """Fires where an optimizer launched kernels for single tensors, for 2 % of the run's CPU time.

    torch's OptimizerSingleTensorPattern has no threshold. The cost is the ops' CPU time but for one
    of each name per step, as if each op of ``foreach`` took no longer than one of them, and no more
    than they have of the critical path.

    ``optimizer_loops_share``: Updating one tensor after the other (torch: any).
    ``optimizer_loops_ops``: Ops that launch a kernel in one step of an optimizer: fewer are no
        loop.
    """
    slices = record.trace.slices
    rows, regions = single_tensor_ops(record.trace)
    if not len(rows):
        return []
    step, number = np.unique(regions, return_counts=True)
    names = slices["name"].cat.codes.to_numpy()[rows]
    distinct = len(np.unique(np.stack([regions, names]), axis=1)[0])
    spent = int(slices["dur"].to_numpy()[rows].sum())
    cost = spent - spent * distinct // len(rows)
    cost = min(cost, cpu_path_ns(record, rows))
    share = share_of(cost, run_ns(record))
    if share < optimizer_loops_share or number.max() < optimizer_loops_ops:
        return []
    who = ", ".join(code(f"{kind}.step") for kind in kinds(record.trace, STEP, regions))
    steps = format_count(len(step), "step")
    text = (
        f"{who} updated one tensor after the other: {number.max():,} ops that launched a kernel "
        f"each in one step, {format_ns(spent)} of the CPU's time in {steps}; "
        f"{shorter(cost, record)} without."
    )
    most = int(step[number.argmax()])
    start = int(slices["ts"].iloc[most])
    end = start + int(slices["dur"].iloc[most])
    evidence = tuple(rows[regions == most][:OPTIMIZER_LOOPS_EVIDENCE])
    return [Finding(text, cost, share, start, end, evidence, OPTIMIZER_LOOPS_REMEDY)]


PRODUCTS = frozenset(
    f"aten::{name}"
    for name in (
        *("mm", "addmm", "bmm", "baddbmm", "linear", "matmul", "addmv", "mv"),
        *("convolution", "_convolution", "convolution_backward", "mkldnn_convolution"),
        *("thnn_conv2d", "_slow_conv2d_forward", "_slow_conv2d_backward", "mkldnn_linear"),
    )
)
"""Matrix products, and convolutions, which are done as some: threads share one, and bfloat16 helps
where the CPU multiplies in it."""

SHARED = PRODUCTS | frozenset(
    f"aten::{name}{end}"
    for name in (
        *("add", "sub", "mul", "div", "pow", "exp", "log", "sqrt", "rsqrt", "where", "copy"),
        *("tanh", "tanh_backward", "sigmoid", "sigmoid_backward", "gelu", "gelu_backward"),
        *("silu", "silu_backward", "relu", "clamp_min", "threshold_backward", "sum", "mean"),
        *("_softmax", "_softmax_backward_data", "_log_softmax", "_log_softmax_backward_data"),
        *("native_layer_norm", "native_layer_norm_backward", "native_batch_norm"),
        *("native_batch_norm_backward", "native_group_norm", "sort", "cat"),
        *("_scaled_dot_product_flash_attention_for_cpu", "max_pool2d_with_indices"),
    )
    for end in ("", "_")
)
"""Ops whose work torch shares out among threads (at::parallel_for in ATen/native, or BLAS)."""

TAKEN_PER_S = 50
"""From which on CPUs are contested, per second of CPU time: a thread that shares one with another
is interrupted some 100 to 300 times (Linux gives it 3 to 10 ms at a time), one alone but a few."""
TAKEN_LEAST = 20

MORE_THAN_CPUS = (
    "PyTorch runs an op on {threads} threads, and this process may use {cpus_here}: threads wait "
    "for one another, in ops that took {took}."
)
RANKS = (
    "This is one of {ranks} ranks, and each runs an op on {threads} threads: where they share "
    "{cpus_here}, threads wait for one another, here in ops that took {took}."
)
CONTESTED = (
    "Others wanted the {cpus_here} of this process as well (programs, ranks, workers of a "
    "DataLoader): the system took one from its threads {taken:,} times in {used} of CPU time. "
    "PyTorch runs an op on {threads} threads, which waits for the slowest of them: times of ops "
    "here are longer than they would be alone, and less even."
)
SET = "Set torch.set_num_threads({fewer})."
SET_IN_EACH = "Set torch.set_num_threads({fewer}) in each rank."
TRY = (
    "Measure again while nothing else runs; if others always do, try "
    "torch.set_num_threads({fewer})."
)
FEWER_THAN_CPUS = (
    "PyTorch runs an op on {threads}, and this process may use {cpus_here}: "
    "torch.set_num_threads({cpus}) shares it out."
)


def cpu_threads(record: Record, *, cpu_threads_share: float = 0.05) -> list[Finding]:
    """Fires where threads hold one another up in ops that take 5 % of the run or more.

    They do where there are more of them than CPUs, counting the ranks that share these, and where
    others want the CPUs too. What that costs is not known: of more threads than CPUs the finding
    stands for the time of the ops, of the rest for none. Silent where a GPU took part.

    ``cpu_threads_share``: Ops that threads share, where these hold one another up.
    """
    threads, cpus = _threads_and_cpus(record)
    if threads < 2 or not cpus or len(record.trace.index.gpu):
        return []
    took, run = _shared_ns(record), run_ns(record)
    if share_of(took, run) < cpu_threads_share:
        return []
    ranks, cpus_here = world_size_of(record.metadata), format_count(cpus, "CPU")
    told: dict[str, Any] = {"threads": threads, "cpus_here": cpus_here, "took": format_ns(took)}
    if threads > cpus:
        text, remedy, cost = MORE_THAN_CPUS.format(**told), SET.format(fewer=cpus), took
    elif ranks > 1 and ranks * threads > cpus:
        each = max(1, cpus // ranks)
        text, remedy = RANKS.format(**told, ranks=ranks), SET_IN_EACH.format(fewer=each)
        cost = took
    elif _are_contested(record):
        use = record.metadata["cpu_use"]
        told |= {"taken": int(use["preemptions"]), "used": format_ns(int(use["cpu_ns"]))}
        text, remedy, cost = CONTESTED.format(**told), TRY.format(fewer=threads // 2), 0
    else:
        return []
    return [Finding(text, cost, share_of(cost, run), remedy=remedy)]


def _shared_ns(record: Record) -> int:
    """How long ops ran that threads share, on all threads of the program together."""
    slices = record.trace.slices
    shared = record.trace.index.named(SHARED) & record.trace.index.in_category("cpu_op")
    start = slices["ts"].to_numpy(np.int64)[shared]
    return intervals.length(
        intervals.union(start, start + slices["dur"].to_numpy(np.int64)[shared])
    )


def _are_contested(record: Record) -> bool:
    """Whether the system often took the CPU from threads of the process that had work."""
    use = record.metadata.get("cpu_use") or {}
    taken, used = int(use.get("preemptions", 0)), int(use.get("cpu_ns", 0))
    return taken >= TAKEN_LEAST and taken * 1_000_000_000 >= TAKEN_PER_S * used


def too_few_threads(record: Record, name: str) -> str:
    """That more threads would share the op out; "" unless CPUs are known to be free for them."""
    threads, cpus = _threads_and_cpus(record)
    alone = world_size_of(record.metadata) <= 1 and not _are_contested(record)
    if not 0 < threads < cpus or name not in SHARED or not alone:
        return ""
    told = {"threads": format_count(threads, "thread"), "cpus": cpus}
    return FEWER_THAN_CPUS.format(**told, cpus_here=format_count(cpus, "CPU"))


def multiplies_bf16(record: Record, name: str) -> bool:
    """Whether bfloat16 makes the op shorter: a product, on a CPU that multiplies in it."""
    return name in PRODUCTS and bool(record.metadata.get("cpu_bf16"))


def _threads_and_cpus(record: Record) -> tuple[int, int]:
    """Threads of an op and CPUs of the process, 0 where the record does not say."""
    told = record.metadata
    return int(told.get("torch_threads") or 0), int(told.get("cpus") or 0)
