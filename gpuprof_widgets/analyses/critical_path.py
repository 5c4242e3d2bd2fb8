"""The critical path: the chain of work that the run, a step or a region has to wait for.

`path_graph` builds the graph of waits; here it is followed from its end to its beginning
(`followed`). Then come the ranges that the path can be asked for, and how much of it slices are on.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from difflib import get_close_matches

import numpy as np
import numpy.typing as npt
import pandas as pd

from gpuprof_widgets.analyses.columns import group_sums
from gpuprof_widgets.analyses.owners import line_of, region_behind
from gpuprof_widgets.analyses.path_graph import (
    BY_EVENT,
    BY_LAUNCH,
    BY_STREAM,
    KERNEL_DELAY,
    KINDS,
    LAUNCH_DELAY,
    LONGEST_DELAY_NS,
    STREAM_WAIT,
    UNKNOWN,
    Kinds,
    PathGraph,
    path_graph,
)
from gpuprof_widgets.analyses.path_streams import NEVER
from gpuprof_widgets.analyses.reasons import empty_table, says_if_empty, which_other_kind
from gpuprof_widgets.analyses.regions import steps
from gpuprof_widgets.analyses.remembered import remembered, remembered_for_ranges
from gpuprof_widgets.exceptions import OptionError
from gpuprof_widgets.trace.arrays import Codes, Ints, Mask, Rows
from gpuprof_widgets.trace.index import take
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
    if why := _why_no_path(record.trace, t0, t1):
        return empty_table(COLUMNS if by is None else (BY[by], *SPLIT), why)
    table = _described(record, t0, t1)
    return table if by is None else _added_up(record, table, BY[by], path_between(record, t0, t1))


def _why_no_path(trace: Trace, t0: int, t1: int) -> str:
    has_work = trace.tracks["kind"].isin(["cpu", "python", "gpu", "copy"]).any()
    return which_other_kind(trace) or ("" if has_work or t1 == t0 else NO_WORK)


def whole_path(record: Record) -> Path:
    """Return the path of the whole run as arrays."""
    return path_between(record, record.trace.start_ns, record.trace.end_ns)


@remembered_for_ranges
def path_between(record: Record, t0: int, t1: int) -> Path:
    """Return the path of a range as arrays; empty where `critical_path` says why there is none.

    Empty segments are left out, and equal neighbours are one.
    """
    if _why_no_path(record.trace, t0, t1):
        times, rows = np.empty(0, np.int64), np.empty(0, np.int32)
        return Path(times, times, rows, rows, np.empty(0, np.int8))
    path = followed(record.trace, path_graph(record, t0, t1))
    path = path.at(np.flatnonzero(path.end > path.start))
    differs = np.diff(np.stack([path.row, path.track, path.kind])).any(axis=0)
    first = np.flatnonzero(np.append(True, differs)[: len(path)])
    last = np.append(first[1:], len(path))[: len(first)] - 1
    return replace(path.at(first), end=path.end[last])


def are_delays(trace: Trace, path: Path) -> Mask:
    """Return which segments are delays; one of unknown kind on a thread is none."""
    on_cpu = take(trace.index.on_tracks("cpu", "python"), path.row, False)
    return path.is_of(*DELAYS) & ~on_cpu


def _added_up(record: Record, table: pd.DataFrame, key: str, path: Path) -> pd.DataFrame:
    on_gpu, delay, dur = path.is_of(*ON_GPU), are_delays(record.trace, path), path.dur
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


@remembered_for_ranges
def _described(record: Record, t0: int, t1: int) -> pd.DataFrame:
    trace, path = record.trace, path_between(record, t0, t1)
    columns = {
        "start_ns": path.start,
        "end_ns": path.end,
        "dur_ns": path.dur,
        "kind": np.array(KINDS, object)[path.kind],
        "row": path.row,
        "name": trace.index.texts_of(path.row),
        "track": path.track,
        "thread": pd.Index([*trace.tracks["label"], ""]).take(path.track),
    }
    owners = {
        "op": op_around(trace),
        "module": region_behind(trace, "module"),
        "line": line_of(trace),
    }
    for name, owner in owners.items():
        owned_by = take(owner, path.row)
        columns |= {name: owned_by, f"{name}_name": trace.index.texts_of(owned_by)}
    return pd.DataFrame(columns)


def op_around(trace: Trace) -> Codes:
    """Return per slice the innermost op that it is, runs in or was launched by; -1 for none."""
    around, gpu = trace.index.op_around.copy(), trace.index.gpu
    around[gpu] = take(around, trace.index.column("op")[gpu])
    return around


@dataclass(frozen=True)
class Path:
    """The segments of a critical path in order of time, as arrays.

    ``start``, ``end`` (ns); ``row``: the innermost slice, of a delay the one that was late, -1 for
    none; ``track``; ``kind``: its place in `KINDS`.
    """

    start: Ints
    end: Ints
    row: Codes
    track: Codes
    kind: Kinds

    def __len__(self) -> int:
        return len(self.start)

    @property
    def dur(self) -> Ints:
        """Duration of each segment, ns."""
        return self.end - self.start

    def at(self, places: Rows) -> Path:
        """Return the segments at these places."""
        return Path(*(getattr(self, column.name)[places] for column in fields(self)))

    def is_of(self, *kinds: str) -> Mask:
        """Return which segments have one of these kinds."""
        return np.isin(KINDS, kinds)[self.kind]


class _Pieces:
    """The stretches of the path, collected from the end to the beginning.

    Each is a range of segments of a thread, or a single stretch, numbered after all segments.
    """

    def __init__(self, graph: PathGraph, track_of: Codes) -> None:
        self.graph, self.track_of = graph, track_of
        self.ranges: list[tuple[int, int]] = []
        self.singles: list[tuple[int, int, int, int, int]] = []

    def add(self, start: int, end: int, row: int, track: int, kind: str) -> None:
        """Add one stretch, unless it is empty."""
        if end > start:
            number = len(self.graph.segment_kind) + len(self.singles)
            self.ranges.append((number, number + 1))
            self.singles.append((start, end, row, track, KINDS.index(kind)))

    def add_delay(self, start: int, end: int, row: int, track: int, kind: str) -> None:
        """Add the delay before a GPU slice; a very long one has an unknown cause."""
        self.add(start, end, row, track, kind if end - start < LONGEST_DELAY_NS else UNKNOWN)

    def add_idle(self, start: int, gpu: int, kind: str) -> None:
        """Add the delay on its own stream, less the slices that ran there in the meantime."""
        work, track_of, end = self.graph.work, self.track_of, int(self.graph.work.start[gpu])
        overlapping = int(work.running[gpu])
        while overlapping >= 0 and end > start:
            since, row = max(int(work.start[overlapping]), start), int(work.row[overlapping])
            self.add(since, end, row, int(track_of[row]), str(work.kind[overlapping]))
            end, overlapping = since, int(work.running[overlapping])
        row = int(work.row[gpu])
        self.add_delay(start, end, row, int(track_of[row]), kind)

    def path(self) -> Path:
        """Return the stretches in order of time."""
        threads = self.graph.threads
        low, high = np.array(self.ranges, np.intp).reshape(-1, 2)[::-1].T
        length = high - low
        number = np.repeat(high - np.cumsum(length), length) + np.arange(length.sum())
        start, end, row, track, kind = np.array(self.singles, np.int64).reshape(-1, 5).T
        return Path(
            np.append(threads.start, start)[number],
            np.append(threads.end, end)[number],
            np.append(threads.row, row)[number].astype(np.int32),
            np.append(threads.track[threads.thread], track)[number].astype(np.int32),
            np.append(self.graph.segment_kind, kind.astype(np.int8))[number],
        )


def followed(trace: Trace, graph: PathGraph) -> Path:
    """Follow the path from the end to the beginning; see `critical_path` for the rules."""
    threads, work, track_of = graph.threads, graph.work, trace.index.track
    releases = graph.releases.sort_values("boundary", kind="stable")
    released, gpu, source = (releases[key].to_numpy() for key in ("boundary", "gpu", "source"))
    first, pieces = threads.first(), _Pieces(graph, track_of)
    at_gpu, at = _last(graph, pieces)
    until = threads.t1  # a slice that overlaps the one that follows it is left at its start
    while at >= 0:
        if at_gpu:
            row = int(work.row[at])
            track, start = int(track_of[row]), int(work.start[at])
            pieces.add(start, min(int(work.end[at]), until), row, track, str(work.kind[at]))
            until = start
            by, to = int(graph.bound_by[at]), int(graph.bound_to[at])
            if by in (BY_EVENT, BY_STREAM):
                unclear = by == BY_STREAM and work.launched[at] == NEVER
                delay = STREAM_WAIT if graph.inferred[at] else KERNEL_DELAY
                delay = UNKNOWN if unclear else delay
                pieces.add_idle(int(work.end[to]), at, delay)
                at = to
            elif by == BY_LAUNCH:
                at_gpu, at = False, int(graph.boundary[at])
                pieces.add_delay(int(threads.start[at]), start, row, track, LAUNCH_DELAY)
            else:
                known = work.launched[at] != NEVER
                delay = LAUNCH_DELAY if known else UNKNOWN
                pieces.add_delay(threads.t0, start, row, track, delay)
                at = NONE
            continue
        place = int(np.searchsorted(released, at, side="right")) - 1
        begin = int(first[threads.thread[at]])
        if place >= 0 and released[place] >= begin:
            pieces.ranges.append((int(released[place]), at))
            at_gpu = bool(gpu[place] >= 0)
            at = int(gpu[place] if at_gpu else source[place])
            until = threads.t1
        else:
            pieces.ranges.append((begin, at))
            at = NONE
    return pieces.path()


def _last(graph: PathGraph, pieces: _Pieces) -> tuple[bool, int]:
    """Return what ended last, a GPU slice (True) or a boundary of a thread; the rest is unknown."""
    threads, work = graph.threads, graph.work
    last, gpu = NEVER, NONE
    if len(work):
        gpu = int(np.flatnonzero(work.end == work.end.max())[-1])
        last = int(work.end[gpu])
    busy = np.flatnonzero((threads.row >= 0) & (threads.end > threads.start))
    if len(busy):
        on_main = threads.thread[busy] == threads.main
        best = busy[np.lexsort((on_main, threads.end[busy]))[-1]]
        if threads.end[best] > last:
            is_main = threads.thread[best] == threads.main
            track = int(threads.track[threads.thread[best]])
            kind = graph.between if is_main else UNKNOWN
            pieces.add(int(threads.end[best]), threads.t1, NONE, track, kind)
            return False, int(best) + 1
    pieces.add(last if gpu >= 0 else threads.t0, threads.t1, NONE, NONE, UNKNOWN)
    return gpu >= 0, gpu


def path_range(record: Record, step: int | None, region: Region) -> tuple[int, int]:
    """Return start and end (ns) of a step or region; of the whole run if neither is given."""
    trace = record.trace
    if step is not None and region is not None:
        raise OptionError("give a step or a region, not both")
    if step is not None:
        table = steps(record)
        matches = table[table["step"] == step]
        if not len(matches):
            known = ", ".join(map(str, table["step"][:20]))
            raise OptionError(f"there is no step {step}: the trace has {known or 'no steps'}")
        return int(matches["start_ns"].iloc[0]), int(matches["end_ns"].iloc[0])
    if isinstance(region, str):
        row = _first_region(trace, region)
        return int(trace.index.ts[row]), int(trace.index.end[row])
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


def _first_region(trace: Trace, name: str) -> int:
    on_cpu = trace.index.on_tracks("cpu", "python") & (trace.index.column("count") > 0)
    rows = np.flatnonzero(trace.index.named(frozenset({name})) & on_cpu)
    if not len(rows):
        names = np.unique(trace.index.names_of(np.flatnonzero(on_cpu)).astype(str)).tolist()
        near = get_close_matches(name, names, 1)
        hint = f"; did you mean {near[0]!r}?" if near else ""
        raise OptionError(f"no region or op of the CPU is called {name!r}{hint}")
    return int(rows[np.argmin(trace.index.ts[rows])])


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
    index = record.trace.index
    selected = np.zeros(len(index), bool)
    selected[rows] = True
    within = itself_or_ancestor(index.parent, selected) >= 0
    return int(path_times(record)[within & index.on_tracks("cpu", "python")].sum())


def gpu_path_saving_ns(record: Record, pieces: pd.DataFrame, faster_ns: pd.Series) -> int:
    """Return what the critical path loses at most if the kernels ``pieces`` took ``faster_ns``.

    ``pieces``: ``row`` and ``time_ns``. If a part of a kernel is on the path, that part counts.
    """
    time = pieces["time_ns"].to_numpy(np.int64)
    on_path = path_times(record)[pieces["row"].to_numpy(np.intp)] / np.maximum(time, 1)
    saved = time - faster_ns.to_numpy(np.int64)
    return round(float((saved * np.minimum(on_path, 1)).sum()))
