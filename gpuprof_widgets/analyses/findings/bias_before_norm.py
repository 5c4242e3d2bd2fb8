"""Biases that a batch normalisation takes away again."""

from __future__ import annotations

import re

import numpy as np

from gpuprof_widgets.analyses.findings.finding import Finding
from gpuprof_widgets.analyses.findings.wording import code, run_ns, share_of
from gpuprof_widgets.analyses.norm_after_conv import biased_before_norm
from gpuprof_widgets.analyses.quantity import format_count, format_ns
from gpuprof_widgets.analyses.region_owners import region_around
from gpuprof_widgets.trace import links
from gpuprof_widgets.trace.model import Record, Trace

ADDING = re.compile(r"aten::add_?")
REMEDY = (
    "Build the convolution with `bias=False`: BatchNorm subtracts the mean, and the bias with it, "
    "and has a bias of its own."
)


def bias_before_norm(record: Record, *, bias_before_norm_calls: int = 1) -> list[Finding]:
    """Fires where at least one convolution with a bias has a batch normalisation right behind it.

    torch's Conv2dBiasFollowedByBatchNorm2dPattern. The cost is the time of adding the bias, where
    that is an op of its own (its gradient, which is summed in vain as well, is not told apart).

    ``bias_before_norm_calls``: Convolutions with a bias right before BatchNorm (torch: any).
    """
    trace = record.trace
    rows = biased_before_norm(trace)
    if len(rows) < bias_before_norm_calls:
        return []
    cost = _adding(trace, rows)
    names = sorted({str(name) for name in trace.slices["name"].to_numpy(object)[rows]})
    spent = f", {format_ns(cost)} to add it" if cost else ""
    text = (
        f"The bias of {format_count(len(rows), 'convolution call')} "
        f"({', '.join(code(name) for name in names)}) is in vain: BatchNorm follows"
        f"{_modules(trace, rows)}{spent}."
    )
    start = int(trace.slices["ts"].iloc[rows[0]])
    return [
        Finding(
            text,
            cost,
            share_of(cost, run_ns(record)),
            start,
            start + int(trace.slices["dur"].iloc[rows[0]]),
            tuple(rows),
            REMEDY,
        )
    ]


def _adding(trace: Trace, rows: np.ndarray) -> int:
    """GPU time, else CPU time, of the additions within these convolutions."""
    slices = trace.slices
    wanted = np.zeros(len(trace), bool)
    wanted[rows] = True
    inside = links.nearest_ancestor(slices["parent"].to_numpy(), wanted) >= 0
    adding = np.flatnonzero(inside & trace.index.matching(ADDING))
    gpu, dur = trace.index.gpu, slices["dur"].to_numpy()
    if len(gpu):
        return int(dur[gpu[np.isin(slices["op"].to_numpy()[gpu], adding)]].sum())
    return int(dur[adding].sum())


def _modules(trace: Trace, rows: np.ndarray) -> str:
    """The modules of these convolutions, where they were recorded; a few by name."""
    around = region_around(trace, "module")[rows]
    names = list(dict.fromkeys(trace.slices["name"].to_numpy(object)[around[around >= 0]]))
    if not names:
        return ""
    more = f" and {len(names) - 3} more" if len(names) > 3 else ""
    return f" {', '.join(code(str(name)) for name in names[:3])}{more}"
