"""A notebook whose profiled cell raises fails everywhere, and no later cell runs.

Other errors are in the tests of cells: all three commands go by the kernel's reply alone.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import nbformat
import pytest
from nbformat.v4 import new_code_cell, new_notebook

pytestmark = pytest.mark.kernel

ROOT = Path(__file__).parents[1]
NOTEBOOK = "work.ipynb"
COMMANDS = {
    "jupyter execute": ["-m", "jupyter", "execute", NOTEBOOK],
    "papermill": ["-m", "papermill", NOTEBOOK, "out.ipynb", "--no-progress-bar"],
    "nbmake": ["-m", "pytest", "-q", "-p", "no:cacheprovider", "--nbmake", NOTEBOOK],
}


def execute(command: str, directory: Path, *cells: str) -> subprocess.CompletedProcess[str]:
    """Write a notebook of these cells and run it with one of the commands."""
    notebook = new_notebook(
        cells=[new_code_cell(source) for source in cells],
        metadata={
            "kernelspec": {"name": "python3", "display_name": "Python", "language": "python"}
        },
    )
    nbformat.write(notebook, directory / NOTEBOOK)
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "IPYTHONDIR": str(directory / "ipython")}
    return subprocess.run(
        [sys.executable, *COMMANDS[command]],
        cwd=directory,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )


LOAD = "%load_ext gpuprof_widgets"
RAISES = "%%gpuprofile\nimport torch\ntorch.ones(3)\nraise ValueError('no')"
LATER = "open('later', 'w').close()"


@pytest.mark.parametrize("command", COMMANDS)
def test_a_raise_in_a_profiled_cell_fails_the_run(command: str, tmp_path: Path) -> None:
    """The profiled cell before it does not, and is followed by the next."""
    before = "%%gpuprofile\nimport torch\ntorch.ones(3)\nopen('before', 'w').close()"
    done = execute(command, tmp_path, LOAD, before, RAISES, LATER)
    assert done.returncode != 0, done.stdout + done.stderr
    assert (tmp_path / "before").exists(), done.stdout + done.stderr
    assert not (tmp_path / "later").exists()


def test_a_notebook_without_error_runs_to_its_end(tmp_path: Path) -> None:
    done = execute("jupyter execute", tmp_path, LOAD, "%%gpuprofile\n1", LATER)
    assert done.returncode == 0, done.stdout + done.stderr
    assert (tmp_path / "later").exists()
