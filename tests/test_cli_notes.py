"""What could not be read of a trace is told on stderr, whatever is asked of it."""

from __future__ import annotations

import gzip
import json
import shutil
from pathlib import Path

import pytest

import gpuprof_widgets
from tests.command_lines import gpuprof
from tests.job import STARTS, in_lockstep, saved

Capsys = pytest.CaptureFixture[str]

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
        ("ops", "IN", "--csv", "-"),
        ("kernels", "IN", "--window", "0:100"),
        ("findings", "IN"),
        ("analyze", "IN"),
        ("view", "IN", "-o", "OUT.html"),
        ("convert", "IN", "OUT.json"),
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
