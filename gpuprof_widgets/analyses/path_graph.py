"""The graph of the critical path: what had to wait for what, on all threads and streams.

`path_graph` builds it of the GPU's work (`path_streams`), of what bound each of its slices
(`_bindings`), and of when threads waited: for the GPU, for the backward pass, for their next task
(`releases`).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pandas as pd

from gpuprof_widgets.analyses.host_states import Threads, ran_python, threads_of
from gpuprof_widgets.analyses.operators import are_named_regions
from gpuprof_widgets.analyses.path_streams import (
    NEVER,
    GpuWork,
    calls_by_correlation,
    event_waits,
    gpu_work,
    median,
    stream_numbers,
    stream_waits,
    sync_events,
)
from gpuprof_widgets.analyses.remembered import remembered_for_ranges
from gpuprof_widgets.analyses.waits import is_dataloader, is_synchronising
from gpuprof_widgets.trace import intervals
from gpuprof_widgets.trace.arrays import Ints, Mask, Rows
from gpuprof_widgets.trace.index import take
from gpuprof_widgets.trace.links import itself_or_ancestor, rows_by
from gpuprof_widgets.trace.model import Record, Trace
from gpuprof_widgets.trace.schema import LAUNCH_CATEGORIES, NONE, REGION_CATEGORIES

Kinds = npt.NDArray[np.int8]

PYTHON, RUNTIME, SYNCHRONISATION = "python", "runtime", "synchronisation"
LAUNCH_DELAY, KERNEL_DELAY, UNKNOWN = "launch delay", "kernel-to-kernel delay", "unknown"
STREAM_WAIT = "stream wait (inferred)"
KINDS = (
    *(PYTHON, "cpu op", RUNTIME, "data loading", SYNCHRONISATION),
    *("compute", "communication", "copy", "memset"),
    *(LAUNCH_DELAY, KERNEL_DELAY, STREAM_WAIT, UNKNOWN),
)
"""What a stretch of the path was spent on: CPU, GPU, or delays between them."""

LONGEST_DELAY_NS = 1_500_000
"""Longer delays had a cause that is not in the trace (HTA: 1500 us between kernels)."""

BY_NOTHING, BY_EVENT, BY_STREAM, BY_LAUNCH = -1, 0, 1, 2
"""What a GPU slice waited for last: nothing known, another stream, its own stream, its launch."""


@dataclass(frozen=True)
class PathGraph:
    """Threads, GPU slices, and the dependencies between them.

    Per segment: ``segment_kind`` (its place in `KINDS`), ``waiting`` (its thread waited for
    others). ``releases``: as in `releases`, with ``boundary`` (segment that begins then)
    and ``source`` (segment of the other thread that begins then, -1). Per GPU slice: ``boundary``
    (segment that begins with its launch, -1), ``bound_by``, ``bound_to`` (the slice that it waited
    for), ``inferred`` (by `stream_waits`, no event tells); ``events``: pairs of slices.
    ``launch_ns``, ``follow_ns``: the usual delay between a launch and its slice on an idle stream,
    and between a slice and the one queued behind it. ``between``: what the thread of the run did
    between its ops, "python" or "unknown".
    """

    threads: Threads
    work: GpuWork
    segment_kind: Kinds
    waiting: Mask
    releases: pd.DataFrame
    boundary: Ints
    events: tuple[Ints, Ints]
    bound_by: Ints
    bound_to: Ints
    inferred: Mask
    launch_ns: int
    follow_ns: int
    between: str


@remembered_for_ranges
def path_graph(record: Record, t0: int, t1: int) -> PathGraph:
    """Return the graph of the time range [t0, t1)."""
    trace, label = record.trace, record.metadata.get("label")
    between = PYTHON if ran_python(record) else UNKNOWN
    threads = threads_of(trace, label, t0, t1)
    work = gpu_work(trace, threads)
    table = releases(trace, threads, work)
    launched, called = work.thread >= 0, table[table["other"] >= 0]
    cuts = [  # wherever a wait begins or ends, or a slice is launched
        (table["thread"], table["since"]),
        (table["thread"], table["time"]),
        (called["other"], called["time"]),
        (work.thread[launched], work.launched[launched]),
    ]
    threads = threads.cut(*(np.concatenate(column) for column in zip(*cuts, strict=True)))
    boundary = np.full(len(work), NONE, np.int64)
    boundary[launched] = threads.boundary(work.thread[launched], work.launched[launched])
    table = table.assign(boundary=threads.boundary(table["thread"], table["time"]), source=NONE)
    table.loc[called.index, "source"] = threads.boundary(called["other"], called["time"])
    waiting = _waiting(threads, table, boundary)
    kinds = _segment_kinds(trace, threads, between)
    stages = waiting[1:] & ~waiting[:-1] & (threads.row[1:] == threads.row[:-1])
    stages &= kinds[:-1] == KINDS.index(SYNCHRONISATION)
    kinds[:-1][stages] = KINDS.index(RUNTIME)  # the time before a call waits: it stages a copy
    bindings = _bindings(work, event_waits(trace, work), t0)
    return PathGraph(threads, work, kinds, waiting, table, boundary, *bindings, between)


def _waiting(threads: Threads, table: pd.DataFrame, boundary: Ints) -> Mask:
    """Return which segments lie within a wait, or after a thread's last slice.

    A thread that launches or hands over work in the meantime only waits after that.
    """
    handovers = intervals.distinct(boundary, table["source"])
    since = threads.boundary(table["thread"], table["since"])
    end = table["boundary"].to_numpy()
    latest = np.append(NONE, handovers)[np.searchsorted(handovers, end, side="left")]
    change = np.zeros(len(threads.start) + 1, np.int64)
    np.add.at(change, np.maximum(since, latest), 1)
    np.add.at(change, end, -1)
    place, busy = np.arange(len(threads.start)), np.array(threads.row >= 0)
    then = handovers[handovers > 0]
    busy[then - 1] |= threads.thread[then - 1] == threads.thread[then]
    last = np.full(len(threads.lane), NONE, np.int64)  # of the threads that have any slice
    np.maximum.at(last, threads.thread[busy], place[busy])
    is_over = (place > last[threads.thread]) & (last[threads.thread] >= 0)
    return np.asarray((np.cumsum(change[:-1]) > 0) | is_over, bool)


def _bindings(
    work: GpuWork, events: tuple[Ints, Ints], t0: int
) -> tuple[tuple[Ints, Ints], Ints, Ints, Mask, int, int]:
    """Return what bound each GPU slice: ``events`` to ``follow_ns`` of `PathGraph`.

    Slices with no known cause count as ready from ``t0`` on.
    """
    launched = np.where(work.thread >= 0, work.launched, NEVER)
    event = _awaited(work, events)
    after = take(work.end, event, NEVER)
    idle = (launched != NEVER) & (work.free <= launched) & (after <= launched)
    delays = work.start[idle] - launched[idle]
    launch_ns = median(delays[delays < LONGEST_DELAY_NS])
    queued = (work.launched != NEVER) & (work.free >= work.launched + launch_ns)
    queued &= after == NEVER
    follow_ns = median(work.start[queued] - work.free[queued])
    # The usual delays count: a kernel launched 1 µs before its stream was free still waited for
    # the launch.
    ready = np.stack([after + follow_ns, work.free + follow_ns, launched + launch_ns])
    waits = stream_waits(work, ready.max(axis=0, initial=t0))
    inferred = np.zeros(len(work), bool)
    inferred[waits[1]] = True
    events = np.append(events[0], waits[0]), np.append(events[1], waits[1])
    event = _awaited(work, events)
    ready[BY_EVENT] = take(work.end, event, NEVER) + follow_ns
    by = ready.argmax(axis=0) if len(work) else np.zeros(0, np.int64)
    by = np.where(ready.max(axis=0, initial=NEVER) < NEVER // 2, BY_NOTHING, by)
    to = np.select([by == BY_EVENT, by == BY_STREAM], [event, work.previous], NONE)
    return events, by.astype(np.int64), to.astype(np.int64), inferred, launch_ns, follow_ns


def _awaited(work: GpuWork, events: tuple[Ints, Ints]) -> Ints:
    """Return the slice of another stream that each waited for, the last to end; -1 for none."""
    order = np.argsort(work.end[events[0]], kind="stable")
    awaited = np.full(len(work), NONE)
    awaited[events[1][order]] = events[0][order]
    return awaited


RETURNED, CALLED_BACK, STARTED = 0, 1, 2
"""Why a thread went on: the GPU was done, another thread was done, it got work to do.

Releases at the same time take effect in this order.
"""

RELEASE_COLUMNS = ("thread", "since", "time", "gpu", "other", "why")


def releases(trace: Trace, threads: Threads, work: GpuWork) -> pd.DataFrame:
    """Return one row per moment at which a thread went on after it had waited.

    Columns: ``thread``, ``since`` (it waited from then on), ``time``, ``gpu`` (position in ``work``
    of what it waited for, -1), ``other`` (the thread that it waited for, -1), ``why``.
    """
    tables = [_synchronised(trace, threads, work), *_handed_over(trace, threads)]
    table = pd.concat(tables, ignore_index=True)[list(RELEASE_COLUMNS)].astype(np.int64)
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
    lanes = trace.tracks["lane"].to_numpy()[trace.index.track]
    rows = np.flatnonzero(is_synchronising(trace) & np.isin(lanes, threads.lane))
    rows = rows[(ended[rows] > threads.t0) & (began[rows] < threads.t1)]
    stream, exact = _awaited_streams(trace, work, rows)
    gpu = np.full(len(rows), NONE, np.int64)
    on_stream, every = rows_by(work.stream), np.arange(len(work))
    for number, calls in rows_by(stream).items():
        among = on_stream.get(number, every[:0]) if number >= 0 else every
        among = among[np.argsort(work.ended[among], kind="stable")]
        at = np.searchsorted(work.ended[among], ended[rows[calls]], side="right") - 1
        gpu[calls] = take(among, at)
    gpu = np.where(exact >= 0, exact, gpu)
    end = take(work.ended, gpu, threads.t0)
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
    last[known] = work.launched_next(number[known], recorded[known].astype(np.int64), offset=-1)
    by_call = pd.DataFrame({"stream": number, "exact": last}, syncs["correlation"].to_numpy())
    by_call = by_call[~by_call.index.duplicated()]
    awaited = by_call.reindex(trace.index.column("correlation")[rows]).fillna(NONE)
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
    forward = trace.index.column("forward")
    lanes = trace.tracks["lane"].to_numpy()[trace.index.track]
    backward = np.flatnonzero((forward >= 0) & np.isin(lanes, threads.lane))
    backward = backward[np.isin(lanes[forward[backward]], threads.lane)]
    at = np.searchsorted(threads.lane, lanes[backward])
    home = np.searchsorted(threads.lane, lanes[forward[backward]])
    caller = np.full(len(threads.lane), threads.main, np.int64)
    is_backward = np.zeros(len(threads.lane), bool)
    for thread, rows in rows_by(at).items():
        caller[thread] = np.bincount(home[rows]).argmax()
        is_backward[thread] = caller[thread] != thread and thread != threads.main
    caller[is_backward & take(is_backward, caller, False)] = threads.main
    here = np.arange(len(caller))
    caller[(caller == here) | (here == threads.main)] = NONE
    return caller, is_backward


def _only_python(trace: Trace, threads: Threads) -> Mask:
    """Return which segments are neither op nor call: Python, or a region of it."""
    python = trace.index.in_category("user_annotation", "python_function", *REGION_CATEGORIES)
    return take(python & ~are_named_regions(trace), threads.row, True)


def _segment_kinds(trace: Trace, threads: Threads, between: str) -> Kinds:
    """Return the kind of each segment by its innermost slice: its place in `KINDS`.

    ``between``: the kind of segments that are neither op nor call.
    """
    loading = itself_or_ancestor(trace.index.parent, is_dataloader(trace)) >= 0
    _, backward = _callers(trace, threads)
    row, on_main = threads.row, threads.thread == threads.main
    conditions = {  # the first that holds
        "data loading": take(loading, row, False),
        SYNCHRONISATION: take(is_synchronising(trace), row, False),
        RUNTIME: take(trace.index.in_category(*LAUNCH_CATEGORIES), row, False),
        between: _only_python(trace, threads) & ((row >= 0) | on_main),
        "cpu op": (row >= 0) | backward[threads.thread],  # between its ops: autograd's engine
    }
    codes = [KINDS.index(word) for word in conditions]
    kinds = np.select([*conditions.values()], codes, KINDS.index(UNKNOWN))
    return kinds.astype(np.int8)
