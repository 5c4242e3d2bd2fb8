"""Owners of slices: the launch and op of GPU slices, the forward op and caller of backward ops.

Functions take the slices table, or the trace, and return slice rows; -1 means that there is none.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

import numpy as np
import pandas as pd

from gpuprof_widgets.trace import links
from gpuprof_widgets.trace.arrays import Codes, Ints, Mask, Rows
from gpuprof_widgets.trace.index import take
from gpuprof_widgets.trace.links import innermost_open, nearest_ancestor, rows_by
from gpuprof_widgets.trace.model import Record, Trace
from gpuprof_widgets.trace.schema import GPU_CATEGORIES, NONE, OP_CATEGORIES, RUNTIME_ENDINGS

FlowRows = tuple[Codes, Codes]
"""Source rows and target rows of arrows."""

ENGINE = "autograd::engine::"
BACKWARD = f"{ENGINE}evaluate_function"
"""Start of the names of the ops in which autograd runs one node of the backward pass."""
EVALUATE = f"{BACKWARD}: "
"""Name of the engine's slice around a backward op, up to the op's own name."""
BEGINS_BACKWARD = re.compile(f"{re.escape(BACKWARD)}.*", re.DOTALL)


def in_categories(category: pd.Series, wanted: Iterable[str]) -> Mask:
    """Which rows have one of these categories."""
    return category.isin(list(wanted)).to_numpy()


def is_gpu(category: pd.Series) -> Mask:
    """Which rows ran on a GPU: kernels, copies, memsets."""
    return in_categories(category, GPU_CATEGORIES)


def launches(category: pd.Series) -> Mask:
    """Which rows are calls of a device's runtime or driver (CUDA, ROCm, XPU, ...)."""
    names = category.cat.categories
    return in_categories(category, [n for n in names if n.endswith(RUNTIME_ENDINGS)])


def link_launches(slices: pd.DataFrame) -> Codes:
    """Return for GPU slices the latest runtime or driver call with the same correlation.

    Ids may be reused, hence the latest. Programs that record no such calls (TensorFlow, MegEngine)
    write the correlation on the op that launched the work; Kineto writes it on calls alone.
    """
    launch = np.full(len(slices), NONE, dtype=np.int32)
    correlation, ts = slices["correlation"].to_numpy(), slices["ts"].to_numpy()
    known = correlation > 0
    gpu = np.flatnonzero(is_gpu(slices["category"]) & known)
    is_op = in_categories(slices["category"], OP_CATEGORIES)
    calls = np.flatnonzero((launches(slices["category"]) | is_op) & known)
    hit = links.latest_before(correlation[gpu], ts[gpu], correlation[calls], ts[calls])
    launch[gpu[hit >= 0]] = calls[hit[hit >= 0]]
    return launch


def link_ops(slices: pd.DataFrame, launch: Codes) -> Codes:
    """Return for runtime calls and GPU slices the innermost op around the call.

    Where no op is around the call, it is the latest op with the same external id.
    """
    op = np.full(len(slices), NONE, dtype=np.int32)
    is_op = in_categories(slices["category"], OP_CATEGORIES)
    is_call = launches(slices["category"])
    on_gpu = is_gpu(slices["category"])
    around = links.nearest_ancestor(slices["parent"].to_numpy(), is_op)
    op[is_call] = around[is_call]
    launched = on_gpu & (launch >= 0)
    launcher = launch[launched]
    op[launched] = np.where(is_op[launcher], launcher, op[launcher])
    external, ts = slices["external_id"].to_numpy(), slices["ts"].to_numpy()
    orphans = np.flatnonzero((is_call | on_gpu) & (op < 0) & (external > 0))
    ops = np.flatnonzero(is_op & (external > 0))
    hit = links.latest_before(external[orphans], ts[orphans], external[ops], ts[ops])
    op[orphans[hit >= 0]] = ops[hit[hit >= 0]]
    late = launched & (op < 0)  # the launching call may have got its op by external id just now
    op[late] = op[launch[late]]
    return op


def link_forward(slices: pd.DataFrame, flow_rows: FlowRows) -> Codes:
    """Return for backward ops the latest earlier forward op with the same sequence number.

    torch writes the autograd id of the forward thread on the backward op, but nowhere else. So the
    forward track is the one to which the file's arrows, else most equal sequence numbers, point.
    """
    linked = np.full(len(slices), NONE, dtype=np.int32)
    sequence, thread = slices["sequence"].to_numpy(), slices["forward_thread"].to_numpy()
    ts, track = slices["ts"].to_numpy(), slices["track"].to_numpy()
    numbered = (sequence >= 0) & in_categories(slices["category"], OP_CATEGORIES)
    forwards = np.flatnonzero(numbered & (thread <= 0))
    for number in np.unique(thread[numbered & (thread > 0)]):
        backwards = np.flatnonzero(numbered & (thread == number))
        forward_track = _forward_track(slices, backwards, forwards, flow_rows)
        ops = forwards[track[forwards] == forward_track]
        hit = links.latest_before(sequence[backwards], ts[backwards], sequence[ops], ts[ops])
        rows, ops = backwards[hit >= 0], ops[hit[hit >= 0]]
        before = ts[ops] <= ts[rows]
        linked[rows[before]] = ops[before]
    _link_engine(slices, linked)
    return linked


def _link_engine(slices: pd.DataFrame, linked: Codes) -> None:
    """Link the engine's slice around a backward op to the same forward op, in place.

    torch writes the sequence number there too, except where a hook runs an op before it.
    """
    rows = np.flatnonzero(linked >= 0)
    around = slices["parent"].to_numpy()[rows]
    unlinked = (around >= 0) & is_engine(slices["name"])[around] & (linked[around] < 0)
    rows, around = rows[unlinked], around[unlinked]
    names, ts = slices["name"].to_numpy(object), slices["ts"].to_numpy()
    evaluated = names[around] == EVALUATE + names[rows]
    same = evaluated & (ts[linked[rows]] <= ts[around])
    linked[around[same]] = linked[rows[same]]


def _forward_track(
    slices: pd.DataFrame, backwards: Rows, forwards: Rows, flow_rows: FlowRows
) -> int:
    """Return the track on which most forward ops of these backward ops ran; -1 if unknown."""
    track, sequence = slices["track"].to_numpy(), slices["sequence"].to_numpy()
    sources, targets = flow_rows
    votes = track[sources[np.isin(targets, backwards)]]
    if not len(votes):
        votes = track[forwards[np.isin(sequence[forwards], sequence[backwards])]]
    return int(np.bincount(votes).argmax()) if len(votes) else NONE


def causes(slices: pd.DataFrame, began: Ints | None = None) -> Codes:
    """Return the cause of each slice: its parent, a backward op's forward op, a GPU slice's launch.

    Chains of causes end: a parent began before its child or is less deep, and a forward op that did
    not begin before its backward op does not count. ``began`` holds the starts before a window cut
    the slices, because at its edge all of them would begin together.
    """
    ts, parent = slices["ts"].to_numpy(), slices["parent"].to_numpy()
    ts = ts if began is None else began
    forward, launch = slices["forward"].to_numpy(), slices["launch"].to_numpy()
    earlier = (forward >= 0) & (ts[forward] < ts)
    cause = np.where(earlier, forward, parent)
    launcher = np.where(launch >= 0, launch, slices["op"].to_numpy())
    return np.where(is_gpu(slices["category"]), launcher, cause).astype(np.int32)


def is_engine(names: pd.Series) -> Mask:
    """Which rows are slices of autograd's engine, as around each backward op."""
    starts = [str(name).startswith(ENGINE) for name in names.cat.categories]
    return np.array(starts, bool)[names.cat.codes.to_numpy()]


def run_region(record: Record) -> int:
    """Return the row of the region that the run's label names, whose thread is the run's; else -1.

    A window keeps it, so that its Python frames are those of the same thread.
    """
    slices = record.trace.slices
    named = (slices["name"] == record.metadata.get("label")).to_numpy(bool)
    rows = np.flatnonzero(named & (slices["category"] == "user_annotation").to_numpy())
    return int(rows[0]) if len(rows) else NONE


def calling_lines(trace: Trace) -> Codes:
    """Return for slices of the backward pass the innermost cell line open when they began; else -1.

    For a GPU, autograd works on its own threads, on which no line runs, while the line that called
    it waits. Of lines on several threads, the one that began last counts. Starts and ends are those
    before a window cut the slices.
    """
    lines = trace.index.in_category("cell_line")
    if not lines.any():
        return np.full(len(trace), NONE, np.int32)
    return _calling_regions(trace, lines, _in_backward(trace))


def calling_annotations(trace: Trace) -> Codes:
    """Do the same as `calling_lines` for annotations (`record_function`) outside the backward."""
    backward = _in_backward(trace)
    return _calling_regions(trace, trace.index.in_category("user_annotation") & ~backward, backward)


def _calling_regions(trace: Trace, regions: Mask, backward: Mask) -> Codes:
    """Return for slices of the backward pass the innermost of the regions open when they began."""
    caller = np.full(len(trace), NONE, np.int32)
    began, ended = trace.index.uncut
    called, rows = np.flatnonzero(backward), np.flatnonzero(regions)
    track = trace.index.track[rows]
    # Where regions of two threads began together, that of the first thread counts.
    rows = rows[np.lexsort((rows, -track, began[rows]))]
    at = innermost_open(began[rows], ended[rows], began[called])
    caller[called] = take(rows, at)
    return caller


def open_on_other_track(trace: Trace, began: Ints, ended: Ints) -> Codes:
    """Return for each op the innermost Python frame of its thread open when it began; else -1.

    For each frame it is the innermost op, because autograd calls Python from within an op.
    """
    tracks = trace.tracks
    track = trace.slices["track"].to_numpy()
    kind, lane = tracks["kind"].to_numpy(object), tracks["lane"].to_numpy()
    caller = np.full(len(trace), NONE, np.int32)
    rows, nothing = rows_by(track), np.empty(0, np.intp)  # a window may leave a track empty
    threads = rows_by(np.where(kind == "cpu", lane, NONE))
    for python in np.flatnonzero(kind == "python").tolist():
        for ops in threads.get(int(lane[python]), nothing).tolist():
            for here, there in ((ops, python), (python, ops)):
                called, callers = rows.get(here, nothing), rows.get(there, nothing)
                if len(callers):
                    at = innermost_open(began[callers], ended[callers], began[called])
                    caller[called[at >= 0]] = callers[at[at >= 0]]
    return caller


def _in_backward(trace: Trace) -> Mask:
    """Which CPU slices are, or lie within, an op of the backward pass."""
    index = trace.index
    marked = index.matching(BEGINS_BACKWARD) | (index.column("forward") >= 0)
    within = marked | (nearest_ancestor(index.parent, marked) >= 0)
    return np.asarray(within & index.on_tracks("cpu"), bool)
