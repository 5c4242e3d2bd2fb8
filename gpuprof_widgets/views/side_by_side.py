"""Several traces under each other on one scale: what is wide in one is as wide in all."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from dataclasses import dataclass
from textwrap import wrap
from typing import Any, Protocol

import numpy as np
from bokeh.models import Column, Range1d
from bokeh.models.ui import UIElement

from gpuprof_widgets.analyses.columns import format_ns
from gpuprof_widgets.trace.model import Record, Trace
from gpuprof_widgets.trace.pstats import frames_of
from gpuprof_widgets.trace.window import shifted
from gpuprof_widgets.views.canvas import BAND, CARD, MUTED, Box, Canvas
from gpuprof_widgets.views.encoding import BUDGET_BYTES, encode
from gpuprof_widgets.views.figure import (
    AXIS_HEIGHT,
    MINIMAP_HEIGHT,
    has_gpu,
    new_uid,
    time_axis,
    timeline_plot,
)
from gpuprof_widgets.views.models import (
    GroupHeader,
    Minimap,
    StaticPart,
    StoreGroup,
    Timeline,
    TimelineBar,
    TimelineTitle,
    TraceStore,
)
from gpuprof_widgets.views.picture import (
    TIMELINE,
    Level,
    draw_axis,
    draw_legend,
    draw_level,
    levels,
)
from gpuprof_widgets.views.report import MimeBundle, figure_script, html_page
from gpuprof_widgets.views.table_renderers import shortened

STRIP_HEIGHT = 12
"""Pixels that each trace has in the overview of several."""

TALLEST = 360
"""Pixels that all timelines may take together before each of them scrolls on its own."""
LEAST = 96

FEW = 2
"""So many timelines open like that of a single trace; more of them have all tracks folded."""


@dataclass(frozen=True)
class Row:
    """One of the timelines: a record, what it is called, and where it stands on the common clock.

    ``offset_ns`` is added to the record's times; None lets it begin at the common zero.
    """

    record: Record
    title: str
    offset_ns: int | None = None


@dataclass(frozen=True)
class Heading:
    """What stands above the timelines: a title, findings, and notes, all in words.

    ``findings`` are those of `figure.finding_lines`; ``of`` in each says which row it is about.
    """

    title: str
    findings: Sequence[dict[str, Any]] = ()
    notes: Sequence[str] = ()
    busy: str = "busy"
    """What each timeline's title calls the share of the time in which its GPU has a slice."""


def outputs(
    rows: Sequence[Row],
    heading: Heading,
    *,
    html: str,
    text: str,
    tables: str = "",
    embed_runtime: bool,
) -> list[MimeBundle]:
    """The three outputs of a cell, as in `report.outputs`; ``html`` and ``text`` need no script.

    ``tables``: HTML that stands below the live timelines as well.
    """
    picture = base64.b64encode(timelines_png(placed(rows), heading.title)).decode("ascii")
    figure = side_by_side_figure(rows, heading, tables=tables)
    script = figure_script(figure, embed_runtime=embed_runtime)
    return [
        {"text/html": html, "text/plain": text},
        {"image/png": picture, "text/plain": ""},
        {"application/javascript": script, "text/plain": ""},
    ]


def standalone_html(rows: Sequence[Row], heading: Heading, *, html: str, tables: str = "") -> str:
    """One HTML file with the timelines, for a mail."""
    figure = side_by_side_figure(rows, heading, tables=tables)
    return html_page(heading.title, html, figure_script(figure, embed_runtime=True))


def side_by_side_figure(rows: Sequence[Row], heading: Heading, *, tables: str = "") -> Column:
    """Heading, timelines and tables as one layout."""
    group = store_group(rows)
    first = group.stores[0]
    header = GroupHeader(
        store=first,
        group=group,
        label=heading.title,
        findings=list(heading.findings),
        notes=list(heading.notes),
        sizing_mode="stretch_width",
    )
    parts: list[UIElement] = [header, *_timelines(group, rows, heading)]
    if tables:
        parts.append(StaticPart(store=first, html=tables, sizing_mode="stretch_width"))
    return Column(children=parts, name=str(first.uid), sizing_mode="stretch_width", spacing=0)


def store_group(rows: Sequence[Row], *, brushes_all: bool = True) -> StoreGroup:
    """The records as the page gets them: each on the common clock, all with one visible range.

    Together they take no more room in a notebook than one record may.
    """
    on_one_clock = placed(rows)
    end = max(max(row.record.trace.end_ns for row in on_one_clock), 1)
    visible = Range1d(start=0, end=end)
    budget = BUDGET_BYTES // len(rows)
    stores = [
        TraceStore(
            uid=new_uid(),
            payload=encode(row.record, budget_bytes=budget, with_panels=False).text,
            label=row.title,
            frames_of=frames_of(row.record),
            on_gpu=has_gpu(row.record),
            extent=(0, end),
            visible=visible,
        )
        for row in on_one_clock
    ]
    return StoreGroup(stores=stores, brushes_all=brushes_all)


def placed(rows: Sequence[Row]) -> list[Row]:
    """The rows with their records on the common clock, on which the earliest one begins at 0."""
    offsets = [
        -row.record.trace.start_ns if row.offset_ns is None else row.offset_ns for row in rows
    ]
    starts = [row.record.trace.start_ns + by for row, by in zip(rows, offsets, strict=True)]
    first = min(starts)
    return [
        Row(shifted(row.record, by - first), row.title, by - first)
        for row, by in zip(rows, offsets, strict=True)
    ]


def _timelines(group: StoreGroup, rows: Sequence[Row], heading: Heading) -> list[UIElement]:
    return plot_timelines(group, [row.title for row in rows], busy=heading.busy)


def plot_timelines(
    group: StoreGroup, titles: Sequence[str], *, busy: str = "busy"
) -> list[UIElement]:
    """Buttons, overview, and per trace a title and its tracks; one time axis above them all.

    ``busy``: see `Heading`.
    """
    stores: list[TraceStore] = group.stores
    first, many = stores[0], len(stores) > FEW
    room = max(TALLEST * (1 if many else 2) // len(stores), LEAST)
    timelines = [
        Timeline(
            store=store,
            axis_height=0 if number else AXIS_HEIGHT,
            max_height=room,
            compact=many,
            folds_to_fit=not many,
        )
        for number, store in enumerate(stores)
    ]
    overview = timeline_plot(first, height=max(MINIMAP_HEIGHT, STRIP_HEIGHT * len(stores)))
    overview.renderers.append(Minimap(store=first, stores=stores))
    bar = TimelineBar(
        store=first,
        timeline=timelines[0],
        companions=timelines[1:],
        sizing_mode="stretch_width",
    )
    parts: list[UIElement] = [bar, overview]
    for timeline, store, title in zip(timelines, stores, titles, strict=True):
        plot = timeline_plot(store, height=room)
        if timeline is timelines[0]:
            plot.add_layout(time_axis(), "above")
        plot.renderers.append(timeline)
        above = TimelineTitle(store=store, text=title, busy=busy, sizing_mode="stretch_width")
        parts += [above, plot]
    return parts


TITLE_HEIGHT, AXIS, GAP = 16, 30, 6
LEVEL_HEIGHT = 13
MOST = 16
"""Timelines that the picture shows; the page has all of them."""
LEVELS = 40
"""Rows of bars of all timelines together."""


class PlacedRow(Protocol):
    """A record on the common clock, and its name."""

    @property
    def record(self) -> Record: ...
    @property
    def title(self) -> str: ...


def timelines_png(rows: Sequence[PlacedRow], headline: str) -> bytes:
    """The timelines under each other, at most `MOST` of them."""
    shown = rows[:MOST]
    each = max(LEVELS // len(shown), 2)
    lanes = [_busiest(row.record.trace, each) for row in shown]
    heights = [TITLE_HEIGHT + LEVEL_HEIGHT * max(len(some), 1) + GAP for some in lanes]
    canvas = Canvas(TIMELINE.top + sum(heights) + AXIS)
    for number, line in enumerate(wrap(headline.replace("`", ""), 132)[:2]):
        canvas.text(12, 16 + 16 * number, line, size=9.5, weight="bold")
    draw_legend(canvas, *(row.record for row in shown))
    end = max(max(row.record.trace.end_ns for row in rows), 1)
    top = TIMELINE.top
    for row, some, height in zip(shown, lanes, heights, strict=True):
        _draw(canvas, row, some, top, end)
        top += height
    draw_axis(canvas, end, top)
    if len(rows) > len(shown):
        words = f"not drawn here: {len(rows) - len(shown)} more timelines"
        canvas.text(TIMELINE.right, top + 24, words, size=7, colour=MUTED, align="right")
    return canvas.png(headline)


def _busiest(trace: Trace, count: int) -> list[Level]:
    """The outermost level of every track, of GPUs first, then deeper ones as long as there is room.

    They come in the order of the tracks.
    """
    kinds = trace.tracks["kind"].isin(["gpu", "copy"]).to_numpy()
    found = list(levels(trace, count))
    by_worth = sorted(
        found, key=lambda level: (level.depth, not kinds[level.track], -len(level.row))
    )
    return sorted(by_worth[:count], key=lambda level: (level.track, level.depth))


def _draw(canvas: Canvas, row: PlacedRow, lanes: Sequence[Level], top: int, end: int) -> None:
    trace = row.record.trace
    words = f"{shortened(row.title, 90)} · {format_ns(trace.span_ns)}"
    canvas.text(TIMELINE.left, top + TITLE_HEIGHT / 2, words, size=8, weight="bold")
    top += TITLE_HEIGHT
    labels = trace.tracks["label"].astype(str).to_numpy()
    names = np.array([level.track for level in lanes], np.intp)
    for number, level in enumerate(lanes):
        box = Box(TIMELINE.left, top, TIMELINE.right, top + LEVEL_HEIGHT)
        canvas.fill(Box(box.left, box.top, box.right, box.bottom - 1), BAND)
        draw_level(canvas, trace, level, box, (0, end))
        if number == 0 or names[number - 1] != level.track:
            label = shortened(labels[level.track], 34)
            middle = top + LEVEL_HEIGHT / 2
            canvas.text(TIMELINE.left - 8, middle, label, size=7, align="right")
        top += LEVEL_HEIGHT
    if not lanes:
        canvas.fill(Box(TIMELINE.left, top, TIMELINE.right, top + 1), CARD)
