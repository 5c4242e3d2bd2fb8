"""What a CPU thread was doing at each moment, in the few words that explain an idle GPU."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from gpuprof_widgets.analyses import intervals
from gpuprof_widgets.analyses.innermost import Segments, segments
from gpuprof_widgets.analyses.op_rows import (
    are_named_regions,
    are_ops,
    in_category,
    matching,
    on_tracks,
)
from gpuprof_widgets.analyses.open_times import open_times
from gpuprof_widgets.analyses.python_in_ops import ENGINE_OWN, in_hooks, python_functions
from gpuprof_widgets.analyses.waits import is_dataloader, is_synchronising, is_taking
from gpuprof_widgets.trace.callers import BACKWARD
from gpuprof_widgets.trace.model import Record, Trace
from gpuprof_widgets.trace.schema import (
    EXECUTOR_LANE,
    NONE,
    REGION_CATEGORIES,
    RUNTIME_ENDINGS,
)

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

    def without_python(self) -> HostStates:
        """The same, with "other" for what ran between ops."""
        between = self.state == STATES.index(PYTHON)
        return replace(self, state=np.where(between, STATES.index(OTHER), self.state))


def ran_python(record: Record) -> bool:
    """Whether what ran between ops was Python: its frames, calls, lines or PyTorch's ops are there.

    Without them nobody knows: other profilers and frameworks record programs in any language, and
    a trace of the GPU alone (``activities=[ProfilerActivity.CUDA]``) holds none of the ops.
    """
    trace = record.trace
    if record.calls is not None or (trace.tracks["kind"] == "python").any():
        return True
    if in_category(trace, *REGION_CATEGORIES).any():
        return True
    return any(name.startswith("aten::") for name in trace.slices["name"].cat.categories)


def host_states(record: Record, *lanes: int) -> HostStates:
    """What the first of these threads that had anything open was doing.

    A thread's innermost slice counts, of its ops and Python frames the one that began last; an
    op's own time is Python's where that is known to have run in it (see `python_in_ops`). After
    them come all lanes of TensorFlow's executor, whose threads the trace does not tell: it waits
    for its input where one of them does and no other op runs.
    """
    trace = record.trace
    lanes = tuple(dict.fromkeys((*lanes, *executor_lanes(trace))))
    taking = is_taking(trace)
    innermost = [_innermost(trace, lane) for lane in lanes]
    start, end = _pieces(trace, *(parts.start for parts in innermost))
    row = np.full(len(start), NONE, np.int32)
    loading, engine = np.zeros(len(start), bool), np.zeros(len(start), bool)
    lane_of = trace.tracks["lane"].to_numpy()[trace.slices["track"].to_numpy()]
    loaders, main = is_dataloader(trace) & ~taking, _began(trace, main_lane(trace))
    backward = backward_lanes(trace)
    for lane, parts in zip(lanes, innermost, strict=True):
        free = row < 0
        found = _rows_at(parts, start[free])
        row[free] = np.where(np.append(taking, False)[found], NONE, found)
        loading |= free & _covered(trace, loaders & (lane_of == lane), start)
        if lane in backward:
            engine |= free & _between_nodes(parts, main, start)
    state = _state_of_slices(trace)[row]
    own = np.append(matching(trace, ENGINE_OWN), False)[row]
    state[in_hooks(record, start, end, own)] = STATES.index(PYTHON)
    state[engine] = STATES.index(CPU_OPS)
    state[loading] = STATES.index(INPUT)
    if taking.any():
        state[(row < 0) & _covered(trace, taking, start)] = STATES.index(INPUT)
    states = HostStates(start, end, state)
    return states if ran_python(record) else states.without_python()


def _pieces(trace: Trace, *cuts: Ints) -> tuple[Ints, Ints]:
    """Starts and ends of the pieces into which these moments cut the trace."""
    edges = np.unique(np.concatenate([[trace.start_ns, trace.end_ns], *cuts])).astype(np.int64)
    return edges[:-1], edges[1:]


def _began(trace: Trace, lane: int) -> Ints:
    """When the slices of a thread began, in order."""
    tracks = np.flatnonzero((trace.tracks["lane"] == lane).to_numpy())
    ts = trace.slices["ts"].to_numpy()
    return np.sort(ts[np.isin(trace.slices["track"].to_numpy(), tracks)])


def _between_nodes(parts: Segments, main: Ints, times: Ints) -> npt.NDArray[np.bool_]:
    """Whether autograd's thread was between two of its ops, and the main thread began nothing."""
    began = np.searchsorted(main, parts.end) - np.searchsorted(main, parts.start)
    inner = np.ones(len(began), bool)
    inner[:1] = inner[-1:] = False
    between = (parts.row < 0) & inner & (began == 0)
    at = np.maximum(np.searchsorted(parts.start, times, side="right") - 1, 0)
    return between[at] if len(between) else np.zeros(len(times), bool)


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
    names = trace.slices["name"].cat
    starts = np.array([*(str(name).startswith(BACKWARD) for name in names.categories), False])
    chosen = starts[names.codes.to_numpy()] & on_tracks(trace, "cpu")
    tracks = np.unique(trace.slices["track"].to_numpy()[chosen])
    lanes = np.unique(trace.tracks["lane"].to_numpy()[tracks])
    return [int(lane) for lane in lanes if lane != main_lane(trace)]


def _innermost(trace: Trace, lane: int) -> Segments:
    """Ops and Python frames of a thread taken together."""
    tracks = trace.tracks
    mine = (tracks["lane"] == lane) & tracks["kind"].isin(["cpu", "python"])
    parts = [segments(trace, int(track)) for track in np.flatnonzero(mine.to_numpy())]
    if len(parts) == 1:
        return parts[0]
    start, end = _pieces(trace, *(part.start for part in parts))
    ts = np.append(trace.slices["ts"].to_numpy(), np.iinfo(np.int64).min)
    row = np.full(len(start), NONE, np.int32)
    for part in parts:
        other = _rows_at(part, start)
        row = np.where(ts[other] > ts[row], other, row)
    return Segments(start, end, row)


def _rows_at(parts: Segments, times: Ints) -> npt.NDArray[np.int32]:
    if not len(parts.start):
        return np.full(len(times), NONE, np.int32)
    return parts.row[np.maximum(np.searchsorted(parts.start, times, side="right") - 1, 0)]


def _covered(trace: Trace, chosen: npt.NDArray[np.bool_], times: Ints) -> npt.NDArray[np.bool_]:
    """Whether any of the chosen slices was open at these moments."""
    return intervals.overlap((times, times + 1), open_times(trace, chosen)) > 0


def _state_of_slices(trace: Trace) -> States:
    """Per slice the state of a thread whose innermost slice it is; the last one is for no slice."""
    categories = trace.slices["category"].cat.categories
    calls = in_category(trace, *(c for c in categories if c.endswith(RUNTIME_ENDINGS)))
    state_of = {
        SYNCHRONISING: is_synchronising(trace),
        LAUNCHING: calls & matching(trace, LAUNCHES),
        RUNTIME: calls,
        CPU_OPS: (are_ops(trace) & ~python_functions(trace)) | are_named_regions(trace),
        OTHER: in_category(trace, "overhead"),
    }
    conditions, codes = list(state_of.values()), [STATES.index(state) for state in state_of]
    state = np.select(conditions, codes, STATES.index(PYTHON))
    return np.append(state, STATES.index(PYTHON)).astype(np.int8)
