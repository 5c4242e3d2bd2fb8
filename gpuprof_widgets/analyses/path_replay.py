"""The graph of the critical path gone through anew, forwards, with changed durations."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from gpuprof_widgets.analyses.path_graph import (
    BY_EVENT,
    BY_LAUNCH,
    BY_NOTHING,
    BY_STREAM,
    PathGraph,
)
from gpuprof_widgets.analyses.path_streams import NEVER
from gpuprof_widgets.analyses.path_threads import Threads
from gpuprof_widgets.trace import intervals
from gpuprof_widgets.trace.schema import NONE

Ints = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]

Arrivals = dict[int, list[tuple[int, Ints]]]
"""Per group of slices those that it waits for, and per change what is added to their ends."""


@dataclass(frozen=True)
class Changes:
    """Which slices each change makes last ``scale`` times as long.

    ``part`` per slice, and last for none: slices of one part change together. ``scaled``: which
    parts each change scales.
    """

    part: npt.NDArray[np.intp]
    scaled: Mask
    scale: float

    def __len__(self) -> int:
        return len(self.scaled)

    def durations(self, dur: Ints, row: Ints) -> Ints:
        """Per change how long stretches of these slices last then."""
        return np.asarray(np.where(self.scaled[:, self.part[row]], self.longer(dur), dur))

    def longer(self, dur: Ints) -> Ints:
        """Durations scaled, in whole ns, so that a scale of 1 is exact."""
        return np.asarray(np.rint(dur * self.scale), np.int64)


def replayed(graph: PathGraph, changes: Changes) -> Ints:
    """Per change how long the range would take."""
    clocks = _Clocks(graph, changes)
    streams = _Streams(graph, changes, clocks)
    releases, last = graph.releases, streams.order[streams.last]
    group = np.append(streams.group[streams.rank], NONE)[releases["gpu"]].tolist()
    source, place = (clocks.place(releases[name].to_numpy()) for name in ("source", "boundary"))
    order = np.lexsort(
        (
            np.append(np.full(len(releases), NONE), last),
            np.append(releases["time"], graph.work.start[last]),
        )
    )
    for item in order.tolist():
        if item >= len(releases):
            streams.go_on(item - len(releases), clocks)
        else:
            of_gpu = group[item] >= 0
            until = streams.ends[group[item]] if of_gpu else clocks.at(source[item])
            clocks.release(item, place[item], until)
    return _span(graph, streams, clocks)


def _span(graph: PathGraph, streams: _Streams, clocks: _Clocks) -> Ints:
    """From the beginning until the last end; what was left after the recorded last end stays."""
    threads, work = graph.threads, graph.work
    moments = [clocks.at(place) for place in clocks.place(_last(threads)).tolist()]
    moments += [streams.ends.max(axis=0)] if len(work) else []
    busy = (threads.row >= 0) & (threads.end > threads.start)
    recorded = max(
        int(threads.end[busy].max(initial=threads.t0)), int(work.end.max(initial=threads.t0))
    )
    if not moments:
        return np.full(len(clocks.spent), threads.t1 - threads.t0)
    return np.asarray(np.max(moments, axis=0) + (threads.t1 - recorded) - threads.t0, np.int64)


class _Clocks:
    """When boundaries of threads would be reached, for each change.

    A thread's own time up to a boundary (``spent``) plus an offset: what its waits have added.
    There is one offset for the beginning of each thread and one for each release. The last of each
    array is for what waits for no thread.
    """

    def __init__(self, graph: PathGraph, changes: Changes) -> None:
        threads, first = graph.threads, graph.threads.first()
        released, source = (graph.releases[name].to_numpy() for name in ("boundary", "source"))
        used = intervals.distinct(first, _last(threads), released, source, graph.boundary)
        self.boundaries = used[used >= 0]
        spent = _spent(graph, changes, self.boundaries)
        spent -= spent[:, self.place(first)[threads.thread[self.boundaries]]]
        self.spent = np.append(spent, np.zeros((len(spent), 1), np.int64), axis=1)
        begins = np.concatenate([first, released])  # releases of one boundary are in order of time
        order = np.argsort(begins, kind="stable")
        slot = np.empty(len(begins), np.int64)
        slot[order] = np.arange(len(begins))
        self.of_release = slot[len(first) :]
        slots = np.searchsorted(begins[order], self.boundaries, side="right") - 1
        self.slot = np.append(slots, NONE)
        self.offset = np.full((len(begins) + 1, len(changes)), threads.t0, np.int64)
        self.offset[NONE] = 0

    def place(self, boundary: Ints) -> Ints:
        """Where in these arrays each boundary is."""
        return np.where(boundary >= 0, np.searchsorted(self.boundaries, boundary), NONE)

    def at(self, place: int) -> Ints:
        """After all waits that ended there or before."""
        return np.asarray(self.spent[:, place] + self.offset[self.slot[place]], np.int64)

    def release(self, release: int, place: int, until: Ints) -> None:
        """Let a thread go on from this place, not before ``until``."""
        slot = self.of_release[release]
        late = until - self.spent[:, place]
        np.maximum(self.offset[slot - 1], late, out=self.offset[slot])


def _last(threads: Threads) -> Ints:
    """Per thread its last boundary."""
    thread = threads.thread
    return np.flatnonzero(np.append(thread[1:] != thread[:-1], True))[: len(threads.lane)]


def _spent(graph: PathGraph, changes: Changes, boundaries: Ints) -> Ints:
    """Per change and boundary the time of its own that threads spent before, one after another."""
    threads = graph.threads
    own = np.where(graph.waiting, 0, threads.end - threads.start)
    part = changes.part[threads.row]
    opens = np.append(True, part[1:] != part[:-1])[: len(part)]
    opens[boundaries] = True
    runs = np.flatnonzero(opens)  # segments of one part between two boundaries count as one
    own, longer = (np.add.reduceat(dur, runs) for dur in (own, changes.longer(own)))
    place, part = np.searchsorted(runs, boundaries), part[runs]
    spent = np.empty((len(changes), len(place)), np.int64)
    for change, scaled in enumerate(changes.scaled):  # a row at a time fits the processor's cache
        dur = np.where(scaled[part], longer, own)
        spent[change] = (np.cumsum(dur) - dur)[place]
    return spent


class _Streams:
    """When slices of streams would end, for each change.

    Where slices follow one another each end is the latest of sums along those before it. Less what
    ``passed`` on the streams so far (all delays and durations), ends are a running maximum: in what
    order their launches count does not matter. So neighbours of which nobody waits for any but the
    last, and whose launches wait for the same release, are one group with one ``least``.

    A slice that overlaps another of its stream is a group of its own, and adds nothing to what
    ``passed``: it follows what had ended when it began, and begins as far into the slice that it
    follows but overlaps (see `GpuWork.previous`) as recorded.
    """

    def __init__(self, graph: PathGraph, changes: Changes, clocks: _Clocks) -> None:
        work = graph.work
        self.order = np.argsort(work.stream, kind="stable")
        self.rank = np.argsort(self.order)
        launch_ns, follow_ns = (delays[self.order] for delays in _delays(graph))
        place = clocks.place(graph.boundary)[self.order]
        overlaps = work.overlaps[self.order]
        opens = self._opens(graph, clocks.slot[place], overlaps)
        self.group, first = np.cumsum(opens) - 1, np.flatnonzero(opens)
        self.last = np.append(first[1:], len(work))[: len(first)] - 1
        self.stream, self.slot = work.stream[self.order][first], clocks.slot[place][first]
        self.overlaps = overlaps[first]

        dur = changes.durations((work.end - work.start)[self.order], work.row[self.order])
        passed = np.cumsum(np.where(overlaps, 0, follow_ns + dur), axis=1)
        rest = dur - passed
        launched = clocks.spent[:, place] + launch_ns + rest
        self.least = np.maximum.reduceat(launched, first, axis=1).T.copy()
        self.passed = passed[:, self.last].T.copy()
        self.behind = np.where(self.overlaps, (follow_ns + dur)[:, first], 0).T.copy()
        self.over = np.full((len(work.names), len(changes)), NEVER)
        """Per stream the end of all that had ended by the time that the replay has come to."""
        self.ends = np.zeros_like(self.least)

        source, target, delay = _events(graph)
        waits = [(source, target, delay + rest[:, self.rank[target]])]
        source, target = work.followers()
        among = overlaps[self.rank[source]]
        source, target = source[among], target[among]
        beside = overlaps[self.rank[target]]
        self.ended = self._arrivals(
            [(source[beside], target[beside], -passed[:, self.rank[target[beside]]])]
        )
        at = self.rank[target[~beside]]
        waits.append((source[~beside], target[~beside], follow_ns[at] + rest[:, at]))
        target = np.flatnonzero(work.previous != work.before)
        source = work.previous[target]
        into = changes.durations(work.start[target] - work.start[source], work.row[source])
        into += rest[:, self.rank[target]] - dur[:, self.rank[source]]
        self.arrivals = self._arrivals([*waits, (source, target, into)])

    def _opens(self, graph: PathGraph, slot: Ints, overlaps: Mask) -> Mask:
        """Which slices begin a group."""
        closes = overlaps.copy()
        gpu = graph.releases["gpu"].to_numpy()
        closes[self.rank[np.append(graph.events[0], gpu[gpu >= 0])]] = True
        stream = graph.work.stream[self.order]
        opens = overlaps.copy()
        opens[:1] = True
        opens[1:] |= closes[:-1] | (stream[1:] != stream[:-1]) | (slot[1:] != slot[:-1])
        return opens

    def _arrivals(self, waits: list[tuple[Ints, Ints, Ints]]) -> Arrivals:
        arrivals: Arrivals = {}
        for source, target, added in waits:
            groups = (self.group[self.rank[places]].tolist() for places in (source, target))
            for of, to, ns in zip(*groups, added.T, strict=True):
                arrivals.setdefault(to, []).append((of, ns))
        return arrivals

    def go_on(self, group: int, clocks: _Clocks) -> None:
        """Let the slices of a group run."""
        over = self.over[self.stream[group]]
        for source, ns in self.ended.get(group, ()):
            np.maximum(over, self.ends[source] + ns, out=over)
        end = np.maximum(
            clocks.offset[self.slot[group]] + self.least[group], over + self.behind[group]
        )
        for source, ns in self.arrivals.get(group, ()):
            np.maximum(end, self.ends[source] + ns, out=end)
        if not self.overlaps[group]:
            over[:] = end
        np.add(end, self.passed[group], out=self.ends[group])


def _delays(graph: PathGraph) -> tuple[Ints, Ints]:
    """Per GPU slice from its launch until it began, and from what its stream had done before.

    What bound it did so with the delay that was recorded, else it is the usual one at most. A slice
    that was launched by nothing known and follows nothing began when it did.
    """
    work, by = graph.work, graph.bound_by
    recorded = work.start - work.launched
    launch = np.where(by == BY_LAUNCH, recorded, np.minimum(recorded, graph.launch_ns))
    unbound = np.where(by == BY_NOTHING, work.start, NEVER)
    gap = work.start - np.append(work.end, 0)[work.before]
    bound = (by == BY_STREAM) & (work.previous == work.before)
    follow = np.where(bound, gap, np.minimum(gap, graph.follow_ns))
    return (
        np.where(graph.boundary >= 0, launch, unbound),
        np.where(work.before >= 0, follow, 0),
    )


def _events(graph: PathGraph) -> tuple[Ints, Ints, Ints]:
    """Pairs of GPU slices, of which the second waits for the first, and the delay between them."""
    work, (source, target) = graph.work, graph.events
    recorded = work.start[target] - work.end[source]
    binds = (graph.bound_by[target] == BY_EVENT) & (graph.bound_to[target] == source)
    return source, target, np.where(binds, recorded, np.minimum(recorded, graph.follow_ns))
