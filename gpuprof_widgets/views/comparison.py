"""The page of a comparison: both timelines on one scale, and below them what differs.

The tables come twice: `static_html` and `static_text` for readers without scripts, and
`delta_tables` as the live page gets them. Both list `titled_tables`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from gpuprof_widgets.analyses.compare import tables
from gpuprof_widgets.analyses.compare.lines import edits, lines, source
from gpuprof_widgets.analyses.compare.measured import QUANTITIES
from gpuprof_widgets.analyses.compare.sentences import IN_ONE, comparison_findings, named_classes
from gpuprof_widgets.analyses.compare.tables import ADDED, GONE, MEASURE, NOISE, SAME, Runs
from gpuprof_widgets.analyses.regions import steps
from gpuprof_widgets.views.page import Page, finding_lines
from gpuprof_widgets.views.report import (
    MimeBundle,
    Picture,
    html_page,
    html_summary,
    remark_lines,
    text_summary,
    three_outputs,
)
from gpuprof_widgets.views.side_by_side import Row, page_group, placed, timelines_picture
from gpuprof_widgets.views.table import Column, Table
from gpuprof_widgets.views.table_renderers import NO_BREAK, html_table, listed, page_table

TITLE = "Two runs compared"
ALL_FINDINGS = "comparison.findings()"

TOP = 12
"""Rows of each static table; what is noise or the same is in none of them."""
MOST_ROWS = 300
"""Rows of each live table: those that moved the total most."""

PER = {True: "per step", False: "of the run"}
DELTA = Column("delta_ns", "B − A", "change")
RUN_TIMES = (Column("a_ns", "A", "ns"), Column("b_ns", "B", "ns"))
CALLS = (Column("calls_a", "Calls A", "number"), Column("calls_b", "Calls B", "number"))
RATIO = (Column("ratio", "B / A", "ratio"), Column("spread_ns", "Spread", "ns"))
CHANGES = (Column("calls_delta", "Calls B − A", "number"), Column("change", "Change"))

SOURCE_TITLE = "Source of both runs"
CHANGES_TITLE = "Changes in the source"
AROUND = 3
"""Lines that are shown before and after a change, as many as diff shows."""
SIGNS = {SAME: " ", ADDED: "+", GONE: "−"}
NOTE = "+ is in B only, − in A only."
WORDS = {ADDED: "in B only", GONE: "in A only", SAME: "same"}


def outputs(runs: Runs, *, embed_runtime: bool) -> list[MimeBundle]:
    """Return the three outputs of a cell, as in `report.outputs`."""
    page, static = comparison_page(runs), static_bundle(runs)
    return three_outputs(static, _picture(runs), page, embed_runtime=embed_runtime)


def standalone_html(runs: Runs) -> str:
    """Return one HTML file with everything in it, for a mail."""
    static = static_html(runs) + _picture(runs).html
    return html_page(TITLE, static, comparison_page(runs))


def _picture(runs: Runs) -> Picture:
    return timelines_picture(placed(_rows(runs)), comparison_findings(runs)[0].text)


def comparison_page(runs: Runs) -> Page:
    """Return findings, both timelines, the steps of each run and the tables as data."""
    rows = _rows(runs)
    has_times = any(len(row.record.trace) for row in rows)  # cProfile knows no times
    group = page_group(rows)
    return {
        "kind": "comparison",
        **group,
        "label": TITLE if has_times else f"{TITLE}: {', '.join(group['titles'])}",
        "findings": finding_lines(comparison_findings(runs), 0),
        "notes": [],
        "has_times": has_times,
        "steps": [
            steps(row.record)[["start_ns", "end_ns"]].astype(float).to_numpy().tolist()
            for row in placed(rows)
        ],
        "tables": delta_tables(runs),
    }


def _rows(runs: Runs) -> list[Row]:
    """Return A and B, whose titles have their labels where they have any."""
    named = zip((runs.a, runs.b), "AB", runs.names, strict=True)
    return [Row(run, f"{letter} · {name}" if name else letter) for run, letter, name in named]


def static_bundle(runs: Runs) -> dict[str, str]:
    """Return findings and tables by their MIME types, as `report.static_bundle` does."""
    # The authors' notes of both runs, whose times are since the start of each run.
    notes = [line for row in placed(_rows(runs)) for line in remark_lines(row.record, row.title)]
    tables, ranked = [*source_table(runs), *_tables(runs)], comparison_findings(runs)
    html = html_summary(ranked, map(html_table, tables), remarks=notes, all_in=ALL_FINDINGS)
    return {
        "text/plain": text_summary(ranked, tables, remarks=notes, all_in=ALL_FINDINGS),
        "text/html": html,
    }


def static_html(runs: Runs) -> str:
    """Return findings and tables as HTML without script, as in `report.static_html`."""
    return static_bundle(runs)["text/html"]


def static_text(runs: Runs) -> str:
    """Return findings and tables as plain text: below 80 columns, no escape codes."""
    return static_bundle(runs)["text/plain"]


def titled_tables(runs: Runs) -> list[tuple[str, str, pd.DataFrame]]:
    """Return noun, title and table of what a comparison shows, in order, if it has any rows."""
    per = PER[runs.steps is not None]
    kinds = [
        ("Class", f"Where the time went, {per}", named_classes(tables.classes(runs))),
        *_by_measure("Op", "Ops by {}", runs, tables.ops),
        ("Kernel", f"Kernels, {per}", tables.kernels(runs)),
        *_by_measure("Line", "Lines by {}", runs, lines),
        *_by_measure("Module", "Modules by {}", runs, tables.modules),
        ("Function", f"Python functions by self time, {PER[False]}", tables.functions(runs)),
    ]
    return [(noun, title, _named(table)) for noun, title, table in kinds if len(table)]


def _by_measure(
    noun: str, title: str, runs: Runs, table: Callable[[Runs, str | None], pd.DataFrame]
) -> list[tuple[str, str, pd.DataFrame]]:
    """Return the table by GPU time where there is any, and by CPU time."""
    first = table(runs, None)
    measures = dict.fromkeys((first.attrs[MEASURE], "cpu_self"))
    per = PER[runs.steps is not None]
    return [
        (noun, f"{title.format(QUANTITIES[noun.lower()][measure])} {per}", table(runs, measure))
        for measure in measures
    ]


def _named(table: pd.DataFrame) -> pd.DataFrame:
    """Return the table with a ``name``: that of a line in b, else in a."""
    if "code" not in table:
        return table
    names = map(line_names, table.to_dict("records"))
    return table.assign(name=[(of_b or of_a)[0] for of_a, of_b in names])


def _tables(runs: Runs) -> list[Table]:
    shown = []
    for noun, title, table in titled_tables(runs):
        # Rows without any time, new or gone, are in the tables of `Comparison` only.
        real = table[~table["change"].isin([NOISE, SAME]) & (table["delta_ns"] != 0)]
        if len(real):
            rows = real.head(TOP)
            words = rows["change"].map(IN_ONE)
            rows = rows.assign(
                name=rows["name"].where(words.isna(), rows["name"] + " (" + words + ")")
            )
            title = f"{title}: {len(rows):,} of {len(real):,} that differ"
            columns = (Column("name", noun), *RUN_TIMES, DELTA, *_calls(real))
            shown.append(Table(title, columns, rows))
    return shown


def _calls(table: pd.DataFrame) -> tuple[Column, ...]:
    """Return the columns of calls that the table has: classes of time are not called."""
    return tuple(column for column in CALLS if column.key in table)


def delta_tables(runs: Runs) -> list[dict[str, Any]]:
    """Return each table as `page_table` does, with ``key``, ``noun`` and ``total`` (all its rows).

    Each listed row has ``changed`` (whether it is more than noise), ``names`` (of its events in
    either run) and ``category`` (of its events, "" without any).
    """
    tables = [
        _page_delta(f"{noun.lower()} {number}", noun, title, table)
        for number, (noun, title, table) in enumerate(titled_tables(runs))
    ]
    # What changed in the source comes first: that is what the reader wants to see the effect of.
    of_source = page_source(runs)
    return [*of_source, *tables] if len(edits(runs)) else [*tables, *of_source]


def _page_delta(key: str, noun: str, title: str, table: pd.DataFrame) -> dict[str, Any]:
    columns = (Column("name", noun), DELTA, *RUN_TIMES, *RATIO, *_calls(table), *CHANGES)
    records = table.head(MOST_ROWS).to_dict("records")
    counted = "calls_a" in table
    more = table["calls_b"] - table["calls_a"] if counted else pd.Series(dtype=float)
    rows = table.assign(
        ratio=table["b_ns"] / table["a_ns"].where(table["a_ns"] != 0),
        calls_delta=more.where(more != 0) if counted else None,
        change=table["change"].replace(IN_ONE),
    )
    return {
        **page_table(listed(Table(title, columns, rows, sort="delta_ns"), MOST_ROWS)),
        "key": key,
        "noun": noun,
        "total": len(table),
        "changed": [row["change"] not in (NOISE, SAME) for row in records],
        "category": list(map(_category, records)),
        "names": list(map(_names, records)),
    }


def _category(row: dict[Any, Any]) -> str:
    if "code" in row:
        return "cell_line"
    if "state" in row:
        return ""
    # A module is a region of ours; in traces of other tools it is a Python frame.
    is_frame = str(row["name"]).startswith("nn.Module: ")
    return str(row.get("category", "python_function" if is_frame else "module"))


def _names(row: dict[Any, Any]) -> list[list[str]]:
    """Return the names that the row's events have in A, and in B."""
    if "code" in row:
        return line_names(row)
    if "name_a" not in row:
        return [[], []]
    return [[name for name in str(row[key]).split("\n") if name] for key in ("name_a", "name_b")]


def source_table(runs: Runs) -> list[Table]:
    """Return the changed lines with those around them; nothing where no line changed."""
    rows = source(runs)
    shown = rows[_near_changes(rows["source"])]
    signs = shown["source"].map(SIGNS)
    places = zip(signs, _numbers(shown), shown["code"], strict=True)
    names = [f"{sign} {line:>3}  {_indented(code)}" for sign, line, code in places]
    columns = (Column("name", "Source"), *RUN_TIMES, DELTA)
    table = Table(CHANGES_TITLE, columns, shown.assign(name=names), notes=(NOTE,), code=("name",))
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
        *(Column("name", "Line"), Column("code", "Source"), *RUN_TIMES, DELTA),
        *(Column("source", "In"), Column("order", "#", "number")),
    )
    return [
        {
            **page_table(Table(SOURCE_TITLE, columns, shown, sort="order", notes=(NOTE,))),
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
