"""The critical path as the page gets it: pieces for the timeline, and the table."""

from __future__ import annotations

import numpy as np
import pytest

from gpuprof_widgets.analyses.critical_path import critical_path
from gpuprof_widgets.analyses.what_if import what_if
from gpuprof_widgets.trace.model import Record
from gpuprof_widgets.trace.window import window
from gpuprof_widgets.views import page_path as pieces
from gpuprof_widgets.views.page_path import page_path
from gpuprof_widgets.views.panels.critical_path import critical_path_panel
from tests.traces import annotation, kernel, op, runtime, trace_of


def run() -> Record:
    """A step in Python, an op, and the kernel for which it ends late."""
    return trace_of(
        annotation("step", ts=0, dur=50),
        op("aten::mm", ts=10, dur=20),
        runtime("cudaLaunchKernel", ts=12, dur=5),
        kernel("gemm", ts=20, dur=60, launched_by=2),
    )


def test_the_pieces_are_differences_from_start_to_start() -> None:
    header = page_path(run(), 4)
    assert header is not None
    starts = np.cumsum(header["start"]).tolist()
    path = critical_path(run())
    assert starts == path["start_ns"].tolist() == [0, 10, 12, 20]
    assert header["dur"] == [10, 2, 8, 60]
    assert header["row"] == path["row"].tolist()
    kinds = [header["kinds"][kind] for kind in header["kind"]]
    assert kinds == ["python", "cpu op", "launch delay", "compute"]
    assert header["left_out"] == 0


def test_of_a_window_they_begin_with_the_window() -> None:
    header = page_path(window(run(), 15, 80), 3)
    assert header is not None
    assert header["start"][0] == 15
    assert sum(header["dur"]) == 65


def test_without_gpu_work_there_is_nothing_to_outline() -> None:
    record = trace_of(op("aten::mm", ts=0, dur=20))
    assert page_path(record, 1) is None
    assert critical_path_panel(record) is None


def test_a_page_with_merged_rows_names_none_of_them() -> None:
    header = page_path(run(), 3)
    assert header is not None
    assert set(header["row"]) == {-1}


def many(count: int) -> Record:
    """Ops of growing length, one after the other, and a kernel at the end."""
    ends = np.cumsum(np.arange(1, count + 1))
    ops = [op(f"op{n}", ts=int(end) - n - 1, dur=n + 1) for n, end in enumerate(ends)]
    end = int(ends[-1])
    launch = runtime("cudaLaunchKernel", ts=end, dur=2)
    return trace_of(*ops, launch, kernel("last", ts=end + 3, dur=5, launched_by=count))


def test_the_shortest_pieces_become_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pieces, "MOST", 10)
    record = many(40)
    header = page_path(record, len(record.trace))
    assert header is not None
    assert len(header["start"]) <= 10
    assert header["left_out"] == len(critical_path(record)) - len(header["start"])
    assert sum(header["dur"]) == record.trace.span_ns
    starts = np.cumsum(header["start"])
    assert (starts[1:] == (starts + header["dur"])[:-1]).all()
    named = record.trace.slices["name"].to_numpy(object)[header["row"]]
    assert "op39" in named, "the longest stays what it is"


def test_the_panel_has_a_row_per_op_and_bound() -> None:
    panel = critical_path_panel(run())
    assert panel is not None
    rows = panel.rows
    assert rows["name"].tolist() == ["aten::mm", "step", "aten::mm", "aten::mm"]
    assert rows["kind"].tolist() == ["compute", "python", "launch delay", "cpu op"]
    assert rows["time_ns"].tolist() == [60, 10, 8, 2]
    assert rows["time_ns"].sum() == run().trace.span_ns
    saved = int(what_if(run(), "aten::mm")["saved_ns"].iloc[0])
    assert rows["saved_ns"].dropna().tolist() == [saved] * 3


def test_the_panel_s_events_are_the_pieces_of_its_rows() -> None:
    panel = critical_path_panel(run())
    assert panel is not None
    assert panel.events is not None
    events = panel.events
    time = (events["end_ns"] - events["start_ns"]).groupby(events["group"]).sum()
    assert time.tolist() == panel.rows["time_ns"].tolist()
    assert {column.key for column in panel.columns} <= set(panel.rows.columns)
