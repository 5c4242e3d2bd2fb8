"""`gpuprof`: its commands, and how their errors look."""

from __future__ import annotations

import subprocess
import sys

import pytest

import gpuprof_widgets
from gpuprof_widgets.analyses.catalogue import ANALYSES
from gpuprof_widgets.cli import COMMANDS, main
from gpuprof_widgets.commands.group import analysis_questions


def test_help_lists_every_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--help"]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    for row in COMMANDS:
        assert f"{row.name} {row.help}" in shown
    for one in ANALYSES:
        assert one.name in shown
        assert one.question in shown


def test_the_commands_are_called_as_their_modules() -> None:
    for row in COMMANDS:
        assert row.load().name == row.name
        assert "Example" in (row.load().epilog or "")


def test_the_analyses_are_known_without_loading_them() -> None:
    assert dict(analysis_questions()) == {one.name: one.question for one in ANALYSES}


@pytest.mark.parametrize("words", [["kernelspecs"], ["kernelspec"], ["kernelspec", "--nsy"]])
def test_a_wrong_call_says_how_it_is_called(
    words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(words) == 2
    assert "Usage: gpuprof" in capsys.readouterr().err


def test_a_misspelt_command_is_told_the_right_one(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["kernel", "trace.json"]) == 2
    assert "No such command 'kernel'. Did you mean 'kernels'?" in capsys.readouterr().err


def test_an_error_is_one_line_and_the_exit_code(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["kernelspec", "--nsys", "/nowhere/nsys"]) == 1
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.startswith("gpuprof: /nowhere/nsys is not found: install Nsight Systems")
    assert printed.err.count("\n") == 1


def test_it_runs_as_a_module() -> None:
    command = [sys.executable, "-m", "gpuprof_widgets", "--version"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout == f"gpuprof {gpuprof_widgets.__version__}\n"


def test_help_loads_no_torch() -> None:
    code = (
        "import sys\nfrom gpuprof_widgets.cli import main\n"
        "main(['--help'])\n"
        "heavy = {'torch', 'bokeh', 'pandas', 'numpy', 'IPython', 'jupyter_client', 'rich'}\n"
        "assert not heavy & sys.modules.keys()"
    )
    subprocess.run([sys.executable, "-c", code], capture_output=True, check=True)
