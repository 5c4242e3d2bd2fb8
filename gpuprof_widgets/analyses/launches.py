"""From the CPU's call to the GPU's start: one row per kernel, copy and memset that was launched."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pandas as pd

from gpuprof_widgets.analyses.gpu_kinds import KINDS, kind_codes
from gpuprof_widgets.analyses.grouped import group_rows
from gpuprof_widgets.analyses.kernels import counted_gpu_rows, launching_op
from gpuprof_widgets.analyses.lacking import lacking
from gpuprof_widgets.analyses.remembered import remembered
from gpuprof_widgets.trace.model import Record, Trace

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
