"""Where every nanosecond of each GPU went: one class each, which add up to the span exactly."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt
import pandas as pd

from gpuprof_widgets.analyses import intervals
from gpuprof_widgets.analyses.device_busy import devices
from gpuprof_widgets.analyses.gaps import Gaps, gaps_between
from gpuprof_widgets.analyses.gpu_kinds import (
    COMMUNICATION,
    COMPUTE,
    COPY,
    KINDS,
    MEMSET,
    gpu_kinds,
)
from gpuprof_widgets.analyses.host_states import (
    CPU_OPS,
    INPUT,
    LAUNCHING,
    OTHER,
    PYTHON,
    RUNTIME,
    STATES,
    SYNCHRONISING,
    HostStates,
    backward_lanes,
    host_states,
    main_lane,
)
from gpuprof_widgets.analyses.intervals import Intervals
from gpuprof_widgets.analyses.kernels import device_of
from gpuprof_widgets.analyses.lacking import lacking
from gpuprof_widgets.analyses.remembered import remembered
from gpuprof_widgets.analyses.steps import steps
from gpuprof_widgets.analyses.waits import is_synchronising
from gpuprof_widgets.exceptions import OptionError
from gpuprof_widgets.trace.model import Record, Trace
from gpuprof_widgets.trace.schema import NONE
from gpuprof_widgets.trace.window import uncut_times

Ints = npt.NDArray[np.int64]
Codes = npt.NDArray[np.int8]

QUEUED = "queued"
BUSY_CLASSES = (COMPUTE, "exposed communication", "exposed copy", MEMSET)
"""In the order of `KINDS`: a moment in which several kinds run belongs to the first of them."""
IDLE_CLASSES = (INPUT, SYNCHRONISING, PYTHON, CPU_OPS, RUNTIME, LAUNCHING, QUEUED, OTHER)
HOST_CLASSES = (INPUT, SYNCHRONISING, PYTHON, CPU_OPS, RUNTIME, LAUNCHING, OTHER)
"""Of a run without a GPU: what its main thread, or autograd's in its stead, was doing."""
CLASSES = (*BUSY_CLASSES, *IDLE_CLASSES)
BUSY, IDLE, HOST = "busy", "idle", "host"

SEGMENT_COLUMNS = ("device", "start_ns", "end_ns", "class")
COLUMNS = ("rank", "device", "step", "state", "class", "time_ns", "share", "span_ns")
OVERLAP_COLUMNS = (
    "rank",
    "device",
    "step",
    "span_ns",
    "busy_ns",
    "idle_ns",
    *(f"{kind}_ns" for kind in KINDS),
    "communication_overlapped_ns",
    "copy_overlapped_ns",
    "communication_overlapped_share",
    "copy_overlapped_share",
)
BY = ("device", "step")
NOTHING = "the trace has neither GPU work nor CPU ops: there is nothing to break down"
NO_GPU = "the trace has no GPU work: nothing could overlap"


def breakdown(record: Record, *, by: str = "device") -> pd.DataFrame:
    """One row per GPU and class (and step): how long; the classes add up to the span exactly.

    ``by``: "device" (the whole trace) or "step" (each step that the profiler's schedule marked, by
    the CPU's annotation: GPU work that runs later than that counts where it ran). Columns:
    ``rank`` (-1: unknown), ``device``, ``step`` (-1: the whole), ``state`` ("busy", "idle"; "host"
    without a GPU), ``class``, ``time_ns``, ``share`` (of the span), ``span_ns``. All classes have
    their row, also with 0 ns, in the order in which a moment is given to the first that fits:

    - "compute": a kernel runs that is not communication,
    - "exposed communication", "exposed copy", "memset": these run and nothing before them does,
    - the GPU is idle, by its next slice, the call that launched that, and what the thread was
      doing that made the call (where nothing was open on it, e.g. on autograd's: the main thread):
      "other": nothing followed, or the trace holds no launch of what did;
      "queued": launched before the gap began, so the GPU's own time between two kernels or a wait
      for an event;
      "launching": from the beginning of the launching call on (call and launch latency);
      before it "input pipeline": in a DataLoader's ``__next__``;
      "synchronising": in a call that waits for the GPU, and after it for as long as it had lasted,
      where the gap began in it: so much earlier would the next launch have come without it;
      "launching", "runtime calls": in a call that launches something else, or in another one of
      the runtime or driver (allocating, loading modules); "CPU ops": in an op, or in autograd's
      engine between two of them; "Python": in none of these.

    A record without GPU work has ``device`` -1, and its main thread's time (autograd's where that
    runs the backward pass) in the same idle classes.

    Peers: TraceLens has the same order of busy classes. The TensorBoard plugin puts copies and
    memsets before communication and so calls communication what is but the rest; it takes the CPU's
    state from all threads, and knows no `cuda_runtime`. HTA knows compute, not compute and idle,
    and has the time before the first and after the last GPU slice in no class.
    """
    if by not in BY:
        raise OptionError(f"a breakdown is by one of {', '.join(BY)}, not by {by!r}")
    return _of_devices(record) if by == "device" else _table(record, by)


@remembered
def _of_devices(record: Record) -> pd.DataFrame:
    return _table(record, "device")


def _table(record: Record, by: str) -> pd.DataFrame:
    segments = breakdown_segments(record)
    number, start, end = _ranges(record, by)
    if not len(segments) or not len(number):
        return lacking(COLUMNS, NOTHING if by == "device" else _no_steps(record))
    device = segments["device"].to_numpy()
    classes = CLASSES if devices(record.trace) else HOST_CLASSES
    tables = [
        _class_rows(int(one), segments[device == one], classes, number, (start, end))
        for one in np.unique(device)
    ]
    table = pd.concat(tables, ignore_index=True)
    return table.assign(rank=_rank(record.trace))[list(COLUMNS)]


def overlaps(record: Record, *, by: str = "device") -> pd.DataFrame:
    """One row per GPU (and step): total times of each kind of work, and how much was hidden.

    Columns (ns): ``rank``, ``device``, ``step`` (-1: the whole), ``span_ns``, ``busy_ns``,
    ``idle_ns``; ``compute_ns``, ``communication_ns``, ``copy_ns``, ``memset_ns``: at least one
    such slice ran (they may overlap); ``communication_overlapped_ns``, ``copy_overlapped_ns``:
    while compute ran as well; ``communication_overlapped_share``, ``copy_overlapped_share``: of
    all communication and copies (HTA's comm/comp overlap; 0 where there is none).
    """
    if by not in BY:
        raise OptionError(f"overlaps are by one of {', '.join(BY)}, not by {by!r}")
    trace = record.trace
    number, start, end = _ranges(record, by)
    kinds = {device: _kind_unions(trace, device) for device in devices(trace)}
    if not kinds or not len(number):
        return lacking(OVERLAP_COLUMNS, NO_GPU if not kinds else _no_steps(record))
    rows = [_overlap_row(device, unions, number, (start, end)) for device, unions in kinds.items()]
    return pd.concat(rows, ignore_index=True).assign(rank=_rank(trace))[list(OVERLAP_COLUMNS)]


@remembered
def breakdown_segments(record: Record) -> pd.DataFrame:
    """The time of each GPU cut where its class changes; the segments of each tile the trace.

    Columns: ``device`` (-1: the host of a record without GPU work), ``start_ns``, ``end_ns``,
    ``class``, by device and time. The classes of any range are sums of overlaps with these: those
    of a `window` may differ at its edges, since it does not know what is launched beyond them.
    """
    trace = record.trace
    tables = [_device_segments(trace, device) for device in devices(trace)]
    if not tables and main_lane(trace) >= 0:
        tables = [_host_segments(trace)]
    if not tables:
        return lacking(SEGMENT_COLUMNS, NOTHING)
    return pd.concat(tables, ignore_index=True)


def _ranges(record: Record, by: str) -> tuple[Ints, Ints, Ints]:
    """Numbers, starts and ends of the steps; of the whole with number -1."""
    trace = record.trace
    if by == "device":
        bounds = (NONE, trace.start_ns, trace.end_ns)
        return tuple(np.array([value], np.int64) for value in bounds)  # type: ignore[return-value]
    table = steps(record)
    return tuple(table[key].to_numpy(np.int64) for key in ("step", "start_ns", "end_ns"))  # type: ignore[return-value]


def _no_steps(record: Record) -> str:
    if not len(breakdown_segments(record)):
        return NOTHING
    return "the trace has no steps: the profiler ran without a schedule"


def _rank(trace: Trace) -> int:
    return int(trace.tracks["rank"].max()) if len(trace.tracks) else NONE


def _class_rows(
    device: int,
    segments: pd.DataFrame,
    classes: tuple[str, ...],
    number: Ints,
    ranges: Intervals,
) -> pd.DataFrame:
    code = pd.Index(CLASSES).get_indexer(pd.Index(segments["class"]))
    start, end = (segments[f"{edge}_ns"].to_numpy() for edge in ("start", "end"))
    times = []
    for name in classes:
        mine = code == CLASSES.index(name)
        times.append(intervals.overlap(ranges, (start[mine], end[mine])))
    span = np.repeat(ranges[1] - ranges[0], len(classes))
    time = np.array(times).T.reshape(-1)
    host = dict.fromkeys(HOST_CLASSES, HOST)
    state = [(STATE_OF_CLASS if classes is CLASSES else host)[name] for name in classes]
    columns = {
        "device": device,
        "step": np.repeat(number, len(classes)),
        "state": state * len(number),
        "class": [*classes] * len(number),
        "time_ns": time,
        "share": time / np.maximum(span, 1),
        "span_ns": span,
    }
    return pd.DataFrame(columns)


STATE_OF_CLASS: Mapping[str, str] = {
    **dict.fromkeys(BUSY_CLASSES, BUSY),
    **dict.fromkeys(IDLE_CLASSES, IDLE),
}


def _kind_unions(trace: Trace, device: int) -> dict[str, Intervals]:
    """When each kind of work ran on the device."""
    rows, kind = gpu_kinds(trace)
    here = device_of(trace, rows) == device
    ts, dur = trace.slices["ts"].to_numpy(), trace.slices["dur"].to_numpy()
    unions = {}
    for name in KINDS:
        chosen = rows[here & (kind == name)]
        union = intervals.union(ts[chosen], ts[chosen] + dur[chosen])
        unions[name] = intervals.clip(union, trace.start_ns, trace.end_ns)
    return unions


def _overlap_row(
    device: int, unions: dict[str, Intervals], number: Ints, ranges: Intervals
) -> pd.DataFrame:
    starts, ends = zip(*unions.values(), strict=True)
    busy = intervals.overlap(ranges, intervals.union(np.concatenate(starts), np.concatenate(ends)))
    total = {kind: intervals.overlap(ranges, union) for kind, union in unions.items()}
    hidden = {
        kind: intervals.overlap(ranges, intervals.intersection(unions[kind], unions[COMPUTE]))
        for kind in (COMMUNICATION, COPY)
    }
    span = ranges[1] - ranges[0]
    columns: dict[str, object] = {"device": device, "step": number, "span_ns": span}
    columns |= {"busy_ns": busy, "idle_ns": span - busy}
    columns |= {f"{kind}_ns": time for kind, time in total.items()}
    columns |= {f"{kind}_overlapped_ns": time for kind, time in hidden.items()}
    columns |= {
        f"{kind}_overlapped_share": time / np.maximum(total[kind], 1)
        for kind, time in hidden.items()
    }
    return pd.DataFrame(columns)


def _device_segments(trace: Trace, device: int) -> pd.DataFrame:
    unions = _kind_unions(trace, device)
    rows, _ = gpu_kinds(trace)
    gaps = gaps_between(trace, rows[device_of(trace, rows) == device])
    idle_start, idle_class = _idle(trace, gaps)
    edges = [np.array([trace.start_ns, trace.end_ns], np.int64), idle_start]
    edges += [edge for union in unions.values() for edge in union]
    cuts = np.unique(np.concatenate(edges))
    start = cuts[:-1]
    found = np.full(len(start), NONE, np.int8)
    for code, union in reversed(list(enumerate(unions.values()))):
        found[_inside(start, union)] = code
    idle = found < 0
    at = np.searchsorted(idle_start, start[idle], side="right") - 1
    found[idle] = idle_class[at]
    return _merged(device, start, cuts[1:], found)


def _host_segments(trace: Trace) -> pd.DataFrame:
    states = host_states(trace, *backward_lanes(trace), main_lane(trace))
    return _merged(NONE, states.start, states.end, CLASS_OF_STATE[states.state])


CLASS_OF_STATE: Codes = np.array([CLASSES.index(state) for state in STATES], np.int8)


def _merged(device: int, start: Ints, end: Ints, code: Codes) -> pd.DataFrame:
    """Neighbours of one class as one segment."""
    first = np.append(True, code[1:] != code[:-1])[: len(code)]
    last = np.append(first[1:], True)[: len(code)]
    names = np.array(CLASSES, object)
    columns = (device, start[first], end[last], names[code[first]])
    return pd.DataFrame(dict(zip(SEGMENT_COLUMNS, columns, strict=True)))


def _inside(times: Ints, union: Intervals) -> npt.NDArray[np.bool_]:
    return np.asarray(intervals.overlap((times, times + 1), union) > 0)


def _idle(trace: Trace, gaps: Gaps) -> tuple[Ints, Codes]:
    """Where, within the gaps, their class changes, and the class from there on."""
    lane = np.append(trace.tracks["lane"].to_numpy(), NONE)[gaps.thread]
    until = _synchronised_until(trace, gaps)
    starts, codes = [np.empty(0, np.int64)], [np.empty(0, np.int8)]
    for one in np.unique(lane):
        mine = np.flatnonzero(lane == one)
        states = _states_of(trace, int(one))
        time, gap = _cuts(gaps, mine, states, until)
        starts.append(time)
        codes.append(_causes(gaps, gap, time, states, until))
    start, code = np.concatenate(starts), np.concatenate(codes)
    order = np.argsort(start, kind="stable")
    return start[order], code[order]


def _states_of(trace: Trace, lane: int) -> HostStates:
    if lane < 0:
        nothing = np.empty(0, np.int64)
        return HostStates(nothing, nothing, np.empty(0, np.int8))
    return host_states(trace, *dict.fromkeys((lane, main_lane(trace))))


def _synchronised_until(trace: Trace, gaps: Gaps) -> Ints:
    """Per gap: when the next launch could have come, had the host not waited as it began.

    A gap that begins in a call that waits for the GPU began with an empty queue: without the call
    the host would have been ahead by as long as the call took.
    """
    until = gaps.start.copy()
    began, ended = uncut_times(trace)
    waiting, track = is_synchronising(trace), trace.slices["track"].to_numpy()
    for thread in np.unique(gaps.thread[gaps.thread >= 0]):
        rows = np.flatnonzero(waiting & (track == thread))
        mine = np.flatnonzero(gaps.thread == thread)
        call = open_at_moments(trace, rows, gaps.start[mine])
        until[mine] += np.append(ended - began, 0)[call]
    return until


def open_at_moments(trace: Trace, rows: npt.NDArray[np.intp], times: Ints) -> Ints:
    """Per time the one of these calls of a thread, none of which nest, that was open; -1."""
    ts = trace.slices["ts"].to_numpy()[rows]
    end = ts + trace.slices["dur"].to_numpy()[rows]
    at = np.searchsorted(ts, times, side="right") - 1
    found = np.append(rows, NONE)[at]
    return np.where((at >= 0) & (np.append(end, 0)[at] > times), found, NONE).astype(np.int64)


def _cuts(
    gaps: Gaps, mine: npt.NDArray[np.intp], states: HostStates, until: Ints
) -> tuple[Ints, npt.NDArray[np.intp]]:
    """Every moment in these gaps at which a class may change, and the gap of each."""
    start, end = gaps.start[mine], gaps.end[mine]
    at = np.searchsorted(start, states.start, side="right") - 1
    inside = (at >= 0) & (states.start < np.append(end, 0)[at])
    moments = [start, gaps.launch_ns[mine], until[mine], states.start[inside]]
    owner = [np.arange(len(mine))] * 3 + [at[inside]]
    time, gap = np.concatenate(moments), np.concatenate(owner)
    kept = (time >= start[gap]) & (time < end[gap])
    time, first = np.unique(time[kept], return_index=True)
    return time, mine[gap[kept][first]]


def _causes(
    gaps: Gaps, gap: npt.NDArray[np.intp], time: Ints, states: HostStates, until: Ints
) -> Codes:
    state = np.array(STATES, object)[states.at(time)] if len(time) else np.empty(0, object)
    conditions = [
        (gaps.after < 0)[gap] | (gaps.launch < 0)[gap],
        (gaps.launched_ns <= gaps.start)[gap],
        time >= gaps.launch_ns[gap],
        state == INPUT,
        time < until[gap],
    ]
    codes = [CLASSES.index(c) for c in (OTHER, QUEUED, LAUNCHING, INPUT, SYNCHRONISING)]
    of_state = CLASS_OF_STATE[states.at(time)] if len(time) else np.empty(0, np.int8)
    return np.select(conditions, codes, of_state).astype(np.int8)
