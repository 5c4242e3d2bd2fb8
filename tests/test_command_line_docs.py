"""The examples of docs/command_line.md can be typed as they stand."""

from __future__ import annotations

import runpy
import shlex
import shutil
from pathlib import Path

import pytest

from gpuprof_widgets.options import OPTIONS
from tests.command_lines import gpuprof
from tests.traces import Shared

ROOT = Path(__file__).parents[1]
SCRIPT = runpy.run_path(str(ROOT / "scripts" / "make_command_line.py"))
PAGE = (ROOT / "docs" / "command_line.md").read_text(encoding="utf-8")
BLOCKS = SCRIPT["commands"](PAGE)
OURS = [block for block in BLOCKS if any("two_steps.zip" in command for command in block)]
OTHERS = [block for block in BLOCKS if block not in OURS]


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shutil.copy(ROOT / "notebooks" / "data" / "two_steps.zip", tmp_path)
    monkeypatch.chdir(tmp_path)


def assert_runs(block: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    for command in block:
        program, *words = shlex.split(command)
        assert program == "gpuprof"
        called = gpuprof(capsys, *words)
        assert (called.code, called.err) == (0, ""), command


@pytest.mark.parametrize("block", OURS, ids=" ".join)
def test_an_example_on_our_own_profile_runs(
    block: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert_runs(block, capsys)


@pytest.mark.parametrize("block", OTHERS, ids=" ".join)
def test_an_example_on_a_real_trace_runs(
    block: list[str], capsys: pytest.CaptureFixture[str], shared: Shared
) -> None:
    Path("trace.json.gz").symlink_to(shared("hta/critical_path_alexnet_a100.json.gz"))
    Path("ranks").symlink_to(shared("megatron-tp8"))
    assert_runs(block, capsys)


def test_the_options_in_the_examples_of_run_exist() -> None:
    flags = {flag for option in OPTIONS.values() for flag in option.flags} | {"-m", "-o"}
    lines = [line for line in PAGE.splitlines() if line.startswith("gpuprof run ")]
    assert lines
    for line in lines:
        before_script = line.split("train")[0].split()
        assert {word for word in before_script if word.startswith("-")} <= flags
