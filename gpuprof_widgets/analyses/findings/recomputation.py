"""The forward computed anew in the backward pass: what activation checkpointing costs."""

from __future__ import annotations

import numpy as np

from gpuprof_widgets.analyses.backward_ops import backward_ns
from gpuprof_widgets.analyses.backward_work import Recomputed, recomputed
from gpuprof_widgets.analyses.findings.finding import Finding
from gpuprof_widgets.analyses.findings.wording import code, run_ns, share_of
from gpuprof_widgets.analyses.quantity import format_count, format_ns, format_share
from gpuprof_widgets.trace import links
from gpuprof_widgets.trace.model import Record, Trace

EVIDENCE = 2_000
REMEDY = (
    "Where memory allows, checkpoint fewer blocks, or those alone whose forward is cheap for the "
    "memory that it would keep (torch.utils.checkpoint; with create_selective_checkpoint_contexts "
    "the costly ops of a block are kept)."
)


def recomputation(record: Record, *, recomputation_share: float = 0.05) -> list[Finding]:
    """Fires where computing the forward anew takes 5 % of the run: on the GPU, if there is one.

    ``recomputation_share``: Computing the forward anew in the backward pass (activation
        checkpointing).
    """
    trace = record.trace
    again = recomputed(trace)
    gpu = trace.index.gpu
    on_cpu = int((again.end_ns - again.start_ns).sum())
    cost = _on_gpu_ns(trace, again) if len(gpu) else on_cpu
    share = share_of(cost, run_ns(record))
    if not cost or share < recomputation_share:
        return []
    slices = trace.slices
    whole = int(slices["dur"].to_numpy()[gpu].sum()) if len(gpu) else backward_ns(record)
    names = slices["name"].iloc[again.node].astype(str)
    longest = int((again.end_ns - again.start_ns).argmax())
    text = (
        f"The backward pass computes the forward anew in {format_count(len(again.node), 'op')}, "
        f"such as {code(names.iloc[longest])} (activation checkpointing): {format_ns(cost)}, "
        f"{format_share(share_of(cost, whole))} of {'GPU time' if len(gpu) else 'that pass'}. That "
        "is the price of the memory it saves."
    )
    place = (int(again.start_ns[longest]), int(again.end_ns[longest]))
    rows = tuple(again.rows[:EVIDENCE].tolist())
    return [Finding(text, cost, share, *place, rows, REMEDY)]


def _on_gpu_ns(trace: Trace, again: Recomputed) -> int:
    """GPU time of what the recomputed ops launched."""
    slices, gpu = trace.slices, trace.index.gpu
    within = np.zeros(len(trace), bool)
    within[again.rows] = True
    within = links.itself_or_ancestor(slices["parent"].to_numpy(), within) >= 0
    launched_in = np.append(within, False)[slices["op"].to_numpy()[gpu]]
    return int(slices["dur"].to_numpy()[gpu[launched_in]].sum())
