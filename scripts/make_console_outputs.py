"""Write the outputs of ``console`` blocks anew, in README.md and the docs or in the named pages.

    python -m scripts.make_console_outputs [docs/command_line.md ...]

Each page's blocks are run from top to bottom, as tests/test_doc_blocks.py runs them.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from tests.reader import ROOT, Page, Reader, outputs, pages
from tests.readers_world import make_files


def with_outputs(page: Page, files: Path, directory: Path) -> str:
    """Return the page's text with what its commands print today."""
    lines = page.text.splitlines(keepends=True)
    reader = Reader(directory, files, page)
    try:
        shown = list(outputs(page, reader))
    finally:
        reader.close()
    for block, output in reversed(shown):  # from the end on: the numbers of lines above hold
        fence = lines[block.line - 1]
        indent = fence[: len(fence) - len(fence.lstrip())]
        new = [indent + line if line.strip() else line for line in output.splitlines(keepends=True)]
        lines[block.line : block.last_line - 1] = new
    return "".join(lines)


def main(names: list[str]) -> None:
    """Write the pages that show a ``console`` block."""
    with tempfile.TemporaryDirectory() as folder:
        files = Path(folder) / "files"
        files.mkdir()
        make_files(files)
        for number, page in enumerate(pages()):
            chosen = page.name in names if names else "```console" in page.text
            if chosen:
                directory = Path(folder) / f"page{number}"
                directory.mkdir()
                (ROOT / page.name).write_text(with_outputs(page, files, directory), "utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
