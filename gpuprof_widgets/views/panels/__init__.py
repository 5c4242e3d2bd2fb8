"""Tables and plots of one analysis each, below the main views.

An analysis with a ``tab`` in `ANALYSES` has its whole table there. A tab with more than that, such
as a plot or rows that follow a brushed range, is a function that returns a `Panel` and a row of
`PANELS`. All panels are encoded, drawn and linked in the same way.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import replace
from functools import partial

import numpy as np
import pandas as pd

from gpuprof_widgets.analyses import ANALYSES, Analysis
from gpuprof_widgets.analyses.columns import heading, is_link
from gpuprof_widgets.analyses.reasons import why_empty
from gpuprof_widgets.trace.model import Record
from gpuprof_widgets.trace.schema import NONE
from gpuprof_widgets.views.panels.counters import allocator_panel, counters_panel
from gpuprof_widgets.views.panels.gpu_time import (
    breakdown_panel,
    critical_path_panel,
    idle_panel,
    step_breakdown_panel,
    streams_panel,
)
from gpuprof_widgets.views.panels.kernels import (
    kernels_panel,
    launches_panel,
    roofline_panel,
    sequences_panel,
)
from gpuprof_widgets.views.panels.regions import (
    annotations_panel,
    modules_panel,
    python_time_panel,
    sampled_lines_panel,
)
from gpuprof_widgets.views.panels.transfers import collectives_panel, copies_panel
from gpuprof_widgets.views.table import MOST_ROWS, Panel, table_of
from gpuprof_widgets.views.table_renderers import rows_left_out

PanelOf = Callable[[Record], Panel | None]

PANELS: dict[str, PanelOf] = {
    "breakdown": breakdown_panel,
    "step_breakdown": step_breakdown_panel,
    "critical_path": critical_path_panel,
    "idle": idle_panel,
    "streams": streams_panel,
    "kernels": kernels_panel,
    "launches": launches_panel,
    "sequences": sequences_panel,
    "copies": copies_panel,
    "collectives": collectives_panel,
    "modules": modules_panel,
    "python_time": python_time_panel,
    "sampled_lines": sampled_lines_panel,
    "annotations": annotations_panel,
    "roofline": roofline_panel,
    "allocator": allocator_panel,
    "counters": counters_panel,
}
"""The panels by name, in the order of their tabs; None where a record has nothing to show."""

START, DUR = "start_ns", "dur_ns"
WORDS = {"dur": "duration", "cpu": "CPU", "gpu": "GPU", "sm": "SM"}
"""The headings of words in names of columns."""


def all_panels() -> dict[str, PanelOf]:
    """Return those of `PANELS` and, behind them, those of analyses with a ``tab``."""
    tabs = {name: partial(_tab, row) for name, row in ANALYSES.items() if row.tab}
    return PANELS | tabs


def _tab(analysis: Analysis, record: Record) -> Panel | None:
    try:
        return table_panel(analysis.tab, analysis.function(record), note=analysis.question)
    except Exception as error:  # another package's: the page stands without it
        warnings.warn(f"the tab {analysis.tab} is left out: {error!r}", stacklevel=2)
        return None


def table_panel(title: str, table: pd.DataFrame, *, note: str = "") -> Panel | None:
    """Return a tab with the columns of a table, and its first rows; None if it is empty.

    Rows with ``start_ns`` and ``dur_ns`` are linked to the timeline: a click on one lights up its
    slice (``row``) or its range, and ``dur_ns`` counts the time within a brushed range.
    """
    if not len(table) or why_empty(table):
        return None
    rows = table.head(MOST_ROWS)  # to convert more would take memory for what no page lists
    shown = table_of(rows[[key for key in rows if not is_link(rows, str(key))]], label=_label)
    notes = tuple(filter(None, (note, rows_left_out(len(table) - len(rows)))))
    if not all(_is_whole(table, key) for key in (START, DUR)):
        return Panel(title, shown.columns, shown.rows, notes=notes)
    columns = [replace(c, aggregate="time") if c.key == DUR else c for c in shown.columns]
    return Panel(title, tuple(columns), shown.rows, _events(rows), notes=notes)


def _label(key: str) -> str:
    words = [WORDS.get(word, word) for word in heading(key).split("_")]
    return " ".join([words[0][:1].upper() + words[0][1:], *words[1:]])


def _is_whole(table: pd.DataFrame, key: str) -> bool:
    """Whether the column is there, with whole numbers in all rows."""
    return key in table and pd.api.types.is_integer_dtype(table[key]) and not table[key].hasnans


def _events(table: pd.DataFrame) -> pd.DataFrame:
    """Return each row's range as its one event."""
    start = table[START].to_numpy(np.int64)
    return pd.DataFrame(
        {
            "start_ns": start,
            "end_ns": start + table[DUR].to_numpy(np.int64),
            "row": table["row"] if _is_whole(table, "row") else NONE,
            "group": np.arange(len(table)),
        }
    )
