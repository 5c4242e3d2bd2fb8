"""The timeline: tracks over time, an overview of the whole trace and the selection's details."""

from __future__ import annotations

from typing import Any

from bokeh.models import BasicTicker, LinearAxis, NoOverlap, Plot, Range1d
from bokeh.models.layouts import LayoutDOM

from gpuprof_widgets.views.models import (
    Details,
    EngineeringTimeFormatter,
    Minimap,
    Timeline,
    TimelineBar,
    TraceStore,
)
from gpuprof_widgets.views.plots import empty_plot

TRACK_NAMES = 168
"""Pixels left of the bars for the names of the tracks."""
SCROLL_BAR = 16
MINIMAP_HEIGHT = 46
AXIS_HEIGHT = 26


def plot_timeline(store: TraceStore) -> list[LayoutDOM]:
    """The parts of the timeline from top to bottom."""
    timeline = Timeline(store=store, axis_height=AXIS_HEIGHT)
    tracks = timeline_plot(store, height=300)
    tracks.add_layout(time_axis(), "above")
    tracks.renderers.append(timeline)
    overview = timeline_plot(store, height=MINIMAP_HEIGHT)
    overview.renderers.append(Minimap(store=store))
    bar = TimelineBar(store=store, timeline=timeline, sizing_mode="stretch_width")
    details = Details(store=store, sizing_mode="stretch_width")
    return [bar, overview, tracks, details]


def timeline_plot(store: TraceStore, *, height: int) -> Plot:
    """A plot over the store's visible range, with room for the names of the tracks."""
    # The overview has this range too: it draws the whole trace and repaints when the view moves.
    return empty_plot(
        store.visible,
        Range1d(start=0, end=1),
        height=height,
        min_border_left=TRACK_NAMES,
        min_border_right=SCROLL_BAR,
    )


def time_axis() -> LinearAxis:
    """The axis in ns, µs, ms or s above a plot over the store's visible range."""
    look: dict[str, Any] = {
        "formatter": EngineeringTimeFormatter(),
        "ticker": BasicTicker(desired_num_ticks=7),
        "major_label_policy": NoOverlap(),
        "major_label_text_font_size": "11px",
        "major_tick_in": 0,
        "major_tick_out": 4,
        "minor_tick_line_color": None,
    }
    return LinearAxis(**look)
