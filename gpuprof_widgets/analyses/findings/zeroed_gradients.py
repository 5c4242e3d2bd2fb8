"""Gradients that are filled with zeros instead of let go."""

from __future__ import annotations

import numpy as np

from gpuprof_widgets.analyses.findings.finding import Finding
from gpuprof_widgets.analyses.findings.wording import code, run_ns, share_of
from gpuprof_widgets.analyses.optimizer_regions import ZERO_GRAD, kinds, zeroing_ops
from gpuprof_widgets.analyses.quantity import format_count, format_ns, format_share
from gpuprof_widgets.trace.model import Record

REMEDY = (
    "`optimizer.zero_grad(set_to_none=True)`, the default since PyTorch 2.0: the gradients' memory "
    "is free until the backward pass, which then writes them instead of adding to zeros."
)


def zeroed_gradients(record: Record, *, zeroed_gradients_share: float = 0.005) -> list[Finding]:
    """Fires where filling gradients with zeros in ``zero_grad`` took 0.5 % of the run's CPU time.

    torch's GradNotSetToNonePattern has no threshold. The cost is the time of the ops that fill.

    ``zeroed_gradients_share``: Filling gradients with zeros (torch: any).
    """
    slices = record.trace.slices
    rows, regions = zeroing_ops(record.trace)
    cost = int(slices["dur"].to_numpy()[rows].sum())
    share = share_of(cost, run_ns(record))
    if not cost or share < zeroed_gradients_share:
        return []
    who = ", ".join(code(f"{kind}.zero_grad") for kind in kinds(record.trace, ZERO_GRAD, regions))
    text = (
        f"{who} filled gradients with zeros: {format_count(len(rows), 'op')} in "
        f"{format_count(len(np.unique(regions)), 'call')}, {format_ns(cost)} "
        f"({format_share(share)} of the time)."
    )
    longest = int(regions[0])
    start = int(slices["ts"].iloc[longest])
    end = start + int(slices["dur"].iloc[longest])
    return [Finding(text, cost, share, start, end, tuple(rows), REMEDY)]
