"""The timeline at the resolution of a picture: one value per pixel, however many the events."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from gpuprof_widgets.trace.model import Trace


@dataclass(frozen=True)
class Level:
    """The slices of one track at one nesting depth, in order of time: they never overlap.

    ``row`` are slice rows, ``ts`` and ``end`` their bounds in ns.
    """

    track: int
    depth: int
    row: npt.NDArray[np.intp]
    ts: npt.NDArray[np.int64]
    end: npt.NDArray[np.int64]


def levels(trace: Trace, max_depth: int) -> Iterator[Level]:
    """Every level that has a slice of some length, by track and depth, above ``max_depth``."""
    slices = trace.slices
    track, depth = slices["track"].to_numpy(), slices["depth"].to_numpy()
    ts, dur = slices["ts"].to_numpy(), slices["dur"].to_numpy()
    shown = np.flatnonzero((dur > 0) & (depth < max_depth))
    key = track[shown].astype(np.int64) * max_depth + depth[shown]
    order = np.argsort(key, kind="stable")
    bounds = np.flatnonzero(np.diff(key[order])) + 1
    for group in np.split(order, bounds) if len(order) else []:
        row = shown[group]
        first = row[0]
        yield Level(int(track[first]), int(depth[first]), row, ts[row], ts[row] + dur[row])


def pixels(
    level: Level, start_ns: int, end_ns: int, width: int
) -> tuple[npt.NDArray[np.intp], npt.NDArray[np.float64]]:
    """Per pixel the slice row drawn there (-1: none) and the share of the pixel that is covered.

    The row is that of the first slice that reaches into the pixel; shorter ones of the same pixel
    are merged with it, and the share is that of all of them.
    """
    edges = np.linspace(start_ns, end_ns, width + 1)
    first = np.searchsorted(level.end, edges[:-1], side="right")
    inside = np.minimum(first, len(level.row) - 1)
    hit = (first < len(level.row)) & (level.ts[inside] < edges[1:])
    covered = np.diff(_covered_before(level, edges)) / np.maximum(np.diff(edges), 1e-9)
    return np.where(hit, level.row[inside], -1), np.where(hit, covered, 0.0)


def _covered_before(level: Level, moments: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Time in ns that the level's slices cover before each moment."""
    length = level.end - level.ts
    ended = np.concatenate([[0], np.cumsum(length)])
    started = np.searchsorted(level.ts, moments, side="right")
    last = np.maximum(started - 1, 0)
    overhang = np.where(started > 0, np.maximum(level.end[last] - moments, 0), 0)
    return np.asarray(ended[started] - overhang, dtype=np.float64)
