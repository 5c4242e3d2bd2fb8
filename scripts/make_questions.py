"""Write the table of docs/questions.md anew from `ANALYSES`.

    python scripts/make_questions.py

A test compares the two, so that the page cannot go stale.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from gpuprof_widgets.analyses import ANALYSES
from gpuprof_widgets.commands.signature import keywords_of

PAGE = Path(__file__).parents[1] / "docs" / "questions.md"
BEGIN, END = "<!-- from ANALYSES: begin -->", "<!-- from ANALYSES: end -->"

HEADINGS = ("question", "method", "command", "view", "peer that answered it")

OTHERS = (
    (
        "Why is it slow, and what to do about it?",
        "findings()",
        "findings TRACE",
        "findings",
        "TensorBoard plugin, XProf, nsys analyze, torch's pattern matcher",
    ),
    (
        "What changed from one run to another, and what is only noise?",
        "gpuprof_widgets.compare(a, b)",
        "diff A B",
        "differential flame graph, two timelines",
        "HTA TraceDiff, TensorBoard plugin, nsys diff",
    ),
    (
        "Which rank is late, and who waits for whom?",
        "gpuprof_widgets.ranks(paths)",
        "ranks DIR",
        "timelines of all ranks",
        "HTA, TraceLens",
    ),
)
"""What no row of `ANALYSES` answers: it is no table of one profile."""

HAND_WRITTEN = {"analyze": "analyze TRACE --aggregate-by type"}
"""Commands of analyses that are more than their name and a trace."""


def table() -> str:
    """The table, as it has to stand in the page."""
    lines = ["| " + " | ".join(HEADINGS) + " |", "|" + " --- |" * len(HEADINGS)]
    lines += ["| " + " | ".join(cells) + " |" for cells in _rows()]
    return "\n".join(lines)


def _rows() -> Iterator[tuple[str, ...]]:
    for question, method, command, view, peers in OTHERS:
        yield question, f"`{method}`", f"`gpuprof {command}`", view, peers
    for one in ANALYSES.values():
        keywords = keywords_of(one.function).values()
        asked = [keyword.name for keyword in keywords if keyword.default is keyword.empty]
        words = " ".join([one.name, "TRACE", *map(str.upper, asked)])
        command = HAND_WRITTEN.get(one.name, words)
        method = f"`{one.name}({', '.join(asked)})`"
        yield one.question, method, f"`gpuprof {command}`", one.view or one.tab, one.peers


def with_table(page: str) -> str:
    """The page with the table of today."""
    before, _, rest = page.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}\n{table()}\n{END}{after}"


if __name__ == "__main__":
    PAGE.write_text(with_table(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
