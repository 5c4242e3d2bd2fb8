"""The values of a table as people read them: the name of a column says its unit."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Any

import pandas as pd

from gpuprof_widgets.analyses.quantity import (
    format_bandwidth,
    format_bytes,
    format_flops,
    format_ns,
    format_share,
)
from gpuprof_widgets.printable import printable

NONE = "–"
UNITS = ("_ns", "_bytes_per_s", "_bytes", "_flops")
"""Ends of column names that a heading, and a sort key, may leave out."""

LINKS = (
    *("row", "before", "after", "op", "gpu", "copy", "cpu", "launch", "module", "forward"),
    *("release", "kernel", "parent", "node", "address", "track"),
)
"""Columns that, where they hold whole numbers, name rows of the trace."""

SIGNED = ("delta", "offset", "shift", "_memory", "increase")
"""Parts of the names of whole-number columns in which -1 is a value; elsewhere it is: none."""

POSITIONS = ("start_ns", "end_ns", "ts_ns", "launch_ns", "first_ns", "last_ns")
"""Moments of the trace: written to the nanosecond, so that ``--window`` takes them."""

LARGE = 999.5
"""From here on three digits would not reach to the point: a mean of calls is written whole."""

Format = Callable[[Any], str]


def heading(column: str) -> str:
    """The name of a column without its unit, which every cell has."""
    for unit in UNITS:
        if column.endswith(unit):
            return column.removesuffix(unit)
    return column


def is_link(table: pd.DataFrame, column: str) -> bool:
    """Whether a column of the table names rows of the trace: nothing for people to read."""
    return column in LINKS and pd.api.types.is_integer_dtype(table[column])


def is_number(values: pd.Series) -> bool:
    """Whether the cells of this column are numbers, which stand right-aligned."""
    is_numeric = pd.api.types.is_numeric_dtype(values)
    return bool(is_numeric and not pd.api.types.is_bool_dtype(values))


def cell_texts(column: str, values: Iterable[Any]) -> list[str]:
    """The cells of one column."""
    written = _format_of(column)
    return [NONE if _is_none(column, value) else written(value) for value in values]


def position(ns: int) -> str:
    """A moment of the trace: milliseconds, to the nanosecond."""
    return f"{ns / 1e6:,.6f} ms"


def number(value: Any) -> str:
    """A count, a ratio, a name: whatever a column without a unit holds."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, float):
        is_whole = value.is_integer() or abs(value) >= LARGE
        return f"{value:,.0f}" if is_whole else f"{value:.3g}"
    return printable(str(value))


def share(value: float) -> str:
    """A share of one, short enough for a column."""
    return format_share(value).replace("less than", "<")


def _per_second(written: Format) -> Format:
    return lambda value: f"{written(value)}/s"


def signed_ns(ns: float) -> str:
    """A difference of times, with its sign."""
    return f"{'−' if ns < 0 else '+' if ns > 0 else ''}{format_ns(abs(ns))}"


def address(value: int) -> str:
    """A place in memory."""
    return f"{value:#x}"


FORMATS: tuple[tuple[str, Format], ...] = (
    ("delta_ns", signed_ns),
    ("bytes_per_s", format_bandwidth),
    ("flops_per_s", _per_second(format_flops)),
    ("_ns", format_ns),
    ("bytes", format_bytes),
    ("share", share),
    ("utilisation", share),
    ("efficiency", share),
    ("occupancy", share),
    ("flops", format_flops),
    ("address", address),
)
"""How the values of a column are written, by the end of its name; the first that fits."""


def _format_of(column: str) -> Format:
    if column in POSITIONS:
        return position
    found = (written for end, written in FORMATS if column.endswith(end))
    return _only_numbers(next(found, number))


def _only_numbers(written: Format) -> Format:
    """The same where the column holds something else than numbers after all."""
    return lambda value: number(value) if isinstance(value, str | list | tuple) else written(value)


def _is_none(column: str, value: Any) -> bool:
    if value is None or value is pd.NA or (isinstance(value, float) and math.isnan(value)):
        return True
    is_missing = isinstance(value, int) and value == -1
    return is_missing and not any(part in column for part in SIGNED)
