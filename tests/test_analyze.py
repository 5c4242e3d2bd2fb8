"""analyze(): the time, work and speed of single ops, and the command of the same name."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from gpuprof_widgets.analyses.analyze import analyze, op_totals
from gpuprof_widgets.analyses.op_bytes import output_shape
from gpuprof_widgets.analyses.op_calls import Call
from gpuprof_widgets.analyses.operators import operators
from gpuprof_widgets.analyses.reasons import why_empty
from gpuprof_widgets.exceptions import OptionError
from gpuprof_widgets.trace.archive import save
from gpuprof_widgets.trace.model import Record
from tests.command_lines import gpuprof
from tests.traces import copy, kernel, module, op, runtime, trace_of

Capsys = pytest.CaptureFixture[str]
FP32, FP16 = ["float", "float"], ["c10::Half", "c10::Half"]


def work() -> Record:
    """Two products of known work, an addition, a copy that is waited for, a kernel of nobody."""
    return trace_of(
        module("encoder.fc1", ts=0, dur=1_000),
        op("aten::mm", ts=100, dur=300, shapes=[[64, 32], [32, 16]], **{"Input type": FP32}),
        module("encoder.fc2", ts=1_000, dur=1_000),
        op("aten::mm", ts=1_100, dur=400, shapes=[[64, 32], [32, 16]], **{"Input type": FP16}),
        op("aten::add", ts=2_000, dur=200, shapes=[[8, 1], [1, 4]], **{"Input type": FP32}),
        runtime("cudaMemcpy", ts=3_000, dur=5_000),
        kernel("gemm", ts=500, dur=2_000, launched_by=1),
        kernel("gemm", ts=2_500, dur=1_000, launched_by=3),
        kernel("add", ts=3_500, dur=500, launched_by=4),
        copy(ts=4_000, dur=3_500, bytes=64, launched_by=5),
        kernel("lost", ts=7_500, dur=1_000),
    )


MM_FLOPS = 2 * 64 * 32 * 16


def by_name(table: pd.DataFrame, name: str = "name") -> dict[str, Any]:
    return dict(table.set_index(name).to_dict("index"))


def test_a_call_has_its_gpu_time_its_work_and_its_speed() -> None:
    table = analyze(work())
    first = by_name(table)["encoder.fc1/aten::mm"]
    assert (first["type"], first["calls"], first["device_self_ns"]) == ("aten::mm", 1, 2_000)
    assert first["computation_flops"] == MM_FLOPS
    assert first["memory_bytes"] == 4 * (64 * 32 + 32 * 16 + 64 * 16)
    assert first["flops_per_s"] == pytest.approx(MM_FLOPS / 2e-6)
    assert first["bandwidth_bytes_per_s"] == pytest.approx(first["memory_bytes"] / 2e-6)
    assert (first["in_shapes"], first["out_shapes"]) == ("[[64, 32], [32, 16]]", "[[64, 16]]")
    assert first["in_dtypes"] == "float, float"
    assert by_name(table)["aten::add"]["out_shapes"] == "[[8, 4]]"


def test_the_longest_come_first_and_the_shares_of_all_add_up_to_one() -> None:
    table = analyze(work())
    assert list(table["device_self_ns"]) == [3_500, 2_000, 1_000, 1_000, 500]
    assert table["share"].sum() == pytest.approx(1)
    assert list(table["cumulative_ns"]) == [3_500, 5_500, 6_500, 7_500, 8_000]
    assert table["cumulative_share"].iloc[-1] == 1
    lost = by_name(table)["lost"]  # launched by no op of the trace
    assert pd.isna(lost["computation_flops"])
    assert pd.isna(lost["memory_bytes"])
    assert {"encoder.fc1/aten::mm", "encoder.fc2/aten::mm"} <= set(table["name"])
    assert analyze(work(), types=["aten::add"])["share"].tolist() == [500 / 8_000]


def test_host_time_is_cpu_self_time_without_work_that_the_gpu_did() -> None:
    table = analyze(work(), side="host")
    assert by_name(table)["cudaMemcpy"]["host_self_ns"] == 5_000
    assert table["host_self_ns"].sum() == operators(work())["cpu_self_ns"].sum()
    assert table["flops_per_s"].isna().all()
    on_cpu = trace_of(
        op("aten::mm", ts=0, dur=100, shapes=[[2, 3], [3, 4]], **{"Input type": FP32})
    )
    assert analyze(on_cpu, side="host")["flops_per_s"].iloc[0] == pytest.approx(48 / 1e-7)


@pytest.mark.parametrize(
    ("aggregate", "time", "speed"),
    [
        ("sum", 3_000, 2 * MM_FLOPS / 3e-6),
        ("mean", 1_500, MM_FLOPS / 1.5e-6),
        ("max", 2_000, MM_FLOPS / 1e-6),
        ("min", 1_000, MM_FLOPS / 2e-6),
    ],
)
def test_calls_are_added_up_by_type(aggregate: str, time: float, speed: float) -> None:
    table = by_name(analyze(work(), by="type", aggregate=aggregate))
    assert table["aten::mm"]["calls"] == 2
    assert table["aten::mm"]["device_self_ns"] == time
    assert table["aten::mm"]["flops_per_s"] == pytest.approx(speed)


@pytest.mark.parametrize(
    ("filters", "times"),
    [
        ({"types": ["aten::mm"]}, [2_000, 1_000]),
        ({"types": ["aten::mm", "aten::add"]}, [2_000, 1_000, 500]),
        ({"input_dtype": "c10::Half"}, [1_000]),
        ({"input_dtype": "fp16"}, [1_000]),
        ({"input_dtype": "torch.float16"}, [1_000]),
        ({"input_dtype": "float32"}, [2_000, 500]),
        ({"input_dtype": "int8"}, []),
        ({"min_ns": 2_000}, [3_500, 2_000]),
        ({"max_ns": 1_000}, [1_000, 1_000, 500]),
        ({"min_ns": 1_000, "max_ns": 1_000}, [1_000, 1_000]),
        ({"op_name": r"encoder\.fc\d"}, [2_000, 1_000]),
        ({"op_name": "fc1"}, []),
        ({"top": 1}, [3_500]),
        ({"order_by": "+time"}, [500, 1_000, 1_000, 2_000, 3_500]),
        ({"order_by": "-device_self", "top": 2}, [3_500, 2_000]),
        ({"order_by": "memory", "top": 1}, [2_000]),
        ({"order_by": "bandwidth", "types": ["aten::mm"]}, [2_000, 1_000]),
        ({"order_by": "flops_per_s", "top": 1}, [1_000]),
    ],
)
def test_filters_and_order(filters: dict[str, Any], times: list[int]) -> None:
    assert list(analyze(work(), **filters)["device_self_ns"]) == times


@pytest.mark.parametrize(
    "wrong", [{"by": "colour"}, {"side": "gpu"}, {"aggregate": "sums"}, {"op_name": "(sums"}]
)
def test_a_wrong_word_is_told_the_right_ones(wrong: dict[str, str]) -> None:
    with pytest.raises(OptionError, match=r"colour|gpu|sums"):
        analyze(work(), **wrong)  # type: ignore[arg-type]


def test_the_totals_are_of_all_gpu_work_ops_copies_and_waits() -> None:
    totals = by_name(op_totals(work()), "what")
    assert totals["total device time"]["total_ns"] == 8_000
    assert totals["total host time"]["total_ns"] == 300 + 400 + 200 + 5_000
    assert (totals["copy time"]["calls"], totals["copy time"]["total_ns"]) == (1, 3_500)
    assert totals["copy wait time"]["total_ns"] == 5_000


def test_calls_add_up_to_the_trace_on_real_ones(shared_record: Record) -> None:
    if len(shared_record.trace) > 25_000:
        pytest.skip("the smaller ones will do")
    device, host = (analyze(shared_record, side=side) for side in ("device", "host"))
    totals = by_name(op_totals(shared_record), "what")
    if why_empty(device):
        assert totals["total device time"]["total_ns"] == 0
    else:
        assert device["device_self_ns"].sum() == totals["total device time"]["total_ns"]
        assert device["cumulative_share"].iloc[-1] == 1
    assert host["host_self_ns"].sum() == totals["total host time"]["total_ns"]


@pytest.mark.parametrize(
    ("name", "dims", "concrete", "shape"),
    [
        ("aten::addmm", [[16], [64, 32], [32, 16]], [], [64, 16]),
        ("aten::bmm", [[5, 2, 3], [5, 3, 4]], [], [5, 2, 4]),
        ("aten::linear", [[7, 64, 32], [16, 32]], [], [7, 64, 16]),
        (
            "aten::conv2d",
            [[8, 3, 32, 32], [16, 3, 3, 3], [16]],
            ["", "", "", "[2, 2]", "[1, 1]", "[1, 1]", "1"],
            [8, 16, 16, 16],
        ),
        ("aten::relu", [[3, 4]], [], [3, 4]),
        ("aten::add_", [[3, 4], [4]], [], [3, 4]),
        ("aten::mul", [[5, 1], [3]], [], [5, 3]),
        ("aten::mul", [[0, 3], [1, 3]], [], [0, 3]),
        ("aten::nonzero", [[3, 4]], [], None),
        ("aten::mm", [[3, 4]], [], None),
        ("aten::conv2d", [[8, 3, 32, 32], [16, 3, 3, 3]], [], None),
        ("my::op", [[3]], [], None),
    ],
)
def test_shapes_that_ops_return(
    name: str, dims: list[list[int]], concrete: list[str], shape: list[int] | None
) -> None:
    found = output_shape(Call(name, dims, ["float"] * len(dims), [], concrete))
    assert (found if found is None else list(found)) == shape


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    return save(work(), tmp_path / "work.gpuprof")


def test_the_command_prints_summary_and_device(trace: Path, capsys: Capsys) -> None:
    lines = gpuprof(capsys, "analyze", trace).out.splitlines()
    assert lines[0] == "summary"
    assert lines[2].split() == ["total", "device", "time", "5", "8.00", "µs", "1.60", "µs"]
    assert lines.index("device") == 7
    both = gpuprof(capsys, "analyze", trace, "--show-host").out.splitlines()
    assert [line for line in both if line in ("summary", "device", "host")] == [
        "summary",
        "device",
        "host",
    ]
    called = gpuprof(capsys, "analyze", trace, "--top-end-key", "kern")
    assert (called.code, "gpuprof launches TRACE" in called.err) == (2, True)
    host = gpuprof(capsys, "analyze", trace, "--print-only", "host").out
    assert "cudaMemcpy" in host
    assert "summary" not in host


@pytest.mark.parametrize(
    ("words", "keywords"),
    [
        ("--aggregate-by type --top 2", {"by": "type", "top": 2}),
        (
            "--aggregate-by name --aggregate max --order-by +computation",
            {"by": "name", "aggregate": "max", "order_by": "+computation"},
        ),
        ("--type aten::mm --type aten::add -t 2", {"types": ["aten::mm", "aten::add"], "top": 2}),
        ("--input-dtype fp16", {"input_dtype": "fp16"}),
        ("--min-time 1us --max-time 2us", {"min_ns": 1_000, "max_ns": 2_000}),
        ("--min-time 1e-6 --max-time 0.000002", {"min_ns": 1_000, "max_ns": 2_000}),
        ("--max-time 1", {"max_ns": 10**9}),
        ("-t 0", {}),
        ("--opr-name encoder.fc[12]/", {"op_name": "encoder.fc[12]/"}),
        ("--copy-time --top-end-key end", {}),
        ("--show-host", {"side": "host"}),
    ],
)
def test_the_commands_options_are_megengines(
    words: str, keywords: dict[str, Any], trace: Path, capsys: Capsys
) -> None:
    from gpuprof_widgets.trace.writers.tables import json_bytes

    called = gpuprof(capsys, "analyze", trace, *words.split(), "--json", "-")
    assert called.code == 0
    assert json.loads(called.out) == json.loads(json_bytes(analyze(work(), **keywords)))


@pytest.mark.parametrize("aggregate", ["sum", "mean", "max", "min"])
def test_the_work_of_a_group_is_known_where_that_of_all_its_calls_is(aggregate: str) -> None:
    record = trace_of(
        op("aten::mm", ts=0, dur=9, shapes=[[2, 3], [3, 4]], **{"Input type": FP32}),
        op("aten::mm", ts=10, dur=9),
        op("aten::bmm", ts=20, dur=8, shapes=[[5, 2, 3], [5, 3, 4]], **{"Input type": FP32}),
    )
    table = by_name(analyze(record, side="host", by="type", aggregate=aggregate))
    assert table["aten::bmm"]["computation_flops"] == 240
    assert pd.isna(table["aten::mm"]["computation_flops"])
    assert pd.isna(table["aten::mm"]["memory_bytes"])


def test_only_ops_are_dumped_to_be_compared(trace: Path, capsys: Capsys) -> None:
    assert gpuprof(capsys, "analyze", trace, "--dump-only-opr", "-t", 2).out.splitlines() == [
        "Memcpy HtoD (Pageable -> Device)",
        "encoder.fc1/aten::mm aten::mm",
    ]
    grouped = gpuprof(capsys, "analyze", trace, "--dump-only-opr", "--aggregate-by", "type").out
    assert "aten::mm 2" in grouped.splitlines()


@pytest.mark.parametrize("flag", ["--confluence", "--wiki"])
def test_tables_are_written_for_wikis(flag: str, trace: Path, capsys: Capsys) -> None:
    lines = gpuprof(capsys, "analyze", trace, flag, "--print-only", "device").out.splitlines()
    assert lines[0].startswith("| name | type | row | calls | device_self | share |")
    assert set(lines[1]) == set("| -:")
    assert lines[3].startswith("| encoder.fc1/aten::mm | aten::mm | 1 | 1 | 2.00 µs | 25 % |")
    assert {line.count("|") for line in lines} == {15 + 1}
