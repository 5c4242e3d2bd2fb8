"""Where each GPU's time went, as bars and a table, and the same of each step."""

from __future__ import annotations

import numpy as np
import pandas as pd

from gpuprof_widgets.analyses.breakdown import HOST, breakdown
from gpuprof_widgets.analyses.breakdown_segments import breakdown_segments
from gpuprof_widgets.analyses.quantity import format_ns
from gpuprof_widgets.analyses.steps import steps
from gpuprof_widgets.trace.model import Record
from gpuprof_widgets.trace.schema import NONE
from gpuprof_widgets.views.panels.coarse import coarse
from gpuprof_widgets.views.panels.panel import Bars, Panel
from gpuprof_widgets.views.table import Column

MOST_EVENTS = 8_000
MOST_ROWS = 500
BARS = Bars("where", "class", "time_ns")
COLUMNS = (
    Column("where", "Where", "text"),
    Column("state", "State", "text"),
    Column("class", "Class", "text"),
    Column("time_ns", "Time", "ns", "time"),
    Column("share", "Share", "share", "share", "time_ns/where"),
)
NOTE = "Every nanosecond is in exactly one class."


def breakdown_panel(record: Record) -> Panel | None:
    """A row per device and class; its events are the stretches of time of that class."""
    rows = _rows(breakdown(record))
    if not len(rows):
        return None
    events, width = _events(record, rows)
    on_gpu = bool((rows["state"] != HOST).any())
    title = "Breakdown" if on_gpu else "Breakdown (CPU)"
    exact = f"Of a selected range it is exact to {format_ns(width)}." if width else ""
    return Panel(title, COLUMNS, rows, events, notes=(NOTE, exact), bars=BARS)


def step_breakdown_panel(record: Record) -> Panel | None:
    """A row per step, device and class: its time in the whole step; a click shows the step."""
    table = breakdown(record, by="step")
    if table["step"].nunique() < 2:
        return None
    rows = _rows(table)
    shown = rows["where"].drop_duplicates()
    fitting = MOST_ROWS * len(shown) // max(len(rows), MOST_ROWS)
    rows = rows[rows["where"].isin(shown[:fitting])]
    times = steps(record).set_index("step")
    events = times.loc[rows["step"], ["start_ns", "end_ns"]].reset_index(drop=True)
    events = events.assign(group=np.arange(len(rows)), row=NONE)
    columns = tuple(Column(column.key, column.label, column.unit) for column in COLUMNS)
    left_out = len(shown) - len(shown[:fitting])
    more = f"Of {left_out:,} more steps only the timeline tells." if left_out else ""
    return Panel("Steps", columns, rows, events, notes=(NOTE, more), bars=BARS)


def _rows(table: pd.DataFrame) -> pd.DataFrame:
    """The classes that took any time, with the name of the bar that each is part of."""
    rows = table[table["time_ns"] > 0].reset_index(drop=True)
    where = [
        _place(device, state, step)
        for device, state, step in zip(rows["device"], rows["state"], rows["step"], strict=True)
    ]
    return rows.assign(where=pd.Series(where, dtype=object))


def _place(device: int, state: str, step: int) -> str:
    name = "CPU" if state == HOST else f"GPU {device}" if device >= 0 else "GPU"
    return f"{name} · step {step}" if step >= 0 else name


def _events(record: Record, rows: pd.DataFrame) -> tuple[pd.DataFrame, int]:
    """The segments of each device, fewer where they are too many, and how exact they are."""
    segments = breakdown_segments(record)
    number = pd.Series(np.arange(len(rows)), pd.MultiIndex.from_frame(rows[["device", "class"]]))
    group = number.reindex(pd.MultiIndex.from_frame(segments[["device", "class"]]))
    segments = segments.assign(group=group.to_numpy())
    devices = segments["device"].unique()
    parts = [
        coarse(segments[segments["device"] == device], MOST_EVENTS // len(devices))
        for device in devices
    ]
    events = pd.concat([part for part, _ in parts], ignore_index=True)
    return events.assign(row=NONE), max(width for _, width in parts)
