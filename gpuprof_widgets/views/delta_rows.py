"""The tables of a comparison as the page gets them."""

from __future__ import annotations

from typing import Any

import pandas as pd

from gpuprof_widgets.analyses.columns import unit_of
from gpuprof_widgets.analyses.compare.deltas import ADDED
from gpuprof_widgets.analyses.compare.tables import Runs
from gpuprof_widgets.views.static_comparison import titled_tables
from gpuprof_widgets.views.table import Column, Table
from gpuprof_widgets.views.table_renderers import page_table

MOST_ROWS = 300
"""Of each table: those that moved the total most."""

TIMES = (
    Column("delta_ns", "B − A", "change"),
    Column("a_ns", "A", "ns"),
    Column("b_ns", "B", "ns"),
    Column("ratio", "B / A", "ratio"),
    Column("spread_ns", "Spread", "ns"),
)
CALLS = {"calls_a": "Calls A", "calls_b": "Calls B"}
CHANGE = Column("change", "Change")


def delta_tables(runs: Runs) -> list[dict[str, Any]]:
    """Return each table as `page_table` does, its ``key``, ``noun``, and ``total``: all its rows.

    Of each row listed, ``names``: those of its events in either run, and ``category``: that of its
    events, "" without any.
    """
    return [
        _page_delta(f"{noun.lower()} {number}", noun, title, table)
        for number, (noun, title, table) in enumerate(titled_tables(runs))
    ]


def _page_delta(key: str, noun: str, title: str, table: pd.DataFrame) -> dict[str, Any]:
    calls = [
        Column(side, label, unit_of(table, side)) for side, label in CALLS.items() if side in table
    ]
    columns = (Column("name", noun), *TIMES, *calls, CHANGE)
    listed = table.head(MOST_ROWS).to_dict("records")
    rows = table.assign(
        ratio=table["b_ns"] / table["a_ns"].where(table["a_ns"] != 0),
        change=table["change"].replace(ADDED, "new in B"),
    )
    return {
        **page_table(Table(title, columns, rows, sort="delta_ns"), MOST_ROWS),
        "key": key,
        "noun": noun,
        "total": len(table),
        "category": list(map(_category, listed)),
        "names": list(map(_names, listed)),
    }


def _category(row: dict[Any, Any]) -> str:
    if "code" in row:
        return "cell_line"
    if "state" in row:
        return ""
    # Our own regions; in another's trace the modules are Python frames.
    is_frame = str(row["name"]).startswith("nn.Module: ")
    return str(row.get("category", "python_function" if is_frame else "module"))


def _names(row: dict[Any, Any]) -> list[list[str]]:
    """The names that its events have in A, and in B."""
    if "code" in row:
        lines = (row["line_a"], row["line_b"])
        return [[f"{line}: {row['code']}"] if line >= 0 else [] for line in lines]
    if "name_a" not in row:
        return [[], []]
    return [[name for name in str(row[key]).split("\n") if name] for key in ("name_a", "name_b")]
