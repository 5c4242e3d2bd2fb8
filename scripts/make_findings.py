"""Write the table of docs/findings.md anew from the rules behind the findings.

    python scripts/make_findings.py

A test compares the two, so that the page cannot go stale.
"""

from __future__ import annotations

from pathlib import Path

from gpuprof_widgets.analyses.findings import FINDINGS
from gpuprof_widgets.analyses.findings.thresholds import thresholds_of
from gpuprof_widgets.analyses.ranks.findings import FINDINGS as OF_RANKS

PAGE = Path(__file__).parents[1] / "docs" / "findings.md"
BEGIN, END = "<!-- from the rules: begin -->", "<!-- from the rules: end -->"


def table() -> str:
    """The table, as it has to stand in the page."""
    lines = ["| threshold | default | what it is |", "| --- | ---: | --- |"]
    thresholds = thresholds_of(*FINDINGS.values(), *OF_RANKS.values())
    for name, threshold in thresholds.items():
        lines.append(f"| `{name}` | {threshold.default} | {threshold.meaning} |")
    return "\n".join(lines)


def with_table(page: str) -> str:
    """The page with the table of today."""
    before, _, rest = page.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}\n{table()}\n{END}{after}"


if __name__ == "__main__":
    PAGE.write_text(with_table(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
