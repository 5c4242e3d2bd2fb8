"""Who waits for the backward pass: the cell line that called it, from another thread."""

from __future__ import annotations

import re

import numpy as np
from numpy.typing import NDArray

from gpuprof_widgets.trace.links import Ints, Mask, innermost_open, nearest_ancestor, rows_by
from gpuprof_widgets.trace.model import Trace
from gpuprof_widgets.trace.schema import NONE

Rows = NDArray[np.int32]

BACKWARD = "autograd::engine::evaluate_function"
"""How the names of the ops begin in which autograd runs one node of the backward pass."""
BEGINS_BACKWARD = re.compile(f"{re.escape(BACKWARD)}.*", re.DOTALL)


def calling_lines(trace: Trace) -> Rows:
    """Per slice of a backward pass the innermost cell line that was open when it began; else -1.

    Autograd works for a GPU on threads of its own, on which no line ran; the line that called it
    waits meanwhile. Of lines on several threads it is the one that began last. What began when is
    asked of the times before a window cut them.
    """
    lines = trace.index.in_category("cell_line")
    if not lines.any():
        return np.full(len(trace), NONE, np.int32)
    return _calling_regions(trace, lines, _in_backward(trace))


def calling_annotations(trace: Trace) -> Rows:
    """The same for annotations (`record_function`) outside of the backward pass."""
    backward = _in_backward(trace)
    return _calling_regions(trace, trace.index.in_category("user_annotation") & ~backward, backward)


def _calling_regions(trace: Trace, regions: Mask, backward: Mask) -> Rows:
    """The same for any regions on the threads of the CPU, and slices of the backward pass."""
    caller = np.full(len(trace), NONE, np.int32)
    began, ended = trace.index.uncut
    called, rows = np.flatnonzero(backward), np.flatnonzero(regions)
    track = trace.index.track[rows]
    rows = rows[np.lexsort((rows, -track, began[rows]))]  # of two threads the first one counts
    at = innermost_open(began[rows], ended[rows], began[called])
    caller[called] = np.append(rows, NONE)[at]
    return caller


def open_beside(trace: Trace, began: Ints, ended: Ints) -> Rows:
    """Of an op the innermost Python frame of its thread that was open when it began; else -1.

    And of a frame the innermost op: autograd calls Python from within an op.
    """
    tracks = trace.tracks
    track = trace.slices["track"].to_numpy()
    kind, lane = tracks["kind"].to_numpy(object), tracks["lane"].to_numpy()
    found = np.full(len(trace), NONE, np.int32)
    rows, nothing = rows_by(track), np.empty(0, np.intp)  # a window may have left none
    threads = rows_by(np.where(kind == "cpu", lane, NONE))
    for python in np.flatnonzero(kind == "python").tolist():
        for ops in threads.get(int(lane[python]), nothing).tolist():
            for here, there in ((ops, python), (python, ops)):
                called, callers = rows.get(here, nothing), rows.get(there, nothing)
                if len(callers):
                    at = innermost_open(began[callers], ended[callers], began[called])
                    found[called[at >= 0]] = callers[at[at >= 0]]
    return found


def _in_backward(trace: Trace) -> Mask:
    """Which CPU slices are, or are part of, an op of the backward pass."""
    index = trace.index
    marked = index.matching(BEGINS_BACKWARD) | (index.column("forward") >= 0)
    within = marked | (nearest_ancestor(index.parent, marked) >= 0)
    return np.asarray(within & index.on_tracks("cpu"), bool)
