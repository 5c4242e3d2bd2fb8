"""The tables of a comparison as the page gets them."""

from __future__ import annotations

import math
from typing import Any

from gpuprof_widgets.analyses.compare.tables import Runs
from gpuprof_widgets.views.static_comparison import titled_tables

MOST_ROWS = 300
"""Of each table: those that moved the total most."""


def delta_tables(runs: Runs) -> list[dict[str, Any]]:
    """Per table ``key``, ``title``, ``noun``, ``rows`` (`_row`), and ``total``: how many it has."""
    return [
        {
            "key": f"{noun.lower()} {number}",
            "title": title,
            "noun": noun,
            "rows": [_row(row) for row in table.head(MOST_ROWS).to_dict("records")],
            "total": len(table),
        }
        for number, (noun, title, table) in enumerate(titled_tables(runs))
    ]


def _row(row: dict[Any, Any]) -> dict[str, Any]:
    """``names``: those of its events in either run; ``category``: of its events, "" without any."""
    spread = float(row["spread_ns"])
    calls = [float(row["calls_a"]), float(row["calls_b"])] if "calls_a" in row else None
    return {
        "name": str(row["name"]),
        "category": _category(row),
        "names": _names(row),
        "change": str(row["change"]),
        "calls": calls,
        "time": [float(row["a_ns"]), float(row["b_ns"])],
        "spread": None if math.isnan(spread) else spread,
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
    if "code" in row:
        lines = (row["line_a"], row["line_b"])
        return [[f"{line}: {row['code']}"] if line >= 0 else [] for line in lines]
    if "name_a" not in row:
        return [[], []]
    return [[name for name in str(row[key]).split("\n") if name] for key in ("name_a", "name_b")]
