"""CPU threads: what each was doing at every moment, in the few words that explain an idle GPU.

`HostTimeline` gives the state of a thread at each moment (one of `STATES`), which `breakdown` needs
for idle GPUs. `Threads` has the innermost slice of every thread at each moment, from which the
critical path and what-if estimates are built.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from gpuprof_widgets.analyses.gpu_work import open_times
from gpuprof_widgets.analyses.operators import are_named_regions
from gpuprof_widgets.analyses.python_time import ENGINE_SLICES, in_hooks, python_functions
from gpuprof_widgets.analyses.waits import is_dataloader, is_synchronising, is_taking, on_executor
from gpuprof_widgets.trace import intervals, links
from gpuprof_widgets.trace.arrays import Ints, Mask, Rows
from gpuprof_widgets.trace.index import Segments, take
from gpuprof_widgets.trace.intervals import Intervals
from gpuprof_widgets.trace.links import rows_by
from gpuprof_widgets.trace.model import Record, Trace
from gpuprof_widgets.trace.owners import BEGINS_BACKWARD
from gpuprof_widgets.trace.schema import NONE, REGION_CATEGORIES

States = npt.NDArray[np.int8]

INPUT, SYNCHRONISING, PYTHON = "input pipeline", "synchronising", "Python"
CPU_OPS, RUNTIME, LAUNCHING, OTHER = "CPU ops", "runtime calls", "launching", "other"
STATES = (INPUT, SYNCHRONISING, PYTHON, CPU_OPS, RUNTIME, LAUNCHING, OTHER)
"""States of a thread, in this order: in a DataLoader's ``__next__``; in a call that waits for the
GPU; in none of the others (where Python is not known to have run, see `ran_python`, that is
"other"); in an op, or in autograd's engine between two of its nodes; in a call of the runtime or
driver; in such a call that launches work; in the profiler's own overhead."""

LAUNCHES = re.compile(r"(cuda|hip|cu)\w*(Launch|Memcpy|Memset)\w*")
"""Calls of the runtime or driver that launch GPU work."""


@dataclass(frozen=True)
class HostStates:
    """Disjoint segments that tile the trace, and the state in each, as a position in STATES."""

    start: Ints
    end: Ints
    state: States

    def at(self, times: Ints) -> States:
        """Return the state at each of these moments of the trace."""
        return take(self.state, _segment_at(self, times), STATES.index(PYTHON))


def ran_python(record: Record) -> bool:
    """Return whether Python ran between ops: its frames, calls, lines or torch ops are recorded.

    Without any of them nothing is known: other profilers and frameworks record programs in any
    language, and a trace of the GPU alone (``activities=[ProfilerActivity.CUDA]``) has no ops.
    """
    trace = record.trace
    if record.calls is not None or (trace.tracks["kind"] == "python").any():
        return True
    if trace.index.in_category(*REGION_CATEGORIES).any():
        return True
    return any(name.startswith("aten::") for name in trace.slices["name"].cat.categories)


class HostTimeline:
    """The states of a record's threads; what all of them share is looked up once."""

    def __init__(self, record: Record) -> None:
        trace = record.trace
        self._record = record
        self._ran_python = ran_python(record)
        self._state = _state_of_slices(trace)
        self._taking = is_taking(trace)
        self._taken = open_times(trace, self._taking)
        self._in_engine = trace.index.matching(ENGINE_SLICES)
        lane = trace.tracks["lane"].to_numpy()
        slice_lane, self._main = lane[trace.index.track], main_lane(trace)
        # TensorFlow's executor, whose lanes hold ops of any of its threads.
        self._executors = np.unique(slice_lane[on_executor(trace)]).tolist()
        nodes = trace.index.matching(BEGINS_BACKWARD) & trace.index.on_tracks("cpu")
        self._backward = np.setdiff1d(slice_lane[nodes], [self._main]).tolist()
        of_host = trace.tracks["kind"].isin(["cpu", "python"]).to_numpy()
        self._tracks = rows_by(np.where(of_host, lane, NONE))
        loading = np.flatnonzero(is_dataloader(trace) & ~is_taking(trace))
        self._loading = {at: loading[rows] for at, rows in rows_by(slice_lane[loading]).items()}
        self._known: dict[int, _Lane] = {}  # the threads that are asked for again and again
        self._main_starts = np.sort(trace.index.ts[slice_lane == self._main])

    def states(self, lane: int, within: Intervals | None = None) -> HostStates:
        """Return the states of this thread within these intervals, else of the threads below.

        At each moment the first thread with an open slice counts: this one, or the backward pass's
        threads if this is the main thread of a record without a GPU (``within`` is None); then the
        main thread; then all lanes of TensorFlow's executor, because the trace does not tell their
        threads: it waits for input where one of them does and no other op runs. The innermost slice
        of the thread counts, of its ops and Python frames the one that began last; an op's self
        time is Python's where Python is known to have run in it (see `python_in_ops`).
        """
        first = (lane,) if within is not None else tuple(self._backward)
        numbers = dict.fromkeys((*first, self._main, *self._executors))
        lanes = [self._lane(number) for number in numbers]
        trace, cuts = self._record.trace, [thread.segments.start for thread in lanes]
        if within is None:
            edges = intervals.distinct([trace.start_ns, trace.end_ns], *cuts)
        else:
            edges = intervals.distinct(*within, *(_times_within(cut, within) for cut in cuts))
        start, end = edges[:-1], edges[1:]
        row = np.full(len(start), NONE, np.int32)
        loading, engine, hooks = (np.zeros(len(start), bool) for _ in range(3))
        for thread in lanes:
            free = np.flatnonzero(row < 0)
            at = _segment_at(thread.segments, start[free])
            innermost = take(thread.segments.row, at)
            row[free] = np.where(take(self._taking, innermost, False), NONE, innermost)
            loading[free] |= intervals.inside(start[free], thread.loading)
            engine[free] |= take(thread.between_nodes, at, False)
            hooks[free] |= take(thread.in_hooks, at, False)
        state = self._state[row]
        state[hooks] = STATES.index(PYTHON)
        state[engine] = STATES.index(CPU_OPS)
        state[loading] = STATES.index(INPUT)
        state[(row < 0) & intervals.inside(start, self._taken)] = STATES.index(INPUT)
        if not self._ran_python:
            state[state == STATES.index(PYTHON)] = STATES.index(OTHER)
        return HostStates(start, end, state)

    def _lane(self, lane: int) -> _Lane:
        if lane in self._known:
            return self._known[lane]
        trace, nothing = self._record.trace, np.empty(0, np.intp)
        segments = _innermost(trace, self._tracks.get(lane, nothing) if lane >= 0 else nothing)
        in_engine = take(self._in_engine, segments.row, False)
        # Autograd's thread ran no op, and the main thread began none.
        edges = np.append(segments.start, segments.end[-1:])
        began = np.diff(np.searchsorted(self._main_starts, edges)) > 0
        between = (segments.row < 0) & ~began & (lane in self._backward)
        between[:1] = between[-1:] = False
        thread = _Lane(
            segments,
            open_times(trace, self._loading.get(lane, nothing) if lane >= 0 else nothing),
            between,
            in_hooks(self._record, segments.start, segments.end, in_engine),
        )
        if lane == self._main or lane in self._executors:
            self._known[lane] = thread
        return thread


@dataclass(frozen=True)
class _Lane:
    """A thread: segments of its innermost slices, its waits for a DataLoader, and which segments
    are autograd's engine between two nodes, or hooks that the engine ran.
    """

    segments: Segments
    loading: Intervals
    between_nodes: Mask
    in_hooks: Mask


def _times_within(times: Ints, within: Intervals) -> Ints:
    """Return those of the sorted times that lie in one of these disjoint intervals."""
    first, last = (np.searchsorted(times, edge) for edge in within)
    count = last - first
    offset = np.arange(count.sum()) - np.repeat(np.cumsum(count) - count, count)
    return np.asarray(times[offset + np.repeat(first, count)], np.int64)


def main_lane(trace: Trace) -> int:
    """Return the first thread of the timeline: the main thread of the busiest process."""
    cpu = np.flatnonzero((trace.tracks["kind"] == "cpu").to_numpy())
    return int(trace.tracks["lane"].to_numpy()[cpu[0]]) if len(cpu) else NONE


def _innermost(trace: Trace, tracks: Rows) -> Segments:
    """Return the open slice of a thread that began last, among its ops and Python frames."""
    per_track = [trace.index.segments(int(track)) for track in tracks] if len(trace) else []
    if len(per_track) == 1:
        return per_track[0]
    edges = intervals.distinct([], *(edge for part in per_track for edge in (part.start, part.end)))
    start, end = edges[:-1], edges[1:]
    row = np.full(len(start), NONE, np.int32)
    for part in per_track:
        other = take(part.row, _segment_at(part, start))
        later = (other >= 0) & ((row < 0) | (trace.index.ts[other] > trace.index.ts[row]))
        row = np.where(later, other, row)
    return Segments(start, end, row)


def _segment_at(segments: Segments | HostStates, times: Ints) -> Rows:
    """Return per time the position of the segment around it, if there are segments."""
    return np.maximum(np.searchsorted(segments.start, times, side="right") - 1, 0)


def _state_of_slices(trace: Trace) -> States:
    """Return the state of a thread by its innermost slice; the last entry is for no slice."""
    calls = trace.index.is_launch
    state_of = {
        SYNCHRONISING: is_synchronising(trace),
        LAUNCHING: calls & trace.index.matching(LAUNCHES),
        RUNTIME: calls,
        CPU_OPS: (trace.index.is_op & ~python_functions(trace)) | are_named_regions(trace),
        OTHER: trace.index.in_category("overhead"),
    }
    states = np.full(len(trace) + 1, STATES.index(PYTHON), np.int8)
    for state, rows in reversed(state_of.items()):  # the first match counts
        states[:-1][rows] = STATES.index(state)
    return states


@dataclass(frozen=True)
class Threads:
    """Segments of all threads, one thread after another; those of a thread tile [t0, t1).

    ``start``, ``end`` (ns), ``row`` (innermost slice, -1 for none), ``thread``. The last segment of
    a thread is empty, so that the end of time is a boundary like the start of every segment.
    ``lane`` and ``track`` (of its ops) of each thread; ``main``: the thread of the run, -1 without.
    """

    t0: int
    t1: int
    start: Ints
    end: Ints
    row: Ints
    thread: Ints
    lane: Ints
    track: Ints
    main: int

    def boundary(self, thread: npt.ArrayLike, time: npt.ArrayLike) -> Ints:
        """Return the segment of the thread that is running at that time, or begins then."""
        keys = _on_one_line(self.t0, self.t1, self.thread, self.start)
        at = _on_one_line(self.t0, self.t1, thread, time)
        return np.asarray(np.searchsorted(keys, at, side="right") - 1, np.int64)

    def cut(self, thread: Ints, time: Ints) -> Threads:
        """Return the same threads with boundaries at these times as well."""
        keys = _on_one_line(self.t0, self.t1, self.thread, self.start)
        edges = intervals.distinct(keys, _on_one_line(self.t0, self.t1, thread, time))
        row = self.row[np.searchsorted(keys, edges, side="right") - 1]
        return _threads(self.t0, self.t1, edges, row, (self.lane, self.track), self.main)

    def first(self) -> Ints:
        """Return the first segment of each thread."""
        return np.asarray(np.searchsorted(self.thread, np.arange(len(self.lane))), np.int64)

    def bursts(self) -> tuple[Ints, Ints, Ints]:
        """Return thread, start and end of every period in which a thread had any slice open."""
        busy = (self.row >= 0) & (self.end > self.start)
        changes = np.flatnonzero(np.diff(busy, prepend=False))
        opens, closes = changes[::2], changes[1::2]  # the last segment of a thread is not busy
        return self.thread[opens], self.start[opens], self.start[closes]


def threads_of(trace: Trace, label: object, t0: int, t1: int) -> Threads:
    """Return all threads with any slice in [t0, t1), each over all of it; the run's by its label.

    Python frames count on the thread of the run alone: an idle worker of a thread pool has frames
    open all the time.
    """
    lane_of = trace.tracks["lane"].to_numpy(np.int64)[trace.index.track]
    start, end = (np.clip(times, t0, t1) for times in trace.index.uncut)
    counted = (trace.index.column("count") > 0) & (end > start)
    cpu, python = trace.index.on_tracks("cpu") & counted, trace.index.on_tracks("python") & counted
    if not cpu.any():
        cpu = python
    tracks = np.flatnonzero(np.bincount(trace.index.track[cpu]))
    lane, first = np.unique(trace.tracks["lane"].to_numpy(np.int64)[tracks], return_index=True)
    main = _lane_of_run(trace, label, cpu, lane_of)
    rows = np.flatnonzero(cpu | (python & (lane_of == main)))
    thread = np.searchsorted(lane, lane_of[rows]).astype(np.int64)
    order = np.lexsort((start[rows] - end[rows], start[rows], thread))
    rows, thread = rows[order], thread[order]
    at = _on_one_line(t0, t1, thread, start[rows])
    until = _on_one_line(t0, t1, thread, end[rows])
    bounds = np.arange(len(lane), dtype=np.int64) * (t1 - t0 + 1)
    edges = intervals.distinct(at, until, bounds, bounds + (t1 - t0))
    innermost = links.last_above(until, np.searchsorted(at, edges, side="right"), edges)
    row = take(rows, innermost)
    at_bound = np.isin(edges, [bounds, bounds + t1 - t0])
    kept = (np.diff(row, prepend=NONE - 1) != 0) | at_bound
    main_thread = int(np.searchsorted(lane, main)) if main in lane else NONE
    return _threads(t0, t1, edges[kept], row[kept], (lane, tracks[first]), main_thread)


def _on_one_line(t0: int, t1: int, thread: npt.ArrayLike, time: npt.ArrayLike) -> Ints:
    """Return times on a common line, on which the threads follow one another, a ns apart."""
    return np.asarray(thread, np.int64) * (t1 - t0 + 1) + (np.asarray(time, np.int64) - t0)


def _threads(
    t0: int, t1: int, edges: Ints, row: Ints, lanes: tuple[Ints, Ints], main: int
) -> Threads:
    """Return `Threads` from boundaries ``edges`` on one line; ``lanes``: their lanes and tracks."""
    thread, start = np.divmod(edges, t1 - t0 + 1)
    start = start + t0
    last = np.diff(thread, append=NONE) != 0
    end = np.where(last, start, np.roll(start, -1))
    row = np.where(last, NONE, row).astype(np.int64)
    return Threads(t0, t1, start, end, row, thread, *lanes, main)


def _lane_of_run(trace: Trace, label: object, cpu: Mask, lane_of: Ints) -> int:
    """Return the thread of the run: that of its label, of steps or cell lines, else the busiest.

    A thread that only runs the backward pass is the run's if there is no other.
    """
    index = trace.index
    run = index.named(frozenset({label} if isinstance(label, str) else ()))
    run &= index.in_category("user_annotation")
    step = index.matching(re.compile(r"ProfilerStep#.*", re.DOTALL))
    for marked in (run & cpu, (step | index.in_category("cell_line")) & cpu):
        if marked.any():
            return int(np.bincount(lane_of[marked]).argmax())
    backward = index.matching(BEGINS_BACKWARD) | (index.column("forward") >= 0)
    ops = cpu & index.is_op
    for candidates in (ops & ~backward, ops, cpu):
        if candidates.any():
            return int(np.bincount(lane_of[candidates], index.dur[candidates]).argmax())
    return NONE
