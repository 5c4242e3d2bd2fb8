"""VizTracer's own files, made by VizTracer, read as frames of Python."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from gpuprof_widgets.profiles import Profile
from gpuprof_widgets.trace.model import Record
from gpuprof_widgets.trace.readers import load
from tests.test_every_trace import all_answers

pytestmark = pytest.mark.slow

pytest.importorskip("viztracer")

SCRIPT = """
import threading

def leaf(n):
    return sorted(range(n))

def tree(n):
    return leaf(n) if n == 0 else [tree(n - 1), tree(n - 1)]

tree(3)
side = threading.Thread(target=tree, args=(2,), name="side")
side.start()
side.join()
"""


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("viztracer")
    script, out = folder / "script.py", folder / "result.json"
    script.write_text(SCRIPT)
    command = [sys.executable, "-m", "viztracer", "--quiet", "-o", str(out), str(script)]
    subprocess.run(command, check=True, capture_output=True, timeout=120)
    return out


@pytest.fixture(scope="module")
def record(file: Path) -> Record:
    return load(file)


def test_calls_are_frames_of_python_by_file_and_line(file: Path, record: Record) -> None:
    script = file.with_name("script.py")
    slices = record.trace.slices
    counts = slices["name"].value_counts()
    assert counts[f"{script}(7): tree"] == 2**4 - 1 + 2**3 - 1
    assert counts[f"{script}(4): leaf"] == 2**3 + 2**2
    assert set(slices["category"]) == {"python_function"}
    assert record.metadata["notes"] == []
    assert record.metadata["recorded_by"] == "VizTracer"


def test_calls_nest_as_they_were_made(file: Path, record: Record) -> None:
    slices = record.trace.slices
    leaf = slices[slices["name"] == f"{file.with_name('script.py')}(4): leaf"]
    callers = slices["name"].to_numpy()[leaf["parent"]]
    assert set(callers) == {f"{file.with_name('script.py')}(7): tree"}


def test_a_full_buffer_is_told(file: Path, tmp_path: Path) -> None:
    out = tmp_path / "full.json"
    command = [sys.executable, "-m", "viztracer", "--quiet", "--tracer_entries", "20"]
    command += ["-o", str(out), str(file.with_name("script.py"))]
    subprocess.run(command, check=True, capture_output=True, timeout=120)
    (note,) = load(out).metadata["notes"]
    assert "those before are lost" in note
    assert "--tracer_entries" in note


@pytest.mark.parametrize("told", [{"overflow": "no"}, {}, [], None, "overflow"])
def test_odd_metadata_tells_of_no_full_buffer(told: object, file: Path, tmp_path: Path) -> None:
    changed = json.loads(file.read_text()) | {"viztracer_metadata": told}
    (tmp_path / "odd.json").write_text(json.dumps(changed))
    assert load(tmp_path / "odd.json").metadata["notes"] == []


def test_every_analysis_and_the_page_take_it(record: Record) -> None:
    assert all_answers(record) == {}
    page = Profile(record.trace, record.calls, record.metadata).report()
    assert page.startswith("<!doctype html>")
