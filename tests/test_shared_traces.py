"""The real traces beside the checkout: one way to them, which skips where they are absent."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.traces import Shared

ROOT = Path(__file__).parents[1]
DOOR = ROOT / "tests" / "conftest.py"
SEARCHED = ("tests", "scripts", "benchmarks", "docs", "notebooks", "gpuprof_widgets", ".ci")
TEXT = {".py", ".sh", ".md", ".ipynb", ".toml", ".yml", ".yaml", ".ts", ".js", ".json", ".txt", ""}

FOLDER = re.compile(
    r"""\bshared\b["')\s]*[/,]\s*["']?traces\b  # as a path, or part by part
    | \.\./shared\b | (?:/\s*|joinpath\()["']shared["']  # from here, or joined to another path
    | \bconftest\ import\b.*\b_SHARED\b       # by its name in the one file
    """,
    re.VERBOSE,
)
PARENTS = re.compile(r"__file__\)(?:\.resolve\(\))?\.parents\[(\d+)\]")


def test_a_test_that_asks_for_an_absent_trace_skips_and_names_it(shared: Shared) -> None:
    with pytest.raises(pytest.skip.Exception, match=r"no such/trace\.json\.gz"):
        shared("no such/trace.json.gz")


def test_no_other_file_names_their_folder() -> None:
    assert [path for path in searched() if names_the_folder(path.read_text(encoding="utf-8"))] == []


def test_no_file_looks_at_what_lies_beside_the_checkout() -> None:
    levels = {
        path: max(map(int, PARENTS.findall(path.read_text(encoding="utf-8"))), default=0)
        for path in searched()
    }
    depth = {path: len(path.relative_to(ROOT).parents) - 1 for path in levels}
    assert [path for path in levels if levels[path] > depth[path]] == []


@pytest.mark.parametrize(
    "code",
    [
        'ROOT.parent / "{}" / "traces"',
        "load('../{}/traces/hta/triton_a100.json.gz')",
        "load('{}/traces/hta/triton_a100.json.gz')",
        'os.path.join(ROOT, "..", "{}", "traces")',
        'Path("..") / "{}"',
        'beside.joinpath("{}")',
        "from conftest import _{}",
    ],
)
def test_every_way_to_name_it_is_seen(code: str) -> None:
    word = "shared" if "import" not in code else "SHARED"
    assert names_the_folder(code.format(word))


@pytest.mark.parametrize("code", ['{"shared": {"frames": []}}', 'module("shared")', "shared, or"])
def test_the_word_alone_is_not_the_folder(code: str) -> None:
    assert not names_the_folder(code)


def names_the_folder(text: str) -> bool:
    """Whether a file with this text gets at the folder by itself."""
    return FOLDER.search(text) is not None


def searched() -> Iterator[Path]:
    """Every file of ours that is text, but for the one that may name the folder."""
    files = [path for folder in SEARCHED for path in (ROOT / folder).rglob("*")]
    ours = [path for path in (*files, *ROOT.iterdir()) if path.is_file() and path.suffix in TEXT]
    return (path for path in ours if path != DOOR and "node_modules" not in path.parts)
