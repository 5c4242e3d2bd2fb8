"""The time in which the recording asks for memory amid a launch: no op's, and no first call."""

from __future__ import annotations

import pytest

from gpuprof_widgets.analyses.cold_start import cold_spans, cold_start, recording_time
from gpuprof_widgets.analyses.findings import findings
from gpuprof_widgets.analyses.findings.finding import Finding, code
from gpuprof_widgets.capture.frame_filter import without_profiler_slices
from gpuprof_widgets.trace.model import Record
from tests.traces import Row, annotation, kernel, op, runtime, trace_of

pytestmark = pytest.mark.slow

US, MS = 1_000, 1_000_000


def overhead(name: str, ts: int, dur: int) -> Row:
    """As Kineto writes it: of no thread of the program."""
    return Row(name, "overhead", ts, dur, process="-1", thread="0")


def run(name: str, took_ns: int) -> Record:
    """Two copies, the first of which is that much longer, for something of that name."""
    second = took_ns + 300 * US
    return trace_of(
        op("aten::copy_", ts=0, dur=took_ns + 200 * US),
        overhead(name, 10 * US, took_ns),
        runtime("cudaLaunchKernel", ts=took_ns + 50 * US, dur=20 * US),
        kernel("copy", ts=took_ns + 80 * US, dur=100 * US, launched_by=2),
        op("aten::copy_", ts=second, dur=100 * US),
        runtime("cudaLaunchKernel", ts=second + 10 * US, dur=20 * US),
        kernel("copy", ts=second + 40 * US, dur=100 * US, launched_by=5),
        wall_ns=second + MS,
    )


def rule(record: Record, name: str) -> Finding:
    (found,) = (one for one in findings(record) if one.rule == name)
    return found


def test_the_gpu_waited_for_the_recording() -> None:
    record = run("Activity Buffer Request", 4 * MS)
    start, end = recording_time(record.trace)
    assert (start.tolist(), end.tolist()) == ([10 * US], [10 * US + 4 * MS])
    idle = rule(record, "device_idle")
    assert idle.title == "GPU 0 is idle, mostly during the recording's own work"
    assert "mostly while the recording asked for memory (4.00 ms, " in idle.text
    assert "went into the recording itself" in idle.remedy
    assert "cold_calls" not in {one.rule for one in findings(record)}
    assert len(cold_start(record)) == 0


def test_a_launch_outside_of_all_ops_is_held_up_as_well() -> None:
    """As those of graphs and of Triton: Python ran, as far as the trace tells."""
    record = trace_of(
        op("aten::ones", ts=0, dur=10 * US),
        overhead("Activity Buffer Request", 20 * US, 4 * MS),
        runtime("cudaGraphLaunch", ts=4100 * US, dur=20 * US),
        kernel("gemm", ts=4200 * US, dur=100 * US, launched_by=2),
    )
    assert "mostly while the recording asked for memory" in rule(record, "device_idle").text


def test_a_thread_that_launches_meanwhile_is_not_held_up() -> None:
    record = trace_of(
        overhead("Activity Buffer Request", 10 * US, 4 * MS),
        runtime("cudaLaunchKernel", ts=100 * US, dur=20 * US),
        kernel("gemm", ts=200 * US, dur=100 * US, launched_by=1),
    )
    assert len(recording_time(record.trace)[0]) == 0


def test_less_than_half_of_the_idle_time_is_not_blamed_on_the_recording() -> None:
    record = trace_of(
        op("aten::copy_", ts=0, dur=900 * US),
        overhead("Activity Buffer Request", 10 * US, 400 * US),
        runtime("cudaLaunchKernel", ts=850 * US, dur=20 * US),
        kernel("copy", ts=880 * US, dur=100 * US, launched_by=2),
    )
    idle = rule(record, "device_idle")
    assert "while PyTorch's ops prepared launches (" in idle.text
    assert "recording" not in idle.text + idle.remedy


def test_loading_a_function_is_a_first_call_that_the_program_pays_for() -> None:
    record = run("Lazy Function Loading", 4 * MS)
    assert len(recording_time(record.trace)[0]) == 0
    assert cold_start(record)["kind"].tolist() == ["first op"]
    assert rule(record, "device_idle").title.endswith("first calls load kernels")


def test_a_first_op_is_slow_by_its_own_time_alone() -> None:
    """All of the op but the recording's part counts: the spans do not share a nanosecond."""
    record = trace_of(
        op("aten::copy_", ts=0, dur=6 * MS),
        overhead("Activity Buffer Request", MS, 2 * MS),
        runtime("cudaLaunchKernel", ts=5 * MS, dur=20 * US),
        kernel("copy", ts=5500 * US, dur=100 * US, launched_by=2),
        op("aten::copy_", ts=7 * MS, dur=100 * US),
        runtime("cudaLaunchKernel", ts=7010 * US, dur=20 * US),
        kernel("copy", ts=7040 * US, dur=100 * US, launched_by=5),
    )
    assert cold_start(record)["kind"].tolist() == ["first op"]
    start, end = cold_spans(record)
    assert list(zip(start.tolist(), end.tolist(), strict=True)) == [(0, MS), (3 * MS, 6 * MS)]


def test_its_cost_is_told_with_that_of_the_events() -> None:
    record = run("Activity Buffer Request", 4 * MS)
    record.metadata["overhead"] = {"events": 7, "estimate_ns": 10 * US}
    finding = rule(record, "overhead")
    assert finding.cost_ns == 4 * MS + 10 * US
    assert " 4.00 ms of that went into asking for memory. Short ops" in finding.text


@pytest.mark.parametrize("category", ["overhead", "cuda_sync"])
def test_what_is_noted_of_our_wait_is_not_the_runs(category: str) -> None:
    trace = trace_of(
        annotation("cell", ts=10, dur=100),
        Row("inside", category, 50, 10, process="-1", thread="0"),
        Row("of our wait", category, 111, 900, process="-1", thread="0"),
    ).trace
    kept = without_profiler_slices(trace, "cell")
    assert sorted(kept.slices["name"].astype(str)) == ["cell", "inside"]
    assert kept.span_ns == 100


def test_a_compiled_graph_has_a_name_that_can_be_read() -> None:
    name = "## Call CompiledFxGraph fszhy3u5rgqfqtiq5plxm6dkrdiwhcctfnxzvqd ##"
    assert code(name) == "`CompiledFxGraph fszhy3`"
