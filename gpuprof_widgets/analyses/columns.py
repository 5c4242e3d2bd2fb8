"""What a column of a table holds: its name says the unit, and what stands for no value."""

from __future__ import annotations

import math
from typing import Any, Literal

import pandas as pd
from pandas.api.types import infer_dtype, is_integer_dtype

Unit = Literal[
    "text", "count", "number", "ns", "bytes", "flop", "share", "bytes/s", "flop/s",
    "moment", "change", "ratio", "address",
]  # fmt: skip
"""What the cells of a column are: a ``moment`` of the trace is a time (ns), ``change`` a difference
of times (ns), ``ratio`` one time as a share of another.
"""

MOMENTS = ("start_ns", "end_ns", "ts_ns", "launch_ns", "first_ns", "last_ns")
"""Columns of moments of the trace, which are written so that ``--window`` takes them."""

ENDINGS: tuple[tuple[str, Unit], ...] = (
    ("delta_ns", "change"),
    ("bytes_per_s", "bytes/s"),
    ("flops_per_s", "flop/s"),
    ("_ns", "ns"),
    ("bytes", "bytes"),
    ("share", "share"),
    ("utilisation", "share"),
    ("efficiency", "share"),
    ("occupancy", "share"),
    ("flops", "flop"),
    ("address", "address"),
)
"""The unit of a column by the end of its name; the first that fits."""

UNITS = ("_ns", "_bytes_per_s", "_bytes", "_flops")
"""Ends of column names that a heading, and a sort key, may leave out."""

LINKS = (
    *("row", "before", "after", "op", "gpu", "copy", "cpu", "launch", "module", "forward"),
    *("release", "kernel", "parent", "node", "address", "track"),
)
"""Columns that, where they hold whole numbers, name rows of the trace."""

SIGNED = ("delta", "offset", "shift", "_memory", "increase")
"""Parts of the names of whole-number columns in which -1 is a value; elsewhere it is: none."""


WHOLE, FRACTIONS = "integer", ("floating", "mixed-integer-float")
"""What pandas calls columns of numbers, whatever their type."""


def unit_of(table: pd.DataFrame, column: str) -> Unit:
    """Return the unit of a column: of numbers what the name says, else counts or plain numbers."""
    kind = infer_dtype(table[column], skipna=True)
    if kind not in (WHOLE, *FRACTIONS):
        return "text"
    if column in MOMENTS:
        return "moment"
    plain: Unit = "count" if kind == WHOLE else "number"
    return next((unit for end, unit in ENDINGS if column.endswith(end)), plain)


def heading(column: str) -> str:
    """Return the name of a column without its unit, which every cell has."""
    for unit in UNITS:
        if column.endswith(unit):
            return column.removesuffix(unit)
    return column


def is_link(table: pd.DataFrame, column: str) -> bool:
    """Return whether a column names rows of the trace, which nobody reads."""
    return column in LINKS and is_integer_dtype(table[column])


def is_missing(value: Any) -> bool:
    """Return whether there is no value."""
    is_nan = isinstance(value, float) and math.isnan(value)
    return value is None or value is pd.NA or value is pd.NaT or is_nan


def is_none(column: str, value: Any) -> bool:
    """Return whether a cell is empty: in whole numbers that cannot be negative, -1 says so."""
    return is_missing(value) or (isinstance(value, int) and value == -1 and not is_signed(column))


def is_signed(column: str) -> bool:
    """Return whether whole numbers in a column may be negative."""
    return any(part in column for part in SIGNED)
