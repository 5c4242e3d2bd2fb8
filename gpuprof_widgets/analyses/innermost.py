"""Who is running: the latest-started slice of a track that is still open at a given time."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from gpuprof_widgets.trace import links
from gpuprof_widgets.trace.model import Trace
from gpuprof_widgets.trace.schema import NONE

Times = npt.NDArray[np.int64]
Rows = npt.NDArray[np.int32]


def open_at(trace: Trace, rows: npt.NDArray[np.intp], times: Times) -> Rows:
    """Per time: the innermost of these rows (of one track, in their order) that is open, or -1.

    It is the last one to have started that had not ended.
    """
    ts = trace.slices["ts"].to_numpy()[rows]
    end = ts + trace.slices["dur"].to_numpy()[rows]
    found = links.last_above(end, np.searchsorted(ts, times, side="right"), times)
    return np.append(rows, NONE)[found].astype(np.int32)


def rows_of_track(trace: Trace, track: int) -> npt.NDArray[np.intp]:
    """The slices of a track: they are sorted by it."""
    tracks = trace.slices["track"].to_numpy()  # of one type with what is sought: else it is copied
    return np.arange(*np.searchsorted(tracks, np.array([track, track + 1], tracks.dtype)))


@dataclass(frozen=True)
class Segments:
    """Disjoint, sorted stretches of time of one track and the slice that was innermost in each."""

    start: Times
    end: Times
    row: Rows


def segments(trace: Trace, track: int) -> Segments:
    """The time of a track cut where its innermost slice changes; row -1 where none was open."""
    rows = rows_of_track(trace, track)
    ts = trace.slices["ts"].to_numpy()[rows]
    end = ts + trace.slices["dur"].to_numpy()[rows]
    bounds = [trace.start_ns, trace.end_ns]
    edges = np.unique(np.concatenate([ts, end, np.array(bounds, np.int64)]))
    return Segments(edges[:-1], edges[1:], open_at(trace, rows, edges[:-1]))
