"""The graph of the critical path gone through anew, forwards, with changed durations."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from gpuprof_widgets.analyses.path_graph import BY_EVENT, BY_LAUNCH, BY_STREAM, PathGraph
from gpuprof_widgets.trace.schema import NONE

Ints = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]


def replayed(graph: PathGraph, gone: Mask, scale: float) -> Ints:
    """Per change (rows of ``gone``, which slices it scales): how long the range would take."""
    threads, work = graph.threads, graph.work
    own = np.where(graph.waiting, 0, threads.end - threads.start)
    dur = _scaled(work.end - work.start, gone[:, work.row], scale).T
    offsets, at_release = _offsets(graph, _scaled(own, gone[:, threads.row], scale))
    ends = np.zeros((len(work), len(gone)), np.int64)
    waits = _Waits(graph)
    released = graph.releases[["gpu", "source", "boundary"]].to_numpy()
    order = np.lexsort(
        (
            np.append(np.zeros(len(released)), np.ones(len(work))),
            np.append(graph.releases["time"], work.start),
        )
    )
    for item in order.tolist():
        if item < len(released):
            gpu, source, boundary = released[item].tolist()
            until = ends[gpu] if gpu >= 0 else offsets.at(source)
            before = offsets.offset[at_release[item, 0]]
            late = np.maximum(before, until - offsets.spent[:, boundary])
            offsets.offset[at_release[item, 1]] = late
        else:
            place = item - len(released)
            ends[place] = waits.begin(place, ends, offsets) + dur[place]
    return _span(graph, ends, offsets)


def _scaled(dur: Ints, gone: Mask, scale: float) -> Ints:
    """Per change and duration: how long it lasts then; whole ns, so that a scale of 1 is exact."""
    return np.where(gone, np.rint(dur * scale).astype(np.int64), dur)


@dataclass
class _Offsets:
    """When boundaries of threads would be reached, for each change.

    A thread's own time up to a boundary (``spent``) plus an offset: what its waits have added.
    There is one offset for the beginning of each thread and one for each release.
    """

    spent: Ints
    offset: Ints
    place: Ints

    def at(self, boundary: int) -> Ints:
        """After all waits that ended there or before."""
        return np.asarray(self.spent[:, boundary] + self.offset[self.place[boundary]], np.int64)


def _span(graph: PathGraph, ends: Ints, offsets: _Offsets) -> Ints:
    """From the beginning until the last end; what was left after the recorded last end stays."""
    threads, work = graph.threads, graph.work
    last = np.flatnonzero(np.append(threads.thread[1:] != threads.thread[:-1], True))
    moments = [offsets.at(int(boundary)) for boundary in last[: len(threads.lane)]]
    moments += [ends.max(axis=0)] if len(work) else []
    busy = (threads.row >= 0) & (threads.end > threads.start)
    recorded = max(
        int(threads.end[busy].max(initial=threads.t0)), int(work.end.max(initial=threads.t0))
    )
    if not moments:
        return np.full(ends.shape[1], threads.t1 - threads.t0)
    return np.asarray(np.max(moments, axis=0) + (threads.t1 - recorded) - threads.t0, np.int64)


def _offsets(graph: PathGraph, own: Ints) -> tuple[_Offsets, Ints]:
    """The offsets before anything was replayed, and per release the one before it and its own."""
    threads = graph.threads
    spent = np.cumsum(own, axis=1) - own
    first = threads.first()
    spent = spent - spent[:, first][:, threads.thread]
    boundary = graph.releases["boundary"].to_numpy()
    begins = np.concatenate([first, boundary])  # releases are in order of time within a boundary
    order = np.lexsort((np.arange(len(begins)), begins))
    slot = np.empty(len(begins), np.int64)
    slot[order] = np.arange(len(begins))
    place = np.searchsorted(begins[order], np.arange(len(threads.start)), side="right") - 1
    offset = np.full((len(begins), len(own)), threads.t0, np.int64)
    own_slot = slot[len(first) :]
    return _Offsets(spent, offset, place), np.stack([own_slot - 1, own_slot], axis=1)


class _Waits:
    """Per GPU slice what it waits for, and for how long after it."""

    def __init__(self, graph: PathGraph) -> None:
        work = graph.work
        self.t0 = graph.threads.t0
        self.boundary = graph.boundary.tolist()
        self.previous = graph.previous.tolist()
        by, after_launch = graph.bound_by, work.start - work.launched
        launch = np.where(by == BY_LAUNCH, after_launch, np.minimum(after_launch, graph.launch_ns))
        gap = work.start - work.end[graph.previous] if len(work) else work.start
        follow = np.where(by == BY_STREAM, gap, np.minimum(gap, graph.follow_ns))
        self.launch, self.follow = launch.tolist(), follow.tolist()
        self.alone = np.where(by < 0, work.start, NONE).tolist()
        self.events: dict[int, list[tuple[int, int]]] = {}
        for source, target in zip(*(side.tolist() for side in graph.events), strict=True):
            recorded = int(work.start[target] - work.end[source])
            bound = by[target] == BY_EVENT and graph.bound_to[target] == source
            delay = recorded if bound else min(recorded, graph.follow_ns)
            self.events.setdefault(target, []).append((source, delay))

    def begin(self, place: int, ends: Ints, offsets: _Offsets) -> Ints:
        """When it would begin."""
        moments = [ends[source] + delay for source, delay in self.events.get(place, ())]
        if (previous := self.previous[place]) >= 0:
            moments.append(ends[previous] + self.follow[place])
        if (boundary := self.boundary[place]) >= 0:
            moments.append(offsets.at(boundary) + self.launch[place])
        if not moments:
            return np.full(ends.shape[1], self.alone[place], np.int64)
        latest = moments[0]
        for moment in moments[1:]:
            latest = np.maximum(latest, moment)
        return np.asarray(latest, np.int64)
