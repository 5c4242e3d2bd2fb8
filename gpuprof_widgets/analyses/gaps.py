"""Times in which a GPU, or one of its streams, had nothing to do, and what lies around them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from gpuprof_widgets.analyses.open_times import open_within
from gpuprof_widgets.trace import intervals
from gpuprof_widgets.trace.model import Trace
from gpuprof_widgets.trace.schema import NONE

Ints = npt.NDArray[np.int64]
Rows = npt.NDArray[np.int32]


@dataclass(frozen=True)
class Gaps:
    """Gaps in order of time; rows and times are -1 where there is none.

    ``before``, ``after``: rows of the GPU slice whose end began the gap and of the one whose start
    ended it; ``launch``: row of the call that launched ``after``, which lasted from ``launch_ns``
    to ``launched_ns`` (before any window cut it); ``thread``: the CPU track that made that call,
    else the one that launches most.
    """

    start: Ints
    end: Ints
    before: Rows
    after: Rows
    launch: Rows
    launch_ns: Ints
    launched_ns: Ints
    thread: Rows

    def __len__(self) -> int:
        return len(self.start)


def gaps_between(trace: Trace, rows: npt.NDArray[np.intp]) -> Gaps:
    """The time of the trace that these GPU slices leave free."""
    return gaps_of_each(trace, [rows])[0]


def gaps_of_each(trace: Trace, groups: list[npt.NDArray[np.intp]]) -> tuple[Gaps, Ints]:
    """The same of several groups of GPU slices, one after another, and the place of the group."""
    found = [_between(trace, rows) for rows in groups]
    start, end, before, after = (np.concatenate(column) for column in zip(*found, strict=True))
    group = np.repeat(np.arange(len(groups)), [len(starts) for starts, *_ in found])
    launch = _or_none(trace.slices["launch"].to_numpy(), after).astype(np.int32)
    began, ended = trace.index.uncut
    usual = np.array([_usual_track(trace, rows) for rows in groups], np.int32)[group]
    thread = np.where(launch >= 0, _or_none(trace.index.track, launch), usual).astype(np.int32)
    times = (_or_none(began, launch), _or_none(ended, launch))
    return Gaps(start, end, before, after, launch, *times, thread), group


def _between(trace: Trace, rows: npt.NDArray[np.intp]) -> tuple[Ints, Ints, Rows, Rows]:
    """Start and end of the gaps, and the slices before and after them."""
    ts, dur = trace.slices["ts"].to_numpy()[rows], trace.slices["dur"].to_numpy()[rows]
    start, end = intervals.gaps(open_within(trace, rows), trace.start_ns, trace.end_ns)
    timed = dur > 0
    before = _ending(rows[timed], (ts + dur)[timed], start)
    return start, end, before, _ending(rows[timed], ts[timed], end)


def _or_none(values: Rows | Ints, rows: Rows) -> Ints:
    """The values of these rows, -1 for no row."""
    return np.append(values, NONE)[rows].astype(np.int64)


def _ending(rows: npt.NDArray[np.intp], moment: Ints, wanted: Ints) -> Rows:
    order = np.argsort(moment, kind="stable")
    at = np.minimum(np.searchsorted(moment[order], wanted), max(len(rows) - 1, 0))
    hit = moment[order[at]] == wanted if len(rows) else np.zeros(len(wanted), bool)
    return np.where(hit, rows[order[at]] if len(rows) else NONE, NONE).astype(np.int32)


def _usual_track(trace: Trace, rows: npt.NDArray[np.intp]) -> int:
    """The CPU track that launches most of these slices, else the first one."""
    launch = trace.index.column("launch")[rows]
    if (launch >= 0).any():
        return int(np.bincount(trace.index.track[launch[launch >= 0]]).argmax())
    cpu_tracks = np.flatnonzero((trace.tracks["kind"] == "cpu").to_numpy())
    return int(cpu_tracks[0]) if len(cpu_tracks) else NONE
