"""The replay of many slices at a time against one that takes them one by one, as its rules say."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import numpy.typing as npt
import pandas as pd
from hypothesis import given
from hypothesis import strategies as st

from gpuprof_widgets.analyses.path_graph import (
    BY_EVENT,
    BY_LAUNCH,
    BY_STREAM,
    PathGraph,
    path_graph,
)
from gpuprof_widgets.analyses.what_if import Changes, replayed
from gpuprof_widgets.trace.model import Record
from tests.records import records
from tests.test_overlapping_kernels import replays
from tests.traces import op, trace_of

SCALES = st.sampled_from([0.0, 0.5, 1.0, 2.7])


class OneByOne:
    """The replay of a graph with the durations of some slices changed."""

    def __init__(self, graph: PathGraph, changed: npt.NDArray[np.bool_], scale: float) -> None:
        self.graph, self.changed, self.scale = graph, changed, scale
        self.begins: dict[int, int] = {}
        self.ends: dict[int, int] = {}
        self.released: dict[int, int] = {}

    def dur(self, ns: int, row: int) -> int:
        return round(ns * self.scale) if self.changed[row] else int(ns)

    def reached(self, boundary: int) -> int:
        """When a thread comes to a boundary: after the last release so far, what it has to do."""
        threads = self.graph.threads
        boundaries = self.graph.releases["boundary"].to_numpy()
        first = int(threads.first()[threads.thread[boundary]])
        before = [at for at in self.released if first <= boundaries[at] <= boundary]
        begin, now = first, threads.t0
        if before:
            last = max(before, key=lambda release: (boundaries[release], release))
            begin, now = int(boundaries[last]), self.released[last]
        return now + self.spent(begin, boundary)

    def spent(self, low: int, high: int) -> int:
        threads = self.graph.threads
        return sum(
            self.dur(threads.end[at] - threads.start[at], threads.row[at])
            for at in range(low, high)
            if not self.graph.waiting[at]
        )

    def begin(self, place: int) -> int:
        """When a GPU slice begins: when its launch, its stream and all events have let it."""
        graph, work, by = self.graph, self.graph.work, self.graph.bound_by[place]
        start, moments = int(work.start[place]), []
        if (boundary := int(graph.boundary[place])) >= 0:
            delay = start - int(work.launched[place])
            delay = delay if by == BY_LAUNCH else min(delay, graph.launch_ns)
            moments.append(self.reached(boundary) + delay)
        stream = work.stream == work.stream[place]
        if ended := np.flatnonzero(stream & (work.end <= start)).tolist():
            overlaps = work.previous[place] != work.before[place]
            gap = start - int(work.end[work.before[place]])
            gap = gap if by == BY_STREAM and not overlaps else min(gap, graph.follow_ns)
            moments.append(max(self.ends[other] for other in ended) + gap)
        if (cut := int(work.previous[place])) != work.before[place]:
            part = self.dur(start - work.start[cut], work.row[cut])
            moments.append(self.begins[cut] + part)
        for source, target in zip(*(side.tolist() for side in graph.events), strict=True):
            if target == place:
                delay = start - int(work.end[source])
                binds = by == BY_EVENT and graph.bound_to[place] == source
                delay = delay if binds else min(delay, graph.follow_ns)
                moments.append(self.ends[source] + delay)
        return max(moments, default=start)

    def span(self) -> int:
        graph, threads, work = self.graph, self.graph.threads, self.graph.work
        releases = graph.releases[["time", "gpu", "source", "boundary"]].to_numpy().tolist()
        items = [(time, 0, at) for at, (time, *_) in enumerate(releases)]
        items += [(start, 1, at) for at, start in enumerate(work.start.tolist())]
        for _, is_slice, at in sorted(items):
            if is_slice:
                self.begins[at] = self.begin(at)
                dur = self.dur(work.end[at] - work.start[at], work.row[at])
                self.ends[at] = self.begins[at] + dur
            else:
                _, gpu, source, boundary = releases[at]
                until = self.ends[gpu] if gpu >= 0 else self.reached(source)
                self.released[at] = max(self.reached(boundary), until)
        last = [at for at, end in enumerate(np.diff(threads.thread, append=-1)) if end]
        busy = (threads.row >= 0) & (threads.end > threads.start)
        recorded = [threads.t0, *threads.end[busy].tolist(), *work.end.tolist()]
        moments = [*map(self.reached, last), *self.ends.values()]
        return max(moments, default=max(recorded)) + threads.t1 - max(recorded) - threads.t0


@given(st.one_of(records(), replays()), st.integers(0, 2**32), SCALES)
def test_slices_replayed_in_groups_end_when_they_do_one_by_one(
    record: Record, chosen: int, scale: float
) -> None:
    """Whichever slices are changed."""
    trace = record.trace
    graph = path_graph(record, trace.start_ns, trace.end_ns)
    changed = np.array([chosen >> row % 32 & 1 for row in range(len(trace))] + [0], bool)
    changes = Changes(changed.astype(np.intp), np.array([[False, True]]), scale)
    assert replayed(graph, changes).tolist() == [OneByOne(graph, changed, scale).span()]


def test_a_wait_that_has_not_ended_yet_leaves_the_thread_where_the_one_before_did() -> None:
    """Both threads let each other go on at 7 ns; that of the ops has waited before."""
    line = {"category": "cell_line", "thread": "101", "line": 1, "cell": "Cell [1]"}
    record = trace_of(
        op("aten::mm", ts=1, dur=1),
        op("aten::mm", ts=7, dur=1),
        op("1: f()", ts=1, dur=6, **line),
        op("1: f()", ts=7, dur=2, **line),
        op("1: f()", ts=0, dur=0, **line),
    )
    graph = path_graph(record, 0, 9)
    last = graph.releases.iloc[[-1]]
    assert last["time"].tolist() == [7]
    back = last.assign(boundary=last["source"], source=last["boundary"])
    both = pd.concat([graph.releases.iloc[:-1], back, last], ignore_index=True)
    graph = replace(graph, releases=both)
    mask = np.append(record.trace.slices["dur"] == 6, False)
    changes = Changes(mask.astype(np.intp), np.array([[False, True]]), 0.0)
    # The ops wait until 1 and take 1; then the line's last 2 begin, and nothing waits for it.
    assert replayed(graph, changes).tolist() == [OneByOne(graph, mask, 0.0).span()] == [4]
