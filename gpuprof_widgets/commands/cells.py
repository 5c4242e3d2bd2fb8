"""The values of a table as people read them: the name of a column says its unit."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import pandas as pd

from gpuprof_widgets.analyses.columns import ENDINGS, is_none
from gpuprof_widgets.analyses.quantity import (
    format_bandwidth,
    format_bytes,
    format_flops,
    format_ns,
    format_share,
)
from gpuprof_widgets.printable import printable

NONE = "–"
POSITIONS = ("start_ns", "end_ns", "ts_ns", "launch_ns", "first_ns", "last_ns")
"""Moments of the trace: written to the nanosecond, so that ``--window`` takes them."""

LARGE = 999.5
"""From here on three digits would not reach to the point: a mean of calls is written whole."""

Format = Callable[[Any], str]


def is_number(values: pd.Series) -> bool:
    """Whether the cells of this column are numbers, which stand right-aligned."""
    is_numeric = pd.api.types.is_numeric_dtype(values)
    return bool(is_numeric and not pd.api.types.is_bool_dtype(values))


def cell_texts(column: str, values: Iterable[Any]) -> list[str]:
    """The cells of one column."""
    written = _format_of(column)
    return [NONE if is_none(column, value) else written(value) for value in values]


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


FORMATS: dict[str, Format] = {
    "ns": format_ns,
    "bytes": format_bytes,
    "bytes/s": format_bandwidth,
    "flop": format_flops,
    "flop/s": _per_second(format_flops),
    "share": share,
}
"""How the values of a column of each unit are written."""


def _format_of(column: str) -> Format:
    if column in POSITIONS:
        return position
    if column.endswith("delta_ns"):
        return _only_numbers(signed_ns)
    if column.endswith("address"):
        return _only_numbers(address)
    return _only_numbers(
        FORMATS.get(next((u for end, u in ENDINGS if column.endswith(end)), ""), number)
    )


def _only_numbers(written: Format) -> Format:
    """The same where the column holds something else than numbers after all."""
    return lambda value: number(value) if isinstance(value, str | list | tuple) else written(value)
