"""`gpuprof`: its commands, its exit codes, and how its errors look."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import pytest
from click.testing import CliRunner

import gpuprof_widgets
from gpuprof_widgets.analyses import ANALYSES
from gpuprof_widgets.cli import COMMANDS, GPUPROF, SIGPIPE_STATUS
from gpuprof_widgets.trace.scanned_events import is_compiled
from tests.command_lines import gpuprof, gpuprof_process, small_trace

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def trace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return small_trace(tmp_path_factory.mktemp("traces"))


def test_help_lists_every_command(capsys: pytest.CaptureFixture[str]) -> None:
    called = gpuprof(capsys, "--help")
    assert called.code == 0
    shown = " ".join(called.out.split())
    for name, (_, line) in COMMANDS.items():
        assert f"{name} {line}" in shown
    for one in ANALYSES.values():
        assert one.name in COMMANDS or one.question in shown


def test_every_command_helps_with_an_example(capsys: pytest.CaptureFixture[str]) -> None:
    context = GPUPROF.make_context("gpuprof", ["--help"], resilient_parsing=True)
    for name in GPUPROF.list_commands(context):
        called = gpuprof(capsys, name, "--help")
        assert called.code == 0
        assert f"gpuprof {name}" in called.out.partition("Example")[2], name


@pytest.mark.parametrize(
    "words",
    [
        ["kernelspecs"],
        ["kernelspec"],
        ["kernelspec", "--nsy"],
        ["kernels"],
        ["kernels", "trace.json", "--top", "0"],
        ["kernels", "trace.json", "--window", "3:2"],
        ["analyze", "trace.json", "--aggregate", "max"],
        ["ranks", "folder", "--csv", "-"],
        ["run"],
    ],
)
def test_a_wrong_call_says_how_it_is_called(
    words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    called = gpuprof(capsys, *words)
    assert called.code == 2
    assert called.out == ""
    assert "Usage: gpuprof" in called.err


def test_without_a_command_it_shows_its_help(capsys: pytest.CaptureFixture[str]) -> None:
    called = gpuprof(capsys)
    is_error = version("click") >= "8.2"
    assert called.code == (2 if is_error else 0)
    assert "Commands:" in called.out + called.err


def test_a_misspelt_command_is_told_the_right_one(capsys: pytest.CaptureFixture[str]) -> None:
    called = gpuprof(capsys, "kernel", "trace.json")
    assert called.code == 2
    assert "No such command 'kernel'. Did you mean 'kernels'?" in called.err


def test_an_error_is_one_line_and_the_exit_code(capsys: pytest.CaptureFixture[str]) -> None:
    called = gpuprof(capsys, "kernelspec", "--nsys", "/nowhere/nsys")
    assert (called.code, called.out) == (1, "")
    assert called.err.startswith("gpuprof: /nowhere/nsys is not found: install Nsight Systems")
    assert called.err.count("\n") == 1


@pytest.mark.parametrize("command", ["ops", "view", "findings", "convert", "analyze", "diff"])
def test_a_file_that_is_no_trace_is_an_error_with_its_name(
    command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "notes.txt"
    file.write_text("\x1b[31mnothing")
    more = {"convert": [tmp_path / "b.json"], "diff": [file]}.get(command, [])
    called = gpuprof(capsys, command, file, *more)
    assert (called.code, called.out) == (1, "")
    assert called.err.startswith(f"gpuprof: {file}: not a kind of file that can be read")
    assert called.err.count("\n") == 1
    assert "\x1b" not in called.err


def test_it_runs_as_a_module_and_as_a_program() -> None:
    program = Path(sys.executable).with_name("gpuprof")
    for command in ([sys.executable, "-m", "gpuprof_widgets"], [str(program)]):
        done = subprocess.run([*command, "--version"], capture_output=True, text=True, check=True)
        version, reader = done.stdout.splitlines()
        assert version == f"gpuprof {gpuprof_widgets.__version__}"
        assert reader.startswith("Chrome traces are read by ")
        assert reader.endswith("by the compiled scanner") == is_compiled()


def test_help_loads_no_torch() -> None:
    code = (
        "import sys\nfrom gpuprof_widgets.cli import main\n"
        "main(['--help'])\n"
        "main(['view', '--help'])\n"
        "heavy = {'torch', 'bokeh', 'pandas', 'numpy', 'IPython', 'jupyter_client', 'rich'}\n"
        "assert not heavy & sys.modules.keys()"
    )
    subprocess.run([sys.executable, "-c", code], capture_output=True, check=True)


def test_reading_a_trace_loads_neither_torch_nor_bokeh(trace: Path) -> None:
    code = (
        "import sys\nfrom gpuprof_widgets.cli import main\n"
        f"assert main(['kernels', {str(trace)!r}]) == 0\n"
        "assert not {'torch', 'bokeh', 'IPython'} & sys.modules.keys()"
    )
    subprocess.run([sys.executable, "-c", code], capture_output=True, check=True)


@pytest.mark.slow
def test_a_trace_comes_from_standard_input_too(trace: Path) -> None:
    with trace.open("rb") as file:
        piped = gpuprof_process("kernels", "-", stdin=file)
    assert piped.returncode == 0
    assert piped.stdout == gpuprof_process("kernels", trace).stdout
    assert "gemm" in piped.stdout
    empty = gpuprof_process("kernels", "-", stdin=subprocess.DEVNULL)
    assert empty.returncode == 1
    assert empty.stderr == (
        "gpuprof: standard input: the file is empty (0 bytes); record or copy the trace again.\n"
    )


def test_a_reader_that_stops_reading_ends_it_quietly(trace: Path) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    with os.fdopen(writing, "wb") as closed:
        done = gpuprof_process(
            "kernels", trace, "--json", "-", capture_output=False, stdout=closed,
            stderr=subprocess.PIPE,
        )  # fmt: skip
    assert done.returncode == SIGPIPE_STATUS
    assert done.stderr == ""


@pytest.mark.parametrize(
    ("typed", "offered"),
    [("ker", {"kernels", "kernelspec"}), ("op", {"operators", "ops"}), ("fin", {"findings"})],
)
def test_commands_are_completed(typed: str, offered: set[str]) -> None:
    env = {
        "_GPUPROF_COMPLETE": "bash_complete",
        "COMP_WORDS": f"gpuprof {typed}",
        "COMP_CWORD": "1",
    }
    asked = CliRunner().invoke(GPUPROF, prog_name="gpuprof", env=env)
    words = {line.partition(",")[2] for line in asked.output.splitlines()}
    assert words == offered
