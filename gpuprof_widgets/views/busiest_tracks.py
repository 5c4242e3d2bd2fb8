"""The part of a record that a page can hold: no more tracks than anybody can look through."""

from __future__ import annotations

from dataclasses import replace
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from gpuprof_widgets.trace.edit import kept_slices
from gpuprof_widgets.trace.model import Record, Trace
from gpuprof_widgets.trace.tracks import DEVICE_KINDS

AnyRecord = TypeVar("AnyRecord", bound=Record)

MOST_TRACKS = 1_000
"""A file of 300,000 threads took minutes to draw, and its page as long to open."""


def with_busiest_tracks(record: AnyRecord, most: int = MOST_TRACKS) -> AnyRecord:
    """The record with ``most`` of its tracks; the very record if it has no more.

    Those of GPUs come first, then those on which the most time was spent.
    """
    if len(record.trace.tracks) <= most:
        return record
    shown = np.sort(_busiest_first(record.trace)[:most])
    return replace(record, trace=_of_tracks(record.trace, shown))


def tracks_told(shown: Record, record: Record) -> tuple[str, ...]:
    """A sentence on the tracks of the record that are not shown, if there are any."""
    if shown is record:
        return ()
    return (
        f"Of {len(record.trace.tracks):,} tracks this page has {len(shown.trace.tracks):,}, those "
        "of GPUs and the busiest ones; its views and tables count these alone. The findings, the "
        "commands and the analyses in Python count all.",
    )


def _busiest_first(trace: Trace) -> npt.NDArray[np.intp]:
    slices = trace.slices
    outermost = np.where(slices["depth"] == 0, slices["dur"], 0)
    busy_ns = np.bincount(slices["track"], weights=outermost, minlength=len(trace.tracks))
    on_host = ~trace.tracks["kind"].isin(DEVICE_KINDS).to_numpy()
    return np.lexsort((-busy_ns, on_host))


def _of_tracks(trace: Trace, shown: npt.NDArray[np.intp]) -> Trace:
    """The trace of these tracks, in their order."""
    number = np.full(len(trace.tracks), -1, np.int32)
    number[shown] = np.arange(len(shown), dtype=np.int32)
    kept = kept_slices(trace, number[trace.slices["track"].to_numpy()] >= 0)
    slices = kept.slices.assign(track=number[kept.slices["track"].to_numpy()])
    tracks = trace.tracks.iloc[shown].reset_index(drop=True)
    return replace(kept, slices=slices, tracks=tracks)
