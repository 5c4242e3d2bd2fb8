"""The part of a comparison that needs no script: findings in words, and tables of differences."""

from __future__ import annotations

import pandas as pd

from gpuprof_widgets.analyses.compare import tables
from gpuprof_widgets.analyses.compare.deltas import NOISE, SAME
from gpuprof_widgets.analyses.compare.measured import QUANTITIES
from gpuprof_widgets.analyses.compare.sentences import comparison_findings
from gpuprof_widgets.analyses.compare.tables import MEASURE, Runs
from gpuprof_widgets.views.static import html_findings, text_findings, text_table
from gpuprof_widgets.views.table import Column, Table
from gpuprof_widgets.views.table_renderers import html_table

TOP = 12
"""Rows of each table; what is noise or the same is in none of them."""

PER = {True: "per step", False: "of the run"}
COLUMNS = (
    Column("a_ns", "A", "ns"),
    Column("b_ns", "B", "ns"),
    Column("delta_ns", "B − A", "change"),
)
CALLS = (Column("calls_a", "calls A", "number"), Column("calls_b", "calls B", "number"))


def static_html(runs: Runs) -> str:
    """Findings and tables as HTML without script, as in `static.static_html`."""
    parts = (html_findings(comparison_findings(runs)), static_tables(runs))
    return f'<div class="gpuprof-static">{"".join(parts)}</div>'


def static_tables(runs: Runs) -> str:
    """The tables alone."""
    return "".join(map(html_table, _tables(runs)))


def static_text(runs: Runs) -> str:
    """Findings and tables as plain text: below 80 columns, no escape codes."""
    words = text_findings(comparison_findings(runs), all_in="comparison.findings()")
    for table in _tables(runs):
        words += ["", *text_table(table)]
    return "\n".join(words)


def titled_tables(runs: Runs) -> list[tuple[str, str, pd.DataFrame]]:
    """What a comparison shows, in this order: noun, title and table, those with any rows."""
    per = PER[runs.steps is not None]
    kinds = [
        ("Class", f"Where the time went, {per}", named_classes(tables.classes(runs))),
        *_by_measure("Op", "Ops by {}", runs, tables.ops),
        ("Kernel", f"Kernels, {per}", tables.kernels(runs)),
        *_by_measure("Line", "Lines by {}", runs, tables.lines),
        *_by_measure("Module", "Modules by {}", runs, tables.modules),
        ("Function", f"Python functions by self time, {PER[False]}", tables.functions(runs)),
    ]
    return [(noun, title, _named(table)) for noun, title, table in kinds if len(table)]


def _by_measure(
    noun: str, title: str, runs: Runs, table: object
) -> list[tuple[str, str, pd.DataFrame]]:
    """The table by GPU time where there is any, and by CPU time."""
    assert callable(table)
    first = table(runs, None)
    measures = dict.fromkeys((first.attrs[MEASURE], "cpu_self"))
    per = PER[runs.steps is not None]
    return [
        (noun, f"{title.format(QUANTITIES[noun.lower()][measure])} {per}", table(runs, measure))
        for measure in measures
    ]


def named_classes(table: pd.DataFrame) -> pd.DataFrame:
    """The classes of time with a ``name`` that says of idle ones that they are."""
    if not len(table):
        return table
    idle = table["state"] == "idle"
    names = table["class"].astype(str)
    return table.assign(name=names.where(~idle, "idle: " + names))


def _named(table: pd.DataFrame) -> pd.DataFrame:
    """With a ``name``: of a line its code and number in b, else in a."""
    if "code" not in table:
        return table
    number = table["line_b"].where(table["line_b"] >= 0, table["line_a"])
    return table.assign(name=number.astype(str) + ": " + table["code"])


def _tables(runs: Runs) -> list[Table]:
    shown = []
    for noun, title, table in titled_tables(runs):
        # What is new or gone without any time is in the tables of the comparison only.
        real = table[~table["change"].isin([NOISE, SAME]) & (table["delta_ns"] != 0)]
        if len(real):
            rows = real.head(TOP).assign(name=_marked(real.head(TOP)))
            title = f"{title}: {len(rows):,} of {len(real):,} that differ"
            columns = (Column("name", noun), *COLUMNS, *(CALLS if "calls_a" in real else ()))
            shown.append(Table(title, columns, rows))
    return shown


def _marked(table: pd.DataFrame) -> list[str]:
    """Names, those of one run only said to be so."""
    marks = {"added": " (new in B)", "gone": " (gone)"}
    return [
        f"{name}{marks.get(change, '')}"
        for name, change in zip(table["name"], table["change"], strict=True)
    ]
