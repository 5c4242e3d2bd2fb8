"""The tab of an analysis whose table is shown as it is: what each column holds, its name says."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from gpuprof_widgets.analyses.columns import heading, is_link, is_none, is_signed, unit_of
from gpuprof_widgets.analyses.table_with_reason import what_is_lacking
from gpuprof_widgets.trace.schema import NONE
from gpuprof_widgets.views.panels.panel import Column, Panel, Unit

Floats = npt.NDArray[np.float64]

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
    is_timed = all(key in keys and is_whole(table[key]) for key in (START, DUR))
    columns = tuple(_column(key, table[key], is_timed) for key in keys)
    rows = pd.DataFrame({column.key: _cells(column, table[column.key]) for column in columns})
    return Panel(title, columns, rows, _events(table) if is_timed else None, note=note)


def _column(key: str, values: pd.Series, is_timed: bool) -> Column:
    follows_range = is_timed and key == DUR
    return Column(key, _label(key), _unit(key, values), "time" if follows_range else "")


def _label(key: str) -> str:
    words = [WORDS.get(word, word) for word in heading(key).split("_")]
    return " ".join([words[0][:1].upper() + words[0][1:], *words[1:]])


def _unit(key: str, values: pd.Series) -> Unit:
    if is_whole(values):
        return unit_of(key) or "count"
    return unit_of(key) or "number" if pd.api.types.is_float_dtype(values) else "text"


def is_whole(values: pd.Series) -> bool:
    """Return whether all values are whole numbers, none missing."""
    return pd.api.types.is_integer_dtype(values) and not values.hasnans


def _cells(column: Column, values: pd.Series) -> list[Any] | Floats:
    """Return the values as the page has them: plain numbers and texts, -1 for none left out."""
    if column.unit == "text":
        return [_text(value) for value in values]
    numbers = values.to_numpy(np.float64, na_value=np.nan)
    if is_whole(values) and not is_signed(column.key):
        numbers = np.where(values == NONE, np.nan, numbers)
    return numbers


def _text(value: object) -> str:
    if isinstance(value, bool | np.bool_):
        return "yes" if value else "no"
    return "" if is_none("", value) or value is pd.NaT else str(value)


def _events(table: pd.DataFrame) -> pd.DataFrame:
    """Return each row's range as its one event."""
    row = table["row"] if "row" in table and is_whole(table["row"]) else NONE
    start = table[START].to_numpy(np.int64)
    events = {"start_ns": start, "end_ns": start + table[DUR].to_numpy(np.int64), "row": row}
    return pd.DataFrame(events | {"group": np.arange(len(table))})
