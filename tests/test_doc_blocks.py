"""Every code block of README.md and the docs runs for its reader, and prints what the page says."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from tests.reader import ROOT, Page, Reader, pages, run
from tests.readers_world import BEFORE, make_files

PAGES = pages()

NOT_RUN: dict[str, int] = {
    "README.md": 2,
    "docs/command_line.md": 3,
    "docs/contributing.md": 1,
    "docs/guides/one_rank_is_late.md": 1,
    "docs/guides/out_of_memory.md": 1,
    "docs/guides/script_on_slurm.md": 1,
    "docs/install.md": 4,
    "docs/notebook_diffs.md": 3,
    "docs/topics/memory.md": 1,
    "docs/topics/nsight_systems.md": 3,
    "docs/tutorial.md": 1,
}
"""How many blocks of each page nobody runs. One more is one more example that may be wrong."""


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the files that the pages name."""
    folder = tmp_path_factory.mktemp("files")
    make_files(folder)
    return folder


@pytest.mark.kernel
@pytest.mark.slow
@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_block_of_the_page_runs(page: Page, files: Path, tmp_path: Path) -> None:
    """As a reader does who starts with it."""
    reader = Reader(tmp_path, files, page)
    try:
        run(page, reader)
    finally:
        reader.close()


def test_the_blocks_that_are_not_run_are_these() -> None:
    found = Counter(block.page for page in PAGES for block in page.blocks if block.reason)
    assert dict(found) == NOT_RUN


def test_no_page_that_is_gone_has_a_set_up() -> None:
    assert set(BEFORE) <= {page.name for page in PAGES}


def fenced(language: str, code: str, above: str = "") -> str:
    return f"# A page\n\n{above}```{language}\n{code}\n```\n"


RIGHT = "\n".join(
    [
        fenced("sh", "echo 3 > number.txt\ntest -s trace.json.gz"),
        fenced("python", "number = int(open('number.txt').read())\ntrain_step(images, labels);"),
        fenced("python", "%load_ext gpuprof_widgets"),
        fenced("python", "assert number == 3"),
        fenced("console", "$ cat \\\n  number.txt\n3\n$ echo $COLUMNS >&2\n100"),
        fenced("python", "raise SystemError", above="<!-- not run: needs a cluster -->\n"),
        fenced("toml", "[table]\nkey = 1"),
        fenced("text", "# and $ whatever"),
        fenced("{toctree}", ":hidden:"),
        "1. In a list\n\n   ```sh\n   grep 3 number.txt\n   ```\n",
    ]
)


WRONG = {
    "a block that raises": (fenced("python", "1 / 0"), "python block raises:.*ZeroDivisionError"),
    "a magic that is unknown": (fenced("python", "%nothing"), "python block raises"),
    "an empty table": (
        fenced("python", "import gpuprof_widgets\ngpuprof_widgets.load('before.prof').kernels()"),
        "python block shows an empty table:\nEmpty DataFrame",
    ),
    "a command that fails": (fenced("sh", "false\ntrue"), "sh block exits with 1"),
    "an output of yesterday": (
        fenced("console", "$ echo today\nyesterday"),
        r"console block prints something else.*-yesterday\n\+today",
    ),
    "an output that is left out": (fenced("console", "$ echo today"), r"\n\+today"),
    "a command without an output that fails": (fenced("console", "$ false"), "exits with 1 at `f"),
    "an output without a command": (fenced("console", "today"), "no line with `\\$ `"),
    "a broken file": (fenced("toml", "key = "), "toml block is no toml"),
}
IGNORED = {
    "a language that nobody runs": fenced("pycon", ">>> 1"),
    "no language": fenced("", "gpuprof findings"),
    "a language only Sphinx knows": fenced("{code-block} python", "1 / 0"),
    "a block in a list": "1. one\n\n   ```bash\n   ls\n   ```\n",
    "indented code": "# A page\n\n    1 / 0\n",
    "a reason where none is needed": fenced("text", "1", above="<!-- not run: long -->\n"),
}


@pytest.mark.kernel
@pytest.mark.slow
def test_a_page_runs_from_top_to_bottom_and_what_is_wrong_is_named_with_its_line(
    files: Path, tmp_path: Path
) -> None:
    """All pages in one folder and one kernel, which no block that fails ends."""
    reader = Reader(tmp_path, files, Page("page.md", RIGHT))
    try:
        run(Page("page.md", RIGHT), reader)
        for text, message in WRONG.values():
            with pytest.raises(AssertionError, match=rf"(?s)^docs/page.md:3: .*{message}"):
                run(Page("docs/page.md", text), reader)
    finally:
        reader.close()


@pytest.mark.parametrize("kind", IGNORED)
def test_a_block_that_nobody_would_run_fails(kind: str) -> None:
    with pytest.raises(AssertionError, match=r"^page.md:[34]: "):
        assert Page("page.md", IGNORED[kind]).blocks


def test_a_reason_that_is_empty_or_far_away_is_none() -> None:
    for above in ("<!-- not run: -->\n", "<!-- not run: here -->\n\nBut this one:\n\n"):
        (block,) = Page("page.md", fenced("sh", "false", above)).blocks
        assert not block.reason


def test_readme_and_the_pages_of_all_folders_are_found() -> None:
    names = {page.name for page in PAGES}
    assert {"README.md", "docs/command_line.md", "docs/topics/memory.md"} <= names
    assert all((ROOT / name).is_file() for name in names)
