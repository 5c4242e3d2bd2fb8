"""The panels whose first lines the static output has: where the time went, and why."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import pandas as pd

from gpuprof_widgets.analyses.columns import Unit
from gpuprof_widgets.analyses.quantity import (
    format_bandwidth,
    format_bytes,
    format_flops,
    format_ns,
    format_share,
)
from gpuprof_widgets.trace.model import Record
from gpuprof_widgets.views.page_panels import panels
from gpuprof_widgets.views.panels.panel import Panel
from gpuprof_widgets.views.static_tables import Column, OpTable
from gpuprof_widgets.views.table import Column as PanelColumn

STATIC_PANELS = ("breakdown", "idle", "critical_path")
MOST_ROWS = 6
MOST_NUMBERS = 4

FORMATS: dict[Unit, Callable[[float], str]] = {
    "count": lambda value: f"{value:,.0f}",
    "number": lambda value: f"{value:,.3g}",
    "ns": format_ns,
    "bytes": format_bytes,
    "flop": format_flops,
    "share": format_share,
    "bytes/s": format_bandwidth,
    "flop/s": lambda value: f"{format_flops(value)}/s",
}


@dataclass(frozen=True)
class PanelTable(OpTable):
    """The first rows of a panel, headed by its title."""

    title: str = ""

    @property
    def caption(self) -> str:
        return self.title


def static_panels(record: Record) -> list[OpTable]:
    """The first rows of the most telling panels; one row alone tells nothing."""
    shown = panels(record)
    telling = [shown[name] for name in STATIC_PANELS if name in shown]
    return [_table(panel) for panel in telling if len(panel.rows) > 1]


def _table(panel: Panel) -> OpTable:
    """The texts of a row as its name, and its first numbers."""
    by = panel.sort or ("" if panel.bars is None else panel.bars.value)
    rows = panel.rows
    if by:
        rows = rows.sort_values(by, ascending=False, kind="stable")
    texts = [column.key for column in panel.columns if column.unit == "text"]
    numbers = [column for column in panel.columns if column.unit != "text"][:MOST_NUMBERS]
    first = rows.head(MOST_ROWS)
    names = [
        " · ".join(text for text in map(str, row) if text)
        for row in first[texts].itertuples(index=False, name=None)
    ]
    table = first.assign(name=pd.Series(names, first.index, dtype=object))
    title = panel.title
    if len(rows) > len(first):
        title += f": {len(first)} of {len(rows):,} rows"
    return PanelTable(
        tuple(map(_column, numbers)), table, len(rows), by, panel.columns[0].label, title
    )


def _column(column: PanelColumn) -> Column:
    write = FORMATS[column.unit]
    return Column(
        column.label,
        column.key,
        lambda value: "–" if pd.isna(value) else write(value),
        share=column.unit == "share",
    )
