"""The kernel table on hand-made streams."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuprof_widgets.analyses.kernels import kernels
from gpuprof_widgets.trace.model import Record
from tests.traces import copy, gpu_annotation, kernel, op, trace_of


def test_kernels_and_copies_by_name() -> None:
    record = trace_of(
        op("aten::mm", ts=0, dur=100),
        gpu_annotation("step", ts=0, dur=100),
        kernel("gemm", ts=10, dur=4),
        kernel("gemm", ts=20, dur=8),
        kernel("relu", ts=30, dur=2),
        copy("Memcpy DtoH", ts=40, dur=6, bytes=64),
    )
    table = kernels(record)
    assert table["kind"].tolist() == ["compute", "copy", "compute"]
    columns = ["name", "category", "calls", "total_ns", "average_ns", "min_ns", "max_ns", "share"]
    assert table[columns].to_numpy().tolist() == [
        ["gemm", "kernel", 2, 12, 6.0, 4, 8, 0.6],
        ["Memcpy DtoH", "gpu_memcpy", 1, 6, 6.0, 6, 6, 0.3],
        ["relu", "kernel", 1, 2, 2.0, 2, 2, 0.1],
    ]


def test_streams_that_overlap_do_not_make_a_share_of_more_than_all() -> None:
    record = trace_of(
        kernel("nccl", ts=0, dur=10, stream=7),
        kernel("nccl", ts=5, dur=10, stream=20),
        kernel("gemm", ts=0, dur=15, stream=30),
    )
    table = kernels(record).set_index("name")
    assert table.loc["nccl", ["total_ns", "covered_ns", "share"]].tolist() == [20, 15, 1.0]


def test_devices_are_busy_apart() -> None:
    record = trace_of(
        kernel("gemm", ts=0, dur=10, device=2), kernel("gemm", ts=0, dur=10, device=5),
        kernel("relu", ts=0, dur=10, device=5, stream=9),
    )  # fmt: skip
    table = kernels(record).set_index("name")
    assert table.loc["gemm", ["covered_ns", "share"]].tolist() == [20, 1.0]
    assert table.loc["relu", "share"] == 0.5


def test_without_gpu_the_table_is_empty() -> None:
    table = kernels(trace_of(op("aten::mm", ts=0, dur=9)))
    assert len(table) == 0
    assert "share" in table


ROWS = st.lists(
    st.tuples(
        st.sampled_from("ab"), st.integers(0, 30), st.integers(0, 9), st.integers(0, 1),
        st.integers(7, 8),
    ),
    min_size=1,
)  # fmt: skip


@given(ROWS)
def test_statistics_equal_those_of_plain_loops(rows: list[tuple[str, int, int, int, int]]) -> None:
    table = kernels(record_of(rows)).set_index("name")
    busy = {(device, t) for _, ts, dur, device, _ in rows for t in range(ts, ts + dur)}
    for name in {row[0] for row in rows}:
        own = [row for row in rows if row[0] == name]
        durations = [row[2] for row in own]
        covered = {(device, t) for _, ts, dur, device, _ in own for t in range(ts, ts + dur)}
        expected = [len(own), sum(durations), min(durations), max(durations), len(covered)]
        columns = ["calls", "total_ns", "min_ns", "max_ns", "covered_ns"]
        assert table.loc[name, columns].tolist() == expected
        assert table.loc[name, "share"] == pytest.approx(len(covered) / max(len(busy), 1))
        assert table.loc[name, "share"] <= 1


def record_of(rows: list[tuple[str, int, int, int, int]]) -> Record:
    return trace_of(
        *(
            kernel(name, ts=ts, dur=dur, device=device, stream=stream)
            for name, ts, dur, device, stream in rows
        )
    )
