"""Every rule on a trace that fires it and on one just below; then all of them together."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable

import pytest
import torch

from gpuprof_widgets.analyses.findings import RULES, Finding, findings
from gpuprof_widgets.analyses.findings.wording import code
from gpuprof_widgets.analyses.operators import operators
from gpuprof_widgets.analyses.python_calls import python_calls
from gpuprof_widgets.capture.options import Options
from gpuprof_widgets.capture.recorder import Recorder
from gpuprof_widgets.trace.model import Record
from tests.traces import Row, annotation, calls_of, copy, kernel, op, python, runtime, trace_of

LOADING = "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__"
SYNC = "cudaStreamSynchronize"


def idle_gpu(busy_until: int) -> Record:
    """One kernel from 0 on, in a run of 1000 ns."""
    return trace_of(op("aten::mm", ts=0, dur=1000), kernel("gemm", ts=0, dur=busy_until))


def loading(waited: int) -> Record:
    """The DataLoader takes ``waited`` of 1000 ns."""
    return trace_of(
        op("train", ts=0, dur=10), annotation(LOADING, ts=20, dur=waited), op("end", ts=990, dur=10)
    )


def synchronising(waited: int) -> Record:
    return trace_of(
        op("aten::item", ts=0, dur=500),
        runtime(SYNC, ts=1, dur=waited),
        kernel("gemm", ts=0, dur=waited),
        op("end", ts=990, dur=10),
    )


def gpu_op(own: int) -> Record:
    """aten::mm launches ``own`` of 100 ns of GPU time, ten small ops the rest, in 100 ns."""
    rest = [op(f"aten::x{i}", ts=10 + i, dur=1) for i in range(10)]
    others = [
        kernel("other", ts=own + i * 9, dur=9 if own == 10 else 10, launched_by=i + 1)
        for i in range(10)
    ]
    mm = op("aten::mm", ts=0, dur=9)
    return trace_of(mm, *rest, kernel("gemm", ts=0, dur=own, launched_by=0), *others)


def python_function(own: int) -> Record:
    rest = "<method 'x' of 'torch._C' objects>"
    us = 10_000  # large enough to be worth reading about
    return trace_of(calls=calls_of((None, "step", 1, own * us), (None, rest, 1, (1000 - own) * us)))


def overhead(estimate: int) -> Record:
    return trace_of(
        op("aten::mm", ts=0, dur=9), wall_ns=1000, overhead={"events": 7, "estimate_ns": estimate}
    )


def launched(by: int | None) -> Record:
    return trace_of(
        runtime("cudaLaunchKernel", ts=0, dur=10), kernel("gemm", ts=0, dur=1000, launched_by=by)
    )


CASES: dict[str, tuple[Record, Record]] = {
    "ending": (trace_of(op("x", ts=0, dur=9), interrupted=True), trace_of(op("x", ts=0, dur=9))),
    "device_idle": (idle_gpu(1), trace_of(op("aten::mm", ts=0, dur=1000))),
    "dataloader": (loading(50), loading(49)),
    "synchronising": (synchronising(20), synchronising(19)),
    "gpu_ops": (gpu_op(10), gpu_op(9)),
    "cpu_ops": (trace_of(op("x", ts=0, dur=9)), idle_gpu(1)),
    "python_time": (python_function(100), python_function(99)),
    "overhead": (overhead(50), overhead(49)),
    "unlinked": (launched(by=None), launched(by=0)),
}


@pytest.mark.parametrize("rule", RULES)
def test_every_rule_fires_at_its_threshold_and_not_below(rule: str) -> None:
    fires, just_below = CASES[rule]
    said = RULES[rule](fires)
    assert said
    assert {finding.rule for finding in said} == {rule}
    assert RULES[rule](just_below) == []


def only(rule: Callable[[Record], list[Finding]], record: Record) -> Finding:
    (finding,) = rule(record)
    return finding


def test_an_idle_gpu_names_its_longest_gap_and_what_surrounds_it() -> None:
    record = trace_of(
        op("aten::mm", ts=0, dur=100_000),
        runtime("cudaLaunchKernel", ts=90_000, dur=3_000),
        op("aten::copy_", ts=100_000, dur=900_000),
        runtime("cudaMemcpyAsync", ts=985_000, dur=3_000),
        kernel("gemm", ts=95_000, dur=300_000, launched_by=1),
        kernel("Memcpy HtoD", ts=990_000, dur=80_000, launched_by=3, category="gpu_memcpy"),
        op("aten::add", ts=1_230_000, dur=10_000),
    )
    finding = only(RULES["device_idle"], record)
    assert finding.text == (
        "GPU 0 was busy 31 % of 1.24 ms; the longest gap, 595 µs, lies between `gemm` and "
        "`Memcpy HtoD`, while the CPU ran `aten::copy_`."
    )
    assert finding.cost_ns == 1_240_000 - 380_000
    assert (finding.start_ns, finding.end_ns) == (395_000, 990_000)
    named = record.trace.slices["name"].iloc[list(finding.rows)]
    assert named.tolist() == ["gemm", "Memcpy HtoD", "aten::copy_"]
    assert finding.remedy.startswith("In 69 % of the GPU's idle time it waited for the CPU")


def test_a_busy_gpu_is_said_to_be_busy_without_a_gap() -> None:
    assert only(RULES["device_idle"], idle_gpu(951)).text == "GPU 0 was busy 95 % of 1.00 µs."
    assert "after its last work, `gemm`" in only(RULES["device_idle"], idle_gpu(950)).text


@pytest.mark.parametrize(
    ("meanwhile", "words"),
    [
        ([annotation(LOADING, ts=105, dur=690)], "while the CPU waited for the DataLoader"),
        (
            [annotation("forward", ts=105, dur=690)],
            "while the CPU was in no PyTorch op, inside `forward`",
        ),
        ([], "while the CPU was in no PyTorch op"),
        ([op("aten::cat", ts=105, dur=400)], "while the CPU mostly ran `aten::cat`"),
        (
            [python("m.py(1): main", ts=0, dur=1000), python("m.py(7): tidy", ts=200, dur=590)],
            "while the CPU ran Python, mostly in `m.py(7): tidy`",
        ),
    ],
)  # fmt: skip
def test_a_gap_says_what_the_cpu_did(meanwhile: list[object], words: str) -> None:
    record = trace_of(
        runtime("cudaLaunchKernel", ts=0, dur=1),
        runtime("cudaLaunchKernel", ts=798, dur=1),
        kernel("first", ts=2, dur=98, launched_by=0),
        kernel("second", ts=800, dur=200, launched_by=1),
        *meanwhile,  # type: ignore[arg-type]
    )
    text = only(RULES["device_idle"], record).text
    assert text.endswith(f"lies between `first` and `second`, {words}.")


def test_synchronising_calls_say_who_waited_for_what() -> None:
    record = trace_of(
        op("aten::item", ts=0, dur=400),
        op("aten::_local_scalar_dense", ts=1, dur=398),
        runtime(SYNC, ts=5, dur=390),
        op("aten::item", ts=500, dur=30),
        runtime(SYNC, ts=505, dur=22),
        kernel("gemm", ts=0, dur=390),
        kernel("relu", ts=506, dur=20),
        op("aten::end", ts=900, dur=100),
    )
    finding = only(RULES["synchronising"], record)
    assert finding.text == (
        "`aten::item` waited 412 ns for the GPU (41 % of the time), in 2 calls of "
        "`cudaStreamSynchronize`, mostly for `gemm`."
    )
    assert finding.share == 0.412
    assert len(finding.rows) == 2
    assert ".item()" in finding.remedy


@pytest.mark.parametrize("waits_itself", [True, False])
@pytest.mark.parametrize("name", ["aten::to", "aten::copy_", "aten::_to_copy"])
@pytest.mark.parametrize(
    ("kind", "words"),
    [
        ("Memcpy DtoH (Device -> Pageable)", "Keep results on the GPU"),
        ("Memcpy DtoH (Device -> Pinned)", "Keep results on the GPU"),
        ("Memcpy HtoD (Pageable -> Device)", "Copy from pinned memory"),
        ("Memcpy HtoD (Pinned -> Device)", "non_blocking=True suffices"),
        ("Memcpy DtoD (Device -> Device)", "The CPU launches nothing"),
    ],
)
def test_the_remedy_fits_the_copy_that_was_waited_for(
    kind: str, words: str, name: str, waits_itself: bool
) -> None:
    if waits_itself:
        calls = [runtime("cudaMemcpy", ts=5, dur=390)]
    else:
        calls = [runtime("cudaMemcpyAsync", ts=5, dur=4), runtime(SYNC, ts=10, dur=385)]
    record = trace_of(
        op(name, ts=0, dur=400), *calls, op("end", ts=900, dur=100),
        copy(kind, ts=20, dur=370, launched_by=1),
    )  # fmt: skip
    assert words in only(RULES["synchronising"], record).remedy


def test_a_synchronisation_outside_of_ops_is_not_blamed_on_a_copy_before() -> None:
    record = trace_of(
        annotation("Cell [1]", ts=0, dur=1000),
        runtime("cudaMemcpyAsync", ts=5, dur=4),
        runtime("cudaDeviceSynchronize", ts=10, dur=385),
        op("end", ts=900, dur=100),
        copy("Memcpy DtoH (Device -> Pageable)", ts=20, dur=370, launched_by=1),
    )
    assert "move the call out of the loop" in only(RULES["synchronising"], record).remedy


def test_the_wait_that_ends_a_recording_is_the_profilers_own() -> None:
    record = trace_of(
        op("aten::mm", ts=0, dur=10),
        runtime("cudaDeviceSynchronize", ts=20, dur=500),
        kernel("gemm", ts=10, dur=500),
    )
    assert RULES["synchronising"](record) == []


def test_dataloader_waits_are_summed_and_the_remedy_fits_the_loader() -> None:
    record = trace_of(
        annotation(LOADING, ts=0, dur=400),
        op("train", ts=400, dur=300),
        annotation(LOADING, ts=700, dur=220),
        op("train", ts=920, dur=80),
    )
    finding = only(RULES["dataloader"], record)
    assert finding.text == (
        "62 % of the time (620 ns of 1.00 µs) went into waiting for the DataLoader, 2 times, the "
        "longest 400 ns."
    )
    assert "num_workers" in finding.remedy
    assert (finding.start_ns, finding.end_ns) == (0, 400)
    workers = annotation(LOADING.replace("SingleProcess", "MultiProcessing"), ts=0, dur=400)
    assert "do not keep up" in only(RULES["dataloader"], trace_of(workers)).remedy


def test_without_gpu_the_cpu_ops_are_ranked() -> None:
    record = trace_of(
        annotation("forward", ts=0, dur=1000),
        op("aten::addmm", ts=0, dur=170), op("aten::addmm", ts=200, dur=170),
        op("aten::copy_", ts=400, dur=600), op("aten::empty", ts=410, dur=4),
        cuda=False,
    )  # fmt: skip
    finding = only(RULES["cpu_ops"], record)
    assert finding.text == (
        "No GPU activity was recorded: PyTorch sees no GPU here. `aten::copy_` took 63 % of CPU op "
        "time (596 ns in 1 call), then `aten::addmm` 36 %."
    )
    assert finding.cost_ns == 596
    assert (finding.start_ns, finding.end_ns) == (400, 1000)
    assert record.trace.slices["name"].iloc[list(finding.rows)].tolist() == ["aten::copy_"]


def test_a_cell_without_any_torch_says_so_and_names_its_python_function() -> None:
    record = trace_of(
        calls=calls_of((None, "fib", 1000, 9_000_000), (None, "main", 1, 1_000_000)), cuda=True
    )
    texts = [finding.text for finding in findings(record)]
    assert texts == [
        "The Python function `cell.py:1(fib)` itself took 90 % of the Python time (9.00 ms in "
        "1,000 calls).",
        "No GPU activity was recorded. No PyTorch op was recorded either.",
    ]


def test_a_python_function_of_less_than_a_millisecond_is_not_worth_a_finding() -> None:
    assert RULES["python_time"](trace_of(calls=calls_of((None, "fib", 1, 999_999)))) == []
    assert RULES["python_time"](trace_of(calls=calls_of((None, "fib", 1, 1_000_000))))


MS = 1_000_000


def operators_of_two_functions(*frames: Row) -> Record:
    """`f` and `g` have 50 ms of Python each; an op of 40 ms lies in `f`, one of 10 ms in `g`."""
    return trace_of(
        annotation("Cell [1]", ts=0, dur=100 * MS),
        op("aten::mm", ts=5 * MS, dur=40 * MS), op("aten::inner", ts=6 * MS, dur=30 * MS),
        op("aten::mm", ts=60 * MS, dur=10 * MS),
        op("aten::elsewhere", ts=0, dur=100 * MS, thread=7),
        *frames,
        calls=calls_of((None, "f", 1, 50 * MS), (None, "g", 2, 50 * MS)), label="Cell [1]",
    )  # fmt: skip


def test_ops_of_operators_are_not_the_time_of_a_python_function() -> None:
    finding = only(RULES["python_time"], operators_of_two_functions())
    assert finding.text == (
        "The Python function `cell.py:1(f)` itself took at most 50 % of the Python time, PyTorch "
        "ops not counted (50.0 ms in 1 call)."
    )
    busy = op("aten::mm", ts=80 * MS, dur=15 * MS)
    assert only(RULES["python_time"], operators_of_two_functions(busy)).cost_ns == 35 * MS
    busier = op("aten::mm", ts=70 * MS, dur=41 * MS)
    assert RULES["python_time"](operators_of_two_functions(busier)) == []


def test_recorded_frames_tell_in_which_function_the_operators_were() -> None:
    finding = only(
        RULES["python_time"],
        operators_of_two_functions(
            python("/home/cell.py(1): f", ts=0, dur=50 * MS),
            python("/home/cell.py(2): g", ts=50 * MS, dur=50 * MS),
        ),
    )
    assert finding.text == (
        "The Python function `cell.py:2(g)` itself took 40 % of the Python time, PyTorch ops not "
        "counted (40.0 ms in 2 calls)."
    )


@pytest.mark.parametrize("stack", [False, True])
def test_a_recorded_cell_of_operators_alone_blames_no_python(stack: bool) -> None:
    cell = compile("for _ in range(20): c = a @ a + a", "<cell>", "exec")
    with Recorder(Options(stack=stack), label="Cell [1]") as recorder:
        exec(cell, {"a": torch.rand(500, 500)})
    record = recorder.record()
    table = operators(record)
    ops = int(table["cpu_self_ns"][table["category"] == "cpu_op"].sum())
    python_ns = int(python_calls(record)["self_ns"].sum())
    assert 0 < ops <= python_ns
    assert sum(finding.cost_ns for finding in RULES["python_time"](record)) <= python_ns - ops


def test_steps_and_loaders_that_torch_1_8_wrote_as_ops_are_none() -> None:
    record = trace_of(
        op("ProfilerStep#4", ts=0, dur=1000), op(LOADING, ts=0, dur=40),
        op("Optimizer.step#SGD", ts=50, dur=300), op("aten::add_", ts=60, dur=30),
        op("aten::item", ts=400, dur=100), runtime(SYNC, ts=410, dur=80),
    )  # fmt: skip
    assert "No GPU activity was recorded. `aten::add_`" in only(RULES["cpu_ops"], record).text
    assert only(RULES["synchronising"], record).text.startswith("`aten::item` waited 80 ns")


@pytest.mark.parametrize(
    "name",
    [
        "<built-in method sin of type object at 0x7f>",
        "<built-in function sin>",
        "<method 'sin' of 'Tensor' objects>",
        "<built-in method torch.sin>",
        "<method 'run_backward' of 'torch._C._EngineBase' objects>",
    ],
)
def test_a_function_that_is_an_op_is_left_to_the_op_table(name: str) -> None:
    sleep = (None, "<built-in method time.sleep>", 1, 1_000_000)
    calls = calls_of((None, name, 10, 9_000_000), sleep)
    record = trace_of(op("aten::sin", ts=0, dur=900), calls=calls)
    assert "time.sleep" in only(RULES["python_time"], record).text


def test_a_file_of_cprofile_is_not_said_to_lack_a_gpu() -> None:
    assert RULES["cpu_ops"](trace_of(calls=calls_of((None, "fib", 1, 9)))) == []


def test_an_error_and_an_interruption_come_first() -> None:
    rows = [op("aten::mm", ts=0, dur=900)]
    failed = findings(trace_of(*rows, error="ValueError: no such file", wall_ns=2_000_000))
    assert failed[0].text == (
        "The cell raised ValueError: no such file after 2.00 ms: this profile ends there."
    )
    stopped = findings(trace_of(*rows, interrupted=True, error="KeyboardInterrupt"))
    assert stopped[0].text == "The cell was interrupted after 900 ns: this profile ends there."


def test_overhead_is_said_in_events_and_calls() -> None:
    noted = {"events": 1200, "calls": 1, "estimate_ns": 400}
    record = trace_of(op("aten::mm", ts=0, dur=9), wall_ns=1000, overhead=noted)
    assert only(RULES["overhead"], record).text.startswith(
        "Recording 1,200 events and 1 Python call took about 400 ns, 40 % of the cell's 1.00 µs:"
    )


def test_gpu_events_without_launch_are_counted() -> None:
    record = trace_of(
        op("aten::mm", ts=0, dur=9),
        kernel("gemm", ts=10, dur=5, launched_by=0),
        kernel("a", ts=20, dur=5), kernel("b", ts=30, dur=5),
    )  # fmt: skip
    assert only(RULES["unlinked"], record).text == (
        "3 GPU events of 3 (100 %) have no launch in the trace: the time is counted, but no op "
        "is known for 2 of them."
    )


def test_findings_come_by_cost() -> None:
    record = trace_of(
        annotation(LOADING, ts=0, dur=600),
        op("aten::mm", ts=600, dur=10),
        kernel("gemm", ts=610, dur=390, launched_by=1),
    )
    said = findings(record)
    assert [finding.cost_ns for finding in said] == sorted((f.cost_ns for f in said), reverse=True)
    rules = [finding.rule for finding in said]
    assert rules == ["device_idle", "dataloader", "gpu_ops", "unlinked"]


@pytest.mark.parametrize("rule", RULES)
def test_the_numbers_of_findings_are_plain(rule: str) -> None:
    for finding in RULES[rule](CASES[rule][0]):
        said = dataclasses.asdict(finding)
        assert json.loads(json.dumps(said)) == said | {"rows": list(finding.rows)}
        assert type(finding.share) is float
        assert {type(row) for row in finding.rows} <= {int}


def test_an_empty_record_has_nothing_to_say() -> None:
    assert findings(trace_of()) == []


@pytest.mark.parametrize(
    ("name", "short"),
    [
        ("aten::mm", "`aten::mm`"),
        ("Memcpy HtoD (Pageable -> Device)", "`Memcpy HtoD (Pageable -> Device)`"),
        ("<built-in method time.sleep>", "`<built-in method time.sleep>`"),
        (
            "void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<float>, "
            "std::array<char*, 3ul> >(int, at::native::CUDAFunctor_add<float>)",
            "`vectorized_elementwise_kernel`",
        ),
        (
            "void at::native::(anonymous namespace)::indexSelectLargeIndex<float, long>(int)",
            "`indexSelectLargeIndex`",
        ),
        ("autograd::engine::f: MmBackward0", "`autograd::engine::f: MmBackward0`"),
        ("k" * 80, "`" + "k" * 59 + "…`"),
    ],
)  # fmt: skip
def test_names_are_short_enough_to_read(name: str, short: str) -> None:
    assert code(name) == short


def test_findings_of_real_traces_are_sane(shared_record: Record) -> None:
    span, rows = shared_record.trace.span_ns, len(shared_record.trace)
    said = findings(shared_record)
    assert said
    for finding in said:
        assert 0 <= finding.cost_ns <= span * max(_devices(shared_record), 1)
        assert 0 <= finding.share <= 1
        assert finding.text.endswith(".")
        assert finding.text.count("`") % 2 == 0
        assert all(0 <= row < rows for row in finding.rows)
        if finding.start_ns is not None and finding.end_ns is not None:
            assert 0 <= finding.start_ns < finding.end_ns <= span
        assert dataclasses.replace(finding) == finding


def _devices(record: Record) -> int:
    return int(record.trace.tracks["device"].nunique())
