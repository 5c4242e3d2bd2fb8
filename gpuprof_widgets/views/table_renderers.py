"""A table as the page has it."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any, TypeVar

import pandas as pd

from gpuprof_widgets.analyses.columns import is_missing
from gpuprof_widgets.views.table import Column, Table

TableOrPanel = TypeVar("TableOrPanel", bound=Table)


def first_rows(table: TableOrPanel, most: int) -> TableOrPanel:
    """Return the first rows, with the columns in which any of them has a value."""
    rows = table.rows.head(most)
    telling = tuple(column for column in table.columns if _tells(rows[column.key], column))
    return replace(table, rows=rows, columns=telling)


def _tells(values: pd.Series[Any], column: Column) -> bool:
    """Whether any row has something in a column; the module of a run without modules has not."""
    known = values.notna()
    return bool((known & (values != "") if column.is_text else known).any())


def page_table(table: Table, most_rows: int) -> dict[str, Any]:
    """Return what the page needs of the first rows: ``values`` has a list per column."""
    shown = first_rows(table, most_rows)
    left_out = len(table.rows) - len(shown.rows)
    more = f"{left_out:,} more rows are not listed here." if left_out else ""
    return {
        "title": table.title,
        "note": " ".join(filter(None, (*table.notes, more))),
        "sort": table.sort,
        "columns": [[c.key, c.label, c.unit, c.aggregate, c.of] for c in shown.columns],
        "length": len(shown.rows),
        "values": [_page_values(shown.rows[c.key].tolist(), c) for c in shown.columns],
    }


def _page_values(values: list[Any], column: Column) -> list[Any]:
    if column.is_text:
        return ["" if is_missing(value) else str(value) for value in values]
    return [_page_number(value) for value in values]


def _page_number(value: Any) -> float | None:
    """JSON knows neither NaN nor infinities; nine digits are more than any reader needs."""
    if is_missing(value) or value in (math.inf, -math.inf):
        return None
    return int(value) if float(value).is_integer() else float(f"{value:.9g}")
