"""The source of two runs side by side as a table: what diff shows, with the times of the lines."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from gpuprof_widgets.analyses.compare.line_matching import line_name
from gpuprof_widgets.analyses.compare.source import CHANGED, source
from gpuprof_widgets.analyses.compare.tables import ADDED, GONE, SAME, Runs
from gpuprof_widgets.views.table import Column, Table
from gpuprof_widgets.views.table_renderers import page_table

TITLE = "Source side by side"
TEXT_TITLE = "Changes in the source"
AROUND = 3
"""Lines that are shown before and after a change, as many as diff shows."""
MARKS = {SAME: "", CHANGED: "~ ", ADDED: "+ ", GONE: "− "}
NOTE = "~ changed, + new in B, − gone from A."
NO_BREAK = "\N{NO-BREAK SPACE}"
WORDS = {ADDED: "new in B", CHANGED: "changed", GONE: "gone", SAME: "same"}

COLUMNS = (
    Column("name", "Line"),
    Column("text_a", "Source of A"),
    Column("text_b", "Source of B"),
    Column("a_ns", "A", "ns"),
    Column("b_ns", "B", "ns"),
    Column("delta_ns", "B − A", "change"),
)


def static_source(runs: Runs) -> list[Table]:
    """Return the changed lines with those around them; nothing where no line changed."""
    rows = _rows(runs)
    near = _near_changes(rows["source"])
    shown = rows[near]
    table = Table(TITLE, COLUMNS, shown, notes=(NOTE,), code=("text_a", "text_b"))
    return [table] if near.any() else []


def text_source(runs: Runs) -> list[Table]:
    """Return the same for a narrow text: an edited line is two lines, one below the other."""
    rows = _rows(runs)
    shown = [
        line
        for row in rows[_near_changes(rows["source"])].to_dict("records")
        for line in _text_lines(row)
    ]
    keys = ("name", "a_ns", "b_ns", "delta_ns")
    columns = (Column("name", "Source"), *COLUMNS[-3:])
    notes = ("+ is in B only, − in A only.",)
    table = Table(TEXT_TITLE, columns, pd.DataFrame(shown, columns=list(keys)), notes=notes)
    return [table] if shown else []


def _text_lines(row: dict[Any, Any]) -> list[tuple[Any, ...]]:
    """Return one line of a diff, or two of an edited line."""
    a = f"{row['line_a']:>3}  {row['code_a'].expandtabs(4)}"
    b = f"{row['line_b']:>3}  {row['code_b'].expandtabs(4)}"
    times = row["a_ns"], row["b_ns"], row["delta_ns"]
    if row["source"] == CHANGED:
        return [(f"− {a}", times[0], math.nan, math.nan), (f"+ {b}", math.nan, *times[1:])]
    sign = {ADDED: "+", GONE: "−"}.get(row["source"], " ")
    return [(f"{sign} {a if row['source'] == GONE else b}", *times)]


def page_source(runs: Runs) -> list[dict[str, Any]]:
    """Return all lines as `DeltaTable` reads a table; nothing where no source is known."""
    rows = _rows(runs)
    if not len(rows):
        return []
    near = _near_changes(rows["source"])
    order = Column("order", "#", "number")
    words = Column("source", "Source")
    table = Table(
        TITLE,
        (*COLUMNS, words, order),
        rows.assign(order=range(1, len(rows) + 1), source=rows["source"].map(WORDS)),
        sort="order",
        notes=(NOTE,),
    )
    return [
        {
            **page_table(table),
            "key": "source",
            "noun": "Line",
            "total": len(rows),
            # Where nothing changed the whole source is shown.
            "changed": (near if near.any() else ~near).tolist(),
            "category": ["cell_line"] * len(rows),
            "names": [
                line_names((row["line_a"], row["code_a"]), (row["line_b"], row["code_b"]))
                for row in rows.to_dict("records")
            ],
        }
    ]


def _rows(runs: Runs) -> pd.DataFrame:
    table = source(runs)
    number = table["line_b"].where(table["line_b"] >= 0, table["line_a"]).astype(str)
    marks = table["source"].map(MARKS).astype(object)
    return table.assign(
        name=marks + number,
        text_a=[_indented(code) for code in table["code_a"]],
        text_b=[_indented(code) for code in table["code_b"]],
    )


def _indented(code: str) -> str:
    """Return the line with an indentation that a page shows."""
    bare = code.lstrip()
    return NO_BREAK * len(code[: len(code) - len(bare)].expandtabs(4)) + bare


def line_names(*sides: tuple[int, str]) -> list[list[str]]:
    """Return the names that a line's events have in each run, by its number (-1: none) and code."""
    return [[line_name(line, code)] if line >= 0 else [] for line, code in sides]


def _near_changes(kinds: pd.Series[str]) -> npt.NDArray[np.bool_]:
    """Return which lines changed, or stand near one that did."""
    near: npt.NDArray[np.bool_] = (kinds != SAME).to_numpy(bool)
    for _ in range(AROUND):
        near = near | np.append(near[1:], False) | np.append(False, near[:-1])
    return near[: len(kinds)]
