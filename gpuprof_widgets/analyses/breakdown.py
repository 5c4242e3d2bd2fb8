"""Where every nanosecond of each GPU went: one class each, which add up to the span exactly."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt
import pandas as pd

from gpuprof_widgets.analyses.collectives import exposed_on_cpu
from gpuprof_widgets.analyses.gpu_work import (
    COMPUTE,
    MEMSET,
    Gaps,
    devices,
    gaps_between,
    kind_times,
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
    HostTimeline,
    main_lane,
)
from gpuprof_widgets.analyses.reasons import lacking, which_other_kind
from gpuprof_widgets.analyses.regions import NO_STEPS, rank_of, time_ranges
from gpuprof_widgets.analyses.remembered import remembered
from gpuprof_widgets.analyses.waits import is_synchronising
from gpuprof_widgets.exceptions import OptionError
from gpuprof_widgets.trace import intervals
from gpuprof_widgets.trace.intervals import Intervals
from gpuprof_widgets.trace.links import rows_by
from gpuprof_widgets.trace.model import Record, Trace
from gpuprof_widgets.trace.schema import NONE

Ints = npt.NDArray[np.int64]
Codes = npt.NDArray[np.int8]

BUSY, IDLE, HOST = "busy", "idle", "host"
COLUMNS = ("rank", "device", "step", "state", "class", "time_ns", "share", "span_ns")
BY = ("device", "step")


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
      "other": nothing followed, or the trace holds no launch of what did (or see the end); where
      a range lies within the gap, so that neither is known, what the main thread was doing counts;
      "queued": the launching call had returned, so what remains is the GPU's: launch latency, its
      time from one kernel to the next, or a wait of which the trace knows nothing;
      "launching": in the launching call;
      before it "input pipeline": in a DataLoader's ``__next__`` (in TensorFlow: an op waited for a
      queue or an iterator, and no other ran);
      "synchronising": in a call that waits for the GPU, and after it for as long as it had lasted,
      where the gap began in it: so much earlier would the next launch have come without it;
      "launching", "runtime calls": in a call that launches something else, or in another one of
      the runtime or driver (allocating, loading modules); "CPU ops": in an op, or in autograd's
      engine between two of them, or in a region of a program that we know nothing else of;
      "Python": in none of these, also suspended in ``await``, if PyTorch's ops or Python's frames,
      lines or calls are in the record (otherwise nobody knows what ran, and that is "other" too);
      and Python that an op ran, as far as that is known: frames and lines in it, what an
      ``autograd.Function`` in Python takes itself whose backward ran too, and stretches of 50 us
      and more of the engine's own time, where cProfile saw that hooks took about as long.

    So a class is what the CPU did at each moment. How a gap came about as a whole is `idle`'s
    cause: one that began in a short synchronisation is "synchronise" there from end to end, and
    here mostly what the CPU did after that.

    A record without GPU work has ``device`` -1, and its main thread's time (autograd's where that
    runs the backward pass) in the same idle classes, but first of all in "exposed communication":
    a collective of the CPU (gloo) was in flight, and no thread was in an op that computes.

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
    number, start, end = time_ranges(record, by)
    if not len(segments) or not len(number):
        return lacking(COLUMNS, NO_STEPS if len(segments) else NOTHING)
    device = segments["device"].to_numpy()
    classes = CLASSES if devices(record.trace) else HOST_CLASSES
    tables = [
        _class_rows(int(one), segments[device == one], classes, number, (start, end))
        for one in np.unique(device)
    ]
    table = pd.concat(tables, ignore_index=True)
    return table.assign(rank=rank_of(record.trace))[list(COLUMNS)]


def _class_rows(
    device: int,
    segments: pd.DataFrame,
    classes: tuple[str, ...],
    number: Ints,
    ranges: Intervals,
) -> pd.DataFrame:
    start, end = (segments[f"{edge}_ns"].to_numpy() for edge in ("start", "end"))
    code, times = segments["class"].cat.codes.to_numpy(), []
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


QUEUED = "queued"
EXPOSED = "exposed communication"
BUSY_CLASSES = (COMPUTE, EXPOSED, "exposed copy", MEMSET)
"""In the order of `KINDS`: a moment in which several kinds run belongs to the first of them."""
IDLE_CLASSES = (INPUT, SYNCHRONISING, PYTHON, CPU_OPS, RUNTIME, LAUNCHING, QUEUED, OTHER)


STATE_OF_CLASS: Mapping[str, str] = {
    **dict.fromkeys(BUSY_CLASSES, BUSY),
    **dict.fromkeys(IDLE_CLASSES, IDLE),
}


HOST_CLASSES = (EXPOSED, INPUT, SYNCHRONISING, PYTHON, CPU_OPS, RUNTIME, LAUNCHING, OTHER)
"""Of a run without a GPU: what its main thread, or autograd's in its stead, was doing while no
collective was in flight that nothing hid."""
CLASSES = (*BUSY_CLASSES, *IDLE_CLASSES)
SEGMENT_COLUMNS = ("device", "start_ns", "end_ns", "class")
NOTHING = "the trace has neither GPU work nor CPU ops: there is nothing to break down"


@remembered
def breakdown_segments(record: Record) -> pd.DataFrame:
    """The time of each GPU cut where its class changes; the segments of each tile the trace.

    Columns: ``device`` (-1: the host of a record without GPU work), ``start_ns``, ``end_ns``,
    ``class`` (one of `CLASSES`, as a category), by device and time. The classes of any range are
    sums of overlaps with these: those of a `window` may differ at its edges, since it does not know
    what is launched beyond them.
    """
    trace = record.trace
    tables = [_device_segments(record, device) for device in devices(trace)]
    if not tables and main_lane(trace) >= 0 and not which_other_kind(trace):
        tables = [_host_segments(record)]
    if not tables:
        return lacking(SEGMENT_COLUMNS, NOTHING)
    return pd.concat(tables, ignore_index=True)


def _device_segments(record: Record, device: int) -> pd.DataFrame:
    trace = record.trace
    unions = kind_times(trace, device)
    rows = trace.index.gpu
    rows = rows[trace.index.device[rows] == device]
    gaps = gaps_between(trace, rows)
    idle_start, idle_class = _idle(record, gaps, ran_nothing=not len(rows))
    edges = [np.array([trace.start_ns, trace.end_ns], np.int64), idle_start]
    edges += [edge for union in unions.values() for edge in union]
    cuts = intervals.distinct(*edges)
    start = cuts[:-1]
    found = np.full(len(start), NONE, np.int8)
    for code, union in reversed(list(enumerate(unions.values()))):
        found[intervals.inside(start, union)] = code
    idle = found < 0
    at = np.searchsorted(idle_start, start[idle], side="right") - 1
    found[idle] = idle_class[at]
    return _merged(device, start, cuts[1:], found)


def _host_segments(record: Record) -> pd.DataFrame:
    trace, exposed = record.trace, exposed_on_cpu(record)
    states = HostTimeline(record).states(main_lane(trace))
    cuts = intervals.distinct(states.start, states.end, *exposed)
    start = cuts[:-1]
    found = CLASS_OF_STATE[states.at(start)]
    found[intervals.inside(start, exposed)] = CLASSES.index(EXPOSED)
    return _merged(NONE, start, cuts[1:], found)


CLASS_OF_STATE: Codes = np.array([CLASSES.index(state) for state in STATES], np.int8)


def _merged(device: int, start: Ints, end: Ints, code: Codes) -> pd.DataFrame:
    """Neighbours of one class as one segment."""
    first = np.append(True, code[1:] != code[:-1])[: len(code)]
    last = np.append(first[1:], True)[: len(code)]
    columns = (
        device,
        start[first],
        end[last],
        pd.Categorical.from_codes(code[first], pd.Index(CLASSES)),
    )
    return pd.DataFrame(dict(zip(SEGMENT_COLUMNS, columns, strict=True)))


def _idle(record: Record, gaps: Gaps, *, ran_nothing: bool) -> tuple[Ints, Codes]:
    """Where, within the gaps, their class changes, and the class from there on.

    ``ran_nothing``: the GPU did so in the whole trace or range.
    """
    trace = record.trace
    lane = np.append(trace.tracks["lane"].to_numpy(), NONE)[gaps.thread]
    until = _synchronised_until(trace, gaps)
    starts, codes = [np.empty(0, np.int64)], [np.empty(0, np.int8)]
    host = HostTimeline(record)
    for one, mine in rows_by(lane).items():
        states = host.states(one, (gaps.start[mine], gaps.end[mine]))
        time, gap = _cuts(gaps, mine, states, until)
        starts.append(time)
        codes.append(_causes(gaps, gap, time, states, until, ran_nothing=ran_nothing))
    start, code = np.concatenate(starts), np.concatenate(codes)
    order = np.argsort(start, kind="stable")
    return start[order], code[order]


def _synchronised_until(trace: Trace, gaps: Gaps) -> Ints:
    """Per gap: when the next launch could have come, had the host not waited as it began.

    A gap that begins in a call that waits for the GPU began with an empty queue: without the call
    the host would have been ahead by as long as the call took.
    """
    until = gaps.start.copy()
    began, ended = trace.index.uncut
    calls, took = is_synchronising(trace), np.append(ended - began, 0)
    for thread, mine in rows_by(gaps.thread).items():
        if thread < 0:
            continue
        rows = trace.index.rows_of_track(thread)
        call = open_at_moments(trace, rows[calls[rows]], gaps.start[mine])
        until[mine] += took[call]
    return until


def open_at_moments(trace: Trace, rows: npt.NDArray[np.intp], times: Ints) -> Ints:
    """Per time the one of these calls of a thread, none of which nest, that was open; -1."""
    ts, end = trace.index.ts[rows], trace.index.end[rows]
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
    called, returned = gaps.launch_ns[mine], gaps.launched_ns[mine]
    moments = [start, called, returned, until[mine], states.start[inside]]
    owner = [np.arange(len(mine))] * 4 + [at[inside]]
    time, gap = np.concatenate(moments), np.concatenate(owner)
    kept = (time >= start[gap]) & (time < end[gap])
    time, first = np.unique(time[kept], return_index=True)
    return time, mine[gap[kept][first]]


def _causes(
    gaps: Gaps,
    gap: npt.NDArray[np.intp],
    time: Ints,
    states: HostStates,
    until: Ints,
    *,
    ran_nothing: bool,
) -> Codes:
    state = states.at(time)
    conditions = [
        np.full(len(gap), ran_nothing),  # a range within a gap: what ends it is not known
        (gaps.after < 0)[gap] | (gaps.launch < 0)[gap],
        time >= gaps.launched_ns[gap],
        time >= gaps.launch_ns[gap],
        state == STATES.index(INPUT),
        time < until[gap],
    ]
    codes = [CLASSES.index(c) for c in (OTHER, QUEUED, LAUNCHING, INPUT, SYNCHRONISING)]
    doing = CLASS_OF_STATE[state]
    return np.select(conditions, [doing, *codes], doing).astype(np.int8)
