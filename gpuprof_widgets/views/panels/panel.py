"""What a panel shows: a table, the events behind each of its rows, and perhaps a plot."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass

import numpy as np
import numpy.typing as npt
import pandas as pd

from gpuprof_widgets.analyses.columns import Unit
from gpuprof_widgets.views.table import Table

MOST_ROWS = 500
"""Rows of a panel that the page gets."""
MOST_EVENTS = 20_000
"""Events of a panel beyond which the page computes no column anew, and gets only the longest."""


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

    ``events``: what each row stands for: ``group`` (position in ``rows``), ``start_ns``,
    ``end_ns``, ``row`` (slice that lights up, -1 for none), where known ``track`` (of a range
    without a slice) and whatever ``columns`` aggregate; a click on a row lights up its slices, and
    the ranges of events that have none. ``most_events``: with more of them the page has only the
    longest, and all times are of the whole run.

    ``frames``: of each slice the position in ``rows`` of the function that it is a call of, -1 for
    none. The events are then the stretches in which these slices were the innermost of their
    tracks: a page that has all slices finds them by itself, however many they are.
    """

    events: pd.DataFrame | None = None
    _: KW_ONLY
    curves: tuple[Curve, ...] = ()
    points: Points | None = None
    bars: Bars | None = None
    most_events: int = MOST_EVENTS
    frames: npt.NDArray[np.int64] | None = None
