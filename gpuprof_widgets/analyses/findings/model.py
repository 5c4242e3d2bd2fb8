"""Findings on the code of model and training: anomaly mode, no_grad, optimizers, useless biases."""

from __future__ import annotations

import re

import numpy as np

from gpuprof_widgets.analyses.columns import format_count, format_ns, format_share
from gpuprof_widgets.analyses.critical_path import cpu_path_ns
from gpuprof_widgets.analyses.findings.finding import (
    Finding,
    code,
    run_ns,
    share_of,
    shorter,
    slice_range,
    spread,
)
from gpuprof_widgets.analyses.modules import (
    ON_MANY,
    STEP,
    ZERO_GRAD,
    kinds,
    single_tensor_ops,
    zeroing_ops,
)
from gpuprof_widgets.analyses.owners import region_around
from gpuprof_widgets.analyses.sequences import biased_before_norm
from gpuprof_widgets.trace import links
from gpuprof_widgets.trace.arrays import Rows
from gpuprof_widgets.trace.index import take
from gpuprof_widgets.trace.model import Record, Trace
from gpuprof_widgets.trace.owners import is_engine
from gpuprof_widgets.trace.schema import WINDOW

CHECKS = frozenset(("aten::isnan", "aten::_is_any_true", "aten::item"))
"""What anomaly mode runs on each gradient after a backward op (torch/csrc/autograd/engine.cpp,
`call_function`)."""
UNIQUE_CHECK = frozenset(("aten::_is_any_true",))
"""The check that users cannot call themselves."""

REMEDY = (
    "Switch it off when the NaN is found: call torch.autograd.set_detect_anomaly(False), or remove "
    "detect_anomaly()."
)


def anomaly_detection(record: Record) -> list[Finding]:
    """Fires if anomaly mode was on at start or end of the recording, or left its checks.

    It debugs: a NaN check per backward op, a stack per forward op.

    Cost: the time of the NaN checks.
    """
    if not was_on(record):
        return []
    checks, gradients = _checks(record.trace)
    cost = int(record.trace.index.dur[checks].sum())
    share = share_of(cost, run_ns(record))
    text = "Autograd's anomaly mode was on."
    if gradients:
        text += (
            f" It looked for NaN in {format_count(gradients, 'gradient')} of the backward pass, "
            f"which took {format_ns(cost)} ({format_share(share)} of the time)."
        )
    text += " It recorded the Python stack of each forward op, which counts as time of that op."
    rows, title = spread(checks), "Autograd's anomaly mode was on"
    return [Finding(text, cost, share, rows=rows, remedy=REMEDY, title=title)]


def was_on(record: Record) -> bool:
    """Whether anomaly mode was on, and a backward pass or a forward that autograd noted ran."""
    noted = bool((record.trace.index.column("sequence") >= 0).any())
    by_metadata = noted and record.metadata.get("anomaly_mode") is True
    return by_metadata or _checks(record.trace)[1] > 0


def _checks(trace: Trace) -> tuple[Rows, int]:
    """Return the ops of the NaN checks, and the number of gradients that they checked."""
    parent = trace.index.parent
    in_engine = take(is_engine(trace.slices["name"]), parent, False)
    telling = np.flatnonzero(in_engine & trace.index.named(UNIQUE_CHECK))
    checks = np.isin(parent, parent[telling]) & trace.index.named(CHECKS)
    return np.flatnonzero(checks), len(telling)


NOTING_NS = 1_000
"""Least cost per op of making and freeing a node of autograd's graph. Measured with torch 2.13 on a
server's CPU: `exp` and `relu` of four numbers take 2 us more with gradients than without."""

OF_TORCH = re.compile(r".+::.+")
TRAINS = re.compile(r"Optimizer\.(step|zero_grad)#.*")
"""Regions of an optimizer: then the run trains, even if the backward pass is not in the trace."""

WITHOUT_NO_GRAD_REMEDY = (
    "If this is evaluation, run it under torch.inference_mode() or torch.no_grad(): eval() alone "
    "does not stop autograd. If the backward pass runs elsewhere, leave it as it is."
)


def without_no_grad(record: Record, *, without_no_grad_ops: int = 50) -> list[Finding]:
    """Fires for many ops that autograd noted in a run without backward pass and optimizer.

    Not for a range of a run, nor for one that ended early: its backward pass may come later.

    Cost: an estimate, 1 µs per op that autograd noted.
    """
    trace = record.trace
    goes_back = is_engine(trace.slices["name"]) | (trace.index.column("forward") >= 0)
    goes_back |= (trace.index.column("forward_thread") > 0) | trace.index.matching(TRAINS)
    in_part = any(record.metadata.get(key) for key in (WINDOW, "error", "interrupted"))
    if in_part or goes_back.any():
        return []
    noted, rows = _noted(trace)
    if noted < without_no_grad_ops:
        return []
    text = (
        f"Autograd recorded at least {noted:,} ops for a backward pass, but no backward pass ran. "
        "This takes a microsecond or two per op. It also keeps tensors for the backward pass in "
        "memory while the results of the ops are in use."
    )
    cost = noted * NOTING_NS
    share = share_of(cost, run_ns(record))
    title = "Autograd records ops, but no backward pass runs"
    return [Finding(text, cost, share, rows=rows, remedy=WITHOUT_NO_GRAD_REMEDY, title=title)]


def _noted(trace: Trace) -> tuple[int, tuple[int, ...]]:
    """Return how many nodes autograd made at least, and the ops that made the first of them.

    torch gives each op the sequence number of the thread's next node, whether or not the op makes
    one: each number except a thread's last was used, by the last op that has it. A model whose
    parameters need no gradients has one number throughout, and under no_grad() ops have none; but
    a custom function (without "::" in its name) always uses one.
    """
    sequence = trace.index.column("sequence")
    numbered = np.flatnonzero(trace.index.is_op & (sequence >= 0))
    track, number = trace.index.track[numbered], sequence[numbered]
    order = np.lexsort((numbered, number, track))
    track, number, last = track[order], number[order], numbered[order][:-1]
    last = last[(track[1:] == track[:-1]) & (number[1:] > number[:-1])]
    ops = np.sort(last[trace.index.matching(OF_TORCH)[last]])
    return len(ops), spread(ops)


ZEROED_GRADIENTS_REMEDY = (
    "Call `optimizer.zero_grad(set_to_none=True)`, the default since PyTorch 2.0. Then the memory "
    "of the gradients is free until the backward pass, which writes them instead of adding to "
    "zeros."
)


def zeroed_gradients(record: Record, *, zeroed_gradients_share: float = 0.005) -> list[Finding]:
    """Fires if filling gradients with zeros in ``zero_grad`` took 0.5 % of the run's CPU time.

    Cost: the time of the ops that fill.

    Source: torch's GradNotSetToNonePattern, which has no threshold.
    """
    rows, regions = zeroing_ops(record.trace)
    cost = int(record.trace.index.dur[rows].sum())
    share = share_of(cost, run_ns(record))
    if not cost or share < zeroed_gradients_share:
        return []
    optimizers = [code(f"{kind}.zero_grad") for kind in kinds(record.trace, ZERO_GRAD, regions)]
    who = ", ".join(optimizers)
    text = (
        f"{who} filled gradients with zeros, with {format_count(len(rows), 'op')} in "
        f"{format_count(len(np.unique(regions)), 'call')}. This took {format_ns(cost)} "
        f"({format_share(share)} of the time)."
    )
    place = slice_range(record.trace, int(regions[0]))
    subject = f"{who} fills" if len(optimizers) == 1 else "Optimizers fill"
    title = f"{subject} gradients with zeros"
    return [Finding(text, cost, share, *place, tuple(rows), ZEROED_GRADIENTS_REMEDY, title=title)]


ADDING = re.compile(r"aten::add_?")
BIAS_BEFORE_NORM_REMEDY = (
    "Build the convolution with `bias=False`. BatchNorm subtracts the mean, and the bias with it. "
    "It adds its own bias."
)


def bias_before_norm(record: Record, *, bias_before_norm_calls: int = 1) -> list[Finding]:
    """Fires if at least one convolution with a bias has a batch normalisation right behind it.

    Cost: the time of adding the bias, if that is a separate op. The useless sum of its gradient is
    not counted.

    Source: torch's Conv2dBiasFollowedByBatchNorm2dPattern.
    """
    trace = record.trace
    rows = biased_before_norm(trace)
    if len(rows) < bias_before_norm_calls:
        return []
    cost, index = _adding(trace, rows), trace.index
    names = ", ".join(code(name) for name in sorted(set(index.names_of(rows))))
    spent = f" Adding the bias took {format_ns(cost)}." if cost else ""
    around = region_around(trace, "module")[rows]
    modules = [code(name) for name in dict.fromkeys(index.names_of(around[around >= 0]))]
    shown = f" {', '.join(modules[:3])}" if modules else ""
    shown += f" and {len(modules) - 3} more" if len(modules) > 3 else ""
    text = (
        f"The bias of {format_count(len(rows), 'convolution call')} ({names}) has no effect: "
        f"BatchNorm follows{shown}.{spent}"
    )
    share, place = share_of(cost, run_ns(record)), slice_range(trace, int(rows[0]))
    title = "Convolutions have a bias that BatchNorm cancels"
    return [Finding(text, cost, share, *place, tuple(rows), BIAS_BEFORE_NORM_REMEDY, title=title)]


def _adding(trace: Trace, rows: np.ndarray) -> int:
    """Return the GPU time, else the CPU time, of the additions within these convolutions in ns."""
    index, wanted = trace.index, np.zeros(len(trace), bool)
    wanted[rows] = True
    inside = links.nearest_ancestor(index.parent, wanted) >= 0
    adding = np.flatnonzero(inside & index.matching(ADDING))
    if len(gpu := index.gpu):
        adding = gpu[np.isin(index.column("op")[gpu], adding)]
    return int(index.dur[adding].sum())


OPTIMIZER_LOOPS_REMEDY = (
    "Pass `foreach=True` to the optimizer (the default on GPUs since PyTorch 2.0), or `fused=True` "
    "where it has it: one launch then updates many tensors."
)


def optimizer_loops(
    record: Record, *, optimizer_loops_share: float = 0.02, optimizer_loops_ops: int = 20
) -> list[Finding]:
    """Fires if an optimizer launched kernels for single tensors, for 2 % of the run's CPU time.

    Cost: the ops' CPU time without one of each name per step, as if an op of ``foreach`` took as
    long as one of them; at most their time on the critical path.

    Source: torch's OptimizerSingleTensorPattern, which has no threshold.
    """
    index = record.trace.index
    rows, regions = single_tensor_ops(record.trace)
    if not len(rows):
        return []
    step, number = np.unique(regions, return_counts=True)
    distinct = len(np.unique(np.stack([regions, index.name[rows]]), axis=1)[0])
    spent = int(index.dur[rows].sum())
    cost = min(spent - spent * distinct // len(rows), cpu_path_ns(record, rows))
    share = share_of(cost, run_ns(record))
    if share < optimizer_loops_share or number.max() < optimizer_loops_ops:
        return []
    optimizers = [code(f"{kind}.step") for kind in kinds(record.trace, STEP, regions)]
    who = ", ".join(optimizers)
    steps = format_count(len(step), "step")
    text = (
        f"{who} updated one tensor after the other. One step ran {number.max():,} ops, each of "
        f"which launched a kernel. This took {format_ns(spent)} of the CPU's time in {steps}. "
        f"Without it, {shorter(cost, record)}."
    )
    most = int(step[number.argmax()])
    evidence = spread(rows[regions == most])
    place = slice_range(record.trace, most)
    subject = f"{who} updates" if len(optimizers) == 1 else "Optimizers update"
    title = f"{subject} one tensor after the other"
    return [Finding(text, cost, share, *place, evidence, OPTIMIZER_LOOPS_REMEDY, title=title)]


FUSED_ON_CPU = ("Adam", "AdamW", "SGD")
"""Optimizers whose ``fused=True`` updates tensors of the CPU too (torch/optim, since 2.4)."""


def advice_on_step(record: Record, rows: Rows, *, least_ops: int = 20) -> str:
    """Return what to do about slices that are mostly steps of an optimizer on the CPU; else "".

    ``least_ops``: Ops in a step from which on it updates many tensors.
    """
    index = record.trace.index
    if len(index.gpu):  # there the launches count, see `optimizer_loops`
        return ""
    within = np.zeros(len(index), bool)
    within[rows] = True
    inside = links.itself_or_ancestor(index.parent, within) >= 0
    steps = np.flatnonzero(inside & index.matching(STEP) & index.on_tracks("cpu"))
    if 2 * int(index.dur[steps].sum()) <= int(index.dur[rows].sum()):
        return ""
    within[rows], within[steps] = False, True
    ops = index.is_op & take(within, index.parent, False)
    of_kinds = kinds(record.trace, STEP, steps.astype(np.int32))
    if np.count_nonzero(ops) < least_ops * len(steps) or (ops & index.matching(ON_MANY)).any():
        return ""
    if not set(of_kinds) <= set(FUSED_ON_CPU):
        return ""
    named = " and ".join(code(kind) for kind in of_kinds)
    each = round(np.count_nonzero(ops) / len(steps))
    return (
        f"It updates one tensor after the other, {each:,} ops in a step: pass `fused=True` to "
        f"{named}, and one op updates all (on the CPU too since PyTorch 2.4)."
    )
