"""Tables that follow no range of time say so."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest

from gpuprof_widgets.analyses import Analysis, plain_analyses
from gpuprof_widgets.analyses.reasons import WHOLE
from gpuprof_widgets.profiles import Profile
from gpuprof_widgets.trace.archive import save
from gpuprof_widgets.trace.model import Calls, Record
from gpuprof_widgets.trace.window import window
from tests.command_lines import gpuprof
from tests.snapshots import dumped, snapshot, training
from tests.traces import annotation, kernel, op, runtime, trace_of

pytestmark = pytest.mark.slow

Capsys = pytest.CaptureFixture[str]

NOTE = "Note: these rows are of the whole run, not of that range: "

FUNCTIONS = pd.DataFrame(
    {"file": ["train.py", "~"], "line": [3, 0], "name": ["step", "<built-in method time.sleep>"]}
).assign(calls=[2, 2], primitive_calls=[2, 2], self_ns=[60, 40], total_ns=[100, 40])
EDGES = pd.DataFrame({"caller": [0], "callee": [1], "calls": [2], "primitive_calls": [2]}).assign(
    self_ns=[40], total_ns=[40]
)

STEPS = {"iterations": [{"step": 0, "kind": "warmup", "dur_ns": 90}]}


def recorded() -> Record:
    """Two steps; cProfile's calls of the process and of a worker."""
    rows = [
        annotation("ProfilerStep#0", ts=0, dur=100),
        op("aten::mm", ts=10, dur=50),
        runtime("cudaLaunchKernel", ts=20, dur=10),
        kernel("gemm", ts=40, dur=50, launched_by=2),
        annotation("ProfilerStep#1", ts=100, dur=100),
        op("aten::add", ts=110, dur=20),
    ]
    calls = Calls(FUNCTIONS, EDGES)
    record = trace_of(*rows, calls=calls, steps=STEPS)
    return replace(record, calls_of_workers={"worker0.pid7": calls})


@pytest.mark.parametrize("one", plain_analyses(), ids=lambda one: one.name)
def test_a_table_that_a_range_leaves_as_it_is_says_why(one: Analysis, tmp_path: Path) -> None:
    snapshotted = Profile.load(dumped(snapshot(training()), tmp_path))
    for record in (recorded(), snapshotted):
        middle = record.trace.start_ns + record.trace.span_ns // 2
        part = window(record, middle, middle + record.trace.span_ns // 8)
        table = one.function(record)
        if len(table) and table.equals(one.function(part)):
            assert table.attrs[WHOLE]


def test_a_range_without_rows_is_no_trace_without_them(tmp_path: Path, capsys: Capsys) -> None:
    path = tmp_path / "run.gpuprof"
    save(recorded(), path)
    assert gpuprof(capsys, "kernels", path, "--window", "95:150").out == (
        "no rows in that range; the whole trace has 1\n"
    )


@pytest.mark.parametrize("part", [("--window", "100:150"), ("--step", "1")], ids=" ".join)
@pytest.mark.parametrize("command", [("python_calls",), ("worker_calls", "0"), ("iterations",)])
def test_a_command_says_that_its_rows_are_not_of_the_range(
    command: tuple[str, ...], part: tuple[str, ...], tmp_path: Path, capsys: Capsys
) -> None:
    path = tmp_path / "run.gpuprof"
    save(recorded(), path)
    name, *more = command
    whole = gpuprof(capsys, name, path, *more, "--csv", "-")
    cut = gpuprof(capsys, name, path, *more, *part, "--csv", "-")
    assert (cut.code, cut.out) == (0, whole.out)
    assert cut.err.startswith(NOTE)
    assert cut.err.count("\n") == 1
    assert whole.err == ""
    assert NOTE not in gpuprof(capsys, "ops", path, *part).err
