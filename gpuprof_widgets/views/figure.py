"""The linked report as one Bokeh layout: a header and the views, joined by one store.

`trace_store` encodes the record for the page. Each view is a `plot_*` function, which returns its
Bokeh models from top to bottom, and a row of `VIEWS`; our renderers draw the models and handle
gestures.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import PurePath
from typing import Any
from uuid import uuid4

from bokeh.models import BasicTicker, Column, LinearAxis, NoOverlap, Plot, Range1d
from bokeh.models.layouts import LayoutDOM
from bokeh.models.renderers import Renderer
from bokeh.models.ui import UIElement

from gpuprof_widgets.analyses.columns import (
    PLACES,
    PSTATS_KEYS,
    report_keys,
    sort_key,
)
from gpuprof_widgets.analyses.findings import Finding, findings
from gpuprof_widgets.analyses.findings.finding import LOOK_AT
from gpuprof_widgets.analyses.lines import cell_lines
from gpuprof_widgets.analyses.python_time import has_python_alone
from gpuprof_widgets.analyses.reasons import which_other_kind
from gpuprof_widgets.trace.model import Record
from gpuprof_widgets.trace.pstats import frames_of
from gpuprof_widgets.trace.remarks import focus, remarks
from gpuprof_widgets.trace.schema import GPU_TRACKS, MEMORY_EVENT
from gpuprof_widgets.views.cards import cards, page_cards
from gpuprof_widgets.views.encoding import BUDGET_BYTES, encode
from gpuprof_widgets.views.models import (
    AnalysisTable,
    AnalysisTabs,
    CurvePlot,
    Details,
    DetailsLine,
    EngineeringTimeFormatter,
    FlameBar,
    FlameGraph,
    Follower,
    Lines,
    MemoryBar,
    MemoryPlot,
    MemoryTable,
    Minimap,
    OpTable,
    ReportHeader,
    Search,
    Timeline,
    TimelineBar,
    TraceStore,
)
from gpuprof_widgets.views.page_panels import panels
from gpuprof_widgets.views.page_rows import line_places

SEARCHED = ("timeline", "flame_graph", "op_table")
"""The views in which a search lights up what it finds."""

SHOWN_ROWS = 1_000
"""The most events of one finding that the page gets: more would fill the view, and the page."""

NO_PLACES: Mapping[tuple[str, int], int] = {}

PYTHON_PANEL = "python_time"
"""The tab that is open at first where its order was asked for."""

TRACK_NAMES = 168
"""Pixels left of the bars for the names of the tracks."""
SCROLL_BAR = 16
MINIMAP_HEIGHT = 46
DETAILS_LINE_HEIGHT = 32
AXIS_HEIGHT = 26
FLAGS_HEIGHT = 20
"""Pixels above the axis for the flags of notes."""
MEMORY_HEIGHT = 190


def report_figure(
    record: Record, *, sort: str, uid: str = "", budget_bytes: int = BUDGET_BYTES
) -> Column:
    """Return the whole report as one Bokeh layout, named by the store's ``uid``."""
    store = trace_store(record, sort=sort, uid=uid, budget_bytes=budget_bytes)
    store.remarks = [
        {"text": remark["text"], "start": remark["start_ns"], "end": remark["end_ns"]}
        for remark in remarks(record)
    ]
    store.focus = _page_focus(record, _shown_rows(bool(store.rows_kept)))
    summary = page_cards(cards(record).values(), record, _shown_rows(bool(store.rows_kept)))
    header = ReportHeader(store=store, cards=summary, sizing_mode="stretch_width")
    views = [plot for name, plot in VIEWS.items() if has_view(record, name)]
    parts: list[UIElement] = [header, *(part for plot in views for part in plot(store))]
    if any(has_view(record, view) for view in SEARCHED):
        parts.insert(1, search_box(store))
    return Column(children=parts, name=str(store.uid), sizing_mode="stretch_width", spacing=0)


def _page_focus(record: Record, shown_rows: int) -> dict[str, Any] | None:
    """Return the place at which the page opens, None for the whole trace."""
    place = focus(record)
    if place is None:
        return None
    start, end = place["range_ns"] or (None, None)
    rows = place["rows"]
    shown = rows[:shown_rows]
    return {
        "text": place["about"],
        "start": start,
        "end": end,
        "rows": shown,
        "events": len(rows),
    }


def has_view(record: Record, view: str) -> bool:
    """Whether a view has anything to show.

    cProfile's calls have no place on a timeline, and a memory snapshot has no times at all. A run
    of Python alone has a table of functions among the analyses instead of the op table.
    """
    if view == "lines":
        return len(cell_lines(record.trace).row) > 0
    if view == "memory":
        return bool(record.trace.index.named(frozenset({MEMORY_EVENT})).any())
    if view == "analyses":
        return bool(panels(record))
    if view == "timeline":
        return len(record.trace) > 0
    if which_other_kind(record.trace):
        return False
    if view == "op_table":
        return not has_python_alone(record)
    return len(record.trace) > 0 or record.calls is not None


def trace_store(
    record: Record, *, sort: str, uid: str = "", budget_bytes: int = BUDGET_BYTES
) -> TraceStore:
    """Return the record as the page gets it."""
    trace = record.trace
    payload = encode(record, budget_bytes=budget_bytes)
    ops, functions = report_keys(sort)
    return TraceStore(
        uid=uid or new_uid(),
        payload=payload.text,
        rows_kept=payload.rows_kept,
        label=_label(record),
        findings=finding_lines(
            findings(record), _shown_rows(payload.rows_kept), line_places(record)
        ),
        notes=[str(note) for note in record.metadata.get("notes", ())],
        sort=sort_key(ops),
        functions_sort=_functions_column(functions) if PYTHON_PANEL in panels(record) else "",
        frames_of=frames_of(record),
        on_gpu=has_gpu(record),
        visible=Range1d(start=trace.start_ns, end=max(trace.end_ns, trace.start_ns + 1)),
    )


def _shown_rows(rows_kept: bool) -> int:
    return SHOWN_ROWS if rows_kept else 0


def new_uid() -> str:
    """Return a name for one report; a page may hold several."""
    return uuid4().hex[:12]


def has_gpu(record: Record) -> bool:
    """Whether the record has tracks of a GPU."""
    return bool(record.trace.tracks["kind"].isin(GPU_TRACKS).any())


def _functions_column(key: str) -> str:
    """Return the column of the Python functions that a pstats key sorts by, "" for no key."""
    if not key:
        return ""
    column = PSTATS_KEYS[key][0]
    return {"primitive_calls": "calls"}.get(column, "label" if column in PLACES else column)


def _label(record: Record) -> str:
    """Return the profile's label, else the name of the file that it came from."""
    source = str(record.metadata.get("source") or "")
    return str(record.metadata.get("label") or PurePath(source).name)


def finding_lines(
    findings: Sequence[Finding], shown_rows: int, places: Mapping[tuple[str, int], int] = NO_PLACES
) -> list[dict[str, Any]]:
    """Return the findings as the page gets them, each with at most ``shown_rows`` events.

    ``places``: where each line stands on the page. A link takes the place of the remedy's last
    sentence, on the line to look at.
    """
    lines = [places.get(finding.line, -1) if finding.line else -1 for finding in findings]
    return [
        {
            "title": finding.title or finding.text,
            "text": finding.text if finding.title else "",
            "remedy": finding.remedy.partition(f" {LOOK_AT}")[0] if line >= 0 else finding.remedy,
            "line": line,
            "look_at": _look_at(finding),
            "cost": finding.cost_ns,
            "share": finding.share,
            "start": finding.start_ns,
            "end": finding.end_ns,
            "rows": sorted(finding.rows[:shown_rows]),
            "events": len(finding.rows),
        }
        for finding, line in zip(findings, lines, strict=True)
    ]


def _look_at(finding: Finding) -> str:
    """Return the words of the link to the finding's line, "" where it has none."""
    if finding.line is None:
        return ""
    _, look_at, line = finding.remedy.partition(LOOK_AT)
    return f"{look_at}{line}".removesuffix(".") or f"{LOOK_AT} {finding.line[1]}"


def search_box(store: TraceStore) -> Search:
    """Return the box that searches the names of all views, which stands above them."""
    return Search(store=store, sizing_mode="stretch_width")


def plot_timeline(store: TraceStore) -> list[LayoutDOM]:
    """Return the timeline: buttons, overview, tracks and the details of the selection."""
    flags_height = FLAGS_HEIGHT if store.remarks else 0
    timeline = Timeline(store=store, axis_height=AXIS_HEIGHT + flags_height)
    tracks = timeline_plot(store, height=300, has_axis=True)
    tracks.min_border_top = flags_height and AXIS_HEIGHT + flags_height
    tracks.renderers.append(timeline)
    overview = timeline_plot(store, height=MINIMAP_HEIGHT)
    overview.renderers.append(Minimap(store=store))
    bar = TimelineBar(store=store, timeline=timeline, sizing_mode="stretch_width")
    details = Details(store=store, sizing_mode="stretch_width")
    return [bar, overview, tracks, details, follower(store)]


def follower(store: TraceStore, stores: Sequence[TraceStore] = ()) -> Follower:
    """Return a second overview with the details in one line, for readers who scrolled on.

    ``stores``: the traces of a page of several.
    """
    overview = timeline_plot(store, height=MINIMAP_HEIGHT)
    overview.renderers.append(Minimap(store=store, stores=list(stores)))
    line = DetailsLine(store=store, stores=list(stores), sizing_mode="stretch_width")
    height = MINIMAP_HEIGHT + DETAILS_LINE_HEIGHT
    return Follower(children=[overview, line], height=height, sizing_mode="stretch_width")


def timeline_plot(store: TraceStore, *, height: int, has_axis: bool = False) -> Plot:
    """Return a plot over the store's visible range, with room for the names of the tracks."""
    # The overview has this range too: it draws the whole trace and repaints when the view moves.
    plot = _empty_plot(
        store.visible,
        height=height,
        min_border_left=TRACK_NAMES,
        min_border_right=SCROLL_BAR,
    )
    if has_axis:
        plot.add_layout(_time_axis(), "above")
    return plot


def _empty_plot(x_range: Range1d, **attributes: Any) -> Plot:
    """Return a plot as wide as the page, transparent, without axes, tools, borders and outline."""
    defaults = {
        "sizing_mode": "stretch_width",
        "toolbar_location": None,
        "background_fill_color": None,
        "border_fill_color": None,
        "outline_line_color": None,
        "min_border": 0,
        "match_aspect": False,
    }
    return Plot(x_range=x_range, y_range=Range1d(start=0, end=1), **(defaults | attributes))


def _time_axis() -> LinearAxis:
    """Return an axis in ns, µs, ms or s."""
    look: dict[str, Any] = {
        "formatter": EngineeringTimeFormatter(),
        "ticker": BasicTicker(desired_num_ticks=7),
        "major_label_policy": NoOverlap(),
        "major_label_text_font_size": "11px",
        "major_tick_in": 0,
        "major_tick_out": 4,
        "minor_tick_line_color": None,
    }
    return LinearAxis(**look)


def plot_flame_graph(store: TraceStore) -> list[LayoutDOM]:
    """Return the flame graph below its buttons."""
    graph = FlameGraph(store=store)
    plot = flame_graph_plot(graph)
    bar = FlameBar(store=store, graph=graph, sizing_mode="stretch_width")
    return [bar, plot]


def flame_graph_plot(graph: Renderer) -> Plot:
    """Return the plot that a flame graph is drawn on; its renderer sets the height."""
    plot = _empty_plot(Range1d(start=0, end=1), height=80, frame_align=False)
    plot.renderers.append(graph)
    return plot


def plot_op_table(store: TraceStore) -> list[LayoutDOM]:
    """Return the op table, which is one part."""
    return [OpTable(store=store, sizing_mode="stretch_width")]


def plot_lines(store: TraceStore) -> list[LayoutDOM]:
    """Return the cell's lines, which are one part."""
    return [Lines(store=store, sizing_mode="stretch_width")]


def plot_memory(store: TraceStore) -> list[LayoutDOM]:
    """Return the memory view: buttons, the curve on the timeline's time axis, and the blocks."""
    memory = MemoryPlot(store=store)
    plot = timeline_plot(store, height=MEMORY_HEIGHT, has_axis=True)
    plot.renderers.append(memory)
    bar = MemoryBar(store=store, plot=memory, sizing_mode="stretch_width")
    table = MemoryTable(store=store, plot=memory, sizing_mode="stretch_width")
    return [bar, plot, table]


def plot_analyses(store: TraceStore) -> list[LayoutDOM]:
    """Return the tabs, the curves on the timeline's time axis, and other plots with the table."""
    active = PYTHON_PANEL if store.functions_sort else ""
    tabs = AnalysisTabs(store=store, active=active, sizing_mode="stretch_width")
    plot = timeline_plot(store, height=0, has_axis=True)
    plot.visible = False
    plot.renderers.append(CurvePlot(store=store, tabs=tabs))
    table = AnalysisTable(store=store, tabs=tabs, sizing_mode="stretch_width")
    return [tabs, plot, table]


VIEWS: dict[str, Callable[[TraceStore], list[LayoutDOM]]] = {
    "timeline": plot_timeline,
    "lines": plot_lines,
    "flame_graph": plot_flame_graph,
    "op_table": plot_op_table,
    "memory": plot_memory,
    "analyses": plot_analyses,
}
"""The views in the order in which they stand under the cell."""
