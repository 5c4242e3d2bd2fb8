"""What the site has on docs/analyses.md: a section per analysis, from docstring and signature."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from textwrap import fill

from gpuprof_widgets.analyses import ANALYSES, Analysis
from gpuprof_widgets.analyses.columns import ENDINGS, MOMENTS
from gpuprof_widgets.analyses.docstrings import COLUMNS, OPTIONS, items_of, paragraphs_of
from gpuprof_widgets.commands.analysis import keywords_of

DOCS = Path(__file__).parents[1] / "docs"

Row = Iterable[str]


def table(headings: Row, rows: Iterable[Row]) -> str:
    """Return a table of Markdown."""
    lines = (headings, ["---" for _ in headings], *rows)
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


MORE = {
    "allocations": "[Memory](topics/memory.md)",
    "allocator_events": "[Memory](topics/memory.md)",
    "attribution": "[Lines and modules](topics/lines_and_modules.md)",
    "analyze": "[`gpuprof analyze`](command_line.md#gpuprof-analyze)",
    "breakdown": "[Why is the GPU idle?](guides/gpu_is_idle.md)",
    "collectives": "[Workers and ranks](topics/ranks.md#ranks)",
    "critical_path": "[Critical path](topics/critical_path.md)",
    "idle": "[Why is the GPU idle?](guides/gpu_is_idle.md)",
    "iterations": "[Bounded loops](topics/loops.md#bounded-loops)",
    "lines": "[Lines and modules](topics/lines_and_modules.md)",
    "memory": "[Memory](topics/memory.md)",
    "memory_peak": "[Memory](topics/memory.md)",
    "memory_segments": "[Memory snapshots](topics/memory.md#memory-snapshots)",
    "modules": "[Lines and modules](topics/lines_and_modules.md)",
    "python_time": "[Python time](topics/python_time.md)",
    "roofline": "[Roofline](topics/roofline.md)",
    "sampled_lines": "[Samples of Python](topics/python_time.md#samples-of-python)",
    "steps": "[Loops and trainers](topics/loops.md)",
    "what_if": "[Critical path](topics/critical_path.md)",
    "what_ifs": "[Critical path](topics/critical_path.md)",
    "workers": "[DataLoader workers](topics/ranks.md#dataloader-workers)",
}
"""Pages that explain more, for some analyses."""

ELSEWHERE = {"gpuprof_widgets.ranks": "topics/ranks.md#ranks"}
"""Where other names of docstrings are explained."""

OF_VIEWS = "the-analyses"
"""The section of docs/views.md for views that have none of their own."""

WIDTH = 120

LEADS = ("Formula", "Rule", "Cost", "Source", OPTIONS, COLUMNS)
"""First words of paragraphs that are written in bold."""


def analyses() -> str:
    """Return a section per analysis of ours, in Markdown."""
    index = " · ".join(f"[`{name}`](#{name})" for name in ANALYSES.ours)
    sections = map(_analysis, ANALYSES.ours.values())
    return "\n\n".join([wrapped(index), *sections]) + "\n"


def _analysis(row: Analysis) -> str:
    return "\n\n".join([f"## `{row.name}()`", f"*{row.question}*", *_body(row), _where(row)])


def _body(row: Analysis) -> Iterator[str]:
    """Return the docstring in Markdown: lists of options and columns become tables."""
    keywords = keywords_of(row.function)
    above = ""
    for paragraph in paragraphs_of(row.function):
        items = items_of(paragraph).items()
        if items and above.startswith(OPTIONS):
            rows = (
                (_code(names), _default(keywords[names[0]]), _cell(text)) for names, text in items
            )
            yield table(("option", "default", "meaning"), rows)
        elif items and above.startswith(COLUMNS):
            rows = ((_code(names), _units(names), _cell(text)) for names, text in items)
            yield table(("column", "unit", "meaning"), rows)
        elif paragraph.startswith("- "):
            yield "\n".join(filled(item, indent="  ") for item in re.split(r"\n(?=- )", paragraph))
        else:
            yield filled(bold_lead(paragraph))
        above = paragraph


def _default(keyword: inspect.Parameter) -> str:
    return "" if keyword.default is keyword.empty else f"`{_written(keyword.default)}`"


def _written(value: object) -> str:
    """Return a value as the code of this project writes it."""
    return f'"{value}"' if isinstance(value, str) else repr(value)


def _cell(text: str) -> str:
    """Return what an option or a column means, as a sentence."""
    return markdown(text[:1].upper() + text[1:])


def _where(row: Analysis) -> str:
    """Return where the answer is shown: method, command, view, and more about it."""
    keywords = keywords_of(row.function).values()
    given = ", ".join(
        keyword.name
        if keyword.default is keyword.empty
        else f"{keyword.name}={_written(keyword.default)}"
        for keyword in keywords
    )
    example = f" {row.example}" if row.example else ""
    parts = [f"`profile.{row.name}({given})`", f"`gpuprof {row.name} trace.json.gz{example}`"]
    if shown := row.view or row.tab:
        parts.append(f"view: {', '.join(map(_view, shown.split(', ')))}")
    if row.name in MORE:
        parts.append(f"more: {MORE[row.name]}")
    return wrapped(" · ".join(parts))


def _view(name: str) -> str:
    views = (DOCS / "views.md").read_text(encoding="utf-8")
    headings = {
        heading.lower(): heading for heading in re.findall(r"^#+ (.+)$", views, re.MULTILINE)
    }
    heading = "summary and findings" if name == "findings" else name.lower()
    anchor = heading.replace(" ", "-") if heading in headings else OF_VIEWS
    return f"[{name}](views.md#{anchor})"


def _code(names: Iterable[str]) -> str:
    return ", ".join(f"`{name}`" for name in names)


UNIT_NAMES = {
    "bytes/s": "bytes/s",
    "flop/s": "FLOP/s",
    "flop": "FLOP",
    "change": "ns",
    "address": "",
}
"""Units that are written otherwise than in `columns.ENDINGS`."""


def _units(names: Iterable[str]) -> str:
    units = dict.fromkeys(filter(None, map(unit_of, names)))
    return ", ".join(units)


def unit_of(column: str) -> str:
    """Return the unit of a column by its name; "" for text, counts and numbers without a unit."""
    if column in MOMENTS:
        return "ns"
    return next((UNIT_NAMES.get(unit, unit) for end, unit in ENDINGS if column.endswith(end)), "")


Target = Callable[[str], str]
"""The link for a name in single backticks; "" if there is none."""


def linked_to(name: str, page: str = "") -> str:
    """Return the link to an analysis on docs/analyses.md, or to what explains another name."""
    return f"{page}#{name}" if name in ANALYSES.ours else ELSEWHERE.get(name, "")


def markdown(text: str, target: Target = linked_to) -> str:
    """Return text of a docstring in Markdown: names that have a target become links."""

    def linked(found: re.Match[str]) -> str:
        name = found[1]
        return f"[`{name}`]({target(name)})" if target(name) else f"`{name}`"

    return re.sub(r"(?<!`)`([\w.]+)`(?!`)", linked, text).replace("``", "`").replace("|", r"\|")


def bold_lead(paragraph: str) -> str:
    """Return the paragraph with ``Source:`` and the like in bold."""
    return re.sub(r"^(\w[^.]*?:)(?=\s|$)", _in_bold, paragraph)


def _in_bold(found: re.Match[str]) -> str:
    lead = found[1]
    return f"**{lead}**" if lead.split()[0].strip(":") in LEADS else lead


def filled(paragraph: str, target: Target = linked_to, indent: str = "") -> str:
    """Return the paragraph of a docstring in Markdown, in lines of at most `WIDTH` characters."""
    return wrapped(markdown(" ".join(paragraph.split()), target), indent)


def wrapped(text: str, indent: str = "") -> str:
    """Return the text in lines of at most `WIDTH` characters."""
    return fill(
        text, WIDTH, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False
    )
