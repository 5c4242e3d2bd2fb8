"""The critical path followed through its graph, from the end to the beginning."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from gpuprof_widgets.analyses.path_graph import (
    BY_EVENT,
    BY_LAUNCH,
    BY_STREAM,
    KERNEL_DELAY,
    LAUNCH_DELAY,
    LONGEST_DELAY_NS,
    STREAM_WAIT,
    UNKNOWN,
    PathGraph,
)
from gpuprof_widgets.analyses.path_streams import NEVER
from gpuprof_widgets.trace.model import Trace
from gpuprof_widgets.trace.schema import NONE

Ints = npt.NDArray[np.int64]


@dataclass
class Pieces:
    """The path as it is followed, backwards."""

    start: list[Ints]
    end: list[Ints]
    row: list[Ints]
    track: list[Ints]
    kind: list[npt.NDArray[np.object_]]

    def add(self, start: int, end: int, row: int, track: int, kind: str) -> None:
        """One stretch."""
        if end > start:
            numbers = (start, end, row, track)
            for column, value in zip(
                (self.start, self.end, self.row, self.track), numbers, strict=True
            ):
                column.append(np.array([value], np.int64))
            self.kind.append(np.array([kind], object))

    def add_delay(self, start: int, end: int, row: int, track: int, kind: str) -> None:
        """From what a GPU slice waited for until it began: so long that there was more, or not."""
        self.add(start, end, row, track, kind if end - start < LONGEST_DELAY_NS else UNKNOWN)

    def add_idle(self, start: int, gpu: int, graph: PathGraph, track_of: Ints, kind: str) -> None:
        """The same on its stream: no delay while that ran another slice, beside the two."""
        work, end = graph.work, int(graph.work.start[gpu])
        beside = int(work.running[gpu])
        while beside >= 0 and end > start:
            since, row = max(int(work.start[beside]), start), int(work.row[beside])
            self.add(since, end, row, int(track_of[row]), str(work.kind[beside]))
            end, beside = since, int(work.running[beside])
        row = int(work.row[gpu])
        self.add_delay(start, end, row, int(track_of[row]), kind)

    def add_segments(self, graph: PathGraph, low: int, high: int) -> None:
        """A thread's segments from ``low`` until before ``high``."""
        threads, part = graph.threads, slice(low, high)
        self.start.append(threads.start[part][::-1])
        self.end.append(threads.end[part][::-1])
        self.row.append(threads.row[part][::-1])
        self.track.append(threads.track[threads.thread[part]][::-1])
        self.kind.append(graph.segment_kind[part][::-1])


def followed(trace: Trace, graph: PathGraph) -> Pieces:
    """The path from the end to the beginning; see `critical_path` for what waits for what."""
    threads, work = graph.threads, graph.work
    track_of = trace.slices["track"].to_numpy()
    released = graph.releases["boundary"].to_numpy()
    by_boundary = np.argsort(released, kind="stable")
    ordered = released[by_boundary]
    gpu, source = (graph.releases[name].to_numpy() for name in ("gpu", "source"))
    first, pieces = threads.first(), Pieces([], [], [], [], [])
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
                pieces.add_idle(int(work.end[to]), at, graph, track_of, delay)
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
            pieces.add_segments(graph, int(ordered[place]), at)
            release = int(by_boundary[place])
            at_gpu = bool(gpu[release] >= 0)
            at = int(gpu[release] if at_gpu else source[release])
            until = threads.t1
        else:
            pieces.add_segments(graph, begin, at)
            at = NONE
    return pieces


def _last(graph: PathGraph, pieces: Pieces) -> tuple[bool, int]:
    """What ended last: a GPU slice (True) or a boundary of a thread; what is left is unknown."""
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
