"""Write what is made from the package anew: the tables of the docs.

    python -m scripts.make_docs

A test compares them, so that no page can go stale.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path

from gpuprof_widgets.analyses import ANALYSES, Analysis
from gpuprof_widgets.commands.analysis import keywords_of
from gpuprof_widgets.exports import WRITERS
from gpuprof_widgets.options import GROUPS, OPTIONS, TOPICS, Option, ProfileOptions, options_of
from gpuprof_widgets.trace.readers import READERS
from scripts.make_reference import Row, table

ROOT = Path(__file__).parents[1]
# docs/questions.md

OTHER_QUESTIONS = (
    (
        "Why is it slow, and what to do about it?",
        "`findings()`",
        "`gpuprof findings TRACE`",
        "findings",
        "TensorBoard plugin, XProf, nsys analyze, torch's pattern matcher",
    ),
    (
        "What changed from one run to another, and what is only noise?",
        "`gpuprof_widgets.compare(a, b)`",
        "`gpuprof diff A B`",
        "differential flame graph, two timelines",
        "HTA TraceDiff, TensorBoard plugin, nsys diff",
    ),
    (
        "Which rank is late, and who waits for whom?",
        "`gpuprof_widgets.ranks(paths)`",
        "`gpuprof ranks DIR`",
        "timelines of all ranks",
        "HTA, TraceLens",
    ),
)
"""What no row of `ANALYSES` answers: it is no table of one profile."""

HAND_WRITTEN = {"analyze": "analyze TRACE --aggregate-by type"}
"""Commands of analyses that are more than their name and a trace."""


def questions() -> str:
    """Return the table of questions, with the method, the command and the tab that answer each."""
    headings = ("question", "method", "command", "view", "peer that answered it")
    return table(headings, [*OTHER_QUESTIONS, *map(_question, ANALYSES.values())])


def _question(row: Analysis) -> Row:
    keywords = keywords_of(row.function).values()
    needed = [keyword.name for keyword in keywords if keyword.default is keyword.empty]
    words = " ".join([row.name, "TRACE", *map(str.upper, needed)])
    method = f"`{row.name}({', '.join(needed)})`"
    command = f"`gpuprof {HAND_WRITTEN.get(row.name, words)}`"
    return row.question, method, command, row.view or row.tab, row.peers


# docs/formats.md


def readers() -> str:
    """Return the table of what can be read."""
    return table(("what", "written by"), ((row.name, row.written_by) for row in READERS.values()))


def writers() -> str:
    """Return the table of what can be written."""
    rows = (
        (", ".join(f"`{ending}`" for ending in row.endings), row.name, row.choice, row.opens_in)
        for row in WRITERS.values()
    )
    return table(("ending", "what is written", "`what=`", "opens in"), rows)


# docs/options.md


def options() -> str:
    """Return the table of the options of a recording, with the topics of ``--record``."""
    topics = ", ".join(f"`{topic}`" for topic in TOPICS)
    rows = table(("option", "keyword", "meaning", "default"), _options())
    return f"{rows}\n\n`TOPICS` are separated by commas: {topics}."


def _options() -> Iterator[Row]:
    keywords = options_of(ProfileOptions)
    for group, heading in GROUPS.items():
        yield f"**{heading}**", "", "", ""
        for name, option in OPTIONS.items():
            if option.group == group:
                keyword = f"`{name}`" if name in keywords else ""
                meaning = re.sub(r"(?<!\S)--[\w-]+", r"`\g<0>`", option.help)
                yield _flags(option), keyword, meaning, _default(option)


def _flags(option: Option) -> str:
    value = f"[={option.metavar}]" if option.bare else f" {option.metavar}".rstrip()
    *short, long = option.flags
    return ", ".join(f"`{flag}`" for flag in (*short, f"{long}{value}"))


def _default(option: Option) -> str:
    if option.is_flag:
        return f"`{option.default}`"
    return "" if option.default is None else f"`{option.default}`"


TABLES: dict[str, tuple[Callable[[], str], tuple[str, ...]]] = {
    "ANALYSES": (questions, ("docs/questions.md",)),
    "READERS": (readers, ("docs/formats.md",)),
    "WRITERS": (writers, ("docs/formats.md",)),
    "OPTIONS": (options, ("docs/options.md",)),
}
"""The table between the marks of each name, and the pages that have it."""

PATHS = tuple(dict.fromkeys(path for _, paths in TABLES.values() for path in paths))
"""All files that have a part that is made."""


def made(path: str) -> str:
    """Return the text of that file as it has to be."""
    page = (ROOT / path).read_text(encoding="utf-8")
    for name, (text, paths) in TABLES.items():
        if path in paths:
            page = _with_table(page, name, text())
    return page


def _with_table(page: str, name: str, text: str) -> str:
    begin, end = f"<!-- from {name}: begin -->", f"<!-- from {name}: end -->"
    before, _, rest = page.partition(begin)
    _, _, after = rest.partition(end)
    return f"{before}{begin}\n{text}\n{end}{after}"


if __name__ == "__main__":
    for path in PATHS:
        (ROOT / path).write_text(made(path), encoding="utf-8")
