"""Counters: the file's, memory, CUPTI metrics, and the curves worked out here."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gpuprof_widgets.analyses.counters import counters, unit_of
from gpuprof_widgets.analyses.reasons import why_empty
from gpuprof_widgets.trace.model import Record
from gpuprof_widgets.trace.readers import load
from gpuprof_widgets.trace.window import window
from gpuprof_widgets.views.panels.counters import counters_panel
from tests.traces import copy, kernel, memory, op, runtime, trace_of


def counter(name: str, ts: float, *, pid: int = 0, **rest: Any) -> dict[str, Any]:
    """A counter event as a file has it."""
    args = rest.pop("args", None) or {"value": rest.pop("value", 1)}
    return {"ph": "C", "name": name, "pid": pid, "tid": 0, "ts": ts, "args": args} | rest


def file_of(folder: Path, *events: dict[str, Any]) -> Record:
    slice_ = {"ph": "X", "cat": "cpu_op", "name": "a", "pid": 1, "tid": 1, "ts": 0, "dur": 10}
    path = folder / "trace.json.gz"
    path.write_bytes(gzip.compress(json.dumps({"traceEvents": [slice_, *events]}).encode()))
    return load(path)


def readings(record: Record, **options: bool) -> list[list[Any]]:
    table = counters(record, **options)
    return table[["ts_ns", "name", "series", "value", "unit"]].to_numpy().tolist()


def test_the_files_own_counters_with_the_unit_that_their_name_tells(tmp_path: Path) -> None:
    record = file_of(
        tmp_path,
        counter("GPU 0 Utilization", 1, value=0.5),
        counter("GPU power (W)", 2, value=250),
        counter("things", 3, args={"in": 2, "out": 1}),
    )
    assert readings(record) == [
        [1000, "GPU 0 Utilization", "", 0.5, "%"],
        [2000, "GPU power (W)", "", 250.0, "W"],
        [3000, "things in", "", 2.0, ""],
        [3000, "things out", "", 1.0, ""],
    ]


def test_counters_of_one_name_are_apart_by_process_and_id(tmp_path: Path) -> None:
    record = file_of(
        tmp_path,
        counter("Queue", 1, pid=0, value=1), counter("Queue", 1, pid=3, value=5),
        counter("Load", 2, id=7, value=2), counter("Load", 2, id=8, value=3),
    )  # fmt: skip
    assert [row[1] for row in readings(record)] == ["0: Queue", "3: Queue", "Load 7", "Load 8"]


def test_memory_is_a_series_per_device() -> None:
    record = trace_of(
        op("aten::empty", ts=0, dur=9), memory(8, ts=3, allocated=8, reserved=64, device=0)
    )
    assert readings(record) == [
        [3, "GPU 0 memory", "allocated", 8.0, "bytes"],
        [3, "GPU 0 memory", "reserved", 64.0, "bytes"],
    ]


def metered(*values: float) -> Record:
    """CUPTI ranges of 10 ns from 0, 10 and 30 on."""
    rows = [
        op("k", ts=ts, dur=10, category="cuda_profiler_range", **{"smsp__warps.sum": value})
        for ts, value in zip((0, 10, 30), values, strict=True)
    ]
    return trace_of(*rows)


def test_metrics_hold_for_the_length_of_their_range() -> None:
    table = counters(metered(4.0, 5.0, 6.0))
    assert set(table["name"]) == {"CUPTI"}
    assert set(table["series"]) == {"smsp__warps.sum"}
    assert table["ts_ns"].tolist() == [0, 10, 20, 30, 40]
    assert np.array_equal(table["value"], [4, 5, np.nan, 6, np.nan], equal_nan=True)


def test_metrics_of_a_window_begin_with_it() -> None:
    table = counters(window(metered(4.0, 5.0, 6.0), 5, 15))
    assert table["ts_ns"].tolist() == [5, 10, 15]
    assert table["value"].tolist()[:2] == [4.0, 5.0]


def launched() -> Record:
    return trace_of(
        runtime("cudaMemcpyAsync", ts=0, dur=5),
        copy(ts=10, dur=10, bytes=20, launched_by=0),
        kernel("k", ts=30, dur=5),
    )


def test_queues_and_bandwidth_join_as_derived_curves() -> None:
    assert readings(launched()) == [
        [0, "Queue length", "GPU 0 · stream 7", 1.0, "launches"],
        [10, "Queue length", "GPU 0 · stream 7", 0.0, "launches"],
        [10, "Copy bandwidth", "GPU 0 · HtoD", 2e9, "bytes/s"],
        [20, "Copy bandwidth", "GPU 0 · HtoD", 0.0, "bytes/s"],
        [0, "GPU utilisation", "GPU 0", pytest.approx(500 / 35), "%"],
        [35, "GPU utilisation", "GPU 0", 0.0, "%"],
    ]
    assert counters(launched())["derived"].all()
    assert "no counters" in why_empty(counters(launched(), derived=False))


@pytest.mark.parametrize(
    ("name", "unit"),
    [
        ("GPU 0 Est. SM Efficiency", "%"),
        ("dram__throughput.avg_pct", "%"),
        ("Memcpy bandwidth", "GB/s"),
        ("gpu temperature", "°C"),
        ("SM clock", "MHz"),
        ("total energy", "J"),
        ("Queue Length", ""),
    ],
)
def test_units_are_what_the_name_says(name: str, unit: str) -> None:
    assert unit_of(name) == unit


def test_the_panel_shows_what_no_other_view_shows() -> None:
    assert counters_panel(launched()) is None
    panel = counters_panel(metered(4.0, 5.0, 6.0))
    assert panel is not None
    (row,) = panel.rows.to_dict("records")
    assert (row["counter"], row["readings"], row["min"], row["max"]) == (
        *("CUPTI smsp__warps.sum", 3, 4.0, 6.0),
    )
    assert row["mean"] == 5.0
    (curve,) = panel.curves
    assert curve.changes["value"].tolist() == [4, 5, 0, 6, 0]


def test_on_real_traces_each_curve_runs_forward(shared_record: Record) -> None:
    table = counters(shared_record)
    if not len(table):
        assert why_empty(table)
    for _, each in table.groupby(["name", "series"]):
        assert (np.diff(each["ts_ns"]) >= 0).all()
    trace = shared_record.trace
    assert table["ts_ns"].between(trace.start_ns, trace.end_ns).all()
