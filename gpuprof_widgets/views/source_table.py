"""The source of two runs as one table: what diff shows, with the times of the lines."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from gpuprof_widgets.analyses.compare.lines import source
from gpuprof_widgets.analyses.compare.tables import ADDED, GONE, SAME, Runs
from gpuprof_widgets.views.table import Column, Table
from gpuprof_widgets.views.table_renderers import page_table

TITLE = "Source of both runs"
STATIC_TITLE = "Changes in the source"
AROUND = 3
"""Lines that are shown before and after a change, as many as diff shows."""
SIGNS = {SAME: " ", ADDED: "+", GONE: "−"}
NOTE = "+ is in B only, − in A only."
NO_BREAK = "\N{NO-BREAK SPACE}"
WORDS = {ADDED: "in B only", GONE: "in A only", SAME: "same"}

TIMES = (
    Column("a_ns", "A", "ns"),
    Column("b_ns", "B", "ns"),
    Column("delta_ns", "B − A", "change"),
)


def source_table(runs: Runs) -> list[Table]:
    """Return the changed lines with those around them; nothing where no line changed."""
    rows = source(runs)
    shown = rows[_near_changes(rows["source"])]
    signs = shown["source"].map(SIGNS)
    places = zip(signs, _numbers(shown), shown["code"], strict=True)
    names = [f"{sign} {line:>3}  {_indented(code)}" for sign, line, code in places]
    columns = (Column("name", "Source"), *TIMES)
    table = Table(STATIC_TITLE, columns, shown.assign(name=names), notes=(NOTE,), code=("name",))
    return [table] if len(shown) else []


def page_source(runs: Runs) -> list[dict[str, Any]]:
    """Return all lines as `DeltaTable` reads a table; nothing where no source is known."""
    rows = source(runs)
    if not len(rows):
        return []
    near = _near_changes(rows["source"])
    shown = rows.assign(
        name=[
            f"{SIGNS[kind]} {line}".strip()
            for kind, line in zip(rows["source"], _numbers(rows), strict=True)
        ],
        code=rows["code"].map(_indented),
        source=rows["source"].map(WORDS),
        order=range(1, len(rows) + 1),
    )
    columns = (
        *(Column("name", "Line"), Column("code", "Source"), *TIMES),
        *(Column("source", "In"), Column("order", "#", "number")),
    )
    return [
        {
            **page_table(Table(TITLE, columns, shown, sort="order", notes=(NOTE,))),
            "key": "source",
            "noun": "Line",
            "total": len(rows),
            # Where nothing changed the whole source is shown.
            "changed": (near if near.any() else ~near).tolist(),
            "category": ["cell_line"] * len(rows),
            "names": [line_names(row) for row in rows.to_dict("records")],
        }
    ]


def line_names(row: dict[Any, Any]) -> list[list[str]]:
    """Return the names of a line's events in each run, as ``3: y = f(x)``; redacted ``3``."""
    code = row["code"].strip()
    sides = (row["line_a"], row["line_b"])
    return [[f"{line}: {code}" if code else str(line)] if line >= 0 else [] for line in sides]


def _numbers(rows: pd.DataFrame) -> pd.Series[int]:
    return rows["line_b"].where(rows["line_b"] >= 0, rows["line_a"])


def _indented(code: str) -> str:
    """Return the line with an indentation that a page shows."""
    bare = code.lstrip()
    return NO_BREAK * len(code[: len(code) - len(bare)].expandtabs(4)) + bare


def _near_changes(kinds: pd.Series[str]) -> npt.NDArray[np.bool_]:
    """Return which lines changed, or stand near one that did."""
    near: npt.NDArray[np.bool_] = (kinds != SAME).to_numpy(bool)
    for _ in range(AROUND):
        near = near | np.append(near[1:], False) | np.append(False, near[:-1])
    return near[: len(kinds)]
