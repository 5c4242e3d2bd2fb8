"""Tables as text: by rich in a terminal, plain and aligned where they are piped."""

from __future__ import annotations

import os
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import IO

import pandas as pd
from rich import box
from rich.cells import cell_len
from rich.console import Console
from rich.table import Table
from rich.text import Text

from gpuprof_widgets.analyses.columns import heading, is_link
from gpuprof_widgets.analyses.quantity import format_ns
from gpuprof_widgets.commands.cells import NONE, cell_texts, is_number
from gpuprof_widgets.commands.tree import TREE
from gpuprof_widgets.printable import printable, printable_lines
from gpuprof_widgets.views.text import shortened

GAP = "  "
ESSENTIAL = ("name", "calls", "total", "cpu_total", "device_total")
"""Headings of columns that are left out when nothing else can be: how often, and how long."""

NO_TIME = format_ns(0)
"""What stands in all cells of the GPU's time where there is no GPU."""

NARROWEST = 12
"""Characters below which no column of names is cut: others are left out before."""

NARROWEST_OF_A_TREE = 40
"""The same of names that are indented, or have the names above them before them."""

PLACES_IN_A_TREE = ("node", "parent", "depth")
"""What the indent says as well."""


@dataclass(frozen=True)
class Column:
    """A column as it is shown; ``is_link``: it names rows of the trace; ``in_tree``: its rows are
    the nodes of a tree.
    """

    heading: str
    cells: tuple[str, ...]
    right: bool
    is_link: bool = False
    in_tree: bool = False

    @property
    def width(self) -> int:
        return max(map(cell_len, (self.heading, *self.cells)))

    @property
    def least(self) -> int:
        """What it needs: numbers all of it, names enough to tell them apart."""
        of_a_tree = self.in_tree and self.heading == "name"
        least = NARROWEST_OF_A_TREE if of_a_tree else NARROWEST
        names = max(least, cell_len(self.heading))
        return self.width if self.right else min(self.width, names)

    @property
    def expendable(self) -> int:
        """How little is lost without it: nothing where all is empty, then rows of the trace, then
        one value; what every table is read for goes last, if it took any time.
        """
        if heading(self.heading) in ESSENTIAL and set(self.cells) != {NO_TIME}:
            return -1
        if all(cell in ("", NONE) for cell in self.cells):
            return 3
        if self.in_tree and self.heading in (*PLACES_IN_A_TREE, "category"):
            return 2 if self.heading == "category" else 3
        says_one_thing = len(self.cells) > 1 and len(set(self.cells)) == 1
        return 2 if self.is_link else int(says_one_thing)

    def cut(self, width: int) -> Column:
        """The same with its middle left out where it is too long."""
        return replace(self, cells=tuple(shortened(cell, width) for cell in self.cells))


def columns_of(table: pd.DataFrame) -> list[Column]:
    """The columns of a table as text, in its order; without names that only say the same again.

    Headings keep their units where without them two columns would have the same.
    """
    columns: list[Column] = []
    headings = Counter(heading(str(name)) for name in table.columns)
    in_tree = set(table.columns) >= TREE
    for name in map(str, table.columns):
        cells = tuple(cell_texts(name, table[name].tolist()))
        right = is_number(table[name])
        if right or not any(cells == one.cells for one in columns):
            title = heading(name) if headings[heading(name)] == 1 else name
            columns.append(Column(title, cells, right, is_link(table, name), in_tree))
    return columns


def print_table(
    columns: Sequence[Column],
    *,
    notes: Sequence[str] = (),
    keep: str = "",
    file: IO[str] | None = None,
) -> None:
    """Print the columns, as many as fit into a terminal, and a note line each.

    ``keep``: a column that is never left out, without its unit: the one that sorts the table.
    """
    console = _console(file)
    shown, left_out = _fitting(columns, _width(console), keep)
    has_rows = bool(shown and shown[0].cells)
    if left_out and has_rows:
        names = ", ".join(column.heading for column in left_out)
        notes = [*notes, f"not shown for want of room: {names} (--csv - has all)"]
    if has_rows:
        (_print_rich if _is_rich(console) else _print_plain)(console, shown)
    for note in notes:
        _print_note(console, note)


def print_wiki(columns: Sequence[Column], *, file: IO[str] | None = None) -> None:
    """Print all columns as a table of Markdown, which wikis take as well."""
    rows = [(one.heading, "--:" if one.right else "---", *one.cells) for one in columns]
    for line in zip(*rows, strict=True):
        cells = (cell.replace("|", "\\|") for cell in line)
        _write(_console(file), f"| {' | '.join(cells)} |")


def print_text(text: str, *, file: IO[str] | None = None) -> None:
    """Print lines that may hold names from a trace, none of them interpreted."""
    _write(_console(file), printable_lines(text))


def _console(file: IO[str] | None) -> Console:
    # What a trace holds is never markup, an emoji code or something to be coloured.
    return Console(file=file or sys.stdout, markup=False, emoji=False, highlight=False)


def _is_rich(console: Console) -> bool:
    return console.is_terminal and not console.no_color and not console.is_dumb_terminal


def _width(console: Console) -> int | None:
    """Characters in a line; None where nothing limits them: what is piped is not cut."""
    if console.is_terminal:
        return console.width
    given = os.environ.get("COLUMNS", "")
    return int(given) if given.isdecimal() and int(given) else None


def _fitting(
    columns: Sequence[Column], width: int | None, keep: str
) -> tuple[list[Column], list[Column]]:
    """The columns that fit, names cut to the room that is left, and those that do not."""
    if width is None:
        return list(columns), []
    shown, left_out = list(columns), []
    while len(shown) > 1 and _needed(shown) > width:
        dropped = _most_expendable(shown, keep)
        shown.remove(dropped)
        left_out.append(dropped)
    left_out.sort(key=list(columns).index)
    return _cut(shown, width), left_out


def _needed(columns: Sequence[Column]) -> int:
    return sum(column.least for column in columns) + len(GAP) * (len(columns) - 1)


def _most_expendable(columns: Sequence[Column], keep: str) -> Column:
    """The one that tells least, of several the last; the first column says what a row is, except
    of a tree, where its name does.
    """
    others = [*columns] if columns[0].in_tree else [*columns[1:]]
    free = [column for column in others if heading(column.heading) != keep] or others
    return max(reversed(free), key=lambda column: column.expendable)


def _cut(columns: Sequence[Column], width: int) -> list[Column]:
    """The names cut alike, the longest first, until all columns fit."""
    numbers = sum(column.width for column in columns if column.right)
    room = width - numbers - len(GAP) * (len(columns) - 1)
    names = [column.width for column in columns if not column.right]
    limit = max(names, default=0)
    while limit > 1 and sum(min(name, limit) for name in names) > room:
        limit -= 1
    return [column if column.right else column.cut(max(limit, 1)) for column in columns]


def _print_plain(console: Console, columns: Sequence[Column]) -> None:
    padded = [[_padded(cell, column) for cell in (column.heading, *column.cells)]
              for column in columns]  # fmt: skip
    for line in zip(*padded, strict=True):
        _write(console, GAP.join(line).rstrip())


def _padded(cell: str, column: Column) -> str:
    space = " " * (column.width - cell_len(cell))
    return space + cell if column.right else cell + space


def _print_rich(console: Console, columns: Sequence[Column]) -> None:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False, padding=(0, 1, 0, 0))
    for column in columns:
        table.add_column(
            Text(column.heading, style="bold"),
            justify="right" if column.right else "left",
            no_wrap=True,
            overflow="crop",
        )
    for cells in zip(*(column.cells for column in columns), strict=True):
        table.add_row(*map(Text, cells))
    console.print(table)


def _print_note(console: Console, note: str) -> None:
    text = printable(note)
    if _is_rich(console):
        console.print(Text(text, style="dim"))
    else:
        _write(console, text)


def _write(console: Console, line: str) -> None:
    """One line as it is: rich would wrap it."""
    encoding = getattr(console.file, "encoding", None) or "utf-8"
    console.file.write(line.encode(encoding, "replace").decode(encoding) + "\n")
