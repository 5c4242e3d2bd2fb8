"""`gpuprof kernelspec`: a kernel under a stand-in for nsys, which runs the rest as its child."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from jupyter_client.kernelspec import KernelSpec, KernelSpecManager
from jupyter_client.manager import KernelManager

from gpuprof_widgets.cli import main
from gpuprof_widgets.commands.kernelspec import NAME, nsys_command
from tests.kernels import ROOT, TIMEOUT_S
from tests.nsys import stand_in


@pytest.fixture
def nsys(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A program `nsys` on PATH."""
    program = stand_in(tmp_path / "bin")
    monkeypatch.setenv("PATH", str(program.parent), prepend=":")
    return program


@pytest.fixture
def prefix(tmp_path: Path) -> Path:
    return tmp_path / "environment"


def installed(prefix: Path, name: str = NAME) -> KernelSpec:
    folder = prefix / "share" / "jupyter" / "kernels" / name
    return KernelSpec.from_resource_dir(str(folder))


def test_the_kernel_starts_under_nsys_and_captures_on_request(nsys: Path, prefix: Path) -> None:
    assert main(["kernelspec", "--nsys", "--prefix", str(prefix)]) == 0
    kernel = installed(prefix)
    python = kernel.argv.index(sys.executable)
    assert kernel.argv[:2] == [str(nsys), "profile"]
    assert {"--capture-range=cudaProfilerApi", "--capture-range-end=repeat"} <= set(
        kernel.argv[2:python]
    )
    assert kernel.argv[python:] == [
        *(sys.executable, "-m", "ipykernel_launcher", "-f", "{connection_file}")
    ]
    assert kernel.interrupt_mode == "message"
    assert kernel.language == "python"


def test_nsys_may_be_named_by_its_path(
    nsys: Path, prefix: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", "")
    assert main(["kernelspec", "--nsys", "--prefix", str(prefix)]) == 1
    assert not prefix.exists()
    assert main(["kernelspec", "--nsys", str(nsys), "--prefix", str(prefix)]) == 0
    assert installed(prefix).argv[0] == str(nsys)


@pytest.mark.parametrize(
    ("given", "replaced"),
    [
        ("--trace=cuda,cudnn", "--trace"),
        ("-tcuda", "--trace"),
        ("--capture-range-end=stop", "--capture-range-end"),
        ("--output=/data/%p", "--output"),
        ("--cuda-memory-usage=true", None),
    ],
)
def test_other_options_of_nsys_come_beside_ours_or_in_their_place(
    given: str, replaced: str | None
) -> None:
    plain = nsys_command("nsys", "python")
    command = nsys_command("nsys", "python", [given])
    kept = [word for word in plain if word.partition("=")[0] != replaced]
    assert sorted(command) == sorted([*kept, given])
    assert command.index(given) < command.index("python")


def test_options_of_nsys_come_after_two_dashes(nsys: Path, prefix: Path) -> None:
    words = ["kernelspec", "--nsys", "--prefix", str(prefix), "--", "--sample=cpu", "--stats=true"]
    assert main(words) == 0
    argv = installed(prefix).argv
    assert {"--sample=cpu", "--stats=true"} <= set(argv)
    assert "--sample=none" not in argv


def test_jupyter_removes_it_by_the_command_that_is_printed(
    nsys: Path, prefix: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    main(["kernelspec", "--nsys", "--prefix", str(prefix), "--name", "Mine"])
    *_, last = shown = capsys.readouterr().out.splitlines()
    assert shown[0].endswith(f"in {prefix / 'share' / 'jupyter' / 'kernels' / 'mine'}")
    printed = last.split(": ")[1].split()
    monkeypatch.setenv("JUPYTER_PATH", str(prefix / "share" / "jupyter"))
    subprocess.run([sys.executable, "-m", *printed, "-y"], check=True)
    assert list((prefix / "share" / "jupyter" / "kernels").iterdir()) == []


def test_installing_again_replaces_it(nsys: Path, prefix: Path) -> None:
    for options in (["--", "--stats=true"], []):
        assert main(["kernelspec", "--nsys", "--prefix", str(prefix), *options]) == 0
    assert "--stats=true" not in installed(prefix).argv


def test_for_this_user_it_is_in_jupyters_data_folder(
    nsys: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("JUPYTER_DATA_DIR", str(tmp_path / "data"))
    assert main(["kernelspec", "--nsys", "--user"]) == 0
    assert (tmp_path / "data" / "kernels" / NAME / "kernel.json").is_file()


def test_a_kernel_that_is_not_ours_stays(
    nsys: Path, prefix: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = prefix / "share" / "jupyter" / "kernels" / "python3"
    folder.mkdir(parents=True)
    theirs = json.dumps({"argv": ["python"], "display_name": "theirs", "language": "python"})
    (folder / "kernel.json").write_text(theirs)
    assert main(["kernelspec", "--nsys", "--name", "python3", "--prefix", str(prefix)]) == 1
    assert (folder / "kernel.json").read_text() == theirs
    assert "python3" in capsys.readouterr().err


def test_a_name_that_jupyter_refuses_is_an_error(
    nsys: Path, prefix: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["kernelspec", "--nsys", "--name", "a b", "--prefix", str(prefix)]) == 1
    assert "cannot be installed: Invalid kernel name 'a b'" in capsys.readouterr().err


@pytest.mark.kernel
def test_the_installed_kernel_runs_is_interrupted_and_ends(
    nsys: Path, prefix: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    main(["kernelspec", "--nsys", "--prefix", str(prefix)])
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path / "ipython"))
    folder = str(prefix / "share" / "jupyter" / "kernels")
    specs = KernelSpecManager(kernel_dirs=[folder], ensure_native_kernel=False)
    manager = KernelManager(kernel_name=NAME, kernel_spec_manager=specs)
    manager.start_kernel(cwd=str(tmp_path))
    client = manager.blocking_client()
    try:
        client.start_channels()
        client.wait_for_ready(timeout=TIMEOUT_S)
        printed: list[str] = []

        def watch(message: dict[str, Any]) -> None:
            printed.append(message["content"].get("text", ""))
            if "ready" in printed[-1]:
                manager.interrupt_kernel()

        def execute(code: str) -> Any:
            reply = client.execute_interactive(code, timeout=TIMEOUT_S, output_hook=watch)
            return reply["content"]

        execute("import os; print(os.environ['NSYS_PROFILING_SESSION_ID'])")
        assert "".join(printed) == "71\n"
        interrupted = execute("import time\nprint('ready')\ntime.sleep(600)")
        assert interrupted["ename"] == "KeyboardInterrupt"
        assert not (nsys.parent / "nsys.interrupted").exists()
        assert execute("6 * 7")["status"] == "ok"
    finally:
        client.stop_channels()
        manager.shutdown_kernel()
    called = json.loads((nsys.parent / "nsys.log").read_text())
    assert called[1:] == [
        word.replace("{connection_file}", manager.connection_file)
        for word in installed(prefix).argv[1:]
    ]
