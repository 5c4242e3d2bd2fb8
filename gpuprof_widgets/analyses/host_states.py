"""What a CPU thread was doing at each moment, in the few words that explain an idle GPU."""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from gpuprof_widgets.analyses.gpu_work import open_times
from gpuprof_widgets.analyses.operators import are_named_regions
from gpuprof_widgets.analyses.python_time import ENGINE_SLICES, in_hooks, python_functions
from gpuprof_widgets.analyses.waits import is_dataloader, is_synchronising, is_taking
from gpuprof_widgets.trace import intervals, links
from gpuprof_widgets.trace.index import Segments
from gpuprof_widgets.trace.intervals import Intervals
from gpuprof_widgets.trace.links import rows_by
from gpuprof_widgets.trace.model import Record, Trace
from gpuprof_widgets.trace.owners import BACKWARD, BEGINS_BACKWARD
from gpuprof_widgets.trace.schema import EXECUTOR_LANE, NONE, REGION_CATEGORIES

Ints = npt.NDArray[np.int64]
States = npt.NDArray[np.int8]
Mask = npt.NDArray[np.bool_]

INPUT, SYNCHRONISING, PYTHON = "input pipeline", "synchronising", "Python"
CPU_OPS, RUNTIME, LAUNCHING, OTHER = "CPU ops", "runtime calls", "launching", "other"
STATES = (INPUT, SYNCHRONISING, PYTHON, CPU_OPS, RUNTIME, LAUNCHING, OTHER)
"""In a DataLoader's ``__next__``; in a call that waits for the GPU; in none of the others, which is
Python where Python is known to have run (see `ran_python`) and else "other"; in an op, or in
autograd's engine between two of its nodes; in a call of the runtime or driver, of which those that
launch work are apart; in what the profiler recorded as its own overhead."""

LAUNCHES = re.compile(r"(cuda|hip|cu)\w*(Launch|Memcpy|Memset)\w*")
"""Calls of the runtime or driver that give a GPU work."""


@dataclass(frozen=True)
class HostStates:
    """Disjoint stretches that tile the trace, and the state in each, as a position in STATES."""

    start: Ints
    end: Ints
    state: States

    def at(self, times: Ints) -> States:
        """The state at each of these moments of the trace."""
        if not len(self.start):
            return np.full(len(times), STATES.index(PYTHON), np.int8)
        return self.state[np.maximum(np.searchsorted(self.start, times, side="right") - 1, 0)]


def ran_python(record: Record) -> bool:
    """Whether what ran between ops was Python: its frames, calls, lines or PyTorch's ops are there.

    Without them nobody knows: other profilers and frameworks record programs in any language, and
    a trace of the GPU alone (``activities=[ProfilerActivity.CUDA]``) holds none of the ops.
    """
    trace = record.trace
    if record.calls is not None or (trace.tracks["kind"] == "python").any():
        return True
    if trace.index.in_category(*REGION_CATEGORIES).any():
        return True
    return any(name.startswith("aten::") for name in trace.slices["name"].cat.categories)


class HostTimeline:
    """What the threads of a record were doing; what all of them share is looked up once."""

    def __init__(self, record: Record) -> None:
        trace = record.trace
        self._record = record
        self._ran_python = ran_python(record)
        self._state = _state_of_slices(trace)
        self._taking = np.append(is_taking(trace), False)
        self._taken = open_times(trace, is_taking(trace))
        self._engine_own = np.append(trace.index.matching(ENGINE_SLICES), False)
        self._main, self._executors = main_lane(trace), executor_lanes(trace)
        self._backward = backward_lanes(trace)
        lane = trace.tracks["lane"].to_numpy()
        of_host = trace.tracks["kind"].isin(["cpu", "python"]).to_numpy()
        self._tracks = rows_by(np.where(of_host, lane, NONE))
        loading = np.flatnonzero(is_dataloader(trace) & ~is_taking(trace))
        of_slice = lane[trace.index.track]
        lanes = rows_by(of_slice[loading])
        self._loading = {lane: loading[at] for lane, at in lanes.items()}
        self._known: dict[int, _Lane] = {}  # the threads that are asked for again and again
        self._main_began = np.sort(trace.index.ts[of_slice == self._main])

    def states(self, lane: int, within: Intervals | None = None) -> HostStates:
        """What this thread was doing, within these stretches of time; where in nothing, the others.

        The first that had anything open counts: this thread, those of the backward pass if it is
        the main thread of a record without a GPU (``within`` is None), the main thread. A thread's
        innermost slice counts, of its ops and Python frames the one that began last; an op's own
        time is Python's where that is known to have run in it (see `python_in_ops`). After them
        come all lanes of TensorFlow's executor, whose threads the trace does not tell: it waits for
        its input where one of them does and no other op runs.
        """
        first = (lane,) if within is not None else tuple(self._backward)
        lanes = dict.fromkeys((*first, self._main, *self._executors))
        known = [self._lane(one) for one in lanes]
        start, end = self._pieces(known, within)
        row = np.full(len(start), NONE, np.int32)
        loading, engine, hooks = (np.zeros(len(start), bool) for _ in range(3))
        for one in known:
            free = np.flatnonzero(row < 0)
            part = _parts_at(one.parts, start[free])
            found = np.append(one.parts.row, NONE)[part]
            row[free] = np.where(self._taking[found], NONE, found)
            loading[free] |= intervals.inside(start[free], one.loading)
            engine[free] |= np.append(one.between_nodes, False)[part]
            hooks[free] |= np.append(one.in_hooks, False)[part]
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
        parts = _innermost(trace, self._tracks.get(lane, nothing) if lane >= 0 else nothing)
        own = self._engine_own[parts.row]
        found = _Lane(
            parts,
            open_times(trace, self._loading.get(lane, nothing) if lane >= 0 else nothing),
            self._between_nodes(lane, parts),
            in_hooks(self._record, parts.start, parts.end, own),
        )
        if lane == self._main or lane in self._executors:
            self._known[lane] = found
        return found

    def _between_nodes(self, lane: int, parts: Segments) -> npt.NDArray[np.bool_]:
        """In which stretches autograd's thread ran no op, and the main thread began nothing."""
        inner = np.full(len(parts.start), lane in self._backward)
        if inner.any():
            edges = np.append(parts.start, parts.end[-1:])
            began = np.diff(np.searchsorted(self._main_began, edges))
            inner &= (parts.row < 0) & (began == 0)
            inner[:1] = inner[-1:] = False
        return inner

    def _pieces(self, known: list[_Lane], within: Intervals | None) -> tuple[Ints, Ints]:
        cuts = [one.parts.start for one in known]
        trace = self._record.trace
        if within is None:
            return _between(np.array([trace.start_ns, trace.end_ns]), *cuts)
        return _between(np.concatenate(within), *(_those_inside(cut, within) for cut in cuts))


@dataclass(frozen=True)
class _Lane:
    """A thread: its innermost slices, when it waited for a DataLoader, and which of the stretches
    are autograd's engine between two nodes, or hooks that it ran.
    """

    parts: Segments
    loading: Intervals
    between_nodes: npt.NDArray[np.bool_]
    in_hooks: npt.NDArray[np.bool_]


def _those_inside(times: Ints, within: Intervals) -> Ints:
    """Those of the sorted times that lie in one of these disjoint stretches."""
    first, last = (np.searchsorted(times, edge) for edge in within)
    count = last - first
    each = np.arange(count.sum()) - np.repeat(np.cumsum(count) - count, count)
    found: Ints = times[each + np.repeat(first, count)]
    return found


def _between(*edges: Ints) -> tuple[Ints, Ints]:
    """Starts and ends of the pieces between any two of these moments that follow each other."""
    every = intervals.distinct(*edges)
    return every[:-1], every[1:]


def executor_lanes(trace: Trace) -> list[int]:
    """The lanes of TensorFlow's executor, on which ops are put as they come."""
    ops = trace.args.get(EXECUTOR_LANE)
    if ops is None:
        return []
    tracks = np.unique(trace.slices["track"].to_numpy()[ops.index.to_numpy()])
    return [int(lane) for lane in np.unique(trace.tracks["lane"].to_numpy()[tracks])]


def main_lane(trace: Trace) -> int:
    """The thread that stands first on the timeline: the main thread of the busiest process."""
    cpu = np.flatnonzero((trace.tracks["kind"] == "cpu").to_numpy())
    return int(trace.tracks["lane"].to_numpy()[cpu[0]]) if len(cpu) else NONE


def backward_lanes(trace: Trace) -> list[int]:
    """The threads, other than the main one, on which autograd ran backward ops."""
    began = trace.index.matching(BEGINS_BACKWARD) & trace.index.on_tracks("cpu")
    tracks = np.flatnonzero(np.bincount(trace.index.track[began]))
    lanes = np.unique(trace.tracks["lane"].to_numpy()[tracks])
    return [int(lane) for lane in lanes if lane != main_lane(trace)]


def _innermost(trace: Trace, tracks: npt.NDArray[np.intp]) -> Segments:
    """Ops and Python frames of a thread taken together: of those open the one that began last."""
    parts = [trace.index.segments(int(track)) for track in tracks] if len(trace) else []
    if len(parts) == 1:
        return parts[0]
    start, end = _between(
        np.empty(0, np.int64), *(edge for p in parts for edge in (p.start, p.end))
    )
    ts = trace.slices["ts"].to_numpy()  # not copied: there may be a thread per slice
    row = np.full(len(start), NONE, np.int32)
    for part in parts:
        other = np.append(part.row, NONE)[_parts_at(part, start)]
        later = (other >= 0) & ((row < 0) | (ts[other] > ts[row]))
        row = np.where(later, other, row).astype(np.int32)
    return Segments(start, end, row)


def _parts_at(parts: Segments, times: Ints) -> npt.NDArray[np.intp]:
    """Per time the position of the stretch in which it lies, -1 where there are none at all."""
    if not len(parts.start):
        return np.full(len(times), NONE, np.intp)
    return np.maximum(np.searchsorted(parts.start, times, side="right") - 1, 0)


def _state_of_slices(trace: Trace) -> States:
    """Per slice the state of a thread whose innermost slice it is; the last one is for no slice."""
    calls = trace.index.is_launch
    state_of = {
        SYNCHRONISING: is_synchronising(trace),
        LAUNCHING: calls & trace.index.matching(LAUNCHES),
        RUNTIME: calls,
        CPU_OPS: (trace.index.is_op & ~python_functions(trace)) | are_named_regions(trace),
        OTHER: trace.index.in_category("overhead"),
    }
    states = np.full(len(trace) + 1, STATES.index(PYTHON), np.int8)
    for state, rows in reversed(state_of.items()):  # the first of them counts
        states[:-1][rows] = STATES.index(state)
    return states


@dataclass(frozen=True)
class Threads:
    """Segments of all threads, one thread after another; those of a thread tile [t0, t1).

    ``start``, ``end`` (ns), ``row`` (innermost slice, -1 for none), ``thread``. The last segment of
    a thread has no length: the start of a segment is a boundary, and so the end of time is one.
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
        """The segment of the thread that is running at that time, or begins then."""
        keys = _on_one_line(self.t0, self.t1, self.thread, self.start)
        wanted = _on_one_line(self.t0, self.t1, thread, time)
        return np.asarray(np.searchsorted(keys, wanted, side="right") - 1, np.int64)

    def cut(self, thread: Ints, time: Ints) -> Threads:
        """The same with boundaries at these times as well."""
        keys = _on_one_line(self.t0, self.t1, self.thread, self.start)
        edges = intervals.distinct(keys, _on_one_line(self.t0, self.t1, thread, time))
        row = self.row[np.searchsorted(keys, edges, side="right") - 1]
        return _threads(self.t0, self.t1, edges, row, (self.lane, self.track), self.main)

    def first(self) -> Ints:
        """Per thread its first segment."""
        return np.asarray(np.searchsorted(self.thread, np.arange(len(self.lane))), np.int64)

    def bursts(self) -> tuple[Ints, Ints, Ints]:
        """Thread, start and end of every stretch in which a thread had any slice open."""
        busy = (self.row >= 0) & (self.end > self.start)
        before = np.append(False, busy[:-1])
        opens = np.flatnonzero(busy & ~before)
        closes = np.flatnonzero(before & ~busy)
        return self.thread[opens], self.start[opens], self.start[closes]


def threads_of(trace: Trace, label: object, t0: int, t1: int) -> Threads:
    """All threads with any slice in [t0, t1), each over the whole of it; the run's by its label.

    On the thread of the run Python frames count as slices among the others, where they were
    recorded; on other threads they are left out: a pool's idle worker has frames open for good.
    """
    lane_of = trace.tracks["lane"].to_numpy()[trace.slices["track"].to_numpy()].astype(np.int64)
    began, ended = trace.index.uncut
    start, end = np.clip(began, t0, t1), np.clip(ended, t0, t1)
    counted = (trace.slices["count"].to_numpy() > 0) & (end > start)
    cpu, python = trace.index.on_tracks("cpu") & counted, trace.index.on_tracks("python") & counted
    if not cpu.any():
        cpu = python
    lane = np.unique(lane_of[cpu])
    main = _main_lane(trace, label, cpu, lane_of)
    rows = np.flatnonzero(cpu | (python & (lane_of == main)))
    thread = np.searchsorted(lane, lane_of[rows]).astype(np.int64)
    rows, thread = _in_order(rows, thread, start, end)
    first_rows = np.flatnonzero(cpu)[np.unique(lane_of[cpu], return_index=True)[1]]
    track = trace.slices["track"].to_numpy()[first_rows].astype(np.int64)
    at = _on_one_line(t0, t1, thread, start[rows])
    until = _on_one_line(t0, t1, thread, end[rows])
    bounds = np.arange(len(lane), dtype=np.int64) * (t1 - t0 + 1)
    edges = intervals.distinct(at, until, bounds, bounds + (t1 - t0))
    row = np.append(rows, NONE)[_path_threads_innermost(at, until, thread, edges)]
    at_bound = np.isin(edges, [bounds, bounds + t1 - t0])
    same = (row == np.append(NONE - 1, row[:-1])[: len(row)]) & ~at_bound
    home = int(np.searchsorted(lane, main)) if main in lane else NONE
    return _threads(t0, t1, edges[~same], row[~same], (lane, track), home)


def _in_order(
    rows: npt.NDArray[np.intp],
    thread: Ints,
    start: Ints,
    end: Ints,
) -> tuple[npt.NDArray[np.intp], Ints]:
    order = np.lexsort((start[rows] - end[rows], start[rows], thread))
    return rows[order], thread[order]


def _on_one_line(t0: int, t1: int, thread: npt.ArrayLike, time: npt.ArrayLike) -> Ints:
    """Threads one after another on a common line, a ns apart."""
    return np.asarray(thread, np.int64) * (t1 - t0 + 1) + (np.asarray(time, np.int64) - t0)


def _threads(
    t0: int,
    t1: int,
    edges: Ints,
    row: Ints,
    names: tuple[Ints, Ints],
    main: int,
) -> Threads:
    thread, start = np.divmod(edges, t1 - t0 + 1)
    start = start + t0
    last = np.append(thread[1:] != thread[:-1], True)[: len(thread)]
    end = np.where(last, start, np.append(start[1:], t1)[: len(start)])
    row = np.where(last, NONE, row).astype(np.int64)
    return Threads(t0, t1, start, end, row, thread, names[0], names[1], main)


def _path_threads_innermost(
    ts: Ints,
    end: Ints,
    thread: Ints,
    times: Ints,
) -> npt.NDArray[np.int32]:
    """Per time which of the slices is open and began last, by position; -1 for none."""
    return links.last_above(end, np.searchsorted(ts, times, side="right"), times)


def _main_lane(trace: Trace, label: object, cpu: Mask, lane_of: Ints) -> int:
    """The thread of the run: that of its label, of the steps or cell lines, else the busiest.

    A thread that only works for the backward pass is it where there is no other.
    """
    slices = trace.slices
    run = (slices["name"] == label).to_numpy(bool)
    run = run & (slices["category"] == "user_annotation").to_numpy()
    starts = [str(name).startswith("ProfilerStep#") for name in slices["name"].cat.categories]
    step = np.append(np.array(starts, bool), False)[slices["name"].cat.codes.to_numpy()]
    line = (slices["category"] == "cell_line").to_numpy()
    for known in (run & cpu, (step | line) & cpu):
        if known.any():
            return int(np.bincount(lane_of[known]).argmax())
    ops = cpu & trace.index.is_op
    for chosen in (ops & ~_of_backward(trace), ops, cpu):
        if chosen.any():
            return int(np.bincount(lane_of[chosen], slices["dur"].to_numpy()[chosen]).argmax())
    return NONE


def _of_backward(trace: Trace) -> Mask:
    names = trace.slices["name"].cat
    engine = np.array([str(name).startswith(BACKWARD) for name in names.categories], bool)
    marked = np.append(engine, False)[names.codes.to_numpy()]
    return np.asarray(marked | (trace.slices["forward"].to_numpy() >= 0), bool)
