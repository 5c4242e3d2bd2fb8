"""The table of questions in the docs is that of `ANALYSES`, and what it names exists."""

from __future__ import annotations

import re
from pathlib import Path

import gpuprof_widgets
from gpuprof_widgets.analyses import ANALYSES
from gpuprof_widgets.cli import ALIASES, COMMANDS

DOCS = Path(__file__).parents[1] / "docs"
PAGE = (DOCS / "questions.md").read_text(encoding="utf-8")


def cells() -> list[list[str]]:
    rows = [line for line in PAGE.splitlines() if line.startswith("| ")][2:]
    return [[cell.strip(" `") for cell in row.strip("| ").split(" | ")] for row in rows]


def test_every_analysis_is_in_it() -> None:
    assert {one.question for one in ANALYSES.values()} < {row[0] for row in cells()}


def test_every_method_and_command_of_it_exists() -> None:
    of_analyses = {one.name for one in ANALYSES.values()}
    commands = set(COMMANDS) | of_analyses | set(ALIASES)
    for _, method, command, *_ in cells():
        name = method.partition("(")[0]
        home = gpuprof_widgets if name.startswith("gpuprof_widgets.") else gpuprof_widgets.Profile
        assert callable(getattr(home, name.removeprefix("gpuprof_widgets.")))
        assert command.split()[1] in commands


def test_each_command_is_described() -> None:
    described = (DOCS / "command_line.md").read_text(encoding="utf-8")
    for name in COMMANDS:
        assert re.search(rf"^#+ `gpuprof {name}\b", described, re.MULTILINE), name
