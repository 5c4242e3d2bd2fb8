"""The code blocks of README.md and the docs, and a reader who runs them from top to bottom.

    run(page, reader)

``python`` blocks are the cells of one Jupyter kernel, ``sh`` blocks go to ``bash -e`` in the same
folder, and the commands of ``console`` blocks are run for their output. `tests.readers_world` has
what the reader has before the page begins. scripts/make_console_outputs.py writes outputs anew.
"""

from __future__ import annotations

import difflib
import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from markdown_it import MarkdownIt

from tests.kernels import ROOT, Kernel, Outcome, plain
from tests.readers_world import BEFORE, PRELUDE, TORCHVISION, USES_TORCHVISION

COLUMNS = 100
"""Of the terminal in which the ``console`` blocks are shown."""
TIMEOUT_S = 300
"""For a block of a shell; several blocks run side by side in CI."""
NOT_RUN = re.compile(r"<!-- not run: (?P<reason>\S.*?) -->\s*")
DIRECTIVE = re.compile(r"\{(?!code)[\w-]+\}.*")
"""What Sphinx reads, such as a table of contents; ``{code-block}`` would hide code from us."""
PARSERS: dict[str, Callable[[str], Any]] = {
    "toml": tomllib.loads,
    "yaml": yaml.safe_load,
    "json": json.loads,
    "text": str,
}
RUN = ("python", "sh", "console")


@dataclass(frozen=True)
class Block:
    """One fenced block; ``reason``: why it is not run, "" for all that are."""

    page: str
    line: int
    last_line: int
    language: str
    code: str
    reason: str = ""

    def fails(self, what: str) -> AssertionError:
        return AssertionError(f"{self.page}:{self.line}: {self.language} block {what}\n{self.code}")


@dataclass(frozen=True)
class Page:
    """A page of Markdown; the name is its path in the repository."""

    name: str
    text: str

    @property
    def blocks(self) -> list[Block]:
        """The blocks in order; raises if there is one of which nobody would know if it works."""
        found, before = [], None
        for token in MarkdownIt().parse(self.text):
            if token.type in ("fence", "code_block"):
                start, end = token.map or (0, 0)
                reason = NOT_RUN.fullmatch(before.content) if before else None
                block = Block(
                    page=self.name,
                    line=start + 1,
                    last_line=end,
                    language=token.info.strip(),
                    code=token.content,
                    reason=reason["reason"] if reason else "",
                )
                if token.type == "code_block":
                    raise block.fails("is indented code: put it in a fence with its language")
                _check_language(block)
                found.append(block)
            before = token if token.type == "html_block" else None
        return found


def _check_language(block: Block) -> None:
    if block.language not in (*RUN, *PARSERS) and not DIRECTIVE.fullmatch(block.language):
        raise block.fails(f"has none of the languages {', '.join((*RUN, *PARSERS))}")
    if block.reason and block.language not in RUN:
        raise block.fails("would not be run anyway: remove the comment above it")


def pages() -> list[Page]:
    """README.md and all pages of the docs."""
    files = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
    return [
        Page(file.relative_to(ROOT).as_posix(), file.read_text(encoding="utf-8")) for file in files
    ]


class Reader:
    """Somebody with a terminal and, from the first cell on, a notebook, both in one folder."""

    def __init__(self, directory: Path, files: Path, page: Page) -> None:
        self.folder = directory / "cwd"
        self._directory = directory
        self._page = page
        self._kernel: Kernel | None = None
        home = directory / "home"
        home.mkdir()
        shutil.copytree(files, self.folder)
        binaries = Path(sys.executable).parent
        self._variables = {
            "HOME": str(home),
            "OMP_NUM_THREADS": "1",  # threads that wait for one another would take all the time
            "BROWSER": "true",  # the program: it shows nothing and says that all went well
            "PATH": os.pathsep.join([str(binaries), os.environ["PATH"]]),
        }
        if page.name in BEFORE:
            self._notebook()

    def cell(self, code: str) -> Outcome:
        """Run a cell of the notebook."""
        return self._notebook().run(code)

    def _notebook(self) -> Kernel:
        if self._kernel is None:
            self._kernel = Kernel(None, self._directory, **self._variables)
            uses = USES_TORCHVISION.search(self._page.text)
            for code in (PRELUDE, TORCHVISION if uses else "", BEFORE.get(self._page.name, "")):
                before = self._kernel.run(code)
                assert before.status == "ok", f"{self._page.name}: {before.traceback}"
            # Every expression of a cell is shown then, so that none can be empty unseen.
            self._kernel.run("%config InteractiveShell.ast_node_interactivity = 'all'")
        return self._kernel

    def shell(self, *command: str) -> subprocess.CompletedProcess[str]:
        """Run a command; what it prints on both streams comes as one, as in a terminal."""
        environment = {**os.environ, **self._variables, "PYTHONPATH": str(ROOT)}
        environment["COLUMNS"] = str(COLUMNS)
        return subprocess.run(
            command, cwd=self.folder, env=environment, text=True, timeout=TIMEOUT_S,
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        )  # fmt: skip

    def close(self) -> None:
        if self._kernel is not None:
            self._kernel.stop()


def run(page: Page, reader: Reader) -> None:
    """Run the page's blocks in order; raise an error that names the first one that fails."""
    for block, output in outputs(page, reader):
        if output != block.code:
            lines = block.code.splitlines(), output.splitlines()
            changed = "\n".join(difflib.unified_diff(*lines, "the page", "replayed", lineterm=""))
            raise block.fails(
                f"prints something else (python -m scripts.make_console_outputs):\n{changed}\n"
            )


def outputs(page: Page, reader: Reader) -> Iterator[tuple[Block, str]]:
    """Run the page's blocks in order; yield each ``console`` block with what it is today."""
    for block in page.blocks:
        if block.reason or DIRECTIVE.fullmatch(block.language):
            continue
        if block.language == "console":
            yield block, _replayed(block, reader)
        elif block.language == "python":
            _run_cell(block, reader)
        elif block.language == "sh":
            done = _in_shell(block, reader, "bash", "-e", "-c", block.code)
            if done.returncode:
                raise block.fails(f"exits with {done.returncode}:\n{done.stdout}\n")
        else:
            _parse(block)


def _replayed(block: Block, reader: Reader) -> str:
    shown = ""
    for command in commands(block):
        done = _in_shell(block, reader, "bash", "-c", command)
        if done.returncode and not done.stdout:
            raise block.fails(f"exits with {done.returncode} at `{command}`")
        shown += f"$ {command}\n{done.stdout}"
    return shown


def _in_shell(block: Block, reader: Reader, *command: str) -> subprocess.CompletedProcess[str]:
    try:
        return reader.shell(*command)
    except subprocess.TimeoutExpired:
        raise block.fails(f"takes more than {TIMEOUT_S} s") from None


def commands(block: Block) -> list[str]:
    """The commands of a ``console`` block; a line that ends in a backslash goes on in the next."""
    found = re.findall(r"^\$ ((?:.*\\\n)*.*)$", block.code, re.MULTILINE)
    if not found or not block.code.startswith("$ "):
        raise block.fails("has no line with `$ ` and a command")
    return [str(command) for command in found]


def _run_cell(block: Block, reader: Reader) -> None:
    outcome = reader.cell(block.code)
    if outcome.status != "ok":
        told = outcome.traceback if outcome.errors else outcome.stderr  # magics refuse there
        raise block.fails(f"raises:\n{told}\n")
    for message in outcome.messages:
        shown = message["content"].get("data", {}).get("text/plain", "")
        if shown.startswith("Empty DataFrame") and "empty" not in block.code.lower():
            raise block.fails(f"shows an empty table:\n{plain(shown)}\n")


def _parse(block: Block) -> None:
    try:
        PARSERS[block.language](block.code)
    except (ValueError, yaml.YAMLError) as error:
        raise block.fails(f"is no {block.language}: {error}") from None
