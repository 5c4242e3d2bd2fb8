"""Collectives of one record: their words, sizes, bandwidths and what of them was hidden."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuprof_widgets.analyses.breakdown import breakdown
from gpuprof_widgets.analyses.collectives import (
    COLUMNS,
    bus_share,
    collectives,
    dtype_of,
    operation_of,
    ranks_text,
)
from gpuprof_widgets.analyses.reasons import why_empty
from gpuprof_widgets.trace.model import Record
from gpuprof_widgets.trace.window import window
from gpuprof_widgets.views.panels.transfers import collectives_panel
from tests.traces import Row, annotation, kernel, op, runtime, trace_of

ALL_REDUCE = "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevComm*, unsigned long, ncclWork*)"
MIB = 2**20


def nccl(*, ts: int, dur: int, stream: int = 20, **args: Any) -> Row:
    """A kernel of NCCL with the args that torch writes since 2.3."""
    return kernel(args.pop("named", ALL_REDUCE), ts=ts, dur=dur, stream=stream, **args)


def of_kineto(
    elements: int, *, ranks: int = 4, name: str = "allreduce", **more: Any
) -> dict[str, Any]:
    return {
        "Collective name": name,
        "dtype": "Float",
        "In msg nelems": elements,
        "Out msg nelems": elements,
        "Group size": ranks,
        "Process Group Name": "0",
        "Process Group Ranks": str(list(range(ranks))),
    } | more


def one(record: Record) -> dict[str, Any]:
    (row,) = collectives(record).to_dict("records")
    return row


class TestWhatItSays:
    def test_sizes_and_group_come_from_the_kernel_s_args(self) -> None:
        found = one(trace_of(nccl(ts=0, dur=1000, **of_kineto(MIB))))
        assert (found["name"], found["dtype"], found["backend"]) == (
            "all_reduce",
            "float32",
            "nccl",
        )
        assert (found["bytes"], found["ranks"], found["group"]) == (4 * MIB, 4, "0-3")
        assert found["count"] == 1
        assert found["total_ns"] == found["exposed_ns"] == 1000

    def test_without_args_they_come_from_the_op_that_issued_it(self) -> None:
        told = {"Input Dims": [[4, 256]], "Input type": ["c10::Half"]}
        record = trace_of(
            op("c10d::allreduce_", ts=0, dur=90),
            op("nccl:all_reduce", ts=1, dur=80, category="user_annotation", **told),
            runtime("cudaLaunchKernel", ts=5, dur=10),
            nccl(ts=100, dur=1000, named="ncclDevKernel_Generic", launched_by=2),
            distributedInfo={"backend": "nccl", "rank": 0, "world_size": 8},
        )
        found = one(record)
        assert (found["name"], found["dtype"]) == ("all_reduce", "float16")
        assert (found["bytes"], found["ranks"], found["group"]) == (4 * 256 * 2, 8, "")

    def test_a_kernel_that_nothing_else_tells_of_says_what_its_name_says(self) -> None:
        found = one(trace_of(nccl(ts=0, dur=10)))
        assert (found["name"], found["dtype"]) == ("all_reduce", "")
        assert (found["bytes"], found["ranks"]) == (-1, -1)
        assert found["total_bytes"] == -1
        rates = [value for key, value in found.items() if key.endswith("bytes_per_s")]
        assert len(rates) == 3
        assert np.isnan(rates).all()

    def test_without_the_number_of_ranks_only_the_bus_bandwidth_is_unknown(self) -> None:
        told = {key: value for key, value in of_kineto(1000).items() if "roup" not in key}
        found = one(trace_of(nccl(ts=0, dur=1000, **told)))
        assert (found["ranks"], found["total_bytes"]) == (-1, 4000)
        assert found["algorithm_bytes_per_s"] == pytest.approx(4e9)
        assert np.isnan(found["bus_bytes_per_s"])

    def test_each_call_has_both_sizes_its_times_its_slice_and_its_op(self) -> None:
        gathered = of_kineto(100, name="_allgather_base", **{"Out msg nelems": 400})
        record = trace_of(
            op("c10d::_allgather_base_", ts=0, dur=50),
            runtime("cudaLaunchKernel", ts=10, dur=5),
            nccl(ts=100, dur=30, launched_by=1, **gathered),
        )
        (call,) = collectives(record, instances=True).to_dict("records")
        columns = ("name", "bytes", "in_bytes", "out_bytes", "start_ns", "end_ns", "dur_ns")
        values = ["all_gather", 1600, 400, 1600, 100, 130, 30]
        assert [call[column] for column in columns] == values
        names = record.trace.slices["name"]
        assert [names[call["row"]], names[call["op"]]] == [ALL_REDUCE, "c10d::_allgather_base_"]

    def test_on_the_cpu_it_is_the_span_of_the_backend(self) -> None:
        told = {"Input Dims": [[1000]], "Input type": ["float"]}
        record = trace_of(
            op("c10d::allreduce_", ts=0, dur=5),
            op("gloo:all_reduce", ts=2, dur=100, thread=7, category="user_annotation", **told),
            op("aten::mm", ts=30, dur=20),
            world_size=2,
        )
        found = one(record)
        assert (found["name"], found["backend"], found["device"]) == ("all_reduce", "gloo", -1)
        assert (found["bytes"], found["ranks"]) == (4000, 2)
        assert found["exposed_ns"] == 80  # aten::mm hid 20; c10d::allreduce_ computes nothing

    def test_calls_of_nccl_without_its_kernels_are_not_its_time(self) -> None:
        table = collectives(trace_of(annotation("nccl:all_reduce", ts=0, dur=10)))
        assert list(table.columns) == list(COLUMNS)
        assert "none of their kernels" in why_empty(table)

    def test_a_trace_without_any_says_so(self) -> None:
        table = collectives(trace_of(kernel("gemm", ts=0, dur=10)))
        assert "no collectives" in why_empty(table)


class TestTime:
    def test_what_compute_covers_is_not_exposed(self) -> None:
        found = one(
            trace_of(
                nccl(ts=100, dur=100, **of_kineto(8)),
                kernel("gemm", ts=50, dur=80),
                kernel("gemm", ts=120, dur=20, stream=8),
                kernel("gemm", ts=150, dur=10, device=1),
            )
        )
        assert found["exposed_ns"] == 60

    def test_what_several_have_in_common_is_that_of_the_first_to_begin(self) -> None:
        record = trace_of(
            nccl(ts=100, dur=100, **of_kineto(8)),
            nccl(ts=150, dur=100, stream=8, **of_kineto(16)),
            nccl(ts=160, dur=20, stream=9, **of_kineto(24)),
            nccl(ts=100, dur=100, device=1, **of_kineto(8)),
            kernel("gemm", ts=190, dur=30, stream=10),
        )
        table = collectives(record, instances=True)
        exposed = dict(zip(table["bytes"] * 10 + table["device"], table["exposed_ns"], strict=True))
        assert exposed == {320: 90, 640: 30, 960: 0, 321: 100}
        assert (table["exposed_ns"] <= table["dur_ns"]).all()
        halves = [window(record, 0, 155), window(record, 155, 300)]
        assert sum(int(collectives(half)["exposed_ns"].sum()) for half in halves) == 220

    def test_equal_ones_are_one_row_and_other_sizes_another(self) -> None:
        table = collectives(
            trace_of(
                nccl(ts=0, dur=100, **of_kineto(8)),
                nccl(ts=200, dur=300, **of_kineto(8)),
                nccl(ts=600, dur=50, **of_kineto(16)),
            )
        )
        assert table["count"].tolist() == [2, 1]
        assert table["total_ns"].tolist() == [400, 50]
        assert table["mean_ns"].tolist() == [200, 50]
        assert (table["min_ns"].iloc[0], table["max_ns"].iloc[0]) == (100, 300)
        assert table["total_bytes"].tolist() == [64, 64]

    def test_one_by_one_they_come_in_order_of_time(self) -> None:
        record = trace_of(
            nccl(ts=200, dur=300, **of_kineto(8, Seq=6)), nccl(ts=0, dur=100, **of_kineto(8, Seq=5))
        )
        table = collectives(record, instances=True)
        assert table["start_ns"].tolist() == [0, 200]
        assert table["sequence"].tolist() == [5, 6]


class TestBandwidth:
    @pytest.mark.parametrize(
        ("operation", "bus"),
        [
            # nccl-tests, doc/PERFORMANCE.md, with n = 4 ranks
            ("allreduce", 1.5),
            ("_allgather_base", 0.75),
            ("_reduce_scatter_base", 0.75),
            ("all_to_all", 0.75),
            ("broadcast", 1.0),
            ("reduce", 1.0),
        ],
    )
    def test_formulas_of_nccl_tests(self, operation: str, bus: float) -> None:
        found = one(trace_of(nccl(ts=0, dur=1_000_000, **of_kineto(MIB, name=operation))))
        assert found["algorithm_bytes_per_s"] == pytest.approx(4 * MIB * 1000)
        assert found["bus_bytes_per_s"] == pytest.approx(4 * MIB * 1000 * bus)

    def test_the_best_is_that_of_the_shortest(self) -> None:
        found = one(
            trace_of(
                nccl(ts=0, dur=1000, **of_kineto(1000, ranks=2)),
                nccl(ts=2000, dur=4000, **of_kineto(1000, ranks=2)),
            )
        )
        assert found["bus_bytes_per_s"] == pytest.approx(8000 / 5000e-9)
        assert found["best_bus_bytes_per_s"] == pytest.approx(4000 / 1000e-9)

    @given(st.integers(1, 10_000))
    def test_of_one_rank_nothing_crosses_a_link_and_of_many_at_most_twice(self, ranks: int) -> None:
        share = bus_share("all_reduce", ranks)
        assert (share == 0) == (ranks == 1)
        assert 0 <= share < 2


class TestWords:
    @pytest.mark.parametrize(
        ("text", "operation"),
        [
            ("allreduce_coalesced", "all_reduce"),
            ("_allgather_base", "all_gather"),
            ("reduce_scatter_tensor_coalesced", "reduce_scatter"),
            ("all_to_allv", "all_to_all"),
            ("ncclDevKernel_ReduceScatter_Sum_bf16_RING_LL", "reduce_scatter"),
            ("ncclKernel_Broadcast_RING_LL_Sum_int8_t", "broadcast"),
            ("ncclDevKernel_SendRecv(ncclDevComm*)", "send_recv"),
            ("ncclDevKernel_Generic(ncclDevKernelArgsStorage<4096ul>)", ""),
        ],
    )
    def test_operations(self, text: str, operation: str) -> None:
        assert operation_of(text) == operation

    @pytest.mark.parametrize(
        ("text", "dtype"),
        [
            ("Float", ("float32", 4)),
            ("c10::Half", ("float16", 2)),
            ("c10::BFloat16", ("bfloat16", 2)),
            ("long int", ("int64", 8)),
            ("int", ("int32", 4)),
            ("unsigned char", ("uint8", 1)),
            ("Float8_e4m3fn", ("float8", 1)),
            ("TensorList", ("", 0)),
        ],
    )
    def test_types(self, text: str, dtype: tuple[str, int]) -> None:
        assert dtype_of(text) == dtype

    @pytest.mark.parametrize(
        ("ranks", "text"), [([0, 1, 2, 3], "0-3"), ([6, 0, 2], "0,2,6"), ([0, 1, 4], "0-1,4")]
    )
    def test_ranks(self, ranks: list[int], text: str) -> None:
        assert ranks_text(ranks) == text


def test_the_panel_has_the_rows_of_the_table_and_an_event_for_each() -> None:
    record = trace_of(
        nccl(ts=0, dur=100, **of_kineto(8)),
        nccl(ts=200, dur=300, **of_kineto(8)),
        nccl(ts=600, dur=50),
        kernel("gemm", ts=20, dur=50),
    )
    panel = collectives_panel(record)
    assert panel is not None
    assert panel.events is not None
    assert panel.rows["time_ns"].tolist() == [400, 50]
    assert panel.rows["where"].tolist() == ["GPU 0", "GPU 0"]
    lasted = panel.events["end_ns"] - panel.events["start_ns"]
    assert lasted.groupby(panel.events["group"]).sum().tolist() == [400, 50]
    by_row = panel.events.groupby("group")[["exposed_ns", "bus_bytes"]].sum()
    assert by_row["exposed_ns"].tolist() == panel.rows["exposed_ns"].tolist() == [350, 50]
    assert by_row["bus_bytes"].tolist() == [2 * 32 * 1.5, 0]
    assert panel.rows["bus_bytes_per_s"].isna().tolist() == [False, True]
    assert collectives_panel(trace_of(kernel("gemm", ts=0, dur=5))) is None


def test_it_works_on_every_real_trace_or_says_what_is_missing(shared_record: Record) -> None:
    table = collectives(shared_record)
    assert list(table.columns) == list(COLUMNS)
    assert len(table) or why_empty(table)
    each = collectives(shared_record, instances=True)
    assert int(table["total_ns"].sum()) == int(each["dur_ns"].sum())
    assert (each["exposed_ns"] <= each["dur_ns"]).all()
    assert (each["exposed_ns"] >= 0).all()
    by_device = each.groupby("device")["exposed_ns"].sum()
    classes = breakdown(shared_record)
    exposed = classes[classes["class"] == "exposed communication"].set_index("device")["time_ns"]
    assert {at: int(ns) for at, ns in by_device.items() if ns} == {
        at: int(ns) for at, ns in exposed.items() if ns
    }
