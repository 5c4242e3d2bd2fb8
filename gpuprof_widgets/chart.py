"""`Chart`: a Bokeh figure as a widget, for controls of the user's own beside an explorer."""

from __future__ import annotations

from importlib.resources import files
from typing import Any

import anywidget
from bokeh.models import Column, LayoutDOM
from traitlets import HasTraits, Instance, observe

from gpuprof_widgets.views import report
from gpuprof_widgets.views.page import new_uid


class Chart(anywidget.AnyWidget):
    """A Bokeh figure as a widget, drawn by the reports' own BokehJS, without a network.

    Set ``figure`` to draw another figure in its place. The reports' BokehJS has plots, glyphs and
    tools, but not Bokeh's widgets and tables.
    """

    _esm = files("gpuprof_widgets.views") / "chart.js"

    figure = Instance(LayoutDOM, allow_none=True, help="what is drawn; None draws nothing")

    def __init__(self, figure: LayoutDOM | None = None) -> None:
        self._is_shown = False
        super().__init__(figure=figure)
        self.on_msg(self._answer)

    def _answer(self, _: HasTraits, content: Any, buffers: Any) -> None:
        """Send the figure to a new view, with BokehJS, which its page or frame may not have."""
        if content == {"asks": "figure"}:
            self._is_shown = True
            self._send_figure(embed_runtime=True)

    @observe("figure")
    def _draw(self, _: Any) -> None:
        if self._is_shown:
            self._send_figure(embed_runtime=False)

    def _send_figure(self, *, embed_runtime: bool) -> None:
        if self.figure is None:
            self.send({"draws": None})
            return
        layout = Column(children=[self.figure], name=new_uid(), sizing_mode="stretch_width")
        script = report.figure_script(layout, embed_runtime=embed_runtime)
        if layout.document is not None:  # a figure is in one document at a time
            layout.document.remove_root(layout)
        self.send({"draws": layout.name}, [script.encode()])
