"""The time of every CPU thread, cut into segments in each of which one slice is innermost."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from gpuprof_widgets.trace import intervals, links
from gpuprof_widgets.trace.callers import BACKWARD
from gpuprof_widgets.trace.model import Trace
from gpuprof_widgets.trace.schema import NONE

Ints = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class Threads:
    """Segments of all threads, one thread after another; those of a thread tile [t0, t1).

    ``start``, ``end`` (ns), ``row`` (innermost slice, -1 for none), ``thread``. The last segment of
    a thread has no length: the start of a segment is a boundary, and so the end of time is one.
    ``lane`` and ``track`` (of its ops) of each thread; ``main``: the thread of the run, -1 without.
    """

    t0: int
    t1: int
    start: Ints
    end: Ints
    row: Ints
    thread: Ints
    lane: Ints
    track: Ints
    main: int

    def boundary(self, thread: npt.ArrayLike, time: npt.ArrayLike) -> Ints:
        """The segment of the thread that is running at that time, or begins then."""
        keys = _on_one_line(self.t0, self.t1, self.thread, self.start)
        wanted = _on_one_line(self.t0, self.t1, thread, time)
        return np.asarray(np.searchsorted(keys, wanted, side="right") - 1, np.int64)

    def cut(self, thread: Ints, time: Ints) -> Threads:
        """The same with boundaries at these times as well."""
        keys = _on_one_line(self.t0, self.t1, self.thread, self.start)
        edges = intervals.distinct(keys, _on_one_line(self.t0, self.t1, thread, time))
        row = self.row[np.searchsorted(keys, edges, side="right") - 1]
        return _threads(self.t0, self.t1, edges, row, (self.lane, self.track), self.main)

    def first(self) -> Ints:
        """Per thread its first segment."""
        return np.asarray(np.searchsorted(self.thread, np.arange(len(self.lane))), np.int64)

    def bursts(self) -> tuple[Ints, Ints, Ints]:
        """Thread, start and end of every stretch in which a thread had any slice open."""
        busy = (self.row >= 0) & (self.end > self.start)
        before = np.append(False, busy[:-1])
        opens = np.flatnonzero(busy & ~before)
        closes = np.flatnonzero(before & ~busy)
        return self.thread[opens], self.start[opens], self.start[closes]


def threads_of(trace: Trace, label: object, t0: int, t1: int) -> Threads:
    """All threads with any slice in [t0, t1), each over the whole of it; the run's by its label.

    On the thread of the run Python frames count as slices among the others, where they were
    recorded; on other threads they are left out: a pool's idle worker has frames open for good.
    """
    lane_of = trace.tracks["lane"].to_numpy()[trace.slices["track"].to_numpy()].astype(np.int64)
    began, ended = trace.index.uncut
    start, end = np.clip(began, t0, t1), np.clip(ended, t0, t1)
    counted = (trace.slices["count"].to_numpy() > 0) & (end > start)
    cpu, python = trace.index.on_tracks("cpu") & counted, trace.index.on_tracks("python") & counted
    if not cpu.any():
        cpu = python
    lane = np.unique(lane_of[cpu])
    main = _main_lane(trace, label, cpu, lane_of)
    rows = np.flatnonzero(cpu | (python & (lane_of == main)))
    thread = np.searchsorted(lane, lane_of[rows]).astype(np.int64)
    rows, thread = _in_order(rows, thread, start, end)
    first_rows = np.flatnonzero(cpu)[np.unique(lane_of[cpu], return_index=True)[1]]
    track = trace.slices["track"].to_numpy()[first_rows].astype(np.int64)
    at = _on_one_line(t0, t1, thread, start[rows])
    until = _on_one_line(t0, t1, thread, end[rows])
    bounds = np.arange(len(lane), dtype=np.int64) * (t1 - t0 + 1)
    edges = intervals.distinct(at, until, bounds, bounds + (t1 - t0))
    row = np.append(rows, NONE)[_innermost(at, until, thread, edges)]
    at_bound = np.isin(edges, [bounds, bounds + t1 - t0])
    same = (row == np.append(NONE - 1, row[:-1])[: len(row)]) & ~at_bound
    home = int(np.searchsorted(lane, main)) if main in lane else NONE
    return _threads(t0, t1, edges[~same], row[~same], (lane, track), home)


def _in_order(
    rows: npt.NDArray[np.intp], thread: Ints, start: Ints, end: Ints
) -> tuple[npt.NDArray[np.intp], Ints]:
    order = np.lexsort((start[rows] - end[rows], start[rows], thread))
    return rows[order], thread[order]


def _on_one_line(t0: int, t1: int, thread: npt.ArrayLike, time: npt.ArrayLike) -> Ints:
    """Threads one after another on a common line, a ns apart."""
    return np.asarray(thread, np.int64) * (t1 - t0 + 1) + (np.asarray(time, np.int64) - t0)


def _threads(
    t0: int, t1: int, edges: Ints, row: Ints, names: tuple[Ints, Ints], main: int
) -> Threads:
    thread, start = np.divmod(edges, t1 - t0 + 1)
    start = start + t0
    last = np.append(thread[1:] != thread[:-1], True)[: len(thread)]
    end = np.where(last, start, np.append(start[1:], t1)[: len(start)])
    row = np.where(last, NONE, row).astype(np.int64)
    return Threads(t0, t1, start, end, row, thread, names[0], names[1], main)


def _innermost(ts: Ints, end: Ints, thread: Ints, times: Ints) -> npt.NDArray[np.int32]:
    """Per time which of the slices is open and began last, by position; -1 for none."""
    return links.last_above(end, np.searchsorted(ts, times, side="right"), times)


def _main_lane(trace: Trace, label: object, cpu: Mask, lane_of: Ints) -> int:
    """The thread of the run: that of its label, of the steps or cell lines, else the busiest.

    A thread that only works for the backward pass is it where there is no other.
    """
    slices = trace.slices
    run = (slices["name"] == label).to_numpy(bool)
    run = run & (slices["category"] == "user_annotation").to_numpy()
    starts = [str(name).startswith("ProfilerStep#") for name in slices["name"].cat.categories]
    step = np.append(np.array(starts, bool), False)[slices["name"].cat.codes.to_numpy()]
    line = (slices["category"] == "cell_line").to_numpy()
    for known in (run & cpu, (step | line) & cpu):
        if known.any():
            return int(np.bincount(lane_of[known]).argmax())
    ops = cpu & trace.index.is_op
    for chosen in (ops & ~_of_backward(trace), ops, cpu):
        if chosen.any():
            return int(np.bincount(lane_of[chosen], slices["dur"].to_numpy()[chosen]).argmax())
    return NONE


def _of_backward(trace: Trace) -> Mask:
    names = trace.slices["name"].cat
    engine = np.array([str(name).startswith(BACKWARD) for name in names.categories], bool)
    marked = np.append(engine, False)[names.codes.to_numpy()]
    return np.asarray(marked | (trace.slices["forward"].to_numpy() >= 0), bool)
