"""Each view as Bokeh's models, from top to bottom; our renderers draw them and handle gestures."""

from __future__ import annotations

from typing import Any

from bokeh.models import BasicTicker, LinearAxis, NoOverlap, Plot, Range1d
from bokeh.models.layouts import LayoutDOM

from gpuprof_widgets.views.models import (
    AnalysisTable,
    AnalysisTabs,
    CurvePlot,
    Details,
    EngineeringTimeFormatter,
    FlameBar,
    FlameGraph,
    Lines,
    MemoryBar,
    MemoryPlot,
    MemoryTable,
    Minimap,
    OpTable,
    Timeline,
    TimelineBar,
    TraceStore,
)


def empty_plot(x_range: Range1d, y_range: Range1d, **attributes: Any) -> Plot:
    """A plot as wide as the page, transparent, without axes, tools, borders and outline."""
    defaults = {
        "sizing_mode": "stretch_width",
        "toolbar_location": None,
        "background_fill_color": None,
        "border_fill_color": None,
        "outline_line_color": None,
        "min_border": 0,
        "match_aspect": False,
    }
    return Plot(x_range=x_range, y_range=y_range, **(defaults | attributes))


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


def plot_flame_graph(store: TraceStore) -> list[LayoutDOM]:
    """The parts of the flame graph from top to bottom."""
    graph = FlameGraph(store=store)
    plot = empty_plot(
        Range1d(start=0, end=1), Range1d(start=0, end=1), height=80, frame_align=False
    )
    plot.renderers.append(graph)
    bar = FlameBar(store=store, graph=graph, sizing_mode="stretch_width")
    return [bar, plot]


def plot_op_table(store: TraceStore) -> list[LayoutDOM]:
    """The op table is one part."""
    return [OpTable(store=store, sizing_mode="stretch_width")]


def plot_lines(store: TraceStore) -> list[LayoutDOM]:
    """The lines are one part."""
    return [Lines(store=store, sizing_mode="stretch_width")]


HEIGHT = 190


def plot_memory(store: TraceStore) -> list[LayoutDOM]:
    """The parts of the memory view from top to bottom; its time axis is the timeline's."""
    memory = MemoryPlot(store=store)
    plot = empty_plot(
        store.visible,
        Range1d(start=0, end=1),
        height=HEIGHT,
        min_border_left=TRACK_NAMES,
        min_border_right=SCROLL_BAR,
    )
    plot.add_layout(time_axis(), "above")
    plot.renderers.append(memory)
    bar = MemoryBar(store=store, plot=memory, sizing_mode="stretch_width")
    table = MemoryTable(store=store, plot=memory, sizing_mode="stretch_width")
    return [bar, plot, table]


PYTHON_PANEL = "python_time"
"""The tab that is open at first where its order was asked for."""


def plot_analyses(store: TraceStore) -> list[LayoutDOM]:
    """Tabs, the figure of the curves (its time axis is the timeline's), other plots and table."""
    active = PYTHON_PANEL if store.functions_sort else ""
    tabs = AnalysisTabs(store=store, active=active, sizing_mode="stretch_width")
    plot = empty_plot(
        store.visible,
        Range1d(start=0, end=1),
        height=0,
        visible=False,
        min_border_left=TRACK_NAMES,
        min_border_right=SCROLL_BAR,
    )
    plot.add_layout(time_axis(), "above")
    plot.renderers.append(CurvePlot(store=store, tabs=tabs))
    table = AnalysisTable(store=store, tabs=tabs, sizing_mode="stretch_width")
    return [tabs, plot, table]
