"""The page of a comparison: both timelines on one scale, and below them what differs."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from typing import Any

from bokeh.models import Column, Plot, Range1d
from bokeh.models.ui import UIElement

from gpuprof_widgets.analyses.compare.sentences import comparison_findings
from gpuprof_widgets.analyses.compare.tables import Runs
from gpuprof_widgets.analyses.steps import steps
from gpuprof_widgets.trace.model import Record
from gpuprof_widgets.views.comparison_tables import delta_tables, static_html, static_text
from gpuprof_widgets.views.figure import finding_lines
from gpuprof_widgets.views.models import DeltaTable, DiffBar, DiffGraph, GroupHeader, StoreGroup
from gpuprof_widgets.views.plots import empty_plot
from gpuprof_widgets.views.report import MimeBundle, figure_script, html_page
from gpuprof_widgets.views.side_by_side import Row, placed, plot_timelines, store_group
from gpuprof_widgets.views.side_by_side_picture import timelines_png

TITLE = "Two runs compared"


def outputs(runs: Runs, *, embed_runtime: bool) -> list[MimeBundle]:
    """The three outputs of a cell, as in `report.outputs`."""
    first = comparison_findings(runs)[0].text
    picture = base64.b64encode(timelines_png(placed(_rows(runs)), first)).decode("ascii")
    script = figure_script(comparison_figure(runs), embed_runtime=embed_runtime)
    return [
        {"text/html": static_html(runs), "text/plain": static_text(runs)},
        {"image/png": picture, "text/plain": ""},
        {"application/javascript": script, "text/plain": ""},
    ]


def standalone_html(runs: Runs) -> str:
    """One HTML file with everything in it, for a mail."""
    script = figure_script(comparison_figure(runs), embed_runtime=True)
    return html_page(TITLE, static_html(runs), script)


def comparison_figure(runs: Runs) -> Column:
    """Findings, both timelines, the differential flame graph and the tables as one layout."""
    rows = _rows(runs)
    group = store_group(rows, brushes_all=False)
    first = group.stores[0]
    wide: Any = {"store": first, "sizing_mode": "stretch_width"}
    found = finding_lines(comparison_findings(runs), 0)
    names = [row.title for row in rows]
    has_times = any(len(row.record.trace) for row in rows)  # cProfile knows no times
    timelines = plot_timelines(group, names) if has_times else []
    label = TITLE if has_times else f"{TITLE}: {', '.join(names)}"
    header = GroupHeader(group=group, label=label, findings=found, **wide)
    table = DeltaTable(group=group, tables=delta_tables(runs), **wide)
    parts: list[UIElement] = [header, *timelines, *_flame_graph(group, rows, wide), table]
    return Column(children=parts, name=str(first.uid), sizing_mode="stretch_width", spacing=0)


def _flame_graph(group: StoreGroup, rows: Sequence[Row], wide: Any) -> list[UIElement]:
    graph = DiffGraph(runs=group, steps=[_step_ranges(row.record) for row in placed(rows)])
    plot: Plot = empty_plot(
        Range1d(start=0, end=1), Range1d(start=0, end=1), height=80, frame_align=False
    )
    plot.renderers.append(graph)
    return [DiffBar(graph=graph, **wide), plot]


def _step_ranges(record: Record) -> list[tuple[float, float]]:
    table = steps(record)
    return [
        (float(start), float(end))
        for start, end in zip(table["start_ns"], table["end_ns"], strict=True)
    ]


def _rows(runs: Runs) -> list[Row]:
    return [Row(run, title) for run, title in zip((runs.a, runs.b), titles(runs), strict=True)]


def titles(runs: Runs) -> tuple[str, str]:
    """What the runs are called: A and B, with their labels where they have any."""
    a, b = (f"{run} · {name}" if name else run for run, name in zip("AB", runs.names, strict=True))
    return a, b
