"""The breakdown of each GPU's time: one class for every nanosecond, so that they add up exactly.

`breakdown` sums `breakdown_segments`, which cuts the time of each GPU where its class changes. Busy
time goes by the kind of work; a gap goes by what the launching thread was doing (`HostTimeline`).
"""

from __future__ import annotations

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
    rows_on,
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
from gpuprof_widgets.analyses.reasons import empty_table, which_other_kind
from gpuprof_widgets.analyses.regions import NO_STEPS, rank_of, time_ranges
from gpuprof_widgets.analyses.remembered import remembered
from gpuprof_widgets.analyses.waits import is_synchronising
from gpuprof_widgets.exceptions import OptionError
from gpuprof_widgets.trace import intervals
from gpuprof_widgets.trace.arrays import Ints, Rows
from gpuprof_widgets.trace.index import take
from gpuprof_widgets.trace.links import rows_by
from gpuprof_widgets.trace.model import Record, Trace
from gpuprof_widgets.trace.schema import NONE

ClassCodes = npt.NDArray[np.int8]

BUSY, IDLE, HOST = "busy", "idle", "host"
COLUMNS = ("rank", "device", "step", "state", "class", "time_ns", "share", "span_ns")
SEGMENT_COLUMNS = ("device", "start_ns", "end_ns", "class")
BY = ("device", "step")
NOTHING = "the trace has neither GPU work nor CPU ops: there is nothing to break down"

QUEUED = "queued"
EXPOSED = "exposed communication"
BUSY_CLASSES = (COMPUTE, EXPOSED, "exposed copy", MEMSET)
"""In the order of `KINDS`: a moment in which several kinds run belongs to the first of them."""
IDLE_CLASSES = (INPUT, SYNCHRONISING, PYTHON, CPU_OPS, RUNTIME, LAUNCHING, QUEUED, OTHER)
CLASSES = (*BUSY_CLASSES, *IDLE_CLASSES)
HOST_CLASSES = (EXPOSED, INPUT, SYNCHRONISING, PYTHON, CPU_OPS, RUNTIME, LAUNCHING, OTHER)
"""Classes of a run without a GPU, by its main thread, or autograd's where that runs the backward
pass; exposed communication comes first."""
CLASS_OF_STATE: ClassCodes = np.array([CLASSES.index(state) for state in STATES], np.int8)


def breakdown(record: Record, *, by: str = "device") -> pd.DataFrame:
    """One row per GPU and class (and step): how long; the classes add up to the span exactly.

    A class says what the CPU did at each moment at which the GPU was idle. How a gap came about as
    a whole is the ``cause`` in `idle`: a gap that began in a short synchronisation is "synchronise"
    there from end to end, and here mostly what the CPU did after that.

    Rule: a moment belongs to the first class that fits:

    - "compute": a kernel runs that is not communication.
    - "exposed communication", "exposed copy", "memset": these run, and nothing before them in this
      list does.
    - Else the GPU is idle. Its next slice, the call that launched that slice, and what the thread
      that made the call was doing decide. If nothing was open on that thread (as on autograd's),
      the main thread decides.
    - "other": nothing followed, or the trace holds no launch of what did. If a range lies within
      the gap, so that neither is known, what the main thread was doing decides instead.
    - "queued": the launching call had returned, so the rest is the GPU's: launch latency, its time
      from one kernel to the next, or a wait that is not in the trace.
    - "launching": in the launching call, or in a call that launches something else.
    - "input pipeline": in a DataLoader's ``__next__`` (in TensorFlow: an op waited for a queue or
      an iterator, and no other op ran).
    - "synchronising": in a call that waits for the GPU. If the gap began in that call, also after
      it, for as long as the call had lasted: the next launch would have come that much earlier
      without it.
    - "runtime calls": in another call of the runtime or driver (allocating, loading modules).
    - "CPU ops": in an op, in autograd's engine between two ops, or in a region of a program of
      which nothing else is known.
    - "Python": in none of these, also suspended in ``await``, if PyTorch's ops or Python's frames,
      lines or calls are in the record (if not, it is unknown what ran: "other"). Python that an op
      ran counts here too, as far as it is known: frames and lines in it, what an
      ``autograd.Function`` in Python takes itself if its backward ran too, and stretches of 50 µs
      and more of the engine's own time if cProfile saw that hooks took about as long.

    Without GPU work ``device`` is -1, and the main thread's time (autograd's while that runs the
    backward pass) is divided into the idle classes. There "exposed communication" comes first: a
    collective of the CPU (gloo) was in flight, and no thread was in an op that computes.

    Options:

    - ``by``: "device" (the whole trace) or "step" (each step that the profiler's schedule marked,
      by the CPU's annotation: GPU work that runs after the step ended counts where it ran).

    Columns:

    - ``rank``: -1: unknown.
    - ``device``: -1: no GPU, the main thread.
    - ``step``: -1: the whole.
    - ``state``: "busy", "idle", or "host" without a GPU.
    - ``class``: see the rule. Every class has a row, also with 0 ns.
    - ``time_ns``: time in that class.
    - ``share``: ``time_ns`` / ``span_ns``.
    - ``span_ns``: length of the trace or step.

    Source: the order of the busy classes is TraceLens'. The TensorBoard plugin puts copies and
    memsets before communication, takes the CPU's state from all threads, and does not know the
    category ``cuda_runtime``. HTA knows compute, not compute and idle, and counts the time before
    the first and after the last GPU slice in no class.
    """
    if by not in BY:
        raise OptionError(f"a breakdown is by one of {', '.join(BY)}, not by {by!r}")
    return _table(record, by)


@remembered
def _table(record: Record, by: str) -> pd.DataFrame:
    segments = breakdown_segments(record)
    number, start, end = time_ranges(record, by)
    if not len(segments) or not len(number):
        return empty_table(COLUMNS, NO_STEPS if len(segments) else NOTHING)
    classes: tuple[str, ...] = HOST_CLASSES
    states = [HOST] * len(classes)
    if devices(record.trace):
        classes, states = CLASSES, [BUSY] * len(BUSY_CLASSES) + [IDLE] * len(IDLE_CLASSES)
    span, tables = np.repeat(end - start, len(classes)), []
    for device, part in segments.groupby("device"):
        first, last = part["start_ns"].to_numpy(), part["end_ns"].to_numpy()
        code = part["class"].cat.codes.to_numpy()
        times = [
            intervals.overlap((start, end), (first[code == at], last[code == at]))
            for at in map(CLASSES.index, classes)
        ]
        time = np.array(times).T.reshape(-1)
        columns = {
            "rank": rank_of(record.trace),
            "device": device,
            "step": np.repeat(number, len(classes)),
            "state": states * len(number),
            "class": [*classes] * len(number),
            "time_ns": time,
            "share": time / np.maximum(span, 1),
            "span_ns": span,
        }
        tables.append(pd.DataFrame(columns))
    return pd.concat(tables, ignore_index=True)


@remembered
def breakdown_segments(record: Record) -> pd.DataFrame:
    """Return the time of each GPU, cut where its class changes; each GPU's segments tile the trace.

    Columns: ``device`` (-1: the host of a record without GPU work), ``start_ns``, ``end_ns``,
    ``class`` (one of `CLASSES`, as a category), by device and time. Classes of a range are sums of
    overlaps with these segments; those of a `window` may differ at its edges, because a window does
    not know what is launched beyond them.
    """
    trace = record.trace
    if tables := [_device_segments(record, device) for device in devices(trace)]:
        return pd.concat(tables, ignore_index=True)
    if main_lane(trace) < 0 or which_other_kind(trace):
        return empty_table(SEGMENT_COLUMNS, NOTHING)
    exposed = exposed_on_cpu(record)
    states = HostTimeline(record).states(main_lane(trace))
    cuts = intervals.distinct(states.start, states.end, *exposed)
    codes = CLASS_OF_STATE[states.at(cuts[:-1])]
    codes[intervals.inside(cuts[:-1], exposed)] = CLASSES.index(EXPOSED)
    return _merged(NONE, cuts, codes)


def _device_segments(record: Record, device: int) -> pd.DataFrame:
    trace = record.trace
    kinds = [*kind_times(trace, device).values()]
    rows = rows_on(trace, device)
    gaps = gaps_between(trace, rows)
    idle_start, idle_class = _idle_classes(record, gaps, ran_nothing=not len(rows))
    edges = (edge for kind in kinds for edge in kind)
    cuts = intervals.distinct([trace.start_ns, trace.end_ns], idle_start, *edges)
    start = cuts[:-1]
    codes = np.full(len(start), NONE, np.int8)
    for code, kind in reversed([*enumerate(kinds)]):
        codes[intervals.inside(start, kind)] = code
    idle = codes < 0
    at = np.searchsorted(idle_start, start[idle], side="right") - 1
    codes[idle] = idle_class[at]
    return _merged(device, cuts, codes)


def _merged(device: int, cuts: Ints, code: ClassCodes) -> pd.DataFrame:
    """Return the segments between these times, with neighbours of one class merged."""
    first = np.flatnonzero(np.diff(code, prepend=NONE))
    last = np.flatnonzero(np.diff(code, append=NONE))
    classes = pd.Categorical.from_codes(code[first], pd.Index(CLASSES))
    columns = device, cuts[first], cuts[last + 1], classes
    return pd.DataFrame(dict(zip(SEGMENT_COLUMNS, columns, strict=True)))


def _idle_classes(record: Record, gaps: Gaps, *, ran_nothing: bool) -> tuple[Ints, ClassCodes]:
    """Return the moments within gaps at which the class changes, and the class from each on.

    ``ran_nothing``: the GPU ran nothing in the whole trace or window.
    """
    trace = record.trace
    lanes = take(trace.tracks["lane"].to_numpy(), gaps.thread)
    until = _synchronised_until(trace, gaps)
    starts, codes = [np.empty(0, np.int64)], [np.empty(0, np.int8)]
    host = HostTimeline(record)
    for lane, numbers in rows_by(lanes).items():
        states = host.states(lane, (gaps.start[numbers], gaps.end[numbers]))
        time, gap = _cuts(gaps, numbers, states, until)
        starts.append(time)
        state = states.at(time)
        classes = {  # the first whose condition holds, else what the thread did
            OTHER: (gaps.after < 0)[gap] | (gaps.launch < 0)[gap],
            QUEUED: time >= gaps.launched_ns[gap],
            LAUNCHING: time >= gaps.launch_ns[gap],
            INPUT: state == STATES.index(INPUT),
            SYNCHRONISING: time < until[gap],
        }
        code = CLASS_OF_STATE[state]
        if not ran_nothing:  # what ends a gap around a whole window is not known
            code = np.select([*classes.values()], [*map(CLASSES.index, classes)], code)
        codes.append(code.astype(np.int8))
    start, code = np.concatenate(starts), np.concatenate(codes)
    order = np.argsort(start, kind="stable")
    return start[order], code[order]


def _synchronised_until(trace: Trace, gaps: Gaps) -> Ints:
    """Return per gap when the next launch could have come if the host had not waited for the GPU.

    A gap that begins in a call that waits for the GPU begins with an empty queue: without the call
    the host would have been ahead by as long as the call took.
    """
    waits = is_synchronising(trace)
    call = np.full(len(gaps.start), NONE, np.int32)
    for thread, numbers in rows_by(gaps.thread).items():
        if thread >= 0:
            rows = trace.index.rows_of_track(thread)
            call[numbers] = trace.index.innermost_open(rows[waits[rows]], gaps.start[numbers])
    began, ended = trace.index.uncut
    return gaps.start + take(ended - began, call, 0)


def _cuts(gaps: Gaps, numbers: Rows, states: HostStates, until: Ints) -> tuple[Ints, Rows]:
    """Return every moment in these gaps at which the class may change, and the gap of each."""
    at = np.searchsorted(gaps.start[numbers], states.start, side="right") - 1
    known = at >= 0
    moments = [times[numbers] for times in (gaps.start, gaps.launch_ns, gaps.launched_ns, until)]
    time = np.concatenate([*moments, states.start[known]])
    gap = np.concatenate([*[numbers] * len(moments), numbers[at[known]]])
    kept = (time >= gaps.start[gap]) & (time < gaps.end[gap])
    time, first = np.unique(time[kept], return_index=True)
    return time, gap[kept][first]
