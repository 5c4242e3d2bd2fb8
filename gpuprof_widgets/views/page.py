"""The report as data: what the page is built from, columns and texts without any code.

`report_page` returns it; extension/page.ts builds the views from it. Whoever sends a notebook can
put anything in its place, so the page checks it (extension/page_data.ts) and never runs it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import PurePath
from typing import Any
from uuid import uuid4

from gpuprof_widgets.analyses.columns import PLACES, PSTATS_KEYS, report_keys, sort_key
from gpuprof_widgets.analyses.findings import Finding, findings
from gpuprof_widgets.analyses.findings.places import LOOK_AT, lack_of_places
from gpuprof_widgets.analyses.lines import cell_lines
from gpuprof_widgets.analyses.python_time import has_python_alone
from gpuprof_widgets.analyses.reasons import which_other_kind
from gpuprof_widgets.trace.model import Record
from gpuprof_widgets.trace.remarks import focus, remarks
from gpuprof_widgets.trace.schema import GPU_TRACKS, MEMORY_EVENT
from gpuprof_widgets.views.cards import cards, page_cards
from gpuprof_widgets.views.encoding import BUDGET_BYTES, Payload, encode
from gpuprof_widgets.views.page_panels import panels
from gpuprof_widgets.views.page_rows import line_places

Page = dict[str, Any]
"""The data of a page, for JSON: its ``kind``, and what belongs to it (extension/page_data.ts)."""

VIEWS = ("timeline", "lines", "flame_graph", "op_table", "memory", "analyses")
"""The views in the order in which they stand under the cell."""

SHOWN_ROWS = 1_000
"""The most events of one finding that the page gets: more would fill the view, and the page."""

NO_PLACES: Mapping[tuple[str, int], int] = {}

PYTHON_PANEL = "python_time"
"""The tab that is open at first where its order was asked for."""


def report_page(
    record: Record, *, sort: str, uid: str = "", budget_bytes: int = BUDGET_BYTES
) -> Page:
    """Return the whole report of a record; ``uid`` names it among the reports of a notebook."""
    payload = encode(record, budget_bytes=budget_bytes)
    shown_rows = SHOWN_ROWS if payload.rows_kept else 0
    has_functions, trace = PYTHON_PANEL in panels(record), record.trace
    ops, functions = report_keys(sort)
    lines = finding_lines(findings(record), shown_rows, line_places(record))
    file = PurePath(str(record.metadata.get("source") or "")).name
    label = str(record.metadata.get("label") or file)
    store = {
        **page_store(record, payload, label=label, uid=uid),
        "rows_kept": payload.rows_kept,
        "findings": lines if has_functions else [line | {"function": ""} for line in lines],
        "notes": page_notes(record),
        "focus": _page_focus(record, shown_rows),
        "sort": sort_key(ops),
        "functions_sort": _functions_column(functions) if has_functions else "",
        "start": trace.start_ns,
        "end": max(trace.end_ns, trace.start_ns + 1),
    }
    return {
        "kind": "report",
        "store": store,
        "views": [view for view in VIEWS if has_view(record, view)],
        "cards": page_cards(cards(record).values(), record, shown_rows),
    }


def page_uid(page: Page) -> str:
    """Return the name of a page: that of its first trace."""
    return str((page["store"] if "store" in page else page["stores"][0])["uid"])


def page_notes(record: Record) -> list[str]:
    """Return what was lost or not measured, one sentence each."""
    lost = [str(note) for note in record.metadata.get("notes", ())]
    return [*lost, *filter(None, [lack_of_places(record)])]


def page_store(record: Record, payload: Payload, *, label: str, uid: str = "") -> dict[str, Any]:
    """Return a record as every page gets it."""
    return {
        "uid": uid or new_uid(),
        "payload": payload.text,
        "label": label,
        "on_gpu": bool(record.trace.tracks["kind"].isin(GPU_TRACKS).any()),
        "remarks": [
            {"text": remark["text"], "start": remark["start_ns"], "end": remark["end_ns"]}
            for remark in remarks(record)
        ],
    }


def _page_focus(record: Record, shown_rows: int) -> dict[str, Any] | None:
    """Return the place at which the page opens, None for the whole trace."""
    place = focus(record)
    if place is None:
        return None
    start, end = place["range_ns"] or (None, None)
    rows = place["rows"]
    shown = {"rows": rows[:shown_rows], "events": len(rows)}
    return {"text": place["about"], "start": start, "end": end, **shown}


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


def new_uid() -> str:
    """Return a name for one report; a page may hold several."""
    return uuid4().hex[:12]


def _functions_column(key: str) -> str:
    """Return the column of the Python functions that a pstats key sorts by, "" for no key."""
    if not key:
        return ""
    column = PSTATS_KEYS[key][0]
    return {"primitive_calls": "calls"}.get(column, "label" if column in PLACES else column)


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
            "function": finding.function,
            "is_part": bool(finding.part_of),
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
