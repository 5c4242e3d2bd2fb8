"""Who waits for the backward pass: the cell line that called it, from another thread."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from gpuprof_widgets.trace.links import Ints, Mask, innermost_open, nearest_ancestor, rows_by
from gpuprof_widgets.trace.model import Trace
from gpuprof_widgets.trace.schema import NONE

Rows = NDArray[np.int32]

BACKWARD = "autograd::engine::evaluate_function"
"""How the names of the ops begin in which autograd runs one node of the backward pass."""


def calling_lines(trace: Trace, began: Ints, ended: Ints) -> Rows:
    """Per slice of a backward pass the innermost cell line that was open when it began; else -1.

    Autograd works for a GPU on threads of its own, on which no line ran; the line that called it
    waits meanwhile. Of lines on several threads it is the one that began last. ``began`` and
    ``ended`` are the times before a window cut them.
    """
    lines = (trace.slices["category"] == "cell_line").to_numpy()
    return calling_regions(trace, lines, began, ended)


def calling_annotations(trace: Trace, began: Ints, ended: Ints) -> Rows:
    """The same for annotations (`record_function`) outside of the backward pass."""
    annotated = (trace.slices["category"] == "user_annotation").to_numpy()
    return calling_regions(trace, annotated & ~_in_backward(trace), began, ended)


def calling_regions(trace: Trace, regions: Mask, began: Ints, ended: Ints) -> Rows:
    """The same for any regions on the threads of the CPU."""
    found = np.full(len(trace), NONE, np.int32)
    lines = np.flatnonzero(regions)
    called = np.flatnonzero(_in_backward(trace)) if len(lines) else lines
    if not len(called):
        return found
    track = trace.slices["track"].to_numpy()[lines]
    lines = lines[np.lexsort((lines, -track, began[lines]))]  # of two threads the first one counts
    at = innermost_open(began[lines], ended[lines], began[called])
    found[called] = np.append(lines, NONE)[at]
    return found


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
    slices = trace.slices
    names = slices["name"].cat
    backward = np.array([str(name).startswith(BACKWARD) for name in names.categories], bool)
    marked = np.append(backward, False)[names.codes] | (slices["forward"].to_numpy() >= 0)
    parent = slices["parent"].to_numpy()
    is_cpu = (trace.tracks["kind"] == "cpu").to_numpy()[slices["track"].to_numpy()]
    return np.asarray((marked | (nearest_ancestor(parent, marked) >= 0)) & is_cpu, bool)
