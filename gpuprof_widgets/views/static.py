"""The part of a report that needs no script: findings in words, the op table, and the picture.

This is what a reader sees of an untrusted, sanitised or printed notebook: its HTML is as plain as
that of `table_renderers`.
"""

from __future__ import annotations

from gpuprof_widgets.analyses.findings import Finding, findings
from gpuprof_widgets.analyses.quantity import format_count
from gpuprof_widgets.trace.model import Record
from gpuprof_widgets.views.picture import picture_png
from gpuprof_widgets.views.static_tables import op_rows, static_panels, static_tables
from gpuprof_widgets.views.table import Table
from gpuprof_widgets.views.table_renderers import html_table, text_table
from gpuprof_widgets.views.text import escaped, wrapped

__all__ = ["op_rows", "picture_png", "static_bundle", "static_html", "static_text"]

FINDINGS_SHOWN = 5
"""Findings, the costliest; report_header.ts shows as many, and folds the others."""
ALL_IN = "profile.findings()"
"""What has those that are not shown."""


def static_bundle(record: Record, *, sort: str = "device_self", top: int = 15) -> dict[str, str]:
    """`static_html` and `static_text` by their MIME types, of the same tables."""
    tables = static_tables(record, sort=sort, top=top)
    return {"text/html": _html(record, tables), "text/plain": _text(record, tables)}


def static_html(record: Record, *, sort: str = "device_self", top: int = 15) -> str:
    """Findings and tables as HTML without script, style sheet, id, frame or drawing."""
    return _html(record, static_tables(record, sort=sort, top=top))


def static_text(record: Record, *, sort: str = "device_self", top: int = 15) -> str:
    """Findings and tables as plain text: below 80 columns, no escape codes."""
    return _text(record, static_tables(record, sort=sort, top=top))


def _html(record: Record, tables: list[Table]) -> str:
    shown = map(html_table, (*tables, *static_panels(record)))
    parts = (html_findings(findings(record)), _html_notes(record), *shown)
    return f'<div class="gpuprof-static">{"".join(parts)}</div>'


def html_findings(found: list[Finding], *, all_in: str = ALL_IN) -> str:
    """The costliest findings as a list, each with what to do about it."""
    items = "".join(f"<li>{_html_finding(finding)}</li>" for finding in found[:FINDINGS_SHOWN])
    return f"<ol>{items}</ol>" + "".join(f"<div>{line}</div>" for line in _more(found, all_in))


def _more(found: list[Finding], all_in: str) -> list[str]:
    """One line on the findings that are not shown, if there are any.

    Nothing can be folded here: nbconvert's sanitiser turns `details` into visible text.
    """
    more = len(found) - FINDINGS_SHOWN
    return [f"{format_count(more, 'more finding')}: {all_in} has all of them"] if more > 0 else []


def _html_notes(record: Record) -> str:
    return "".join(f"<div>Note: {escaped(note)}.</div>" for note in _notes(record))


def _notes(record: Record) -> list[str]:
    """What was lost or not measured, one sentence each."""
    return [str(note).removesuffix(".") for note in record.metadata.get("notes", ())]


def _html_finding(finding: Finding) -> str:
    remedy = f"<div><em>{_html_words(finding.remedy)}</em></div>" if finding.remedy else ""
    return f"<strong>{_html_words(finding.text)}</strong>{remedy}"


def _html_words(words: str) -> str:
    """The words, escaped; names in backticks become code."""
    return "".join(
        f"<code>{escaped(part)}</code>" if number % 2 else escaped(part)
        for number, part in enumerate(words.split("`"))
    )


def _text(record: Record, tables: list[Table]) -> str:
    words = [*text_findings(findings(record)), *_text_notes(record)]
    for table in tables:
        words += ["", *text_table(table)]
    return "\n".join(words)


def text_findings(found: list[Finding], *, all_in: str = ALL_IN) -> list[str]:
    """The costliest findings as lines of plain text, each with what to do about it."""
    lines = []
    for finding in found[:FINDINGS_SHOWN]:
        lines += wrapped(finding.text, first="* ", then="  ")
        lines += wrapped(finding.remedy, first="  ", then="  ")
    return lines + [f"* {line}" for line in _more(found, all_in)]


def _text_notes(record: Record) -> list[str]:
    notes = _notes(record)
    return [line for note in notes for line in wrapped(f"Note: {note}.")]
