"""The critical path: the chain of work that the run, a step or a region has to wait for.

`path_graph` builds the graph of waits and follows it; here are the table of the path, the ranges
that it can be asked for, and how much of the path slices are on.
"""

from __future__ import annotations

from dataclasses import replace
from difflib import get_close_matches

import numpy as np
import numpy.typing as npt
import pandas as pd

from gpuprof_widgets.analyses.columns import group_sums
from gpuprof_widgets.analyses.owners import line_of, region_behind
from gpuprof_widgets.analyses.path_graph import (
    KERNEL_DELAY,
    KINDS,
    LAUNCH_DELAY,
    STREAM_WAIT,
    UNKNOWN,
    Path,
    PathGraph,
    followed,
    path_graph,
)
from gpuprof_widgets.analyses.reasons import lacking, says_if_empty, which_other_kind
from gpuprof_widgets.analyses.regions import steps
from gpuprof_widgets.analyses.remembered import remembered
from gpuprof_widgets.exceptions import OptionError
from gpuprof_widgets.trace.arrays import Codes, Ints, Mask
from gpuprof_widgets.trace.links import itself_or_ancestor
from gpuprof_widgets.trace.model import Record, Trace
from gpuprof_widgets.trace.schema import NONE

Region = str | tuple[int, int] | None

COLUMNS = (
    *("start_ns", "end_ns", "dur_ns", "kind", "row", "name", "track", "thread"),
    *("op", "op_name", "module", "module_name", "line", "line_name"),
)
BY = {"kind": "kind", "op": "op_name", "name": "name", "module": "module_name", "line": "line_name"}
SPLIT = ("dur_ns", "share", "segments", "cpu_ns", "gpu_ns", "delay_ns")
ON_GPU = ("compute", "communication", "copy", "memset")
DELAYS = (LAUNCH_DELAY, KERNEL_DELAY, STREAM_WAIT, UNKNOWN)
NO_WORK = "the trace has neither CPU threads nor GPU streams"


@says_if_empty("nothing took any time in that range")
def critical_path(
    record: Record, *, step: int | None = None, region: Region = None, by: str | None = None
) -> pd.DataFrame:
    """One row per segment of the critical path in order of time; they tile the range exactly.

    The range is the whole run, one step or one region. The path is followed from the end of the
    range to its beginning, at each point to whatever happened last of what that point had to wait
    for. It begins with what ends last (GPU work before threads, the thread of the run before
    others).

    Rule: a thread goes on by itself, and waits

    - in a synchronising call for the last GPU slice that ended in it, on the awaited stream or
      event if ``cuda_sync`` events tell it (``enable_cuda_sync_events`` of torch's profiler),
    - while another thread runs the backward pass that it called, for that thread,
    - where it was idle, for the thread that hands it work.

    A GPU slice waits

    - for its launch: from the beginning of the call. If the call took long while the stream was
      idle, as it staged a copy, from the usual delay before the slice. Of a graph's replay only
      what begins it on a stream waits for the launch,
    - for the slice that it follows on its stream,
    - for an event of another stream (inferred from the times if only cudaStreamWaitEvent was
      traced),
    - if all of these were over by more than 20 µs, for the slice of another stream that ended at
      most 20 µs before it began (inferred as well).

    Of these it is bound by the one that, with the usual delay of its kind in this trace, let it
    begin last. Kernels of a replay overlap the next one by some 100 ns, and branches of a graph may
    be reported on one stream. There a slice follows the earlier slice of its stream whose end is
    nearest to its beginning, and the earlier one counts only until the later one begins. If the
    stream ran a third slice between the two, the path goes through that slice instead of a delay.

    The kinds of segments are

    - "python": no op ran ("unknown" if Python is not known to have run, see `breakdown`),
    - "cpu op": an op, or autograd's engine between two ops; "runtime": a call of CUDA's; "data
      loading",
    - "synchronisation": the rest of a call that waits for the GPU, once the GPU was done,
    - "compute", "communication", "copy", "memset": GPU work,
    - "launch delay": from the beginning of the launch until the slice began,
    - "kernel-to-kernel delay": from the end of the slice it waited for; "stream wait (inferred)":
      that as well, if no event says so,
    - "unknown": no launch is known, or the delay is 1.5 ms or more: something was waited for that
      is not in the trace, or room on the GPU beside other kernels.

    Options:

    - ``step``: the range is the step of this number (see `steps`).
    - ``region``: the range is the first annotation, line or module of this name, or a pair of ns.
    - ``by``: add the segments up, by "kind", "op", "name", "module" or "line".

    Columns:

    - ``start_ns``, ``end_ns``, ``dur_ns``: the segment.
    - ``kind``: see above.
    - ``row``, ``name``: the innermost slice, of a delay the one that was late; -1 and "" without.
    - ``track``, ``thread``: the track, and its label (thread or stream).
    - ``op``, ``op_name``, ``module``, ``module_name``, ``line``, ``line_name``: its owners; -1 and
      "" without.

    Columns with ``by``, the longest first:

    - ``kind``, ``op_name``, ``name``, ``module_name``, ``line_name``: the one that was chosen.
    - ``dur_ns``: on the path.
    - ``share``: ``dur_ns`` divided by the range.
    - ``segments``: number of segments.
    - ``cpu_ns``, ``gpu_ns``, ``delay_ns``: these add up to ``dur_ns``.

    Source: HTA's ``critical_path_analysis``, which differs on purpose: there the idle time of a
    thread between ops weighs nothing and the path need not cover the run; here it is Python's, and
    every ns is in the path.
    """
    if by is not None and by not in BY:
        raise OptionError(f"the path can be added up by {', '.join(BY)}, not by {by!r}")
    t0, t1 = path_range(record, step, region)
    trace = record.trace
    if why := _why_no_path(trace, t0, t1):
        return lacking(COLUMNS if by is None else (BY[by], *SPLIT), why)
    path = path_between(record, t0, t1)
    table = _whole_table(record) if _is_whole(trace, t0, t1) else _described(trace, path)
    return table if by is None else _added_up(table, BY[by], path, are_delays(trace, path))


def _why_no_path(trace: Trace, t0: int, t1: int) -> str:
    has_work = trace.tracks["kind"].isin(["cpu", "python", "gpu", "copy"]).any()
    return which_other_kind(trace) or ("" if has_work or t1 == t0 else NO_WORK)


def _is_whole(trace: Trace, t0: int, t1: int) -> bool:
    return (t0, t1) == (trace.start_ns, trace.end_ns)


def graph_of(record: Record, t0: int, t1: int) -> PathGraph:
    """Return the graph of a range; that of the whole run is remembered."""
    whole = _is_whole(record.trace, t0, t1)
    return _whole_graph(record) if whole else path_graph(record, t0, t1)


@remembered
def _whole_graph(record: Record) -> PathGraph:
    return path_graph(record, record.trace.start_ns, record.trace.end_ns)


def path_between(record: Record, t0: int, t1: int) -> Path:
    """Return the path of a range as arrays; empty where `critical_path` says why there is none."""
    return whole_path(record) if _is_whole(record.trace, t0, t1) else _path(record, t0, t1)


@remembered
def whole_path(record: Record) -> Path:
    """Return the path of the whole run as arrays: less than half the memory of the table."""
    return _path(record, record.trace.start_ns, record.trace.end_ns)


@remembered
def _whole_table(record: Record) -> pd.DataFrame:
    return _described(record.trace, whole_path(record))


def are_delays(trace: Trace, path: Path) -> Mask:
    """Return which segments are delays; one of unknown kind on a thread is none."""
    on_cpu = np.append(trace.index.on_tracks("cpu", "python"), False)[path.row]
    return np.asarray(path.is_of(*DELAYS) & ~on_cpu, bool)


def _added_up(table: pd.DataFrame, key: str, path: Path, delay: Mask) -> pd.DataFrame:
    on_gpu, dur = path.is_of(*ON_GPU), path.dur
    parts = table[[key]].assign(
        dur_ns=dur,
        segments=1,
        cpu_ns=np.where(on_gpu | delay, 0, dur),
        gpu_ns=np.where(on_gpu, dur, 0),
        delay_ns=np.where(delay, dur, 0),
    )
    table = parts.groupby(key, as_index=False, sort=False).sum()
    table["share"] = table["dur_ns"] / max(int(dur.sum()), 1)
    table = table.sort_values("dur_ns", ascending=False, kind="stable", ignore_index=True)
    return table[[key, *SPLIT]]


def _path(record: Record, t0: int, t1: int) -> Path:
    if _why_no_path(record.trace, t0, t1):
        times, rows = np.empty(0, np.int64), np.empty(0, np.int32)
        return Path(times, times, rows, rows, np.empty(0, np.int8))
    return _merged(followed(record.trace, graph_of(record, t0, t1)))


def _merged(path: Path) -> Path:
    """Return the path without empty segments, with equal neighbours merged."""
    path = path.at(np.flatnonzero(path.end > path.start))
    differs = np.ones(len(path), bool)
    differs[1:] = False
    for column in (path.row, path.track, path.kind):
        differs[1:] |= column[1:] != column[:-1]
    first = np.flatnonzero(differs)
    last = np.append(first[1:], len(path))[: len(first)] - 1
    return replace(path.at(first), end=path.end[last])


def _described(trace: Trace, path: Path) -> pd.DataFrame:
    row = path.row
    names, labels = (
        pd.Series([*texts, ""]).array for texts in (trace.index.names, trace.tracks["label"])
    )
    code = np.append(trace.index.name, NONE)
    table = pd.DataFrame(
        {
            "start_ns": path.start,
            "end_ns": path.end,
            "dur_ns": path.dur,
            "kind": np.array(KINDS, object)[path.kind],
            "row": row,
            "name": names[code[row]],
            "track": path.track,
            "thread": labels[path.track],
        }
    )
    owners = {
        "op": op_around(trace),
        "module": region_behind(trace, "module"),
        "line": line_of(trace),
    }
    for name, owner in owners.items():
        owned_by = np.append(owner, NONE)[row].astype(np.int32)
        table[name], table[f"{name}_name"] = owned_by, names[code[owned_by]]
    return table[list(COLUMNS)]


def op_around(trace: Trace) -> Codes:
    """Return per slice the innermost op that it is, runs in or was launched by; -1 for none."""
    around = trace.index.op_around.copy()
    gpu = trace.index.gpu
    owner = trace.slices["op"].to_numpy()[gpu]
    around[gpu] = np.append(around, NONE)[owner]
    return around


def path_range(record: Record, step: int | None, region: Region) -> tuple[int, int]:
    """Return start and end (ns) of a step or region; of the whole run if neither is given."""
    trace = record.trace
    if step is not None and region is not None:
        raise OptionError("give a step or a region, not both")
    if step is not None:
        return _step_range(record, step)
    if isinstance(region, str):
        return _region_range(record, region)
    t0, t1 = (trace.start_ns, trace.end_ns) if region is None else region
    if t0 > t1:
        raise OptionError(f"a time range has to start before it ends, not [{t0}, {t1}) ns")
    if t1 < trace.start_ns or t0 > trace.end_ns:
        raise OptionError(
            f"[{t0}, {t1}) ns is not within the trace, which is [{trace.start_ns}, "
            f"{trace.end_ns}) ns"
        )
    low, high = (min(max(int(t), trace.start_ns), trace.end_ns) for t in (t0, t1))
    return low, high


def _step_range(record: Record, step: int) -> tuple[int, int]:
    table = steps(record)
    matches = table[table["step"] == step]
    if not len(matches):
        known = ", ".join(str(number) for number in table["step"][:20])
        raise OptionError(f"there is no step {step}: the trace has {known or 'no steps'}")
    return int(matches["start_ns"].iloc[0]), int(matches["end_ns"].iloc[0])


def _region_range(record: Record, name: str) -> tuple[int, int]:
    slices = record.trace.slices
    on_cpu = record.trace.index.on_tracks("cpu", "python") & (slices["count"].to_numpy() > 0)
    rows = np.flatnonzero(record.trace.index.named(frozenset({name})) & on_cpu)
    if not len(rows):
        names = slices["name"].to_numpy(object)[on_cpu]
        near = get_close_matches(name, [str(n) for n in np.unique(names.astype(str))], 1)
        hint = f"; did you mean {near[0]!r}?" if near else ""
        raise OptionError(f"no region or op of the CPU is called {name!r}{hint}")
    first = rows[np.argmin(slices["ts"].to_numpy()[rows])]
    start = int(slices["ts"].iloc[first])
    return start, start + int(slices["dur"].iloc[first])


@remembered
def path_times(record: Record) -> Ints:
    """Return per slice how long (ns) it is on the run's critical path, without delays before it.

    The rest of its time is hidden behind other work: shortening that makes no run shorter.
    """
    path = whole_path(record)
    spent = (path.row >= 0) & ~are_delays(record.trace, path)
    return group_sums(path.row[spent], path.dur[spent], len(record.trace))


def cpu_path_ns(record: Record, rows: npt.NDArray[np.integer]) -> int:
    """Return how long (ns) the CPU part of the critical path is in these slices or within them."""
    selected = np.zeros(len(record.trace), bool)
    selected[rows] = True
    within = itself_or_ancestor(record.trace.slices["parent"].to_numpy(), selected) >= 0
    on_cpu = within & record.trace.index.on_tracks("cpu", "python")
    return int(path_times(record)[on_cpu].sum())


def gpu_path_saving_ns(record: Record, pieces: pd.DataFrame, faster_ns: pd.Series) -> int:
    """Return what the critical path loses at most if the kernels ``pieces`` took ``faster_ns``.

    ``pieces``: ``row`` and ``time_ns``. If a part of a kernel is on the path, that part counts.
    """
    time = np.maximum(pieces["time_ns"].to_numpy(np.int64), 1)
    on_path = path_times(record)[pieces["row"].to_numpy(np.intp)] / time
    saved = pieces["time_ns"].to_numpy(np.int64) - faster_ns.to_numpy(np.int64)
    return round(float((saved * np.minimum(on_path, 1)).sum()))
