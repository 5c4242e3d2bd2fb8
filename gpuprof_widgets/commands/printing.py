"""Tables and text on the terminal: by rich where it is one, plain and aligned where piped."""

from __future__ import annotations

import os
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import IO

import pandas as pd
from rich.console import Console
from rich.text import Text

from gpuprof_widgets.analyses.columns import format_ns, heading, is_link
from gpuprof_widgets.exceptions import printable, printable_lines
from gpuprof_widgets.views.table import NARROWEST, NONE, Column, Table, cell_texts, table_of
from gpuprof_widgets.views.table_renderers import fitted, markdown_lines, rich_table, text_lines

ESSENTIAL = ("name", "calls", "total", "cpu_total", "device_total")
"""Headings of columns that are left out when nothing else can be: how often, and how long."""

NO_TIME = format_ns(0)
"""What stands in all cells of the GPU's time where there is no GPU."""

NARROWEST_OF_A_TREE = 40
"""Characters that names keep which are indented, or have the names above them before them."""

PLACES_IN_A_TREE = ("node", "parent", "depth")
"""What the indent says as well."""


def terminal_table(frame: pd.DataFrame, *, notes: Sequence[str] = (), keep: str = "") -> Table:
    """Return the table of an analysis as it is printed, without names that only say the same again.

    Headings keep their units where without them two columns would have the same. ``keep``: the
    heading of the column that sorts the table, which is left out last, and only if it has to be.
    """
    frame = frame.rename(columns=str)
    table = table_of(frame)
    headings = Counter(column.label for column in table.columns)
    texts: dict[Column, list[str]] = {}
    for column in table.columns:
        cells = cell_texts(table, column)
        if not column.is_text or cells not in texts.values():
            is_clear = headings[column.label] == 1
            texts[column if is_clear else replace(column, label=column.key)] = cells
    in_tree = set(frame.columns) >= TREE
    little = {
        column.key: _dispensability(frame, column, texts[column], in_tree) for column in texts
    }
    # The first column says what a row is, but for a tree, of which its name does.
    others = list(little)[::-1] if in_tree else list(little)[:0:-1]
    order = sorted(others, key=lambda key: (heading(key) == keep, -little[key]))
    return replace(
        table,
        columns=tuple(texts),
        notes=tuple(notes),
        expendable=tuple(order),
        narrowest=NARROWEST_OF_A_TREE if in_tree else NARROWEST,
    )


def _dispensability(frame: pd.DataFrame, column: Column, cells: list[str], in_tree: bool) -> int:
    """How little is lost without a column; the highest goes first.

    3: empty, or said by the indent. 2: rows of the trace. 1: one value. 0: others. -1: what every
    table is read for, if it took any time.
    """
    if heading(column.key) in ESSENTIAL and set(cells) != {NO_TIME}:
        return -1
    if set(cells) <= {"", NONE} or (in_tree and column.key in PLACES_IN_A_TREE):
        return 3
    if is_link(frame, column.key) or (in_tree and column.key == "category"):
        return 2
    return int(len(cells) > 1 and len(set(cells)) == 1)


def print_table(table: Table, *, file: IO[str] | None = None) -> None:
    """Print as many columns as fit into a terminal, and a line per note."""
    console = _console(file)
    width = _width(console)
    shown = table if width is None else fitted(table, width)
    notes = list(table.notes)
    if len(table.rows):
        if _is_rich(console):
            console.print(rich_table(shown))
        else:
            _write(console, text_lines(shown))
        if left_out := [c.label for c in table.columns if c not in shown.columns]:
            names = ", ".join(left_out)
            notes.append(f"not shown for want of room: {names} (--csv - has all)")
    for note in notes:
        _print_note(console, note)


def print_markdown(table: Table, *, file: IO[str] | None = None) -> None:
    """Print all columns as a table of Markdown."""
    _write(_console(file), markdown_lines(table))


def print_text(text: str, *, file: IO[str] | None = None) -> None:
    """Print lines that may hold names from a trace, none of them interpreted."""
    _write(_console(file), [printable_lines(text)])


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


def _print_note(console: Console, note: str) -> None:
    text = printable(note)
    if _is_rich(console):
        console.print(Text(text, style="dim"))
    else:
        _write(console, [text])


def _write(console: Console, lines: Sequence[str]) -> None:
    """Lines as they are: rich would wrap them."""
    encoding = getattr(console.file, "encoding", None) or "utf-8"
    for line in lines:
        console.file.write(line.encode(encoding, "replace").decode(encoding) + "\n")


TREE = frozenset({"node", "parent", "depth", "name"})
"""Columns of a table whose rows are the nodes of a tree."""

INDENT = "  "
DEEPEST = 200
BETWEEN, LEFT_OUT = " > ", "…"

LONGEST_PATH = 5
"""Names that are printed of a path, its last ones: Python's may have a hundred."""


def with_paths(shown: pd.DataFrame, table: pd.DataFrame, *, is_sorted: bool) -> pd.DataFrame:
    """The rows with names that say where they stand; other tables as they are.

    In the order of the tree names are indented. Rows that are sorted have lost their parents from
    above them: those have their path. ``table`` has all the nodes.
    """
    if not set(table.columns) >= TREE:
        return shown
    if not is_sorted:
        depths = zip(shown["depth"], shown["name"], strict=True)
        return shown.assign(name=[_indented(depth, str(name)) for depth, name in depths])
    parent = dict(zip(table["node"], table["parent"], strict=True))
    name = dict(zip(table["node"], table["name"], strict=True))
    return shown.assign(name=[_path(node, parent, name) for node in shown["node"]])


def _indented(depth: int, name: str) -> str:
    """The name below its caller's; beyond the deepest indent it says how much deeper it is."""
    deeper = f"(+{depth - DEEPEST}) " if depth > DEEPEST else ""
    return INDENT * min(depth, DEEPEST) + deeper + name


def _path(node: int, parent: Mapping[int, int], name: Mapping[int, str]) -> str:
    """The names that lead to the node, without the root's."""
    names = [str(name[node])]
    above = parent[node]
    while above >= 0 and parent[above] >= 0:
        names.insert(0, LEFT_OUT if len(names) == LONGEST_PATH else str(name[above]))
        if len(names) > LONGEST_PATH:
            break
        above = parent[above]
    return BETWEEN.join(names)
