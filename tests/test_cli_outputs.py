"""No command writes over what it reads, by whatever name, nor over a file that is read-only."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

import click
import pytest

from gpuprof_widgets.cli import GPUPROF
from gpuprof_widgets.commands.files import OutputFile, Writing
from tests.command_lines import gpuprof, gpuprof_process, small_trace

pytestmark = pytest.mark.slow

Capsys = pytest.CaptureFixture[str]

WORDS: dict[str, Callable[[Path, Path], tuple[object, ...]]] = {
    "view": lambda trace, target: ("view", trace, "-o", target),
    "convert": lambda trace, target: ("convert", trace, target),
    "diff after": lambda trace, target: ("diff", _copy(trace), trace, "-o", target),
    "ranks folder": lambda trace, target: ("ranks", trace.parent, "-o", target),
    "ranks glob": lambda trace, target: ("ranks", trace.parent / "*.gpuprof", "-o", target),
    "--csv": lambda trace, target: ("kernels", trace, "--csv", target),
    "--json": lambda trace, target: ("kernels", trace, "--csv", "-", "--json", target),
    "run": lambda trace, target: ("run", "-q", "-o", target, trace),
    "run, page": lambda trace, target: ("run", "-q", "-o", target, trace),
}  # fmt: skip
"""Ways to name a file to be written, for a trace and that file."""

NAMES: dict[str, Callable[[Path], Path]] = {
    "same": lambda trace: trace,
    "other spelling": lambda trace: trace.parent / ".." / trace.parent.name / trace.name,
    "symlink": lambda trace: _linked(trace, Path.symlink_to),
    "hard link": lambda trace: _linked(trace, Path.hardlink_to),
}


def _copy(trace: Path) -> Path:
    return Path(shutil.copy(trace, trace.parent / "copy.gpuprof"))


def _linked(trace: Path, link: Callable[[Path, Path], None]) -> Path:
    name = trace.parent.parent / f"link{trace.suffix}"
    link(name, trace)
    return name


@pytest.fixture(autouse=True)
def path_of_imports(monkeypatch: pytest.MonkeyPatch) -> None:
    """`run` makes a script's folder the first of it."""
    monkeypatch.setattr(sys, "path", [*sys.path])


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    (tmp_path / "traces").mkdir()
    return small_trace(tmp_path / "traces")


def input_of(words: str, trace: Path) -> Path:
    """A trace, or a script that would say so if it ran."""
    if not words.startswith("run"):
        return trace
    script = trace.with_name("script.html" if "page" in words else "script.py")
    script.write_text("raise SystemExit('it ran')\n")
    return script


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("words", WORDS)
def test_an_input_is_never_overwritten(words: str, name: str, trace: Path, capsys: Capsys) -> None:
    source = input_of(words, trace)
    before = source.read_bytes()
    target = NAMES[name](source)
    called = gpuprof(capsys, *WORDS[words](source, target))
    assert (called.code, called.out) == (1, "")
    assert (
        called.err == f"gpuprof: {target}: this is the input, and is not overwritten; "
        "name another\n"
    )
    assert source.read_bytes() == before
    assert target.samefile(source)


def test_a_module_that_is_run_is_not_overwritten(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capsys
) -> None:
    module = tmp_path / "is_kept.py"
    module.write_text("raise SystemExit('it ran')\n")
    monkeypatch.chdir(tmp_path)
    called = gpuprof(capsys, "run", "-q", "-o", module, "-m", "is_kept")
    assert (called.code, "is not overwritten" in called.err) == (1, True)
    assert module.read_text() == "raise SystemExit('it ran')\n"


def test_standard_input_from_a_file_is_not_overwritten(trace: Path) -> None:
    before = trace.read_bytes()
    with trace.open("rb") as file:
        called = gpuprof_process("view", "-", "-o", trace, stdin=file)
    assert (called.returncode, "is not overwritten" in called.stderr) == (1, True)
    assert trace.read_bytes() == before


@pytest.mark.parametrize("words", WORDS)
def test_a_read_only_file_is_not_overwritten(words: str, trace: Path, capsys: Capsys) -> None:
    """Not by root either, whom the system lets write everywhere."""
    kept = trace.parent.parent / "kept.html"
    kept.write_text("kept")
    kept.chmod(0o444)
    called = gpuprof(capsys, *WORDS[words](input_of(words, trace), kept))
    assert called.code == 1
    assert (kept.read_text(), kept.stat().st_mode & 0o777) == ("kept", 0o444)


def test_what_is_no_regular_file_is_not_replaced(trace: Path, capsys: Capsys) -> None:
    pipe = trace.parent / "pipe"
    os.mkfifo(pipe)
    called = gpuprof(capsys, "kernels", trace, "--csv", pipe)
    assert (called.code, "not a regular file" in called.err) == (1, True)
    assert pipe.is_fifo()


def test_a_result_of_before_is_overwritten(trace: Path, capsys: Capsys) -> None:
    """Beside the inputs as well: only what was read stays."""
    page = trace.parent / "page.html"
    page.write_text("of before")
    for words in (("view", trace), ("ranks", trace.parent)):
        assert gpuprof(capsys, *words, "-o", page).code == 0
        assert page.read_text().startswith("<!doctype html>")
        page.write_text("of before")


def test_every_command_that_writes_looks_at_its_files() -> None:
    """Whatever is written by an option or an argument of these names."""
    context = click.Context(GPUPROF)
    written = {"output", "csv", "json", "parquet", "target"}
    for name in GPUPROF.list_commands(context):
        command = GPUPROF.get_command(context, name)
        assert command is not None
        outputs = [each for each in command.params if each.name in written]
        if outputs and name != "run":  # its script is found first; it is tested above
            assert isinstance(command, Writing), name
            assert all(isinstance(each.type, OutputFile) for each in outputs), name
