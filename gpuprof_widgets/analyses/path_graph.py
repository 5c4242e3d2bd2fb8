"""The graph of the critical path: what had to wait for what, on all threads and streams.

`path_graph` builds it; `followed` walks the path through it, from the end to the beginning.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pandas as pd

from gpuprof_widgets.analyses.host_states import Threads, ran_python, threads_of
from gpuprof_widgets.analyses.path_streams import (
    NEVER,
    GpuWork,
    event_waits,
    gpu_work,
    stream_waits,
)
from gpuprof_widgets.analyses.path_waits import releases, segment_kinds
from gpuprof_widgets.trace import intervals
from gpuprof_widgets.trace.arrays import Codes, Ints, Mask, Rows
from gpuprof_widgets.trace.model import Record, Trace
from gpuprof_widgets.trace.schema import NONE

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
    others). ``releases``: as in `path_waits.releases`, with ``boundary`` (segment that begins then)
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


def path_graph(record: Record, t0: int, t1: int) -> PathGraph:
    """Return the graph of the time range [t0, t1)."""
    trace, label = record.trace, record.metadata.get("label")
    between = PYTHON if ran_python(record) else UNKNOWN
    threads = threads_of(trace, label, t0, t1)
    work = gpu_work(trace, threads)
    table = releases(trace, threads, work)
    threads = _cut(threads, table, work)
    boundary = np.where(
        work.thread >= 0, threads.boundary(np.maximum(work.thread, 0), work.launched), NONE
    )
    starts = threads.boundary(table["thread"], table["time"])
    other = table["other"].to_numpy()
    source = threads.boundary(np.maximum(other, 0), table["time"])
    table = table.assign(boundary=starts, source=np.where(other >= 0, source, NONE))
    delays = _Delays(work, event_waits(trace, work), t0)
    waiting = _waiting(threads, table, boundary)
    kinds = _before_waiting(segment_kinds(trace, threads, between, KINDS), threads, waiting)
    return PathGraph(
        threads, work, kinds, waiting, table, boundary,
        delays.events, *delays.binding(), delays.inferred,
        delays.launch_ns, delays.follow_ns, between,
    )  # fmt: skip


def _cut(threads: Threads, table: pd.DataFrame, work: GpuWork) -> Threads:
    """Return the threads with boundaries wherever a wait begins or ends or a slice is launched."""
    launched = work.thread >= 0
    called = table[table["other"] >= 0]
    columns = [
        (table["thread"], table["since"]),
        (table["thread"], table["time"]),
        (called["other"], called["time"]),
        (work.thread[launched], work.launched[launched]),
    ]
    thread, time = (np.concatenate([np.asarray(c[i], np.int64) for c in columns]) for i in (0, 1))
    return threads.cut(thread, time)


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
    return np.asarray((np.cumsum(change[:-1]) > 0) | _after_last_slice(threads, handovers), bool)


def _before_waiting(kinds: Kinds, threads: Threads, waiting: Mask) -> Kinds:
    """Count the time before a call waits as runtime, because it stages a copy."""
    row = threads.row
    then = np.flatnonzero(waiting[1:] & ~waiting[:-1] & (row[1:] == row[:-1]))
    kinds = kinds.copy()
    kinds[then[kinds[then] == KINDS.index(SYNCHRONISATION)]] = KINDS.index(RUNTIME)
    return kinds


def _after_last_slice(threads: Threads, handovers: Ints) -> Mask:
    """Return which segments lie after the last slice of a thread that has any."""
    place = np.arange(len(threads.start))
    busy = np.array(threads.row >= 0)
    next_segment = handovers[handovers > 0]
    busy[next_segment - 1] |= threads.thread[next_segment - 1] == threads.thread[next_segment]
    last = np.full(len(threads.lane), NONE, np.int64)
    np.maximum.at(last, threads.thread[busy], place[busy])
    return (place > last[threads.thread]) & (last[threads.thread] >= 0)


class _Delays:
    """What bound each GPU slice, and the usual delays that decide it."""

    def __init__(self, work: GpuWork, events: tuple[Ints, Ints], t0: int) -> None:
        self.work, self.events = work, events
        self.free = work.free
        self.launched = np.where(work.thread >= 0, work.launched, NEVER)
        self.after, self.event = np.full(len(work), NEVER), np.full(len(work), NONE)
        self._follow(events)
        known = self.launched != NEVER
        idle = known & (self.free <= self.launched) & (self.after <= self.launched)
        delays = work.start[idle] - self.launched[idle]
        self.launch_ns = _median(delays[delays < LONGEST_DELAY_NS])
        queued = (work.launched != NEVER) & (self.free >= work.launched + self.launch_ns)
        queued &= self.after == NEVER
        self.follow_ns = _median(work.start[queued] - self.free[queued])
        self.inferred = np.zeros(len(work), bool)
        self._infer(t0)

    def _follow(self, events: tuple[Ints, Ints]) -> None:
        """Note the slice of another stream that each waited for: the last to end."""
        order = np.argsort(self.work.end[events[0]], kind="stable")
        self.event[events[1][order]] = events[0][order]
        self.after = np.append(self.work.end, NEVER)[self.event]

    def _infer(self, t0: int) -> None:
        """Add inferred waits; slices with no known cause count as ready from ``t0`` on."""
        waits = stream_waits(self.work, self._ready().max(axis=0, initial=t0))
        self.inferred[waits[1]] = True
        self._follow(waits)
        source, target = (np.concatenate([self.events[i], waits[i]]) for i in (0, 1))
        self.events = source, target

    def _ready(self) -> Ints:
        """Return when an event, the stream and the launch would usually have let each begin.

        The usual delays count: a kernel launched 1 µs before its stream was free still waited for
        the launch.
        """
        return np.stack(
            [
                self.after + self.follow_ns,
                self.free + self.follow_ns,
                self.launched + self.launch_ns,
            ]
        )

    def binding(self) -> tuple[Ints, Ints]:
        """Return what bound each slice, and to which slice: whatever let it begin last."""
        ready = self._ready()
        by = ready.argmax(axis=0) if len(self.work) else np.zeros(0, np.int64)
        by = np.where(ready.max(axis=0, initial=NEVER) < NEVER // 2, BY_NOTHING, by)
        to = np.select([by == BY_EVENT, by == BY_STREAM], [self.event, self.work.previous], NONE)
        return by.astype(np.int64), to.astype(np.int64)


def _median(delays: Ints) -> int:
    return int(np.median(delays)) if len(delays) else 0


@dataclass(frozen=True)
class Path:
    """The segments of a critical path in order of time, as arrays.

    ``start``, ``end`` (ns); ``row``: the innermost slice, of a delay the one that was late, -1 for
    none; ``track``; ``kind``: its place in `KINDS`.
    """

    start: Ints
    end: Ints
    row: Codes
    track: Codes
    kind: Kinds

    def __len__(self) -> int:
        return len(self.start)

    @property
    def dur(self) -> Ints:
        """Duration of each segment, ns."""
        return self.end - self.start

    def at(self, places: Rows) -> Path:
        """Return the segments at these places."""
        return Path(
            self.start[places],
            self.end[places],
            self.row[places],
            self.track[places],
            self.kind[places],
        )

    def is_of(self, *kinds: str) -> Mask:
        """Return which segments have one of these kinds."""
        return np.array([kind in kinds for kind in KINDS])[self.kind]


class _Pieces:
    """The stretches of the path, collected from the end to the beginning.

    Each is a range of segments of a thread, or a single stretch, whose number counts from the last
    segment on.
    """

    def __init__(self, graph: PathGraph, track_of: Codes) -> None:
        self.graph, self.track_of = graph, track_of
        self.ranges: list[tuple[int, int]] = []
        self.singles: list[tuple[int, int, int, int, int]] = []

    def add(self, start: int, end: int, row: int, track: int, kind: str) -> None:
        """Add one stretch, unless it is empty."""
        if end > start:
            number = len(self.graph.segment_kind) + len(self.singles)
            self.ranges.append((number, number + 1))
            self.singles.append((start, end, row, track, KINDS.index(kind)))

    def add_delay(self, start: int, end: int, row: int, track: int, kind: str) -> None:
        """Add the delay before a GPU slice; a very long one has an unknown cause."""
        self.add(start, end, row, track, kind if end - start < LONGEST_DELAY_NS else UNKNOWN)

    def add_idle(self, start: int, gpu: int, kind: str) -> None:
        """Add the delay on its own stream, less the slices that ran there in the meantime."""
        work, track_of, end = self.graph.work, self.track_of, int(self.graph.work.start[gpu])
        overlapping = int(work.running[gpu])
        while overlapping >= 0 and end > start:
            since, row = max(int(work.start[overlapping]), start), int(work.row[overlapping])
            self.add(since, end, row, int(track_of[row]), str(work.kind[overlapping]))
            end, overlapping = since, int(work.running[overlapping])
        row = int(work.row[gpu])
        self.add_delay(start, end, row, int(track_of[row]), kind)

    def add_segments(self, low: int, high: int) -> None:
        """Add the segments of a thread from ``low`` until before ``high``."""
        self.ranges.append((low, high))

    def path(self) -> Path:
        """Return the stretches in order of time."""
        threads = self.graph.threads
        low, high = np.array(self.ranges, np.intp).reshape(-1, 2)[::-1].T
        length = high - low
        number = np.repeat(high - np.cumsum(length), length) + np.arange(length.sum())
        start, end, row, track, kind = np.array(self.singles, np.int64).reshape(-1, 5).T
        return Path(
            np.append(threads.start, start)[number],
            np.append(threads.end, end)[number],
            np.append(threads.row, row)[number].astype(np.int32),
            np.append(threads.track[threads.thread], track)[number].astype(np.int32),
            np.append(self.graph.segment_kind, kind.astype(np.int8))[number],
        )


def followed(trace: Trace, graph: PathGraph) -> Path:
    """Follow the path from the end to the beginning; see `critical_path` for the rules."""
    threads, work = graph.threads, graph.work
    track_of = trace.slices["track"].to_numpy()
    released = graph.releases["boundary"].to_numpy()
    by_boundary = np.argsort(released, kind="stable")
    ordered = released[by_boundary]
    gpu, source = (graph.releases[name].to_numpy() for name in ("gpu", "source"))
    first, pieces = threads.first(), _Pieces(graph, track_of)
    at_gpu, at = _last(graph, pieces)
    until = threads.t1  # a slice that overlaps the one that follows it is left at its start
    while at >= 0:
        if at_gpu:
            row = int(work.row[at])
            track, start = int(track_of[row]), int(work.start[at])
            pieces.add(start, min(int(work.end[at]), until), row, track, str(work.kind[at]))
            until = start
            by, to = int(graph.bound_by[at]), int(graph.bound_to[at])
            if by in (BY_EVENT, BY_STREAM):
                unclear = by == BY_STREAM and work.launched[at] == NEVER
                delay = STREAM_WAIT if graph.inferred[at] else KERNEL_DELAY
                delay = UNKNOWN if unclear else delay
                pieces.add_idle(int(work.end[to]), at, delay)
                at = to
            elif by == BY_LAUNCH:
                at_gpu, at = False, int(graph.boundary[at])
                pieces.add_delay(int(threads.start[at]), start, row, track, LAUNCH_DELAY)
            else:
                known = work.launched[at] != NEVER
                delay = LAUNCH_DELAY if known else UNKNOWN
                pieces.add_delay(threads.t0, start, row, track, delay)
                at = NONE
            continue
        thread = int(threads.thread[at])
        place = int(np.searchsorted(ordered, at, side="right")) - 1
        begin = int(first[thread])
        if place >= 0 and ordered[place] >= begin:
            pieces.add_segments(int(ordered[place]), at)
            release = int(by_boundary[place])
            at_gpu = bool(gpu[release] >= 0)
            at = int(gpu[release] if at_gpu else source[release])
            until = threads.t1
        else:
            pieces.add_segments(begin, at)
            at = NONE
    return pieces.path()


def _last(graph: PathGraph, pieces: _Pieces) -> tuple[bool, int]:
    """Return what ended last, a GPU slice (True) or a boundary of a thread; the rest is unknown."""
    threads, work = graph.threads, graph.work
    last, gpu = NEVER, NONE
    if len(work):
        latest = np.flatnonzero(work.end == work.end.max())
        gpu = int(latest[-1])
        last = int(work.end[gpu])
    busy = np.flatnonzero((threads.row >= 0) & (threads.end > threads.start))
    if len(busy):
        on_main = threads.thread[busy] == threads.main
        best = busy[np.lexsort((on_main, threads.end[busy]))[-1]]
        if threads.end[best] > last:
            is_main = threads.thread[best] == threads.main
            track = int(threads.track[threads.thread[best]])
            kind = graph.between if is_main else UNKNOWN
            pieces.add(int(threads.end[best]), threads.t1, NONE, track, kind)
            return False, int(best) + 1
    pieces.add(last if gpu >= 0 else threads.t0, threads.t1, NONE, NONE, UNKNOWN)
    return gpu >= 0, gpu
