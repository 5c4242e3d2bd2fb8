"""Kernels by name, layout and spread, tensor cores, and the figures of the GPU summary."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuprof_widgets.analyses.kernels import gpu_curves, gpu_summary, kernels
from gpuprof_widgets.analyses.reasons import why_empty
from gpuprof_widgets.analyses.tensor_cores import are_eligible, on_tensor_cores
from gpuprof_widgets.exceptions import OptionError
from gpuprof_widgets.trace.model import Record
from gpuprof_widgets.trace.readers import load
from tests.hta_oracle import hta
from tests.traces import (
    Row,
    Shared,
    annotation,
    copy,
    gpu_annotation,
    kernel,
    op,
    runtime,
    trace_of,
)

A100 = {"id": 0, "name": "A100", "totalGlobalMem": 40, "computeMajor": 8, "computeMinor": 0}


def laid_out(
    name: str,
    *,
    ts: int,
    dur: int,
    blocks: float | None = None,
    occupancy: float | None = None,
    stream: int = 7,
    grid: tuple[int, int, int] = (1, 1, 1),
    launched_by: int | None = None,
    **args: object,
) -> Row:
    """A kernel with what Kineto writes of its launch."""
    given = {"grid": list(grid), "block": [128, 1, 1], "shared memory": 512} | args
    given |= {"blocks per SM": blocks, "est. achieved occupancy %": occupancy}
    known = {key: value for key, value in given.items() if value is not None}
    return kernel(name, ts=ts, dur=dur, stream=stream, launched_by=launched_by, **known)


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


ROWS = st.lists(
    st.tuples(
        st.sampled_from("ab"), st.integers(0, 30), st.integers(0, 9), st.integers(0, 1),
        st.integers(7, 8),
    ),
    min_size=1,
)  # fmt: skip


@given(ROWS)
def test_statistics_equal_those_of_loops_and_of_pandas(
    rows: list[tuple[str, int, int, int, int]],
) -> None:
    keys = ("ts", "dur", "device", "stream")
    work = [kernel(name, **dict(zip(keys, of, strict=True))) for name, *of in rows]
    table = kernels(trace_of(*work)).set_index("name")
    busy = {(device, t) for _, ts, dur, device, _ in rows for t in range(ts, ts + dur)}
    for name in {row[0] for row in rows}:
        own, found = [row for row in rows if row[0] == name], table.loc[name]
        dur = pd.Series([row[2] for row in own])
        covered = {(device, t) for _, ts, dur, device, _ in own for t in range(ts, ts + dur)}
        expected = [len(own), dur.sum(), dur.min(), dur.max(), len(covered)]
        columns = ["calls", "total_ns", "min_ns", "max_ns", "covered_ns"]
        assert found[columns].tolist() == expected
        assert found["share"] == pytest.approx(len(covered) / max(len(busy), 1))
        assert found["share"] <= 1
        assert found["average_ns"] == pytest.approx(dur.mean())
        assert found["std_ns"] == pytest.approx(dur.std() if len(dur) > 1 else 0.0)
        for key, q in (("p50_ns", 0.5), ("p90_ns", 0.9), ("p99_ns", 0.99)):
            assert found[key] == pytest.approx(dur.quantile(q))


def test_means_of_the_layout_are_weighted_by_time() -> None:
    record = trace_of(
        laid_out("gemm", ts=0, dur=30, blocks=2.0, occupancy=50, **{"registers per thread": 64}),
        laid_out("gemm", ts=40, dur=10, blocks=6.0, occupancy=10, **{"registers per thread": 32}),
    )
    (row,) = kernels(record).to_dict("records")
    assert row["blocks_per_sm"] == 3.0
    assert row["occupancy"] == pytest.approx(0.4)
    assert (row["grid"], row["block"]) == ("1, 1, 1", "128, 1, 1")
    assert (row["registers"], row["shared_memory"]) == (64, 512)


def test_what_is_not_known_is_left_out_of_means() -> None:
    """The TensorBoard plugin takes it for 0, and so halves the occupancy here."""
    record = trace_of(laid_out("k", ts=0, dur=10, occupancy=50), laid_out("k", ts=20, dur=10))
    (row,) = kernels(record).to_dict("records")
    assert row["occupancy"] == 0.5
    assert np.isnan(row["blocks_per_sm"])
    (row,) = kernels(trace_of(laid_out("k", ts=0, dur=5, blocks=-1.0, occupancy=-3))).to_dict(
        "records"
    )  # which some versions of Kineto wrote without a meaning
    assert np.isnan([row["blocks_per_sm"], row["occupancy"]]).all()
    plain = kernels(trace_of(kernel("k", ts=0, dur=5)))
    assert plain[["grid", "block", "registers", "shared_memory"]].to_numpy().tolist() == [
        ["", "", -1, -1]
    ]


def test_blocks_per_sm_follow_from_the_grid_where_they_are_not_written() -> None:
    """AMD's traces have grids only; Kineto divides them by the device's SMs."""
    record = trace_of(
        laid_out("k", ts=0, dur=5, grid=(26, 4, 2)), deviceProperties=[A100 | {"numSms": 104}]
    )
    assert kernels(record)["blocks_per_sm"].tolist() == [2.0]


def test_by_geometry_a_name_has_a_row_per_op_and_layout() -> None:
    record = trace_of(
        op("aten::add", ts=0, dur=9), runtime("cudaLaunchKernel", ts=1, dur=2),
        op("aten::mul", ts=10, dur=9), runtime("cudaLaunchKernel", ts=11, dur=2),
        laid_out("k", ts=20, dur=5, launched_by=1), laid_out("k", ts=30, dur=6, launched_by=3),
        laid_out("k", ts=40, dur=7, launched_by=3, grid=(2, 1, 1)),
    )  # fmt: skip
    table = kernels(record, by="geometry")
    assert table[["op_name", "grid", "total_ns"]].to_numpy().tolist() == [
        ["aten::mul", "2, 1, 1", 7],
        ["aten::mul", "1, 1, 1", 6],
        ["aten::add", "1, 1, 1", 5],
    ]
    (row,) = kernels(record).to_dict("records")
    assert (row["op_name"], row["ops"], row["grid"]) == ("aten::mul", 2, "")


def test_by_kind_of_work() -> None:
    record = trace_of(
        kernel("gemm", ts=0, dur=5), kernel("ncclDevKernel_AllReduce", ts=10, dur=9),
        copy(ts=20, dur=3), kernel("relu", ts=30, dur=1),
    )  # fmt: skip
    table = kernels(record, by="kind")
    assert table[["name", "calls", "total_ns"]].to_numpy().tolist() == [
        ["communication", 1, 9],
        ["compute", 2, 6],
        ["copy", 1, 3],
    ]
    with pytest.raises(OptionError, match="name, geometry, kind"):
        kernels(record, by="shape")


@pytest.mark.parametrize(
    ("name", "used"),
    [
        ("volta_fp16_s884gemm_fp16_128x64_ldg8_f2f_nn", True),
        ("ampere_bf16_s16816gemm_bf16_128x256_ldg8_f2f_stages_64x3_tn", True),
        ("void cutlass::Kernel<cutlass_80_tensorop_s1688gemm_64x64_16x6_tn_align4>", True),
        ("sm80_xmma_fprop_implicit_gemm_bf16bf16_tensor16x8x16_kernel_cudnn_infer", True),
        ("sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize128x128x64_cublas", True),
        ("nvjet_tst_128x256_64x4_2x1_v_bz_coopA_TNT", True),
        ("void pytorch_flash::flash_fwd_kernel<Flash_fwd_kernel_traits<32>>()", True),
        ("fmha_cutlassF_bf16_aligned_64x128_rf_sm80(AttentionKernel<>)", True),
        ("_ZN2ck16tensor_operation6device37kernel_batched_gemm_xdlops_bwd_weight", True),
        ("igemm_fwd_gtcx3_nhwc_bf16_bx0_ex1_bt128x128x32", True),
        ("Cijk_Alik_Bljk_HHS_BH_MT128x128x32_MI32x32x8x1_SN", True),
        ("volta_sgemm_128x64_nt", False),
        ("ampere_sgemm_32x32_sliced1x4_tn", False),
        ("sm80_xmma_gemm_f32f32_f32f32_f32_nn_n_tilesize64x64x8_simt_sgemm", False),
        ("fmha_cutlassF_f32_aligned_64x64_rf_sm50(AttentionKernel<>)", False),
        ("void at::native::vectorized_elementwise_kernel<4, AddFunctor<float>>()", False),
        ("triton_poi_fused_add_0", False),
    ],
)
def test_kernels_on_tensor_cores_are_known_by_name(name: str, used: bool) -> None:
    assert on_tensor_cores([name]).tolist() == [used]


def test_ops_that_tensor_cores_can_do() -> None:
    names = ["aten::mm", "aten::cudnn_convolution", "AddmmBackward0", "BmmBackward0", "aten::add"]
    assert are_eligible(names).tolist() == [True, True, True, True, False]


def test_eligible_is_the_share_of_time_that_such_ops_launched() -> None:
    record = trace_of(
        op("aten::mm", ts=0, dur=9), runtime("cudaLaunchKernel", ts=1, dur=2),
        op("aten::add", ts=10, dur=9), runtime("cudaLaunchKernel", ts=11, dur=2),
        kernel("k", ts=20, dur=30, launched_by=1), kernel("k", ts=60, dur=10, launched_by=3),
        kernel("k", ts=80, dur=20),
    )  # fmt: skip
    (row,) = kernels(record).to_dict("records")
    assert (row["eligible_share"], row["ops"], row["tensor_cores"]) == (0.5, 2, False)


def test_the_summary_counts_the_steps_alone() -> None:
    record = trace_of(
        annotation("ProfilerStep#1", ts=100, dur=50), annotation("ProfilerStep#2", ts=150, dur=50),
        laid_out("s884gemm", ts=80, dur=40, blocks=0.5, occupancy=20),
        laid_out("add", ts=130, dur=20, blocks=4.0, occupancy=80),
        laid_out("after", ts=300, dur=100, blocks=1.0, occupancy=100),
        deviceProperties=[A100],
    )  # fmt: skip
    (row,) = gpu_summary(record).to_dict("records")
    assert (row["device_name"], row["memory_bytes"], row["compute_capability"]) == (
        *("A100", 40, "8.0"),
    )
    assert (row["span_ns"], row["kernel_ns"], row["utilisation"]) == (100, 40, 0.4)
    assert row["sm_efficiency"] == pytest.approx((20 * 0.5 + 20 * 1.0) / 100)
    assert row["occupancy"] == pytest.approx((20 * 0.2 + 20 * 0.8) / 40)
    assert row["tensor_core_share"] == 0.5


def test_each_gpu_is_summed_up_by_its_own_kernels_and_properties() -> None:
    record = trace_of(
        laid_out("a", ts=0, dur=30, blocks=0.5, occupancy=20),
        laid_out("b", ts=0, dur=100, blocks=1.0, occupancy=80, device=3),
        deviceProperties=[A100 | {"id": 3}],
    )
    columns = ["device", "device_name", "memory_bytes", "compute_capability", "kernel_ns"]
    table = gpu_summary(record)
    assert table[columns].to_numpy().tolist() == [[0, "", -1, "", 30], [3, "A100", 40, "8.0", 100]]
    assert table["occupancy"].tolist() == [0.2, 0.8]


def curve(record: Record, name: str) -> list[list[float]]:
    table = gpu_curves(record)
    values: list[list[float]] = table.loc[table["name"] == name, ["ts_ns", "value"]].values.tolist()
    return values


def test_utilisation_is_counted_in_a_hundred_buckets_at_most() -> None:
    """As in the plugin: of 105 us, ten buckets of 10 us, the last with what remains."""
    us = 1_000
    record = trace_of(
        op("aten::mm", ts=0, dur=105 * us),
        kernel("k", ts=5 * us, dur=10 * us),
        kernel("k", ts=95 * us, dur=10 * us),
        copy(ts=50 * us, dur=10 * us),
    )
    found = curve(record, "utilisation")
    assert [ts for ts, _ in found] == [10 * us * i for i in range(10)] + [105 * us]
    assert [value for _, value in found] == [0.5, 0.5, *[0] * 7, pytest.approx(2 / 3), 0]
    shorter = trace_of(kernel("k", ts=0, dur=50 * us), op("end", ts=0, dur=100 * us))
    assert len(curve(shorter, "utilisation")) == 101


def test_sm_efficiency_is_of_kernels_side_by_side_and_at_most_one() -> None:
    """As in the plugin: their blocks per SM add up, and more than one is one."""
    record = trace_of(
        laid_out("a", ts=0, dur=100, blocks=0.25),
        laid_out("b", ts=50, dur=50, blocks=0.5, stream=9),
        laid_out("c", ts=90, dur=30, blocks=0.75, stream=11),
    )
    assert curve(record, "sm_efficiency") == [
        *([0, 0.25], [50, 0.75], [90, 1.0], [100, 0.75], [120, 0.0])
    ]
    (whole,) = gpu_summary(record)["sm_efficiency"]
    assert whole == pytest.approx((50 * 0.25 + 40 * 0.75 + 10 + 20 * 0.75) / 120)


def test_a_summary_says_what_a_trace_lacks() -> None:
    cpu = gpu_summary(trace_of(op("aten::mm", ts=0, dur=9)))
    assert why_empty(cpu) == "the trace has no kernels: there is no use of a GPU to sum up"
    bare = gpu_summary(trace_of(kernel("k", ts=0, dur=5)))
    assert bare[["sm_efficiency", "occupancy"]].isna().all(axis=None)


def test_on_real_traces_groupings_agree_and_shares_are_shares(shared_record: Record) -> None:
    by_name = kernels(shared_record)
    for by in ("geometry", "kind"):
        table = kernels(shared_record, by=by)
        for key in ("calls", "total_ns"):
            assert table[key].sum() == by_name[key].sum()
    for key in ("share", "eligible_share"):
        assert by_name[key].between(0, 1).all()
    ordered = by_name[["min_ns", "p50_ns", "p90_ns", "p99_ns", "max_ns"]].to_numpy(np.float64)
    assert (np.diff(ordered, axis=1) >= -1e-6).all()
    summary = gpu_summary(shared_record)
    for key in ("utilisation", "sm_efficiency", "tensor_core_share"):
        assert summary[key].dropna().between(0, 1 + 1e-9).all()
    if len(summary):
        assert (summary["sm_efficiency"].fillna(0) <= summary["utilisation"] + 1e-9).all()


def test_sums_and_spreads_equal_those_of_hta(shared: Shared) -> None:
    """HTA's table has microseconds, and calls a wait for an event a kernel."""
    path = shared("hta/nccl_a100_rank0_of_2.json.gz")
    _, theirs = hta(path).get_gpu_kernel_breakdown(
        visualize=False, num_kernels=10_000, duration_ratio=1.0, include_memory_kernels=True
    )
    ours = kernels(load(path)).set_index("name")
    theirs = theirs.set_index("name").reindex(ours.index)
    for column, unit in (
        *(("total_ns", "sum (us)"), ("average_ns", "mean (us)"), ("min_ns", "min (us)")),
        *(("max_ns", "max (us)"), ("std_ns", "stddev")),
    ):
        assert ours[column].to_numpy(np.float64) / 1000 == pytest.approx(
            theirs[unit].to_numpy(np.float64), rel=1e-6, abs=1e-3
        )
