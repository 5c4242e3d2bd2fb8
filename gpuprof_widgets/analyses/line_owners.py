"""Which cell line every slice belongs to, on whichever thread it ran."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from gpuprof_widgets.analyses.region_owners import forward_of, region_around
from gpuprof_widgets.analyses.remembered import remembered
from gpuprof_widgets.trace import links
from gpuprof_widgets.trace.callers import calling_lines
from gpuprof_widgets.trace.model import Trace
from gpuprof_widgets.trace.owners import is_engine
from gpuprof_widgets.trace.schema import NONE

Rows = npt.NDArray[np.int32]


@remembered
def line_of(trace: Trace) -> Rows:
    """Per slice the row of the cell line in which it ran or was launched; -1 for none.

    What the backward pass does on a thread of its own ran in the line that called it.
    """
    around = region_around(trace, "cell_line")
    if not trace.index.in_category("cell_line").any():
        return around
    caller = np.append(calling_lines(trace), NONE)
    gpu = trace.index.gpu
    caller[gpu] = caller[trace.index.launcher[gpu]]
    return np.where(around >= 0, around, caller[:-1]).astype(np.int32)


@remembered
def line_behind(trace: Trace) -> Rows:
    """Per slice of the backward pass the row of the cell line of its forward op; else -1.

    What the engine does itself (`AccumulateGrad`, and hooks of parameters) has no forward op. It is
    part of the backward op before it, whose gradient it takes: the engine puts it before all else.
    """
    forward = np.append(forward_of(trace), NONE)
    source = np.where(forward[:-1] >= 0, forward[:-1], forward[_op_before(trace)])
    return np.asarray(np.append(line_of(trace), NONE)[source], np.int32)


def _op_before(trace: Trace) -> Rows:
    """Per slice that the engine runs for no backward op the one before, in the same call; or -1."""
    slices = trace.slices
    parent, linked = slices["parent"].to_numpy(), slices["forward"].to_numpy() >= 0
    nodes = linked | is_engine(slices["name"])
    rows = np.flatnonzero(nodes & (links.nearest_ancestor(parent, nodes) < 0))
    latest = np.maximum.accumulate(np.where(linked[rows], np.arange(len(rows)), NONE))
    caller, track = line_of(trace)[rows], slices["track"].to_numpy()[rows]
    same = (latest >= 0) & (caller[latest] == caller) & (track[latest] == track) & ~linked[rows]
    before = np.full(len(trace) + 1, NONE, np.int32)
    before[rows[same]] = rows[latest[same]]
    around = np.append(links.itself_or_ancestor(parent, before[:-1] >= 0), NONE)
    gpu = trace.index.gpu
    around[gpu] = around[trace.index.launcher[gpu]]
    return np.asarray(before[around[:-1]], np.int32)
