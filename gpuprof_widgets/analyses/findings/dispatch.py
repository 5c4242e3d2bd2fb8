"""Findings on op overhead: loops that index row by row, dispatch, CPU threads."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from gpuprof_widgets.analyses.collectives import world_size_of
from gpuprof_widgets.analyses.columns import format_count, format_ns, format_share
from gpuprof_widgets.analyses.findings.finding import Finding, code, run_ns, share_of, spread
from gpuprof_widgets.analyses.findings.uneven_calls import interruptions
from gpuprof_widgets.analyses.lines import cell_lines
from gpuprof_widgets.analyses.owners import region_around
from gpuprof_widgets.analyses.regions import calls_per_traced_step
from gpuprof_widgets.analyses.sequences import indexing_loops
from gpuprof_widgets.analyses.waits import run_lane, waits
from gpuprof_widgets.trace import intervals, links
from gpuprof_widgets.trace.arrays import Mask, Rows
from gpuprof_widgets.trace.index import take
from gpuprof_widgets.trace.model import Record, Trace
from gpuprof_widgets.trace.owners import EVALUATE, open_on_other_track
from gpuprof_widgets.trace.pstats import BUILT_IN, functions_of_frames
from gpuprof_widgets.trace.schema import NONE

OPERATORS = re.compile(r"(?:^|[/\\])torch[/\\]_tensor\.py$")
"""Where some operators of tensors are Python functions (``x ** 3``)."""
MANY = 3
"""Ops per call from which on a function has many."""
DISPATCH_NS = 15_000
"""Self time of the function per op that can be dispatch: a few microseconds, and recording as much
again."""
SMALL_NS = 100_000
"""Duration of the median op above which its dispatch does not matter."""

REMEDY = "That time is mostly the dispatch of {count} small ops per call: fuse them ({means})."


@dataclass(frozen=True)
class DirectOps:
    """Rows of the ops that a function called itself, over that many of its calls."""

    row: Rows
    calls: int


def dispatch_remedy(record: Record, function: pd.Series, own_ns: int) -> str:
    """Return the remedy for a function (a row of `python_time`) of many small ops; else ""."""
    ops = direct_ops(record, function)
    if ops is None or len(ops.row) < MANY * ops.calls:
        return ""
    each = own_ns / calls_per_traced_step(record) / len(ops.row)
    if each > DISPATCH_NS or np.median(record.trace.index.dur[ops.row]) > SMALL_NS:
        return ""
    names = record.trace.index.names_of(ops.row)
    counted = Counter(name.removeprefix("aten::").rstrip("_") for name in names)
    per_call = Counter({name: round(count / ops.calls) for name, count in counted.items()})
    means = f"{_gelu(per_call)}`torch.compile`"
    return REMEDY.format(count=round(len(ops.row) / ops.calls), means=means)


def direct_ops(record: Record, function: pd.Series) -> DirectOps | None:
    """Return the ops that a function (a row of `python_time`) called itself; None if unknown."""
    ops = _in_frames(record, function)
    return _in_regions(record, function) if ops is None else ops


def _gelu(ops: Counter[str]) -> str:
    """Return ``F.gelu`` where the ops are those of a GELU, exact or by tanh; else ""."""
    used = {name for name, count in ops.items() if count}
    if not used <= {"mul", "add", "pow", "div", "tanh", "erf"} or ops["mul"] + ops["div"] < 2:
        return ""
    if ops["erf"] == 1 and not ops["tanh"] and ops["add"]:
        return "`F.gelu(x)`, "
    cubed = ops["pow"] == 1 or ops["mul"] >= 5
    is_by_tanh = ops["tanh"] == 1 and not ops["erf"] and cubed and ops["add"] >= 2
    return '`F.gelu(x, approximate="tanh")`, ' if is_by_tanh else ""


def _outermost_ops(trace: Trace) -> Rows:
    """Return the ops that are in no other op, without the backward pass."""
    ops = trace.index.is_op & trace.index.on_tracks("cpu")
    parent = trace.index.parent
    late = trace.index.column("forward") >= 0
    return np.flatnonzero(ops & ~late & (links.nearest_ancestor(parent, ops) < 0))


def _in_frames(record: Record, function: pd.Series) -> DirectOps | None:
    """Return the ops right in the function's frames, or in operators and built-ins it called."""
    trace = record.trace
    if not trace.index.on_tracks("python").any():
        return None
    functions, of_frame = functions_of_frames(trace)
    same = np.all([functions[key] == function[key] for key in ("file", "line", "name")], axis=0)
    between = (functions["file"] == BUILT_IN) | functions["file"].str.contains(OPERATORS)
    opaque = ~take(between.to_numpy(bool), of_frame, False)
    in_function = take(same, of_frame, False)
    ops = _outermost_ops(trace)
    frame = open_on_other_track(trace, *trace.index.uncut)[ops]
    around = take(links.itself_or_ancestor(trace.index.parent, opaque), frame)
    return DirectOps(ops[take(in_function, around, False)], max(int(function["calls"]), 1))


def _in_regions(record: Record, function: pd.Series) -> DirectOps | None:
    """Return the ops right in the function's region: the forward of a module class, or a line.

    cProfile does not say in which function an operator ran. A ``forward``, or a function that only
    forwards call, belongs to the only class that was called as often and has many ops of its own;
    any other function to the only line that calls it and ran as often.
    """
    trace = record.trace
    calls = round(int(function["calls"]) / calls_per_traced_step(record))
    ops = _outermost_ops(trace)
    lane = trace.tracks["lane"].to_numpy()[trace.index.track]
    ops = ops[lane[ops] == run_lane(record)]
    if function["name"] == "forward" or _is_called_by_forwards(record, function):
        matches = _of_classes(trace, ops, calls)
    else:
        matches = _of_lines(trace, ops, calls, str(function["name"]))
    matches = [rows for rows in matches if len(rows) >= MANY * calls]
    return DirectOps(matches[0], calls) if len(matches) == 1 and calls else None


def _is_called_by_forwards(record: Record, function: pd.Series) -> bool:
    """Whether cProfile saw only functions named ``forward`` call this one."""
    if record.calls is None:
        return False
    functions, edges = record.calls.functions, record.calls.edges
    same = np.all([functions[key] == function[key] for key in ("file", "line", "name")], axis=0)
    callers = functions["name"].to_numpy(object)[edges["caller"][same[edges["callee"]]]]
    return bool(len(callers)) and bool((callers == "forward").all())


def _of_classes(trace: Trace, ops: Rows, calls: int) -> list[Rows]:
    """Return the ops right in the modules of each class that was called that often."""
    module = np.flatnonzero(trace.index.in_category("module"))
    if not len(module) or "class" not in trace.args:
        return []
    codes, _ = pd.factorize(trace.args["class"].reindex(module).astype(str))
    kind = np.full(len(trace), NONE, np.int64)
    kind[module] = codes
    counted = np.bincount(codes)
    of_op = take(kind, region_around(trace, "module")[ops])
    return [ops[of_op == group] for group in np.flatnonzero(counted == calls)]


def _of_lines(trace: Trace, ops: Rows, calls: int, name: str) -> list[Rows]:
    """Return the ops, outside modules, of each line that calls that name and ran that often."""
    cell = cell_lines(trace)
    if not len(cell.row):
        return []
    names_it = cell.lines["code"].str.contains(rf"\b{re.escape(name)}\s*\(", regex=True)
    counted = np.bincount(cell.of_slice[cell.row], minlength=len(cell.lines))
    line = take(cell.of_slice, region_around(trace, "cell_line")[ops])
    line = np.where(region_around(trace, "module")[ops] >= 0, NONE, line)
    return [
        ops[line == row] for row in np.flatnonzero(names_it.to_numpy(bool) & (counted == calls))
    ]


LOOP_INDEXING_REMEDY = (
    "Index all rows at once: slices, boolean masks, `torch.gather`, `torch.where` or broadcasting "
    "need one call where the loop needs one call per row."
)
UNLIKE_ROUNDS = 10
"""Times as many rounds are needed where rounds are not alike, to be sure that it is a loop."""
UNLIKE_OPS = 5
"""Ops per select at most where rounds are not alike: training steps have more."""
SHORT_NS = 50_000
"""Duration of an op above which its work costs more than the number of calls."""
TRAINING = re.compile(rf"{EVALUATE}.*|Optimizer\.(step|zero_grad)#.*")
"""What a loop that only indexes does not call."""


def loop_indexing(
    record: Record, *, loop_indexing_rounds: int = 10, loop_indexing_share: float = 0.01
) -> list[Finding]:
    """Fires if the same short ops follow ``aten::select`` ten times in a row, for 1 % of the run.

    Rounds that are not alike must be 100. A training loop, which takes one batch per step, does not
    count; `dataloader` reports loops in a DataLoader.

    Cost: the loop's time except for one round.

    Source: torch's ForLoopIndexingPattern (10 repeats).
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
    others = longest["ops"].split(", ")[1:] if longest["alike"] == longest["rounds"] else []
    with_others = f", each with {', '.join(code(op) for op in others)}" if others else ""
    text = (
        f"Indexing a tensor row by row took {whole} ({format_share(share)} of the time): "
        f"{rounds:,} calls of {code('aten::select')}{with_others}."
    )
    end = int(longest["end_ns"])
    rows = spread([row for loop in loops["rows"] for row in loop])
    title, remedy = "A loop indexes a tensor row by row", LOOP_INDEXING_REMEDY
    return [Finding(text, cost, share, start, end, rows, remedy, title=title)]


def _train(record: Record, loops: pd.DataFrame) -> Mask:
    """Whether each loop runs a backward pass or an optimizer in every tenth round or more."""
    index = record.trace.index
    steps = np.sort(index.ts[index.matching(TRAINING)])
    inside = np.searchsorted(steps, loops[["start_ns", "end_ns"]].to_numpy(np.int64).T)
    return np.asarray(10 * (inside[1] - inside[0]) >= loops["rounds"].to_numpy(np.int64))


def in_a_loader(record: Record, loops: pd.DataFrame) -> Mask:
    """Whether each loop runs while a DataLoader of the main process makes its batch."""
    loading = waits(record)
    loading = loading[loading["kind"] == "dataloader"]
    start = loading["start_ns"].to_numpy(np.int64)
    spans = intervals.union(start, start + loading["dur_ns"].to_numpy(np.int64))
    return intervals.inside(loops["start_ns"].to_numpy(np.int64), spans)


MATRIX_PRODUCTS = frozenset(
    f"aten::{name}"
    for name in (
        *("mm", "addmm", "bmm", "baddbmm", "linear", "matmul", "addmv", "mv"),
        *("convolution", "_convolution", "convolution_backward", "mkldnn_convolution"),
        *("thnn_conv2d", "_slow_conv2d_forward", "_slow_conv2d_backward", "mkldnn_linear"),
    )
)
"""Matrix products and convolutions: threads share one, and bfloat16 helps where the CPU multiplies
in it."""

THREADED = MATRIX_PRODUCTS | frozenset(
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
"""Ops whose work torch splits among threads (at::parallel_for in ATen/native, or BLAS)."""

MORE_THAN_CPUS = (
    "PyTorch runs each op on {threads} threads, but this process may use only {cpus_here}. "
    "Threads wait for one another in ops that took {took}."
)
RANKS = (
    "This is one of {ranks} ranks, and each runs its ops on {threads} threads. If the ranks share "
    "{cpus_here}, threads wait for one another. Ops that are affected took {took}."
)
CONTESTED = (
    "Other programs, ranks or DataLoader workers also used the {cpus_here} of this process. The "
    "system interrupted its threads {taken:,} times in {used} of CPU time{queued}. PyTorch runs "
    "each op on {threads} threads and waits for the slowest. So ops take longer here than they "
    "would alone, and their times vary more."
)
QUEUED = ", and the thread of the run was ready for {queued} ({share}) without a CPU"
SET = "Call torch.set_num_threads({fewer})."
SET_IN_EACH = "Call torch.set_num_threads({fewer}) in each rank."
TRY = (
    "Measure again while nothing else runs; if other programs always run, try "
    "torch.set_num_threads({fewer})."
)
FEWER_THAN_CPUS = (
    "PyTorch runs each op on {threads}, but this process may use {cpus_here}. Call "
    "torch.set_num_threads({cpus})."
)


def cpu_threads(record: Record, *, cpu_threads_share: float = 0.05) -> list[Finding]:
    """Fires if threads hold one another up in ops that take 5 % of the run or more.

    They do if there are more threads than CPUs, counting the ranks that share these, and if other
    programs use the CPUs too. Silent if a GPU took part.

    Cost: the real cost is unknown. With more threads than CPUs it is the time of the ops. With
    contention it is the time in which the thread of the run was ready and had no CPU; 0 if the
    system did not measure that.
    """
    threads, cpus = _threads_and_cpus(record)
    if threads < 2 or not cpus or len(record.trace.index.gpu):
        return []
    index, run = record.trace.index, run_ns(record)
    shared = index.named(THREADED) & index.in_category("cpu_op")  # on all threads together
    took = intervals.length(intervals.union(index.ts[shared], index.end[shared]))
    if share_of(took, run) < cpu_threads_share:
        return []
    ranks, cpus_here = world_size_of(record.metadata), format_count(cpus, "CPU")
    words: dict[str, Any] = {"threads": threads, "cpus_here": cpus_here, "took": format_ns(took)}
    if threads > cpus:
        text, remedy, cost = MORE_THAN_CPUS.format(**words), SET.format(fewer=cpus), took
        title = "PyTorch uses more threads than there are CPUs"
    elif ranks > 1 and ranks * threads > cpus:
        each = max(1, cpus // ranks)
        text, remedy = RANKS.format(**words, ranks=ranks), SET_IN_EACH.format(fewer=each)
        cost, title = took, "The ranks use more threads than there are CPUs"
    elif taken := interruptions(record):
        # It is known of the whole recording only: a range of it has as large a share.
        use = record.metadata["cpu_use"]
        without_cpu = share_of(use.get("queued_ns", 0), use["wall_ns"])
        cost = round(min(max(without_cpu, 0.0), 1.0) * run)
        queued = QUEUED.format(queued=format_ns(cost), share=format_share(share_of(cost, run)))
        words |= {"taken": taken, "used": format_ns(int(use["cpu_ns"]))}
        text = CONTESTED.format(**words, queued=queued if cost else "")
        remedy, title = TRY.format(fewer=threads // 2), "Other programs compete for the CPUs"
    else:
        return []
    return [Finding(text, cost, share_of(cost, run), remedy=remedy, title=title)]


def too_few_threads(record: Record, name: str) -> str:
    """Say that more threads would split the op; "" unless CPUs are known to be free for them."""
    threads, cpus = _threads_and_cpus(record)
    alone = world_size_of(record.metadata) <= 1 and not interruptions(record)
    if not 0 < threads < cpus or name not in THREADED or not alone:
        return ""
    words = {"threads": format_count(threads, "thread"), "cpus": cpus}
    return FEWER_THAN_CPUS.format(**words, cpus_here=format_count(cpus, "CPU"))


def multiplies_bf16(record: Record, name: str) -> bool:
    """Whether bfloat16 makes the op shorter: a product, on a CPU that multiplies in bfloat16."""
    return name in MATRIX_PRODUCTS and bool(record.metadata.get("cpu_bf16"))


def _threads_and_cpus(record: Record) -> tuple[int, int]:
    """Return the threads per op and the CPUs of the process, 0 where the record does not say."""
    metadata = record.metadata
    return int(metadata.get("torch_threads") or 0), int(metadata.get("cpus") or 0)
