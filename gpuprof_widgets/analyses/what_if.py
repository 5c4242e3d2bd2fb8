"""What would be saved if an op or a kernel took less time, and everything else stayed as it was.

`what_if` changes durations and replays the graph of the critical path with them, forwards
(`replayed`): `_Clocks` for the threads, `_Streams` for the GPU.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from difflib import get_close_matches

import numpy as np
import numpy.typing as npt
import pandas as pd

from gpuprof_widgets.analyses.columns import group_sums
from gpuprof_widgets.analyses.critical_path import (
    ON_GPU,
    Path,
    Region,
    are_delays,
    critical_path,
    op_around,
    path_between,
    path_range,
    whole_path,
)
from gpuprof_widgets.analyses.host_states import Threads
from gpuprof_widgets.analyses.path_graph import (
    BY_EVENT,
    BY_LAUNCH,
    BY_NOTHING,
    BY_STREAM,
    PathGraph,
    path_graph,
)
from gpuprof_widgets.analyses.path_streams import NEVER
from gpuprof_widgets.analyses.reasons import empty_table, why_empty
from gpuprof_widgets.analyses.remembered import remembered
from gpuprof_widgets.exceptions import OptionError
from gpuprof_widgets.trace import intervals
from gpuprof_widgets.trace.arrays import Ints, Mask, Rows
from gpuprof_widgets.trace.index import take
from gpuprof_widgets.trace.links import path_sum, places_in
from gpuprof_widgets.trace.model import Record, Trace
from gpuprof_widgets.trace.schema import NONE

COLUMNS = (
    *("name", "what", "scale", "calls", "time_ns", "path_ns"),
    *("span_ns", "new_span_ns", "saved_ns", "saved_share"),
)
LARGEST_SCALE = 1_000
"""Times of a trace of days, scaled by this, still fit into 64 bits."""
CANDIDATES = 8
"""Names of each kind that `what_ifs` tries; further ones would rarely save anything."""


def what_if(
    record: Record, name: str, *, scale: float = 0.0, step: int | None = None, region: Region = None
) -> pd.DataFrame:
    """How long the run would take if ``name`` took ``scale`` times as long: one row.

    The graph of `critical_path` is replayed forwards with the changed durations. A scale of 1 gives
    exactly the recorded span, and a larger scale never a shorter one. Not modelled are other
    effects of a faster op (a full launch queue, clocks, cache, contention of streams for the GPU).

    Rule:

    - A thread's own time (of its ops, calls, Python) lasts as long as recorded, times the scale if
      it belongs to the changed slices; a wait lasts until its cause has ended.
    - A GPU slice begins when its launch, the slices that ended before it on its stream and the
      events it waits for allow it. The cause that bound it has the recorded delay. The others have
      the usual delay of their kind in this trace (a median), or the recorded one if shorter. A
      slice that overlaps the one that it follows begins as far into that as recorded.
    - The delay between the end of GPU work and the return of the call that waits for it stays.

    Options:

    - ``name``: name of an op, a kernel or a Python function.
    - ``scale``: factor for its time; 0: it costs nothing.
    - ``step``, ``region``: the range, as in `critical_path`.

    Columns:

    - ``name``: as given.
    - ``what``: "op" or Python "function", each with all that runs in it and all GPU work launched
      in it; or "kernel", GPU work of that name alone.
    - ``scale``: as given.
    - ``calls``: number of its calls in the range.
    - ``time_ns``: its CPU and GPU time in the range.
    - ``path_ns``: of that, on the critical path.
    - ``span_ns``, ``new_span_ns``: length of the range as recorded, and with the change.
    - ``saved_ns``: the difference.
    - ``saved_share``: ``saved_ns`` / ``span_ns``.

    Source: defined here, on the graph of `critical_path`.
    """
    if not 0 <= scale <= LARGEST_SCALE:
        raise OptionError(f"a scale is 0 (no time at all) to {LARGEST_SCALE:,}, not {scale}")
    t0, t1 = path_range(record, step, region)
    if not _Named(record.trace, [name]).is_any.all():
        known = record.trace.index.names
        # The name of a recorded frame begins with its file: a function is in it, not near it.
        inside = (text for text in known if name and name in text)
        near = get_close_matches(name, known, 1) or [*inside]
        hint = f"; did you mean {near[0]!r}?" if near else ""
        raise OptionError(
            f"no op, kernel or Python function of this trace is called {name!r}{hint}; "
            "what_ifs() names those that would save most"
        )
    path = path_between(record, t0, t1)
    if not len(path) and t1 > t0:
        return empty_table(COLUMNS, why_empty(critical_path(record, region=(t0, t1))))
    return _table(record, path, (t0, t1), [name], scale)


def saved_without_ns(record: Record, rows: Rows) -> int | None:
    """Return by how much the run would be shorter if these slices cost nothing, in ns.

    By the rules of `what_if`; None where the record has no critical path, or does not tell for
    what most GPU work had waited, which would begin no earlier in the replay.
    """
    trace = record.trace
    if not len(whole_path(record)):
        return None
    graph = path_graph(record, trace.start_ns, trace.end_ns)
    if 2 * int((graph.bound_by == BY_NOTHING).sum()) > len(graph.work):
        return None
    part = np.zeros(len(trace) + 1, np.intp)
    part[rows] = 1
    (new_ns,) = replayed(graph, Changes(part, np.array([[False, True]]), 0.0))
    return trace.span_ns - int(new_ns)


def what_ifs(record: Record, *, step: int | None = None, region: Region = None) -> pd.DataFrame:
    """What each of the likeliest ops and kernels would save if it cost nothing, the most first.

    It tries the eight ops, the eight ops called by Python and the eight kernels or copies that take
    most of the critical path. The rule is that of `what_if`, with ``scale`` 0.

    Options:

    - ``step``, ``region``: the range, as in `critical_path`.

    Columns:

    - ``name``, ``what``: see `what_if`.
    - ``scale``: 0.
    - ``calls``: number of its calls in the range.
    - ``time_ns``, ``path_ns``: its CPU and GPU time in the range, and how much of that is on the
      critical path.
    - ``span_ns``, ``new_span_ns``: length of the range as recorded, and without it.
    - ``saved_ns``: the difference.
    - ``saved_share``: ``saved_ns`` / ``span_ns``.

    Source: defined here, on the graph of `critical_path`.
    """
    t0, t1 = path_range(record, step, region)
    return _ranked(record, t0, t1)


@remembered
def _ranked(record: Record, t0: int, t1: int) -> pd.DataFrame:
    path = path_between(record, t0, t1)
    if not len(path):
        return empty_table(COLUMNS, why_empty(critical_path(record, region=(t0, t1))))
    names = _candidates(record.trace, path)
    if not names:
        return empty_table(COLUMNS, "no op and no kernel is on the critical path")
    table = _table(record, path, (t0, t1), names, 0.0)
    by_saving = table.sort_values(["saved_ns", "path_ns"], ascending=False, kind="stable")
    return by_saving.reset_index(drop=True)


def _candidates(trace: Trace, path: Path) -> list[str]:
    """Return the names with most time on the path: innermost ops, outermost ops, GPU work."""
    row, op = path.row, take(op_around(trace), path.row)
    gpu = take(trace.index.is_gpu, row, False) & path.is_of(*ON_GPU)
    chosen: list[str] = []
    for rows in (op, take(trace.index.outermost_op, op), np.where(gpu, row, NONE)):
        name = take(trace.index.name, rows)
        time = group_sums(name, path.dur, len(trace.index.names) + 1)
        by_name = pd.Series(time[:-1], trace.index.names, dtype=np.int64).drop("", errors="ignore")
        chosen += by_name[by_name > 0].sort_index().nlargest(CANDIDATES).index.tolist()
    return list(dict.fromkeys(chosen))


class _Named:
    """The slices that have one of these names.

    ``of``: per slice the index of its name, -1 for none. A name that occurs on a GPU (``on_gpu``,
    per name) means only its slices there, else those on threads; ``on_cpu``: some of these are no
    Python frames.
    """

    def __init__(self, trace: Trace, names: Sequence[str]) -> None:
        place = {name: at for at, name in enumerate(names)}
        places = np.array([place.get(name, NONE) for name in trace.index.names], np.int64)
        of, threads = places[trace.index.name], trace.index.on_tracks("cpu", "python")
        self.on_gpu, self.on_cpu, on_threads = (
            np.bincount(of[chosen & (of >= 0)], minlength=len(names)) > 0
            for chosen in (trace.index.is_gpu, trace.index.on_tracks("cpu"), threads)
        )
        meant = np.where(take(self.on_gpu, of, False), trace.index.is_gpu, threads)
        self.of = np.where(meant, of, NONE)
        self.is_any = self.on_gpu | on_threads

    @property
    def sorts(self) -> npt.NDArray[np.object_]:
        """The kind of each name: op, function or kernel."""
        return np.select([self.on_gpu, self.on_cpu], ["kernel", "op"], "function").astype(object)


def _table(
    record: Record, path: Path, span: tuple[int, int], names: Sequence[str], scale: float
) -> pd.DataFrame:
    trace, graph, span_ns = record.trace, path_graph(record, *span), span[1] - span[0]
    named = _Named(trace, names)
    # Kernels change alone, ops with all they run or launch; one outside of a window may own slices.
    gpu = trace.index.gpu
    bits = np.where(named.of >= 0, np.int64(1) << np.maximum(named.of, 0), 0)  # a bit per change
    changed = path_sum(np.where(trace.index.is_gpu, 0, bits), trace.index.parent, np.bitwise_or)
    changed[gpu] = bits[gpu] | take(changed, trace.index.launcher[gpu], 0)
    part, distinct = pd.factorize(np.append(changed, 0))
    scaled = distinct >> np.arange(len(names))[:, None] & 1
    changes = Changes(part, scaled.astype(bool), scale)
    threads, work = graph.threads, graph.work
    parts = changes.scaled.shape[1]
    self_ns = ~graph.waiting * (threads.end - threads.start)
    time = group_sums(changes.part[threads.row], self_ns, parts)
    time += group_sums(changes.part[work.row], work.end - work.start, parts)
    spent = ~are_delays(trace, path)
    on_path = group_sums(changes.part[path.row], path.dur * spent, parts)
    new = replayed(graph, changes)
    counted = named.of[(named.of >= 0) & (trace.index.column("count") > 0)]
    return pd.DataFrame(
        {
            "name": pd.Series(names, dtype=object),
            "what": pd.Series(named.sorts, dtype=object),
            "scale": float(scale),
            "calls": np.bincount(counted, minlength=len(names)),
            "time_ns": changes.scaled @ time,
            "path_ns": changes.scaled @ on_path,
            "span_ns": span_ns,
            "new_span_ns": new,
            "saved_ns": span_ns - new,
            "saved_share": (span_ns - new) / max(span_ns, 1),
        }
    )[list(COLUMNS)]


Arrivals = dict[int, list[tuple[int, Ints]]]
"""Per group of slices, the groups that it waits for and, per change, the delay after their ends."""


@dataclass(frozen=True)
class Changes:
    """Which slices each change makes last ``scale`` times as long.

    ``part``: per slice, its set of slices that change together; one more is for row -1.
    ``scaled``: which parts each change scales.
    """

    part: Rows
    scaled: Mask
    scale: float

    def durations(self, dur: Ints, row: Ints) -> Iterator[Ints]:
        """Yield per change the durations of stretches of these slices.

        One after another, because the arrays of all changes at once would be the largest of all.
        """
        longer, part = self.longer(dur), self.part[row]
        for scaled in self.scaled:
            yield np.where(scaled[part], longer, dur)

    def longer(self, dur: Ints) -> Ints:
        """Return scaled durations in whole ns, so that a scale of 1 is exact."""
        return np.asarray(np.rint(dur * self.scale), np.int64)


def replayed(graph: PathGraph, changes: Changes) -> Ints:
    """Return per change how long the range would take."""
    clocks = _Clocks(graph, changes)
    streams = _Streams(graph, changes, clocks)
    releases, last = graph.releases, streams.order[streams.last]
    group = take(streams.group[streams.rank], releases["gpu"].to_numpy()).tolist()
    source, place = (clocks.place(releases[name].to_numpy()) for name in ("source", "boundary"))
    time = np.append(releases["time"], graph.work.start[last])
    slices = np.append(np.full(len(releases), NONE), last)
    for item in np.lexsort((slices, time)).tolist():
        if item >= len(releases):
            streams.go_on(item - len(releases), clocks)
        else:
            of_gpu = group[item] >= 0
            until = streams.ends[group[item]] if of_gpu else clocks.at(source[item])
            clocks.release(item, place[item], until)
    # The time from the start to the last end, plus the recorded rest of the range.
    threads = graph.threads
    moments = [clocks.at(place) for place in clocks.place(_last(threads)).tolist()]
    moments += [streams.ends.max(axis=0)] if len(streams.ends) else []
    if not moments:
        return np.full(len(clocks.spent), threads.t1 - threads.t0)
    busy = (threads.row >= 0) & (threads.end > threads.start)
    recorded = np.append(threads.end[busy], graph.work.end).max(initial=threads.t0)
    return np.asarray(np.max(moments, axis=0) + (threads.t1 - recorded) - threads.t0, np.int64)


class _Clocks:
    """When boundaries of threads would be reached, for each change.

    That is the thread's own time up to the boundary (``spent``) plus an offset for its waits. There
    is one offset for the start of each thread and one for each release. The last entry of each
    array is for work that waits for no thread.
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
        self.of_release = places_in(order)[len(first) :]
        slots = np.searchsorted(begins[order], self.boundaries, side="right") - 1
        self.slot = np.append(slots, NONE)
        self.offset = np.full((len(begins) + 1, len(changes.scaled)), threads.t0, np.int64)
        self.offset[NONE] = 0
        self.is_known = np.full(len(begins) + 1, True)
        self.is_known[self.of_release] = False

    def place(self, boundary: Ints) -> Ints:
        """Return the position of each boundary in these arrays."""
        return np.where(boundary >= 0, np.searchsorted(self.boundaries, boundary), NONE)

    def at(self, place: int) -> Ints:
        """Return the time at a boundary, after all waits that ended there or before."""
        return np.asarray(self.spent[:, place] + self.offset_of(int(self.slot[place])), np.int64)

    def offset_of(self, slot: int) -> Ints:
        """Return an offset; of a wait that has not ended yet, that of the one before.

        Two threads may release each other at the same moment.
        """
        while not self.is_known[slot]:
            slot -= 1
        return np.asarray(self.offset[slot])

    def release(self, release: int, place: int, until: Ints) -> None:
        """Let a thread go on from this position, not before ``until``."""
        slot = self.of_release[release]
        late = until - self.spent[:, place]
        np.maximum(self.offset[slot - 1], late, out=self.offset[slot])
        self.is_known[slot] = True


def _last(threads: Threads) -> Ints:
    """Return the last boundary of each thread."""
    thread = threads.thread
    return np.flatnonzero(np.append(thread[1:] != thread[:-1], True))[: len(threads.lane)]


def _spent(graph: PathGraph, changes: Changes, boundaries: Ints) -> Ints:
    """Return per change the time in which threads did not wait, summed up to each boundary."""
    threads = graph.threads
    self_ns = np.where(graph.waiting, 0, threads.end - threads.start)
    part = changes.part[threads.row]
    opens = np.diff(part, prepend=NONE) != 0
    opens[boundaries] = True
    runs = np.flatnonzero(opens)  # segments of one part between two boundaries count as one
    self_ns, longer = (np.add.reduceat(dur, runs) for dur in (self_ns, changes.longer(self_ns)))
    place, part = np.searchsorted(runs, boundaries), part[runs]
    spent = np.empty((len(changes.scaled), len(place)), np.int64)
    for change, scaled in enumerate(changes.scaled):  # a row at a time fits the processor's cache
        dur = np.where(scaled[part], longer, self_ns)
        spent[change] = (np.cumsum(dur) - dur)[place]
    return spent


class _Streams:
    """When slices of streams would end, for each change.

    Where slices follow one another, each end is a maximum of sums along the slices before it.
    Without the delays and durations ``passed`` on the stream so far, ends are a running maximum, in
    which the order of launches does not matter. So neighbours form one group with one ``least`` if
    their launches wait for the same release and only the last of them has others waiting for it.

    A slice that overlaps another of its stream is a group of its own and adds nothing to
    ``passed``: it follows what had ended when it began, and begins as far into the slice that it
    overlaps (see `GpuWork.previous`) as recorded.
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

        source, target, delay = _events(graph)
        follower = work.followers()
        after, then = (slices[overlaps[self.rank[follower[0]]]] for slices in follower)
        overlapping = overlaps[self.rank[then]]
        again = np.flatnonzero(work.previous != work.before)
        running = work.previous[again]
        at = self.rank[np.concatenate([target, then[~overlapping], again])]
        added = np.concatenate([delay, follow_ns[self.rank[then[~overlapping]]]])
        arrivals = np.zeros((len(changes.scaled), len(at)), np.int64)
        arrivals[:, : len(added)] = added
        ended = np.empty((len(changes.scaled), np.count_nonzero(overlapping)), np.int64)

        self.least, self.passed, self.behind = (
            np.empty((len(first), len(changes.scaled)), np.int64) for _ in range(3)
        )
        durations = changes.durations((work.end - work.start)[self.order], work.row[self.order])
        shifts = changes.durations(work.start[again] - work.start[running], work.row[running])
        for change, (dur, into) in enumerate(zip(durations, shifts, strict=True)):
            passed = np.cumsum(np.where(overlaps, 0, follow_ns + dur))
            rest = dur - passed
            launched = clocks.spent[change, place] + launch_ns + rest
            self.least[:, change] = np.maximum.reduceat(launched, first)
            self.passed[:, change] = passed[self.last]
            self.behind[:, change] = np.where(self.overlaps, (follow_ns + dur)[first], 0)
            arrivals[change] += rest[at]
            arrivals[change, len(added) :] += into - dur[self.rank[running]]
            ended[change] = -passed[self.rank[then[overlapping]]]
        self.over = np.full((len(work.names), len(changes.scaled)), NEVER)
        """Per stream, the end of all that has ended so far in the replay."""
        self.ends = np.zeros_like(self.least)
        sources = np.concatenate([source, after[~overlapping], running])
        self.arrivals = self._arrivals(self.rank[sources], at, arrivals)
        self.ended = self._arrivals(
            self.rank[after[overlapping]], self.rank[then[overlapping]], ended
        )

    def _opens(self, graph: PathGraph, slot: Ints, overlaps: Mask) -> Mask:
        """Return which slices begin a group."""
        closes = overlaps.copy()
        gpu = graph.releases["gpu"].to_numpy()
        closes[self.rank[np.append(graph.events[0], gpu[gpu >= 0])]] = True
        stream = graph.work.stream[self.order]
        opens = overlaps.copy()
        opens[:1] = True
        opens[1:] |= closes[:-1] | (stream[1:] != stream[:-1]) | (slot[1:] != slot[:-1])
        return opens

    def _arrivals(self, source: Ints, target: Ints, delay: Ints) -> Arrivals:
        """Return what groups wait for, from pairs of ranks and per change the delay of each."""
        arrivals: Arrivals = {}
        groups = (self.group[ranks].tolist() for ranks in (source, target))
        for of, to, ns in zip(*groups, delay.T, strict=True):
            arrivals.setdefault(to, []).append((of, ns))
        return arrivals

    def go_on(self, group: int, clocks: _Clocks) -> None:
        """Let the slices of a group run."""
        over = self.over[self.stream[group]]
        for source, ns in self.ended.get(group, ()):
            np.maximum(over, self.ends[source] + ns, out=over)
        end = np.maximum(
            clocks.offset_of(int(self.slot[group])) + self.least[group], over + self.behind[group]
        )
        for source, ns in self.arrivals.get(group, ()):
            np.maximum(end, self.ends[source] + ns, out=end)
        if not self.overlaps[group]:
            over[:] = end
        np.add(end, self.passed[group], out=self.ends[group])


def _delays(graph: PathGraph) -> tuple[Ints, Ints]:
    """Return the delays of GPU slices after their launches, and after the slices before them.

    The cause that bound a slice has the recorded delay, others at most the usual one. A slice with
    no known cause begins when it did.
    """
    work, by = graph.work, graph.bound_by
    recorded = work.start - work.launched
    launch = np.where(by == BY_LAUNCH, recorded, np.minimum(recorded, graph.launch_ns))
    unbound = np.where(by == BY_NOTHING, work.start, NEVER)
    gap = work.start - take(work.end, work.before, 0)
    bound = (by == BY_STREAM) & (work.previous == work.before)
    follow = np.where(bound, gap, np.minimum(gap, graph.follow_ns))
    return np.where(graph.boundary >= 0, launch, unbound), np.where(work.before >= 0, follow, 0)


def _events(graph: PathGraph) -> tuple[Ints, Ints, Ints]:
    """Return pairs of GPU slices, the second waiting for the first, and the delays between them."""
    work, (source, target) = graph.work, graph.events
    recorded = work.start[target] - work.end[source]
    binds = (graph.bound_by[target] == BY_EVENT) & (graph.bound_to[target] == source)
    return source, target, np.where(binds, recorded, np.minimum(recorded, graph.follow_ns))
