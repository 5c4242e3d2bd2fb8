"""Who owns a slice: GPU slices their launch and op, backward ops their forward op.

Functions take the slices table and return row numbers of it; -1 means that there is none.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from gpuprof_widgets.trace import links
from gpuprof_widgets.trace.links import Ints, Mask, innermost_open, nearest_ancestor, rows_by
from gpuprof_widgets.trace.model import Trace
from gpuprof_widgets.trace.schema import GPU_CATEGORIES, NONE, OP_CATEGORIES, RUNTIME_ENDINGS

Rows = NDArray[np.int32]

ENGINE = "autograd::engine::"
EVALUATE = f"{ENGINE}evaluate_function: "
"""How the engine's slice around a backward op is named, before the op's own name."""

FlowRows = tuple[Rows, Rows]


def in_categories(category: pd.Series, wanted: Iterable[str]) -> NDArray[np.bool_]:
    """Which rows have one of these categories."""
    return category.isin(list(wanted)).to_numpy()


def is_gpu(category: pd.Series) -> NDArray[np.bool_]:
    """Which rows ran on a GPU: kernels, copies, memsets."""
    return in_categories(category, GPU_CATEGORIES)


def launches(category: pd.Series) -> NDArray[np.bool_]:
    """Which rows are calls of a device's runtime or driver (CUDA, ROCm, XPU, ...)."""
    names = category.cat.categories
    return in_categories(category, [n for n in names if n.endswith(RUNTIME_ENDINGS)])


def link_launches(slices: pd.DataFrame) -> Rows:
    """GPU slices: the runtime or driver call with the same correlation (ids may be reused).

    Programs that record no such calls (TensorFlow, MegEngine) tell which op launched the work:
    there the op has the correlation, which Kineto writes on calls alone.
    """
    found = np.full(len(slices), NONE, dtype=np.int32)
    correlation, ts = slices["correlation"].to_numpy(), slices["ts"].to_numpy()
    known = correlation > 0
    gpu = np.flatnonzero(is_gpu(slices["category"]) & known)
    is_op = in_categories(slices["category"], OP_CATEGORIES)
    calls = np.flatnonzero((launches(slices["category"]) | is_op) & known)
    hit = links.latest_before(correlation[gpu], ts[gpu], correlation[calls], ts[calls])
    found[gpu[hit >= 0]] = calls[hit[hit >= 0]]
    return found


def link_ops(slices: pd.DataFrame, launch: Rows) -> Rows:
    """Runtime calls and GPU slices: the innermost op around the call, else by external id."""
    found = np.full(len(slices), NONE, dtype=np.int32)
    is_op = in_categories(slices["category"], OP_CATEGORIES)
    is_call = launches(slices["category"])
    on_gpu = is_gpu(slices["category"])
    around = links.nearest_ancestor(slices["parent"].to_numpy(), is_op)
    found[is_call] = around[is_call]
    launched = on_gpu & (launch >= 0)
    launcher = launch[launched]
    found[launched] = np.where(is_op[launcher], launcher, found[launcher])
    external, ts = slices["external_id"].to_numpy(), slices["ts"].to_numpy()
    orphans = np.flatnonzero((is_call | on_gpu) & (found < 0) & (external > 0))
    ops = np.flatnonzero(is_op & (external > 0))
    hit = links.latest_before(external[orphans], ts[orphans], external[ops], ts[ops])
    found[orphans[hit >= 0]] = ops[hit[hit >= 0]]
    late = launched & (found < 0)  # the call itself may have found its op by external id
    found[late] = found[launch[late]]
    return found


def link_forward(slices: pd.DataFrame, flow_rows: FlowRows) -> Rows:
    """Backward ops: the last forward op that started with the sequence number before it.

    torch writes on a backward op the autograd id of the forward thread, but that id nowhere else;
    the forward's track is the one that the arrows, else most equal sequence numbers, point to.
    """
    found = np.full(len(slices), NONE, dtype=np.int32)
    sequence, thread = slices["sequence"].to_numpy(), slices["forward_thread"].to_numpy()
    ts, track = slices["ts"].to_numpy(), slices["track"].to_numpy()
    numbered = (sequence >= 0) & in_categories(slices["category"], OP_CATEGORIES)
    forwards = np.flatnonzero(numbered & (thread <= 0))
    for number in np.unique(thread[numbered & (thread > 0)]):
        backwards = np.flatnonzero(numbered & (thread == number))
        home = _forward_track(slices, backwards, forwards, flow_rows)
        there = forwards[track[forwards] == home]
        hit = links.latest_before(sequence[backwards], ts[backwards], sequence[there], ts[there])
        rows, ops = backwards[hit >= 0], there[hit[hit >= 0]]
        before = ts[ops] <= ts[rows]
        found[rows[before]] = ops[before]
    _link_engine(slices, found)
    return found


def _link_engine(slices: pd.DataFrame, found: Rows) -> None:
    """The engine's slice around a backward op belongs to the same forward op.

    torch writes the sequence number there too, but not where a hook runs an op before it.
    """
    rows = np.flatnonzero(found >= 0)
    around = slices["parent"].to_numpy()[rows]
    unlinked = (around >= 0) & is_engine(slices["name"])[around] & (found[around] < 0)
    rows, around = rows[unlinked], around[unlinked]
    names, ts = slices["name"].to_numpy(object), slices["ts"].to_numpy()
    evaluated = names[around] == EVALUATE + names[rows]
    theirs = evaluated & (ts[found[rows]] <= ts[around])
    found[around[theirs]] = found[rows[theirs]]


def _forward_track(
    slices: pd.DataFrame,
    backwards: NDArray[np.intp],
    forwards: NDArray[np.intp],
    flow_rows: FlowRows,
) -> int:
    track, sequence = slices["track"].to_numpy(), slices["sequence"].to_numpy()
    sources, targets = flow_rows
    votes = track[sources[np.isin(targets, backwards)]]
    if not len(votes):
        votes = track[forwards[np.isin(sequence[forwards], sequence[backwards])]]
    return int(np.bincount(votes).argmax()) if len(votes) else NONE


def causes(slices: pd.DataFrame, began: NDArray[np.int64] | None = None) -> Rows:
    """Who caused a slice: its parent; of a backward op its forward op, of a GPU slice its launch.

    Following them ends: a parent began before its child or is less deep, a forward op before its
    backward op; one that began together with it is passed by. ``began``: when they did so before a
    window cut them; at its edge all would begin together.
    """
    ts, parent = slices["ts"].to_numpy(), slices["parent"].to_numpy()
    ts = ts if began is None else began
    forward, launch = slices["forward"].to_numpy(), slices["launch"].to_numpy()
    earlier = (forward >= 0) & (ts[forward] < ts)
    cause = np.where(earlier, forward, parent)
    launcher = np.where(launch >= 0, launch, slices["op"].to_numpy())
    return np.where(is_gpu(slices["category"]), launcher, cause).astype(np.int32)


def is_engine(names: pd.Series) -> NDArray[np.bool_]:
    """Which rows are the slices that autograd's engine has around each backward op."""
    starts = [str(name).startswith(ENGINE) for name in names.cat.categories]
    return np.array([*starts, False], bool)[names.cat.codes.to_numpy()]


def unlinked_gpu(trace: Trace) -> int:
    """Number of GPU slices for which the trace holds no launch (counted, kept, not guessed)."""
    slices = trace.slices
    gpu = is_gpu(slices["category"]) & (slices["count"].to_numpy() > 0)
    return int(np.count_nonzero(gpu & (slices["launch"].to_numpy() < 0)))


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
