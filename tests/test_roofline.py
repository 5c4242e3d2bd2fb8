"""Work, speed and roof of ops and kernels, on traces whose truth is known."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from gpuprof_widgets import measured_peaks
from gpuprof_widgets.analyses.gpu_peaks import KNOWN_GPUS, busiest_device, known_peaks, peaks_of
from gpuprof_widgets.analyses.gpu_work import COMPUTE, gpu_kinds
from gpuprof_widgets.analyses.reasons import why_empty
from gpuprof_widgets.analyses.roofline import GROUPINGS, roofline, work_pieces
from gpuprof_widgets.capture import environment as measuring
from gpuprof_widgets.exceptions import OptionError
from gpuprof_widgets.trace.known_metadata import Peaks
from gpuprof_widgets.trace.model import Record
from gpuprof_widgets.trace.window import window
from gpuprof_widgets.views.panels.kernels import roofline_panel
from tests.traces import Row, kernel, op, runtime, trace_of

PEAKS = Peaks("made up", {"fp32": 1e9, "tf32": 8e9, "fp16": 1e10}, 1e8, "this test")
"""A roof with its ridge at 10 FLOPs per byte in fp32."""


def launched(
    name: str, *, ts: int, dur: int, shapes: list[Any], gpu: str = "gemm", kind: str = "float"
) -> list[Row]:
    """An op and its kernel, ``dur`` long."""
    types = [kind if shape else "Scalar" for shape in shapes]
    return [
        op(name, ts=ts, dur=10, shapes=shapes, **{"Input type": types, "External id": ts + 1}),
        kernel(gpu, ts=ts + 20, dur=dur, **{"External id": ts + 1}),
    ]


def product(side: int, *, ts: int, dur: int, **given: Any) -> list[Row]:
    return launched("aten::mm", ts=ts, dur=dur, shapes=[[side, side], [side, side]], **given)


def only(record: Record, **given: Any) -> dict[str, Any]:
    table = roofline(record, peaks=PEAKS, **given)
    assert len(table) == 1
    return dict(table.iloc[0])


def test_a_product_of_large_matrices_is_bound_by_compute() -> None:
    row = only(trace_of(*product(100, ts=0, dur=4_000_000)))
    assert (row["flops"], row["bytes"]) == (2_000_000, 120_000)
    assert row["flops_per_s"] == pytest.approx(5e8)
    assert row["bytes_per_s"] == pytest.approx(3e7)
    assert row["intensity"] == pytest.approx(2_000_000 / 120_000)
    assert (row["bound"], row["roof_share"]) == ("compute", pytest.approx(0.5))


def test_a_product_of_small_matrices_is_bound_by_memory() -> None:
    row = only(trace_of(*product(12, ts=0, dur=34_560)))
    assert row["intensity"] == pytest.approx(2)
    assert (row["bound"], row["roof_share"]) == ("memory", pytest.approx(0.5))


def test_an_op_that_only_moves_data_is_bound_by_memory() -> None:
    rows = launched("aten::relu", ts=0, dur=1000, shapes=[[10]], gpu="elementwise")
    row = only(trace_of(*rows))
    assert (row["flops"], row["bytes"], row["bound"]) == (0, 80, "memory")
    assert np.isnan(row["flops_per_s"])


def test_of_an_op_without_formula_nothing_is_claimed() -> None:
    row = only(trace_of(*launched("my::op", ts=0, dur=1000, shapes=[[10]])))
    assert (row["flops"], row["bytes"], row["bytes_counted"], row["bound"]) == (0, -1, "", "")
    assert np.isnan(row["bytes_per_s"])
    assert np.isnan(row["intensity"])


def test_a_kernel_in_tf32_has_the_roof_of_tf32() -> None:
    fast = product(100, ts=0, dur=1000, gpu="ampere_sgemm_tf32_128x64")
    table = roofline(trace_of(*fast, *product(100, ts=5000, dur=4000)), peaks=PEAKS)
    assert dict(zip(table["dtype"], table["peak_flops_per_s"], strict=True)) == {
        "fp32": 1e9,
        "tf32": 8e9,
    }


def test_shapes_and_formats_are_told_apart() -> None:
    record = trace_of(
        *product(10, ts=0, dur=10),
        *product(10, ts=100, dur=10),
        *product(20, ts=200, dur=50),
        *product(10, ts=300, dur=5, kind="c10::Half"),
    )
    by_op, by_shape = roofline(record), roofline(record, by="shape")
    assert by_op[["dtype", "calls", "time_ns"]].values.tolist() == [["fp32", 3, 70], ["fp16", 1, 5]]
    assert by_shape["calls"].tolist() == [1, 2, 1]
    assert by_shape["input_shapes"].iloc[0] == "[[20, 20], [20, 20]]"


def test_several_kernels_of_one_op_share_its_work_by_their_time() -> None:
    record = trace_of(
        op("aten::mm", ts=0, dur=50, shapes=[[10, 10]] * 2, **{"Input type": ["float"] * 2}),
        runtime("cudaLaunchKernel", ts=5, dur=5),
        runtime("cudaLaunchKernel", ts=15, dur=5),
        kernel("transpose", ts=60, dur=10, launched_by=1),
        kernel("gemm", ts=70, dur=30, launched_by=2),
    )
    table = roofline(record, by="kernel").set_index("name")
    assert table["flops"].to_dict() == {"gemm": 1500, "transpose": 500}
    assert table["op"].tolist() == ["aten::mm"] * 2
    assert roofline(record)["calls"].tolist() == [1]


def test_half_a_kernel_did_half_the_work() -> None:
    record = trace_of(*product(10, ts=0, dur=100))
    halves = [roofline(window(record, t0, t1)) for t0, t1 in ((0, 70), (70, 200))]
    assert [half["flops"].sum() for half in halves] == [1000, 1000]
    assert [half["calls"].sum() for half in halves] == [1, 0]


def test_on_a_cpu_the_time_is_the_ops_with_what_it_calls() -> None:
    record = trace_of(
        op("aten::linear", ts=0, dur=100),
        op("aten::addmm", ts=10, dur=80, shapes=[[4], [2, 3], [3, 4]], **floats(3)),
        op("aten::copy_", ts=20, dur=30, shapes=[[2, 4], [4]], **floats(2)),
        op("aten::view", ts=200, dur=50, shapes=[[2, 4]], **floats(1)),
    )
    row = only(record)
    assert (row["name"], row["time_ns"], row["flops"]) == ("aten::addmm", 80, 48)
    note = roofline(record).attrs["note"]
    assert "no peaks of this CPU" in note
    assert "measured_peaks() measures them" in note


def floats(number: int) -> dict[str, Any]:
    return {"Input type": ["float"] * number}


class TestPeaks:
    def test_a_known_gpu_has_its_data_sheet(self) -> None:
        devices = [{"index": 0, "name": "NVIDIA H100 80GB HBM3"}]
        table = roofline(trace_of(*product(10, ts=0, dur=10), devices=devices))
        assert table["peak_bytes_per_s"].tolist() == [3.35e12]
        assert "data sheet" in table.attrs["note"]
        assert table.attrs["peaks"]["device"] == "NVIDIA H100 80GB HBM3"

    def test_an_unknown_gpu_is_named_and_intensity_given(self) -> None:
        devices = [{"index": 0, "name": "Own GPU"}]
        table = roofline(trace_of(*product(10, ts=0, dur=10), devices=devices))
        assert "'Own GPU' is not in the table" in table.attrs["note"]
        assert table["intensity"].notna().all()
        assert table["roof_share"].isna().all()
        assert table["bound"].tolist() == [""]

    def test_what_was_measured_in_the_run_comes_before_the_data_sheet(self) -> None:
        devices = [{"index": 0, "name": "NVIDIA H100 80GB HBM3"}]
        record = trace_of(*product(10, ts=0, dur=10), devices=devices, peaks=PEAKS.as_dict())
        assert roofline(record)["peak_bytes_per_s"].tolist() == [1e8]

    @pytest.mark.parametrize(
        ("name", "memory", "giga"),
        [
            ("NVIDIA A100-SXM4-80GB", None, 2039),
            ("NVIDIA A100-PG509-200", 42_297_524_224, 1555),
            ("AMD Instinct MI300X", None, 5300),
            ("NVIDIA A100-PG509-200", 85_000_000_000, None),
            ("NVIDIA A100-SXM4-40GB MIG 1g.5gb", None, None),
            ("NVIDIA A10G", None, None),
        ],
    )
    def test_names(self, name: str, memory: int | None, giga: float | None) -> None:
        found = known_peaks(name, memory)
        assert (found and found.bytes_per_s / 1e9) == giga

    @pytest.mark.parametrize("name", ["NVIDIA H100", "AMD Instinct MI300X"])
    def test_figures_are_those_that_torch_has(self, name: str) -> None:
        """Torch halves what NVIDIA gives with sparsity, plain fp32 and fp64 by mistake as well."""
        device_info = pytest.importorskip("torch._inductor.analysis.device_info")
        ours, theirs = known_peaks(name), device_info.lookup_device_info(name)
        assert ours is not None
        assert theirs is not None
        for dtype, key in {
            "bf16": torch.bfloat16,
            "fp16": torch.float16,
            "int8": torch.int8,
        }.items():
            dense = theirs.tops[key] / theirs.tops_sparsity_factor
            assert ours.flops_per_s[dtype] / 1e12 == pytest.approx(dense)
        assert ours.bytes_per_s / 1e9 == theirs.dram_bw_gbs

    def test_every_row_has_a_source_and_faster_formats_are_not_slower(self) -> None:
        for gpu in KNOWN_GPUS:
            assert "data sheet" in gpu.source or "white paper" in gpu.source
            order = [gpu.tera[name] for name in ("fp64", "fp32", "tf32") if name in gpu.tera]
            assert order == sorted(order)
            assert gpu.tera["fp16"] > gpu.tera["fp32"]

    def test_a_format_that_is_none_is_refused(self) -> None:
        with pytest.raises(OptionError, match="no such number format: fp12"):
            Peaks("x", {"fp12": 1.0}, 1.0, "")


def test_peaks_of_this_machine_are_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(measuring.SIDES, "cpu", 64)
    monkeypatch.setitem(measuring.COPIED_BYTES, "cpu", 2**16)
    allowed = torch.backends.cuda.matmul.allow_tf32
    found = measured_peaks("cpu", dtypes=("fp32", "tf32"), seconds=0.0)
    assert list(found.flops_per_s) == ["fp32"]  # a CPU has no TF32
    assert found.bytes_per_s > 0
    assert (found.source, "CPU" in found.device) == ("measured", True)
    assert torch.backends.cuda.matmul.allow_tf32 == allowed


def test_speed_is_work_by_the_time_of_the_best_round(monkeypatch: pytest.MonkeyPatch) -> None:
    times = iter([9.0, 1.0, 4.0, 3.0, 2.0, 5.0, 6.0] * 2)
    monkeypatch.setattr(measuring, "_timed", lambda work, calls, where: next(times))
    found = measured_peaks("cpu", dtypes=["fp32"])
    assert found.flops_per_s["fp32"] == 2 * measuring.SIDES["cpu"] ** 3 / 2.0
    assert found.bytes_per_s == 2 * measuring.COPIED_BYTES["cpu"] / 2.0


@pytest.mark.gpu
def test_a_gpu_comes_near_its_data_sheet() -> None:
    if not torch.cuda.is_available():
        pytest.skip("needs CUDA")
    found = measured_peaks("cuda", dtypes=["fp32"])
    known = known_peaks(found.device)
    if known is None:
        pytest.skip(f"{found.device} is not in the table")
    assert 0.3 < found.bytes_per_s / known.bytes_per_s < 1.05


def test_what_cannot_be_measured_or_grouped_is_refused() -> None:
    with pytest.raises(OptionError, match="cannot measure fp8"):
        measured_peaks("cpu", dtypes=["fp8"])
    with pytest.raises(OptionError, match="op, shape, kernel"):
        roofline(trace_of(), by="line")


def test_all_groupings_add_up_on_real_traces(shared_record: Record) -> None:
    trace = shared_record.trace
    tables = [roofline(shared_record, by=by) for by in GROUPINGS]
    if why_empty(tables[0]):
        return
    assert tables[0]["flops"].sum() == pytest.approx(tables[1]["flops"].sum(), abs=len(tables[1]))
    unknown = tables[0]["bytes"] == -1
    assert (tables[0]["bytes"][~unknown] >= 0).all()
    assert tables[0]["bytes_per_s"][unknown].isna().all()
    if not len(trace.index.gpu):
        return
    rows, kind = gpu_kinds(trace)
    compute = int(trace.slices["dur"].to_numpy()[rows[kind == COMPUTE]].sum())
    assert [int(table["time_ns"].sum()) for table in tables] == [compute] * 3
    assert tables[2]["flops"].sum() == pytest.approx(tables[0]["flops"].sum(), rel=1e-6, abs=500)
    counted = tables[2][tables[2]["flops"] > 1e9]
    # No kernel is faster than the device, but for what a cache saves and what is not dense.
    assert (counted["flops_per_s"] <= 1.05 * counted["peak_flops_per_s"].fillna(np.inf)).all()


CACHES = {"V100": 6e6, "A100": 40e6, "H100": 50e6, "MI300X": 256e6}
"""Bytes of the last cache before memory, by data sheet: what may be there when an op begins, and
as much may be there when it ends."""
TICK = 1000
"""Older traces tell whole microseconds."""


def test_no_op_moves_or_computes_more_than_its_device_can(shared_record: Record) -> None:
    roof = peaks_of(shared_record, busiest_device(shared_record))
    cache = next((size for gpu, size in CACHES.items() if roof and gpu in roof.device), None)
    if roof is None or cache is None:
        pytest.skip("the data sheet of its device is not known")
    pieces = work_pieces(shared_record)
    pieces["peak"] = pieces["dtype"].map(roof.flops_per_s).fillna(np.inf)
    calls = pieces[pieces["op_row"] >= 0].groupby("op_row")
    work = calls[["flops", "bytes", "time_ns"]].sum()
    seconds = (work["time_ns"] + TICK) / 1e9
    assert not (work["bytes"] > 1.05 * (roof.bytes_per_s * seconds + 2 * cache)).any()
    # A product in TF32 adds its parts up by a kernel in fp32, which has a share of the FLOPs.
    assert not (work["flops"] > 1.05 * calls["peak"].max() * seconds).any()


def test_the_note_says_what_is_above_the_roof_and_what_is_unknown() -> None:
    rows = launched("aten::relu", ts=0, dur=100, shapes=[[100]])
    unknown = launched("my::op", ts=1000, dur=300, shapes=[[10]])
    note = roofline(trace_of(*rows, *unknown), peaks=PEAKS).attrs["note"]
    assert "1 row is above the roof" in note
    assert "how many bytes were moved is not known for 75 % of the time" in note
    slow = launched("aten::relu", ts=0, dur=100_000, shapes=[[100]])
    assert ";" not in roofline(trace_of(*slow), peaks=PEAKS).attrs["note"]


def test_the_panel_shows_unknown_bytes_as_unknown() -> None:
    of_sparse: dict[str, Any] = {"Input type": ["float"] * 2, "Input Strides": [[], [3, 1]]}
    record = trace_of(
        *product(2, ts=0, dur=10),
        op("aten::mm", ts=100, dur=10, shapes=[[3, 3]] * 2, **of_sparse, **{"External id": 7}),
        kernel("gemm", ts=120, dur=5, **{"External id": 7}),
    )
    panel = roofline_panel(record)
    assert panel is not None
    assert np.isnan(panel.rows["bytes"]).tolist() == [False, True]


def test_the_panel_has_its_points_and_the_roofs_that_they_need() -> None:
    record = trace_of(
        *product(100, ts=0, dur=10), *product(10, ts=100, dur=50), peaks=PEAKS.as_dict()
    )
    panel = roofline_panel(record)
    assert panel is not None
    assert panel.points is not None
    assert panel.events is not None
    (roof,) = panel.points.lines
    assert roof[2] == "fp32"
    assert roof[0][1] == 10  # the ridge
    assert roof[1][1:] == (1e9, 1e9)
    assert panel.rows["time_ns"].tolist() == [50, 10]
    assert panel.events["group"].tolist() == [1, 0]
    assert panel.events["flops"].tolist() == [2e6, 2e3]
    assert roofline_panel(trace_of()) is None


def test_the_panel_draws_no_points_where_no_op_has_any() -> None:
    panel = roofline_panel(trace_of(*launched("aten::copy_", ts=0, dur=9, shapes=[[10], [10]])))
    assert panel is not None
    assert panel.points is None
