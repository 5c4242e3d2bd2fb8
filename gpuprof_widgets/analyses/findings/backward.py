"""Findings on the backward pass: slow or waiting ops, recomputation, Python autograd functions."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pandas as pd

from gpuprof_widgets.analyses.backward import backward_ns, backward_ops, recomputed
from gpuprof_widgets.analyses.columns import format_count, format_ns, format_share
from gpuprof_widgets.analyses.findings.dispatch import MATRIX_PRODUCTS, multiplies_bf16
from gpuprof_widgets.analyses.findings.finding import (
    Finding,
    code,
    place_of,
    run_ns,
    share_of,
    slice_range,
    spread,
)
from gpuprof_widgets.analyses.findings.uneven_calls import uneven_calls
from gpuprof_widgets.analyses.gpu_work import open_times
from gpuprof_widgets.analyses.operators import op_rows
from gpuprof_widgets.trace import intervals, links
from gpuprof_widgets.trace.arrays import Mask, Rows
from gpuprof_widgets.trace.index import take
from gpuprof_widgets.trace.model import Record, Trace

MOST = 3  # findings

REMEDIES = {
    "GatherBackward0": "Use indexing instead, as in x[rows, indices]: it is cheaper in both "
    "passes.",
    "EmbeddingBackward0": "It fills a gradient as large as the whole table. Use "
    "`nn.Embedding(..., sparse=True)` with `torch.optim.SparseAdam` or SGD: then the gradient has "
    "only the rows that were used.",
}
MOSTLY = 0.9
SHORT_NS = 20_000
"""Duration of a call below which the overhead of any op is most of it, in both passes."""
MANY = 10
"""Calls from which on fewer calls are worth a remedy."""
SHORT = (
    "On average a call takes {each}, much of it the overhead of any op, forward or backward: "
    "make fewer calls, on larger tensors."
)
WAITED = "The CPU launches nothing while it waits. Look for an op whose backward does not wait."
OTHERWISE = "Look for another op with the same result and a cheaper backward."
OF_A_GRAPH = (
    "Run it once with the environment variable PYTORCH_JIT=0. Without TorchScript, each op of the "
    "graph is recorded separately."
)
OF_A_FUNCTION = "It is the backward of a custom autograd function. See which ops in it take long."
OF_A_PRODUCT = (
    "The backward computes the gradients of input and weight: two products or convolutions, each "
    "about as large as the forward. Smaller sizes{narrower} make all three shorter."
)
IN_BF16 = " or bfloat16 (which this CPU multiplies in hardware)"
IN_PROPORTION = (
    "That is usual for its forward op. Whatever makes the forward cheaper, such as smaller sizes, "
    "makes the backward cheaper too."
)

ONE_VALUE_PER_ROW = frozenset({"aten::nll_loss_forward", "aten::nll_loss2d_forward"})
"""Forward ops that read one value per row while their backward fills all of it: out of proportion
in every training."""

HOOKS = frozenset(
    f"{name}Backward"
    for name in (
        "CompiledFunction",
        *("CheckpointFunction", "RegisterPostBackwardFunction", "BackwardHookFunction", "_DDPSink"),
    )
)
"""PyTorch's backward ops that only call others (torch.compile, torch/utils/checkpoint, distributed,
hooks of modules): the work is in the ops that they call."""

MANY_OPS = "DifferentiableGraphBackward"
"""Backward op of a whole TorchScript graph; the trace links it to the graph's last op alone."""
VIEWS = frozenset(
    f"aten::{name}{end}"
    for name in (
        *("detach", "alias", "view", "view_as", "_unsafe_view", "reshape", "_reshape_alias"),
        *("t", "transpose", "permute", "squeeze", "unsqueeze"),
    )
    for end in ("", "_")
)
"""Forward ops that only make a view, as their backward does: a slow backward op linked to one goes
back through more ops. (PyTorch's documentation, "Tensor Views", lists more; the backward of a slice
or an expansion does work.)"""

SORTS_WHEN_DETERMINISTIC = {"GatherBackward0"}
"""Backward ops that sort on a GPU under `torch.use_deterministic_algorithms(True)`.

Their scatter_add is done by `index_put_` then. PyTorch 2.0 to 2.5 at least also copy from the CPU
for it, and wait for the copy; later versions have changed that.
"""


def backward(
    record: Record,
    *,
    backward_share: float = 0.02,
    backward_large_share: float = 0.25,
    backward_ratio: float = 5.0,
    backward_notable_share: float = 0.1,
) -> list[Finding]:
    """Report at most three ops that waited, were large or out of proportion to their forward op.

    Runs without a GPU also get those that are known to cost far more on a GPU.

    Cost: the time of the op alone (without hooks, collectives, compilation and a forward computed
    again), or the time that it waited for the GPU.
    """
    table = backward_ops(record)
    if not len(table):
        return []
    whole, self_ns, on_gpu = backward_ns(record), table["own_ns"], len(record.trace.index.gpu)
    is_foreseen = table["name"].isin(list(SORTS_WHEN_DETERMINISTIC))
    is_foreseen &= bool(record.metadata.get("deterministic")) and not on_gpu
    foreseen = [_foreseen_finding(record, op, whole) for _, op in table[is_foreseen].iterrows()]
    notable = self_ns >= backward_ratio * table["forward_cpu_ns"]
    notable &= _has_whole_forward(record, table) & (self_ns >= backward_notable_share * whole)
    notable |= self_ns >= backward_large_share * whole
    notable &= ~table["name"].isin(list(HOOKS)) & (not table["device_ns"].any())
    notable = (notable | (table["wait_ns"] > 0)) & ~is_foreseen
    findings = [_finding(record, op, whole, backward_ratio) for _, op in table[notable].iterrows()]
    findings = [finding for finding in findings if finding.share >= backward_share]
    return sorted(findings, key=lambda finding: -finding.cost_ns)[:MOST] + foreseen


def _has_whole_forward(record: Record, table: pd.DataFrame) -> Mask:
    """Whether the linked forward op is all that a backward op goes back through, and did work.

    False where a backward op of that name also recomputed the forward (`recomputation`).
    """
    of_graph = table["name"].str.contains(MANY_OPS, regex=False).to_numpy(bool)
    recomputing = record.trace.index.names_of(recomputed(record.trace).node)
    no_work = table["forward"].isin(list(VIEWS | ONE_VALUE_PER_ROW))
    no_work |= table["name"].isin(recomputing)
    return np.asarray(~of_graph & ~no_work.to_numpy(bool))


def _finding(record: Record, op: pd.Series, whole: int, ratio: float) -> Finding:
    if op["wait_ns"] > 0:
        return _waiting(record, op, whole)
    cost, times = int(op["own_ns"]), op["own_ns"] / max(int(op["forward_cpu_ns"]), 1)
    odd = times >= ratio and bool(_has_whole_forward(record, op.to_frame().T)[0])
    text = f"{_who(op)} took {format_ns(cost)} "
    text += f"({format_share(share_of(cost, whole))} of the backward pass)"
    text += f", {times:.0f} times as long as its forward." if odd else "."
    title = "takes far longer than its forward" if odd else "takes much of the backward pass"
    remedy = REMEDIES.get(op["name"]) or _remedy(record, op, odd=odd)
    return _at(record, op, Finding(text, cost, remedy=remedy, title=f"{_name(op)} {title}"))


def _remedy(record: Record, op: pd.Series, *, odd: bool) -> str:
    """Return the remedy by the lengths of the calls, else by what the op computes.

    It is "" where the forward op is only part of what it goes back through.
    """
    row, calls, whole = int(op["row"]), int(op["calls"]), int(op["cpu_ns"])
    longest = int(record.trace.index.dur[row])
    other = (whole - longest) / max(calls - 1, 1)
    is_its_own = op["own_ns"] >= MOSTLY * whole  # else the longest may be one with a long hook
    if is_its_own and (
        uneven := uneven_calls(
            record, row, longest_ns=longest, all_ns=whole, other_ns=other, calls=calls
        )
    ):
        return uneven
    each = int(op["own_ns"]) / max(calls, 1)
    if calls >= MANY and each < SHORT_NS:
        return SHORT.format(each=format_ns(each))
    if MANY_OPS in op["name"]:
        return OF_A_GRAPH
    if op["name"] == f"{op['forward']}Backward":
        return OF_A_FUNCTION
    if op["forward"] in VIEWS:
        return ""
    if op["forward"] in MATRIX_PRODUCTS:
        narrower = IN_BF16 if multiplies_bf16(record, op["forward"]) else ""
        return OF_A_PRODUCT.format(narrower=narrower)
    return OTHERWISE if odd else IN_PROPORTION


def _waiting(record: Record, op: pd.Series, whole: int) -> Finding:
    cost, calls = int(op["wait_ns"]), format_count(int(op["calls"]), "call")
    text = (
        f"{_who(op)} waited {format_ns(cost)} for the GPU in {calls} "
        f"({format_share(share_of(cost, whole))} of the backward pass)."
    )
    remedy, title = REMEDIES.get(op["name"], WAITED), f"{_name(op)} waits for the GPU"
    return _at(record, op, Finding(text, cost, remedy=remedy, title=title))


def _foreseen_finding(record: Record, op: pd.Series, whole: int) -> Finding:
    cost = int(op["cpu_ns"])
    text = (
        f"{_who(op)} took {format_ns(cost)} ({format_share(share_of(cost, whole))} of the backward "
        "pass). On a GPU, deterministic algorithms make it sort. In many versions of PyTorch, the "
        "CPU waits for that."
    )
    title = f"{_name(op)} would be slow on a GPU"
    return _at(record, op, Finding(text, cost, remedy=REMEDIES[op["name"]], title=title))


def _name(op: pd.Series) -> str:
    """Return an op and its module: `GatherBackward0` of `drop`."""
    of = f" of {code(op['module'])}" if op["module"] else ""
    return code(MANY_OPS if MANY_OPS in op["name"] else op["name"]) + of


def _who(op: pd.Series) -> str:
    """Return an op and its origin: `GatherBackward0` of `drop` (forward `aten::gather`, line 1)."""
    if MANY_OPS in op["name"]:
        return f"{_name(op)} (all ops of a TorchScript graph)"
    line = f", line {op['line']}" if op["line"] >= 0 else ""
    return f"{_name(op)} (forward {code(op['forward'])}{line})"


def _at(record: Record, op: pd.Series, finding: Finding) -> Finding:
    """Add the share of the run and the place: the longest call and its forward op."""
    row = int(op["row"])
    start, end = slice_range(record.trace, row)
    rows = (row, int(record.trace.slices["forward"].iloc[row]))
    share = share_of(finding.cost_ns, run_ns(record))
    return replace(finding, share=share, start_ns=start, end_ns=end, rows=rows)


RECOMPUTATION_REMEDY = (
    "Where memory allows, checkpoint fewer blocks. Checkpoint those that need much memory and "
    "little compute. torch.utils.checkpoint.create_selective_checkpoint_contexts keeps the results "
    "of a block's costly ops."
)


def recomputation(record: Record, *, recomputation_share: float = 0.05) -> list[Finding]:
    """Fires if recomputing the forward takes 5 % of the run: on the GPU, if there is one.

    Cost: the GPU time of the recomputed ops, without a GPU their CPU time.
    """
    trace, index = record.trace, record.trace.index
    again, gpu = recomputed(trace), index.gpu
    took, whole = again.end_ns - again.start_ns, backward_ns(record)
    cost = int(took.sum())
    if len(gpu):
        within = np.zeros(len(trace), bool)
        within[again.rows] = True
        within = links.itself_or_ancestor(index.parent, within) >= 0
        cost = int(index.dur[gpu[take(within, index.column("op")[gpu], False)]].sum())
        whole = int(index.dur[gpu].sum())
    share = share_of(cost, run_ns(record))
    if not cost or share < recomputation_share:
        return []
    longest = int(took.argmax())
    (name,) = index.names_of(again.node[[longest]])
    text = (
        f"The backward pass recomputes the forward in {format_count(len(again.node), 'op')}, such "
        f"as {code(name)} (activation checkpointing). This took {format_ns(cost)} "
        f"({format_share(share_of(cost, whole))} of {'GPU time' if len(gpu) else 'that pass'}). It "
        "is the price of the memory that checkpointing saves."
    )
    place = (int(again.start_ns[longest]), int(again.end_ns[longest]))
    rows = spread(again.rows)
    title = "The backward pass recomputes the forward"
    return [Finding(text, cost, share, *place, rows, RECOMPUTATION_REMEDY, title=title)]


BACKWARD = "Backward"
OF_TORCH = frozenset(
    (
        *("CheckpointFunction", "CompiledFunction", "BackwardHookFunction", "NoopSaveInputs"),
        *("RegisterPostBackwardFunction", "_DDPSink", "_FromTorchTensor", "_ToTorchTensor"),
        *("Redistribute", "NestedRedistribute", "_AllGather", "_AllReduce", "_Reduce_Scatter"),
        *("_AlltoAll", "_AlltoAllSingle", "_Broadcast", "_Gather", "_Reduce", "_Scatter"),
        *("Broadcast", "Gather", "ReduceAddCoalesced", "Scatter", "SyncBatchNorm"),
    )
)
"""PyTorch's own autograd functions (torch/utils/checkpoint, _functorch, nn, distributed), which
users cannot rewrite: checkpoints, hooks, passing tensors on."""

PYTHON_AUTOGRAD_REMEDY = (
    "That time is Python, and calls that are no PyTorch ops. Write the function in differentiable "
    "PyTorch ops, whose backward needs no Python, or compile it (torch.compile). Otherwise call it "
    "less often, on larger tensors."
)


def python_autograd(record: Record, *, python_autograd_share: float = 0.05) -> list[Finding]:
    """Report each custom function that takes 5 % of the run outside of ops and runtime calls.

    Cost: the time of its forward and backward outside of ops and runtime calls. If a GPU works,
    only the time in which it is idle: Python beside a busy GPU costs nothing.
    """
    trace, findings = record.trace, []
    busy = open_times(trace, trace.index.gpu)
    of_gpu = ", while no GPU worked," if len(busy[0]) else ""
    for name in _functions(trace):
        calls, inner = _calls(trace, name)
        outside = intervals.difference(open_times(trace, calls), open_times(trace, inner))
        cost = intervals.length(intervals.difference(outside, busy))
        share = share_of(cost, run_ns(record))
        if share < python_autograd_share:
            continue
        text = (
            f"The custom autograd function {code(name)} spent {format_ns(cost)} "
            f"({format_share(share)} of the time) outside of ops{of_gpu} in "
            f"{format_count(len(calls), 'call')} of its forward and backward."
        )
        title = f"The custom autograd function {code(name)} spends time in Python"
        place, remedy = place_of(trace, calls), PYTHON_AUTOGRAD_REMEDY
        findings.append(Finding(text, cost, share, remedy=remedy, title=title, **place))
    return findings


def _functions(trace: Trace) -> list[str]:
    """Return the functions whose backward ran: `MyExp` where `MyExpBackward` links to it."""
    index = trace.index
    candidates = frozenset(name for name in index.names if name.endswith(BACKWARD))
    rows = np.flatnonzero(index.named(candidates) & (index.column("forward") >= 0))
    names = index.names_of(rows), index.names_of(index.column("forward")[rows])
    pairs = zip(*names, strict=True)
    paired = {forward for back, forward in dict.fromkeys(pairs) if back == forward + BACKWARD}
    return sorted(paired - OF_TORCH)


def _calls(trace: Trace, name: str) -> tuple[Rows, Rows]:
    """Return the slices of a function's forward and backward, and the ops and calls in them."""
    calls = trace.index.named(frozenset((name, name + BACKWARD)))
    within = links.nearest_ancestor(trace.index.parent, calls) >= 0
    listed = np.zeros(len(trace), bool)
    listed[op_rows(trace).row] = True
    return np.flatnonzero(calls & listed), np.flatnonzero(within & listed & ~calls)
