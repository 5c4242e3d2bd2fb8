"""Which cell line and which module every slice belongs to, in the forward and the backward pass."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from gpuprof_widgets.trace import links
from gpuprof_widgets.trace.model import Trace
from gpuprof_widgets.trace.owners import causes
from gpuprof_widgets.trace.schema import NONE

Rows = npt.NDArray[np.int32]


def region_around(trace: Trace, category: str) -> Rows:
    """Per slice the row of the innermost region of that category around it; -1 for none.

    A region is around itself; what runs on a GPU is where it was launched. A backward op is where
    it ran: for ``cell_line`` that is the line that called ``backward()``.
    """
    slices = trace.slices
    wanted = trace.index.in_category(category)
    around = links.itself_or_ancestor(slices["parent"].to_numpy(), wanted)
    launcher = np.where(slices["launch"] >= 0, slices["launch"], slices["op"]).astype(np.int32)
    on_gpu = (slices["launch"].to_numpy() >= 0) | trace.index.is_gpu
    return np.where(on_gpu, np.append(around, NONE)[launcher], around).astype(np.int32)


def forward_of(trace: Trace) -> Rows:
    """Per slice the forward op of the innermost backward op around it; -1 in the forward pass.

    What runs on a GPU is where it was launched.
    """
    slices = trace.slices
    forward = slices["forward"].to_numpy()
    backward = forward >= 0
    around = links.itself_or_ancestor(slices["parent"].to_numpy(), backward)
    found = np.append(forward, NONE)[around]
    launcher = np.where(slices["launch"] >= 0, slices["launch"], slices["op"])
    on_gpu = trace.index.is_gpu
    return np.where(on_gpu, np.append(found, NONE)[launcher], found).astype(np.int32)


def region_behind(trace: Trace, category: str) -> Rows:
    """Per slice the region that caused it: in the backward pass that around the forward op.

    Of a backward op's backward the one behind both; a region within a backward op (checkpointing
    runs a forward anew there) comes first. Where none is found, the same as `region_around`.
    """
    wanted = trace.index.in_category(category)
    caused = links.itself_or_ancestor(causes(trace.slices, trace.index.uncut[0]), wanted)
    return np.where(caused >= 0, caused, region_around(trace, category)).astype(np.int32)
