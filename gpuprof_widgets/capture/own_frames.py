"""Take our own frames and the kernel's out of what was recorded: the user's code remains."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Collection, Mapping
from dataclasses import replace
from pathlib import Path
from types import TracebackType

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from gpuprof_widgets.capture.module_calls import FILE, LINE, NAME
from gpuprof_widgets.trace.edit import kept_slices
from gpuprof_widgets.trace.model import Calls, Trace
from gpuprof_widgets.trace.schema import GPU_CATEGORIES

Mask = NDArray[np.bool_]

_COUNTED = ["calls", "primitive_calls", "self_ns", "total_ns"]
_PACKAGE = str(Path(__file__).parent.parent)
_BUILTIN = "~"
_OF_DEVICES = (*GPU_CATEGORIES, "gpu_user_annotation")

# torch shortens paths by sys.path, so frames are known by the tail of their file's path.
_AROUND = re.compile(
    r"gpuprof_widgets[/\\](capture[/\\](cell|loop[/\\]steps)|commands[/\\]run"
    r"|integrations[/\\]\w+|magic|profiling)\.py\("
    rf"|nn[/\\]modules[/\\]module\.py\({LINE}\): {NAME}$"
)
_RECORDING = re.compile(
    r"gpuprof_widgets[/\\]capture[/\\](?!(cell|loop[/\\]steps)\.py)[\w/\\]+\.py\("
)


_BETWEEN = str(Path(_PACKAGE, "capture", "loop", "steps.py"))
"""Its functions stand between a loop and its items: what they call, the loop has called."""
_DRIVING = str(Path(_PACKAGE, "capture", "lines", "suspended.py"))
"""Runs what a marked line awaits, by built-ins such as `next`: what these call, the user awaits."""

_BESIDE = re.compile(re.escape(_PACKAGE) + r"[/\\]capture[/\\](modules|module_calls|memory)\.py")
"""Calls nothing of the user's but to look at it: what it calls is ours, and what that calls."""

_KERNEL = re.compile(
    r"[/\\](?:ipykernel|IPython|zmq|tornado|asyncio|jupyter_client|traitlets)[/\\]"
    r"|[/\\](?:threading|selectors|queue)\.py$"
)


def without_own_calls(
    calls: Calls, cell_labels: Mapping[str, str], *, began_inside: bool = False
) -> Calls:
    """The calls without ours; with cells only what their code reached, under their labels.

    Others are there when a cell awaits (the event loop's other tasks) and from Python 3.12 on
    (cProfile then sees every thread). Where cProfile ``began_inside`` the cell's code, the calls
    by the frames that were open then have no caller.
    """
    ours = calls.functions["file"].str.startswith(_PACKAGE).to_numpy(dtype=bool)
    ours = ours | _are_marked_calls(calls.functions)
    between = (calls.functions["file"] == _BETWEEN).to_numpy(dtype=bool)
    beside = calls.functions["file"].str.match(_BESIDE).to_numpy(dtype=bool)
    by_us = _called_by(calls, (calls.functions["file"] == _DRIVING).to_numpy(dtype=bool))
    driven = by_us & (calls.functions["file"] == _BUILTIN).to_numpy(dtype=bool)
    entered = _called_by(calls, between) | _called_by(calls, driven)
    calls = _called_past(calls, between)
    calls = _called_through(calls, ours)
    calls = _less_called_by(calls, ours & ~between, beside)
    functions = calls.functions
    keep = ~ours & (functions["calls"].to_numpy() > 0)
    if cell_labels:
        entries = _entries(functions, cell_labels) | entered
        if began_inside:
            entries |= _without_caller(calls)
        keep &= _reached(calls, entries, keep)
        files = [cell_labels.get(file, file) for file in functions["file"]]
        # As objects, which they are when loaded: pandas would infer a dtype of its own.
        functions["file"] = pd.Series(files, index=functions.index, dtype=object)
    return _kept_calls(Calls(functions, calls.edges), keep)


def _called_by(calls: Calls, callers: Mask) -> Mask:
    called = np.zeros(len(calls.functions), dtype=bool)
    called[calls.edges["callee"].to_numpy()[callers[calls.edges["caller"].to_numpy()]]] = True
    return called


def _called_past(calls: Calls, between: Mask) -> Calls:
    """The calls as if what these functions called had been called by who called them.

    Where several did, by the one that did so most; where that was before cProfile began, by none.
    """
    edges = calls.edges
    if not between.any():
        return calls
    above = edges[between[edges["callee"]] & ~between[edges["caller"]]]
    most = above.sort_values("calls").drop_duplicates("callee", keep="last")
    caller_of = dict(zip(most["callee"], most["caller"], strict=True))
    past = between[edges["caller"]] & ~between[edges["callee"]]
    caller = [
        caller_of.get(caller, caller) if is_past else caller
        for caller, is_past in zip(edges["caller"], past, strict=True)
    ]
    merged = edges.assign(caller=np.array(caller, dtype=edges["caller"].to_numpy().dtype))
    sums = merged.groupby(["caller", "callee"], as_index=False, sort=False).sum()
    return Calls(calls.functions, sums[list(edges.columns)])


def _without_caller(calls: Calls) -> Mask:
    """Functions some of whose calls nobody made that cProfile saw, the kernel's own left out."""
    seen = np.zeros(len(calls.functions), dtype=np.int64)
    np.add.at(seen, calls.edges["callee"].to_numpy(), calls.edges["calls"].to_numpy())
    unseen = calls.functions["calls"].to_numpy() > seen
    of_kernel = calls.functions["file"].str.contains(_KERNEL).to_numpy(dtype=bool)
    return np.asarray(unseen & ~of_kernel)


def _are_marked_calls(functions: pd.DataFrame) -> Mask:
    """Our code around the calls of modules, which says that it stands in torch's file."""
    place = (functions["file"] == FILE) & (functions["line"] == LINE) & (functions["name"] == NAME)
    return place.to_numpy(dtype=bool)


def _called_through(calls: Calls, ours: Mask) -> Calls:
    """The calls as if who called a module's marked call had called what that calls.

    It makes one call for each call of it, so that callers share these by their own number.
    """
    functions, edges = calls.functions, calls.edges
    through = _are_marked_calls(functions)
    theirs = ~ours & (functions["file"] != _BUILTIN).to_numpy(dtype=bool)
    callee = edges["callee"].to_numpy()
    past = through[edges["caller"]] & theirs[callee]
    if not past.any():
        return calls
    above = edges[through[edges["callee"]]]
    merged = [edges[~past]]
    for row in np.flatnonzero(past):
        callers = above[above["callee"] == edges["caller"].iloc[row]]
        reached = (callers["calls"] / callers["calls"].sum()).cumsum().to_numpy()
        shared = {
            column: np.diff(np.rint(reached * edges[column].iloc[row]), prepend=0).astype(np.int64)
            for column in _COUNTED
        }
        merged.append(callers.assign(callee=int(callee[row]), **shared))
    sums = pd.concat(merged).groupby(["caller", "callee"], as_index=False, sort=False).sum()
    return Calls(functions, sums[list(edges.columns)].astype(dict(edges.dtypes)))


def _less_called_by(calls: Calls, ours: Mask, beside: Mask) -> Calls:
    """The calls, less the built-ins that our own frames called, and all that those beside did.

    With what those beside alone have called goes what that called.
    """
    functions, edges = calls.functions.copy(), calls.edges
    caller, callee = edges["caller"].to_numpy(), edges["callee"].to_numpy()
    builtin = (functions["file"] == _BUILTIN).to_numpy()
    number, count = functions["calls"].to_numpy(), edges["calls"].to_numpy()
    alone = beside
    while True:
        by_us = np.bincount(callee[alone[caller]], count[alone[caller]], len(functions))
        new = beside | (~ours & (by_us > 0) & (by_us >= number))
        if np.array_equal(new, alone):
            break
        alone = new
    gone = alone[caller] | (ours[caller] & builtin[callee])
    for name in _COUNTED:
        left = functions[name].to_numpy(copy=True)
        np.subtract.at(left, callee[gone], edges[name].to_numpy()[gone])
        functions[name] = left
    return Calls(functions, edges[~gone].reset_index(drop=True))


def _entries(functions: pd.DataFrame, cell_files: Collection[str]) -> Mask:
    """Where the user's code begins: in a cell, or in a thread."""
    in_cell = functions["file"].isin(list(cell_files))
    in_thread = functions["file"].str.endswith("threading.py") & (functions["name"] == "_bootstrap")
    return (in_cell | in_thread).to_numpy(dtype=bool)


def _reached(calls: Calls, entries: Mask, allowed: Mask) -> Mask:
    caller, callee = calls.edges["caller"].to_numpy(), calls.edges["callee"].to_numpy()
    reached = entries.copy()
    while True:
        new = np.unique(callee[reached[caller] & allowed[callee] & ~reached[callee]])
        if not len(new):
            return reached
        reached[new] = True


def _kept_calls(calls: Calls, keep: Mask) -> Calls:
    row = np.cumsum(keep) - 1
    caller, callee = calls.edges["caller"].to_numpy(), calls.edges["callee"].to_numpy()
    # The built-in through which we ran the cell is not its caller, though users call it as well.
    entered = (
        _is_evaluation(calls.functions)[caller]
        & (calls.functions["name"] == "<module>").to_numpy()[callee]
    )
    kept = keep[caller] & keep[callee] & ~entered
    edges = calls.edges[kept].assign(caller=row[caller[kept]], callee=row[callee[kept]])
    return Calls(
        functions=calls.functions[keep].reset_index(drop=True),
        edges=edges.reset_index(drop=True),
    )


def _is_evaluation(functions: pd.DataFrame) -> Mask:
    return (functions["name"] == "<built-in method builtins.eval>").to_numpy(dtype=bool)


def without_own_slices(
    trace: Trace, label: str, *, cells: Collection[str] = (), threads_before: Collection[int] = ()
) -> Trace:
    """The trace of what ran in the region of that name: not what we did before and after it.

    Out go the frames that are ours or were open already, and what the region's thread did outside
    it (our wait for the device); what a device still works off after it stays. In a kernel out go
    also the frames of the threads that were there before, unless they ran an op or code of one of
    the ``cells``.
    """
    slices = trace.slices
    regions = slices[(slices["category"] == "user_annotation") & (slices["name"] == label)]
    if not len(regions):
        return trace
    region = regions.iloc[int(regions["dur"].argmax())]
    begin, end = int(region["ts"]), int(region["ts"] + region["dur"])
    ts, track = slices["ts"].to_numpy(), slices["track"].to_numpy()
    ended = ts + slices["dur"].to_numpy()
    own = (track == region["track"]) & ((ts < begin) | (ts >= end))
    own |= ~slices["category"].isin(_OF_DEVICES).to_numpy() & (ended <= begin) & (ts < begin)
    frames = (slices["category"] == "python_function").to_numpy()
    if frames.any():
        own |= _own_frames(slices, frames, begin, end)
        longest = int(regions.index.to_numpy()[regions["dur"].argmax()])
        if threads_before:
            own |= _of_the_kernel(trace, frames, longest, cells, threads_before)
        own |= _waiting(trace, frames & ~own, longest)
    return _kept_slices(trace, ~own) if own.any() else trace


def without_steps_taken_back(trace: Trace, names: Mapping[str, int]) -> Trace:
    """The trace without the first so many annotations of each name.

    What a GPU has of them goes too: it begins before the step that came after them does.
    """
    if not names:
        return trace
    slices = trace.slices
    steps = slices[slices["name"].isin(list(names))]
    keep = np.ones(len(slices), dtype=bool)
    for name, number in names.items():
        named = steps[steps["name"] == name]
        begun = sorted(named.loc[named["category"] == "user_annotation", "ts"])
        since = begun[number] if number < len(begun) else math.inf
        keep[named.index[named["ts"] < since]] = False
    return kept_slices(trace, keep)


def _own_frames(slices: pd.DataFrame, frames: Mask, begin: int, end: int) -> Mask:
    ts = slices["ts"].to_numpy()
    parent = slices["parent"].to_numpy()
    outside = frames & ((ts < begin) | (ts >= end))
    around = frames & _named(slices["name"], _AROUND)
    recording = frames & _named(slices["name"], _RECORDING)
    # A frame that began first and outlasts the region is who called us, not the recorder at work.
    recording &= ~(outside & (ts + slices["dur"].to_numpy() >= end))
    inside_recording = recording.copy()
    while True:
        new = frames & (parent >= 0) & inside_recording[parent] & ~inside_recording
        if not new.any():
            break
        inside_recording |= new
    builtin = slices["name"].str.startswith("<built-in").to_numpy(dtype=bool)
    by_us = frames & builtin & (parent >= 0) & around[parent]
    return np.asarray(outside | around | inside_recording | by_us)


def _waiting(trace: Trace, frames: Mask, region: int) -> Mask:
    """Built-ins of other threads that run no Python function meanwhile: the kernel's, asleep."""
    slices = trace.slices
    lane = trace.tracks["lane"].to_numpy()[slices["track"].to_numpy()]
    builtin = slices["name"].str.startswith("<built-in").to_numpy(dtype=bool)
    at_work = np.unique(lane[frames & ~builtin])
    return np.asarray(frames & (lane != lane[region]) & ~np.isin(lane, at_work))


def _of_the_kernel(
    trace: Trace, frames: Mask, region: int, cells: Collection[str], threads_before: Collection[int]
) -> Mask:
    """Frames of other threads than the region's that were there before and do no user's work.

    Where torch does not know a thread it writes 0. It looks for Python threads only as it starts,
    so those were there before as well.
    """
    slices = trace.slices
    track = slices["track"].to_numpy()
    lane = trace.tracks["lane"].to_numpy()[track]
    before = trace.tracks["thread"].astype(str).isin([str(n) for n in (0, *threads_before)])
    of_a_cell = frames & _starting(slices["name"], tuple(f"{cell}(" for cell in cells))
    at_work = np.unique(lane[of_a_cell | (slices["category"] == "cpu_op").to_numpy()])
    old = frames & before.to_numpy(dtype=bool)[track] & (lane != lane[region])
    return np.asarray(old & ~np.isin(lane, at_work))


def _starting(names: pd.Series, prefixes: tuple[str, ...]) -> Mask:
    found = np.array([name.startswith(prefixes) for name in names.cat.categories], dtype=bool)
    return np.asarray(found[names.cat.codes])


def _named(names: pd.Series, pattern: re.Pattern[str]) -> Mask:
    found = np.array([bool(pattern.search(name)) for name in names.cat.categories], dtype=bool)
    return np.asarray(found[names.cat.codes])


def _kept_slices(trace: Trace, keep: Mask) -> Trace:
    """The trace of these rows, nested anew and starting with the first of them."""
    trace = kept_slices(trace, keep)
    slices, counters = trace.slices, trace.counters
    start = int(slices["ts"].min())
    end = slices["ts"] + slices["dur"]
    counters = counters[counters["ts"] >= start]
    return replace(
        trace,
        slices=slices.assign(ts=slices["ts"] - start),
        counters=counters.assign(ts=counters["ts"] - start).reset_index(drop=True),
        end_ns=max(int(end.max()), int(counters["ts"].max()) if len(counters) else 0) - start,
        epoch_ns=trace.epoch_ns + start,
    )


def below_ours(traceback: TracebackType | None) -> TracebackType | None:
    """The traceback from the first frame on that is not ours."""
    while traceback is not None and _is_ours(traceback):
        traceback = traceback.tb_next
    return traceback


def leave_out_ours(error: BaseException | None) -> None:
    """Take our frames out of the tracebacks of an error and of those that it came from."""
    _leave_out(error, set())


def _leave_out(error: BaseException | None, seen: set[int]) -> None:
    if error is None or id(error) in seen:
        return
    seen.add(id(error))
    error.__traceback__ = _without_ours(error.__traceback__)
    _leave_out(error.__cause__, seen)
    _leave_out(error.__context__, seen)


def _without_ours(traceback: TracebackType | None) -> TracebackType | None:
    entries = []
    while traceback is not None:
        if not _is_ours(traceback):
            entries.append(traceback)
        traceback = traceback.tb_next
    rest = None
    for entry in reversed(entries):
        rest = TracebackType(rest, entry.tb_frame, entry.tb_lasti, entry.tb_lineno)
    return rest


def _is_ours(entry: TracebackType) -> bool:
    code = entry.tb_frame.f_code
    if (code.co_filename, code.co_firstlineno, code.co_name) == (FILE, LINE, NAME):
        return True
    return code.co_filename.startswith(_PACKAGE + os.sep)
