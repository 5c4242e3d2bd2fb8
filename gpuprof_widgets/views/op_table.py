"""The op table of the brushed range."""

from __future__ import annotations

from bokeh.models.layouts import LayoutDOM

from gpuprof_widgets.views.models import OpTable, TraceStore


def plot_op_table(store: TraceStore) -> list[LayoutDOM]:
    """The op table is one part."""
    return [OpTable(store=store, sizing_mode="stretch_width")]
