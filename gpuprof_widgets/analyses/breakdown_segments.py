"""The time of each GPU, cut where its class changes: what it ran, or why it ran nothing."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pandas as pd

from gpuprof_widgets.analyses.collective_calls import exposed_on_cpu
from gpuprof_widgets.analyses.device_busy import devices, kind_times
from gpuprof_widgets.analyses.gaps import Gaps, gaps_between
from gpuprof_widgets.analyses.gpu_kinds import COMPUTE, MEMSET
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
from gpuprof_widgets.analyses.lacking import lacking, which_other_kind
from gpuprof_widgets.analyses.remembered import remembered
from gpuprof_widgets.analyses.waits import is_synchronising
from gpuprof_widgets.trace import intervals
from gpuprof_widgets.trace.links import rows_by
from gpuprof_widgets.trace.model import Record, Trace
from gpuprof_widgets.trace.schema import NONE

Ints = npt.NDArray[np.int64]
Codes = npt.NDArray[np.int8]

QUEUED = "queued"
EXPOSED = "exposed communication"
BUSY_CLASSES = (COMPUTE, EXPOSED, "exposed copy", MEMSET)
"""In the order of `KINDS`: a moment in which several kinds run belongs to the first of them."""
IDLE_CLASSES = (INPUT, SYNCHRONISING, PYTHON, CPU_OPS, RUNTIME, LAUNCHING, QUEUED, OTHER)
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
