"""What a panel shows: rows, the events behind each of them, and perhaps a plot."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

import numpy as np
import numpy.typing as npt
import pandas as pd

Unit = Literal["text", "count", "ns", "bytes", "flop", "share", "bytes/s", "flop/s", "number"]
Aggregate = Literal["", "time", "count", "sum", "mean", "min", "max", "covered", "share", "ratio"]

MOST_EVENTS = 20_000
"""Events of a panel beyond which the page computes no column anew, and gets only the longest."""


@dataclass(frozen=True)
class Column:
    """One column of a panel's table.

    ``aggregate`` says how the page computes it anew from the row's events for a brushed range:
    "" not at all (it is that of the whole run), "time" the events' time within the range, "covered"
    the time in which at least one of them ran, "count" how many lie in the range at least in part,
    "sum", "mean", "min", "max" of the events' column ``of`` (of those in the range; where it is
    empty, of their time within the range); "share" of the table's column ``of`` in its sum over all
    rows, or with ``of="time_ns/device"`` over the rows of the same ``device``; "ratio" of two of
    the table's columns, ``of="bytes/time_ns"`` (per second where the unit says so).
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
    """Stacked bars, one per ``group``, with one part per ``part``, as long as ``value``.

    Without a group there is one bar of all rows.
    """

    group: str
    part: str
    value: str


@dataclass(frozen=True)
class Panel:
    """One tab: a table, linked to the timeline, and at most one kind of plot above it.

    ``rows``: one row per line of the table, with the columns' keys. ``events``: what each row
    stands for: ``group`` (position in ``rows``), ``start_ns``, ``end_ns``, ``row`` (slice that
    lights up, -1 for none), where known ``track`` (of a range without a slice) and whatever
    ``columns`` aggregate; a click on a row lights up its slices, and the ranges of events that have
    none. ``sort``: column by which the table opens, numbers from the largest down; as ``rows``
    stand where it is empty. ``note``: one line under the title. ``most_events``: with more of them
    the page has only the longest, and all times are of the whole run.

    ``frames``: of each slice the position in ``rows`` of the function that it is a call of, -1 for
    none. The events are then the stretches in which these slices were the innermost of their
    tracks: a page that has all slices finds them by itself, however many they are.
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
    most_events: int = MOST_EVENTS
    frames: npt.NDArray[np.int64] | None = None
