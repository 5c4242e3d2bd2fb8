"""From the CPU's call to the GPU's start: one row per kernel, copy and memset that was launched."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from gpuprof_widgets.analyses.columns import PERCENTILES, durations_by_group, group_rows
from gpuprof_widgets.analyses.gpu_work import KINDS, kind_codes
from gpuprof_widgets.analyses.kernels import counted_gpu_rows, launching_op
from gpuprof_widgets.analyses.op_calls import frame_of
from gpuprof_widgets.analyses.owners import (
    MODULE_FRAME,
    line_of,
    module_frame_around,
    region_behind,
)
from gpuprof_widgets.analyses.reasons import LACKS, lacking, why_empty
from gpuprof_widgets.analyses.remembered import remembered
from gpuprof_widgets.trace.model import Record, Trace
from gpuprof_widgets.trace.schema import NONE

Ints = npt.NDArray[np.int64]
Rows = npt.NDArray[np.intp]

SLOW_CALL_NS = 50_000
"""A launch call that takes longer is an outlier (HTA: runtime_cutoff, 50 µs)."""
LATE_NS = 100_000
"""A kernel that starts later after its call is an outlier (HTA: launch_delay_cutoff, 100 µs)."""
UNLINKED = "unlinked"
"""Key in the table's ``attrs``: how many GPU slices have no launch in the trace."""

COLUMNS = (
    *("row", "name", "category", "kind", "device", "stream", "start_ns", "dur_ns"),
    *("launch", "launch_name", "thread", "call_start_ns", "call_ns", "launched"),
    *("from_call_ns", "latency_ns", "queue_ns", "pure_latency_ns", "op", "op_name"),
    *("short", "slow_call", "late"),
)


@remembered
def launches(record: Record) -> pd.DataFrame:
    """One row per GPU slice with a launch in the trace, in order of the calls.

    Columns (times in ns): ``row`` (of the GPU slice), ``name``, ``category``, ``kind``, ``device``,
    ``stream``, ``start_ns``, ``dur_ns``; ``launch`` (row of the call), ``launch_name``, ``thread``
    (its track), ``call_start_ns``, ``call_ns`` (how long it took), ``launched`` (GPU slices that
    this call launched: many for a CUDA graph); ``from_call_ns`` (from the call's start to the GPU's
    start; below zero only where their clocks disagree), ``latency_ns`` (from the call's end to the
    GPU's start, 0 where the GPU began within the call) = ``queue_ns`` (earlier work of the stream
    had not ended) + ``pure_latency_ns`` (what remains: the way to the GPU, or an event waited for);
    ``op``, ``op_name`` (`kernels.launching_op`; -1, "" without). Flags: ``short`` (all that the
    call launched took less time than the call, which is no outlier), ``slow_call`` (took over
    50 µs), ``late`` (latency over 100 µs).

    ``latency_ns``, ``short`` and the cutoffs are HTA's (get_cuda_kernel_launch_stats); unlike it,
    calls of any name count (driver, graph and AMD's launches), and what a graph launched counts as
    one. GPU slices whose launch is missing have no row: ``attrs["unlinked"]`` says how many. In a
    window times are those before it cut slices, ``dur_ns`` is not.
    """
    trace = record.trace
    rows = counted_gpu_rows(trace)
    linked = rows[trace.slices["launch"].to_numpy()[rows] >= 0]
    if not len(linked):
        return lacking(COLUMNS, _why(rows))
    table = _launched(trace, linked, rows)
    table.attrs[UNLINKED] = len(rows) - len(linked)
    return table


def by_call(table: pd.DataFrame) -> pd.DataFrame:
    """Of these `launches` the first slice of each call and stream: a replayed graph counts as one.

    One more column, ``work_ns``: GPU time of all that the call launched on that stream.
    """
    group, first = group_rows({key: table[key] for key in ("launch", "device", "stream")})
    work = np.zeros(len(first), np.int64)
    np.add.at(work, group, table["dur_ns"].to_numpy())
    return table.iloc[first].assign(work_ns=work)


def _why(rows: Rows) -> str:
    if len(rows):
        return f"the trace has no launches of its {len(rows):,} GPU events."
    return "the trace has no GPU work: there are no launches of it"


def _launched(trace: Trace, rows: Rows, on_gpu: Rows) -> pd.DataFrame:
    """The table of these rows of all that ran ``on_gpu``."""
    index = trace.index
    call = index.column("launch")[rows]
    ts, end = index.uncut
    order = np.lexsort((ts[rows], ts[call]))
    rows, call = rows[order], call[order]
    op = launching_op(trace)[rows]
    waited = np.maximum(ts[rows] - end[call], 0)
    free = np.full(len(trace), trace.start_ns, np.int64)
    free[on_gpu] = _stream_free(trace, on_gpu, ts, end)
    queue = np.clip(free[rows] - end[call], 0, waited)
    call_ns = end[call] - ts[call]
    launched = np.bincount(call, minlength=len(trace))[call]
    work_ns = np.zeros(len(trace), np.int64)
    np.add.at(work_ns, call, end[rows] - ts[rows])
    columns = {
        "row": rows.astype(np.int32),
        "name": index.texts_of(rows),
        "category": pd.Index(index.categories).take(index.column("category")[rows]),
        "kind": pd.Index(KINDS).take(kind_codes(trace)[rows]),
        "device": index.device[rows],
        "stream": index.stream[rows],
        "start_ns": ts[rows],
        "dur_ns": index.dur[rows],
        "launch": call,
        "launch_name": index.texts_of(call),
        "thread": index.track[call],
        "call_start_ns": ts[call],
        "call_ns": call_ns,
        "launched": launched,
        "from_call_ns": ts[rows] - ts[call],
        "latency_ns": waited,
        "queue_ns": queue,
        "pure_latency_ns": waited - queue,
        "op": op,
        "op_name": index.texts_of(op),
        "short": (work_ns[call] < call_ns) & (call_ns <= SLOW_CALL_NS),
        "slow_call": call_ns > SLOW_CALL_NS,
        "late": waited > LATE_NS,
    }
    return pd.DataFrame(columns)


def _stream_free(trace: Trace, rows: Rows, ts: Ints, end: Ints) -> Ints:
    """Per GPU slice: when all that had started before it on its stream was over.

    The trace's start for the first one; never later than its own start.
    """
    streams = _stream_numbers(trace)[trace.index.track[rows]]
    order = np.lexsort((end[rows], ts[rows], streams))
    ordered = streams[order]
    line = ordered * (int(end.max()) + 1 - min(int(ts.min()), 0))  # streams one after another
    reached = np.maximum.accumulate(line + end[rows][order]) - line
    first = np.append(True, np.diff(ordered) != 0)
    before = np.where(first, trace.start_ns, np.append(trace.start_ns, reached[:-1]))
    free = np.empty(len(rows), np.int64)
    free[order] = np.minimum(before, ts[rows][order])
    return free


def _stream_numbers(trace: Trace) -> Rows:
    """Per track the number of its stream; kernels and copies of one stream have the same."""
    pairs = trace.tracks[["device", "stream"]].to_numpy(np.int64)
    _, number = np.unique(pairs, axis=0, return_inverse=True)
    return number.reshape(-1)


def launched_by(trace: Trace, rows: Rows) -> pd.DataFrame:
    """Per GPU slice, in the order of ``rows``, who asked for it.

    Columns: ``op`` (row of the op that Python called; of what a graph replays the captured op, else
    that around the replaying call, else this call; -1 without), ``op_name``; ``module`` (our
    region, else the innermost ``nn.Module`` frame), ``line`` (of the cell), ``python`` (the
    innermost Python frame): names, "" where the trace does not tell.
    """
    names = trace.index.names_of
    op = _outermost_op(trace, rows)
    frame = _frames(trace, rows)
    nowhere = np.full(len(rows), NONE, np.intp)
    has_modules, has_lines = (_has(trace, category) for category in ("module", "cell_line"))
    module = region_behind(trace, "module")[rows] if has_modules else nowhere
    columns = {
        "op": op.astype(np.int32),
        "op_name": names(op),
        "module": np.where(module >= 0, names(module), _module_frames(trace, frame)),
        "line": names(line_of(trace)[rows] if has_lines else nowhere),
        "python": names(frame),
    }
    return pd.DataFrame(columns)


def _has(trace: Trace, category: str) -> bool:
    """Most traces have no regions of ours: looking for those around each slice would be idle."""
    return category in trace.index.categories


def _outermost_op(trace: Trace, rows: Rows) -> Rows:
    op = launching_op(trace)[rows]
    outermost = np.append(trace.index.outermost_op, NONE)[op]
    found: Rows = np.where(outermost >= 0, outermost, op).astype(np.intp)
    return found


def _frames(trace: Trace, rows: Rows) -> Rows:
    """The Python frame that was innermost when each was launched; -1 without stacks."""
    if not trace.index.in_category("python_function").any():
        return np.full(len(rows), NONE, np.intp)
    return np.append(frame_of(trace), NONE)[trace.index.launcher[rows]].astype(np.intp)


def _module_frames(trace: Trace, frame: Rows) -> npt.NDArray[np.object_]:
    """Name of the innermost module's frame around each frame, without its prefix."""
    if not (frame >= 0).any():
        return np.full(len(frame), "", object)
    names = trace.index.names_of(module_frame_around(trace, frame))
    return np.array([name.removeprefix(MODULE_FRAME) for name in names], object)


FULL = 1024
"""Outstanding launches from which on a further launch waits until one has started (HTA)."""

QUEUE_COLUMNS = ("device", "stream", "ts_ns", "length")
SUMMARY_COLUMNS = (
    *("device", "stream", "launches", "longest", "average", "waiting_ns", "full_ns", "full_share"),
    *("latency_p50_ns", "latency_p99_ns", "queue_ns", "pure_latency_ns"),
    *("short", "slow_calls", "late"),
)


@remembered
def queue_length(record: Record) -> pd.DataFrame:
    """One row per change of a stream's queue: how much launched work had not started.

    Columns: ``device``, ``stream``, ``ts_ns``, ``length`` (kernels, copies, memsets and graphs from
    here on): one more at the start of each launch call, one less when its work starts, of a graph
    the first of it. It ends at 0 and never is below.

    HTA (get_queue_length_time_series) has a row per launch and per start, also where several fall
    on one moment, and knows calls by eight names; here all calls with work on a GPU count. Work
    that began before its call, where clocks disagree, is queued for no time instead of being
    counted as -1. In a window what was launched before is queued from its start; what starts after
    its end is not known.
    """
    table = launches(record)
    if not len(table):
        return lacking(QUEUE_COLUMNS, why_empty(table))
    table = by_call(table)
    called = np.maximum(table["call_start_ns"].to_numpy(), record.trace.start_ns)
    started = np.maximum(table["start_ns"].to_numpy(), called)
    device, stream = (np.tile(table[key].to_numpy(), 2) for key in ("device", "stream"))
    ts = np.concatenate([called, started])
    change = np.repeat(np.array([1, -1]), len(table))
    order = np.lexsort((ts, stream, device))
    device, stream, ts = device[order], stream[order], ts[order]
    length = np.cumsum(change[order])  # a stream's changes add up to 0, so each begins anew
    last = np.append(_changes(device, stream, ts), True)
    columns = {"device": device, "stream": stream, "ts_ns": ts, "length": length}
    return pd.DataFrame({key: values[last] for key, values in columns.items()})


def queues(record: Record) -> pd.DataFrame:
    """One row per stream on which work was launched, by device and stream.

    Columns: ``device``, ``stream``, ``launches``; of the queue (see `queue_length`): ``longest``,
    ``average`` (over the trace's time), ``waiting_ns`` (at least one launch had not started),
    ``full_ns`` and ``full_share`` (1,024 or more outstanding: the CPU is blocked; HTA's
    get_time_spent_blocked_on_full_queue); of its launches (ns; see `launches`): ``latency_p50_ns``,
    ``latency_p99_ns``, the sums ``queue_ns`` and ``pure_latency_ns``, and how many were ``short``,
    ``slow_calls`` and ``late``. ``attrs["unlinked"]``: GPU slices whose launch is missing.
    """
    table, length = launches(record), queue_length(record)
    if not len(table):
        return lacking(SUMMARY_COLUMNS, why_empty(table))
    attrs: Any = {key: table.attrs[key] for key in (UNLINKED, LACKS) if key in table.attrs}
    table = by_call(table)
    both = {key: pd.concat([table[key], length[key]]) for key in ("device", "stream")}
    device, devices = pd.factorize(both["device"].to_numpy(np.int64), sort=True)
    stream, streams = pd.factorize(both["stream"].to_numpy(np.int64), sort=True)
    number, pairs = pd.factorize(device * len(streams) + stream, sort=True)
    of_launch, of_length = np.split(number, [len(table)])
    columns = [
        pd.DataFrame({"device": devices[pairs // len(streams)]}),
        pd.DataFrame({"stream": streams[pairs % len(streams)]}),
        _of_queue(length, of_length, record.trace.span_ns, len(pairs)),
        _of_launches(table, of_launch, len(pairs)),
    ]
    summary = pd.concat(columns, axis=1)[list(SUMMARY_COLUMNS)]
    summary.attrs = attrs
    return summary


def _changes(*keys: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
    """Per row but the last: whether the next one differs."""
    return np.asarray(np.logical_or.reduce([key[1:] != key[:-1] for key in keys]), bool)


def _of_queue(
    length: pd.DataFrame, group: npt.NDArray[np.intp], span: int, groups: int
) -> pd.DataFrame:
    ts, value = length["ts_ns"].to_numpy(), length["length"].to_numpy()
    lasted = np.append(np.diff(ts), 0)
    lasted[np.append(np.diff(group) != 0, True)] = 0  # each stream ends with an empty queue
    longest = np.zeros(groups, np.int64)
    np.maximum.at(longest, group, value)
    full = _sum(group, lasted * (value >= FULL), groups)
    columns = {
        "longest": longest,
        "average": _sum(group, lasted * value, groups) / max(span, 1),
        "waiting_ns": _sum(group, lasted * (value > 0), groups),
        "full_ns": full,
        "full_share": full / max(span, 1),
    }
    return pd.DataFrame(columns)


def _of_launches(table: pd.DataFrame, group: npt.NDArray[np.intp], groups: int) -> pd.DataFrame:
    latency = durations_by_group(group, table["latency_ns"].to_numpy(), groups)
    names = {key: f"latency_{key}" for key in PERCENTILES}
    columns = {
        "launches": latency["calls"],
        **{names[key]: latency[key] for key in ("p50_ns", "p99_ns")},
        **{key: _sum(group, table[key].to_numpy(), groups) for key in SUMMED},
        **{name: _sum(group, table[key].to_numpy(), groups) for name, key in FLAGS.items()},
    }
    return pd.DataFrame(columns)


SUMMED = ("queue_ns", "pure_latency_ns")
FLAGS = {"short": "short", "slow_calls": "slow_call", "late": "late"}


def _sum(group: npt.NDArray[np.intp], values: npt.NDArray[np.int64], groups: int) -> Ints:
    total = np.zeros(groups, np.int64)
    np.add.at(total, group, values.astype(np.int64))
    return total
