"""The flame graph (icicle, root on top) with its source, search and breadcrumb."""

from __future__ import annotations

from bokeh.models import Range1d
from bokeh.models.layouts import LayoutDOM

from gpuprof_widgets.views.models import FlameBar, FlameGraph, TraceStore
from gpuprof_widgets.views.plots import empty_plot


def plot_flame_graph(store: TraceStore) -> list[LayoutDOM]:
    """The parts of the flame graph from top to bottom."""
    graph = FlameGraph(store=store)
    plot = empty_plot(
        Range1d(start=0, end=1), Range1d(start=0, end=1), height=80, frame_align=False
    )
    plot.renderers.append(graph)
    bar = FlameBar(store=store, graph=graph, sizing_mode="stretch_width")
    return [bar, plot]
