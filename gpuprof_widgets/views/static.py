"""The part of a report that needs no script: findings in words, the op table, and the picture.

This is what a reader sees of an untrusted, sanitised or printed notebook. The HTML therefore uses
only tags that JupyterLab's sanitiser and `nbconvert --sanitize-html` both leave standing (the
latter turns `th`, `caption` and `br` into visible text), and no colour of its own for text, so that
it is legible on any theme. Inline styles only decorate: they may be dropped.
"""

from __future__ import annotations

from typing import Any

from gpuprof_widgets.analyses.findings import Finding, findings
from gpuprof_widgets.analyses.python_time import has_python_alone
from gpuprof_widgets.analyses.quantity import format_count
from gpuprof_widgets.analyses.sort_keys import report_keys
from gpuprof_widgets.printable import printable
from gpuprof_widgets.trace.model import Record
from gpuprof_widgets.views.picture import picture_png
from gpuprof_widgets.views.static_memory import peak_memory
from gpuprof_widgets.views.static_panels import static_panels
from gpuprof_widgets.views.static_tables import (
    CPU,
    DEVICE,
    Column,
    OpTable,
    function_rows,
    hottest_lines,
    op_rows,
    table_rows,
    waiting_functions,
)
from gpuprof_widgets.views.text import TEXT_WIDTH, escaped, shortened, wrapped

__all__ = ["op_rows", "picture_png", "static_bundle", "static_html", "static_text"]

BAR_COLOUR = "rgba(86,180,233,0.4)"
CELL = "padding:1px 8px;vertical-align:top;"
NAME_WIDTH = 20

FINDINGS_SHOWN = 5
"""Findings, the costliest; report_header.ts shows as many, and folds the others."""
ALL_IN = "profile.findings()"
"""What has those that are not shown."""

EXPENDABLE = (CPU[1], CPU[3], CPU[2], DEVICE[1], DEVICE[2], CPU[0])
"""Columns that the text gives up, in this order, where names have less than NAME_WIDTH."""


def static_bundle(record: Record, *, sort: str = "device_self", top: int = 15) -> dict[str, str]:
    """`static_html` and `static_text` by their MIME types, of the same tables."""
    tables = _tables(record, sort=sort, top=top)
    return {"text/html": _html(record, tables), "text/plain": _text(record, tables)}


def static_html(record: Record, *, sort: str = "device_self", top: int = 15) -> str:
    """Findings and tables as HTML without script, style sheet, id, frame or drawing."""
    return _html(record, _tables(record, sort=sort, top=top))


def static_text(record: Record, *, sort: str = "device_self", top: int = 15) -> str:
    """Findings and tables as plain text: below 80 columns, no escape codes."""
    return _text(record, _tables(record, sort=sort, top=top))


def _tables(record: Record, *, sort: str, top: int) -> list[OpTable]:
    """Lines, Python functions where they waited or were asked for, memory at its peak, and ops."""
    ops, functions = report_keys(sort)
    if has_python_alone(record):
        ops, functions = functions or ops, ""
    of_python = (
        function_rows(record, sort=functions, top=top) if functions else waiting_functions(record)
    )
    tables = (hottest_lines(record), of_python, peak_memory(record))
    return [*(t for t in tables if t is not None), table_rows(record, sort=ops, top=top)]


def _html(record: Record, tables: list[OpTable]) -> str:
    shown = map(html_table, (*tables, *static_panels(record)))
    parts = (html_findings(findings(record)), _html_notes(record), *shown)
    return f'<div class="gpuprof-static">{"".join(parts)}</div>'


def html_findings(found: list[Finding], *, all_in: str = ALL_IN) -> str:
    """The costliest findings as a list, each with what to do about it."""
    items = "".join(f"<li>{_html_finding(finding)}</li>" for finding in found[:FINDINGS_SHOWN])
    return f"<ol>{items}</ol>" + "".join(f"<div>{line}</div>" for line in _more(found, all_in))


def _more(found: list[Finding], all_in: str) -> list[str]:
    """One line on the findings that are not shown, if there are any.

    Nothing can be folded here: nbconvert's sanitiser turns `details` into visible text.
    """
    more = len(found) - FINDINGS_SHOWN
    return [f"{format_count(more, 'more finding')}: {all_in} has all of them"] if more > 0 else []


def _html_notes(record: Record) -> str:
    return "".join(f"<div>Note: {escaped(note)}.</div>" for note in _notes(record))


def _notes(record: Record) -> list[str]:
    """What was lost or not measured, one sentence each."""
    return [str(note).removesuffix(".") for note in record.metadata.get("notes", ())]


def _html_finding(finding: Finding) -> str:
    remedy = f"<div><em>{_html_words(finding.remedy)}</em></div>" if finding.remedy else ""
    return f"<strong>{_html_words(finding.text)}</strong>{remedy}"


def _html_words(words: str) -> str:
    """The words, escaped; names in backticks become code."""
    return "".join(
        f"<code>{escaped(part)}</code>" if number % 2 else escaped(part)
        for number, part in enumerate(words.split("`"))
    )


def html_table(table: OpTable) -> str:
    """The caption, the table and what stands below it."""
    below = "".join(f"<div>{escaped(line)}</div>" for line in table.below)
    return f"<div><strong>{escaped(table.caption)}</strong></div>{_html_rows(table)}{below}"


def _html_rows(table: OpTable) -> str:
    headings = [(table.noun, "left"), *((column.heading, "right") for column in table.columns)]
    head = "".join(
        f'<td role="columnheader" style="{CELL}text-align:{side}"><strong>{heading}</strong></td>'
        for heading, side in headings
    )
    body = "".join(_html_row(row, table.columns) for row in table.rows.to_dict("records"))
    return f'<table style="border-collapse:collapse"><tr>{head}</tr>{body}</table>'


def _html_row(row: dict[Any, Any], columns: tuple[Column, ...]) -> str:
    name = f'<td role="rowheader" style="{CELL}text-align:left">'
    cells = "".join(_html_cell(row[column.key], column) for column in columns)
    return f"<tr>{name}<code>{escaped(str(row['name']))}</code></td>{cells}</tr>"


def _html_cell(value: float, column: Column) -> str:
    style = f"{CELL}text-align:right;"
    if column.share:
        edge = f"{100 * min(max(value, 0), 1):.1f}%"
        style += (
            f"min-width:80px;background:linear-gradient(to right,"
            f"{BAR_COLOUR} {edge},transparent {edge})"
        )
    return f'<td style="{style}">{escaped(column.format(value))}</td>'


def _text(record: Record, tables: list[OpTable]) -> str:
    words = [*text_findings(findings(record)), *_text_notes(record)]
    for table in tables:
        words += ["", *text_table(table)]
    return "\n".join(words)


def text_findings(found: list[Finding], *, all_in: str = ALL_IN) -> list[str]:
    """The costliest findings as lines of plain text, each with what to do about it."""
    lines = []
    for finding in found[:FINDINGS_SHOWN]:
        lines += wrapped(finding.text, first="* ", then="  ")
        lines += wrapped(finding.remedy, first="  ", then="  ")
    return lines + [f"* {line}" for line in _more(found, all_in)]


def _text_notes(record: Record) -> list[str]:
    notes = _notes(record)
    return [line for note in notes for line in wrapped(f"Note: {note}.")]


def text_table(table: OpTable) -> list[str]:
    """The caption, the table, one line per row, and what stands below it."""
    rows = table.rows.to_dict("records")
    cells = {
        column: [column.heading, *(column.format(row[column.key]) for row in rows)]
        for column in table.columns
    }
    cells = _fitting(cells, table.sorted_by)
    room = _room(cells)
    names = [table.noun.lower(), *(shortened(printable(str(row["name"])), room) for row in rows)]
    padded = [_right_aligned(words) for words in cells.values()]
    lines = ["  ".join(line) for line in zip((n.ljust(room) for n in names), *padded, strict=True)]
    return [printable(table.caption), *lines, *table.below]


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
