"""The tab of an analysis whose table is shown as it is: what each column holds, its name says."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pandas as pd

from gpuprof_widgets.analyses.columns import heading, is_link
from gpuprof_widgets.analyses.table_with_reason import what_is_lacking
from gpuprof_widgets.trace.schema import NONE
from gpuprof_widgets.views.panels.panel import Panel
from gpuprof_widgets.views.table import Column, table_of

START, DUR = "start_ns", "dur_ns"
WORDS = {"dur": "duration", "cpu": "CPU", "gpu": "GPU", "sm": "SM"}
"""How words in names of columns are written."""


def table_panel(title: str, table: pd.DataFrame, *, note: str = "") -> Panel | None:
    """Return a tab with all rows and columns of a table; None if the table is empty.

    Rows with ``start_ns`` and ``dur_ns`` are linked to the timeline: a click on one lights up its
    slice (``row``) or its range, and ``dur_ns`` is that within a brushed range.
    """
    if not len(table) or what_is_lacking(table):
        return None
    shown = table_of(table[[key for key in table if not is_link(table, str(key))]], label=_label)
    if not all(key in table and is_whole(table[key]) for key in (START, DUR)):
        return Panel(title, shown.columns, shown.rows, notes=(note,))
    columns = tuple(_timed(column) for column in shown.columns)
    return Panel(title, columns, shown.rows, _events(table), notes=(note,))


def _timed(column: Column) -> Column:
    return replace(column, aggregate="time") if column.key == DUR else column


def _label(key: str) -> str:
    words = [WORDS.get(word, word) for word in heading(key).split("_")]
    return " ".join([words[0][:1].upper() + words[0][1:], *words[1:]])


def is_whole(values: pd.Series) -> bool:
    """Return whether all values are whole numbers, none missing."""
    return pd.api.types.is_integer_dtype(values) and not values.hasnans


def _events(table: pd.DataFrame) -> pd.DataFrame:
    """Return each row's range as its one event."""
    row = table["row"] if "row" in table and is_whole(table["row"]) else NONE
    start = table[START].to_numpy(np.int64)
    events = {"start_ns": start, "end_ns": start + table[DUR].to_numpy(np.int64), "row": row}
    return pd.DataFrame(events | {"group": np.arange(len(table))})
