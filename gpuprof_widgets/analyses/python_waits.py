"""How much of each Python function was waiting for the GPU, from recorded frames."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pandas as pd

from gpuprof_widgets.analyses.thread_waits import ThreadWaits, python_lanes
from gpuprof_widgets.trace import links
from gpuprof_widgets.trace.model import Record, Trace
from gpuprof_widgets.trace.python_frames import place
from gpuprof_widgets.trace.schema import NONE

Ints = npt.NDArray[np.int64]

RUNS_BACKWARD = "run_backward"
"""The built-in in which a thread waits for those of the backward pass."""


@dataclass(frozen=True)
class FunctionWaits:
    """Per function: ns of its own and of everything below; and the main reason, -1 for none."""

    self_ns: Ints
    total_ns: Ints
    reason: Ints


def recorded_waits(functions: pd.DataFrame, waited: ThreadWaits, record: Record) -> FunctionWaits:
    """Each wait is the innermost frame's that was open on its thread, and of all above it."""
    trace = record.trace
    parts = _frames_waiting(trace, waited, python_lanes(record))
    function = function_of(trace, functions)
    parts = parts[function[parts["frame"]] >= 0]
    own = np.zeros(len(functions), np.int64)
    np.add.at(own, function[parts["frame"]], parts["ns"])
    by = _with_callers(trace, parts, function)
    by = by.groupby(["function", "reason"])["ns"].sum().reset_index()
    total = np.zeros(len(functions), np.int64)
    np.add.at(total, by["function"], by["ns"])
    main = np.full(len(functions), NONE, np.int64)
    by = by.sort_values("ns", kind="stable")
    main[by["function"]] = by["reason"]  # the last one assigned stays: the longest
    return FunctionWaits(own, total, main)


def _frames_waiting(trace: Trace, waited: ThreadWaits, lanes: Ints) -> pd.DataFrame:
    """``frame`` (row), ``reason`` and ``ns`` of every piece of a wait inside one frame."""
    tracks, table = trace.tracks, waited.table
    parts = []
    name, lane = trace.slices["name"].cat, tracks["lane"].to_numpy()
    runs = np.array([RUNS_BACKWARD in str(one) for one in name.categories] + [False], bool)
    code = np.append(name.codes.to_numpy(), NONE)
    backward = table["backward"].to_numpy(bool)
    late = np.flatnonzero(backward)
    of_lane = links.rows_by(np.where(backward, NONE, table["lane"].to_numpy()))
    for track in np.flatnonzero((tracks["kind"] == "python") & np.isin(lane, lanes)):
        pieces = trace.index.segments(int(track))
        calling = runs[code[pieces.row]]
        here = of_lane.get(int(lane[track]), np.empty(0, np.intp))
        for rows, usable in ((here, pieces.row >= 0), (late, calling)):
            if len(rows) and usable.any():
                met = _overlaps(table.iloc[rows], pieces.start[usable], pieces.end[usable])
                parts.append(met.assign(frame=pieces.row[usable][met["at"]]))
    found = pd.concat(parts) if parts else pd.DataFrame({"frame": [], "reason": [], "ns": []})
    return found[["frame", "reason", "ns"]].astype(np.int64).reset_index(drop=True)


def _overlaps(rows: pd.DataFrame, start: Ints, end: Ints) -> pd.DataFrame:
    """Where waits meet disjoint, sorted stretches: ``at`` (of the stretch), ``reason``, ``ns``."""
    begins, ends = rows["start_ns"].to_numpy(), rows["end_ns"].to_numpy()
    first = np.searchsorted(end, begins, side="right")
    count = np.maximum(np.searchsorted(start, ends, side="left") - first, 0)
    wait = np.repeat(np.arange(len(rows)), count)
    at = np.arange(count.sum()) - np.repeat(np.cumsum(count) - count, count) + first[wait]
    ns = np.minimum(ends[wait], end[at]) - np.maximum(begins[wait], start[at])
    return pd.DataFrame({"at": at, "reason": rows["reason"].to_numpy()[wait], "ns": ns})


def function_of(trace: Trace, functions: pd.DataFrame) -> Ints:
    """Per slice the row of its function; -1 for what is no frame of one of them."""
    keys = zip(functions["file"], functions["line"], functions["name"], strict=True)
    number = {(str(f), int(line), str(name)): row for row, (f, line, name) in enumerate(keys)}
    names = trace.slices["name"].cat
    of_name = [number.get(place(str(name)), NONE) for name in names.categories]
    found = np.array([*of_name, NONE], np.int64)[names.codes.to_numpy()]
    frames = (trace.slices["category"] == "python_function").to_numpy()
    return np.append(np.where(frames, found, NONE), NONE)  # the last one answers for parent -1


def _with_callers(trace: Trace, parts: pd.DataFrame, function: Ints) -> pd.DataFrame:
    """``function``, ``reason`` and ``ns`` of every frame and all above it, each function once.

    From the deepest frames up: what waits for one reason goes on as one, however much it was.
    """
    parent, (part, why) = trace.slices["parent"].to_numpy(), parts[["frame", "reason"]].to_numpy().T
    kind = np.where(function < 0, function.max(initial=0) + 1, function)[:-1]
    counted = (function[:-1] >= 0) & ~links.below_its_like(parent, kind)
    depth = links.depths(parent)[part]
    reasons, of_depth = int(why.max(initial=0)) + 1, links.rows_by(depth)
    keys, length = part * reasons + why, parts["ns"].to_numpy()
    key, ns, found = keys[:0], length[:0], []
    for level in range(int(depth.max(initial=-1)), -1, -1):
        here = of_depth.get(level, np.empty(0, np.intp))
        key, at = np.unique(np.append(key, keys[here]), return_inverse=True)
        sums = np.zeros(len(key), np.int64)
        np.add.at(sums, at.reshape(-1), np.append(ns, length[here]))
        frame, reason = np.divmod(key, reasons)
        found.append(np.stack([function[frame], reason, sums])[:, counted[frame]])
        above = parent[frame].astype(np.int64)
        key, ns = (above * reasons + reason)[above >= 0], sums[above >= 0]
    table = np.concatenate(found, axis=1) if found else np.empty((3, 0), np.int64)
    return pd.DataFrame(dict(zip(("function", "reason", "ns"), table, strict=True)))
