"""A row of `READERS` or `WRITERS` is all that a format needs: everything else comes from these."""

from __future__ import annotations

import importlib
import re
import sys
from pathlib import Path
from typing import IO

import pytest

import gpuprof_widgets
from gpuprof_widgets.cli import GPUPROF
from gpuprof_widgets.commands.files import FORMATS
from gpuprof_widgets.exceptions import OptionError
from gpuprof_widgets.exports import WRITERS, Writer
from gpuprof_widgets.profiles import Profile
from gpuprof_widgets.trace.model import Record
from gpuprof_widgets.trace.readers import READERS
from scripts import make_docs
from tests.command_lines import gpuprof, small_trace

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs" / "formats.md").read_text(encoding="utf-8")
GUIDE = (ROOT / "docs" / "command_line.md").read_text(encoding="utf-8")
Capsys = pytest.CaptureFixture[str]


IN_WORDS = {
    "gpuprof": "saved",
    "sqlite": "nvprof",
    "cprofile": "cProfile",
    "memory_snapshot": "CUDA memory snapshot",
    "megengine_graph": "MegEngine",
    "chrome": "Chrome trace",
}
"""What a text for people calls each kind of file that can be read."""


def test_who_tells_what_can_be_read_tells_all() -> None:
    """They are no tables, and the help of all commands is to load no reader."""
    for text in (str(GPUPROF.help), GUIDE.partition("## ")[0]):
        words = " ".join(text.split())
        assert [name for name in READERS if IN_WORDS[name] not in words] == []


def test_who_tells_what_can_be_written_tells_all() -> None:
    section = GUIDE.partition("## `gpuprof convert`")[2].partition("\n## ")[0]
    for text in (str(Profile.export.__doc__), section):
        missing = [row.endings[0] for row in WRITERS.values() if f"`{row.endings[0]}`" not in text]
        assert missing == []


def test_the_options_for_tables_are_told() -> None:
    assert [name for name in FORMATS if f"`--{name}`" not in PAGE] == []


# Another format to read


def test_a_reader_is_in_the_table_of_the_page(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(READERS, "toy", READERS["cprofile"])
    assert make_docs.readers().count(f"| {READERS['cprofile'].name} |") == 2


# Another format to write


def write_toy(record: Record, part: str, file: IO[bytes]) -> str | None:
    file.write(part.encode())
    return f"{len(record.trace)} slices"


TOY = Writer("a toy trace", (".toy", ".toy.json"), write_toy, "toys", lambda: ("a", "b"), "a or b")


@pytest.fixture
def toy_writer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(WRITERS, "toy", TOY)


@pytest.mark.usefixtures("toy_writer")
@pytest.mark.parametrize("ending", TOY.endings)
def test_a_profile_is_exported_by_the_longest_ending(ending: str, tmp_path: Path) -> None:
    profile = gpuprof_widgets.load(small_trace(tmp_path))
    with pytest.warns(UserWarning, match="13 slices"):
        path = profile.export(tmp_path / f"run{ending}")
    assert path.read_bytes() == b"a"
    with pytest.raises(OptionError, match=r"no 'c' to write\. There are: a, b"):
        profile.export(path, what="c")
    with pytest.raises(
        OptionError,
        match=r"the end of the name chooses the format; end it in one of .*, \.toy, \.toy\.json",
    ):
        profile.export(tmp_path / "run.play")


@pytest.mark.usefixtures("toy_writer")
def test_a_trace_is_converted_and_the_help_says_so(
    tmp_path: Path, capsys: Capsys, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = "gpuprof_widgets.commands.reports"
    monkeypatch.delitem(sys.modules, name, raising=False)  # the help is made on import
    monkeypatch.setattr(name, importlib.import_module(name))
    called = gpuprof(capsys, "convert", small_trace(tmp_path), tmp_path / "run.toy", "--what", "b")
    assert (called.code, (tmp_path / "run.toy").read_bytes()) == (0, b"b")
    words = gpuprof(capsys, "convert", "--help").out
    assert re.search(r"\.toy \.toy\.json +a toy trace\n", words)
    assert "for .toy: a or b" in " ".join(words.split())


@pytest.mark.usefixtures("toy_writer")
def test_a_writer_is_in_the_table_of_the_page() -> None:
    assert "\n| `.toy`, `.toy.json` | a toy trace | a or b | toys |" in make_docs.writers()
