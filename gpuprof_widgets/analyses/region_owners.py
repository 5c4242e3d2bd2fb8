"""Which cell line and which module every slice belongs to, in the forward and the backward pass."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from gpuprof_widgets.analyses.remembered import remembered
from gpuprof_widgets.trace import links
from gpuprof_widgets.trace.model import Trace
from gpuprof_widgets.trace.owners import causes
from gpuprof_widgets.trace.schema import NONE

Rows = npt.NDArray[np.int32]


@remembered
def region_around(trace: Trace, category: str) -> Rows:
    """Per slice the row of the innermost region of that category around it; -1 for none.

    A region is around itself; what runs on a GPU is where it was launched. A backward op is where
    it ran: for ``cell_line`` that is the line that called ``backward()``.
    """
    if not trace.index.in_category(category).any():
        return np.full(len(trace), NONE, np.int32)
    around = trace.index.within(category)
    on_gpu = (trace.index.column("launch") >= 0) | trace.index.is_gpu
    return np.where(on_gpu, np.append(around, NONE)[trace.index.launcher], around).astype(np.int32)


@remembered
def forward_of(trace: Trace) -> Rows:
    """Per slice the forward op of the innermost backward op around it; -1 in the forward pass.

    What runs on a GPU is where it was launched.
    """
    forward = trace.index.column("forward")
    around = links.itself_or_ancestor(trace.index.parent, forward >= 0)
    behind = np.append(forward, NONE)[around]
    launched = np.append(behind, NONE)[trace.index.launcher]
    return np.where(trace.index.is_gpu, launched, behind).astype(np.int32)


@remembered
def region_behind(trace: Trace, category: str) -> Rows:
    """Per slice the region that caused it: in the backward pass that around the forward op.

    Of a backward op's backward the one behind both; a region within a backward op (checkpointing
    runs a forward anew there) comes first. Where none is found, the same as `region_around`.
    """
    wanted = trace.index.in_category(category)
    if not wanted.any():
        return region_around(trace, category)
    caused = links.itself_or_ancestor(cause_of(trace), wanted)
    return np.where(caused >= 0, caused, region_around(trace, category)).astype(np.int32)


@remembered
def cause_of(trace: Trace) -> Rows:
    """Per slice who caused it (see `causes`), by the times before a window cut them."""
    return causes(trace.slices, trace.index.uncut[0])
