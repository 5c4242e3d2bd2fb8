"""The outputs of a profiled cell in the notebook, or the same report as one page for a mail.

A cell has three outputs. The first two need no script: findings with tables (`static_html`,
`static_text`), and a picture. They are all that a reader sees of an untrusted, sanitised or printed
notebook, so the HTML is as plain as that of `table_renderers`. The third starts the live views and
hides the first two; where scripts may not run it does nothing and shows nothing.
"""

from __future__ import annotations

import gzip
import json
import re
from base64 import b64encode
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from hashlib import sha256
from html import escape
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any

import bokeh

from gpuprof_widgets import progress
from gpuprof_widgets.analyses.columns import format_count, format_ns
from gpuprof_widgets.analyses.findings import Finding, findings
from gpuprof_widgets.exceptions import printable, printable_values
from gpuprof_widgets.trace.model import Record
from gpuprof_widgets.trace.remarks import focus, remarks
from gpuprof_widgets.views.page import Page, new_uid, page_notes, page_uid, report_page
from gpuprof_widgets.views.picture import headline, picture_png
from gpuprof_widgets.views.static_tables import static_panels, static_tables
from gpuprof_widgets.views.table import Table
from gpuprof_widgets.views.table_renderers import escaped, html_table, prose, text_table, wrapped

if TYPE_CHECKING:
    from bokeh.models import Column

MimeBundle = dict[str, Any]

POLICY = (
    "default-src 'none'; style-src 'unsafe-inline'; img-src data: blob:; font-src data:; "
    "worker-src blob:; base-uri 'none'; form-action 'none'"
)
"""Content-Security-Policy of a page, besides its own scripts: it can never reach a network,
whatever a name in a trace may try."""

_NO_SCRIPT = (
    '<div class="gpuprof-message" role="status">The interactive views need scripts, which this '
    "page may not run here; the summary above holds the main results.</div>"
)
"""Message that the script removes."""

_TRUST = (
    "Trust this notebook for interactive views: in JupyterLab, choose Trust Notebook in the "
    "command palette (Ctrl+Shift+C). Where gpuprof_widgets is installed, no trust is needed."
)

_PARTS = ("bokeh", "extension")

REPORT_TYPE = "application/vnd.gpuprof.report+json"
"""MIME type by which our JupyterLab extension knows a report.

It takes the data from the script beside it, as text, and runs nothing of the notebook's. So it
shows reports of notebooks that nobody has trusted as well.
"""
REPORT_MARK = {"format": 1}
"""What stands under that type: the version of the data in the script.

Raise it with every change of the data that extensions installed earlier would refuse: they then ask
for an upgrade.
"""

FINDINGS_SHOWN, ROWS_SHOWN = 5, 7
"""Findings, the costliest, and rows with parts of their causes; report_header.ts shows as many, and
folds the others."""
ALL_FINDINGS = "profile.findings()"
"""The call that returns the findings that are not shown as well."""


def outputs(
    record: Record,
    *,
    sort: str,
    top: int,
    embed_runtime: bool,
    page: Page | None = None,
    widget: MimeBundle | None = None,
) -> Iterator[MimeBundle]:
    """Yield the three outputs of a cell, in the order in which they must be displayed.

    Each is made when it is asked for, so that the findings are seen before the views are made.
    ``embed_runtime``: carry BokehJS and our extension; once per notebook is enough. ``page`` and
    ``widget`` are those of an explorer.
    """
    uid = page_uid(page) if page else new_uid()
    static = static_bundle(record, sort=sort, top=top)
    yield _summary(static, _caption(record.trace.span_ns), uid)
    yield _picture(record).output
    page = page or report_page(record, sort=sort, uid=uid)
    yield from _live(page, embed_runtime, widget)


def three_outputs(
    static: MimeBundle, picture: Picture, page: Page, *, embed_runtime: bool
) -> list[MimeBundle]:
    """Return the outputs of a cell: tables without script, picture, and the script."""
    return [
        _summary(static, _caption(picture.span_ns), page_uid(page)),
        picture.output,
        *_live(page, embed_runtime),
    ]


def _summary(static: MimeBundle, caption: str, uid: str) -> MimeBundle:
    """Return the first output, with the caption of the picture that comes right below it.

    A notebook's picture has no alternative text: its caption stands in for that.
    """
    below = f'<div>{prose(caption)}. <span class="gpuprof-trust">{_TRUST}</span></div>'
    return static | {"text/html": _summary_of(uid, static["text/html"] + below)}


def _live(
    page: Page, embed_runtime: bool, widget: MimeBundle | None = None
) -> Iterator[MimeBundle]:
    """Yield the script, after the widget of an explorer, which it hides without a kernel."""
    if widget is not None:
        yield widget
    script = page_script(page, embed_runtime=embed_runtime, below_widget=widget is not None)
    yield {REPORT_TYPE: REPORT_MARK, "application/javascript": script, "text/plain": ""}


def _summary_of(uid: str, static: str) -> str:
    """Return the HTML in an element by which the script of its page knows its cell.

    It is a class, because sanitisers take ids away.
    """
    return f'<div class="gpuprof-{uid}">{static}</div>'


def page_script(page: Page, *, embed_runtime: bool, below_widget: bool = False) -> str:
    """Return the script that shows a page of ours, whose data is its last line but one."""
    content = _packed_json(printable_values(page))
    return _script(page_uid(page), {"page": content}, embed_runtime, below_widget)


def figure_script(figure: Column, *, embed_runtime: bool) -> str:
    """Return the script that shows a Bokeh layout of the user's, known by its name.

    The layout stays in the document that is made for it.
    """
    # Here, because Bokeh's models take 0.3 s to import and our own pages have none of them.
    from bokeh.document import Document

    document = Document(title="")
    document.config.notifications = None  # it would stay in the page when the figure leaves it
    document.add_root(figure)
    # As `bokeh.embed.json_item` makes it, without that one's search for mistakes.
    content = document.to_json(deferred=False)
    item = {"target_id": None, "root_id": figure.id, "doc": content, "version": bokeh.__version__}
    packed_item = _packed_json(printable_values(item))
    return _script(str(figure.name), {"document": packed_item}, embed_runtime)


def _script(
    uid: str, content: dict[str, str], embed_runtime: bool, below_widget: bool = False
) -> str:
    data = {
        "uid": uid,
        "explorer": below_widget,
        "bokeh": bokeh.__version__,
        "version": runtime_version(),
        **content,
        "runtime": runtime() if embed_runtime else None,
    }
    # All long texts are base64: nothing in them can end a script element.
    return f"({_packaged_text('loader.js').strip()})(\n{json.dumps(data)}\n)"


def _packed_json(value: Any) -> str:
    return packed(json.dumps(value, allow_nan=False, separators=(",", ":")).encode())


def standalone_html(record: Record, *, sort: str = "device_self", top: int = 15) -> str:
    """Return one HTML file with everything in it, for a mail: no server, no network."""
    title = str(record.metadata.get("label") or "gpuprof")
    static = static_html(record, sort=sort, top=top) + _picture(record).html
    return html_page(title, static, report_page(record, sort=sort))


@dataclass(frozen=True)
class Picture:
    """The views as a picture: the PNG, its headline, and the span of time that it shows."""

    png: bytes
    headline: str
    span_ns: int

    @property
    def base64(self) -> str:
        """The PNG as text."""
        return b64encode(self.png).decode("ascii")

    @property
    def output(self) -> MimeBundle:
        """The picture as an output of a cell."""
        return {"image/png": self.base64, "text/plain": ""}

    @property
    def html(self) -> str:
        """The picture for a page, with its caption and its alternative text."""
        span = format_ns(self.span_ns)
        alt = escape(printable(f"Timeline of {span}, in which: {self.headline}"))
        return (
            f'<figure><img alt="{alt}" src="data:image/png;base64,{self.base64}">'
            f"<figcaption>{prose(_caption(self.span_ns))}</figcaption></figure>"
        )


def _caption(span_ns: int) -> str:
    return f"The views as a picture, over {format_ns(span_ns)}"


def _picture(record: Record) -> Picture:
    return Picture(picture_png(record), headline(record), record.trace.span_ns)


def html_page(title: str, static: str, page: Page | None = None) -> str:
    """Return an HTML file: a part that needs no script, and the live page, if any, instead."""
    script = page_script(page, embed_runtime=True) if page else ""
    policy = f"{POLICY}; script-src {' '.join(map(_source, (script, *runtime_parts())))}"
    parts = {
        "@TITLE@": escape(printable(title)),
        "@STATIC@": _summary_of(page_uid(page), static) if page else static,
        "@LIVE@": f"{_NO_SCRIPT}<script>{script}</script>" if script else "",
        "@POLICY@": policy,
    }
    # In one pass: what a trace's names hold is never taken for a mark.
    return re.sub("|".join(parts), lambda mark: parts[mark.group()], _packaged_text("page.html"))


@cache
def runtime() -> dict[str, str]:
    """Return the parts of the runtime as `loader.js` takes them, after its version."""
    parts = zip(_PARTS, map(str.encode, runtime_parts()), strict=True)
    return {"version": runtime_version(), **{name: packed(part) for name, part in parts}}


@cache
def runtime_version() -> str:
    """Return what tells this runtime from that of another version of Bokeh or of this package."""
    return sha256("".join(runtime_parts()).encode()).hexdigest()[:12]


@cache
def runtime_parts() -> tuple[str, ...]:
    """Return BokehJS (without widgets, tables, MathJax, WebGL) and our extension as functions."""
    library = Path(bokeh.__file__).parent / "server" / "static" / "js" / "bokeh.min.js"
    extension = files("gpuprof_widgets") / "dist" / "gpuprof_widgets.min.js"
    sources = (part.read_text(encoding="utf-8") for part in (library, extension))
    return tuple(f"window.gpuprof.part = function () {{\n{source}\n}}" for source in sources)


def _source(script: str) -> str:
    """Return the hash by which a Content-Security-Policy allows a script."""
    return f"'sha256-{b64encode(sha256(script.encode()).digest()).decode('ascii')}'"


def packed(data: bytes) -> str:
    """Return the data gzipped, as base64 text."""
    return b64encode(gzip.compress(data, 9, mtime=0)).decode("ascii")


@cache
def _packaged_text(name: str) -> str:
    """Return a text file that lies in this folder."""
    return (files("gpuprof_widgets.views") / name).read_text(encoding="utf-8")


def static_bundle(record: Record, *, sort: str = "device_self", top: int = 15) -> dict[str, str]:
    """Return `static_html` and `static_text` by their MIME types, from the same tables."""
    text, tables = _text_and_tables(record, sort=sort, top=top)
    html = html_summary(
        findings(record),
        map(html_table, (*tables, *static_panels(record))),
        remarks=_remarks(record),
        notes=page_notes(record),
        all_in=ALL_FINDINGS,
    )
    return {"text/html": html, "text/plain": text}


def static_html(record: Record, *, sort: str = "device_self", top: int = 15) -> str:
    """Return findings and tables as HTML without script, style sheet, id, frame or drawing."""
    return static_bundle(record, sort=sort, top=top)["text/html"]


def static_text(record: Record, *, sort: str = "device_self", top: int = 15) -> str:
    """Return findings and tables as plain text: below 80 columns, no escape codes."""
    return _text_and_tables(record, sort=sort, top=top)[0]


def _text_and_tables(record: Record, *, sort: str, top: int) -> tuple[str, list[Table]]:
    progress.say("looking for findings")
    ranked = findings(record)
    progress.say("making the tables")
    tables = static_tables(record, sort=sort, top=top)
    text = text_summary(
        ranked,
        tables,
        remarks=_remarks(record),
        notes=page_notes(record),
        all_in=ALL_FINDINGS,
    )
    return text, tables


def html_summary(
    findings: Sequence[Finding],
    tables: Iterable[str],
    *,
    remarks: Iterable[str] = (),
    notes: Iterable[str] = (),
    all_in: str,
) -> str:
    """Return the costliest findings, notes and tables, which are HTML, as one part of a page.

    ``remarks`` are the author's; a note, on what was measured, is a sentence without its full stop;
    ``all_in``: the call that returns all findings.
    """
    above = "".join(f"<div>{_html_words(remark)}</div>" for remark in remarks)
    items = "".join(
        f"<li><strong>{_html_words(finding.text)}</strong>"
        + (f"<div><em>{_html_words(finding.remedy)}</em></div>" if finding.remedy else "")
        + "</li>"
        for finding in _first(findings)
    )
    more = "".join(f"<div>{line}</div>" for line in _more(findings, all_in))
    below = "".join(f"<div>Note: {prose(note.removesuffix('.'))}.</div>" for note in notes)
    shown = f"{above}<ol>{items}</ol>{more}{below}{''.join(tables)}"
    return f'<div class="gpuprof-static">{shown}</div>'


def _html_words(words: str) -> str:
    """Return the words escaped; names in backticks become code."""
    return "".join(
        f"<code>{escaped(part)}</code>" if number % 2 else prose(part)
        for number, part in enumerate(words.split("`"))
    )


def _first(findings: Sequence[Finding]) -> Sequence[Finding]:
    """Return the findings that are shown: parts of a cause hide no other finding."""
    wholes = 0
    for number, finding in enumerate(findings[:ROWS_SHOWN]):
        wholes += not finding.part_of
        if wholes > FINDINGS_SHOWN:
            return findings[:number]
    return findings[:ROWS_SHOWN]


def _more(findings: Sequence[Finding], all_in: str) -> list[str]:
    """Return one line on the findings that are not shown, if there are any.

    Nothing can be folded here: nbconvert's sanitiser turns `details` into visible text.
    """
    more = len(findings) - len(_first(findings))
    return [f"{format_count(more, 'more finding')}: {all_in} has all of them"] if more > 0 else []


def _remarks(record: Record) -> list[str]:
    """Return the author's notes with their times, and where the report opens, one line each."""
    lines = remark_lines(record)
    place = focus(record)
    if place:
        words = [_place(*place["range_ns"])] if place["range_ns"] else []
        if place["rows"]:
            words.append(f"with {format_count(len(place['rows']), 'event')} selected")
        lines += [f"The report opens {' '.join(words)}"] if words else []
    return lines


def remark_lines(record: Record, of: str = "") -> list[str]:
    """Return the author's notes with their times; ``of`` says which of several records it is."""
    where = f"Note in {of}," if of else "Note"
    return [
        f"{where} {_place(remark['start_ns'], remark['end_ns'])}: {remark['text']}"
        for remark in remarks(record)
    ]


def _place(start_ns: int, end_ns: int) -> str:
    """Return a moment or a range in words, to the microsecond."""
    start, end = (f"{ns / 1e6:,.3f} ms" for ns in (start_ns, end_ns))
    return f"at {start}" if start_ns == end_ns else f"from {start} to {end}"


def text_summary(
    findings: Sequence[Finding],
    tables: Iterable[Table],
    *,
    remarks: Iterable[str] = (),
    notes: Iterable[str] = (),
    all_in: str,
) -> str:
    """Return what `html_summary` shows as plain text: below 80 columns, no escape codes."""
    lines = [line for remark in remarks for line in wrapped(remark)]
    for finding in _first(findings):
        lines += wrapped(finding.text, first="* ", then="  ")
        lines += wrapped(finding.remedy, first="  ", then="  ")
    lines += [f"* {line}" for line in _more(findings, all_in)]
    lines += [line for note in notes for line in wrapped(f"Note: {note.removesuffix('.')}.")]
    for table in tables:
        lines += ["", *text_table(table)]
    return "\n".join(lines)
