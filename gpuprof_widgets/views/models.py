"""The Python side of our Bokeh extension: what each model is given; the rest is in `extension/`.

A model here and the class of the same name there have the same properties with the same defaults;
a test compares the two.
"""

from __future__ import annotations

from bokeh.core.has_props import abstract
from bokeh.core.properties import (
    Any,
    Bool,
    Float,
    Instance,
    List,
    Nullable,
    String,
    Tuple,
)
from bokeh.model import Model
from bokeh.models import LayoutDOM, Range1d, Renderer, TickFormatter


class TraceStore(Model):
    """The one object through which the views are linked: the trace, the brushed range, a selection."""

    uid = String(help="names the report in the page, for tests")
    payload = String(help="the encoded record")
    label = String(help="title of the report")
    findings = List(Any, help="text, remedy, start and end (ns, or None) of each finding")
    notes = List(String, help="what was lost or not measured, one line each")
    sort = String("device_self", help="column that sorts the op table at first")
    on_gpu = Bool(False, help="whether the trace has GPU tracks")
    window = Nullable(Tuple(Float, Float), help="the brushed range, ns")
    visible = Instance(Range1d, help="the time range in view, ns")


class EngineeringTimeFormatter(TickFormatter):
    """Axis labels in ns, µs, ms or s."""


class Timeline(Renderer):
    """The tracks over time, on a figure whose x range is the store's."""

    store = Instance(TraceStore)
    axis_height = Float(24, help="pixels of the figure that are not the frame")
    drag_pans = Bool(False, help="dragging moves the view instead of brushing")


class Minimap(Renderer):
    """The whole trace in one strip, with the part that is in view."""

    store = Instance(TraceStore)


class FlameGraph(Renderer):
    """The icicle of the brushed range."""

    store = Instance(TraceStore)
    source = String("ops", help="ops, merged or cprofile")
    search = String(help="names to highlight")
    search_as_regex = Bool(False)


@abstract
class Panel(LayoutDOM):
    """A part of the report that is not drawn on a canvas."""

    store = Instance(TraceStore)


class ReportHeader(Panel):
    """Title, findings and notes."""


class TimelineBar(Panel):
    """Buttons, legend and key help of the timeline."""

    timeline = Instance(Timeline)


class Details(Panel):
    """The range in numbers and what is selected."""


class FlameBar(Panel):
    """Source, search and breadcrumb of the flame graph."""

    graph = Instance(FlameGraph)


class OpTable(Panel):
    """The op table of the brushed range."""
