"""A step function with fewer steps: in each short stretch of time equal values stand together."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pandas as pd

Ints = npt.NDArray[np.int64]


def coarse(segments: pd.DataFrame, most: int) -> tuple[pd.DataFrame, int]:
    """The segments, or at most so many that stand for them, and the width (ns) of a stretch.

    ``segments``: ``group``, ``start_ns``, ``end_ns``, those of a group disjoint. Within each
    stretch of time the segments of a group become one, so that any range whose bounds are those of
    stretches has the same time of each group as before. The width is 0 where nothing changes.
    """
    if len(segments) <= most:
        return segments, 0
    group = segments["group"].to_numpy(np.int64)
    start, end = (segments[f"{edge}_ns"].to_numpy(np.int64) for edge in ("start", "end"))
    origin, span = int(start.min()), int(end.max() - start.min())
    width = 2 ** int(np.ceil(np.log2(max(span / most, 1))))
    pieces = _stretched(group, start - origin, end - origin, width)
    while len(pieces[0]) > most and width < span:
        width *= 2
        pieces = _stretched(group, start - origin, end - origin, width)
    columns = dict(zip(("group", "start_ns", "end_ns"), pieces, strict=True))
    found = pd.DataFrame(columns)
    found[["start_ns", "end_ns"]] += origin
    return found, width


def _stretched(group: Ints, start: Ints, end: Ints, width: int) -> tuple[Ints, Ints, Ints]:
    """Per stretch and group one piece; the pieces of a stretch stand one after another."""
    first, last = start // width, (end - 1) // width
    count = np.maximum(last - first + 1, 0)
    of = np.repeat(np.arange(len(start)), count)
    stretch = first[of] + np.arange(len(of)) - np.repeat(np.cumsum(count) - count, count)
    time = np.minimum(end[of], (stretch + 1) * width) - np.maximum(start[of], stretch * width)
    groups = int(group.max()) + 1
    key, inverse = np.unique(stretch * groups + group[of], return_inverse=True)
    total = np.zeros(len(key), np.int64)
    np.add.at(total, inverse.reshape(-1), time)
    stretch = key // groups
    opens = np.append(True, stretch[1:] != stretch[:-1])[: len(key)]
    before = np.cumsum(total) - total
    begins = stretch * width + before - before[opens][np.cumsum(opens) - 1]
    return key % groups, begins, begins + total
