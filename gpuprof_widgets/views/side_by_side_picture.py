"""Several timelines on one scale as one PNG, for readers whose notebook runs no script."""

from __future__ import annotations

from collections.abc import Sequence
from textwrap import wrap
from typing import Protocol

import numpy as np

from gpuprof_widgets.analyses.quantity import format_ns
from gpuprof_widgets.trace.model import Record, Trace
from gpuprof_widgets.views.canvas import BAND, CARD, MUTED, Box, Canvas
from gpuprof_widgets.views.level_of_detail import Level, levels
from gpuprof_widgets.views.picture import TIMELINE, draw_axis, draw_legend, draw_level
from gpuprof_widgets.views.text import shortened

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
