"""The rule on the critical path at its threshold and just below it; what it says."""

from __future__ import annotations

import pytest

from gpuprof_widgets.analyses.findings import findings
from gpuprof_widgets.analyses.findings.critical_path import critical_path_bound
from gpuprof_widgets.analyses.findings.kernels import gpu_ops
from gpuprof_widgets.analyses.findings.uneven_calls import about_one_call
from gpuprof_widgets.analyses.what_if import what_if
from gpuprof_widgets.trace.model import Record
from tests.traces import annotation, kernel, op, runtime, trace_of


def cpu_bound(worth: int) -> Record:
    """In 1000 ns the CPU does one op for so long, and Python; the GPU has next to nothing to do."""
    return trace_of(
        annotation("step", ts=0, dur=1000),
        op("aten::mm", ts=100, dur=worth),
        runtime("cudaLaunchKernel", ts=101, dur=2),
        kernel("gemm", ts=110, dur=10, launched_by=2),
    )


CASES = {"critical_path": (cpu_bound(50), cpu_bound(49))}
"""A trace that fires the rule, and one just below its threshold."""


def gpu_bound() -> Record:
    """The GPU works off two kernels that were launched at once."""
    return trace_of(
        op("aten::mm", ts=0, dur=20),
        runtime("cudaLaunchKernel", ts=5, dur=5),
        op("aten::add", ts=20, dur=20),
        runtime("cudaLaunchKernel", ts=25, dur=5),
        kernel("gemm", ts=15, dur=700, launched_by=1),
        kernel("add", ts=715, dur=285, launched_by=3),
    )


def test_its_evidence_is_every_call_on_the_path_and_its_title_the_saving() -> None:
    record = trace_of(
        annotation("step", ts=0, dur=1000),
        op("aten::mm", ts=100, dur=100),
        runtime("cudaLaunchKernel", ts=101, dur=2),
        op("aten::mm", ts=300, dur=200),
        op("aten::mm", ts=400, dur=300, thread="beside"),
        kernel("gemm", ts=110, dur=10, launched_by=2),
    )
    (said,) = critical_path_bound(record)
    assert said.title == "The run waits for `aten::mm` on the CPU: 30 %"
    assert (said.cost_ns, said.share) == (300, 0.3)
    calls = record.trace.slices.iloc[list(said.rows)]
    assert calls["ts"].tolist() == [100, 300]
    assert (said.start_ns, said.end_ns) == (300, 500)


def one_call(took: int) -> Record:
    """A call of the runtime, in an op that takes 100 ns besides; then a kernel of 5 ns."""
    return trace_of(
        op("aten::to", ts=0, dur=100 + took),
        runtime("cudaDeviceGetStreamPriorityRange", ts=10, dur=took),
        op("aten::relu", ts=100 + took, dur=20),
        runtime("cudaLaunchKernel", ts=102 + took, dur=5),
        kernel("relu", ts=125 + took, dur=5, launched_by=3),
    )


def test_one_long_call_is_warmed_up_not_fused() -> None:
    """More than half of the CPU's part of the path: no batch size changes it."""
    (said,) = critical_path_bound(one_call(9_000))
    assert said.remedy.startswith(
        "Most of the CPU's time is one call of `cudaDeviceGetStreamPriorityRange` (9.00 µs): "
    )
    assert said.remedy.endswith(
        "No kernel or copy would save more than 5 ns (0.1 %) if it cost nothing."
    )
    (less,) = critical_path_bound(one_call(90))
    assert less.remedy.startswith("Give the CPU less to do: fewer, larger ops")


def amid_the_run(name: str, *, launches: str = "") -> Record:
    """A call of 9 us that is made after the first GPU work, in an op; it may launch a kernel."""
    launched = [kernel(launches, ts=9_600, dur=5, launched_by=4)] if launches else []
    return trace_of(
        op("aten::relu", ts=0, dur=20), runtime("cudaLaunchKernel", ts=2, dur=5),
        kernel("relu", ts=25, dur=5, launched_by=1),
        op("aten::to", ts=500, dur=9_100), runtime(name, ts=550, dur=9_000), *launched,
        op("aten::relu", ts=9_700, dur=20), runtime("cudaLaunchKernel", ts=9_702, dur=5),
        kernel("relu", ts=9_725, dur=5, launched_by=5 + len(launched) + 1),
    )  # fmt: skip


@pytest.mark.parametrize(
    ("name", "launches", "said"),
    [
        ("cudaHostAlloc", "", "it pins CPU memory"),
        ("cudaMalloc", "", "the allocator had no cached block of this size"),
        ("cudaFree", "", "it returns memory to the driver"),
        ("cudaMemcpy", "", "the CPU launches nothing until it returns"),
        ("cudaLaunchKernel", "gemm", "the first launch of a kernel loads it"),
        ("cudaLaunchKernel", "gemm\0", "the first launch of a kernel loads it"),
        ("cudaLaunchKernel", "relu", "other launches take microseconds"),
        ("cuModuleLoadData", "", "it loads kernels"),
        ("cudaStreamCreate", "", "move it before the timed part"),
    ],
)
def test_a_long_call_amid_the_run_is_told_of_by_what_it_is(
    name: str, launches: str, said: str
) -> None:
    """It is not what sets the GPU up, even where it is the first of its name."""
    record = amid_the_run(name, launches=launches)
    row = record.trace.slices.index[record.trace.slices["dur"] == 9_000][0]
    assert about_one_call(record.trace, row).startswith(said)


def cpu_bound_beside(worth: int) -> Record:
    """The CPU waits once for a kernel of that length, in 1000 + that."""
    return trace_of(
        annotation("step", ts=0, dur=1000 + worth),
        op("aten::mm", ts=100, dur=200),
        runtime("cudaLaunchKernel", ts=101, dur=2),
        runtime("cudaStreamSynchronize", ts=310, dur=worth),
        kernel("void at::native::elementwise_kernel<4, Add>(int)", ts=110, dur=199 + worth,
               launched_by=2),
    )  # fmt: skip


def test_where_the_cpu_bounds_the_run_it_says_what_the_kernels_would_save() -> None:
    record = cpu_bound_beside(400)
    saved = int(what_if(record, "void at::native::elementwise_kernel<4, Add>(int)")["saved_ns"][0])
    (said,) = critical_path_bound(record)
    assert said.text.startswith("The run is bound by the CPU (56 % of its critical path).")
    assert saved == 399
    assert said.remedy.endswith(
        "Of all kernels and copies, `elementwise_kernel` would save the most if it cost "
        "nothing: 28 % (399 ns)."
    )


def test_of_a_busy_gpu_only_its_own_work_counts() -> None:
    """Of the op with the larger kernel, less what its launch and that of the other one take."""
    (said,) = critical_path_bound(gpu_bound())
    assert "The run is bound by the GPU (98 % of its critical path)." in said.text
    assert said.title == "The GPU bounds the run: `aten::mm` costs 70 %"


def test_of_the_op_that_a_busy_gpu_works_for_most_one_finding_says_all() -> None:
    (said,) = [one for one in findings(gpu_bound()) if "`aten::mm`" in one.title]
    assert said.rule == "critical_path"
    assert said.text.startswith("`aten::mm` caused 700 ns of GPU work in 1 call (70 % of the time")
    assert said.text.endswith("If `aten::mm` cost nothing, the run would be 70 % (700 ns) shorter.")
    (on_gpu,) = gpu_ops(gpu_bound())
    assert said.rows == on_gpu.rows
    assert said.remedy.startswith(on_gpu.remedy)
    (path,) = critical_path_bound(gpu_bound(), gpu_op_share=0.9)
    assert path.text.startswith("The run is bound by the GPU")
    assert path.remedy.startswith(
        "Of all kernels and copies, `gemm` would save the most if it cost nothing: 68 % (680 "
        "ns). Compute less"
    )


def half_gpu_bound(python: int) -> Record:
    """The CPU begins with Python for so long; then the GPU works for 1000 less that."""
    return trace_of(
        annotation("step", ts=0, dur=python),
        op("aten::mm", ts=python, dur=20),
        runtime("cudaLaunchKernel", ts=python, dur=5),
        kernel("gemm", ts=python, dur=1000 - python, launched_by=2),
    )


def test_of_a_run_bound_by_the_gpu_it_says_what_is_the_cpu_s() -> None:
    """It is as much of the run as the GPU was idle, waiting for the CPU."""
    (said,) = critical_path_bound(half_gpu_bound(250))
    assert "The run is bound by the GPU (75 % of its critical path)." in said.text
    assert "A faster GPU would not shorten the 25 % of the path that the CPU takes" in said.remedy
    (said,) = critical_path_bound(half_gpu_bound(49))
    assert "CPU" not in said.remedy


def test_without_gpu_work_it_is_silent() -> None:
    record = trace_of(annotation("step", ts=0, dur=1000), op("aten::mm", ts=100, dur=800))
    assert critical_path_bound(record) == []


def test_a_run_that_waits_for_data_is_left_to_the_rule_on_that() -> None:
    record = trace_of(
        annotation("enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", ts=0, dur=800),
        op("aten::mm", ts=800, dur=200),
        kernel("gemm", ts=850, dur=10),
    )
    assert critical_path_bound(record) == []
