"""Launches: how long GPU work waits between the CPU's call and its start on the GPU.

`launches` has a row per kernel, copy and memset; `launched_by` names the op, module, line and
Python function behind each; `queue_length` and `queues` show how much launched work was outstanding
on each stream.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd

from gpuprof_widgets.analyses.columns import durations_by_group, group_rows, group_sums
from gpuprof_widgets.analyses.gpu_work import KINDS, kind_codes
from gpuprof_widgets.analyses.kernels import counted_gpu_rows, launching_op
from gpuprof_widgets.analyses.op_calls import frame_of
from gpuprof_widgets.analyses.owners import (
    MODULE_FRAME,
    line_of,
    module_frame_around,
    region_behind,
)
from gpuprof_widgets.analyses.reasons import LACKS, empty_table, why_empty
from gpuprof_widgets.analyses.remembered import remembered
from gpuprof_widgets.trace.arrays import Ints, Rows
from gpuprof_widgets.trace.index import take
from gpuprof_widgets.trace.model import Record, Trace
from gpuprof_widgets.trace.schema import NONE

SLOW_CALL_NS = 50_000
"""A launch call that takes longer is an outlier (HTA: runtime_cutoff, 50 µs)."""
LATE_NS = 100_000
"""A kernel with a longer latency is an outlier (HTA: launch_delay_cutoff, 100 µs)."""
FULL = 1024
"""Outstanding launches at which the CPU blocks until one of them has started (HTA)."""
UNLINKED = "unlinked"
"""Key in the table's ``attrs``: the number of GPU slices without a launch in the trace."""

COLUMNS = (
    *("row", "name", "category", "kind", "device", "stream", "start_ns", "dur_ns"),
    *("launch", "launch_name", "thread", "call_start_ns", "call_ns", "launched"),
    *("from_call_ns", "latency_ns", "queue_ns", "pure_latency_ns", "op", "op_name"),
    *("short", "slow_call", "late"),
)
QUEUE_COLUMNS = ("device", "stream", "ts_ns", "length")
SUMMARY_COLUMNS = (
    *("device", "stream", "launches", "longest", "average", "waiting_ns", "full_ns", "full_share"),
    *("latency_p50_ns", "latency_p99_ns", "queue_ns", "pure_latency_ns"),
    *("short", "slow_calls", "late"),
)


def launches(record: Record) -> pd.DataFrame:
    """One row per GPU slice with a launch in the trace, in order of the calls.

    GPU slices are kernels, copies and memsets. Those without a launch have no row;
    ``attrs["unlinked"]`` is their number. In a window all times but ``dur_ns`` are those before the
    window cut slices.

    Formula: ``latency_ns`` = ``queue_ns`` + ``pure_latency_ns``, from the end of the call to the
    start on the GPU (0 where the GPU began within the call).

    Columns:

    - ``row``, ``name``, ``category``: the GPU slice.
    - ``kind``: "compute", "communication", "copy" or "memset".
    - ``device``, ``stream``: where it ran.
    - ``start_ns``, ``dur_ns``: when, and how long.
    - ``launch``, ``launch_name``: the call that launched it.
    - ``thread``: track of the call.
    - ``call_start_ns``, ``call_ns``: start and duration of the call.
    - ``launched``: GPU slices that this call launched; many for a CUDA graph.
    - ``from_call_ns``: from the start of the call to the start on the GPU; negative only where
      their clocks disagree.
    - ``latency_ns``: from the end of the call to the start on the GPU.
    - ``queue_ns``: of that, earlier work of the stream had not ended.
    - ``pure_latency_ns``: the rest: the way to the GPU, or a wait for an event.
    - ``op``, ``op_name``: the op that launched it; -1 and "" without one.
    - ``short``: all that the call launched took less time than the call, and the call was not slow.
    - ``slow_call``: the call took over 50 µs.
    - ``late``: the latency is over 100 µs.

    Source: HTA's ``get_cuda_kernel_launch_stats``: ``latency_ns``, ``short`` and the cutoffs.
    Unlike there, calls of any name count (driver, graph and AMD's launches), and all work of a
    graph counts as one.
    """
    table, index = launch_times(record), record.trace.index
    if LACKS in table.attrs:
        return table
    row = table["row"].to_numpy()
    kinds, categories = pd.Index(KINDS), pd.Index(index.categories)
    return table.assign(
        name=index.texts_of(row),
        category=categories.take(index.column("category")[row]),
        kind=kinds.take(kind_codes(record.trace)[row]),
        launch_name=index.texts_of(table["launch"].to_numpy()),
        op_name=index.texts_of(table["op"].to_numpy()),
    )[list(COLUMNS)]


@remembered
def launch_times(record: Record) -> pd.DataFrame:
    """Return the table of `launches` without its texts, which take most of the memory."""
    trace = record.trace
    rows = counted_gpu_rows(trace)
    linked = rows[trace.slices["launch"].to_numpy()[rows] >= 0]
    if not len(linked):
        why = "the trace has no GPU work: there are no launches of it"
        if len(rows):
            why = f"the trace has no launches of its {len(rows):,} GPU events."
        return empty_table(COLUMNS, why)
    table = _launch_table(trace, linked, rows)
    table.attrs[UNLINKED] = len(rows) - len(linked)
    return table


def by_call(table: pd.DataFrame) -> pd.DataFrame:
    """Return the first slice of each call and stream: a replayed graph counts as one launch.

    One more column, ``work_ns``: GPU time of everything that the call launched on that stream.
    """
    groups, first = group_rows({key: table[key] for key in ("launch", "device", "stream")})
    work = group_sums(groups, table["dur_ns"].to_numpy(), len(first))
    return table.iloc[first].assign(work_ns=work)


def _launch_table(trace: Trace, rows: Rows, on_gpu: Rows) -> pd.DataFrame:
    """Return the table of the GPU slices ``rows``; ``on_gpu`` are all slices of the streams."""
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
    work_ns = group_sums(call, end[rows] - ts[rows], len(trace))
    columns = {
        "row": rows.astype(np.int32),
        "device": index.device[rows],
        "stream": index.stream[rows],
        "start_ns": ts[rows],
        "dur_ns": index.dur[rows],
        "launch": call,
        "thread": index.track[call],
        "call_start_ns": ts[call],
        "call_ns": call_ns,
        "launched": launched,
        "from_call_ns": ts[rows] - ts[call],
        "latency_ns": waited,
        "queue_ns": queue,
        "pure_latency_ns": waited - queue,
        "op": op,
        "short": (work_ns[call] < call_ns) & (call_ns <= SLOW_CALL_NS),
        "slow_call": call_ns > SLOW_CALL_NS,
        "late": waited > LATE_NS,
    }
    return pd.DataFrame(columns)


def _stream_free(trace: Trace, rows: Rows, ts: Ints, end: Ints) -> Ints:
    """Return per GPU slice when all slices that began before it on its stream had ended.

    That is the trace's start for the first slice, and never later than the slice's own start.
    """
    # A stream's tracks of kernels and of copies are one stream.
    pairs = trace.tracks[["device", "stream"]].to_numpy(np.int64)
    _, number = np.unique(pairs, axis=0, return_inverse=True)
    streams = number.reshape(-1)[trace.index.track[rows]]
    order = np.lexsort((end[rows], ts[rows], streams))
    ordered = streams[order]
    shift = ordered * (int(end.max()) + 1 - min(int(ts.min()), 0))  # streams one after another
    last_end = np.maximum.accumulate(shift + end[rows][order]) - shift
    first = np.append(True, np.diff(ordered) != 0)
    before = np.where(first, trace.start_ns, np.append(trace.start_ns, last_end[:-1]))
    free = np.empty(len(rows), np.int64)
    free[order] = np.minimum(before, ts[rows][order])
    return free


def launched_by(trace: Trace, rows: Rows) -> pd.DataFrame:
    """Return who launched each of these GPU slices, in the order of ``rows``.

    Columns: ``op`` (row of the op that Python called; for the work of a graph the captured op, else
    the op around the replaying call, else this call; -1 without), ``op_name``; ``module`` (our
    region, else the innermost ``nn.Module`` frame), ``line`` (of the cell), ``python`` (the
    innermost Python frame): names, "" where unknown.
    """
    names = trace.index.names_of
    launching = launching_op(trace)[rows]
    outermost = take(trace.index.outermost_op, launching)
    op = np.where(outermost >= 0, outermost, launching)
    module, line = region_behind(trace, "module")[rows], line_of(trace)[rows]
    frame = module_frame = np.full(len(rows), NONE, np.int32)
    if trace.index.in_category("python_function").any():  # most traces have none
        frame = take(frame_of(trace), trace.index.launcher[rows])
        module_frame = module_frame_around(trace, frame)
    framed = [name.removeprefix(MODULE_FRAME) for name in names(module_frame)]
    columns = {
        "op": op.astype(np.int32),
        "op_name": names(op),
        "module": np.where(module >= 0, names(module), np.array(framed, object)),
        "line": names(line),
        "python": names(frame),
    }
    return pd.DataFrame(columns)


@remembered
def queue_length(record: Record) -> pd.DataFrame:
    """One row per change of a stream's queue: how much launched work had not started.

    Formula: the length rises by one at the start of each launch call, and falls by one when the
    call's work (a graph's first kernel) starts. It is never negative and ends at 0.

    In a window, work launched earlier is queued from the window's start; what starts after its end
    is not known.

    Columns:

    - ``device``, ``stream``: the queue.
    - ``ts_ns``: time of the change.
    - ``length``: kernels, copies, memsets and graphs in the queue from then on.

    Source: HTA's ``get_queue_length_time_series``. It has a row per launch and per start, also
    where several fall on one moment, and knows calls by eight names; here all calls with work on a
    GPU count. Work that began before its call, where clocks disagree, is queued for no time; HTA
    counts it as -1.
    """
    table = launch_times(record)
    if not len(table):
        return empty_table(QUEUE_COLUMNS, why_empty(table))
    table = by_call(table)
    called = np.maximum(table["call_start_ns"].to_numpy(), record.trace.start_ns)
    started = np.maximum(table["start_ns"].to_numpy(), called)
    device, stream = (np.tile(table[key].to_numpy(), 2) for key in ("device", "stream"))
    ts = np.concatenate([called, started])
    change = np.repeat(np.array([1, -1]), len(table))
    order = np.lexsort((ts, stream, device))
    device, stream, ts = device[order], stream[order], ts[order]
    length = np.cumsum(change[order])  # each stream's changes add up to 0
    changes = [key[1:] != key[:-1] for key in (device, stream, ts)]
    last = np.append(np.logical_or.reduce(changes), True)
    columns = {"device": device, "stream": stream, "ts_ns": ts, "length": length}
    return pd.DataFrame({key: values[last] for key, values in columns.items()})


def queues(record: Record) -> pd.DataFrame:
    """One row per stream on which work was launched, by device and stream.

    Columns:

    - ``device``, ``stream``: the queue.
    - ``launches``: number of launches.
    - ``longest``, ``average``: length of the queue (see `queue_length`); the average is over the
      trace's time.
    - ``waiting_ns``: time in which at least one launch had not started.
    - ``full_ns``: time in which 1,024 or more launches were outstanding: then the CPU is blocked.
    - ``full_share``: ``full_ns`` divided by the trace's time.
    - ``latency_p50_ns``, ``latency_p99_ns``: percentiles of the latency (see `launches`).
    - ``queue_ns``, ``pure_latency_ns``: sums over the launches (see `launches`).
    - ``short``, ``slow_calls``, ``late``: how many launches were so (see `launches`).

    ``attrs["unlinked"]`` is the number of GPU slices whose launch is missing.

    Source: HTA's ``get_time_spent_blocked_on_full_queue`` for ``full_ns``.
    """
    table, length = launch_times(record), queue_length(record)
    if not len(table):
        return empty_table(SUMMARY_COLUMNS, why_empty(table))
    attrs = {key: table.attrs[key] for key in (UNLINKED, LACKS) if key in table.attrs}
    table = by_call(table)
    keys = ("device", "stream")
    streams = pd.concat([table[[*keys]], length[[*keys]]], ignore_index=True)
    groups = np.asarray(streams.groupby([*keys]).ngroup(), np.intp)
    of_launch, of_length = groups[: len(table)], groups[len(table) :]
    labels = streams.drop_duplicates().sort_values([*keys], ignore_index=True).astype(np.int64)
    span = max(record.trace.span_ns, 1)
    ts, value = length["ts_ns"].to_numpy(), length["length"].to_numpy()
    lasted = np.append(np.diff(ts), 0)
    lasted[np.append(np.diff(of_length) != 0, True)] = 0  # each stream ends with an empty queue
    longest = np.zeros(len(labels), np.int64)
    np.maximum.at(longest, of_length, value)
    average, waiting, full = (
        group_sums(of_length, lasted * weight, len(labels))
        for weight in (value, value > 0, value >= FULL)
    )
    latency = durations_by_group(of_launch, table["latency_ns"].to_numpy(), len(labels))
    sums = ("queue_ns", "pure_latency_ns", "short", "slow_call", "late")
    queue, pure, *counts = (group_sums(of_launch, table[key], len(labels)) for key in sums)
    figures: tuple[Any, ...] = (
        *(latency["calls"], longest, average / span, waiting, full, full / span),
        *(latency["p50_ns"], latency["p99_ns"], queue, pure, *counts),
    )
    summary = labels.assign(**dict(zip(SUMMARY_COLUMNS[2:], figures, strict=True)))
    summary.attrs.update(attrs)
    return summary
