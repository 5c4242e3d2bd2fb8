"""When a thread waited for others: for the GPU, for the backward pass, for its next task."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pandas as pd

from gpuprof_widgets.analyses.host_states import Threads
from gpuprof_widgets.analyses.operators import are_named_regions
from gpuprof_widgets.analyses.path_streams import (
    GpuWork,
    calls_by_correlation,
    stream_numbers,
    sync_events,
)
from gpuprof_widgets.analyses.waits import is_dataloader, is_synchronising
from gpuprof_widgets.trace.arrays import Ints, Mask, Rows
from gpuprof_widgets.trace.links import nearest_ancestor, rows_by
from gpuprof_widgets.trace.model import Trace
from gpuprof_widgets.trace.schema import LAUNCH_CATEGORIES, NONE, REGION_CATEGORIES

RETURNED, CALLED_BACK, STARTED = 0, 1, 2
"""Why a thread went on: the GPU was done, another thread was done, it got work to do.

Releases at the same time take effect in this order.
"""

COLUMNS = ("thread", "since", "time", "gpu", "other", "why")


def releases(trace: Trace, threads: Threads, work: GpuWork) -> pd.DataFrame:
    """Return one row per moment at which a thread went on after it had waited.

    Columns: ``thread``, ``since`` (it waited from then on), ``time``, ``gpu`` (position in ``work``
    of what it waited for, -1), ``other`` (the thread that it waited for, -1), ``why``.
    """
    tables = [_synchronised(trace, threads, work), *_handed_over(trace, threads)]
    table = pd.concat(tables, ignore_index=True)[list(COLUMNS)].astype(np.int64)
    table = table.drop_duplicates(["thread", "time", "gpu", "other", "why"])
    by_main = (table["other"] != threads.main).to_numpy()  # a thread starts before it starts others
    order = np.lexsort((table["thread"], by_main, table["why"], table["time"]))
    return table.iloc[order].reset_index(drop=True)


def _synchronised(trace: Trace, threads: Threads, work: GpuWork) -> pd.DataFrame:
    """Return the calls that wait for the GPU, until the end of the slice that they await.

    That is the last GPU slice to end within the call, on the awaited stream if the trace names it
    (``cuda_sync`` events); for an event, the last slice launched before its record.
    """
    began, ended = trace.index.uncut
    lanes = trace.tracks["lane"].to_numpy()[trace.slices["track"].to_numpy()]
    rows = np.flatnonzero(is_synchronising(trace) & np.isin(lanes, threads.lane))
    rows = rows[(ended[rows] > threads.t0) & (began[rows] < threads.t1)]
    stream, exact = _awaited_streams(trace, work, rows)
    gpu = np.full(len(rows), NONE, np.int64)
    on_stream, every = rows_by(work.stream), np.arange(len(work))
    for number, calls in rows_by(stream).items():
        among = on_stream.get(number, every[:0]) if number >= 0 else every
        among = among[np.argsort(work.ended[among], kind="stable")]
        at = np.searchsorted(work.ended[among], ended[rows[calls]], side="right") - 1
        gpu[calls] = np.where(at >= 0, np.append(among, NONE)[np.maximum(at, 0)], NONE)
    gpu = np.where(exact >= 0, exact, gpu)
    end = np.append(work.ended, threads.t0)[gpu]
    since = np.maximum(began[rows], threads.t0)
    kept = (gpu >= 0) & (end > since) & (end <= ended[rows])
    return pd.DataFrame(
        {
            "thread": np.searchsorted(threads.lane, lanes[rows[kept]]),
            "since": since[kept],
            "time": np.minimum(end[kept], threads.t1),
            "gpu": gpu[kept],
            "other": NONE,
            "why": RETURNED,
        }
    )


def _awaited_streams(trace: Trace, work: GpuWork, rows: Rows) -> tuple[Ints, Ints]:
    """Return per call the awaited stream (-1: all or unknown) and slice (-1: unknown)."""
    stream, exact = np.full(len(rows), NONE, np.int64), np.full(len(rows), NONE, np.int64)
    syncs = sync_events(trace)
    syncs = syncs[syncs["kind"].isin(["Stream Sync", "Event Sync"])]
    if not len(syncs):
        return stream, exact
    on_event = (syncs["kind"] == "Event Sync").to_numpy()
    number = stream_numbers(
        work, syncs["device"], syncs["stream"].where(~on_event, syncs["wait_on_stream"])
    )
    recorded = calls_by_correlation(trace).reindex(syncs["record"]).to_numpy()
    known = on_event & ~np.isnan(recorded) & (number >= 0)
    last = np.full(len(syncs), NONE, np.int64)
    last[known] = work.last_launched(number[known], recorded[known].astype(np.int64))
    by_call = pd.DataFrame({"stream": number, "exact": last}, syncs["correlation"].to_numpy())
    by_call = by_call[~by_call.index.duplicated()]
    awaited = by_call.reindex(trace.slices["correlation"].to_numpy()[rows]).fillna(NONE)
    return awaited["stream"].to_numpy(np.int64), awaited["exact"].to_numpy(np.int64)


def _handed_over(trace: Trace, threads: Threads) -> list[pd.DataFrame]:
    """Return when bursts of work on other threads were started, and when their callers went on.

    The caller is the thread of the forward ops, else the thread of the run. The caller's last
    action before the burst started it, unless the thread itself was busy after that: then it goes
    on by itself. The caller of a backward pass waits for it while it runs nothing but Python.
    """
    thread, start, end = threads.bursts()
    caller_of, backward = _callers(trace, threads)
    caller = caller_of[thread] if len(thread) else thread
    others = (caller >= 0) & (caller != thread)
    thread, start, end, caller = (values[others] for values in (thread, start, end, caller))
    segment = threads.boundary(caller, start)
    since = threads.start[segment] if len(segment) else start
    again = np.append(False, thread[1:] == thread[:-1])[: len(thread)]
    before = np.where(again, np.append(threads.t0, end[:-1])[: len(end)], threads.t0)
    handed = ~again | (since > before)
    started = {"thread": thread, "since": before, "time": start, "gpu": NONE, "other": caller}
    idle = _only_python(trace, threads)
    inside = backward[thread] & idle[segment] & (end <= threads.end[segment])
    group = pd.DataFrame(
        {"thread": caller, "segment": segment, "other": thread, "s": start, "e": end}
    )
    group = group[inside]
    since = group.groupby("segment")["s"].transform("min")
    last = group.assign(since=since).groupby(["thread", "segment", "other"], as_index=False)
    ends = last.agg(since=("since", "min"), time=("e", "max"))
    return [
        pd.DataFrame(started)[handed].assign(why=STARTED),
        ends.assign(gpu=NONE, why=CALLED_BACK),
    ]


def _callers(trace: Trace, threads: Threads) -> tuple[Ints, Mask]:
    """Return per thread its caller (-1: none), and whether it runs the caller's backward pass."""
    forward = trace.slices["forward"].to_numpy()
    lanes = trace.tracks["lane"].to_numpy()[trace.slices["track"].to_numpy()]
    backward = np.flatnonzero((forward >= 0) & np.isin(lanes, threads.lane))
    backward = backward[np.isin(lanes[forward[backward]], threads.lane)]
    at = np.searchsorted(threads.lane, lanes[backward])
    home = np.searchsorted(threads.lane, lanes[forward[backward]])
    caller = np.full(len(threads.lane), threads.main, np.int64)
    is_backward = np.zeros(len(threads.lane), bool)
    for thread, rows in rows_by(at).items():
        caller[thread] = np.bincount(home[rows]).argmax()
        is_backward[thread] = caller[thread] != thread and thread != threads.main
    caller[is_backward & np.append(is_backward, False)[caller]] = threads.main
    caller[caller == np.arange(len(caller))] = NONE
    if threads.main >= 0:
        caller[threads.main] = NONE
    return caller, is_backward


def _only_python(trace: Trace, threads: Threads) -> Mask:
    """Return which segments are neither op nor call: Python, or a region of it."""
    python = trace.index.in_category("user_annotation", "python_function", *REGION_CATEGORIES)
    return np.append(python & ~are_named_regions(trace), True)[threads.row]


def segment_kinds(
    trace: Trace, threads: Threads, between: str, kinds: Sequence[str]
) -> npt.NDArray[np.int8]:
    """Return the kind of each segment by its innermost slice: its place in ``kinds``.

    ``between``: the kind of segments that are neither op nor call.
    """
    loader = is_dataloader(trace)
    loading = loader | (nearest_ancestor(trace.slices["parent"].to_numpy(), loader) >= 0)
    runtime = trace.index.in_category(*LAUNCH_CATEGORIES)
    _, backward = _callers(trace, threads)
    row = threads.row
    python = threads.thread == threads.main
    conditions = [
        np.append(loading, False)[row],
        np.append(is_synchronising(trace), False)[row],
        np.append(runtime, False)[row],
        _only_python(trace, threads) & ((row >= 0) | python),
        (row >= 0) | backward[threads.thread],  # between its ops: autograd's engine
    ]
    words = ["data loading", "synchronisation", "runtime", between, "cpu op", "unknown"]
    codes = np.array([kinds.index(word) for word in words], np.int8)
    return np.asarray(codes[np.select(conditions, range(len(conditions)), NONE)])
