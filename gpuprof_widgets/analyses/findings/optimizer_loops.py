"""Optimizers that update one tensor after the other."""

from __future__ import annotations

import numpy as np

from gpuprof_widgets.analyses.findings.finding import Finding
from gpuprof_widgets.analyses.findings.wording import code, run_ns, share_of, shorter
from gpuprof_widgets.analyses.optimizer_regions import STEP, kinds, single_tensor_ops
from gpuprof_widgets.analyses.path_time import cpu_path_ns
from gpuprof_widgets.analyses.quantity import format_count, format_ns
from gpuprof_widgets.trace.model import Record

EVIDENCE = 2_000
"""Slices that light up."""
REMEDY = (
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
    evidence = tuple(rows[regions == most][:EVIDENCE])
    return [Finding(text, cost, share, start, end, evidence, REMEDY)]
