"""CUDA and HIP graphs: one launch of many kernels, and the ops that were captured."""

from __future__ import annotations

import pytest

from gpuprof_widgets.analyses.attribution import attribution
from gpuprof_widgets.analyses.findings import findings
from gpuprof_widgets.analyses.kernels import kernels
from gpuprof_widgets.analyses.launches import launched_by, launches
from gpuprof_widgets.analyses.owners import (
    captured_calls,
    graph_launches,
    is_mostly_replayed,
    owners,
)
from gpuprof_widgets.trace.model import Record
from gpuprof_widgets.trace.readers import load
from tests.traces import Row, Shared, backward_op, kernel, module, op, runtime, trace_of

NODE = "graph node id"


def captured(*replays: Row, captures: int = 1) -> Record:
    """Two ops captured in a module, the second in the backward pass; and what replays them."""
    rows: list[Row] = []
    for number in range(captures):
        at = 200 * number
        rows += [
            runtime("cudaStreamBeginCapture", ts=at, dur=2),
            module("Net", ts=at + 5, dur=45),
            op("aten::mm", ts=at + 10, dur=30, sequence=1),
            runtime("cudaLaunchKernel", ts=at + 20, dur=5),
            *backward_op("MmBackward0", ts=at + 60, dur=40, sequence=1),
            runtime("cudaLaunchKernel", ts=at + 70, dur=5),
            runtime("cudaStreamEndCapture", ts=at + 110, dur=2),
        ]
    return trace_of(runtime("cudaGraphLaunch", ts=1000, dur=20), *replays, *rows)


def replayed() -> list[Row]:
    """The two kernels, of 100 ns each, one after the other."""
    return [
        kernel("gemm", ts=1030, dur=100, launched_by=0),
        kernel("gemm_bwd", ts=1130, dur=100, launched_by=0),
    ]


def ops_of(record: Record) -> dict[str, str]:
    rows = record.trace.index.gpu
    names = record.trace.slices["name"].to_numpy(object)[rows]
    return dict(zip(names, launched_by(record.trace, rows)["op_name"], strict=True))


def test_what_a_graph_replays_is_the_captured_ops() -> None:
    record = captured(*replayed())
    assert ops_of(record)["gemm"] == "aten::mm"
    assert "MmBackward0" in ops_of(record)["gemm_bwd"]
    table = attribution(record, "op").set_index("name")
    assert table.loc["aten::mm", ["device_ns", "backward_device_ns"]].tolist() == [100, 100]
    assert table.loc["", "device_ns"] == 0
    assert kernels(record).set_index("name").loc["gemm", "op_name"] == "aten::mm"


def test_the_chain_of_owners_goes_to_the_capture_and_its_module() -> None:
    record = captured(*replayed())
    names = record.trace.slices["name"].astype(str)
    chain = owners(record, int((names == "gemm").to_numpy().argmax()))
    pairs = list(zip(chain["role"], chain["name"], strict=True))
    assert pairs[-2:] == [("launch", "cudaGraphLaunch"), ("gpu", "gemm")]
    assert ("captured", "aten::mm") in pairs
    assert ("module", "Net") in pairs


def test_nodes_have_numbers_where_branches_run_at_once() -> None:
    """The one that was captured first begins last."""

    def at_once(*numbers: dict[str, int]) -> Record:
        later = kernel("gemm", ts=2030, dur=5000, launched_by=0, **numbers[0])
        first = kernel("gemm_bwd", ts=1030, dur=5000, launched_by=0, **numbers[1])
        return captured(later, first)

    assert ops_of(at_once({NODE: 7}, {NODE: 9}))["gemm"] == "aten::mm"
    assert set(ops_of(at_once({}, {})).values()) == {"cudaGraphLaunch"}


def test_stamps_of_a_row_of_kernels_overlap_a_little() -> None:
    def known(second: int) -> bool:
        first = kernel("gemm", ts=1030, dur=2000, launched_by=0)
        later = kernel("gemm_bwd", ts=second, dur=2000, launched_by=0)
        return bool((captured_calls(captured(first, later).trace) >= 0).any())

    assert known(3030 - 256)
    assert not known(3030 - 1000)


@pytest.mark.parametrize(
    "record",
    [
        captured(*replayed(), captures=2),
        captured(*replayed()[:1]),
        captured(*replayed(), kernel("more", ts=1300, dur=5, launched_by=0)),
        captured(*replayed(), captures=0),
        captured(
            *replayed(),
            runtime("cudaGraphLaunch", ts=2000, dur=20, correlation=7),
            kernel("other", ts=2030, dur=100, correlation=7),
            kernel("other_bwd", ts=2130, dur=100, correlation=7),
        ),
        captured(*replayed(), runtime("cudaStreamEndCapture", ts=-100, dur=1), captures=2),
    ],
    ids=[
        *("two captures alike", "fewer kernels", "more kernels", "no capture"),
        *("another graph that looks alike", "two captures after the end of an earlier one"),
    ],
)
def test_what_is_of_no_known_capture_belongs_to_the_launch(record: Record) -> None:
    assert (captured_calls(record.trace) == -1).all()
    assert set(ops_of(record).values()) == {"cudaGraphLaunch"}
    table = attribution(record, "op").set_index("name")
    on_gpu = int(record.trace.slices["dur"].to_numpy()[record.trace.index.gpu].sum())
    assert table.loc["cudaGraphLaunch", "device_ns"] == on_gpu
    assert table["device_ns"].sum() == on_gpu


@pytest.mark.parametrize(
    "odd",
    [
        runtime("cudaStreamEndCapture", ts=-100, dur=1),
        runtime("cudaStreamBeginCapture", ts=-100, dur=1),
    ],
    ids=["began before the trace", "failed and never ended"],
)
def test_a_capture_without_its_other_end_hides_no_other(odd: Row) -> None:
    assert ops_of(captured(*replayed(), odd))["gemm"] == "aten::mm"


def test_a_replay_within_an_op_is_the_ops_own() -> None:
    record = trace_of(
        op("CompiledFunction", ts=0, dur=100),
        runtime("cudaGraphLaunch", ts=10, dur=20),
        *(kernel("fused", ts=40 + 10 * n, dur=10, launched_by=1) for n in range(5)),
    )
    assert ops_of(record) == {"fused": "CompiledFunction"}
    assert attribution(record, "op").set_index("name")["device_ns"].to_dict() == {
        "CompiledFunction": 50,
        "": 0,
    }


def replaying(kernels_each: int, took: int, call: str = "cudaGraphLaunch") -> Record:
    """In 12,000 ns twelve calls of so long, each of which launches that many kernels of 1 ns."""
    rows: list[Row] = [op("train", ts=0, dur=12_000)]
    for number in range(12):
        at = len(rows)
        rows.append(runtime(call, ts=1000 * number, dur=took))
        for node in range(kernels_each):
            rows.append(kernel("k", ts=1000 * number + took + node, dur=1, launched_by=at))
    return trace_of(*rows)


def test_a_launch_is_short_by_all_that_it_launched() -> None:
    assert launches(replaying(kernels_each=400, took=399))["short"].sum() == 0
    assert launches(replaying(kernels_each=400, took=401))["short"].all()


def test_graphs_are_no_advice_where_graphs_are_replayed() -> None:
    """Seen: one launch of 400 kernels got "CUDA graphs (torch.compile with ...)"."""
    graphs = findings(replaying(kernels_each=400, took=500))
    assert {"launch_bound", "device_idle"} <= {finding.rule for finding in graphs}
    for finding in graphs:
        assert finding.rule != "short_kernels"
        assert "reduce-overhead" not in finding.remedy
        assert "launch less (" not in finding.remedy
    plain = findings(replaying(kernels_each=1, took=500, call="cudaLaunchKernel"))
    assert any("reduce-overhead" in finding.remedy for finding in plain)


def test_what_runs_beside_graphs_is_not_told_to_use_graphs() -> None:
    rows: list[Row] = [op("train", ts=0, dur=9000)]
    for number in range(2):
        rows.append(runtime("cudaGraphLaunch", ts=4000 * number, dur=40))
        graph = len(rows) - 1
        at = 4000 * number + 50
        rows += [kernel("node", ts=at + 2 * n, dur=2, launched_by=graph) for n in range(300)]
        for one in range(20):
            rows.append(op("aten::add_", ts=at + 700 + 100 * one, dur=95))
            rows.append(runtime("cudaLaunchKernel", ts=at + 705 + 100 * one, dur=40))
            rows.append(kernel("add", ts=at + 750 + 100 * one, dur=5, launched_by=len(rows) - 1))
    said = findings(trace_of(*rows))
    (short,) = (finding for finding in said if finding.rule == "short_kernels")
    assert "outside of the CUDA graphs" in short.remedy
    for finding in said:
        assert "reduce-overhead" not in finding.remedy
        assert "(torch.compile, CUDA graphs" not in finding.remedy


def test_launches_are_counted_and_not_what_they_launched() -> None:
    """400 kernels of one graph do not outvote twenty launches of single kernels."""
    rows: list[Row] = [op("train", ts=0, dur=3000)]
    for number in range(20):
        rows.append(runtime("cudaLaunchKernel", ts=100 * number, dur=80))
        rows.append(kernel("tiny", ts=100 * number + 85, dur=5, launched_by=len(rows) - 1))
    graph = len(rows)
    rows.append(runtime("cudaGraphLaunch", ts=2100, dur=40))
    rows += [kernel("node", ts=2150 + 2 * n, dur=2, launched_by=graph) for n in range(400)]
    (said,) = (f for f in findings(trace_of(*rows)) if f.rule == "short_kernels")
    assert said.text.startswith("20 of 21 launches (95 %) took longer than the kernel or copy")


@pytest.mark.parametrize(
    "name", ["vllm_piecewise_mi300_graphs", "vllm_decode_full_graphs", "sglang_decode_graphs"]
)
def test_all_gpu_time_of_real_replays_has_an_owner(name: str, shared: Shared) -> None:
    record = load(shared(f"tracelens/{name}.json.gz"))
    trace, table = record.trace, attribution(record, "op").set_index("name")
    dur, launch = (trace.slices[key].to_numpy() for key in ("dur", "launch"))
    rows = trace.index.gpu
    rows = rows[graph_launches(trace)[launch[rows]]]
    assert table.loc["hipGraphLaunch", "device_ns"] == dur[rows].sum()
    assert table["device_ns"].sum() == dur[trace.index.gpu].sum()
    assert is_mostly_replayed(trace)


@pytest.mark.parametrize("name", ["vllm_piecewise_mi300_graphs", "vllm_decode_full_graphs"])
def test_a_real_gpu_that_begins_late_is_not_waiting_for_launches(name: str, shared: Shared) -> None:
    said = findings(load(shared(f"tracelens/{name}.json.gz")))
    assert "launch_bound" not in {finding.rule for finding in said}
    (idle,) = (finding for finding in said if finding.rule == "device_idle")
    assert "The trace does not show why" in idle.remedy


def test_a_real_trace_of_the_gpu_alone_says_nothing_of_python(shared: Shared) -> None:
    for finding in findings(load(shared("tracelens/mi210_gpu_only.json.gz"))):
        assert "Python" not in f"{finding.text} {finding.remedy}"
