"""What a trace lacks is said by its tables, and in a warning by the methods of a profile."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from gpuprof_widgets.analyses import ANALYSES, reasons
from gpuprof_widgets.analyses.attribution import attribution
from gpuprof_widgets.analyses.reasons import (
    SNAPSHOT,
    empty_table,
    recorder_of,
    warned,
    why_empty,
)
from gpuprof_widgets.profiles import Profile
from gpuprof_widgets.views.page import VIEWS, has_view
from tests.snapshots import dumped, snapshot, training
from tests.traces import kernel, op, python, trace_of

SENTENCES = {
    "memory": reasons.MEMORY,
    "roofline": reasons.SHAPES,
    "python_time": reasons.CALLS,
    "waits": reasons.WAITS,
}


@pytest.mark.parametrize("name", SENTENCES)
def test_a_table_says_what_the_trace_lacks_and_a_method_warns_of_it(name: str) -> None:
    profile = Profile(trace_of(op("matmul", ts=0, dur=9)).trace)
    with pytest.warns(UserWarning, match="^(the|no) ") as noted:
        table = getattr(profile, name)()
    assert table.attrs["lacks"] == str(noted[0].message) == SENTENCES[name]
    assert (len(table), len(noted), noted[0].filename) == (0, 1, __file__)


def test_what_a_file_wrote_does_not_reach_the_terminal() -> None:
    with pytest.warns(UserWarning, match=r"called \\x1b\[31m"):
        warned(empty_table(["name"], "no op is called \x1b[31m"))


@pytest.mark.parametrize(
    ("level", "lacks"),
    [
        ("line", "the trace has no cell lines"),
        ("module", "the trace has no modules"),
        ("python", "the trace has no Python frames"),
    ],
)
def test_that_nothing_has_an_owner_is_said(level: str, lacks: str) -> None:
    table = attribution(trace_of(op("matmul", ts=0, dur=9)), level)
    assert table["name"].tolist() == [""]
    assert why_empty(table).startswith(lacks)


def test_of_python_alone_the_analysis_that_has_its_time_is_named() -> None:
    record = trace_of(python("train.py(3): step", ts=0, dur=9))
    table = attribution(record, "python")
    assert table["calls"].tolist() == [1, 0]
    assert "python_time has the functions' own" in why_empty(table)
    beside = trace_of(python("train.py(3): step", ts=0, dur=9), op("aten::mm", ts=1, dur=5))
    assert why_empty(attribution(beside, "python")) == ""


@pytest.mark.parametrize("metadata", [{"recorder": 5}, {"framework": ["x"]}, {"recorded_by": None}])
def test_odd_names_of_recorders_do_no_harm(metadata: dict[str, Any]) -> None:
    record = trace_of(op("matmul", ts=0, dur=9), **metadata)
    assert recorder_of(record) in ("5", "PyTorch")


@pytest.mark.parametrize("name", ["critical_path", "operators", "breakdown", "kernels"])
def test_a_memory_snapshot_has_no_time_and_no_ops(name: str, tmp_path: Path) -> None:
    profile = Profile.load(dumped(snapshot(training()), tmp_path))
    assert why_empty(ANALYSES[name].function(profile)) == SNAPSHOT
    assert why_empty(getattr(profile, name)()) == SNAPSHOT
    assert len(profile.memory()) > 0


def test_the_page_of_a_memory_snapshot_has_views_of_memory_alone(tmp_path: Path) -> None:
    profile = Profile.load(dumped(snapshot(training()), tmp_path))
    shown = [view for view in VIEWS if has_view(profile, view)]
    assert shown == ["timeline", "memory", "analyses"]
    assert has_view(trace_of(op("matmul", ts=0, dur=9)), "flame_graph")


def test_what_a_range_lacks_the_run_may_have() -> None:
    record = trace_of(op("aten::mm", ts=0, dur=9), kernel("gemm", ts=20, dur=9))
    run = Profile(record.trace, record.calls, record.metadata)
    gap = run.window(12_000, 15_000)
    assert why_empty(run.memory()) == reasons.MEMORY
    assert why_empty(gap.memory()) == f"in this range, {reasons.MEMORY}"
    assert why_empty(gap.kernels()).startswith("in this range, the trace has no GPU work")


def test_of_ops_without_a_gpu_the_side_that_has_their_times_is_named() -> None:
    of_ops = why_empty(ANALYSES["analyze"].function(trace_of(op("aten::mm", ts=0, dur=9))))
    assert of_ops.endswith("those of its CPU ops are of the side 'host'")
    assert "host" not in why_empty(ANALYSES["analyze"].function(trace_of()))
