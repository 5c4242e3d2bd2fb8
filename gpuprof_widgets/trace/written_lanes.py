"""The rows of a Chrome trace on which the slices of a trace are written.

Ops, Python frames and annotations of one thread stand on one row, as Kineto has them. Perfetto
drops a slice that crosses another one of its row: such a slice goes to a row of its own, which is
called as the thread is, with a number.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from gpuprof_widgets.trace.model import Trace
from gpuprof_widgets.trace.schema import TRACK_KINDS
from gpuprof_widgets.trace.sub_tracks import MOST, sub_tracks

_NAMING = ("cpu", "gpu", *TRACK_KINDS)
"""Kinds of tracks in the order in which they name the row that they share with others."""


@dataclass(frozen=True)
class WrittenLanes:
    """``table``: ``process``, ``thread`` (as the file has them, as text) and ``label``, in order.

    ``of_slice``: the row of that table for each slice.
    """

    table: pd.DataFrame
    of_slice: NDArray[np.int64]


def written_lanes(trace: Trace) -> WrittenLanes:
    """Where every slice is written, and what that is called."""
    tracks, slices = trace.tracks, trace.slices
    of_track = tracks.groupby(["process", "thread"], sort=False).ngroup().to_numpy().astype(np.intp)
    thread = of_track[slices["track"].to_numpy()].astype(np.int64)
    number = sub_tracks(slices["ts"].to_numpy(), slices["dur"].to_numpy(), thread)
    own = of_track.astype(np.int64) * MOST  # tracks without a slice are named as well
    keys, place = np.unique(np.append(thread * MOST + number, own), return_inverse=True)
    naming = _naming(tracks, of_track)
    rows = tracks.iloc[naming[keys // MOST]]
    extra = [f" ({one + 1})" if one else "" for one in (keys % MOST).tolist()]
    table = pd.DataFrame(
        {
            "process": rows["process"].to_list(),
            "thread": [f"{text}{more}" for text, more in zip(rows["thread"], extra, strict=True)],
            "label": [f"{text}{more}" for text, more in zip(rows["label"], extra, strict=True)],
        }
    )
    return WrittenLanes(table, place.reshape(-1)[: len(slices)].astype(np.int64))


def _naming(tracks: pd.DataFrame, of_track: NDArray[np.intp]) -> NDArray[np.intp]:
    """Per thread the track that names it."""
    rank = [
        _NAMING.index(str(kind)) if kind in _NAMING else len(_NAMING) for kind in tracks["kind"]
    ]
    order = np.lexsort((np.array(rank, dtype=np.int64), of_track))
    _, first = np.unique(of_track[order], return_index=True)
    return np.asarray(order[first], dtype=np.intp)
