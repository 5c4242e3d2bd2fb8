"""GPU work that nobody in the trace launched."""

from __future__ import annotations

import numpy as np

from gpuprof_widgets.analyses.findings.finding import Finding
from gpuprof_widgets.analyses.findings.wording import share_of
from gpuprof_widgets.analyses.quantity import format_count, format_share
from gpuprof_widgets.trace.model import Record

REMEDY = (
    "Either it was launched before the recording began (torch.cuda.synchronize() right before that "
    "leaves it out), or the recorder dropped the launches: then record fewer steps."
)


def unlinked(record: Record, *, unlinked_share: float = 0.02) -> list[Finding]:
    """Fires where 2 % of the GPU's events or of their time lack a launch; last, as no cost.

    ``unlinked_share``: Of GPU events or of their time, without a launch in the trace.
    """
    slices = record.trace.slices
    gpu = record.trace.index.gpu
    gpu = gpu[slices["count"].to_numpy()[gpu] > 0]
    loose = gpu[slices["launch"].to_numpy()[gpu] < 0]
    dur = slices["dur"].to_numpy()
    shares = (len(loose) / max(len(gpu), 1), share_of(dur[loose].sum(), dur[gpu].sum()))
    if not len(loose) or max(shares) < unlinked_share:
        return []
    without_op = int(np.count_nonzero(slices["op"].to_numpy()[loose] < 0))
    have = "has" if len(loose) == 1 else "have"
    text = (
        f"{format_count(len(loose), 'GPU event')} of {len(gpu):,} "
        f"({format_share(len(loose) / len(gpu))}) {have} no launch in the trace: the time is "
        f"counted{_owned(len(loose), without_op)}."
    )
    return [Finding(text, rows=tuple(int(row) for row in loose), remedy=REMEDY)]


def _owned(events: int, without_op: int) -> str:
    """What is lost with the launches: external ids may still tell the ops."""
    if not without_op:
        return ", and its op is known" if events == 1 else ", and their ops are known"
    if without_op == events:
        return ", but belongs to no op"
    return f", but no op is known for {without_op:,} of them"
