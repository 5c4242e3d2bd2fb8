"""The graph of the critical path gone through anew, forwards, with changed durations."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from gpuprof_widgets.analyses.path_graph import BY_EVENT, BY_LAUNCH, BY_STREAM, PathGraph
from gpuprof_widgets.analyses.path_streams import NEVER
from gpuprof_widgets.trace.schema import NONE

Ints = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]


def replayed(graph: PathGraph, gone: Mask, scale: float) -> Ints:
    """Per change (rows of ``gone``, which slices it scales): how long the range would take."""
    threads, work = graph.threads, graph.work
    own = np.where(graph.waiting, 0, threads.end - threads.start)
    dur = _scaled(work.end - work.start, gone[:, work.row], scale).T
    offsets, at_release = _offsets(graph, _scaled(own, gone[:, threads.row], scale))
    begins = np.zeros((len(work), len(gone)), np.int64)
    ends = np.zeros_like(begins)
    waits = _Waits(graph, gone, scale)
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
            begins[place] = waits.begin(place, begins, ends, offsets)
            ends[place] = begins[place] + dur[place]
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
    """Per GPU slice what it waits for, and for how long after it.

    On its stream that is all that had ended there before it began, and of a slice that it follows
    but overlaps (see `GpuWork.previous`) the part until then.
    """

    def __init__(self, graph: PathGraph, gone: Mask, scale: float) -> None:
        work = graph.work
        self.stream, self.boundary = work.stream.tolist(), graph.boundary.tolist()
        by, after_launch = graph.bound_by, work.start - work.launched
        launch = np.where(by == BY_LAUNCH, after_launch, np.minimum(after_launch, graph.launch_ns))
        gap = work.start - np.append(work.end, 0)[work.before]
        overlaps = work.previous != work.before
        bound = (by == BY_STREAM) & ~overlaps
        follow = np.where(bound, gap, np.minimum(gap, graph.follow_ns))
        self.launch, self.follow = launch.tolist(), follow.tolist()
        self.before = work.before.tolist()
        self.alone = np.where(by < 0, work.start, NONE).tolist()
        self.over = np.full((len(work.names), len(gone)), NEVER)
        """Per stream the end of all that had ended by the time that the replay has come to."""
        self.ended: dict[int, list[int]] = {}
        for source, target in zip(*(side.tolist() for side in work.followers()), strict=True):
            self.ended.setdefault(target, []).append(source)
        cut = np.flatnonzero(overlaps)
        source = work.previous[cut]
        part = _scaled(work.start[cut] - work.start[source], gone[:, work.row[source]], scale)
        self.part = dict(zip(cut.tolist(), zip(source.tolist(), part.T, strict=True), strict=True))
        self.events: dict[int, list[tuple[int, int]]] = {}
        for source, target in zip(*(side.tolist() for side in graph.events), strict=True):
            recorded = int(work.start[target] - work.end[source])
            binds = by[target] == BY_EVENT and graph.bound_to[target] == source
            delay = recorded if binds else min(recorded, graph.follow_ns)
            self.events.setdefault(target, []).append((source, delay))

    def begin(self, place: int, begins: Ints, ends: Ints, offsets: _Offsets) -> Ints:
        """When it would begin."""
        moments = [ends[source] + delay for source, delay in self.events.get(place, ())]
        over = self.over[self.stream[place]]
        for source in self.ended.get(place, ()):
            np.maximum(over, ends[source], out=over)
        if self.before[place] >= 0:
            moments.append(over + self.follow[place])
        if place in self.part:
            source, part = self.part[place]
            moments.append(begins[source] + part)
        if (boundary := self.boundary[place]) >= 0:
            moments.append(offsets.at(boundary) + self.launch[place])
        if not moments:
            return np.full(ends.shape[1], self.alone[place], np.int64)
        latest = moments[0]
        for moment in moments[1:]:
            latest = np.maximum(latest, moment)
        return np.asarray(latest, np.int64)
