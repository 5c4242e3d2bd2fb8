"""`gpuprof`: its commands, and how their errors look."""

from __future__ import annotations

import subprocess
import sys

import pytest

import gpuprof_widgets
from gpuprof_widgets.cli import COMMANDS, main


def test_help_lists_every_command(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["--help"])
    assert ended.value.code == 0
    shown = capsys.readouterr().out
    for command in COMMANDS:
        assert command.name in shown
        assert command.help in " ".join(shown.split())


@pytest.mark.parametrize("words", [[], ["kernelspecs"], ["kernelspec"], ["kernelspec", "--nsy"]])
def test_a_wrong_call_says_how_it_is_called(
    words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(words)
    assert ended.value.code == 2
    assert "usage: gpuprof" in capsys.readouterr().err


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
        "try: main(['--help'])\nexcept SystemExit: pass\n"
        "assert not {'torch', 'bokeh', 'IPython', 'jupyter_client'} & sys.modules.keys()"
    )
    subprocess.run([sys.executable, "-c", code], capture_output=True, check=True)
