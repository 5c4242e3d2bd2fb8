"""Write the outputs in docs/command_line.md anew: run what its ``console`` blocks show.

    python scripts/make_command_line.py FOLDER

FOLDER holds the traces that the page names: trace.json.gz, two_steps.zip and ranks/.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

PAGE = Path(__file__).parents[1] / "docs" / "command_line.md"
BLOCK = re.compile(r"```console\n(.*?)```\n", re.DOTALL)
WIDTH = 100


def commands(page: str) -> list[list[str]]:
    """The commands of each block, without their prompts."""
    return [_commands(block) for block in BLOCK.findall(page)]


def _commands(block: str) -> list[str]:
    return [line[2:] for line in block.splitlines() if line.startswith("$ ")]


def with_outputs(page: str, folder: Path) -> str:
    """The page with what its commands print there today."""
    return BLOCK.sub(lambda found: _ran(_commands(found[1]), folder), page)


def _ran(block: list[str], folder: Path) -> str:
    shown = "".join(f"$ {command}\n{_output(command, folder)}" for command in block)
    return f"```console\n{shown}```\n"


def _output(command: str, folder: Path) -> str:
    environment = {**os.environ, "COLUMNS": str(WIDTH)}
    done = subprocess.run(
        command, shell=True, cwd=folder, env=environment, text=True, check=True,
        capture_output=True,
    )  # fmt: skip
    return done.stdout


if __name__ == "__main__":
    text = with_outputs(PAGE.read_text(encoding="utf-8"), Path(sys.argv[1]))
    PAGE.write_text(text, encoding="utf-8")
