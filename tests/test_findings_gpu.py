"""Cold starts, GPU work that is not in the trace, and remedies for programs without PyTorch."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from gpuprof_widgets.analyses.cold_start import cold_start
from gpuprof_widgets.analyses.findings import Finding, findings
from gpuprof_widgets.analyses.findings.launches import launch_bound
from gpuprof_widgets.analyses.findings.other_programs import CUDA_WORDS, MEANS, in_cuda, in_hip
from gpuprof_widgets.analyses.findings.recording import overhead, unlinked
from gpuprof_widgets.analyses.findings.transfers import one_stream
from gpuprof_widgets.analyses.kernels import counted_gpu_rows
from gpuprof_widgets.trace.model import Record
from gpuprof_widgets.trace.readers import load
from gpuprof_widgets.trace.window import window
from tests.traces import Row, Shared, annotation, copy, kernel, op, runtime, trace_of

pytestmark = pytest.mark.slow

US, MS = 1_000, 1_000_000
GRAPHS = re.compile("CUDA graph|launches fewer")


def launching(calls: list[tuple[str, int]], *, after: int = 50 * US) -> Record:
    """Kernels whose launches take so long; each begins as its launch returns, and ends at once."""
    rows: list[Row] = []
    ts = 0
    for name, took in calls:
        rows.append(runtime("cudaLaunchKernel", ts=ts, dur=took))
        rows.append(kernel(name, ts=ts + took, dur=20 * US, launched_by=len(rows) - 1))
        ts += took + after
    return trace_of(*rows, op("train", ts=0, dur=ts - after + 20 * US))


def cold(took: int) -> Record:
    """In 100 ms mostly spent in an op, the first launch of a kernel takes so long."""
    last = (100 * MS - 20 * US - took - 2 * 10 * US) // 2
    return launching([("gemm", took), ("gemm", 10 * US), ("gemm", 10 * US)], after=last)


def without_gpu(*rows: Row, **metadata: object) -> Record:
    """Ten products, each of which launches a kernel that is not in the trace."""
    made: list[Row] = []
    for number in range(10):
        ts = number * 100 * US
        made.append(op("aten::mm", ts=ts, dur=60 * US, shapes=[[1024, 1024]] * 2,
                       **{"Input type": ["float", "float"]}))  # fmt: skip
        made.append(runtime("cudaLaunchKernel", ts=ts + US, dur=8 * US))
    return trace_of(*made, *rows, **metadata)


CASES = {
    "cold_calls": (cold(5 * MS), cold(5 * MS - 1)),
    "no_kernels": (without_gpu(), without_gpu(kernel("gemm", ts=50 * US, dur=9, launched_by=1))),
}
"""A trace that fires each rule, and one just below its threshold."""


def said(record: Record) -> dict[str, Finding]:
    return {one.rule: one for one in findings(record)}


def remedies(record: Record) -> str:
    return " ".join(one.remedy for one in findings(record))


AGAIN = [(f"gemm{number}", 10 * US) for number in range(10)]
FIRST = [(name, 4 * MS) for name, _ in AGAIN]


def test_first_launches_that_load_kernels_are_warmed_up_and_not_captured() -> None:
    found = said(launching([*FIRST, *AGAIN]))
    assert found["device_idle"].remedy.endswith(
        "went into first calls, which load libraries and kernels (10 first launches of a kernel "
        "took up to 4.00 ms; a later one takes 10.0 µs). Warm up before measuring: this cost is "
        "paid once per process."
    )
    assert "Most of the CPU's time is first calls, which load" in found["critical_path"].remedy
    assert not GRAPHS.search(remedies(launching([*FIRST, *AGAIN])))
    assert not found.keys() & {"launch_bound", "short_kernels", "cold_calls"}  # it is said once


def test_a_warm_run_that_its_launches_bind_still_gets_graphs() -> None:
    """The same kernels, launched as slowly every time: the first launch is like all others."""
    record = launching([*FIRST, *FIRST])
    assert not len(cold_start(record))
    (finding,) = launch_bound(record)
    assert "CUDA graphs" in finding.remedy
    assert finding.cost_ns == 20 * 4 * MS
    assert "CUDA graphs" in said(record)["device_idle"].remedy


def test_of_launches_that_bind_the_run_the_first_ones_do_not_count() -> None:
    record = launching([("gemm", 4 * MS), *[("gemm", 60 * US)] * 200], after=25 * US)
    (finding,) = launch_bound(record)
    assert finding.cost_ns == 200 * 60 * US
    assert "200 times, for up to 60.0 µs." in finding.text
    calls = record.trace.slices["dur"].iloc[list(finding.rows)]
    assert set(calls) == {60 * US}


def test_a_first_op_that_sets_its_library_up_is_cold_as_well() -> None:
    """No call of the runtime tells what cuDNN did in its first convolution."""
    rows: list[Row] = []
    for number in range(6):
        ts, took = (0, 40 * MS) if number == 0 else (40 * MS + number * MS, 100 * US)
        name = "aten::cudnn_convolution"
        rows.append(op(name, ts=ts, dur=took))
        rows.append(runtime("cudaLaunchKernel", ts=ts + took - 10 * US, dur=8 * US))
        rows.append(kernel("conv", ts=ts + took, dur=20 * US, launched_by=len(rows) - 1))
    record = trace_of(*rows)
    (call,) = cold_start(record).to_dict("records")
    assert (call["kind"], call["dur_ns"], call["later_ns"]) == ("first op", 40 * MS, 100 * US)
    assert (
        "first calls, which load libraries and kernels. Warm" in said(record)["device_idle"].remedy
    )
    longer = replace(rows[-3], dur=30 * MS)
    late = trace_of(*rows[:-3], longer, *rows[-2:])
    assert len(cold_start(late)) == 1  # the last call is slow as well, and no first one


@pytest.mark.parametrize(
    ("name", "took", "is_cold"),
    [
        ("cuModuleLoadData", MS, True),
        ("cuLibraryLoadData", MS, True),
        ("cudaFuncGetAttributes", MS, True),
        ("cudaFuncGetAttributes", 2 * US, False),
        ("hipModuleLoadData", MS, True),
        ("cudaMalloc", MS, False),
    ],
)
def test_calls_that_load_modules_are_cold(name: str, took: int, is_cold: bool) -> None:
    record = trace_of(op("aten::mm", ts=0, dur=2 * MS), runtime(name, ts=5, dur=took))
    assert cold_start(record)["kind"].tolist() == ["loading"] * is_cold


def test_a_real_cold_start_is_one(shared: Shared) -> None:
    """The first 400 ms of GPU work of a real run: 8 launches of up to 62 ms, and others of 10 µs.

    These stood there as launches that a CUDA graph would spare.
    """
    record = load(shared("nsys/cs336_transformer.sqlite.gz"))
    first = int(record.trace.slices["ts"].to_numpy()[counted_gpu_rows(record.trace)].min())
    part = window(record, first, first + 400 * MS)
    found = said(part)
    assert "launch_bound" not in found
    assert "(8 first launches of a kernel took up to 62.5 ms" in found["device_idle"].remedy
    whole = said(window(record, first, record.trace.end_ns))
    assert whole["cold_calls"].cost_ns > 200 * MS


@pytest.mark.parametrize(
    "name",
    ["hta/ddp_v100_ns_resolution", "hta/nccl_a100_rank0_of_2", "tracelens/qwen_h100_stacks_memory"],
)
def test_real_warm_runs_have_no_cold_start(name: str, shared: Shared) -> None:
    """In the first, full queues hold 681 launches up for over ten times the median one."""
    record = load(shared(f"{name}.json.gz"))
    assert not len(cold_start(record))


def test_launches_without_their_kernels_are_told_and_no_gpu_is_advised() -> None:
    devices = [{"index": 0, "name": "NVIDIA A100", "compute_capability": "8.0"}]
    record = without_gpu(cuda=True, devices=devices)
    first, *_ = findings(record)
    assert first.rule == "no_kernels"
    found = said(record)
    assert found.keys() == {"no_kernels", "cpu_ops"}  # nothing on the GPU's time
    assert found["cpu_ops"].text.startswith("`aten::mm` took 520 µs in 10 calls")
    assert "Their time on the GPU is not in this trace" in found["cpu_ops"].remedy


@pytest.mark.parametrize(
    ("metadata", "name", "words"),
    [
        ({"recorder": "Nsight Systems"}, "cudaLaunchKernel", "nsys profile --trace=cuda. If you"),
        ({}, "hipLaunchKernel", "held roctracer"),
        ({}, "cuLaunchKernel", "held CUPTI"),
    ],
)
def test_how_kernels_are_recorded_is_told_of_each_recorder(
    metadata: dict[str, str], name: str, words: str
) -> None:
    (finding,) = findings(trace_of(runtime(name, ts=0, dur=9), **metadata))
    assert finding.rule == "no_kernels"
    assert words in finding.remedy


@pytest.mark.parametrize("name", ["cudaMalloc", "cudaGetDevice", "cudaDeviceSynchronize"])
def test_calls_that_launch_nothing_miss_no_kernels(name: str) -> None:
    assert "no_kernels" not in said(trace_of(runtime(name, ts=0, dur=9)))


def test_a_range_in_which_the_gpu_did_nothing_misses_none() -> None:
    """The kernel runs after the range in which it was launched."""
    record = trace_of(
        op("aten::mm", ts=0, dur=50), runtime("cudaLaunchKernel", ts=1, dur=9),
        kernel("gemm", ts=100, dur=9, launched_by=1), cuda=True,
    )  # fmt: skip
    found = said(window(record, 0, 60))
    assert "no_kernels" not in found
    assert found["cpu_ops"].text.startswith("No GPU work ran in this range. `aten::mm` took")


@pytest.mark.parametrize(
    ("rule", "kind"),
    [
        ("fp32_matmul", "float"),
        ("tensor_cores_idle", "c10::Half"),
        ("matmul_sizes", "c10::Half"),
    ],
)
def test_what_ran_on_the_cpu_is_no_gpu_time(rule: str, kind: str) -> None:
    """On a machine with a GPU, whose tensor cores have nothing to do with it."""
    given = {"shapes": [[101, 101]] * 2, "Input type": [kind, kind]}
    devices = [{"index": 0, "name": "NVIDIA A100", "compute_capability": "8.0"}]
    record = trace_of(op("aten::mm", ts=0, dur=MS, **given), cuda=True, devices=devices)  # type: ignore[arg-type]
    assert rule not in said(record)


def test_a_few_unlinked_events_are_not_worth_a_finding() -> None:
    """One of 100; but one that took a notable part of the GPU's time is."""
    rows = [runtime("cudaLaunchKernel", ts=20 * n, dur=5) for n in range(99)]
    gpu = [kernel("gemm", ts=20 * n + 6, dur=10, launched_by=n) for n in range(99)]
    assert unlinked(trace_of(*rows, *gpu, kernel("gemm", ts=1990, dur=10))) == []
    (finding,) = unlinked(trace_of(*rows, *gpu, kernel("gemm", ts=1990, dur=30)))
    assert finding.text.startswith(
        "1 GPU event of 100 (1.0 %, and 2.9 % of the GPU's time) has no launch"
    )


def test_a_real_run_with_one_event_unlinked_of_thousand_is_left_alone(shared: Shared) -> None:
    assert "unlinked" not in said(load(shared("luatil/rtx3060_compile_cuda_graphs_05.json.gz")))
    assert "unlinked" in said(load(shared("tracelens/qwen_h100_stacks_memory.json.gz")))


def test_a_cell_of_imports_is_told_in_one_quiet_line() -> None:
    """Recording 6 events of a cell of 100 µs took a tenth of it, which nobody can feel."""
    metadata = {"cuda": False, "wall_ns": 100 * US, "execution_count": 3}
    noted = {"events": 6, "estimate_ns": 11 * US}
    record = trace_of(**metadata, overhead=noted)
    assert overhead(record) == []
    (finding,) = findings(record)
    assert finding.text == (
        "No PyTorch op ran in this cell, which took 100 µs. There is nothing of PyTorch to explain."
    )
    assert (finding.cost_ns, finding.remedy) == (0, "")


@pytest.mark.parametrize(
    ("busy", "words"),
    [
        (400 * US, "so the call waited for something else"),
        (9 * MS, "The CPU launches nothing while it waits"),
    ],
)
def test_a_wait_for_what_the_gpu_did_not_do_is_for_something_else(busy: int, words: str) -> None:
    """Another rank, or another program on the GPU: to call less often would not help."""
    record = trace_of(
        op("aten::mm", ts=0, dur=10), kernel("gemm", ts=20, dur=busy, launched_by=0),
        runtime("cudaStreamSynchronize", ts=15, dur=10 * MS), op("end", ts=11 * MS, dur=10),
        kernel("relu", ts=11 * MS + 5, dur=9, launched_by=3),
    )  # fmt: skip
    assert words in said(record)["synchronising"].remedy


def test_a_real_wait_of_463_ms_was_for_nothing_that_the_gpu_did(shared: Shared) -> None:
    found = said(load(shared("tracelens/sglang_decode_graphs.json.gz")))
    assert "something else: another process" in found["synchronising"].remedy


def test_the_wait_for_the_last_result_is_not_to_be_left_out() -> None:
    """What begins after it is held up, and a result that is read twice could be read once."""
    rows = [
        runtime("cudaLaunchKernel", ts=0, dur=10),
        kernel("gemm", ts=10, dur=9 * MS, launched_by=0),
        runtime("cudaDeviceSynchronize", ts=20, dur=9 * MS), op("end", ts=9500 * US, dur=10),
    ]  # fmt: skip
    assert "no GPU work came after it" in said(trace_of(*rows))["synchronising"].remedy
    more = [*rows, kernel("gemm", ts=9600 * US, dur=MS, launched_by=3)]
    assert "remove the call" in said(trace_of(*more))["synchronising"].remedy
    reading = [*rows, op("aten::item", ts=15, dur=9 * MS + 10)]
    assert "no GPU work came after it" in said(trace_of(*reading))["synchronising"].remedy
    again = [
        runtime("cudaDeviceSynchronize", ts=9300 * US, dur=100 * US),
        op("aten::item", ts=9290 * US, dur=120 * US),
    ]
    assert "Read results less often" in said(trace_of(*reading, *again))["synchronising"].remedy


def test_what_was_sent_before_the_result_arrived_is_no_round_trip(shared: Shared) -> None:
    """Four streams that each copy two arrays to the GPU and their sum back, all queued at once."""
    rows = [
        runtime("cudaMemcpyAsync", ts=0, dur=5), runtime("cudaMemcpyAsync", ts=6, dur=5),
        copy("Memcpy DtoH (Device -> Pinned)", ts=20, dur=100, bytes=8192, stream=7, launched_by=0),
    ]  # fmt: skip
    back = copy("Memcpy HtoD (Pinned -> Device)", ts=130, dur=100, bytes=8192, launched_by=1)
    other = replace(back, thread="8", args=back.args | {"stream": 8})
    assert "needless_copies" not in said(trace_of(*rows, other))
    assert "needless_copies" in said(trace_of(*rows, back))  # in the order of one stream
    late = replace(rows[1], ts=121)
    assert "needless_copies" in said(trace_of(rows[0], late, rows[2], other))
    assert "needless_copies" not in said(load(shared("nsys/test_cuda.sqlite.gz")))


def replayed(name: str, owner: str) -> Record:
    """On an A100 a kernel that a compiled function, or a program without ops, launched."""
    devices = [{"index": 0, "name": "NVIDIA A100-SXM4-40GB", "compute_capability": "8.0"}]
    return trace_of(
        op(owner, ts=0, dur=10), kernel(name, ts=10, dur=990, launched_by=0), devices=devices
    )


@pytest.mark.parametrize(
    ("name", "owner", "is_plain"),
    [
        ("ampere_sgemm_128x64_tn", "CompiledFunction", True),
        ("void cutlass::Kernel2<cutlass_80_simt_sgemm_64x64_8x5_nt_align1>()", "Compiled", True),
        ("ampere_sgemm_tf32_128x64_tn", "CompiledFunction", False),
        ("ampere_fp16_s16816gemm_fp16_128x64_tn", "CompiledFunction", False),
        ("triton_poi_fused_gelu_0", "CompiledFunction", False),
        ("ampere_sgemm_128x64_tn", "aten::cudnn_convolution", False),
    ],
)
def test_products_in_fp32_are_known_by_their_kernels_where_no_op_tells(
    name: str, owner: str, is_plain: bool
) -> None:
    found = said(replayed(name, owner))
    assert ("fp32_matmul" in found) == is_plain


def test_a_real_compiled_run_in_fp32_is_told_of_tf32(shared: Shared) -> None:
    """Two thirds of its GPU's time are sgemm kernels, which graphs replay."""
    found = said(load(shared("luatil/rtx3060_compile_cuda_graphs_06.json.gz")))
    assert "mostly `CompiledFunctionBackward`" in found["fp32_matmul"].text
    assert found["fp32_matmul"].cost_ns > 100 * MS


def of_cuda(*rows: Row, recorder: str = "Nsight Systems") -> Record:
    """A program of CUDA's own under another profiler: calls, kernels and copies, and no op."""
    return trace_of(*rows, recorder=recorder)


PAGEABLE = [
    runtime("cudaMemcpyAsync", ts=0, dur=500),
    copy("Memcpy HtoD (Pageable -> Device)", ts=5, dur=600, bytes=8, launched_by=0),
    runtime("cudaLaunchKernel", ts=600, dur=20),
    kernel("add(float*)", ts=640, dur=500, launched_by=2),
]
READ_BACK = [
    runtime("cudaLaunchKernel", ts=0, dur=9),
    kernel("add(float*)", ts=10, dur=400, launched_by=0),
    runtime("cudaMemcpy", ts=20, dur=500),
    copy("Memcpy DtoH (Device -> Pageable)", ts=410, dur=100, bytes=8, launched_by=2),
    runtime("cudaLaunchKernel", ts=900, dur=9),
    kernel("add(float*)", ts=990, dur=400, launched_by=4),
]
ONE_STREAM = [
    runtime("cudaMemcpyAsync", ts=0, dur=5),
    runtime("cudaLaunchKernel", ts=6, dur=5),
    copy("Memcpy HtoD (Pinned -> Device)", ts=10, dur=400, bytes=8, launched_by=0),
    kernel("add(float*)", ts=410, dur=400, launched_by=1),
]
PROGRAMS: dict[str, tuple[list[Row], str]] = {
    "pageable_copies": (PAGEABLE, "pinned memory (cudaMallocHost, or cudaHostRegister once)"),
    "synchronising": (READ_BACK, "cudaMemcpyAsync into pinned memory (cudaMallocHost)"),
    "one_stream": (ONE_STREAM, "cudaStreamWaitEvent before use"),
    "memory": (
        [*ONE_STREAM, runtime("cudaMalloc", ts=900, dur=500)],
        "take them from a pool (cudaMallocAsync)",
    ),
    "unlinked": ([kernel("add(float*)", ts=0, dur=400)], "cudaDeviceSynchronize() right before"),
}


@pytest.mark.parametrize("rule", PROGRAMS)
def test_a_program_of_cuda_gets_cudas_words(rule: str) -> None:
    rows, words = PROGRAMS[rule]
    found = said(of_cuda(*rows))
    assert words in found[rule].remedy
    everything = " ".join(f"{one.text} {one.remedy}" for one in found.values())
    assert not re.search(f"{MEANS}|PyTorch", everything)
    usual = said(trace_of(*rows))
    assert found.keys() == usual.keys()
    assert {name for name, one in usual.items() if one.remedy} == {
        name for name, one in found.items() if one.remedy
    }


def test_pytorch_under_nsight_systems_keeps_its_own_words() -> None:
    """The names of its kernels tell; how to record more is Nsight Systems' matter."""
    mine = "void at::native::vectorized_elementwise_kernel<4>(int)"
    rows = [replace(row, name=mine) if row.category == "kernel" else row for row in PAGEABLE]
    found = said(of_cuda(*rows))
    assert "pin_memory=True in the DataLoader" in found["pageable_copies"].remedy
    assert "--warmup" not in remedies(of_cuda(*rows))


def test_every_remedy_for_cuda_is_free_of_pytorchs_means() -> None:
    for of_pytorch, own in CUDA_WORDS.items():
        assert in_cuda(of_pytorch) == own
        assert not re.search(MEANS, own)
        assert re.search(MEANS, of_pytorch) or of_pytorch != own


def test_hip_has_names_of_its_own() -> None:
    rows = [replace(row, name=row.name.replace("cuda", "hip")) for row in PAGEABLE]
    remedy = said(of_cuda(*rows))["pageable_copies"].remedy
    assert "hipHostMalloc, or hipHostRegister once) with hipMemcpyAsync" in remedy
    assert in_hip("a CUDA graph (cudaStreamBeginCapture)") == "a HIP graph (hipStreamBeginCapture)"


@pytest.mark.parametrize("part", ["whole", "gpu"])
def test_a_real_program_of_cuda_is_not_told_to_use_pytorch(part: str, shared: Shared) -> None:
    record = load(shared("nsys/test_cuda.sqlite.gz"))
    if part == "gpu":
        first = int(record.trace.slices["ts"].to_numpy()[counted_gpu_rows(record.trace)].min())
        record = window(record, first, record.trace.end_ns)
    everything = " ".join(f"{one.text} {one.remedy}" for one in findings(record))
    assert not re.search(f"{MEANS}|PyTorch", everything)


def test_copies_that_outlast_all_compute_of_a_stream_promise_no_more_than_that() -> None:
    """400 ns of copies and 60 ns of compute: beside each other they would save 60."""
    rows = [op("train", ts=0, dur=1000), copy("Memcpy HtoD (Pinned -> Device)", ts=0, dur=400)]
    (finding,) = one_stream(trace_of(*rows, kernel("add", ts=400, dur=60)))
    assert (finding.cost_ns, finding.share) == (60, 0.06)
    assert "For 400 ns (40 % of the time), nothing was computed" in finding.text
    assert one_stream(trace_of(*rows, kernel("add", ts=400, dur=49))) == []


def test_one_emptied_cache_is_not_why_memory_is_asked_for_again_and_again() -> None:
    asking = [runtime("cudaMalloc", ts=2 * n * MS, dur=1900 * US) for n in range(10)]
    emptying = [
        annotation("torch.cuda.empty_cache()", ts=20 * MS, dur=MS),
        *(runtime("cudaFree", ts=20 * MS + n * 200 * US, dur=100 * US) for n in range(3)),
    ]
    work = kernel("gemm", ts=1900 * US, dur=MS, launched_by=0)
    stalls = said(trace_of(*asking, work, *emptying))["memory"]
    assert stalls.remedy.startswith("The first steps fill the allocator's cache")
    again = [runtime("cudaMalloc", ts=(30 + 2 * n) * MS, dur=1900 * US) for n in range(12)]
    stalls = said(trace_of(*asking, work, *emptying, *again))["memory"]
    assert stalls.remedy.startswith("Leave torch.cuda.empty_cache() out of the loop")
