"""The part of a report that needs no script: findings in words, the op table, and the picture.

This is what a reader sees of an untrusted, sanitised or printed notebook. The HTML therefore uses
only tags that JupyterLab's sanitiser and `nbconvert --sanitize-html` both leave standing (the
latter turns `th`, `caption` and `br` into visible text), and no colour of its own for text, so that
it is legible on any theme. Inline styles only decorate: they may be dropped.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from html import escape
from textwrap import wrap
from typing import Any

import pandas as pd

from gpuprof_widgets.analyses.findings import Finding, findings
from gpuprof_widgets.analyses.lines import lines
from gpuprof_widgets.analyses.operators import operators
from gpuprof_widgets.analyses.python_calls import function_labels, python_calls
from gpuprof_widgets.analyses.quantity import format_bytes, format_flops, format_ns, format_share
from gpuprof_widgets.analyses.sort_keys import sort_column
from gpuprof_widgets.trace.model import Record
from gpuprof_widgets.trace.schema import GPU_CATEGORIES
from gpuprof_widgets.views.picture import picture_png
from gpuprof_widgets.views.text import shortened

__all__ = ["op_rows", "picture_png", "static_html", "static_text"]

BAR_COLOUR = "rgba(86,180,233,0.4)"
CELL = "padding:1px 8px;vertical-align:top;"
TEXT_WIDTH = 79
NAME_WIDTH = 20


@dataclass(frozen=True)
class Column:
    """A column of the static op table; with ``share`` the cell holds a bar of that share."""

    heading: str
    key: str
    format: Callable[[float], str]
    share: bool = False


def _short_share(share: float) -> str:
    """A share as a percentage that fits a narrow column."""
    return format_share(share).replace("less than", "<")


CALLS = Column("Calls", "calls", lambda value: f"{value:,.0f}")
FUNCTION = (
    Column("Self time", "self_ns", format_ns),
    Column("share", "self_share", _short_share, share=True),
    Column("Total time", "total_ns", format_ns),
)
CPU = (
    Column("CPU self", "cpu_self_ns", format_ns),
    Column("share", "cpu_self_share", _short_share, share=True),
    Column("CPU total", "cpu_total_ns", format_ns),
)
DEVICE = (
    Column("GPU self", "device_self_ns", format_ns),
    Column("share", "device_self_share", _short_share, share=True),
    Column("GPU total", "device_total_ns", format_ns),
)
AVERAGES = (
    Column("CPU average", "cpu_average_ns", format_ns),
    Column("GPU average", "device_average_ns", format_ns),
)
MEMORY = (
    Column("CPU memory", "cpu_memory_bytes", format_bytes),
    Column("GPU memory", "device_memory_bytes", format_bytes),
)
WHERE_RECORDED = (
    Column("CPU self mem", "cpu_self_memory_bytes", format_bytes),
    Column("GPU self mem", "device_self_memory_bytes", format_bytes),
    Column("FLOPs", "flops", format_flops),
)
"""Columns that are shown where any op has a value: --memory or --flops was on."""

LINES = (
    Column("Self", "self_ns", format_ns),
    Column("share", "self_share", _short_share, share=True),
    Column("Wall", "wall_ns", format_ns),
)
LINES_WHERE_RECORDED = (
    Column("GPU", "device_ns", format_ns),
    Column("GPU wait", "wait_ns", format_ns),
)
HOTTEST = 5
"""Lines of the cell that the static output shows."""

EXPENDABLE = (CPU[1], DEVICE[1], CPU[2], DEVICE[2], CPU[0])
"""Columns that the text gives up, in this order, where names have less than NAME_WIDTH."""


@dataclass(frozen=True)
class OpTable:
    """The rows that a static table shows; ``total`` counts those that it could show."""

    columns: tuple[Column, ...]
    rows: pd.DataFrame
    total: int
    sorted_by: str
    noun: str = "Op"

    @property
    def caption(self) -> str:
        return f"{self.noun}s by {self.sorted_by}: {len(self.rows):,} of {self.total:,}"


def table_rows(record: Record, *, sort: str, top: int) -> OpTable:
    """The ops; of a file of cProfile, which has none, the Python functions."""
    only_calls = record.calls is not None and not len(record.trace)
    return (function_rows if only_calls else op_rows)(record, sort=sort, top=top)


def function_rows(record: Record, *, sort: str, top: int) -> OpTable:
    """The ``top`` Python functions by self time, or by calls or total time if ``sort`` says so."""
    table = python_calls(record)
    own = table["self_ns"].astype(float)
    table = table.assign(name=function_labels(table), self_share=own / max(own.sum(), 1.0))
    wanted = sort_column(sort).removesuffix("_ns").rsplit("_", 1)[-1]
    by = {"calls": CALLS, "total": FUNCTION[2]}.get(wanted, FUNCTION[0])
    table = table.sort_values(by.key, ascending=False, kind="stable")
    columns = (CALLS, *FUNCTION)
    return OpTable(columns, table.head(top), len(table), by.heading.lower(), "Python function")


def hottest_lines(record: Record) -> OpTable | None:
    """The lines of the cell that took most time without the lines in them; None without lines."""
    table = lines(record)
    table = table[table["wall_ns"] > 0].sort_values("self_ns", ascending=False, kind="stable")
    if not len(table):
        return None
    cell = table["cell"] + " " if table["cell"].nunique() > 1 else ""
    code = table["code"].str.split().str.join(" ")
    table = table.assign(
        name=cell + table["line"].astype(str) + ": " + code,
        self_share=table["self_ns"] / max(int(table["self_ns"].sum()), 1),
    )
    recorded = tuple(column for column in LINES_WHERE_RECORDED if table[column.key].any())
    return OpTable((*LINES, *recorded), table.head(HOTTEST), len(table), "self time", "Line")


def op_rows(record: Record, *, sort: str, top: int) -> OpTable:
    """The ``top`` ops by ``sort``, without the kernels they launched, and the columns to show."""
    table = operators(record, sort=sort)
    table = table[~table["category"].isin(GPU_CATEGORIES)]
    has_device = bool(table["device_total_ns"].any())
    columns: tuple[Column, ...] = (CALLS, *DEVICE, CPU[0]) if has_device else (CALLS, *CPU)
    columns += tuple(column for column in WHERE_RECORDED if table[column.key].any())
    by = _sorted_by(sort, has_device)
    if by not in columns:
        columns = (*columns, by)
    table = table.sort_values(by.key, ascending=False, kind="stable")
    return OpTable(columns, table.head(top), len(table), by.heading)


def _sorted_by(sort: str, has_device: bool) -> Column:
    """The column of a sort key; CPU time stands in where no op of the table has GPU time."""
    key = sort_column(sort)
    if not has_device and key.startswith("device") and key.endswith("_ns"):
        key = key.replace("device", "cpu")
    columns = (CALLS, *CPU, *DEVICE, *AVERAGES, *MEMORY, *WHERE_RECORDED)
    return next(column for column in columns if column.key == key)


def static_html(record: Record, *, sort: str = "device_self", top: int = 15) -> str:
    """Findings, lines and ops as HTML without script, style sheet, id, frame or drawing."""
    found = findings(record)
    table = table_rows(record, sort=sort, top=top)
    hottest = hottest_lines(record)
    shown = [table] if hottest is None else [hottest, table]
    parts = (_html_findings(found), _html_notes(record), *map(_html_table, shown))
    return f'<div class="gpuprof-static">{"".join(parts)}</div>'


def _html_findings(found: list[Finding]) -> str:
    items = "".join(f"<li>{_html_finding(finding)}</li>" for finding in found)
    return f"<ol>{items}</ol>"


def _html_notes(record: Record) -> str:
    return "".join(f"<div>Note: {escape(note)}.</div>" for note in _notes(record))


def _notes(record: Record) -> list[str]:
    """What was lost or not measured, one sentence each."""
    return [str(note).removesuffix(".") for note in record.metadata.get("notes", ())]


def _html_finding(finding: Finding) -> str:
    remedy = f"<div><em>{_html_words(finding.remedy)}</em></div>" if finding.remedy else ""
    return f"<strong>{_html_words(finding.text)}</strong>{remedy}"


def _html_words(words: str) -> str:
    """The words, escaped; names in backticks become code."""
    return "".join(
        f"<code>{escape(part)}</code>" if number % 2 else escape(part)
        for number, part in enumerate(words.split("`"))
    )


def _html_table(table: OpTable) -> str:
    headings = [(table.noun, "left"), *((column.heading, "right") for column in table.columns)]
    head = "".join(
        f'<td role="columnheader" style="{CELL}text-align:{side}"><strong>{heading}</strong></td>'
        for heading, side in headings
    )
    body = "".join(_html_row(row, table.columns) for row in table.rows.to_dict("records"))
    return (
        f"<div><strong>{escape(table.caption)}</strong></div>"
        f'<table style="border-collapse:collapse"><tr>{head}</tr>{body}</table>'
    )


def _html_row(row: dict[Any, Any], columns: tuple[Column, ...]) -> str:
    name = f'<td role="rowheader" style="{CELL}text-align:left">'
    cells = "".join(_html_cell(row[column.key], column) for column in columns)
    return f"<tr>{name}<code>{escape(str(row['name']))}</code></td>{cells}</tr>"


def _html_cell(value: float, column: Column) -> str:
    style = f"{CELL}text-align:right;"
    if column.share:
        edge = f"{100 * min(max(value, 0), 1):.1f}%"
        style += (
            f"min-width:80px;background:linear-gradient(to right,"
            f"{BAR_COLOUR} {edge},transparent {edge})"
        )
    return f'<td style="{style}">{escape(column.format(value))}</td>'


def static_text(record: Record, *, sort: str = "device_self", top: int = 15) -> str:
    """Findings, lines and ops as plain text: below 80 columns, no escape codes."""
    table = table_rows(record, sort=sort, top=top)
    words = [*_text_findings(findings(record)), *_text_notes(record)]
    hottest = hottest_lines(record)
    if hottest is not None:
        words += ["", *_text_table(hottest)]
    return "\n".join([*words, "", *_text_table(table)])


def _text_findings(found: list[Finding]) -> list[str]:
    lines = []
    for finding in found:
        lines += wrap(finding.text, TEXT_WIDTH, initial_indent="* ", subsequent_indent="  ")
        lines += wrap(finding.remedy, TEXT_WIDTH, initial_indent="  ", subsequent_indent="  ")
    return lines


def _text_notes(record: Record) -> list[str]:
    notes = _notes(record)
    return [line for note in notes for line in wrap(f"Note: {note}.", TEXT_WIDTH)]


def _text_table(table: OpTable) -> list[str]:
    rows = table.rows.to_dict("records")
    cells = {
        column: [column.heading, *(column.format(row[column.key]) for row in rows)]
        for column in table.columns
    }
    cells = _fitting(cells, table.sorted_by)
    room = _room(cells)
    names = [table.noun.lower(), *(shortened(str(row["name"]), room) for row in rows)]
    padded = [_right_aligned(words) for words in cells.values()]
    lines = ["  ".join(line) for line in zip((n.ljust(room) for n in names), *padded, strict=True)]
    return [table.caption, *lines]


def _fitting(cells: dict[Column, list[str]], sorted_by: str) -> dict[Column, list[str]]:
    """The columns of the text without those that leave too little room for the names."""
    cells = dict(cells)
    for column in EXPENDABLE:
        if _room(cells) < NAME_WIDTH and column.heading != sorted_by:
            cells.pop(column, None)
    return cells


def _room(cells: dict[Column, list[str]]) -> int:
    """Characters that the columns leave for the name."""
    return TEXT_WIDTH - sum(max(map(len, words)) + 2 for words in cells.values())


def _right_aligned(words: list[str]) -> list[str]:
    width = max(map(len, words))
    return [word.rjust(width) for word in words]
