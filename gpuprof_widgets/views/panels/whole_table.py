"""The tab of an analysis whose table is shown as it is: what each column holds, its name says."""

from __future__ import annotations

import numpy as np
import pandas as pd

from gpuprof_widgets.analyses.columns import heading, is_link, is_signed, unit_of
from gpuprof_widgets.analyses.table_with_reason import what_is_lacking
from gpuprof_widgets.trace.schema import NONE
from gpuprof_widgets.views.panels.panel import Column, Panel, Unit

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
    keys = [key for key in map(str, table) if not is_link(table, key)]
    is_timed = {START, DUR} <= set(keys)
    columns = tuple(_column(key, table[key], is_timed) for key in keys)
    rows = pd.DataFrame({key: _cells(key, table[key]) for key in keys}).reset_index(drop=True)
    return Panel(title, columns, rows, _events(table) if is_timed else None, note=note)


def _column(key: str, values: pd.Series, is_timed: bool) -> Column:
    follows_range = is_timed and key == DUR
    return Column(key, _label(key), _unit(key, values), "time" if follows_range else "")


def _label(key: str) -> str:
    words = [WORDS.get(word, word) for word in heading(key).split("_")]
    return " ".join([words[0][:1].upper() + words[0][1:], *words[1:]])


def _unit(key: str, values: pd.Series) -> Unit:
    if not pd.api.types.is_numeric_dtype(values) or pd.api.types.is_bool_dtype(values):
        return "text"
    plain: Unit = "count" if pd.api.types.is_integer_dtype(values) else "number"
    return unit_of(key) or plain


def _cells(key: str, values: pd.Series) -> pd.Series:
    """Return the values with words for bools, and without the -1 that stands for no value."""
    if pd.api.types.is_bool_dtype(values):
        return values.map({True: "yes", False: "no"})
    if pd.api.types.is_integer_dtype(values) and not is_signed(key):
        return values.where(values != NONE)
    return values


def _events(table: pd.DataFrame) -> pd.DataFrame:
    """Return each row's range as its one event."""
    events = table[[START]].assign(end_ns=table[START] + table[DUR], row=table.get("row", NONE))
    return events.assign(group=np.arange(len(table))).reset_index(drop=True)
