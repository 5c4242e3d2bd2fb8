"""What a CPU thread was doing at each moment, in the few words that explain an idle GPU."""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from gpuprof_widgets.analyses.op_rows import are_named_regions
from gpuprof_widgets.analyses.open_times import open_times
from gpuprof_widgets.analyses.python_in_ops import ENGINE_OWN, in_hooks, python_functions
from gpuprof_widgets.analyses.waits import is_dataloader, is_synchronising, is_taking
from gpuprof_widgets.trace import intervals
from gpuprof_widgets.trace.callers import BEGINS_BACKWARD
from gpuprof_widgets.trace.index import Segments
from gpuprof_widgets.trace.intervals import Intervals
from gpuprof_widgets.trace.links import rows_by
from gpuprof_widgets.trace.model import Record, Trace
from gpuprof_widgets.trace.schema import EXECUTOR_LANE, NONE, REGION_CATEGORIES

Ints = npt.NDArray[np.int64]
States = npt.NDArray[np.int8]

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
        self._engine_own = np.append(trace.index.matching(ENGINE_OWN), False)
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
