"""The page of a comparison: both timelines on one scale, and below them what differs."""

from __future__ import annotations

from typing import Any

from gpuprof_widgets.analyses.compare.sentences import comparison_findings
from gpuprof_widgets.analyses.compare.tables import Runs
from gpuprof_widgets.trace.model import Record
from gpuprof_widgets.views import side_by_side
from gpuprof_widgets.views.figure import finding_lines
from gpuprof_widgets.views.report import MimeBundle
from gpuprof_widgets.views.side_by_side import Heading, Row
from gpuprof_widgets.views.static_comparison import static_html, static_tables, static_text


def outputs(runs: Runs, *, embed_runtime: bool) -> list[MimeBundle]:
    """The three outputs of a cell, as in `report.outputs`."""
    return side_by_side.outputs(
        _rows(runs),
        heading(runs),
        html=static_html(runs),
        text=static_text(runs),
        tables=static_tables(runs),
        embed_runtime=embed_runtime,
    )


def standalone_html(runs: Runs) -> str:
    """One HTML file with everything in it, for a mail."""
    return side_by_side.standalone_html(
        _rows(runs), heading(runs), html=static_html(runs), tables=static_tables(runs)
    )


def _rows(runs: Runs) -> list[Row]:
    return [Row(run, title) for run, title in zip((runs.a, runs.b), titles(runs), strict=True)]


def titles(runs: Runs) -> tuple[str, str]:
    """What the runs are called: A and B, with their labels where they have any."""
    a, b = (f"{name}{label(run)}" for name, run in (("A", runs.a), ("B", runs.b)))
    return a, b


def label(run: Record) -> str:
    """A run's label, or the name of its file, set off from what stands before it."""
    given = run.metadata.get("label") or str(run.metadata.get("source") or "").rsplit("/", 1)[-1]
    return f" · {given}" if given else ""


def heading(runs: Runs) -> Heading:
    """Title and findings of the page."""
    findings: list[dict[str, Any]] = finding_lines(comparison_findings(runs), 0)
    return Heading("Two runs compared", findings)
