"""A table as a value: its columns, its rows, and how a cell of each unit reads.

Analyses, panels and comparisons are shown as a `Table`; `table_renderers` turns it into text, HTML
and the data of the page. A `Panel` is a table with the events behind its rows and perhaps a plot.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import pandas as pd

from gpuprof_widgets.analyses.columns import (
    Unit,
    format_bandwidth,
    format_bytes,
    format_flops,
    format_ns,
    format_ratio,
    format_share,
    heading,
    is_missing,
    is_none,
    signed_ns,
    unit_of,
)
from gpuprof_widgets.exceptions import printable
from gpuprof_widgets.trace.arrays import Rows
from gpuprof_widgets.trace.model import Trace

Aggregate = Literal["", "time", "count", "sum", "mean", "min", "max", "covered", "share", "ratio"]

NONE = "–"
NARROWEST = 12
"""Characters that names keep where a text is narrow: other columns are left out before."""

LARGE = 999.5
"""From here on three digits would not reach to the point: a mean of calls is written whole."""

MOST_ROWS = 500
"""Rows of a panel that the page gets."""
MOST_EVENTS = 20_000
"""Events of a panel beyond which the page computes no column anew, and gets only the longest."""

Colour = tuple[int, int, int, float]
"""Red, green and blue (0 to 255), and how opaque it is (0 to 1)."""

Fill = tuple[tuple[Colour, float, float], ...]
"""What is behind a cell's text: colours, each with its start and end as shares of the cell's width.

The first starts at 0, each other one where the one before ends. () is no fill.
"""


@dataclass(frozen=True)
class Column:
    """A column of a table: where its values are in the rows, its heading and its unit.

    ``aggregate`` says how the page computes it from the row's events for a brushed range:

    - "": not at all, it always counts the whole run;
    - "time": the events' time within the range; "covered": the time with at least one of them;
    - "count": how many lie in the range at least in part;
    - "sum", "mean", "min", "max": of the events' column ``of`` (events in the range; where ``of``
      is empty, of their time within the range);
    - "share": of the table's column ``of`` in its sum over all rows, or with
      ``of="time_ns/device"`` over the rows of the same ``device``;
    - "ratio": of two of the table's columns, ``of="bytes/time_ns"`` (per second where the unit
      says so).
    """

    key: str
    label: str
    unit: Unit = "text"
    aggregate: Aggregate = ""
    of: str = ""

    @property
    def is_text(self) -> bool:
        return self.unit == "text"


@dataclass(frozen=True)
class Table:
    """A title, columns and rows; the first column says what a row is.

    ``sort``: the column by which it is sorted, numbers from the largest down; if empty, ``rows``
    keep their order. ``notes``: sentences below it. ``expendable``: keys of the columns that a text
    leaves out, in this order, where names would have fewer than ``narrowest`` characters.
    ``fills``: what is behind the text of each row's cell, by columns; it may be dropped. ``code``:
    keys of columns of source code, which the HTML shows as such.
    """

    title: str
    columns: tuple[Column, ...]
    rows: pd.DataFrame
    _: KW_ONLY
    sort: str = ""
    notes: tuple[str, ...] = ()
    expendable: tuple[str, ...] = ()
    narrowest: int = NARROWEST
    fills: Mapping[str, Sequence[Fill]] = field(default_factory=dict)
    code: tuple[str, ...] = ()


def table_of(
    frame: pd.DataFrame, title: str = "", *, label: Callable[[str], str] = heading
) -> Table:
    """Return the whole table of an analysis; the units come from the names of its columns.

    Cells are numbers and texts; those without a value are None, and so is a -1 that means none.
    Raises `ValueError` where two columns have one name.
    """
    frame = frame.rename(columns=str)
    keys = list(frame.columns)
    if doubled := [key for key, times in Counter(keys).items() if times > 1]:
        raise ValueError(f"the table has several columns of one name: {', '.join(doubled)}")
    cells = {key: [_cell(key, value) for value in frame[key].tolist()] for key in keys}
    columns = tuple(Column(key, printable(label(key)), unit_of(frame, key)) for key in keys)
    return Table(title, columns, pd.DataFrame(cells, dtype=object))


def _cell(key: str, value: Any) -> float | str | None:
    value = value.item() if isinstance(value, np.generic) else value
    if is_none(key, value):
        return None
    if isinstance(value, bool):
        return "yes" if value else "no"
    return value if isinstance(value, int | float) else str(value)


def cell_texts(table: Table, column: Column) -> list[str]:
    """Return the texts of one column's cells."""
    return [cell_text(value, column.unit) for value in table.rows[column.key].tolist()]


def cell_text(value: Any, unit: Unit) -> str:
    """Return the text of a cell, every character printable; a string is the same in any unit."""
    if is_missing(value):
        return NONE
    return printable(value) if isinstance(value, str) else FORMATS[unit](value)


def _text(value: Any) -> str:
    return _number(value) if isinstance(value, int | float) else printable(str(value))


def _number(value: float) -> str:
    """Return three significant digits, or all digits of a whole number."""
    if isinstance(value, int):
        return f"{value:,}"
    is_whole = value.is_integer() or abs(value) >= LARGE
    return f"{value:,.0f}" if is_whole else f"{value:.3g}"


FORMATS: Mapping[Unit, Callable[[Any], str]] = {
    "text": _text,
    "count": _number,
    "number": _number,
    "ns": format_ns,
    "bytes": format_bytes,
    "flop": format_flops,
    "share": lambda share: format_share(share).replace("less than", "<"),
    "bytes/s": format_bandwidth,
    "flop/s": lambda value: f"{format_flops(value)}/s",
    "moment": lambda ns: f"{ns / 1e6:,.6f} ms",
    "change": signed_ns,
    "ratio": format_ratio,
    "address": lambda value: f"{int(value):#x}",
}
"""The function that formats a value of each unit."""


@dataclass(frozen=True)
class Curve:
    """A quantity that keeps its value until it changes: ``ts_ns`` and ``value`` of each change."""

    name: str
    unit: Unit
    changes: pd.DataFrame


@dataclass(frozen=True)
class Points:
    """A scatter plot of the table's rows; both axes are logarithmic.

    ``lines``: x, y and label of each polyline drawn behind the points (a roof).
    """

    x: str
    y: str
    size: str = ""
    lines: tuple[tuple[tuple[float, ...], tuple[float, ...], str], ...] = ()


@dataclass(frozen=True)
class Bars:
    """Stacked bars, one per ``group``, with one part per ``part``, as long as ``value``.

    Without a group there is one bar of all rows.
    """

    group: str
    part: str
    value: str


@dataclass(frozen=True)
class Panel(Table):
    """One tab: a table, linked to the timeline, and at most one kind of plot above it.

    ``events``: the events behind the rows: ``group`` (position in ``rows``), ``start_ns``,
    ``end_ns``, ``row`` (slice that lights up, -1 for none), where known ``track`` (of a range
    without a slice) and whatever ``columns`` aggregate. A click on a row lights up its slices, and
    the ranges of events without a slice. With more than ``most_events`` the page has only the
    longest, and all times are of the whole run.

    ``frames``: each slice's function, as its position in ``rows``, -1 for none. The events are then
    the stretches in which these slices were the innermost of their tracks: a page that has all
    slices finds them by itself, however many they are.
    """

    events: pd.DataFrame | None = None
    _: KW_ONLY
    curves: tuple[Curve, ...] = ()
    points: Points | None = None
    bars: Bars | None = None
    most_events: int = MOST_EVENTS
    frames: npt.NDArray[np.int64] | None = None


def slice_events(trace: Trace, rows: Rows, **columns: Any) -> pd.DataFrame:
    """Return the events of a panel that are these slices."""
    start, dur = (trace.slices[key].to_numpy()[rows] for key in ("ts", "dur"))
    return pd.DataFrame({"start_ns": start, "end_ns": start + dur, "row": rows, **columns})
