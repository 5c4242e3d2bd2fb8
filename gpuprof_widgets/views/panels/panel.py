"""What a panel shows: rows, the events behind each of them, and perhaps a plot."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

import pandas as pd

Unit = Literal["text", "count", "ns", "bytes", "share", "bytes/s", "flop/s", "number"]
Aggregate = Literal["", "time", "count", "sum", "mean", "min", "max", "covered"]


@dataclass(frozen=True)
class Column:
    """One column of a panel's table.

    ``aggregate`` says how the page computes it anew from the row's events for a brushed range:
    "" not at all (it is that of the whole run), "time" the events' time within the range, "covered"
    the time in which at least one of them ran, "count" how many lie in the range at least in part,
    "sum", "mean", "min", "max" of the events' column ``of`` ("dur_ns" of those in the range where
    it is empty).
    """

    key: str
    label: str
    unit: Unit
    aggregate: Aggregate = ""
    of: str = ""


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
    """Stacked bars, one per ``group``, with one part per ``part``, as long as ``value``."""

    group: str
    part: str
    value: str


@dataclass(frozen=True)
class Panel:
    """One tab: a table, linked to the timeline, and at most one kind of plot above it.

    ``rows``: one row per line of the table, with the columns' keys. ``events``: what each row
    stands for: ``group`` (position in ``rows``), ``start_ns``, ``end_ns``, ``row`` (slice that
    lights up, -1 for none) and whatever ``columns`` aggregate; a click on a row lights up its
    slices, or shows the range of its first event where it has none. ``note``: one line under the
    title.
    """

    title: str
    columns: tuple[Column, ...]
    rows: pd.DataFrame
    events: pd.DataFrame | None = None
    note: str = ""
    sort: str = ""
    curves: tuple[Curve, ...] = field(default=())
    points: Points | None = None
    bars: Bars | None = None
