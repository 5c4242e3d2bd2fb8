"""The source of the recorded cells with what each line took."""

from __future__ import annotations

from bokeh.models.layouts import LayoutDOM

from gpuprof_widgets.views.models import Lines, TraceStore


def plot_lines(store: TraceStore) -> list[LayoutDOM]:
    """The lines are one part."""
    return [Lines(store=store, sizing_mode="stretch_width")]
