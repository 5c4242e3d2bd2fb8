"""The panels on kernels, launches, sequences, copies: rows are what their events add up to."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pandas as pd
import pytest

from gpuprof_widgets.analyses.copies import copies
from gpuprof_widgets.analyses.kernels import kernels
from gpuprof_widgets.analyses.launches import launches
from gpuprof_widgets.trace.model import Record
from gpuprof_widgets.views.panels.kernels import (
    LONGEST_NAME,
    kernel_name,
    kernels_panel,
    launches_panel,
    sequences_panel,
)
from gpuprof_widgets.views.panels.transfers import copies_panel
from gpuprof_widgets.views.table import Column, Panel
from tests.traces import cell_line, copy, kernel, op, runtime, trace_of

PANELS: dict[str, Callable[[Record], Panel | None]] = {
    "kernels": kernels_panel,
    "launches": launches_panel,
    "sequences": sequences_panel,
    "copies": copies_panel,
}


def aggregated(column: Column, events: pd.DataFrame) -> pd.Series[float]:
    """What the page computes of all events of each row."""
    time = events["end_ns"] - events["start_ns"]
    values = events.get(column.of, time)
    by = values.groupby(events["group"])
    how = {"time": "sum", "count": "size"}.get(column.aggregate, column.aggregate)
    return by.agg(how)


@pytest.mark.parametrize("name", PANELS)
def test_rows_are_what_the_page_computes_of_all_their_events(
    shared_record: Record, name: str
) -> None:
    panel = PANELS[name](shared_record)
    if panel is None:
        return
    assert panel.events is not None
    groups = panel.events["group"]
    assert sorted(groups.unique()) == list(range(len(panel.rows)))
    for column in panel.columns:
        if column.aggregate not in ("", "share", "ratio"):
            computed = aggregated(column, panel.events).to_numpy(np.float64)
            shown = panel.rows[column.key].to_numpy(np.float64)
            assert computed == pytest.approx(shown), column.key
    slices = shared_record.trace.slices
    rows = panel.events["row"].to_numpy(np.intp)
    assert (slices["ts"].to_numpy()[rows] == panel.events["start_ns"].to_numpy()).all()


def test_panels_hold_all_that_the_tables_hold(shared_record: Record) -> None:
    whole = [
        (kernels_panel, "time_ns", kernels(shared_record)["total_ns"]),
        (copies_panel, "time_ns", copies(shared_record)["dur_ns"]),
        (launches_panel, "gpu_ns", launches(shared_record)["dur_ns"]),
    ]
    for panel_of, key, total in whole:
        panel = panel_of(shared_record)
        assert (panel is None) == (not len(total))
        if panel is not None:
            assert panel.rows[key].sum() == total.sum()


def test_without_gpu_work_there_is_nothing_to_show() -> None:
    cpu = trace_of(op("aten::mm", ts=0, dur=9))
    assert [panel(cpu) for panel in PANELS.values()] == [None] * len(PANELS)


def small() -> Record:
    return trace_of(
        cell_line(3, "x.to(gpu)", ts=0, dur=40),
        op("aten::to", ts=0, dur=30),
        runtime("cudaMemcpyAsync", ts=5, dur=20),
        op("aten::mm", ts=40, dur=20),
        runtime("cudaLaunchKernel", ts=45, dur=10),
        copy(ts=10, dur=10, bytes=20, launched_by=2),
        kernel("ampere_s16816gemm", ts=60, dur=40, launched_by=4),
        kernel("stray", ts=100, dur=5),
    )


def test_kernels_say_who_launched_them_and_whether_they_use_tensor_cores() -> None:
    panel = kernels_panel(small())
    assert panel is not None
    shown = panel.rows[["label", "calls", "time_ns", "tensor", "op_name"]]
    assert shown.to_numpy().tolist() == [
        ["ampere_s16816gemm", 1, 40, "used", "aten::mm"],
        ["Memcpy HtoD (Pageable -> Device)", 1, 10, "", "aten::to"],
        ["stray", 1, 5, "", ""],
    ]
    assert " ".join(panel.notes).startswith("GPU 0: a kernel ran 43 % of the time")


def test_launches_have_the_queues_as_curves() -> None:
    panel = launches_panel(small())
    assert panel is not None
    columns = ["op_name", "launch_name", "launches", "call_ns", "latency_ns", "short"]
    assert panel.rows[columns].to_numpy().tolist() == [
        ["aten::to", "cudaMemcpyAsync", 1, 20, 0, 1],
        ["aten::mm", "cudaLaunchKernel", 1, 10, 5, 0],
    ]
    (curve,) = panel.curves
    assert curve.name == "Queue of GPU 0 · stream 7"
    assert curve.changes[["ts_ns", "value"]].to_numpy().tolist() == [
        *([5, 1], [10, 0], [45, 1], [60, 0])
    ]
    assert "1 of 2 launches took longer" in " ".join(panel.notes)
    assert "1 GPU event without a launch" in " ".join(panel.notes)


def test_copies_say_where_they_were_asked_for() -> None:
    panel = copies_panel(small())
    assert panel is not None
    (row,) = panel.rows.to_dict("records")
    assert (row["memory"], row["op_name"], row["where"]) == (
        *("pageable → device", "aten::to", "3: x.to(gpu)"),
    )
    assert (row["bytes"], row["bytes_per_s"], row["stalled_ns"]) == (20, 2e9, 20)
    (curve,) = panel.curves
    assert curve.changes["value"].tolist() == [2e9, 0]


def test_sequences_name_functions_and_what_cutlass_is_made_of() -> None:
    rows = [op("autograd::engine::evaluate_function: MmBackward0", ts=0, dur=50)]
    rows += [runtime("cudaLaunchKernel", ts=5 + 10 * i, dur=4) for i in range(3)]
    names = ["void cutlass::Kernel2<cutlass_80_gemm>(Params)", "void f::add<int>(int)", "Memset"]
    rows += [kernel(each, ts=60 + 10 * i, dur=5, launched_by=1 + i) for i, each in enumerate(names)]
    panel = sequences_panel(trace_of(*rows))
    assert panel is not None
    assert panel.rows[["op_name", "sequence", "calls"]].to_numpy().tolist() == [
        ["MmBackward0", "cutlass_80_gemm → add → Memset", 1]
    ]


@pytest.mark.parametrize(
    ("name", "short"),
    [
        ("void at::native::relu<float>(int, float*)", "relu<float>"),
        ("void at::native::(anonymous namespace)::f<g(int)>(int)", "f<g(int)>"),
        ("Memcpy HtoD (Pageable -> Device)", "Memcpy HtoD (Pageable -> Device)"),
        ("triton_poi_fused_add_0", "triton_poi_fused_add_0"),
        ("k" * 200, "k" * (LONGEST_NAME - 1) + "…"),
        ("f<(", "f<("),
        ("<)", "<)"),
    ],
)
def test_kernel_names_fit_into_a_table(name: str, short: str) -> None:
    assert kernel_name(name) == short
