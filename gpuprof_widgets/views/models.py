"""The Python side of our Bokeh extension: what each model is given; the rest is in `extension/`.

A model here and the class of the same name there have the same properties with the same defaults;
a test compares the two.
"""

from __future__ import annotations

from typing import Any as _Any

from bokeh.core.has_props import abstract
from bokeh.core.properties import (
    Any,
    Bool,
    Float,
    Instance,
    Int,
    List,
    Nullable,
    String,
    Tuple,
)
from bokeh.model import Model
from bokeh.models import LayoutDOM, Range1d, TickFormatter
from bokeh.models.renderers import Renderer


class TraceStore(Model):
    """The one object through which the views are linked: trace, brushed range and selection."""

    def __init__(self, *args: _Any, **kwargs: _Any) -> None:
        super().__init__(*args, **kwargs)

    uid = String(help="names the report in the page, for tests")
    payload = String(help="the encoded record")
    label = String(help="title of the report")
    findings = List(Any, help="text, remedy, start, end (ns or None), rows, events of each")
    notes = List(String, help="what was lost or not measured, one line each")
    sort = String("device_self", help="column that sorts the op table at first")
    on_gpu = Bool(False, help="whether the trace has GPU tracks")
    window = Nullable(Tuple(Float, Float), help="the brushed range, ns")
    visible: _Any = Instance(Range1d, help="the time range in view, ns")


class EngineeringTimeFormatter(TickFormatter):
    """Axis labels in ns, µs, ms or s."""

    def __init__(self, *args: _Any, **kwargs: _Any) -> None:
        super().__init__(*args, **kwargs)


class Timeline(Renderer):
    """The tracks over time, on a figure whose x range is the store's."""

    def __init__(self, *args: _Any, **kwargs: _Any) -> None:
        super().__init__(*args, **kwargs)

    store = Instance(TraceStore)
    axis_height = Float(24, help="pixels of the figure that are not the frame")
    drag_pans = Bool(False, help="dragging moves the view instead of brushing")


class Minimap(Renderer):
    """The whole trace in one strip, with the part that is in view."""

    def __init__(self, *args: _Any, **kwargs: _Any) -> None:
        super().__init__(*args, **kwargs)

    store = Instance(TraceStore)


class FlameGraph(Renderer):
    """The icicle of the brushed range."""

    def __init__(self, *args: _Any, **kwargs: _Any) -> None:
        super().__init__(*args, **kwargs)

    store = Instance(TraceStore)
    source = String("ops", help="ops, merged or cprofile")
    search = String(help="names to highlight")
    search_as_regex = Bool(False)


@abstract
class Panel(LayoutDOM):
    """A part of the report that is not drawn on a canvas."""

    def __init__(self, *args: _Any, **kwargs: _Any) -> None:
        super().__init__(*args, **kwargs)

    store = Instance(TraceStore)


class ReportHeader(Panel):
    """Title, findings and notes."""


class TimelineBar(Panel):
    """Buttons, legend and key help of the timeline."""

    timeline: _Any = Instance(Timeline)


class Details(Panel):
    """The range in numbers and what is selected."""


class FlameBar(Panel):
    """Source, search and breadcrumb of the flame graph."""

    graph: _Any = Instance(FlameGraph)


class Lines(Panel):
    """The source of the recorded cells with what each line took in the brushed range."""


class OpTable(Panel):
    """The op table of the brushed range."""


class MemoryPlot(Renderer):
    """What a device held over time by category, on a figure whose x range is the store's."""

    def __init__(self, *args: _Any, **kwargs: _Any) -> None:
        super().__init__(*args, **kwargs)

    store = Instance(TraceStore)
    device = Int(0, help="index of the device that is shown")
    from_zero = Bool(True, help="the axis starts at zero, not at the least in view")


class MemoryBar(Panel):
    """Peak, device and colours of the memory view."""

    plot: _Any = Instance(MemoryPlot)


class MemoryTable(Panel):
    """The biggest blocks of memory of the brushed range."""

    plot: _Any = Instance(MemoryPlot)
