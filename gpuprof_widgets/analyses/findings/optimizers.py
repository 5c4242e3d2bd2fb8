"""Finding and advice on optimizers that update one tensor after the other."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from gpuprof_widgets.analyses.columns import format_count, format_ns
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
from gpuprof_widgets.analyses.modules import ON_MANY, STEP, kinds, single_tensor_ops
from gpuprof_widgets.trace import links
from gpuprof_widgets.trace.model import Record

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


def advice_on_step(record: Record, rows: npt.NDArray[np.intp], *, least_ops: int = 20) -> str:
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
    ops = index.is_op & np.append(within, False)[index.parent]
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
