"""`gpuprof view`, `convert` and `findings`: what they write, open and say."""

from __future__ import annotations

import gzip
import io
import json
import pstats
import shutil
from pathlib import Path

import pytest

from gpuprof_widgets.analyses.findings.places import NO_PLACES
from gpuprof_widgets.commands import files
from gpuprof_widgets.commands.reports import SHOWN
from gpuprof_widgets.profiles import Profile
from gpuprof_widgets.trace.archive import save
from tests.command_lines import gpuprof, small_trace
from tests.records import assert_same_record, assert_same_trace
from tests.traces import calls_of, cell_line, op, trace_of

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


@pytest.mark.parametrize("name", ["b.gpuprof", "b.zip", "b.json", "b.json.gz", "B.JSON"])
def test_a_converted_trace_reads_back_equal(
    name: str, trace: Path, tmp_path: Path, capsys: Capsys
) -> None:
    called = gpuprof(capsys, "convert", trace, tmp_path / name)
    assert (called.code, called.out, called.err) == (0, "", "")
    back, before = Profile.load(tmp_path / name), Profile.load(trace)
    assert_same_trace(back.trace, before.trace)
    if not name.lower().endswith(("json", "json.gz")):
        assert_same_record(back, before)


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


def test_python_calls_become_a_file_of_pstats(tmp_path: Path, capsys: Capsys) -> None:
    record = trace_of(op("a", ts=0, dur=9), calls=calls_of((None, "main", 1, 500)))
    save(record, tmp_path / "calls.gpuprof")
    gpuprof(capsys, "convert", tmp_path / "calls.gpuprof", tmp_path / "calls.prof")
    stats = pstats.Stats(str(tmp_path / "calls.prof"), stream=io.StringIO())
    assert [name for *_, name in stats.stats] == ["main"]  # type: ignore[attr-defined]
    save(trace_of(op("a", ts=0, dur=9)), tmp_path / "none.gpuprof")
    none = gpuprof(capsys, "convert", tmp_path / "none.gpuprof", tmp_path / "none.prof")
    assert (none.code, (tmp_path / "none.prof").exists()) == (1, False)


def test_the_input_is_never_overwritten(trace: Path, tmp_path: Path, capsys: Capsys) -> None:
    before = trace.read_bytes()
    link = tmp_path / "link.gpuprof"
    link.symlink_to(trace)
    for target in (trace, link):
        called = gpuprof(capsys, "convert", trace, target)
        assert called.code == 1
        assert "is not overwritten" in called.err
    assert trace.read_bytes() == before


def test_a_part_can_be_converted(trace: Path, tmp_path: Path, capsys: Capsys) -> None:
    gpuprof(capsys, "convert", trace, tmp_path / "part.gpuprof", "--step", 1)
    part = Profile.load(tmp_path / "part.gpuprof").trace
    assert (part.start_ns, part.end_ns) == (10_000, 19_000)


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


def test_short_work_says_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "LONG_S", 3_600)
    monkeypatch.setattr("sys.stderr", terminal := Terminal())
    with files.progress("reading"):
        pass
    assert terminal.getvalue() == ""
