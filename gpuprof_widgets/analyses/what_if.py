"""What would be saved if an op or a kernel took less time, everything else being as it was."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from difflib import get_close_matches

import numpy as np
import numpy.typing as npt
import pandas as pd

from gpuprof_widgets.analyses.critical_path import DELAYS, NO_WORK, critical_path, graph_of
from gpuprof_widgets.analyses.lacking import lacking
from gpuprof_widgets.analyses.op_rows import are_ops, gpu_rows, named
from gpuprof_widgets.analyses.path_graph import BY_EVENT, BY_LAUNCH, BY_STREAM, PathGraph
from gpuprof_widgets.analyses.path_range import Region, path_range
from gpuprof_widgets.analyses.remembered import remembered
from gpuprof_widgets.exceptions import OptionError
from gpuprof_widgets.trace.links import nearest_ancestor
from gpuprof_widgets.trace.model import Record, Trace
from gpuprof_widgets.trace.schema import NONE

Ints = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]

COLUMNS = (
    *("name", "what", "scale", "calls", "time_ns", "path_ns"),
    *("span_ns", "new_span_ns", "saved_ns", "saved_share"),
)
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

    Columns: ``name``, ``what`` ("op", with all that runs in it and all GPU work launched in it;
    or "kernel", GPU work of that name alone), ``scale``, ``calls``, ``time_ns`` (its CPU and GPU
    time in the range), ``path_ns`` (of that, on the critical path), ``span_ns`` (of the range, as
    recorded), ``new_span_ns``, ``saved_ns``, ``saved_share`` (of the span).

    The graph of `critical_path` is gone through anew, forwards, with the changed durations:

    - a thread's own time (of its ops, calls, Python) lasts as long as recorded, times the scale
      where it belongs to what is changed; time in which it waited lasts until what it waits for;
    - a GPU slice begins when its launch, the slice before it on its stream and all events it waits
      for allow it: the one that bound it with the delay that was recorded, the others with the
      usual delay of their kind in this trace (a median), or the recorded one if that was shorter;
    - the delay between the end of GPU work and the return of the call that waits for it stays.

    So a scale of 1 gives exactly the recorded span, and a larger scale never a shorter one. What a
    faster op would change beyond that (a launch queue that was full, clocks, cache, contention of
    streams for the GPU) is not modelled. The range is as in `critical_path`.
    """
    if not 0 <= scale < math.inf:
        raise OptionError(f"a scale is 0 (no time at all) or more, not {scale}")
    t0, t1 = path_range(record, step, region)
    changed = _changed(record.trace, name)
    return _table(record, t0, t1, [(name, *changed)], scale)


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
        return lacking(COLUMNS, NO_WORK)
    names = _candidates(record.trace, path)
    if not names:
        return lacking(COLUMNS, "no op and no kernel is on the critical path")
    table = _table(record, t0, t1, [(name, *_changed(record.trace, name)) for name in names], 0.0)
    return table.sort_values(["saved_ns", "path_ns"], ascending=False, kind="stable").reset_index(
        drop=True
    )


def _candidates(trace: Trace, path: pd.DataFrame) -> list[str]:
    """Names by their time on the path: of innermost ops, of outermost ops, of GPU work."""
    names = np.append(trace.slices["name"].to_numpy(object), "")
    on_path = path["op"].to_numpy()
    gpu = np.isin(path["row"], gpu_rows(trace)) & path["kind"].isin(
        ["compute", "communication", "copy", "memset"]
    )
    sorts = (
        names[on_path],
        names[_outermost_op(trace, on_path)],
        np.where(gpu, path["name"].to_numpy(object), ""),
    )
    found: list[str] = []
    for words in sorts:
        time = path["dur_ns"].groupby(words).sum().drop("", errors="ignore")
        found += [str(word) for word in time.nlargest(CANDIDATES).index]
    return list(dict.fromkeys(found))


def _outermost_op(trace: Trace, rows: Ints) -> Ints:
    """The op around each of these that is in no other op."""
    parent, is_op = trace.slices["parent"].to_numpy(), np.append(are_ops(trace), False)
    above = np.append(nearest_ancestor(parent, is_op[:-1]), NONE)
    rows = rows.astype(np.int64)
    while (deeper := (rows >= 0) & (above[rows] >= 0)).any():
        rows = np.where(deeper, above[rows], rows)
    return rows


def _changed(trace: Trace, name: str) -> tuple[str, Mask]:
    """Whether it is an op or a kernel, and which slices change with it.

    An op outside of a window may own what is in it.
    """
    chosen = named(trace, frozenset({name}))
    gpu = gpu_rows(trace)
    on_gpu = np.zeros(len(trace), bool)
    on_gpu[gpu] = True
    if (chosen & on_gpu).any():
        return "kernel", chosen & on_gpu
    chosen &= np.isin(
        trace.slices["track"].to_numpy(),
        np.flatnonzero(trace.tracks["kind"].isin(["cpu", "python"]).to_numpy()),
    )
    if not chosen.any():
        known = [str(n) for n in trace.slices["name"].cat.categories]
        near = get_close_matches(name, known, 1)
        hint = f"; did you mean {near[0]!r}?" if near else ""
        raise OptionError(f"no op and no kernel of this trace is called {name!r}{hint}")
    inside = chosen | (nearest_ancestor(trace.slices["parent"].to_numpy(), chosen) >= 0)
    launch = trace.slices["launch"].to_numpy()[gpu]
    owner = np.where(launch >= 0, launch, trace.slices["op"].to_numpy()[gpu])
    inside[gpu] = np.append(inside, False)[owner]
    return "op", inside


def _table(
    record: Record, t0: int, t1: int, changes: Sequence[tuple[str, str, Mask]], scale: float
) -> pd.DataFrame:
    graph = graph_of(record, t0, t1)
    path = critical_path(record, region=(t0, t1))
    gone = np.stack([np.append(mask, False) for _, _, mask in changes])
    threads, work = graph.threads, graph.work
    own = ~graph.waiting * (threads.end - threads.start)
    time = (gone[:, threads.row] * own).sum(axis=1) + (
        gone[:, work.row] * (work.end - work.start)
    ).sum(axis=1)
    spent = ~path["kind"].isin(DELAYS).to_numpy(bool)
    on_path = (gone[:, path["row"].to_numpy()] * (path["dur_ns"].to_numpy() * spent)).sum(axis=1)
    new = _replayed(graph, gone, scale) if len(path) else np.zeros(len(changes), np.int64)
    span = t1 - t0
    is_named = [named(record.trace, frozenset({name})) for name, _, _ in changes]
    calls = [
        int((mask & again & (record.trace.slices["count"].to_numpy() > 0)).sum())
        for (_, _, mask), again in zip(changes, is_named, strict=True)
    ]
    return pd.DataFrame(
        {
            "name": pd.Series([name for name, _, _ in changes], dtype=object),
            "what": pd.Series([what for _, what, _ in changes], dtype=object),
            "scale": float(scale),
            "calls": np.array(calls, np.int64),
            "time_ns": time.astype(np.int64),
            "path_ns": on_path.astype(np.int64),
            "span_ns": span,
            "new_span_ns": new,
            "saved_ns": span - new,
            "saved_share": (span - new) / max(span, 1),
        }
    )[list(COLUMNS)]


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


def _replayed(graph: PathGraph, gone: Mask, scale: float) -> Ints:
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
