"""Who allocated: the op, the module and the cell line behind each event of memory."""

from __future__ import annotations

import re

import numpy as np
import numpy.typing as npt

from gpuprof_widgets.analyses.module_frames import module_frame_around, module_frames
from gpuprof_widgets.analyses.region_owners import forward_of, region_behind
from gpuprof_widgets.analyses.stacks import BACKWARD_PREFIX, frame_of
from gpuprof_widgets.trace import links
from gpuprof_widgets.trace.model import Trace
from gpuprof_widgets.trace.schema import NONE

Rows = npt.NDArray[np.int32]

BACKWARD_NODE = re.compile(re.escape(BACKWARD_PREFIX) + ".*")


def owning_ops(trace: Trace, rows: npt.NDArray[np.intp]) -> Rows:
    """The op that Python or autograd called: the outermost around each slice, -1 for none.

    In the backward pass that is the node (`AddmmBackward0`), not the engine's region around it.
    """
    if not len(rows):
        return np.empty(0, np.int32)
    parent = trace.slices["parent"].to_numpy()
    is_node = trace.index.matching(BACKWARD_NODE)
    is_op = trace.index.is_op & ~is_node
    around = parent[rows]
    op, node = (
        np.append(links.outermost(parent, wanted), np.int32(NONE))[around]
        for wanted in (is_op, is_node)
    )
    found: Rows = np.where(op >= 0, op, node)
    return found


def owning_modules(trace: Trace, rows: npt.NDArray[np.intp]) -> Rows:
    """The module instance behind each slice, in the backward pass that of the forward op."""
    regions = region_behind(trace, "module")[rows]
    if (regions >= 0).any() or not module_frames(trace).any():
        return regions
    return _module_frames(trace)[rows]


def owning_lines(trace: Trace, rows: npt.NDArray[np.intp]) -> Rows:
    """The cell line behind each slice, in the backward pass that of the forward op."""
    return region_behind(trace, "cell_line")[rows]


def _module_frames(trace: Trace) -> Rows:
    """The innermost ``nn.Module`` frame behind each slice, where stacks were recorded."""
    forward = forward_of(trace)
    source = np.where(forward >= 0, forward, np.arange(len(trace)))
    return module_frame_around(trace, frame_of(trace)[source])
