"""How much of each Python function was waiting for the GPU, from recorded frames."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pandas as pd

from gpuprof_widgets.analyses.innermost import segments
from gpuprof_widgets.analyses.thread_waits import ThreadWaits, python_lanes
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
    above = _with_callers(trace, parts["frame"].to_numpy(), function)
    ns, reason = parts["ns"].to_numpy()[above["part"]], parts["reason"].to_numpy()[above["part"]]
    by = pd.DataFrame({"function": above["function"], "reason": reason, "ns": ns})
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
    names = trace.slices["name"].to_numpy(object)
    for track in np.flatnonzero((tracks["kind"] == "python") & tracks["lane"].isin(lanes)):
        pieces = segments(trace, int(track))
        here = table[(table["lane"] == tracks["lane"].iloc[track]) & ~table["backward"]]
        calling = np.array([r >= 0 and RUNS_BACKWARD in names[r] for r in pieces.row], bool)
        for rows, usable in ((here, pieces.row >= 0), (table[table["backward"]], calling)):
            met = _overlaps(rows, pieces.start[usable], pieces.end[usable])
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


def _with_callers(trace: Trace, frame: Ints, function: Ints) -> pd.DataFrame:
    """``part`` and ``function`` of every frame and all above it, each function once."""
    parent = np.append(trace.slices["parent"].to_numpy(), NONE)
    part, found = np.arange(len(frame)), []
    while len(frame):
        found.append(pd.DataFrame({"part": part, "function": function[frame]}))
        frame = parent[frame]
        part, frame = part[frame >= 0], frame[frame >= 0]
    pairs = pd.concat(found) if found else pd.DataFrame({"part": [], "function": []}, dtype=int)
    return pairs[pairs["function"] >= 0].drop_duplicates().astype(np.int64)
