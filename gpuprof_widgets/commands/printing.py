"""Tables and text on standard output: by rich in a terminal, plain and aligned in a pipe.

`terminal_table` decides which columns may be left out, and `with_paths` shows the place of each row
of a call tree. `sorted_by` sorts a table by ``--sort KEY``.
"""

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

from gpuprof_widgets.analyses.columns import PLACES, PSTATS_KEYS, UNITS, format_ns, heading, is_link
from gpuprof_widgets.exceptions import OptionError, did_you_mean, printable, printable_lines
from gpuprof_widgets.views.table import NARROWEST, NONE, Column, Table, cell_texts, table_of
from gpuprof_widgets.views.table_renderers import fitted, markdown_lines, rich_table, text_lines

ESSENTIAL = ("name", "calls", "total", "cpu_total", "device_total")
"""Headings of the columns that are left out last: calls and times."""

NO_TIME = format_ns(0)
"""The text of all cells of GPU time without a GPU."""

NARROWEST_OF_A_TREE = 40
"""Characters that indented names, or names with a path before them, keep."""

PLACES_IN_A_TREE = ("node", "parent", "depth")
"""Columns whose values the indent shows as well."""

TREE = frozenset({"node", "parent", "depth", "name"})
"""Columns of a table whose rows are the nodes of a tree."""

INDENT = "  "
DEEPEST = 200
BETWEEN, LEFT_OUT = " > ", "…"

LONGEST_PATH = 5
"""The last names of a path that are printed: a path of Python calls may have a hundred."""


def terminal_table(frame: pd.DataFrame, *, notes: Sequence[str] = (), keep: str = "") -> Table:
    """Return the table of an analysis for printing, without text columns that repeat another one.

    Headings keep their units where two columns would otherwise have the same heading. ``keep``: the
    heading of the column that sorts the table, which is left out last.
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
    # The first column says what a row is; in a tree the column ``name`` does.
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
    """Return how little is lost without a column; the highest goes first.

    3: empty, or shown by the indent. 2: rows of the trace. 1: one value. 0: others. -1: calls and
    times, unless no time was taken.
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
    shown, columns = table, os.environ.get("COLUMNS", "")
    if console.is_terminal:
        shown = fitted(table, console.width)
    elif columns.isdecimal() and int(columns):  # else piped text is not cut
        shown = fitted(table, int(columns))
    is_rich = console.is_terminal and not console.no_color and not console.is_dumb_terminal
    notes = list(table.notes)
    if len(table.rows):
        if is_rich:
            console.print(rich_table(shown))
        else:
            _write(console, text_lines(shown))
        if left_out := [c.label for c in table.columns if c not in shown.columns]:
            names = ", ".join(left_out)
            notes.append(f"not shown for lack of room: {names} (--csv - has all)")
    for note in map(printable, notes):
        if is_rich:
            console.print(Text(note, style="dim"))
        else:
            _write(console, [note])


def print_markdown(table: Table) -> None:
    """Print all columns as a table of Markdown."""
    _write(_console(), markdown_lines(table))


def print_text(text: str) -> None:
    """Print lines that may hold names from a trace, none of them interpreted."""
    _write(_console(), [printable_lines(text)])


def _console(file: IO[str] | None = None) -> Console:
    # Texts from a trace are never markup or emoji codes, and are not coloured.
    return Console(file=file or sys.stdout, markup=False, emoji=False, highlight=False)


def _write(console: Console, lines: Sequence[str]) -> None:
    """Write lines unchanged; rich would wrap them."""
    encoding = getattr(console.file, "encoding", None) or "utf-8"
    for line in lines:
        console.file.write(line.encode(encoding, "replace").decode(encoding) + "\n")


def with_paths(shown: pd.DataFrame, table: pd.DataFrame, *, is_sorted: bool) -> pd.DataFrame:
    """Return the rows of a tree with names that show their place; other tables unchanged.

    In the order of the tree names are indented. Sorted rows no longer stand below their parents, so
    they get their path. ``table`` has all the nodes.
    """
    if not set(table.columns) >= TREE:
        return shown
    if not is_sorted:
        names = [
            # Beyond the deepest indent a number says how much deeper it is.
            INDENT * min(depth, DEEPEST) + f"(+{depth - DEEPEST}) " * (depth > DEEPEST) + str(name)
            for depth, name in zip(shown["depth"], shown["name"], strict=True)
        ]
        return shown.assign(name=names)
    parent = dict(zip(table["node"], table["parent"], strict=True))
    name = dict(zip(table["node"], table["name"], strict=True))
    return shown.assign(name=[_path(node, parent, name) for node in shown["node"]])


def _path(node: int, parent: Mapping[int, int], name: Mapping[int, str]) -> str:
    """Return the names that lead to the node, without the root's."""
    names = [str(name[node])]
    above = parent[node]
    while above >= 0 and parent[above] >= 0:
        names.insert(0, LEFT_OUT if len(names) == LONGEST_PATH else str(name[above]))
        if len(names) > LONGEST_PATH:
            break
        above = parent[above]
    return BETWEEN.join(names)


def sort_columns(table: pd.DataFrame, key: str) -> list[str]:
    """Return the column of a key: ``cpu_self`` or ``cpu_self_ns``, after a sign; none if unknown.

    A table of Python functions takes pstats' keys as well, some of which name several columns.
    Raises `OptionError` where a key without its unit fits two columns.
    """
    name = key.lstrip("+-")
    if name in table.columns:
        return [name]
    columns = [name + unit for unit in UNITS if name + unit in table.columns]
    if len(columns) > 1:
        raise OptionError(f"{name!r} could be {' or '.join(columns)}: sort by one of these")
    return columns or list(_pstats_keys(table).get(name, ()))


def _pstats_keys(table: pd.DataFrame) -> dict[str, tuple[str, ...]]:
    """Return the pstats keys whose columns a table of Python functions has; none for others."""
    if not set(PLACES) <= set(table.columns):
        return {}
    return {key: names for key, names in PSTATS_KEYS.items() if set(names) <= set(table.columns)}


def sorted_by(table: pd.DataFrame, key: str) -> pd.DataFrame:
    """Return the rows sorted by the column of a key; ``+`` rising, ``-`` falling.

    Without a sign numbers begin with the largest, names with A, and lines of a file with the first.
    """
    columns = sort_columns(table, key)
    if not columns:
        names, pstats = list(map(str, table.columns)), list(_pstats_keys(table))
        hint = did_you_mean(key.lstrip("+-"), names + pstats)
        raise OptionError(
            f"there is no column {key!r} to sort by.{hint} Columns are {', '.join(names)}"
            + (f"; pstats' keys: {', '.join(pstats)}." if pstats else ".")
        )
    rising = [
        column in PLACES or not pd.api.types.is_numeric_dtype(table[column]) for column in columns
    ]
    if key[0] in "+-":
        rising = [key[0] == "+"] * len(columns)
    return table.sort_values(columns, ascending=rising, kind="stable", ignore_index=True)
