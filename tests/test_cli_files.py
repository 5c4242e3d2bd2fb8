"""`gpuprof view`, `convert` and `findings`: what they write, open and say; notes on bad files."""

from __future__ import annotations

import gzip
import io
import json
import shutil
from pathlib import Path

import pytest

import gpuprof_widgets
from gpuprof_widgets.analyses.findings.places import NO_PLACES
from gpuprof_widgets.commands import files
from gpuprof_widgets.commands.reports import SHOWN
from gpuprof_widgets.profiles import Profile
from gpuprof_widgets.trace.archive import save
from tests.command_lines import gpuprof, small_trace
from tests.job import STARTS, in_lockstep, saved
from tests.traces import cell_line, op, trace_of

pytestmark = pytest.mark.slow

Capsys = pytest.CaptureFixture[str]


@pytest.fixture(scope="module")
def trace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return small_trace(tmp_path_factory.mktemp("traces"))


@pytest.fixture(autouse=True)
def opened(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The addresses that a browser was asked to open."""
    found: list[str] = []
    monkeypatch.setattr("webbrowser.open", found.append)
    return found


def test_view_writes_the_page_and_opens_none(
    trace: Path, tmp_path: Path, capsys: Capsys, opened: list[str]
) -> None:
    page = tmp_path / "a report.html"
    called = gpuprof(capsys, "view", trace, "-o", page)
    assert (called.code, called.out) == (0, f"{page}\n")
    assert "gemm" in page.read_text()
    assert opened == []
    gpuprof(capsys, "view", trace, "-o", page, "--open")
    assert opened == [page.as_uri()]


def test_view_without_a_file_opens_a_temporary_one(
    trace: Path, capsys: Capsys, opened: list[str]
) -> None:
    shown = gpuprof(capsys, "view", trace).out.strip()
    assert opened == [Path(shown).as_uri()]
    assert Path(shown).read_text().startswith("<!doctype html>")
    kept = gpuprof(capsys, "view", trace, "--no-open").out.strip()
    assert Path(kept).exists()
    assert len(opened) == 1
    for page in (shown, kept):  # a browser may read it long after the command
        shutil.rmtree(Path(page).parent)


def test_view_to_standard_output_prints_the_page_alone(
    trace: Path, capsys: Capsys, opened: list[str]
) -> None:
    called = gpuprof(capsys, "view", trace, "-o", "-")
    assert called.out.startswith("<!doctype html>")
    assert opened == []


def test_the_ending_says_the_format(trace: Path, tmp_path: Path, capsys: Capsys) -> None:
    for name in ("b.json", "b.json.gz", "b.html"):
        gpuprof(capsys, "convert", trace, tmp_path / name)
    assert json.loads((tmp_path / "b.json").read_text())["traceEvents"]
    assert json.loads(gzip.decompress((tmp_path / "b.json.gz").read_bytes()))["traceEvents"]
    assert (tmp_path / "b.html").read_text().startswith("<!doctype html>")
    piped = gpuprof(capsys, "convert", trace, "-")
    assert piped.out == (tmp_path / "b.json").read_text()
    unknown = gpuprof(capsys, "convert", trace, tmp_path / "b.xlsx")
    assert unknown.code == 1
    assert ".gpuprof" in unknown.err


def test_findings_are_those_of_the_profile(trace: Path, capsys: Capsys) -> None:
    found = Profile.load(trace).findings()
    every = gpuprof(capsys, "findings", trace, "--all").out
    words = " ".join(every.split())
    for number, one in enumerate(found, 1):
        assert f"{number}. {' '.join(one.text.split())}" in words
        assert " ".join(one.remedy.split()) in words
    first = gpuprof(capsys, "findings", trace).out
    assert every.startswith(first.removesuffix(f"{len(found) - SHOWN} more: --all\n"))


def test_findings_without_lines_say_why_once_and_not_among_them(
    trace: Path, tmp_path: Path, capsys: Capsys
) -> None:
    called = gpuprof(capsys, "findings", trace)
    assert called.err == f"Note: {NO_PLACES}.\n"
    assert "no file and line" not in called.out
    with_lines = tmp_path / "lines.gpuprof"
    save(trace_of(cell_line(1, "x @ y", ts=0, dur=9), op("aten::mm", ts=0, dur=5)), with_lines)
    assert gpuprof(capsys, "findings", with_lines).err == ""


def test_a_limit_is_another_threshold(trace: Path, capsys: Capsys) -> None:
    usual = Profile.load(trace).findings()
    strict = Profile.load(trace).findings(gpu_op_share=1.1, device_idle_share=1.1)
    assert len(strict) < len(usual)
    words = ("--limit", "gpu_op_share=1.1", "--limit", "device_idle_share=1.1", "--all")
    numbered = [
        line for line in gpuprof(capsys, "findings", trace, *words).out.splitlines()
        if line[:1].isdigit()
    ]  # fmt: skip
    assert len(numbered) == len(strict)


@pytest.mark.parametrize(
    ("limit", "told"),
    [
        ("dataloader_shar=0.1", "did you mean dataloader_share?"),
        ("dataloader_share", "--limit takes NAME=VALUE with a number"),
        ("dataloader_share=much", "--limit takes NAME=VALUE with a number"),
    ],
)
def test_a_wrong_limit_is_an_error(limit: str, told: str, trace: Path, capsys: Capsys) -> None:
    called = gpuprof(capsys, "findings", trace, "--limit", limit)
    assert (called.code, called.out) == (1, "")
    assert told in called.err


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_long_work_is_told_on_a_terminal_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "LONG_S", 0)
    shown = {}
    for stream in (Terminal(), io.StringIO()):
        monkeypatch.setattr("sys.stderr", stream)
        with files.progress("reading \x1b[31mtrace"):
            while stream.isatty() and "reading" not in stream.getvalue():
                pass
        shown[stream.isatty()] = stream.getvalue()
    assert "reading \\x1b[31mtrace ..." in shown[True]
    assert shown[False] == ""


CUT_OFF = "Note: the gzip data ends at byte "


@pytest.fixture
def cut(tmp_path: Path) -> Path:
    """A packed trace of which half is there."""
    events = [
        {"ph": "X", "cat": "cpu_op", "name": f"op{n}", "pid": 1, "tid": 1, "ts": n * n, "dur": 1}
        for n in range(200)
    ]
    packed = gzip.compress(json.dumps({"traceEvents": events}).encode())
    path = tmp_path / "cut.json.gz"
    path.write_bytes(packed[: len(packed) // 2])
    return path


@pytest.mark.parametrize(
    "words",
    [
        ("kernels", "IN"),
        ("kernels", "IN", "--window", "0:100", "--csv", "-"),
        ("findings", "IN"),
        ("analyze", "IN"),
        ("view", "IN", "-o", "OUT.html"),
        ("convert", "IN", "-"),
    ],
    ids=" ".join,
)
def test_that_a_file_was_cut_off_is_told_once(
    words: tuple[str, ...], cut: Path, tmp_path: Path, capsys: Capsys
) -> None:
    named = [word.replace("IN", str(cut)).replace("OUT", str(tmp_path / "out")) for word in words]
    called = gpuprof(capsys, *named)
    assert called.code == 0
    assert called.err.count(CUT_OFF) == 1
    assert CUT_OFF not in called.out


def test_it_is_told_where_the_part_that_is_asked_for_is_missing(cut: Path, capsys: Capsys) -> None:
    called = gpuprof(capsys, "ops", cut, "--step", 99)
    assert called.code == 1
    assert CUT_OFF in called.err
    assert "the trace marks no steps" in called.err


def test_of_two_files_the_one_is_named(cut: Path, tmp_path: Path, capsys: Capsys) -> None:
    whole = tmp_path / "whole.gpuprof"
    saved(tmp_path, in_lockstep(STARTS))
    shutil.copy(next(tmp_path.glob("*rank0*")), whole)
    called = gpuprof(capsys, "diff", whole, cut)
    assert f"Note: {cut}: the gzip data ends at byte " in called.err
    assert str(whole) not in called.err


@pytest.mark.parametrize("words", [("-o", "-"), ("--table", "steps", "--csv", "-")])
def test_notes_on_ranks_are_told_where_tables_or_a_page_are_written(
    words: tuple[str, ...], tmp_path: Path, capsys: Capsys
) -> None:
    saved(tmp_path, in_lockstep(STARTS))
    for number, path in enumerate(sorted(tmp_path.iterdir())[:2]):
        profile = gpuprof_widgets.load(path)
        profile.metadata["notes"] = ["of both", f"of rank {number} alone"]
        profile.save(path)
    called = gpuprof(capsys, "ranks", tmp_path, *words)
    first = sorted(path.name for path in tmp_path.iterdir())[0]
    assert called.code == 0
    assert f"Note: {first} and 1 more: of both.\n" in called.err
    assert f"Note: {first}: of rank 0 alone.\n" in called.err


def test_a_note_cannot_steer_the_terminal(tmp_path: Path, capsys: Capsys) -> None:
    saved(tmp_path, in_lockstep(STARTS))
    path = next(tmp_path.iterdir())
    profile = gpuprof_widgets.load(path)
    profile.metadata["notes"] = ["\x1b[2Jgone\u202e"]
    profile.save(path)
    called = gpuprof(capsys, "kernels", path)
    assert "\\x1b[2Jgone\\u202e" in called.err
    assert called.err.replace("\n", "").isprintable()
