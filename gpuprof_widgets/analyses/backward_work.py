"""What in a backward op goes back, and what does not: hooks, and the forward computed anew."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from gpuprof_widgets.analyses.compile_events import is_compiling
from gpuprof_widgets.analyses.plumbing import is_communication
from gpuprof_widgets.trace import links
from gpuprof_widgets.trace.model import Trace
from gpuprof_widgets.trace.owners import is_engine

Mask = npt.NDArray[np.bool_]
Rows = npt.NDArray[np.intp]
Ints = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Recomputed:
    """Forward ops that ran again in the backward pass, and the time of that in each backward op.

    ``rows``: the outermost such ops; ``node``, ``start_ns``, ``end_ns``: the backward op in which
    some ran, from the first to the last of them, with the Python between.
    """

    rows: Rows
    node: Rows
    start_ns: Ints
    end_ns: Ints


def recomputed(trace: Trace) -> Recomputed:
    """The forward that was computed anew within backward ops (activation checkpointing).

    torch gives an op a sequence number where it runs with gradients on. In a backward op they are
    off, but while it computes its forward anew: ``use_reentrant=True`` then goes back through that
    within the same op, and otherwise the op's own formula follows, without numbers. With
    ``create_graph=True`` they are on in the formula itself, to its end: that is no recomputing.
    """
    slices = trace.slices
    parent, ts = slices["parent"].to_numpy(), slices["ts"].to_numpy()
    going_back = (slices["forward"].to_numpy() >= 0) | (slices["forward_thread"].to_numpy() > 0)
    engine = is_engine(slices["name"])
    op = trace.index.is_op & ~engine
    numbered = op & ~going_back & (slices["sequence"].to_numpy() >= 0)
    node = going_back & ~engine
    above = links.nearest_ancestor(parent, op | engine | node)
    inside = (op | engine) & (above >= 0)
    inside[inside] = node[above[inside]]
    again, after = np.flatnonzero(inside & numbered), np.flatnonzero(inside & ~numbered)
    last = np.full(len(slices), np.iinfo(np.int64).min)
    np.maximum.at(last, above[after], ts[after])
    again = again[ts[again] < last[above[again]]]
    again = again[np.argsort(above[again], kind="stable")]  # and by time, as the rows are
    nodes, first = np.unique(above[again], return_index=True)
    end = np.zeros(len(slices), np.int64)
    np.maximum.at(end, above[again], ts[again] + slices["dur"].to_numpy()[again])
    return Recomputed(again, nodes.astype(np.intp), ts[again[first]], end[nodes])


def own_ns(trace: Trace, calls: Mask, above: npt.NDArray[np.int32]) -> Ints:
    """Per slice that is a call of a backward op, its own time: that of its formula.

    Without what the engine does around it, hooks among that, and without the forward computed anew
    (checkpointing), other backward passes, collectives and torch.compile's own work within it.
    ``above``: of each slice the call around it, not the slice itself.
    """
    slices = trace.slices
    parent, ts, dur = (slices[column].to_numpy() for column in ("parent", "ts", "dur"))
    formula = _formulas(trace, calls, above)
    part = formula | is_engine(slices["name"]) | is_communication(trace) | is_compiling(trace)
    around = links.nearest_ancestor(parent, part)
    inner = np.flatnonzero(part & (around >= 0))
    inner = inner[formula[around[inner]]]
    again = recomputed(trace)
    until = np.zeros(len(slices), np.int64)
    until[again.node] = again.end_ns
    inner = inner[ts[inner] >= until[around[inner]]]  # before, it is in the forward computed anew
    own = np.where(formula, dur, 0).astype(np.int64)
    np.subtract.at(own, around[inner], dur[inner])
    known = formula[again.node]
    own[again.node[known]] -= (again.end_ns - again.start_ns)[known]
    formulas = np.flatnonzero(formula)
    call = np.where(calls[formulas], formulas, above[formulas])
    summed = np.zeros(len(slices), np.int64)
    np.add.at(summed, call, np.maximum(own[formulas], 0))  # a window may cut what is around
    return summed


def _formulas(trace: Trace, calls: Mask, above: npt.NDArray[np.int32]) -> Mask:
    """The slice of the op itself within each call, or the call where the engine wrote none."""
    slices = trace.slices
    engine, forward = is_engine(slices["name"]), slices["forward"].to_numpy()
    inner = (above >= 0) & ~engine & (forward >= 0) & ~calls
    inner[inner] = engine[above[inner]] & (forward[inner] == forward[above[inner]])
    alone = calls.copy()
    alone[above[inner]] = False
    return np.asarray(inner | alone)
