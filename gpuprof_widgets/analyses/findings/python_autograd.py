"""Custom `torch.autograd.Function`s: what their Python costs around the ops that they call."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from gpuprof_widgets.analyses.findings.finding import Finding
from gpuprof_widgets.analyses.findings.wording import code, run_ns, share_of
from gpuprof_widgets.analyses.op_rows import op_rows
from gpuprof_widgets.analyses.open_times import open_times
from gpuprof_widgets.analyses.quantity import format_count, format_ns, format_share
from gpuprof_widgets.trace import intervals, links
from gpuprof_widgets.trace.model import Record, Trace

EVIDENCE = 2_000
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
"""Functions of torch itself (torch/utils/checkpoint, _functorch, nn, distributed):
checkpoints, hooks, the handing over of tensors. Nobody writes them otherwise."""

REMEDY = (
    "That is its Python, and what it calls that is no PyTorch op. Write it in differentiable ops "
    "of PyTorch, through which autograd goes back without Python, or compile it (torch.compile); "
    "else call it less often, on larger tensors."
)


def python_autograd(record: Record, *, python_autograd_share: float = 0.05) -> list[Finding]:
    """One finding per function that takes 5 % of the run outside of ops and calls of a GPU.

    Where a GPU works, only while it is idle: Python beside a busy GPU holds nothing up.

    ``python_autograd_share``: In the Python of a custom `torch.autograd.Function`, outside of the
        ops that it calls.
    """
    trace = record.trace
    busy = open_times(trace, trace.index.gpu)
    said = [_finding(record, name, busy, python_autograd_share) for name in _functions(trace)]
    return [finding for finding in said if finding is not None]


def _functions(trace: Trace) -> list[str]:
    """Names of the functions whose backward ran: `MyExp` is linked to from `MyExpBackward`."""
    index = trace.index
    candidates = frozenset(name for name in index.names if name.endswith(BACKWARD))
    rows = np.flatnonzero(index.named(candidates) & (index.column("forward") >= 0))
    names = index.names_of(rows), index.names_of(index.column("forward")[rows])
    pairs = zip(*names, strict=True)
    paired = {forward for back, forward in dict.fromkeys(pairs) if back == forward + BACKWARD}
    return sorted(paired - OF_TORCH)


def _finding(
    record: Record, name: str, busy: intervals.Intervals, python_autograd_share: float
) -> Finding | None:
    trace = record.trace
    calls, inner = _calls(trace, name)
    outside = intervals.difference(open_times(trace, calls), open_times(trace, inner))
    cost = intervals.length(intervals.difference(outside, busy))
    share = share_of(cost, run_ns(record))
    if share < python_autograd_share:
        return None
    of_gpu = ", while no GPU worked," if len(busy[0]) else ""
    text = (
        f"The custom autograd function {code(name)} spent {format_ns(cost)} "
        f"({format_share(share)} of the time) outside of ops{of_gpu} in "
        f"{format_count(len(calls), 'call')} of its forward and backward."
    )
    ts, dur = (trace.slices[column].to_numpy()[calls] for column in ("ts", "dur"))
    longest = int(dur.argmax())
    place = (int(ts[longest]), int(ts[longest] + dur[longest]))
    rows = tuple(calls[:EVIDENCE].tolist())
    return Finding(text, cost, share, *place, rows, REMEDY)


def _calls(trace: Trace, name: str) -> tuple[npt.NDArray[np.intp], npt.NDArray[np.intp]]:
    """The slices of a function's forward and backward, and those of ops and calls within them."""
    calls = trace.index.named(frozenset((name, name + BACKWARD)))
    within = links.nearest_ancestor(trace.slices["parent"].to_numpy(), calls) >= 0
    listed = np.zeros(len(trace), bool)
    listed[op_rows(trace).row] = True
    return np.flatnonzero(calls & listed), np.flatnonzero(within & listed & ~calls)
