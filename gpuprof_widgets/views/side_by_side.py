"""Several traces under each other on one scale: what is wide in one is as wide in all.

`outputs` and `standalone_html` make a page of timelines, `page_group` the timelines of any page of
several traces, and `timelines_picture` their picture for readers whose notebook runs no script.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from gpuprof_widgets.analyses.columns import format_ns
from gpuprof_widgets.trace.model import Record, Trace
from gpuprof_widgets.trace.remarks import remarks
from gpuprof_widgets.trace.window import shifted
from gpuprof_widgets.views.canvas import MUTED, WIDTH, Box, Canvas
from gpuprof_widgets.views.encoding import BUDGET_BYTES, encode
from gpuprof_widgets.views.page import Page, page_store
from gpuprof_widgets.views.picture import (
    FAMILIES_BELOW,
    FLAGS_HEIGHT,
    TIMELINE,
    Level,
    draw_axis,
    draw_families,
    draw_headline,
    draw_legend,
    draw_levels,
    draw_remarks,
    levels,
)
from gpuprof_widgets.views.report import MimeBundle, Picture, html_page, three_outputs
from gpuprof_widgets.views.table_renderers import shortened

MOST_PICTURED = 16
"""Timelines that the picture shows; the page has all of them."""
LEVELS = 40
"""Rows of bars of all timelines together in the picture."""
TITLE_HEIGHT, LEVEL_HEIGHT, GAP = 16, 13, 6
PICTURE_AXIS_HEIGHT = 44


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

    ``findings`` come from `page.finding_lines`; ``of`` in each says which row it is about.
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
    tables: Sequence[dict[str, Any]] = (),
    embed_runtime: bool,
) -> list[MimeBundle]:
    """Return the three outputs of a cell, as in `report.outputs`; ``static`` needs no script.

    ``tables``: those below the live timelines, as `ranks_page.page_tables` returns them.
    """
    picture = timelines_picture(placed(rows), heading.title)
    page = side_by_side_page(rows, heading, tables=tables)
    return three_outputs(static, picture, page, embed_runtime=embed_runtime)


def standalone_html(
    rows: Sequence[Row], heading: Heading, *, html: str, tables: Sequence[dict[str, Any]] = ()
) -> str:
    """Return one HTML file with the timelines, for a mail."""
    page = side_by_side_page(rows, heading, tables=tables)
    picture = timelines_picture(placed(rows), heading.title)
    return html_page(heading.title, html + picture.html, page)


def side_by_side_page(
    rows: Sequence[Row], heading: Heading, *, tables: Sequence[dict[str, Any]] = ()
) -> Page:
    """Return heading, timelines and tables as data."""
    return {
        "kind": "timelines",
        **page_group(rows),
        "label": heading.title,
        "findings": list(heading.findings),
        "notes": list(heading.notes),
        "busy": heading.busy,
        "tables": list(tables),
    }


def page_group(rows: Sequence[Row]) -> dict[str, Any]:
    """Return the records as the page gets them: on the common clock, which ends at ``end``.

    Together they take no more room in a notebook than one record may.
    """
    on_one_clock = placed(rows)
    budget = BUDGET_BYTES // len(rows)
    payloads = [encode(row.record, budget_bytes=budget, with_panels=False) for row in on_one_clock]
    return {
        "stores": [
            page_store(row.record, payload, label=row.title)
            for row, payload in zip(on_one_clock, payloads, strict=True)
        ],
        "end": max(max(row.record.trace.end_ns for row in on_one_clock), 1),
        "titles": [row.title for row in rows],
    }


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


def timelines_picture(rows: Sequence[Row], headline: str) -> Picture:
    """Return a picture of at most `MOST_PICTURED` of the `placed` rows, under each other."""
    shown = rows[:MOST_PICTURED]
    each = max(LEVELS // len(shown), 2)
    lanes = [_busiest(row.record.trace, each) for row in shown]
    flags = [FLAGS_HEIGHT if remarks(row.record) else 0 for row in shown]
    heights = [
        TITLE_HEIGHT + above + LEVEL_HEIGHT * max(len(lane), 1) + GAP
        for lane, above in zip(lanes, flags, strict=True)
    ]
    canvas = Canvas(Box(0, 0, WIDTH, TIMELINE.top + sum(heights) + PICTURE_AXIS_HEIGHT))
    draw_headline(canvas, headline.replace("`", ""))
    draw_legend(canvas, *(row.record for row in shown))
    end = max(max(row.record.trace.end_ns for row in rows), 1)
    top = TIMELINE.top
    for row, lane, height, above in zip(shown, lanes, heights, flags, strict=True):
        words = f"{shortened(row.title, 90)} · {format_ns(row.record.trace.span_ns)}"
        canvas.text(TIMELINE.left, top + TITLE_HEIGHT / 2, words, size=8.3, weight="bold")
        below = top + TITLE_HEIGHT + above
        bottom = draw_levels(
            canvas, row.record.trace, lane, (0, end), top=below, height=LEVEL_HEIGHT
        )
        draw_remarks(canvas, remarks(row.record), (0, end), top=below, bottom=bottom)
        top += height
    draw_axis(canvas, end, top)
    draw_families(canvas, top + FAMILIES_BELOW, *(row.record for row in shown))
    if len(rows) > len(shown):
        words = f"not drawn here: {len(rows) - len(shown)} more timelines"
        canvas.text(TIMELINE.right, top + FAMILIES_BELOW, words, size=7.3, color=MUTED, ha="right")
    return Picture(canvas.png(headline), headline, end)


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
