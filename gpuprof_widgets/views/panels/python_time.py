"""Every Python function, with the stretches in which it ran itself where frames were recorded."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pandas as pd

from gpuprof_widgets.analyses.python_calls import function_labels
from gpuprof_widgets.analyses.python_time import python_time
from gpuprof_widgets.analyses.python_waits import function_of
from gpuprof_widgets.analyses.thread_waits import python_lanes
from gpuprof_widgets.trace.model import Record
from gpuprof_widgets.trace.python_frames import function_kind
from gpuprof_widgets.trace.schema import NONE, SAMPLED
from gpuprof_widgets.views.panels.panel import Panel
from gpuprof_widgets.views.table import Column

Ints = npt.NDArray[np.int64]

MOST_PIECES = 2_000
"""Pieces that a page which has not all slices gets: 15 kB of a notebook."""
CALLS = Column("calls", "Calls", "count")
TIMES: tuple[Column, ...] = (
    Column("self_ns", "Self", "ns", "time"),
    Column("share", "Share", "share", "share", "self_ns"),
    Column("total_ns", "Total", "ns"),
)
WAITS = (
    Column("self_waiting_ns", "Self, waiting for GPU", "ns"),
    Column("total_waiting_ns", "Total, waiting for GPU", "ns"),
    Column("waited_for", "Waited for", "text"),
)


def python_time_panel(record: Record) -> Panel | None:
    """A row per function; its events are the pieces of its self time.

    They stand by the better of their two ranks, as a page gets the first only and sorts by either.
    """
    table = python_time(record)
    if not len(table):
        return None
    ranks = table[["self_ns", "total_ns"]].rank(method="first", ascending=False).min(axis=1)
    table = table.iloc[np.argsort(ranks.to_numpy(), kind="stable")].reset_index(drop=True)
    sampled = bool(record.metadata.get(SAMPLED))
    kind = function_kind(record)
    rows = table.assign(
        label=pd.Series(function_labels(table), dtype=object),
        share=table["self_ns"] / max(int(table["self_ns"].sum()), 1),
    )
    waits = WAITS if rows["total_waiting_ns"].any() else ()
    frames = _frames(record, table)
    return Panel(
        f"{kind[0].upper()}{kind[1:]}s",
        (Column("label", "Function", "text"), *(() if sampled else (CALLS,)), *TIMES, *waits),
        rows,
        _pieces(record, frames),
        notes=(_note(table, sampled=sampled),),
        sort="self_ns",
        most_events=MOST_PIECES,
        frames=frames if (frames >= 0).any() else None,
    )


def _frames(record: Record, table: pd.DataFrame) -> Ints:
    """Per slice its function, where its thread is one of those that count."""
    tracks = record.trace.tracks
    counts = (tracks["kind"] == "python") & tracks["lane"].isin(python_lanes(record))
    track = record.trace.slices["track"].to_numpy()
    return np.where(counts.to_numpy()[track], function_of(record.trace, table)[:-1], NONE)


def _pieces(record: Record, frames: Ints) -> pd.DataFrame | None:
    """Stretches of time in which each function ran itself, and none that it called.

    None where there are no frames: cProfile does not say when a function ran.
    """
    trace = record.trace
    function = np.append(frames, NONE)  # where no frame was open, the row is -1
    found = []
    for track in np.unique(trace.slices["track"].to_numpy()[frames >= 0]):
        pieces = trace.index.segments(int(track))
        group = function[pieces.row]
        columns = {"start_ns": pieces.start, "end_ns": pieces.end, "row": pieces.row}
        found.append(pd.DataFrame({"group": group, **columns})[group >= 0])
    return pd.concat(found, ignore_index=True) if found else None


def _note(table: pd.DataFrame, *, sampled: bool) -> str:
    """How the times are known."""
    if sampled:
        return "From samples: times are estimates, and no calls were counted."
    if table["total_waiting_ns"].any() and not table["exact"].all():
        return "By cProfile; what waited for the GPU is estimated (with --stack it is exact)."
    return ""
