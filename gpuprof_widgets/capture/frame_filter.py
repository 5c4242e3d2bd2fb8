"""Take the profiler's frames and the kernel's out of a recording, so that the user's code remains.

`without_profiler_calls` does it for cProfile's calls, `without_profiler_slices` for the trace's
Python frames, `users_frames` for sampled stacks and `remove_profiler_frames` for tracebacks. Our
code is known by its files, so the patterns below name modules of this package.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import TracebackType

import numpy as np
import pandas as pd

from gpuprof_widgets.capture.code import is_installed, name_in_package
from gpuprof_widgets.trace.arrays import Mask
from gpuprof_widgets.trace.edit import kept_slices
from gpuprof_widgets.trace.libraries import is_library
from gpuprof_widgets.trace.model import Calls, Trace
from gpuprof_widgets.trace.schema import GPU_CATEGORIES

_COUNTED = ["calls", "primitive_calls", "self_ns", "total_ns"]
_PACKAGE = str(Path(__file__).parent.parent)
_BUILTIN = "~"
_DEVICE_CATEGORIES = (*GPU_CATEGORIES, "gpu_user_annotation")
_OF_THE_WAIT = ("cuda_sync", "overhead")

# In traces torch shortens paths by sys.path, so frames are known by the tail of their file's path.
_AROUND_USER_CODE = re.compile(
    r"gpuprof_widgets[/\\](capture[/\\](cell|loop[/\\]steps)|commands[/\\]run"
    r"|integrations[/\\]\w+|magic|profiling)\.py\("
)
"""Frames that run the user's code."""
_RECORDING = re.compile(
    r"gpuprof_widgets[/\\]capture[/\\](?!(cell|loop[/\\]steps)\.py)[\w/\\]+\.py\("
)
"""Frames that record: what they call is ours as well."""

_LOOP_FILE = str(Path(_PACKAGE, "capture", "loop", "steps.py"))
"""Stands between a loop and its items: what its functions call, the loop has called."""
_AWAIT_FILE = str(Path(_PACKAGE, "capture", "lines", "suspended.py"))
"""Runs what a marked line awaits, by built-ins such as `next`: what these call, the user awaits."""

_OBSERVERS = re.compile(re.escape(_PACKAGE) + r"[/\\]capture[/\\](module\w+|memory)\.py")
"""Only looks at the user's objects: whatever it calls, directly or not, is ours."""

_KERNEL = re.compile(
    r"[/\\](?:ipykernel|IPython|zmq|tornado|asyncio|jupyter_client|traitlets)[/\\]"
    r"|[/\\](?:threading|selectors|queue)\.py$"
)
"""Files of the kernel's event loop."""


def without_profiler_calls(
    calls: Calls, cell_labels: Mapping[str, str], *, began_inside: bool = False
) -> Calls:
    """Return the calls without ours; in a notebook only those that the cells' code reached.

    ``cell_labels`` maps the files of cells to the labels that replace them. Calls that no cell made
    come from the event loop's other tasks, when a cell awaits. Where cProfile ``began_inside`` the
    cell's code, the calls by frames that were open then have no caller.
    """
    files = calls.functions["file"]
    ours = files.str.startswith(_PACKAGE).to_numpy(dtype=bool)
    of_loop = (files == _LOOP_FILE).to_numpy(dtype=bool)
    observers = files.str.match(_OBSERVERS).to_numpy(dtype=bool)
    called_by_await = _called_by(calls, (files == _AWAIT_FILE).to_numpy(dtype=bool))
    awaiting = called_by_await & (files == _BUILTIN).to_numpy(dtype=bool)
    called_by_user = _called_by(calls, of_loop) | _called_by(calls, awaiting)
    calls = _called_past(calls, of_loop)
    calls = _less_called_by(calls, ours & ~of_loop, observers)
    functions = calls.functions
    keep = ~ours & (functions["calls"].to_numpy() > 0)
    if cell_labels:
        in_cell = functions["file"].isin(list(cell_labels))
        in_thread = functions["file"].str.endswith("threading.py")
        in_thread &= functions["name"] == "_bootstrap"
        entries = (in_cell | in_thread).to_numpy(dtype=bool) | called_by_user
        if began_inside:
            entries |= _without_caller(calls)
        keep &= _reached(calls, entries, keep)
    functions = with_labels(functions, cell_labels)
    return _kept_calls(Calls(functions, calls.edges), keep)


def with_labels(functions: pd.DataFrame, cell_labels: Mapping[str, str]) -> pd.DataFrame:
    """Return the functions with labels of cells as files; paths of packages tell what they are."""
    files = [cell_labels.get(file) or _shown(file) for file in functions["file"]]
    # dtype object, as in a loaded profile: pandas would infer another.
    return functions.assign(file=pd.Series(files, index=functions.index, dtype=object))


def _shown(file: str) -> str:
    inside = None if is_library(file) else name_in_package(file)
    return file if inside is None else f"site-packages/{inside}"


def _called_by(calls: Calls, callers: Mask) -> Mask:
    called = np.zeros(len(calls.functions), dtype=bool)
    called[calls.edges["callee"].to_numpy()[callers[calls.edges["caller"].to_numpy()]]] = True
    return called


def _called_past(calls: Calls, skipped: Mask) -> Calls:
    """Return the calls as if the callees of the skipped functions had been called by their callers.

    Of several callers the most frequent one counts; one from before cProfile began is unknown.
    """
    edges = calls.edges
    if not skipped.any():
        return calls
    above = edges[skipped[edges["callee"]] & ~skipped[edges["caller"]]]
    most = above.sort_values("calls").drop_duplicates("callee", keep="last")
    caller_of = np.arange(len(skipped), dtype=edges["caller"].to_numpy().dtype)
    caller_of[most["callee"]] = most["caller"]
    bypassed = skipped[edges["caller"]] & ~skipped[edges["callee"]]
    moved = edges.assign(caller=np.where(bypassed, caller_of[edges["caller"]], edges["caller"]))
    sums = moved.groupby(["caller", "callee"], as_index=False, sort=False).sum()
    return Calls(calls.functions, sums[list(edges.columns)])


def _without_caller(calls: Calls) -> Mask:
    """Return the functions with calls by code that cProfile did not see, without the kernel's."""
    seen = np.zeros(len(calls.functions), dtype=np.int64)
    np.add.at(seen, calls.edges["callee"].to_numpy(), calls.edges["calls"].to_numpy())
    unseen = calls.functions["calls"].to_numpy() > seen
    of_kernel = calls.functions["file"].str.contains(_KERNEL).to_numpy(dtype=bool)
    return np.asarray(unseen & ~of_kernel)


def _less_called_by(calls: Calls, ours: Mask, observers: Mask) -> Calls:
    """Return the calls without the built-ins that we called, and without all that observers called.

    A function that only observers called takes its own calls with it.
    """
    functions, edges = calls.functions.copy(), calls.edges
    caller, callee = edges["caller"].to_numpy(), edges["callee"].to_numpy()
    builtin = (functions["file"] == _BUILTIN).to_numpy()
    number, count = functions["calls"].to_numpy(), edges["calls"].to_numpy()
    observing = observers
    while True:
        by_observers = np.bincount(
            callee[observing[caller]], count[observing[caller]], len(functions)
        )
        extended = observers | (~ours & (by_observers > 0) & (by_observers >= number))
        if np.array_equal(extended, observing):
            break
        observing = extended
    gone = observing[caller] | (ours[caller] & builtin[callee])
    for name in _COUNTED:
        left = functions[name].to_numpy(copy=True)
        np.subtract.at(left, callee[gone], edges[name].to_numpy()[gone])
        functions[name] = left
    return Calls(functions, edges[~gone].reset_index(drop=True))


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
    # The `eval` by which we ran the cell is not its caller; users may call it as well.
    name = calls.functions["name"].to_numpy(object)
    entered = name[caller] == "<built-in method builtins.eval>"
    entered &= name[callee] == "<module>"
    kept = keep[caller] & keep[callee] & ~entered
    edges = calls.edges[kept].assign(caller=row[caller[kept]], callee=row[callee[kept]])
    return Calls(
        functions=calls.functions[keep].reset_index(drop=True),
        edges=edges.reset_index(drop=True),
    )


def without_profiler_slices(
    trace: Trace, label: str, *, cells: Collection[str] = (), threads_before: Collection[int] = ()
) -> Trace:
    """Return the trace of what ran in the region of that name, the user's code.

    It loses our frames, frames that were open before, and what the region's thread did outside the
    region (our wait for the device, with what the recording and CUDA noted of it); work that a
    device finishes later stays. In a notebook it also
    loses the frames of threads that existed before, unless they ran an op or code of a cell in
    ``cells``.
    """
    slices = trace.slices
    regions = slices[(slices["category"] == "user_annotation") & (slices["name"] == label)]
    if not len(regions):
        return trace
    region_row = int(regions.index.to_numpy()[regions["dur"].argmax()])
    region = slices.iloc[region_row]
    begin, end = int(region["ts"]), int(region["ts"] + region["dur"])
    ts, track = slices["ts"].to_numpy(), slices["track"].to_numpy()
    dur = slices["dur"].to_numpy()
    # Those that were open were ended after the region, by a search that takes its time. Since they
    # cross the end of the region, they are on a track of their own.
    lane = trace.tracks["lane"].to_numpy()
    open_ = slices["category"].isin(["cpu_op", "user_annotation"]).to_numpy()
    open_ = open_ & (lane[track] == lane[region["track"]])
    open_ &= (ts >= begin) & (ts < end) & (ts + dur > end)
    if open_.any():
        track = np.where(open_, region["track"], track).astype(track.dtype)
        slices = slices.assign(dur=np.where(open_, end - ts, dur), track=track)
        trace = replace(trace, slices=slices)
    ended = ts + slices["dur"].to_numpy()
    removed = (track == region["track"]) & ((ts < begin) | (ts >= end))
    removed |= slices["category"].isin(_OF_THE_WAIT).to_numpy() & (ts >= end)
    removed |= (
        ~slices["category"].isin(_DEVICE_CATEGORIES).to_numpy() & (ended <= begin) & (ts < begin)
    )
    frames = (slices["category"] == "python_function").to_numpy()
    if frames.any():
        removed |= _profiler_frames(slices, frames, begin, end)
        if threads_before:
            removed |= _of_the_kernel(trace, frames, region_row, cells, threads_before)
        removed |= _waiting(trace, frames & ~removed, region_row)
    return _kept_slices(trace, ~removed) if removed.any() or open_.any() else trace


def _profiler_frames(slices: pd.DataFrame, frames: Mask, begin: int, end: int) -> Mask:
    ts = slices["ts"].to_numpy()
    parent = slices["parent"].to_numpy()
    outside = frames & ((ts < begin) | (ts >= end))
    around = frames & _named(slices["name"], _AROUND_USER_CODE.search)
    recording = frames & _named(slices["name"], _RECORDING.search)
    # A frame that was open before and outlasts the region called us: it does not record.
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
    """Return the built-ins of threads that run no Python function: the kernel's, waiting."""
    slices = trace.slices
    lane = trace.tracks["lane"].to_numpy()[slices["track"].to_numpy()]
    builtin = slices["name"].str.startswith("<built-in").to_numpy(dtype=bool)
    at_work = np.unique(lane[frames & ~builtin])
    return np.asarray(frames & (lane != lane[region]) & ~np.isin(lane, at_work))


def _of_the_kernel(
    trace: Trace, frames: Mask, region: int, cells: Collection[str], threads_before: Collection[int]
) -> Mask:
    """Return the frames of earlier threads, other than the region's, that do no work of the user's.

    torch writes 0 for a thread that it does not know. It looks for Python threads only as it
    starts, so those are earlier threads as well.
    """
    slices = trace.slices
    track = slices["track"].to_numpy()
    lane = trace.tracks["lane"].to_numpy()[track]
    before = trace.tracks["thread"].astype(str).isin([str(n) for n in (0, *threads_before)])
    prefixes = tuple(f"{cell}(" for cell in cells)
    of_a_cell = frames & _named(slices["name"], lambda name: name.startswith(prefixes))
    at_work = np.unique(lane[of_a_cell | (slices["category"] == "cpu_op").to_numpy()])
    old = frames & before.to_numpy(dtype=bool)[track] & (lane != lane[region])
    return np.asarray(old & ~np.isin(lane, at_work))


def _named(names: pd.Series, is_wanted: Callable[[str], object]) -> Mask:
    matches = np.array([bool(is_wanted(name)) for name in names.cat.categories], dtype=bool)
    return np.asarray(matches[names.cat.codes])


def _kept_slices(trace: Trace, keep: Mask) -> Trace:
    """Return the trace of these rows, nested anew, whose time starts with the first of them."""
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


_BELOW_USER_CODE = re.compile(
    rf"^<frozen runpy>$|(?:^|[/\\])(?:runpy|ipykernel_launcher)\.py$|{_KERNEL.pattern}"
    rf"|^{re.escape(_PACKAGE)}"
)
"""What runs the kernel, a thread or a program."""


def users_frames(files: Sequence[str]) -> list[int]:
    """Return the positions of the frames of a stack that are the user's, or called by these.

    ``files``: those of the frames, outermost first. What is around the user's code is left out, and
    so are our frames inside it, with what they call up to the next frame that is no library's.
    """
    calls = [f"{file}(" for file in files]
    around = [
        place
        for place, (call, file) in enumerate(zip(calls, files, strict=True))
        if _AROUND_USER_CODE.search(call) and file != _LOOP_FILE
    ]
    first = around[-1] + 1 if around else 0
    while not around and first < len(files) and _BELOW_USER_CODE.search(files[first]):
        first += 1
    kept: list[int] = []
    records = False
    for place in range(first, len(files)):
        file = files[place]
        if file.startswith(_PACKAGE + os.sep):
            records = bool(_RECORDING.search(calls[place])) and file != _AWAIT_FILE
        elif not (records and is_installed(file)):
            records = False
            kept.append(place)
    return kept


def below_profiler_frames(traceback: TracebackType | None) -> TracebackType | None:
    """Return the traceback from the first frame that is not ours."""
    while traceback is not None and is_ours(traceback):
        traceback = traceback.tb_next
    return traceback


def remove_profiler_frames(error: BaseException | None) -> None:
    """Take our frames out of the tracebacks of an error, of its causes, contexts and parts."""
    waiting, seen = [error], set[int]()
    while waiting:
        error = waiting.pop()
        if error is None or id(error) in seen:
            continue
        seen.add(id(error))
        entries, traceback = [], error.__traceback__
        while traceback is not None:
            if not is_ours(traceback):
                entries.append(traceback)
            traceback = traceback.tb_next
        rest = None
        for entry in reversed(entries):
            rest = TracebackType(rest, entry.tb_frame, entry.tb_lasti, entry.tb_lineno)
        error.__traceback__ = rest
        waiting += [error.__cause__, error.__context__]
        waiting += error.exceptions if isinstance(error, BaseExceptionGroup) else ()


def is_ours(entry: TracebackType) -> bool:
    """Whether the frame is one of this package."""
    code = entry.tb_frame.f_code
    return code.co_filename.startswith(_PACKAGE + os.sep)
