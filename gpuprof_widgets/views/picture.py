"""The views as one picture, for readers whose notebook runs no script: drawn without a browser.

Timeline on top, flame graph and top ops below, on a white card that is legible on any theme. The
timeline (`levels`, `pixels`) and the flame graph are rasters with one value per pixel: the cost
hardly depends on the number of events.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from operator import attrgetter
from textwrap import wrap
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pandas as pd
from matplotlib.colors import to_rgb
from matplotlib.ticker import MaxNLocator

from gpuprof_widgets.analyses.call_tree import call_tree, flame_source
from gpuprof_widgets.analyses.columns import format_ns, format_share
from gpuprof_widgets.analyses.findings import findings
from gpuprof_widgets.analyses.gpu_work import families
from gpuprof_widgets.analyses.operators import operators
from gpuprof_widgets.analyses.python_time import has_python_alone
from gpuprof_widgets.trace.arrays import Rows
from gpuprof_widgets.trace.links import rows_by
from gpuprof_widgets.trace.model import Record, Trace
from gpuprof_widgets.trace.remarks import Remark, remarks
from gpuprof_widgets.trace.schema import GPU_CATEGORIES, REGION_CATEGORIES
from gpuprof_widgets.views.canvas import (
    BAND,
    CARD,
    FAMILY_COLOURS,
    INK,
    KINDS,
    MUTED,
    WIDTH,
    Box,
    Canvas,
    Colour,
    colour_of,
    kind_of,
    label_room,
)
from gpuprof_widgets.views.static_tables import function_rows
from gpuprof_widgets.views.table_renderers import shortened


class Across(NamedTuple):
    """A part of the picture's width, in pixels from its left."""

    left: int
    right: int


TIMELINE = Box(200, 66, 1188, 352)
"""Where the tracks are; those of small runs end above its bottom."""
FLAME_GRAPH = Across(12, 780)
TOP_OPS = Across(812, 1188)
AXIS_HEIGHT = 24
FAMILIES_BELOW = 32
"""Pixels from the time axis to the legend of the kernels and what is not drawn."""
LEGEND_HEIGHT = 12
"""Pixels from the middle of that legend to its end."""
HEADING_HEIGHT = 28
MARGIN = 10
"""Pixels below all views."""
FLAGS_HEIGHT = 16
"""Pixels above the tracks for the texts of the reader's notes, if there are any."""
MAX_DEPTH = 6
MAX_AROUND = 8
MAX_LEVELS = 28
SHADES = 8
"""Shades of a colour: the paler a bar, the less of its pixels is covered."""
FLAME_ROW, FLAME_ROWS = 17, 13
OP_ROW, TOP_ROWS = 25, 9

VIEWS = {
    "all": Across(0, WIDTH),
    "timeline": Across(0, WIDTH),
    "flame_graph": Across(0, 796),
    "ops": Across(800, WIDTH),
}
"""The views that a picture can show, and their places on it."""
ABOVE_LEGEND = 40
"""Pixels above the legend of the timeline, for the headline."""


def picture_png(record: Record, view: str = "all") -> bytes:
    """Return the picture of the report's views, or of one of `VIEWS`.

    All are 1200 pixels wide together, and as high as what they hold: 660 pixels at most.
    """
    return drawn(record, view).png(headline(record))


def picture_svg(record: Record, view: str = "all") -> bytes:
    """Return the same picture as vectors and text instead of pixels."""
    return drawn(record, view).svg(headline(record))


def drawn(record: Record, view: str) -> Canvas:
    """Return a canvas with all views, or with one of them."""
    left, right = VIEWS[view]
    top = ABOVE_LEGEND if view == "timeline" else 0
    canvas = Canvas(Box(left, top, right, top))
    if view == "all":
        draw_headline(canvas, headline(record))
    bottom = 0
    if view in ("all", "timeline"):
        bottom = draw_timeline(canvas, record)
        draw_legend(canvas, record)
    below, bottoms = bottom + HEADING_HEIGHT, [bottom - MARGIN]
    if view in ("all", "flame_graph"):
        tree = call_tree(record, source=flame_source(record))
        bottoms.append(draw_flame_graph(canvas, tree, families(record.trace), below))
    if view in ("all", "ops"):
        bottoms.append(draw_top_ops(canvas, record, below))
    canvas.part = canvas.part._replace(bottom=max(bottoms) + MARGIN)
    return canvas


def headline(record: Record) -> str:
    """Return the first finding, the alternative text of the picture."""
    first = next(iter(findings(record)), None)
    return first.text.replace("`", "") if first else "Nothing was recorded."


def draw_headline(canvas: Canvas, words: str) -> None:
    """Draw the words on top of the picture, in at most two lines."""
    for number, line in enumerate(wrap(words, 132)[:2]):
        canvas.text(12, 16 + 16 * number, line, size=9.9, weight="bold")


def draw_timeline(canvas: Canvas, record: Record) -> int:
    """Draw the tracks from top to bottom, one row of bars per nesting level; then the time axis.

    The notes of the reader stand above them. Return the bottom of all, in pixels.
    """
    trace = record.trace
    lanes = shown_lanes(trace)
    shown = [level for lane in lanes.values() for level in lane]
    top = TIMELINE.top + (FLAGS_HEIGHT if remarks(record) else 0)
    height = min(18, (TIMELINE.bottom - top) // max(len(shown), 1))
    time = (trace.start_ns, trace.end_ns)
    bottom = draw_levels(canvas, trace, shown, time, top=top, height=height)
    draw_remarks(canvas, remarks(record), time, top=top, bottom=bottom)
    draw_axis(canvas, trace.span_ns, bottom)
    below = bottom + FAMILIES_BELOW
    has_families = draw_families(canvas, below, record)
    has_omitted = _draw_omitted(canvas, trace, lanes, below)
    return below + LEGEND_HEIGHT if has_families or has_omitted else bottom + AXIS_HEIGHT


def draw_remarks(
    canvas: Canvas, notes: Sequence[Remark], time: tuple[int, int], *, top: int, bottom: int
) -> None:
    """Draw each note, of a range of time in ns, as a line or a band, with its text above ``top``.

    Of notes at one place the first has its text there.
    """
    start, end = time
    scale = (TIMELINE.right - TIMELINE.left) / max(end - start, 1)
    moments = [(note["start_ns"], note["end_ns"]) for note in notes]
    edges = [
        [TIMELINE.left + round((min(max(ns, start), end) - start) * scale) for ns in moment]
        for moment in moments
    ]
    for left, right in edges:
        canvas.fill(Box(left, top, right, bottom), (to_rgb(INK), 0.1))
        canvas.fill(Box(left, top - FLAGS_HEIGHT + 2, left + 1, bottom), INK)
        canvas.fill(Box(right, top, right + 1, bottom), INK)
    first: dict[int, str] = {}
    for (left, _), note in zip(edges, notes, strict=True):
        first.setdefault(left, note["text"].replace("`", ""))
    for words, (left, right) in zip(first.values(), remark_places(first), strict=True):
        canvas.label(Box(left, top - FLAGS_HEIGHT, right, top), words, to_rgb(CARD))


def remark_places(texts: Mapping[int, str]) -> list[Across]:
    """Return where the text of each note has its place; ``texts``: by the pixel of their lines.

    It begins at its line and ends where the next one begins. The last one, where it is too long for
    the rest of the timeline, ends at its line if it has more room there, and the text before it has
    half of the room between them or what it needs. If it has not, the one before may do so.
    """
    lines = list(texts)
    needed = [label_room(text) for text in texts.values()]
    places = list(map(Across, [line + 1 for line in lines], [*lines[1:], TIMELINE.right]))
    for number in reversed(range(len(lines))):
        line, (left, right) = lines[number], places[number]
        if left + needed[number] <= TIMELINE.right:
            break
        before = places[number - 1].left if number else TIMELINE.left
        kept = min(needed[number - 1], (line - before) // 2) if number else 0
        begins = max(line - needed[number], before + kept)
        if line - begins > right - left:
            places[number] = Across(begins, line)
            if number:
                places[number - 1] = places[number - 1]._replace(right=begins)
            break
    return places


def shown_lanes(trace: Trace) -> dict[int, list[Level]]:
    """Return the levels to draw by track: of all tracks if they fit, else of the busiest."""
    lanes = by_track(levels(trace, shown_depth(trace)))
    busy = sorted(lanes, key=lambda track: -sum(len(level.row) for level in lanes[track]))
    kept, count = set(), 0
    for track in busy:
        if count + len(lanes[track]) <= MAX_LEVELS:
            kept.add(track)
            count += len(lanes[track])
    return {track: lane for track, lane in lanes.items() if track in kept}


def by_track(levels: Iterable[Level]) -> dict[int, list[Level]]:
    """Return the levels of each track; they come track by track."""
    return {track: list(lane) for track, lane in groupby(levels, attrgetter("track"))}


def shown_depth(trace: Trace) -> int:
    """Return how many levels to draw: of ops, and of the cell lines and modules around them."""
    around = trace.slices.loc[trace.index.in_category(*REGION_CATEGORIES), "depth"]
    return MAX_DEPTH + min(int(around.max()) + 1 if len(around) else 0, MAX_AROUND)


def draw_levels(
    canvas: Canvas,
    trace: Trace,
    shown: Iterable[Level],
    time: tuple[int, int],
    *,
    top: int,
    height: int,
) -> int:
    """Draw levels below each other, each ``height`` pixels, over a range of time in ns.

    On the left are the labels of their tracks. Return the bottom, in pixels.
    """
    for track, lane in by_track(shown).items():
        bottom = top + height * len(lane)
        canvas.fill(Box(TIMELINE.left, top, TIMELINE.right, bottom - 1), BAND)
        label = shortened(str(trace.tracks["label"].iloc[track]), 34)
        canvas.text(TIMELINE.left - 8, (top + bottom) / 2, label, size=7.8, ha="right")
        for level in lane:
            box = Box(TIMELINE.left, top, TIMELINE.right, top + height)
            draw_level(canvas, trace, level, box, time)
            top += height
    return top


def draw_level(
    canvas: Canvas, trace: Trace, level: Level, into: Box, time: tuple[int, int]
) -> None:
    """Draw one nesting level of a track as one row of bars, over a range of time in ns."""
    row, left, right, opacity = runs(level, *time, into.right - into.left)
    family = families(trace)
    for start, end, strength, words, category in zip(
        (into.left + left).tolist(),
        (into.left + right).tolist(),
        opacity.tolist(),
        trace.slices["name"].iloc[row].astype(str),
        trace.slices["category"].iloc[row].astype(str),
        strict=True,
    ):
        colour = colour_of(words, category, family.get(words, ""))
        canvas.fill(Box(start, into.top, end, into.bottom - 1), (colour, strength))
        canvas.label(Box(start - 1, into.top, end, into.bottom), words, colour)  # and the gap


def draw_axis(canvas: Canvas, span_ns: int, top: int) -> None:
    """Draw the time axis: times since the start at round steps."""
    span = max(span_ns, 1)
    locator = MaxNLocator(7, steps=[1, 2, 5, 10], integer=True)
    ticks = np.asarray(locator.tick_values(0, span))
    for tick in ticks[ticks <= span_ns]:
        x = TIMELINE.left + round(tick / span * (TIMELINE.right - TIMELINE.left))
        canvas.fill(Box(x, top, min(x + 1, TIMELINE.right), top + 5), "#787878")
        # The last label ends with the axis: half of it would be beyond the picture.
        at, anchor = (x, "center") if x < TIMELINE.right - 24 else (TIMELINE.right, "right")
        canvas.text(at, top + 14, format_ns(tick), color=MUTED, ha=anchor, size=7.8)


def _draw_omitted(canvas: Canvas, trace: Trace, lanes: dict[int, list[Level]], y: int) -> bool:
    """Say at this height what of the tracks is not drawn, and return whether there is anything."""
    dropped = trace.slices["track"].nunique() - len(lanes)
    depth = shown_depth(trace)
    deeper = bool((trace.slices["depth"] >= depth).any())
    notes = [f"{dropped} more tracks"] if dropped else []
    notes += [f"nesting below level {depth}"] if deeper else []
    if notes:
        words = f"not drawn here: {', '.join(notes)}"
        canvas.text(TIMELINE.right, y, words, size=7.3, color=MUTED, ha="right")
    return bool(notes)


def draw_legend(canvas: Canvas, *records: Record) -> None:
    """Draw a patch and a word for each kind of slice in the records."""
    slices = [record.trace.slices for record in records]
    categories = {str(name) for table in slices for name in table["category"].unique()}
    present = {kind_of(category) for category in categories}
    shown = [(kind, colour) for kind, (colour, _) in KINDS.items() if kind in present - {"kernel"}]
    _draw_patches(canvas, TIMELINE.left, 54, shown)


def draw_families(canvas: Canvas, y: int, *records: Record) -> bool:
    """Draw a patch and a word for each family of kernels in the records, at this height.

    Return whether there is any.
    """
    present = {family for record in records for family in families(record.trace).values()}
    shown = [(name, colour) for name, colour in FAMILY_COLOURS.items() if name in present]
    _draw_patches(canvas, FLAME_GRAPH.left, y, shown)
    return bool(shown)


def _draw_patches(canvas: Canvas, x: int, y: int, shown: Iterable[tuple[str, Colour]]) -> None:
    """Draw patches, each with its word, from left to right."""
    for word, colour in shown:
        canvas.fill(Box(x, y - 6, x + 11, y + 5), colour)
        canvas.text(x + 15, y, word, size=7.3, color=MUTED)
        x += 28 + round(len(word) * 5.6)


def draw_flame_graph(
    canvas: Canvas, tree: pd.DataFrame, family: Mapping[str, str], top: int
) -> int:
    """Draw the call tree with its root at ``top``; the longest child of each node is leftmost.

    Nodes narrower than a pixel are left out. ``family``: of each kernel, by name. Return the
    bottom, in pixels.
    """
    _draw_heading(canvas, FLAME_GRAPH.left, top, "Flame graph: time by call path")
    scale = (FLAME_GRAPH.right - FLAME_GRAPH.left) / max(int(tree["total_ns"].iloc[0]), 1)
    beginning = {-1: float(FLAME_GRAPH.left)}  # of the next child of each node
    bottom = top
    shown = tree[(tree["total_ns"] * scale >= 1) & (tree["depth"] < FLAME_ROWS)]
    for node in shown.to_dict("records"):
        left = beginning[node["node"]] = beginning[node["parent"]]
        right = beginning[node["parent"]] = left + node["total_ns"] * scale
        above = top + FLAME_ROW * node["depth"]
        box = Box(round(left), above, round(right), above + FLAME_ROW)
        colour = colour_of(node["name"], node["category"], family.get(node["name"], ""))
        gap = int(right - left > 3)
        canvas.fill(Box(box.left, above, box.right - gap, box.bottom - 1), colour)
        canvas.label(box, node["name"], colour)
        bottom = max(bottom, box.bottom)
    return bottom


def draw_top_ops(canvas: Canvas, record: Record, top: int) -> int:
    """Draw the costliest ops, of Python alone the functions: name, bar, time and share.

    Return the bottom, in pixels.
    """
    title, table = _costliest(record)
    _draw_heading(canvas, TOP_OPS.left, top, title)
    rows = table.head(TOP_ROWS)
    largest = max(int(rows["ns"].max()), 1) if len(rows) else 1
    for row in rows.to_dict("records"):
        length = row["ns"] / largest * (TOP_OPS.right - TOP_OPS.left)
        words = f"{format_ns(row['ns'])} · {format_share(row['share'])}"
        canvas.text(TOP_OPS.left, top + 6, shortened(row["name"], 44), size=7.8)
        canvas.text(TOP_OPS.right, top + 6, words, size=7.8, ha="right", color=MUTED)
        bar = Box(TOP_OPS.left, top + 14, TOP_OPS.left + max(round(length), 1), top + 19)
        canvas.fill(bar, KINDS[kind_of(row["category"])][0])
        top += OP_ROW
    return top


def _draw_heading(canvas: Canvas, left: int, top: int, words: str) -> None:
    """Draw the heading of a view that begins at ``top``."""
    canvas.text(left, top - HEADING_HEIGHT // 2, words, weight="bold", size=8.9)


def _costliest(record: Record) -> tuple[str, pd.DataFrame]:
    """Return a title and ``name``, ``category``, ``ns`` and ``share``, the largest first."""
    if has_python_alone(record):
        functions = function_rows(record, sort="cpu_self", top=TOP_ROWS).rows
        columns = {"self_ns": "ns", "self_share": "share"}
        table = functions.assign(category="python_function").rename(columns=columns)
        return "Top Python functions by self time", table
    table = operators(record)
    table = table[~table["category"].isin(GPU_CATEGORIES)]
    side = "device" if table["device_self_ns"].any() else "cpu"
    columns = {f"{side}_self_ns": "ns", f"{side}_self_share": "share"}
    table = table.rename(columns=columns).sort_values("ns", ascending=False, kind="stable")
    return f"Top ops by {'GPU' if side == 'device' else 'CPU'} self time", table


@dataclass(frozen=True)
class Level:
    """The slices of one track at one nesting depth, in order of time: they never overlap.

    ``row`` are slice rows, ``ts`` and ``end`` their bounds in ns.
    """

    track: int
    depth: int
    row: Rows
    ts: npt.NDArray[np.int64]
    end: npt.NDArray[np.int64]


def levels(trace: Trace, max_depth: int) -> Iterator[Level]:
    """Yield every level above ``max_depth`` that has a slice of some length, by track and depth."""
    slices = trace.slices
    track, depth = slices["track"].to_numpy(), slices["depth"].to_numpy()
    ts, dur = slices["ts"].to_numpy(), slices["dur"].to_numpy()
    shown = np.flatnonzero((dur > 0) & (depth < max_depth))
    key = track[shown].astype(np.int64) * max_depth + depth[shown]
    for code, group in rows_by(key).items():
        row = shown[group]
        yield Level(*divmod(code, max_depth), row, ts[row], ts[row] + dur[row])


def runs(
    level: Level, start_ns: int, end_ns: int, width: int
) -> tuple[Rows, Rows, Rows, npt.NDArray[np.float64]]:
    """Return the pixels that look the same together: slice row, left, right and opacity (0 to 1).

    The opacity is the share that is covered, in `SHADES` steps; a wide bar begins with a gap.
    """
    row, share = pixels(level, start_ns, end_ns, width)
    opacity = np.where(row >= 0, np.round(share * SHADES).clip(2) / SHADES, 0)
    starts = np.flatnonzero(np.diff(row, prepend=-2))
    opacity[starts[np.diff(starts, append=width) > 3]] = 0
    changes = (np.diff(row, prepend=-2) != 0) | (np.diff(opacity, prepend=-1) != 0)
    edges = np.append(np.flatnonzero(changes), width)
    left, right = edges[:-1], edges[1:]
    drawn = opacity[left] > 0
    left, right = left[drawn], right[drawn]
    return row[left], left, right, opacity[left]


def pixels(
    level: Level, start_ns: int, end_ns: int, width: int
) -> tuple[Rows, npt.NDArray[np.float64]]:
    """Return per pixel the slice row drawn there (-1: none) and the share of it that is covered.

    The row is that of the first slice that reaches into the pixel; the others in the same pixel are
    merged with it, and the share counts all of them.
    """
    edges = np.linspace(start_ns, end_ns, width + 1)
    first = np.searchsorted(level.end, edges[:-1], side="right")
    inside = np.minimum(first, len(level.row) - 1)
    hit = (first < len(level.row)) & (level.ts[inside] < edges[1:])
    # The time that the slices cover before each edge: less what is left of the last one there.
    started = np.searchsorted(level.ts, edges, side="right")
    left = np.where(started > 0, np.maximum(level.end[np.maximum(started - 1, 0)] - edges, 0), 0)
    before = np.append(0, np.cumsum(level.end - level.ts))[started] - left
    covered = np.diff(before) / np.maximum(np.diff(edges), 1e-9)
    return np.where(hit, level.row[inside], -1), np.where(hit, covered, 0.0)
