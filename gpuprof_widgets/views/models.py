"""The Python side of our Bokeh extension; what the models do is in `extension/`.

A model here and the class of the same name there have the same properties with the same defaults;
a test compares the two.
"""

from __future__ import annotations

from typing import Any as _Any

from bokeh.core.has_props import abstract
from bokeh.core.properties import Any, Bool, Float, Instance, Int, List, Nullable, String, Tuple
from bokeh.model import Model
from bokeh.models import Column, LayoutDOM, Range1d, TickFormatter
from bokeh.models.renderers import Renderer


class TraceStore(Model):
    """The one object through which the views are linked: trace, brushed range and selection."""

    uid = String(help="names the report in the page, for tests")
    payload = String(help="the encoded record")
    rows_kept = Bool(True, help="the page's rows are the slices, none merged or left out")
    label = String(help="title of the report")
    findings = List(Any, help="text, remedy, start, end (ns or None), rows, events of each")
    notes = List(String, help="what was lost or not measured, one line each")
    remarks: _Any = List(Any, help="text, start, end (ns) of each note, in order of time")
    focus: _Any = Nullable(Any, help="where the report opens: text, start, end (ns), rows, events")
    sort = String("device_self", help="sort key of the op table")
    group_by = String("name", help="what the op table groups by: name, name_shape or category")
    metric = String("cpu", help="what a bar of the flame graph is as wide as: cpu, or device")
    search = String(help="what is searched for in all names; /.../ is a regular expression")
    functions_sort = String(help="column that sorts the Python functions at first, if asked for")
    frames_of = String("Python", help="what the frames are of, as the legend says it")
    on_gpu = Bool(False, help="whether the trace has GPU tracks")
    extent = Nullable(Tuple(Float, Float), help="what the views can show, ns; None: the trace")
    window = Nullable(Tuple(Float, Float), help="the brushed range, ns")
    show_path = Bool(False, help="the critical path is drawn on the timeline")
    visible: _Any = Instance(Range1d, help="the time range in view, ns")


class StoreGroup(Model):
    """Several traces on one time axis: brushed and reset together, one selection at a time."""

    stores: _Any = List(Instance(TraceStore))
    brushes_all = Bool(True, help="a range brushed in one trace is brushed in all")


class EngineeringTimeFormatter(TickFormatter):
    """Axis labels in ns, µs, ms or s."""


class Timeline(Renderer):
    """The tracks over time, on a figure whose x range is the store's."""

    store = Instance(TraceStore)
    axis_height = Float(24, help="pixels of the figure that are not the frame")
    max_height = Float(500, help="most pixels that the tracks may take")
    compact = Bool(False, help="all tracks folded and close to each other: one of many timelines")
    folds_to_fit = Bool(False, help="the deepest tracks are folded until all are in view")
    drag_pans = Bool(False, help="dragging moves the view instead of brushing")


class Minimap(Renderer):
    """The whole trace in one strip, with the part that is in view."""

    store = Instance(TraceStore)
    stores: _Any = List(Instance(TraceStore), help="draws one strip for each of these instead")


class FlameGraph(Renderer):
    """The icicle of the brushed range."""

    store = Instance(TraceStore)
    source = String("ops", help="ops, merged or cprofile")


@abstract
class Panel(LayoutDOM):
    """A part of the report that is not drawn on a canvas."""

    # Bokeh types LayoutDOM's arguments, but not those of a subclass.
    def __init__(self, *args: _Any, **kwargs: _Any) -> None:
        super().__init__(*args, **kwargs)

    store = Instance(TraceStore)


class ReportHeader(Panel):
    """Title, cards, findings and notes."""

    cards = List(Any, help="as `cards.page_cards` returns them")


class GroupHeader(ReportHeader):
    """Title, findings and notes of several traces; a finding's ``of`` says on which of them."""

    group: _Any = Instance(StoreGroup)
    label = String(help="title of the report")
    findings = List(Any, help="as in `TraceStore`, with the position of the trace as `of`")
    notes = List(String, help="what was lost or not measured, one line each")


class StaticPart(Panel):
    """HTML of our own making, without script, between the live views."""

    html = String()


class Search(Panel):
    """The search box of the report; on a page of several traces it searches all of them."""


class TimelineTitle(Panel):
    """A timeline's title, how busy its GPUs were in the range, and its selection."""

    text = String()
    busy = String("busy", help="what the share of the time that its GPUs have slices is called")


class TimelineBar(Panel):
    """Buttons, legend and key help of the timeline."""

    timeline: _Any = Instance(Timeline)
    companions: _Any = List(Instance(Timeline), help="timelines of other traces on its scale")


class Details(Panel):
    """The range in numbers and what is selected."""


class DetailsLine(Panel):
    """The range and what is selected, in one line."""

    stores: _Any = List(Instance(TraceStore), help="shows the selections of these instead")


class Follower(Column):
    """Stays at the top of the screen while the view before it is above the screen."""


class FlameBar(Panel):
    """Source, widths and breadcrumb of the flame graph."""

    graph: _Any = Instance(FlameGraph)


class Lines(Panel):
    """The source of the recorded cells with what each line took in the brushed range."""


class OpTable(Panel):
    """The op table of the brushed range."""


class MemoryPlot(Renderer):
    """A device's memory over time by category, on a figure whose x range is the store's."""

    store = Instance(TraceStore)
    device = Int(0, help="index of the device that is shown")
    from_zero = Bool(True, help="the axis starts at zero, not at the least in view")


class MemoryBar(Panel):
    """Peak, device and colours of the memory view."""

    plot: _Any = Instance(MemoryPlot)


class MemoryTable(Panel):
    """The biggest blocks of memory of the brushed range."""

    plot: _Any = Instance(MemoryPlot)


class AnalysisTabs(Panel):
    """The tabs of the analyses: which of them is shown."""

    active = String(help="name of the panel that is shown; the first one where it is empty")


class CurvePlot(Renderer):
    """The curves of the shown analysis, on a figure whose x range is the store's."""

    store = Instance(TraceStore)
    tabs: _Any = Instance(AnalysisTabs)


class AnalysisTable(Panel):
    """The bars or points of the shown analysis, and its table."""

    tabs: _Any = Instance(AnalysisTabs)


class DiffGraph(Renderer):
    """The differential icicle of two runs, of the brushed range of each."""

    runs: _Any = Instance(StoreGroup)
    mode = String("both", help="whose widths: both, a or b")
    source = String("ops", help="ops, merged or cprofile")
    steps = List(List(Tuple(Float, Float)), help="start and end of each run's steps, ns")


class DiffBar(Panel):
    """Choices, legend and breadcrumb of the differential flame graph."""

    graph: _Any = Instance(DiffGraph)


class DeltaTable(Panel):
    """The tables of what differs between two runs."""

    group: _Any = Instance(StoreGroup)
    tables = List(Any, help="key, title, noun, rows and total of each")
