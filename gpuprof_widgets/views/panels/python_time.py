"""Every Python function, with the stretches in which it ran itself where frames were recorded."""

from __future__ import annotations

import numpy as np
import pandas as pd

from gpuprof_widgets.analyses.innermost import segments
from gpuprof_widgets.analyses.python_calls import function_labels
from gpuprof_widgets.analyses.python_time import python_time
from gpuprof_widgets.analyses.python_waits import function_of
from gpuprof_widgets.analyses.thread_waits import python_lanes
from gpuprof_widgets.trace.model import Record
from gpuprof_widgets.trace.schema import SAMPLED
from gpuprof_widgets.views.panels.panel import Column, Panel

MOST_PIECES = 2_000
"""Pieces beyond which the page gets only the longest ones, and all times of the whole run."""
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
    """A row per function; its events are the pieces of its self time."""
    table = python_time(record)
    if not len(table):
        return None
    sampled = bool(record.metadata.get(SAMPLED))
    rows = table.assign(
        label=pd.Series(function_labels(table), dtype=object),
        share=table["self_ns"] / max(int(table["self_ns"].sum()), 1),
    )
    waits = WAITS if rows["total_waiting_ns"].any() else ()
    times, events, note = TIMES, _pieces(record, table), _note(table, sampled=sampled)
    if events is not None and len(events) > MOST_PIECES:
        longest = (events["end_ns"] - events["start_ns"]).nlargest(MOST_PIECES).index.sort_values()
        events = events.loc[longest].reset_index(drop=True)
        times = tuple(Column(each.key, each.label, each.unit) for each in TIMES)
        note = f"Of their stretches of time, the longest {MOST_PIECES:,} can be shown. {note}"
    return Panel(
        "Python functions",
        (Column("label", "Function", "text"), *(() if sampled else (CALLS,)), *times, *waits),
        rows,
        events,
        note.strip(),
        sort="self_ns",
    )


def _pieces(record: Record, table: pd.DataFrame) -> pd.DataFrame | None:
    """Stretches of time in which each function ran itself, and none that it called.

    None where there are no frames: cProfile does not say when a function ran.
    """
    trace = record.trace
    tracks = trace.tracks
    lanes = tracks["lane"].isin(python_lanes(record))
    function = function_of(trace, table)
    found = []
    for track in np.flatnonzero((tracks["kind"] == "python") & lanes):
        pieces = segments(trace, int(track))
        group = function[pieces.row]  # of row -1, where no frame was open, it is -1 as well
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
