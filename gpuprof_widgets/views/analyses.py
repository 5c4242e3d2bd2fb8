"""The analyses below the other views: a tab for each panel that has something to show."""

from __future__ import annotations

from bokeh.models import Range1d
from bokeh.models.layouts import LayoutDOM

from gpuprof_widgets.views.models import AnalysisTable, AnalysisTabs, CurvePlot, TraceStore
from gpuprof_widgets.views.plots import empty_plot
from gpuprof_widgets.views.timeline import SCROLL_BAR, TRACK_NAMES, time_axis

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
