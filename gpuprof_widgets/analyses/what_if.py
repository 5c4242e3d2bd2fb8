"""What would be saved if an op or a kernel took less time, everything else being as it was."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from difflib import get_close_matches

import numpy as np
import numpy.typing as npt
import pandas as pd

from gpuprof_widgets.analyses.critical_path import (
    DELAYS,
    ON_GPU,
    Region,
    critical_path,
    graph_of,
    path_range,
)
from gpuprof_widgets.analyses.host_states import Threads
from gpuprof_widgets.analyses.path_graph import (
    BY_EVENT,
    BY_LAUNCH,
    BY_NOTHING,
    BY_STREAM,
    PathGraph,
)
from gpuprof_widgets.analyses.path_streams import NEVER
from gpuprof_widgets.analyses.reasons import lacking, what_is_lacking
from gpuprof_widgets.analyses.remembered import remembered
from gpuprof_widgets.exceptions import OptionError
from gpuprof_widgets.trace import intervals
from gpuprof_widgets.trace.links import path_sum
from gpuprof_widgets.trace.model import Record, Trace
from gpuprof_widgets.trace.schema import NONE

Ints = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]

COLUMNS = (
    *("name", "what", "scale", "calls", "time_ns", "path_ns"),
    *("span_ns", "new_span_ns", "saved_ns", "saved_share"),
)
LARGEST_SCALE = 1_000
"""A trace of days still has its times in 64 bits then."""
CANDIDATES = 8
"""Names of each sort that `what_ifs` tries: more would rarely save anything."""


def what_if(
    record: Record,
    name: str,
    *,
    scale: float = 0.0,
    step: int | None = None,
    region: Region = None,
) -> pd.DataFrame:
    """How long the run would take if what is called ``name`` took ``scale`` times as long: one row.

    Columns: ``name``, ``what`` ("op", or "function" of Python, with all that runs in it and all
    GPU work launched in it; or "kernel", GPU work of that name alone), ``scale``, ``calls``,
    ``time_ns`` (its CPU and GPU time in the range), ``path_ns`` (of that, on the critical path),
    ``span_ns`` (of the range, as recorded), ``new_span_ns``, ``saved_ns``, ``saved_share`` (of the
    span).

    The graph of `critical_path` is gone through anew, forwards, with the changed durations:

    - a thread's own time (of its ops, calls, Python) lasts as long as recorded, times the scale
      where it belongs to what is changed; time in which it waited lasts until what it waits for;
    - a GPU slice begins when its launch, all that had ended before it on its stream and all events
      it waits for allow it: the one that bound it with the delay that was recorded, the others with
      the usual delay of their kind in this trace (a median), or the recorded one if that was
      shorter; one that overlaps the slice that it follows begins as far into that as recorded;
    - the delay between the end of GPU work and the return of the call that waits for it stays.

    So a scale of 1 gives exactly the recorded span, and a larger scale never a shorter one. What a
    faster op would change beyond that (a launch queue that was full, clocks, cache, contention of
    streams for the GPU) is not modelled. The range is as in `critical_path`.
    """
    if not 0 <= scale <= LARGEST_SCALE:
        raise OptionError(f"a scale is 0 (no time at all) to {LARGEST_SCALE:,}, not {scale}")
    t0, t1 = path_range(record, step, region)
    if not _Named(record.trace, [name]).is_any.all():
        raise OptionError(_unknown(record.trace, name))
    path = critical_path(record, region=(t0, t1))
    if not len(path) and t1 > t0:
        return lacking(COLUMNS, what_is_lacking(path))
    return _table(record, path, (t0, t1), [name], scale)


def what_ifs(record: Record, *, step: int | None = None, region: Region = None) -> pd.DataFrame:
    """What each of the likeliest ops and kernels would save if it cost nothing, the most first.

    Columns and rules as in `what_if`: ``name``, ``what``, ``scale`` (0), ``calls``, ``time_ns``,
    ``path_ns``, ``span_ns``, ``new_span_ns``, ``saved_ns``, ``saved_share``. Tried
    are the eight ops, the eight ops called by Python and the eight kernels or copies that take most
    of the critical path.
    """
    t0, t1 = path_range(record, step, region)
    if (t0, t1) == (record.trace.start_ns, record.trace.end_ns):
        return _of_the_run(record)
    return _what_ifs(record, t0, t1)


@remembered
def _of_the_run(record: Record) -> pd.DataFrame:
    return _what_ifs(record, record.trace.start_ns, record.trace.end_ns)


def _what_ifs(record: Record, t0: int, t1: int) -> pd.DataFrame:
    path = critical_path(record, region=(t0, t1))
    if not len(path):
        return lacking(COLUMNS, what_is_lacking(path))
    names = _candidates(record.trace, path)
    if not names:
        return lacking(COLUMNS, "no op and no kernel is on the critical path")
    table = _table(record, path, (t0, t1), names, 0.0)
    return table.sort_values(["saved_ns", "path_ns"], ascending=False, kind="stable").reset_index(
        drop=True
    )


def _candidates(trace: Trace, path: pd.DataFrame) -> list[str]:
    """Names by their time on the path: of innermost ops, of outermost ops, of GPU work."""
    op, row = path["op"].to_numpy(), path["row"].to_numpy()
    around = np.append(trace.index.outermost_op, NONE)
    gpu = np.append(trace.index.is_gpu, False)[row] & path["kind"].isin(ON_GPU)
    chosen: list[str] = []
    for rows in (op, around[op], np.where(gpu, row, NONE)):
        time = np.zeros(len(trace.index.names) + 1, np.int64)
        np.add.at(time, np.append(trace.index.name, NONE)[rows], path["dur_ns"].to_numpy())
        by_name = pd.Series(time[:-1], trace.index.names, dtype=np.int64).drop("", errors="ignore")
        chosen += by_name[by_name > 0].sort_index().nlargest(CANDIDATES).index.tolist()
    return list(dict.fromkeys(chosen))


class _Named:
    """The slices that have one of these names, each name by its place among them.

    ``of``: per slice the place of its name, -1 for any other and where others are meant: those on
    GPUs (``on_gpu``: per name) where any is, else those on threads; ``on_cpu``: any ran there, not
    only Python frames.
    """

    def __init__(self, trace: Trace, names: Sequence[str]) -> None:
        place = {name: at for at, name in enumerate(names)}
        places = np.array([*(place.get(name, NONE) for name in trace.index.names), NONE])
        of = places[trace.index.name]
        on_cpu, on_python = (trace.index.on_tracks(kind) for kind in ("cpu", "python"))
        self.on_gpu, self.on_cpu, on_threads = (
            np.bincount(of[chosen & (of >= 0)], minlength=len(names)) > 0
            for chosen in (trace.index.is_gpu, on_cpu, on_cpu | on_python)
        )
        meant = np.where(np.append(self.on_gpu, False)[of], trace.index.is_gpu, on_cpu | on_python)
        self.of = np.where(meant, of, NONE)
        self.is_any = self.on_gpu | on_threads

    @property
    def sorts(self) -> npt.NDArray[np.object_]:
        """Of each name whether it is an op, a function or a kernel."""
        return np.select([self.on_gpu, self.on_cpu], ["kernel", "op"], "function").astype(object)


def _unknown(trace: Trace, name: str) -> str:
    known = trace.index.names
    # The name of a recorded frame begins with its file: a function is in it, not near it.
    near = get_close_matches(name, known, 1) or [one for one in known if name and name in one]
    hint = f"; did you mean {near[0]!r}?" if near else ""
    return (
        f"no op, kernel or Python function of this trace is called {name!r}{hint}; "
        "what_ifs() names those that would save most"
    )


def _changes(trace: Trace, named: _Named, scale: float) -> Changes:
    """What changes with each name: kernels alone, ops with all in them and all GPU work of theirs.

    An op outside of a window may own what is in it.
    """
    gpu, count = trace.index.gpu, len(named.is_any)
    bits = np.where(named.of >= 0, np.int64(1) << np.maximum(named.of, 0), 0)  # a bit per change
    changed = path_sum(np.where(trace.index.is_gpu, 0, bits), trace.index.parent, np.bitwise_or)
    changed[gpu] = bits[gpu] | np.append(changed, 0)[trace.index.launcher[gpu]]
    part, distinct = pd.factorize(np.append(changed, 0))
    scaled = distinct >> np.arange(count)[:, None] & 1
    return Changes(part, scaled.astype(bool), scale)


def _table(
    record: Record, path: pd.DataFrame, span: tuple[int, int], names: Sequence[str], scale: float
) -> pd.DataFrame:
    trace, graph, span_ns = record.trace, graph_of(record, *span), span[1] - span[0]
    named = _Named(trace, names)
    changes = _changes(trace, named, scale)
    threads, work = graph.threads, graph.work
    time = np.zeros(changes.scaled.shape[1], np.int64)
    on_path = np.zeros_like(time)
    own = ~graph.waiting * (threads.end - threads.start)
    np.add.at(time, changes.part[threads.row], own)
    np.add.at(time, changes.part[work.row], work.end - work.start)
    spent = ~path["kind"].isin(DELAYS).to_numpy(bool)
    rows, dur = (path[name].to_numpy(np.int64) for name in ("row", "dur_ns"))
    np.add.at(on_path, changes.part[rows], dur * spent)
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
