"""Plots without anything on them: our renderers draw and handle gestures themselves."""

from __future__ import annotations

from typing import Any

from bokeh.models import Plot, Range1d


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
