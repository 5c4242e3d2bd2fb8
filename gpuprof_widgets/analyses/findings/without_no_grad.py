"""A forward that autograd noted op by op for a backward pass, which never came."""

from __future__ import annotations

import re

import numpy as np

from gpuprof_widgets.analyses.findings.finding import Finding
from gpuprof_widgets.analyses.findings.wording import run_ns, share_of
from gpuprof_widgets.trace.model import Record, Trace
from gpuprof_widgets.trace.owners import is_engine
from gpuprof_widgets.trace.schema import WINDOW

EVIDENCE = 2_000
NOTING_NS = 1_000
"""Per op, at least: making and freeing a node of autograd's graph. Measured with torch 2.13 on a
server's CPU: `exp` and `relu` of four numbers take 2 us more with gradients than without."""

OF_TORCH = re.compile(r".+::.+")
TRAINS = re.compile(r"Optimizer\.(step|zero_grad)#.*")
"""What torch marks as an optimizer works: the backward pass may have been left out of the trace."""

REMEDY = (
    "If this is evaluation, run it under torch.inference_mode() or torch.no_grad(); eval() alone "
    "does not stop it. If its backward pass runs elsewhere, leave it as it is."
)


def without_no_grad(record: Record, *, without_no_grad_ops: int = 50) -> list[Finding]:
    """Fires for many ops that autograd noted in a run without backward pass and optimizer.

    Not for a range of a run, nor for one that was left early: its backward pass may come later.

    ``without_no_grad_ops``: Ops that autograd noted for a backward pass that never came.
    """
    trace = record.trace
    in_part = any(record.metadata.get(key) for key in (WINDOW, "error", "interrupted"))
    if in_part or _trains(trace):
        return []
    noted, rows = _noted(trace)
    if noted < without_no_grad_ops:
        return []
    text = (
        f"Autograd noted at least {noted:,} ops for a backward pass, and none ran: that takes a "
        "microsecond or two of each, and keeps what the backward pass would need in memory for as "
        "long as their result is in use."
    )
    cost = noted * NOTING_NS
    share = share_of(cost, run_ns(record))
    return [Finding(text, cost, share, rows=rows, remedy=REMEDY)]


def _trains(trace: Trace) -> bool:
    slices = trace.slices
    going_back = is_engine(slices["name"]) | (slices["forward"].to_numpy() >= 0)
    going_back |= slices["forward_thread"].to_numpy() > 0
    return bool((going_back | trace.index.matching(TRAINS)).any())


def _noted(trace: Trace) -> tuple[int, tuple[int, ...]]:
    """How many nodes autograd made at least, and the ops that made the first of them.

    torch writes on an op the number that the thread's next node gets, be there one or not: each
    number but the last of a thread was used up, by the last op that has it. A model whose
    parameters need no gradients has one number throughout, and under no_grad() ops have none; but
    a custom function (without "::" in its name) uses one up in any case.
    """
    slices = trace.slices
    numbered = np.flatnonzero(trace.index.is_op & (slices["sequence"].to_numpy() >= 0))
    track, number = slices["track"].to_numpy()[numbered], slices["sequence"].to_numpy()[numbered]
    order = np.lexsort((numbered, number, track))
    track, number, last = track[order], number[order], numbered[order][:-1]
    last = last[(track[1:] == track[:-1]) & (number[1:] > number[:-1])]
    ops = np.sort(last[trace.index.matching(OF_TORCH)[last]])
    return len(ops), tuple(ops[:EVIDENCE].tolist())
