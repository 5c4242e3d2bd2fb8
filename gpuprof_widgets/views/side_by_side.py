"""Several traces under each other on one scale: what is wide in one is as wide in all.

`outputs` and `standalone_html` make a page of timelines, `plot_timelines` the timelines of another
page, and `timelines_png` their picture for readers whose notebook runs no script.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from bokeh.models import Column, Range1d
from bokeh.models.ui import UIElement

from gpuprof_widgets.analyses.columns import format_ns
from gpuprof_widgets.trace.model import Record, Trace
from gpuprof_widgets.trace.pstats import frames_of
from gpuprof_widgets.trace.window import shifted
from gpuprof_widgets.views.canvas import MUTED, WIDTH, Box, Canvas
from gpuprof_widgets.views.encoding import BUDGET_BYTES, encode
from gpuprof_widgets.views.figure import (
    AXIS_HEIGHT,
    MINIMAP_HEIGHT,
    follower,
    has_gpu,
    new_uid,
    search_box,
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
    draw_headline,
    draw_legend,
    draw_levels,
    levels,
)
from gpuprof_widgets.views.report import MimeBundle, Picture, html_page, three_outputs
from gpuprof_widgets.views.table_renderers import shortened

STRIP_HEIGHT = 12
"""Pixels that each trace has in the overview of several."""

TALLEST = 360
"""Pixels that all timelines may take together before each of them scrolls on its own."""
LEAST = 96

FEW = 2
"""So many timelines open like that of a single trace; more of them have all tracks folded."""

MOST_PICTURED = 16
"""Timelines that the picture shows; the page has all of them."""
LEVELS = 40
"""Rows of bars of all timelines together in the picture."""
TITLE_HEIGHT, LEVEL_HEIGHT, GAP = 16, 13, 6
PICTURE_AXIS_HEIGHT = 30


@dataclass(frozen=True)
class Row:
    """One of the timelines: a record, its title, and its place on the common clock.

    ``offset_ns`` is added to the record's times; None lets it begin at the common zero.
    """

    record: Record
    title: str
    offset_ns: int | None = None


@dataclass(frozen=True)
class Heading:
    """The text above the timelines: a title, findings and notes.

    ``findings`` come from `figure.finding_lines`; ``of`` in each says which row it is about.
    ``busy``: what each timeline's title calls the share of the time in which its GPU has a slice.
    """

    title: str
    findings: Sequence[dict[str, Any]] = ()
    notes: Sequence[str] = ()
    busy: str = "busy"


def outputs(
    rows: Sequence[Row],
    heading: Heading,
    *,
    static: MimeBundle,
    tables: str = "",
    embed_runtime: bool,
) -> list[MimeBundle]:
    """Return the three outputs of a cell, as in `report.outputs`; ``static`` needs no script.

    ``tables``: HTML that stands below the live timelines as well.
    """
    picture = timelines_picture(placed(rows), heading.title)
    figure = side_by_side_figure(rows, heading, tables=tables)
    return three_outputs(static, picture, figure, embed_runtime=embed_runtime)


def standalone_html(rows: Sequence[Row], heading: Heading, *, html: str, tables: str = "") -> str:
    """Return one HTML file with the timelines, for a mail."""
    figure = side_by_side_figure(rows, heading, tables=tables)
    picture = timelines_picture(placed(rows), heading.title)
    return html_page(heading.title, html + picture.html, figure)


def side_by_side_figure(rows: Sequence[Row], heading: Heading, *, tables: str = "") -> Column:
    """Return heading, timelines and tables as one layout."""
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
    timelines = plot_timelines(group, [row.title for row in rows], busy=heading.busy)
    parts: list[UIElement] = [header, search_box(first), *timelines]
    if tables:
        parts.append(StaticPart(store=first, html=tables, sizing_mode="stretch_width"))
    return Column(children=parts, name=str(first.uid), sizing_mode="stretch_width", spacing=0)


def store_group(rows: Sequence[Row], *, brushes_all: bool = True) -> StoreGroup:
    """Return the records as the page gets them: on the common clock, with one visible range.

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
    """Return the rows with their records on the common clock, on which the first begins at 0."""
    offsets = [
        -row.record.trace.start_ns if row.offset_ns is None else row.offset_ns for row in rows
    ]
    starts = [row.record.trace.start_ns + by for row, by in zip(rows, offsets, strict=True)]
    first = min(starts)
    return [
        Row(shifted(row.record, by - first), row.title, by - first)
        for row, by in zip(rows, offsets, strict=True)
    ]


def plot_timelines(
    group: StoreGroup, titles: Sequence[str], *, busy: str = "busy"
) -> list[UIElement]:
    """Return buttons, overview, and per trace its title and tracks, below one time axis.

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
        plot = timeline_plot(store, height=room, has_axis=timeline is timelines[0])
        plot.renderers.append(timeline)
        above = TimelineTitle(store=store, text=title, busy=busy, sizing_mode="stretch_width")
        parts += [above, plot]
    return [*parts, follower(first, stores)]


def timelines_png(rows: Sequence[Row], headline: str) -> bytes:
    """Return a picture of at most `MOST_PICTURED` of the `placed` rows, under each other."""
    shown = rows[:MOST_PICTURED]
    each = max(LEVELS // len(shown), 2)
    lanes = [_busiest(row.record.trace, each) for row in shown]
    heights = [TITLE_HEIGHT + LEVEL_HEIGHT * max(len(lane), 1) + GAP for lane in lanes]
    canvas = Canvas(Box(0, 0, WIDTH, TIMELINE.top + sum(heights) + PICTURE_AXIS_HEIGHT))
    draw_headline(canvas, headline.replace("`", ""))
    draw_legend(canvas, *(row.record for row in shown))
    end = max(max(row.record.trace.end_ns for row in rows), 1)
    top = TIMELINE.top
    for row, lane, height in zip(shown, lanes, heights, strict=True):
        words = f"{shortened(row.title, 90)} · {format_ns(row.record.trace.span_ns)}"
        canvas.text(TIMELINE.left, top + TITLE_HEIGHT / 2, words, size=8.3, weight="bold")
        below = top + TITLE_HEIGHT
        draw_levels(canvas, row.record.trace, lane, (0, end), top=below, height=LEVEL_HEIGHT)
        top += height
    draw_axis(canvas, end, top)
    if len(rows) > len(shown):
        words = f"not drawn here: {len(rows) - len(shown)} more timelines"
        canvas.text(TIMELINE.right, top + 24, words, size=7.3, color=MUTED, ha="right")
    return canvas.png(headline)


def timelines_picture(rows: Sequence[Row], headline: str) -> Picture:
    """Return the `placed` rows as a picture."""
    end = max(max(row.record.trace.end_ns for row in rows), 1)
    return Picture(timelines_png(rows, headline), headline, end)


def _busiest(trace: Trace, count: int) -> list[Level]:
    """Return the levels to draw, in the order of the tracks.

    The outermost level of every track comes first, GPUs before others, then deeper levels while
    there is room.
    """
    on_gpu = trace.tracks["kind"].isin(["gpu", "copy"]).to_numpy()
    by_worth = sorted(
        levels(trace, count),
        key=lambda level: (level.depth, not on_gpu[level.track], -len(level.row)),
    )
    return sorted(by_worth[:count], key=lambda level: (level.track, level.depth))
