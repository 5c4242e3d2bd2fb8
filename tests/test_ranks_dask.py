"""Ranks read and reduced by the workers of a Dask cluster: the same as here, and clear errors."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

import gpuprof_widgets
from gpuprof_widgets.exceptions import OptionError
from tests.job import STARTS, in_lockstep, saved

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[1]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    saved(tmp_path, in_lockstep(STARTS))
    return tmp_path


def test_two_workers_give_what_one_process_gives(folder: Path) -> None:
    """In a process of its own: a cluster's workers are started anew from the process they serve."""
    pytest.importorskip("distributed")
    command = [sys.executable, "-W", "ignore", "-m", "tests.dask_ranks", str(folder)]
    done = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, timeout=300, check=False
    )
    assert (done.returncode, done.stdout) == (0, "equal\n"), done.stderr


def test_an_address_where_nobody_is_says_what_to_give(folder: Path) -> None:
    pytest.importorskip("distributed")
    with pytest.raises(OptionError, match="address of a scheduler"):
        gpuprof_widgets.ranks(folder, cluster="nonsense://nowhere")


def test_without_dask_it_says_how_to_get_it(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "distributed", None)
    with pytest.raises(OptionError, match=re.escape("gpuprof-widgets[dask]")):
        gpuprof_widgets.ranks(folder, cluster="tcp://127.0.0.1:8786")
