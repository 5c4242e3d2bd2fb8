"""One linked report: the views under each other, joined by one store."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import PurePath
from typing import Any
from uuid import uuid4

from bokeh.models import Column, Range1d
from bokeh.models.layouts import LayoutDOM
from bokeh.models.ui import UIElement

from gpuprof_widgets.analyses.findings import Finding, findings
from gpuprof_widgets.analyses.lacking import which_other_kind
from gpuprof_widgets.analyses.lines import cell_lines
from gpuprof_widgets.analyses.python_time import has_python_alone
from gpuprof_widgets.analyses.sort_keys import (
    PLACES,
    PSTATS_KEYS,
    SORT_KEYS,
    report_keys,
    sort_column,
)
from gpuprof_widgets.trace.model import Record
from gpuprof_widgets.trace.python_frames import frames_of
from gpuprof_widgets.trace.schema import GPU_TRACKS, MEMORY_EVENT
from gpuprof_widgets.views.encoding import encode
from gpuprof_widgets.views.models import ReportHeader, TraceStore
from gpuprof_widgets.views.page_panels import panels
from gpuprof_widgets.views.plots import (
    PYTHON_PANEL,
    plot_analyses,
    plot_flame_graph,
    plot_lines,
    plot_memory,
    plot_op_table,
    plot_timeline,
)

VIEWS: dict[str, Callable[[TraceStore], list[LayoutDOM]]] = {
    "timeline": plot_timeline,
    "lines": plot_lines,
    "flame_graph": plot_flame_graph,
    "op_table": plot_op_table,
    "memory": plot_memory,
    "analyses": plot_analyses,
}
"""The views in the order in which they stand under the cell."""

SHOWN_ROWS = 1_000
"""The most events of one finding that the page gets: more would fill the view, and the page."""


def report_figure(record: Record, *, sort: str) -> Column:
    """The whole report as one Bokeh layout, named by the store's ``uid``."""
    store = trace_store(record, sort=sort)
    header = ReportHeader(store=store, sizing_mode="stretch_width")
    views = [plot for name, plot in VIEWS.items() if has_view(record, name)]
    parts: list[UIElement] = [header, *(part for plot in views for part in plot(store))]
    return Column(children=parts, name=str(store.uid), sizing_mode="stretch_width", spacing=0)


def has_view(record: Record, view: str) -> bool:
    """Whether a view has anything to show.

    Of cProfile's time nothing is on a timeline; a memory snapshot has no time at all. A run of
    Python alone has a table of functions among the analyses instead of one of ops.
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


def trace_store(record: Record, *, sort: str) -> TraceStore:
    """The record as the page gets it."""
    trace = record.trace
    payload = encode(record)
    ops, functions = report_keys(sort)
    return TraceStore(
        uid=new_uid(),
        payload=payload.text,
        label=_label(record),
        findings=finding_lines(findings(record), SHOWN_ROWS if payload.rows_kept else 0),
        notes=[str(note) for note in record.metadata.get("notes", ())],
        sort=_sort_key(ops),
        functions_sort=_functions_column(functions) if PYTHON_PANEL in panels(record) else "",
        frames_of=frames_of(record),
        on_gpu=has_gpu(record),
        visible=Range1d(start=trace.start_ns, end=max(trace.end_ns, trace.start_ns + 1)),
    )


def new_uid() -> str:
    """A name for one report in a page, which may hold several."""
    return uuid4().hex[:12]


def has_gpu(record: Record) -> bool:
    """Whether the record has tracks of a GPU."""
    return bool(record.trace.tracks["kind"].isin(GPU_TRACKS).any())


def _sort_key(sort: str) -> str:
    """Our name of a sort key; the page knows its columns by no other."""
    column = sort_column(sort)
    return next(key for key, name in SORT_KEYS.items() if name == column)


def _functions_column(key: str) -> str:
    """The column of the page's Python functions that a key of pstats means, "" for none."""
    if not key:
        return ""
    column = PSTATS_KEYS[key][0]
    return {"primitive_calls": "calls"}.get(column, "label" if column in PLACES else column)


def _label(record: Record) -> str:
    """What the profile is called: its label, else the name of the file that it came from."""
    source = str(record.metadata.get("source") or "")
    return str(record.metadata.get("label") or PurePath(source).name)


def finding_lines(found: list[Finding], shown_rows: int) -> list[dict[str, Any]]:
    """The findings as the page gets them, with at most so many events of each."""
    return [
        {
            "text": finding.text,
            "remedy": finding.remedy or "",
            "start": finding.start_ns,
            "end": finding.end_ns,
            "rows": sorted(finding.rows[:shown_rows]),
            "events": len(finding.rows),
        }
        for finding in found
    ]
