"""A table as text, Markdown, HTML, rich's table and data of the page: one function each.

The HTML uses only tags that JupyterLab's sanitiser and `nbconvert --sanitize-html` both leave
standing (the latter turns `th`, `caption` and `br` into visible text), and no colour of its own for
text, so that it is legible on any theme. Inline styles only decorate: they may be dropped.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from dataclasses import replace
from html import escape
from itertools import accumulate
from textwrap import wrap
from typing import TYPE_CHECKING, Any, TypeVar

import pandas as pd
from rich.cells import cell_len

from gpuprof_widgets.analyses.columns import format_count, is_missing
from gpuprof_widgets.exceptions import SOURCE, printable
from gpuprof_widgets.views.table import (
    NARROWEST,
    Colour,
    Column,
    Fill,
    Table,
    cell_text,
    cell_texts,
)

if TYPE_CHECKING:
    import rich.table

GAP = "  "
NO_BREAK = "\u00a0"
"""A space at which no line ends. Its style may be dropped, so that a cell cannot ask for that."""
CELL = "padding:1px 8px;vertical-align:top;"
CODE = "font-family:monospace;white-space:pre-wrap"
BAR_COLOUR: Colour = (86, 180, 233, 0.35)
BAR_WIDTH = 260
"""Pixels that a cell with a fill of several colours has at least."""
TEXT_WIDTH = 79

_BEFORE_UNIT = re.compile(r"(?<=\d) (?=(?:[nµm]?s|%|[kKMGT]?i?B|[kMGT]?FLOP)(?![a-z]))")
_FORMULA_MARK = re.compile(r"[$\\]")
_MARKDOWN_MARKS = re.compile(r"[\\|<&`*~\[$]|(?<!\w)_|_(?!\w)")

TableOrPanel = TypeVar("TableOrPanel", bound=Table)


def fitted(table: Table, width: int) -> Table:
    """Return the table as texts that fit into ``width`` characters a line.

    The expendable columns are left out in their order until texts have the room that they need, but
    one column always stays; then the texts are cut to one length, the longest first.
    """
    texts = {column: cell_texts(table, column) for column in table.columns}
    widths = {c: max(map(cell_len, (c.label, *texts[c]))) for c in texts}
    columns = list(texts)
    for key in table.expendable:
        if len(columns) == 1 or _line_width(_needed(table, c, widths[c]) for c in columns) <= width:
            break
        columns = [c for c in columns if c.key != key]
    limit = max((min(widths[c], width) for c in columns if c.is_text), default=0)
    while limit > 1 and _line_width(_cut_to(c, widths[c], limit) for c in columns) > width:
        limit -= 1
    rows = {c.key: [shortened(t, limit) if c.is_text else t for t in texts[c]] for c in columns}
    return replace(table, columns=tuple(columns), rows=pd.DataFrame(rows, dtype=object))


def _needed(table: Table, column: Column, width: int) -> int:
    """Return the width that a column needs: numbers all of it, texts enough to tell them apart."""
    enough = table.narrowest if column.key == "name" else NARROWEST
    return _cut_to(column, width, max(enough, cell_len(column.label)))


def _cut_to(column: Column, width: int, limit: int) -> int:
    """Return the width of a column once its texts are cut."""
    return min(width, limit) if column.is_text else width


def _line_width(widths: Iterable[int]) -> int:
    """Return the width of a line of columns."""
    return sum(width + len(GAP) for width in widths) - len(GAP)


def text_lines(table: Table, width: int = 0) -> list[str]:
    """Return the headings and the rows; the first column takes the rest of the width."""
    texts = [[column.label, *cell_texts(table, column)] for column in table.columns]
    widths = [max(map(cell_len, column)) for column in texts]
    if widths:
        widths[0] += max(width - _line_width(widths), 0)
    # rich writes the same without a box, and takes 30 times as long for long tables.
    padded = [
        [
            text + space if column.is_text else space + text
            for text in column_texts
            for space in [" " * (room - cell_len(text))]
        ]
        for column, column_texts, room in zip(table.columns, texts, widths, strict=True)
    ]
    return [GAP.join(line).rstrip() for line in zip(*padded, strict=True)]


def text_table(table: Table) -> list[str]:
    """Return the title, the table, one line per row, and its notes, below 80 columns."""
    shown = fitted(table, TEXT_WIDTH)
    return [printable(line) for line in (table.title, *text_lines(shown, TEXT_WIDTH), *table.notes)]


def rich_table(table: Table) -> rich.table.Table:
    """Return a rich table, whose texts are never read as markup."""
    from rich import box
    from rich.table import Table as RichTable
    from rich.text import Text

    shown = RichTable(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False, padding=(0, 1, 0, 0))
    for column in table.columns:
        shown.add_column(
            Text(column.label, style="bold"),
            justify="left" if column.is_text else "right",
            no_wrap=True,
            overflow="crop",
        )
    texts = [cell_texts(table, column) for column in table.columns]
    for row in zip(*texts, strict=True):
        shown.add_row(*map(Text, row))
    return shown


def markdown_lines(table: Table) -> list[str]:
    """Return a table of Markdown, which wikis take as well."""
    texts = [
        [_MARKDOWN_MARKS.sub(r"\\\g<0>", text) for text in (c.label, *cell_texts(table, c))]
        for c in table.columns
    ]
    heading, *rows = zip(*texts, strict=True) if texts else [()]
    rule = ["---" if column.is_text else "--:" for column in table.columns]
    return [f"| {' | '.join(line)} |" for line in (heading, rule, *rows)]


def html_table(table: Table) -> str:
    """Return the title, the table and its notes as HTML."""
    head = "".join(
        f'<td role="columnheader" style="{CELL}text-align:{_side(column)}">'
        f"<strong>{escaped(column.label)}</strong></td>"
        for column in table.columns
    )
    first, *others = table.columns
    names = [
        f'<td role="rowheader" style="{CELL}text-align:left"><code>{escaped(name)}</code></td>'
        for name in cell_texts(table, replace(first, unit="text"))
    ]
    cells = []
    for column in others:
        values = table.rows[column.key].tolist()
        fills = table.fills.get(column.key, [()] * len(values))
        style = CODE if column.key in table.code else ""
        cells.append(
            [
                _html_cell(v, column, style + _fill_css(f))
                for v, f in zip(values, fills, strict=True)
            ]
        )
    body = "".join(f"<tr>{''.join(row)}</tr>" for row in zip(names, *cells, strict=True))
    below = "".join(f"<div>{prose(note)}</div>" for note in table.notes)
    return (
        f"<div><strong>{prose(table.title)}</strong></div>"
        f'<table style="border-collapse:collapse"><tr>{head}</tr>{body}</table>{below}'
    )


def _html_cell(value: Any, column: Column, style: str) -> str:
    """Return a cell; a share has a bar of its length behind it."""
    style = f"{CELL}text-align:{_side(column)};{style}"
    if column.unit == "share" and not is_missing(value):
        edge = f"{100 * min(max(value, 0), 1):.1f}%"
        style += (
            f"min-width:80px;background:linear-gradient(to right,"
            f"{rgba(BAR_COLOUR)} {edge},transparent {edge})"
        )
    text = escaped(cell_text(value, column.unit))
    return f'<td style="{style}">{text if column.is_text else text.replace(" ", NO_BREAK)}</td>'


def _fill_css(fill: Fill) -> str:
    """Return the style of a cell with the fill; one that is not all of one colour is a bar."""
    if not fill:
        return ""
    if [(start, end) for _, start, end in fill] == [(0, 1)]:
        red, green, blue, alpha = fill[0][0]
        return f"background:rgba({red},{green},{blue},{alpha:.2f});"
    stops = [f"{rgba(colour)} {100 * start:.2f}% {100 * end:.2f}%" for colour, start, end in fill]
    stops.append(f"transparent {100 * fill[-1][2]:.2f}%")
    return f"min-width:{BAR_WIDTH}px;background:linear-gradient(to right,{','.join(stops)});"


def rgba(colour: Colour) -> str:
    """Return the colour as CSS."""
    return f"rgba({','.join(map(str, colour))})"


def _side(column: Column) -> str:
    return "left" if column.is_text else "right"


def page_table(table: Table) -> dict[str, Any]:
    """Return the table as the page reads it: ``values`` has a list per column."""
    return {
        "title": table.title,
        "note": " ".join(filter(None, table.notes)),
        "sort": table.sort,
        "columns": [[c.key, c.label, c.unit, c.aggregate, c.of] for c in table.columns],
        "length": len(table.rows),
        "values": [
            list(map(_page_text if c.is_text else _page_number, table.rows[c.key].tolist()))
            for c in table.columns
        ],
    }


def plain_table(table: Table) -> dict[str, Any]:
    """Return the table as a page shows it that computes nothing: texts, and fills behind them.

    ``columns``: labels, and whether they hold texts; ``rows``: a text per column; ``fills``: column
    indices, each with a fill per row of [red, green, blue, alpha, start, end].
    """
    shares = (column for column in table.columns if column.unit == "share")
    bars = {c.key: list(map(_share_bar, table.rows[c.key].tolist())) for c in shares}
    fills = {**table.fills, **bars}
    texts = [cell_texts(table, column) for column in table.columns]
    return {
        "title": printable(table.title),
        "notes": [printable(note) for note in table.notes if note],
        "columns": [[printable(column.label), column.is_text] for column in table.columns],
        "rows": [list(row) for row in zip(*texts, strict=True)],
        "fills": [
            [at, [[[*colour, start, end] for colour, start, end in fill] for fill in fills[c.key]]]
            for at, c in enumerate(table.columns)
            if c.key in fills
        ],
    }


def _share_bar(share: Any) -> Fill:
    """Return a bar of the share's length, none without a value."""
    return () if is_missing(share) else ((BAR_COLOUR, 0.0, min(max(float(share), 0.0), 1.0)),)


def listed(table: TableOrPanel, most: int) -> TableOrPanel:
    """Return the first rows without the columns that are empty in them; a note counts the rest."""
    rows = table.rows.head(most)
    columns = []
    for column in table.columns:  # one of modules, say, is empty in a run without them
        known = rows[column.key].notna()
        if (known & (rows[column.key] != "") if column.is_text else known).any():
            columns.append(column)
    notes = (*table.notes, rows_left_out(len(table.rows) - len(rows)))
    return replace(table, rows=rows, columns=tuple(columns), notes=notes)


def rows_left_out(count: int) -> str:
    """Return the note on so many rows that are left out, "" for none."""
    are = "is" if count == 1 else "are"
    return f"{format_count(count, 'more row')} {are} not listed here." if count else ""


def _page_text(value: Any) -> str:
    """Return a name as the events have it, anything else as text."""
    if isinstance(value, str):
        return value
    return "" if is_missing(value) else cell_text(value, "text")


def _page_number(value: Any) -> float | None:
    """Return a number for JSON, which has neither NaN nor infinities, with nine digits at most."""
    if is_missing(value) or value in (math.inf, -math.inf):
        return None
    return int(value) if float(value).is_integer() else float(f"{value:.9g}")


def shortened(text: str, width: int) -> str:
    """Return the text, without its middle where it is too wide: both ends tell ops apart.

    ``width``: columns of a terminal, of which wide characters take two.
    """
    if cell_len(text) <= width:
        return text
    tail = (width - 1) // 3
    return f"{_head(text, width - 1 - tail)}…{_head(text[::-1], tail)[::-1]}"


def _head(text: str, width: int) -> str:
    """Return the beginning of a text that fits into the width."""
    ends = accumulate(map(cell_len, text[:width]))
    return text[: sum(end <= width for end in ends)]


def wrapped(text: str, *, first: str = "", then: str = "") -> list[str]:
    """Return lines of prose below 80 columns, indented by ``first`` and ``then``."""
    shown = printable(text, keep=SOURCE)
    return wrap(shown, TEXT_WIDTH, initial_indent=first, subsequent_indent=then)


def prose(text: str) -> str:
    """Return HTML of words, as `escaped`, in which no line ends between a number and its unit."""
    return _BEFORE_UNIT.sub(NO_BREAK, escaped(text))


def escaped(text: str) -> str:
    """Return HTML that shows the text: no markup, formulas, control codes or bidi controls.

    Notebooks typeset text between dollars, and MathJax reads links and styles there; it finds no
    formula whose marks are elements of their own.
    """
    return _FORMULA_MARK.sub(r"<span>\g<0></span>", escape(printable(text, keep=SOURCE)))
