"""The table of the critical path, from whose events the timeline outlines it."""

from __future__ import annotations

from gpuprof_widgets.analyses.critical_path import critical_path
from gpuprof_widgets.analyses.what_if import what_if
from gpuprof_widgets.trace.model import Record
from gpuprof_widgets.views.panels.gpu_time import critical_path_panel
from tests.traces import annotation, kernel, op, runtime, trace_of


def run() -> Record:
    """A step in Python, an op, and the kernel for which it ends late."""
    return trace_of(
        annotation("step", ts=0, dur=50),
        op("aten::mm", ts=10, dur=20),
        runtime("cudaLaunchKernel", ts=12, dur=5),
        kernel("gemm", ts=20, dur=60, launched_by=2),
    )


def test_without_gpu_work_there_is_nothing_to_show() -> None:
    record = trace_of(op("aten::mm", ts=0, dur=20))
    assert critical_path_panel(record) is None


def test_the_panel_has_a_row_per_op_and_bound() -> None:
    panel = critical_path_panel(run())
    assert panel is not None
    rows = panel.rows
    assert rows["name"].tolist() == ["aten::mm", "step", "aten::mm", "aten::mm"]
    assert rows["kind"].tolist() == ["compute", "python", "launch delay", "cpu op"]
    assert rows["time_ns"].tolist() == [60, 10, 8, 2]
    assert rows["time_ns"].sum() == run().trace.span_ns
    saved = int(what_if(run(), "aten::mm")["saved_ns"].iloc[0])
    assert rows["saved_ns"].tolist()[0] == saved


def test_what_an_op_would_save_stands_once_on_its_longest_row() -> None:
    """It is of its kernel, its launch and its own time together: nobody should add them up."""
    panel = critical_path_panel(run())
    assert panel is not None
    of_op = panel.rows[panel.rows["name"] == "aten::mm"]
    assert of_op["saved_ns"].isna().tolist() == [False, True, True]
    assert of_op["time_ns"].tolist() == sorted(of_op["time_ns"], reverse=True)


def test_the_op_that_saves_most_comes_first() -> None:
    """As in the finding on the path, though something else has more time on it."""
    record = trace_of(
        annotation("step", ts=0, dur=1000),
        op("aten::mm", ts=100, dur=200),
        runtime("cudaLaunchKernel", ts=101, dur=2),
        kernel("gemm", ts=110, dur=10, launched_by=2),
    )
    panel = critical_path_panel(record)
    assert panel is not None
    assert panel.events is not None
    assert panel.sort == "saved_ns"
    first, second = panel.rows.iloc[0], panel.rows.iloc[1]
    assert (first["name"], first["saved_ns"], first["time_ns"]) == ("aten::mm", 200, 198)
    assert (second["name"], second["time_ns"]) == ("step", 800)
    events = panel.events
    time = (events["end_ns"] - events["start_ns"]).groupby(events["group"]).sum()
    assert time.tolist() == panel.rows["time_ns"].tolist()


def test_the_panel_s_events_are_the_pieces_of_its_rows() -> None:
    panel = critical_path_panel(run())
    assert panel is not None
    assert panel.events is not None
    events = panel.events
    time = (events["end_ns"] - events["start_ns"]).groupby(events["group"]).sum()
    assert time.tolist() == panel.rows["time_ns"].tolist()
    path = critical_path(run())
    columns = ["start_ns", "end_ns", "row", "track"]
    assert events[columns].to_numpy().tolist() == path[columns].to_numpy().tolist()
    assert {column.key for column in panel.columns} <= set(panel.rows.columns)
