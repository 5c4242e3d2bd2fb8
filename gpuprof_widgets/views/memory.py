"""The memory view: what each device held over time, and its biggest blocks."""

from __future__ import annotations

from bokeh.models import Range1d
from bokeh.models.layouts import LayoutDOM

from gpuprof_widgets.views.models import MemoryBar, MemoryPlot, MemoryTable, TraceStore
from gpuprof_widgets.views.plots import empty_plot
from gpuprof_widgets.views.timeline import SCROLL_BAR, TRACK_NAMES, time_axis

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
