"""Every rule on a trace that fires it and on one just below; then all of them together."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from gpuprof_widgets.analyses.findings import FINDINGS, Finding, findings
from gpuprof_widgets.analyses.findings.finding import code, function_name
from gpuprof_widgets.analyses.findings.recording import PYTHON_FUNCTIONS, SHORT_OPS
from gpuprof_widgets.analyses.operators import operators
from gpuprof_widgets.analyses.python_calls import function_labels, python_calls
from gpuprof_widgets.analyses.python_time import python_time
from gpuprof_widgets.capture.recorder import Recorder
from gpuprof_widgets.options import Options
from gpuprof_widgets.trace.known_metadata import Peaks
from gpuprof_widgets.trace.model import Calls, Record
from gpuprof_widgets.trace.owners import EVALUATE
from gpuprof_widgets.trace.window import window
from tests import copy_cases
from tests.finding_titles import title_problems
from tests.test_compilation import CASES as COMPILATION_CASES
from tests.test_finding_attention import CASES as ATTENTION_CASES
from tests.test_finding_copies import CASES as TENSOR_COPY_CASES
from tests.test_findings_autograd import CASES as AUTOGRAD_CASES
from tests.test_findings_blocking import CASES as BLOCKING_CASES
from tests.test_findings_blocking import through_the_library
from tests.test_findings_breakdown import CASES as BREAKDOWN_CASES
from tests.test_findings_cpu import CASES as CPU_CASES
from tests.test_findings_gpu import CASES as GPU_CASES
from tests.test_findings_path import CASES as PATH_CASES
from tests.test_findings_suspended import CASES as SUSPENDED_CASES
from tests.test_findings_training import CASES as TRAINING_CASES
from tests.test_findings_work import CASES as WORK_CASES
from tests.test_garbage_collections import CASES as COLLECTION_CASES
from tests.test_one_cause import CASES as CAUSE_CASES
from tests.test_other_lines import CASES as OTHER_LINE_CASES
from tests.traces import (
    Row,
    annotation,
    backward_op,
    block,
    calls_of,
    cell_line,
    copy,
    kernel,
    module,
    op,
    python,
    runtime,
    trace_of,
)

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


def roofed(flops_peak: float, bytes_peak: float, *, kind: str = "float") -> Record:
    """A product of 2 x 100 x 100 x 100 FLOPs on the GPU, in 100 ns; "" for unknown shapes."""
    given = {"shapes": [[100, 100]] * 2, "Input type": [kind] * 2} if kind else {}
    peaks = {"int8" if kind == "signed char" else "fp32": flops_peak}
    return trace_of(
        op("aten::mm", ts=0, dur=9, **given),
        kernel("gemm", ts=10, dur=100, launched_by=0),
        peaks=Peaks("GPU", peaks, bytes_peak, "hand-made").as_dict(),
    )


def python_function(own: int) -> Record:
    rest = "<method 'x' of 'torch._C' objects>"
    us = 10_000  # large enough to be worth reading about
    return trace_of(calls=calls_of((None, "step", 1, own * us), (None, rest, 1, (1000 - own) * us)))


ITEM = "<method 'item' of 'torch._C.TensorBase' objects>"


def blamed(waited: int) -> Record:
    """`Tensor.item` has 100 of 1000 ms of Python's time, of which it waited ``waited``."""
    return trace_of(
        op("aten::item", ts=0, dur=100 * MS), runtime(SYNC, ts=0, dur=waited * MS),
        kernel("sgemm", ts=0, dur=waited * MS), op("end", ts=999 * MS, dur=1 * MS),
        calls=calls_of((None, "step", 1, 900 * MS), ("step", ITEM, 9, 100 * MS)),
    )  # fmt: skip


def overhead(estimate: int) -> Record:
    return trace_of(
        op("aten::mm", ts=0, dur=9),
        wall_ns=20 * MS,
        overhead={"events": 7, "estimate_ns": estimate},
    )


def launched(by: int | None) -> Record:
    return trace_of(
        runtime("cudaLaunchKernel", ts=0, dur=10), kernel("gemm", ts=0, dur=1000, launched_by=by)
    )


def bounded(*durations: tuple[str, int], **noted: object) -> Record:
    """A loop of these iterations: kind and ns; ``noted`` are its one-off costs."""
    rows = [
        {"step": number, "kind": kind, "dur_ns": dur}
        for number, (kind, dur) in enumerate(durations)
    ]
    return trace_of(op("x", ts=0, dur=9), steps={"iterations": rows, "one_off": noted})


def slowed(to: int) -> Record:
    """Steps of 100 ns that take so long when they are recorded."""
    return bounded(*[("warmup", 100)] * 3, *[("recorded", to)] * 2)


def first_step(took: int) -> Record:
    return bounded(("warmup", took), *[("warmup", 100)] * 2, *[("recorded", 100)] * 2)


def expecting(names: str, *rows: Row, **noted: object) -> Record:
    return trace_of(op("aten::mm", ts=0, dur=9), *rows, options={"expect": names}, **noted)


def line(own: int) -> Record:
    """Line 3 takes ``own`` of 1000 ms; the head of its loop and ten other lines have the rest."""
    rest = [cell_line(4 + i, "f()", ts=(own + 1 + 80 * i) * MS, dur=75 * MS) for i in range(9)]
    head = cell_line(2, "for x in data:", ts=0, dur=1000 * MS)
    return trace_of(head, cell_line(3, "g(x)", ts=0, dur=own * MS), *rest)


MS = 1_000_000


def allocated(size: int) -> Record:
    """An op that allocates so many bytes."""
    return trace_of(op("aten::empty", ts=0, dur=9), block(size, at=1, ts=3))


def backward_waiting(waited: int) -> Record:
    """On CUDA's autograd thread the backward of a gather waits that long of 1000 ns."""
    return trace_of(
        cell_line(4, "loss = model(x)", ts=0, dur=100),
        module("patch_drop", ts=10, dur=50),
        op("aten::gather", ts=20, dur=30, sequence=3),
        *backward_op("GatherBackward0", ts=200, dur=300, sequence=3, thread=200),
        runtime(SYNC, ts=210, dur=waited, thread=200),
        kernel("scatter", ts=200, dur=30),
        op("end", ts=990, dur=10),
    )


def backward_on_cpu(took: int, *, forward: int = 100, **metadata: object) -> Record:
    """The backward of a gather takes that long of a backward pass of 1000 ns."""
    return trace_of(
        module("patch_drop", ts=0, dur=forward),
        op("aten::gather", ts=0, dur=forward, sequence=3),
        op("aten::mm", ts=500, dur=400, sequence=4),
        *backward_op("MmBackward0", ts=1000, dur=1000 - took, sequence=4),
        *backward_op("GatherBackward0", ts=2000 - took, dur=took, sequence=3),
        **metadata,
    )


def full(reserved: int, *, used: int | None = None) -> Record:
    """Of 1000 bytes of the GPU so many are reserved, and so many or all of them in use."""
    used = reserved if used is None else used
    row = block(used, at=1, ts=3, device=0, allocated=used, reserved=reserved)
    devices = [{"index": 0, "total_memory_bytes": 1000}]
    return trace_of(op("aten::empty", ts=0, dur=9), row, devices=devices)


def in_pieces(free: int) -> Record:
    """Of 10 MiB that a memory snapshot has reserved so much is free, in three alike pieces.

    Two of them together would hold the largest block.
    """
    sizes = [free // 3, free // 3, free - 2 * (free // 3)]
    states = ["free"] * 3 + ["allocated"]
    blocks = {"bytes": [*sizes, 10 * 2**20 - free], "state": states, "stack": [-1] * 4}
    segment = {"device": 0, "stream": 0, "pool": "0.0", "kind": "large", "expandable": False}
    segment |= {"address": 4096, "bytes": 10 * 2**20, "blocks": blocks}
    blocks["requested"] = blocks["bytes"]
    return trace_of(block(2 * 2**20, at=4096, ts=0, device=0), memory_segments=[segment])


def making(took: int, *, calls: int = 3) -> Record:
    """A line of a loop that makes zeros anew in each round, in so many of 1000 ns."""
    last = took - 2 * (calls - 1)
    rounds = [
        row
        for number in range(calls)
        for row in (
            cell_line(3, "y = zeros(9)", ts=100 * number, dur=90),
            op("aten::zeros", ts=100 * number, dur=last if number == calls - 1 else 2),
            op("aten::zeros", ts=100 * number, dur=1),
        )
    ]
    return trace_of(*rounds, op("end", ts=990, dur=10))


CASES: dict[str, tuple[Record, Record]] = {
    **ATTENTION_CASES,
    **copy_cases.CASES,
    "memory_room": (full(900), full(899)),
    "fragmentation": (in_pieces(3 * 2**20), in_pieces(3 * 2**20 - 1)),
    "made_anew": (making(took=20), making(took=19)),
    "ending": (trace_of(op("x", ts=0, dur=9), interrupted=True), trace_of(op("x", ts=0, dur=9))),
    "device_idle": (idle_gpu(1), trace_of(op("aten::mm", ts=0, dur=1000))),
    "dataloader": (loading(50), loading(49)),
    "synchronising": (synchronising(20), synchronising(19)),
    "backward": (backward_waiting(20), backward_waiting(19)),
    "lines": (line(200), line(199)),
    "gpu_ops": (gpu_op(10), gpu_op(9)),
    "cpu_ops": (trace_of(op("x", ts=0, dur=9)), idle_gpu(1)),
    "python_time": (python_function(100), python_function(99)),
    "python_waiting": (blamed(50), blamed(49)),
    "overhead": (overhead(MS), overhead(MS - 1)),
    "expected": (
        expecting("checkpoint"),
        expecting("checkpoint", annotation("checkpoint", ts=2, dur=3)),
    ),
    "memory": (allocated(2**20), allocated(2**20 - 1)),
    "step_overhead": (slowed(to=110), slowed(to=109)),
    "one_off": (first_step(took=200), first_step(took=199)),
    "unlinked": (launched(by=None), launched(by=0)),
    **BLOCKING_CASES,
    **BREAKDOWN_CASES,
    **CPU_CASES,
    **GPU_CASES,
    **TRAINING_CASES,
    **TENSOR_COPY_CASES,
    **AUTOGRAD_CASES,
    **PATH_CASES,
    **CAUSE_CASES,
    **OTHER_LINE_CASES,
    **SUSPENDED_CASES,
    **WORK_CASES,
    **COLLECTION_CASES,
    **COMPILATION_CASES,
}


@pytest.mark.parametrize("rule", FINDINGS)
def test_every_rule_fires_at_its_threshold_and_not_below_in_plain_numbers(rule: str) -> None:
    fires, just_below = CASES[rule]
    assert FINDINGS[rule](fires)
    assert FINDINGS[rule](just_below) == []
    for finding in FINDINGS[rule](fires):
        said = dataclasses.asdict(finding)
        as_lists = {"rows": list(finding.rows), "line": finding.line and list(finding.line)}
        assert json.loads(json.dumps(said)) == said | as_lists
        assert type(finding.share) is float
        assert {type(row) for row in finding.rows} <= {int}


WORDS = Path(__file__).with_name("finding_words.txt")


def words_of_all() -> str:
    """Title, text and remedy of every rule, on the trace that fires it."""
    said = [
        f"{rule}: {each.title}\n  {each.text}\n  {each.remedy}".rstrip()
        for rule in FINDINGS
        for each in FINDINGS[rule](CASES[rule][0])
    ]
    return "\n".join(said) + "\n"


def test_the_words_of_all_findings_are_the_approved_ones() -> None:
    """After a change that is meant, `python -m tests.test_findings` writes them anew."""
    assert words_of_all() == WORDS.read_text(encoding="utf-8")


def only(rule: str, record: Record) -> Finding:
    (finding,) = FINDINGS[rule](record)
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
    finding = only("device_idle", record)
    assert finding.text == (
        "GPU 0 was busy 31 % of 1.24 ms. It was idle for 860 µs, mostly while PyTorch's ops "
        "prepared launches (680 µs, 55 % of the time). The longest gap (595 µs) lies between "
        "`gemm` and `Memcpy HtoD`. The CPU ran `aten::copy_` meanwhile."
    )
    assert finding.cost_ns == 1_240_000 - 380_000
    assert (finding.start_ns, finding.end_ns) == (395_000, 990_000)
    named = record.trace.slices["name"].iloc[list(finding.rows)]
    assert named.tolist() == ["gemm", "Memcpy HtoD", "aten::copy_"]
    assert finding.remedy.startswith("In 80 % of its idle time, the GPU waited for the CPU")


def test_a_busy_gpu_is_said_to_be_busy_without_a_gap() -> None:
    assert only("device_idle", idle_gpu(951)).text == "GPU 0 was busy 95 % of 1.00 µs."
    assert "after the GPU's last work, `gemm`" in only("device_idle", idle_gpu(950)).text


def with_a_gap(*meanwhile: Row) -> Record:
    """A GPU that is idle from 100 to 800 ns of 1000."""
    return trace_of(
        runtime("cudaLaunchKernel", ts=0, dur=1), runtime("cudaLaunchKernel", ts=798, dur=1),
        kernel("first", ts=2, dur=98, launched_by=0),
        kernel("second", ts=800, dur=200, launched_by=1),
        *meanwhile,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("meanwhile", "words"),
    [
        ([annotation(LOADING, ts=105, dur=690)], "The CPU waited for the DataLoader meanwhile"),
        (
            [annotation("forward", ts=105, dur=690), op("aten::cat", ts=0, dur=1)],
            "The CPU was in no PyTorch op meanwhile, inside `forward`",
        ),
        ([op("aten::cat", ts=0, dur=1)], "The CPU was in no PyTorch op meanwhile"),
        ([op("aten::cat", ts=105, dur=400)], "The CPU mostly ran `aten::cat` meanwhile"),
        (
            [python("m.py(1): main", ts=0, dur=1000), python("m.py(7): tidy", ts=200, dur=590)],
            "The CPU ran Python meanwhile, mostly in `m.py(7): tidy`",
        ),
    ],
)  # fmt: skip
def test_a_gap_says_what_the_cpu_did(meanwhile: list[Row], words: str) -> None:
    text = only("device_idle", with_a_gap(*meanwhile)).text
    assert text.endswith(f"lies between `first` and `second`. {words}.")


def test_a_gpu_that_mostly_waits_for_the_loader_says_which_of_that_it_counts() -> None:
    record = with_a_gap(annotation(LOADING, ts=105, dur=690))
    found = only("device_idle", record)
    assert found.title == "GPU 0 is idle, also besides waiting for the DataLoader"
    assert "(690 ns, 69 % of the time; the finding on the DataLoader counts that)" in found.text
    assert (found.cost_ns, only("dataloader", record).cost_ns) == (12, 690)


@pytest.mark.parametrize(("all_reduce", "is_more"), [(41, True), (40, False)])
def test_communication_that_takes_more_than_any_op_is_named_before_it(
    all_reduce: int, is_more: bool
) -> None:
    """It belongs to a region, as in recordings of DDP, which is no op."""
    record = trace_of(
        op("aten::mm", ts=0, dur=9), annotation("nccl:all_reduce", ts=10, dur=5),
        kernel("gemm", ts=10, dur=40, launched_by=0),
        kernel("ncclKernel_AllReduce", ts=50, dur=all_reduce, stream=20, launched_by=1),
    )  # fmt: skip
    found = only("gpu_ops", record)
    more = ". Only communication takes more (51 %)" if is_more else ""
    assert found.text.endswith(f" of all GPU work){more}.")
    after = " after communication" if is_more else ""
    assert found.title == f"`aten::mm` causes the most GPU work{after}"


def test_communication_that_the_op_itself_launched_does_not_come_before_it() -> None:
    record = trace_of(
        op("c10d::allreduce_", ts=0, dur=9),
        kernel("ncclKernel_AllReduce", ts=10, dur=40, launched_by=0),
    )
    assert only("gpu_ops", record).title == "`c10d::allreduce_` causes the most GPU work"


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
    finding = only("synchronising", record)
    assert finding.text == (
        "`aten::item` waited 412 ns for the GPU (41 % of the time), in 2 calls of "
        "`cudaStreamSynchronize`, mostly for `gemm`. The GPU was busy all that time. Without "
        "these waits, the run would be at most 137 ns (14 %) shorter."
    )
    in_the_first = 5 + (505 - 395)  # until it returned, and until the next wait
    assert finding.cost_ns == in_the_first + 22  # the second: all, as the GPU has no work then
    assert finding.share == finding.cost_ns / 1000
    assert len(finding.rows) == 2
    assert ".item()" in finding.remedy


@pytest.mark.parametrize(
    ("launched_at", "begins", "cost"),
    [
        (5, 410, 10),  # queued before: only what the call took after the kernel
        (405, 410, 10 + 10),  # launched then: the GPU had to wait for it
        (700, 900, 390),  # it idled for longer than the CPU had waited
    ],
)
def test_waiting_costs_what_the_gpu_idles_for_it(launched_at: int, begins: int, cost: int) -> None:
    record = trace_of(
        op("aten::item", ts=0, dur=402), runtime(SYNC, ts=10, dur=390),
        runtime("cudaLaunchKernel", ts=launched_at, dur=2), op("end", ts=990, dur=10),
        kernel("gemm", ts=0, dur=390),
        kernel("next", ts=begins, dur=1000 - begins, launched_by=2),
    )  # fmt: skip
    finding = only("synchronising", record)
    assert "waited 390 ns for the GPU (39 % of the time)" in finding.text
    assert finding.cost_ns == cost


def test_after_a_wait_the_cpu_has_no_lead_until_the_next_one() -> None:
    """Two calls of one op wait as one; each kernel then comes too late, up to the next wait."""
    rows = [
        op("aten::item", ts=0, dur=320), runtime(SYNC, ts=10, dur=290),
        runtime("cudaEventSynchronize", ts=305, dur=5), kernel("gemm", ts=0, dur=300),
    ]  # fmt: skip
    for number in range(4):
        rows.append(runtime("cudaLaunchKernel", ts=320 + 20 * number, dur=2))
        rows.append(kernel("add", ts=330 + 20 * number, dur=10, launched_by=len(rows) - 1))
    rows += [op("aten::to", ts=400, dur=600), runtime("cudaDeviceSynchronize", ts=410, dur=580)]
    record = trace_of(*rows, kernel("long", ts=400, dur=600))
    said = {one.text.split("`")[1]: one.cost_ns for one in FINDINGS["synchronising"](record)}
    in_the_second_call, until_the_first_kernel, between_kernels = 5, 330 - 310, 3 * 10
    assert said == {
        "aten::item": in_the_second_call + until_the_first_kernel + between_kernels,
        "aten::to": 0,
    }


def test_waiting_beside_a_busy_gpu_costs_nothing() -> None:
    """Another stream works on: the wait is told, at no cost, after what costs more."""
    record = trace_of(
        op("aten::item", ts=0, dur=402), runtime(SYNC, ts=10, dur=390),
        kernel("gemm", ts=0, dur=390), kernel("long", ts=0, dur=1000, stream=9),
        op("end", ts=990, dur=10),
    )  # fmt: skip
    finding = only("synchronising", record)
    assert (finding.cost_ns, finding.share) == (0, 0)
    assert ". The GPU was busy all that time and had more work queued" in finding.text


@pytest.mark.parametrize("waits_itself", [True, False])
@pytest.mark.parametrize(
    ("kind", "words"),
    [
        ("Memcpy DtoH (Device -> Pageable)", "Keep results on the GPU"),
        ("Memcpy HtoD (Pageable -> Device)", "Copy from pinned memory"),
        ("Memcpy HtoD (Pinned -> Device)", "non_blocking=True suffices"),
        ("Memcpy DtoD (Device -> Device)", "The CPU launches nothing"),
    ],
)
def test_the_remedy_fits_the_copy_that_was_waited_for(
    kind: str, words: str, waits_itself: bool
) -> None:
    if waits_itself:
        calls = [runtime("cudaMemcpy", ts=5, dur=390)]
    else:
        calls = [runtime("cudaMemcpyAsync", ts=5, dur=4), runtime(SYNC, ts=10, dur=385)]
    record = trace_of(
        op("aten::to", ts=0, dur=400), *calls, op("end", ts=900, dur=100),
        copy(kind, ts=20, dur=370, launched_by=1),
    )  # fmt: skip
    assert words in only("synchronising", record).remedy


def test_a_wait_is_for_what_the_gpu_was_busy_with_not_for_what_ended_last() -> None:
    record = trace_of(
        op("aten::item", ts=0, dur=400), runtime(SYNC, ts=5, dur=390),
        kernel("gemm", ts=10, dur=300), kernel("relu", ts=310, dur=50),
        kernel("all_reduce", ts=0, dur=1000, stream=20),
        copy("Memset (Device)", ts=360, dur=20, category="gpu_memset"),
        op("end", ts=900, dur=100),
    )  # fmt: skip
    assert "`cudaStreamSynchronize`, mostly for `gemm`." in only("synchronising", record).text


def test_memory_given_back_while_the_gpu_works_is_a_wait_with_its_remedy() -> None:
    record = trace_of(
        op("aten::empty", ts=0, dur=500), runtime("cudaFree", ts=5, dur=390),
        runtime("cudaMalloc", ts=400, dur=90), kernel("gemm", ts=0, dur=390),
        op("end", ts=900, dur=100),
    )  # fmt: skip
    finding = only("synchronising", record)
    assert "in 1 call of `cudaFree`, mostly for `gemm`" in finding.text
    assert "freed cached blocks first" in finding.remedy


def test_a_synchronisation_outside_of_ops_is_not_blamed_on_a_copy_before() -> None:
    record = trace_of(
        annotation("Cell [1]", ts=0, dur=1000),
        runtime("cudaMemcpyAsync", ts=5, dur=4),
        runtime("cudaDeviceSynchronize", ts=10, dur=385),
        op("end", ts=900, dur=100),
        copy("Memcpy DtoH (Device -> Pageable)", ts=20, dur=370, launched_by=1),
        kernel("gemm", ts=950, dur=9, launched_by=3),
    )
    assert only("synchronising", record).remedy.startswith("The CPU launches nothing")


@pytest.mark.parametrize(("calls", "words"), [(1, "remove the call"), (2, "out of the loop")])
def test_a_single_call_is_in_no_loop(calls: int, words: str) -> None:
    rows = [runtime("cudaDeviceSynchronize", ts=10 + 400 * i, dur=300) for i in range(calls)]
    gpu = [kernel("gemm", ts=0, dur=900), kernel("relu", ts=980, dur=5)]
    record = trace_of(*gpu, *rows, op("end", ts=990, dur=10))
    assert words in only("synchronising", record).remedy


def test_the_wait_that_ends_a_recording_is_the_profilers_own() -> None:
    record = trace_of(
        op("aten::mm", ts=0, dur=10),
        runtime("cudaDeviceSynchronize", ts=20, dur=500),
        kernel("gemm", ts=10, dur=500),
    )
    assert FINDINGS["synchronising"](record) == []


def test_the_costliest_line_is_no_head_of_a_loop_and_says_what_its_gpu_work_took() -> None:
    record = trace_of(
        cell_line(2, "for x in data:", ts=0, dur=1000 * MS),
        cell_line(3, "loss.backward(`x`)", ts=0, dur=310 * MS),
        cell_line(3, "loss.backward(`x`)", ts=500 * MS, dur=300 * MS),
        runtime("cudaLaunchKernel", ts=510 * MS, dur=5),
        kernel("gemm", ts=520 * MS, dur=420 * MS, launched_by=3),
        cell_line(4, "step()", ts=320 * MS, dur=100 * MS),
    )
    finding = only("lines", record)
    assert finding.text == (
        "Line 3 `loss.backward('x')` took 61 % of the time (610 ms in 2 runs). Its GPU work "
        "took 420 ms."
    )
    assert (finding.start_ns, finding.end_ns, finding.cost_ns) == (0, 310 * MS, 610 * MS)
    names = record.trace.slices["name"].iloc[list(finding.rows)]
    assert names.tolist() == ["3: loss.backward(`x`)"] * 2


def test_a_line_that_waited_says_so_and_a_single_line_says_nothing() -> None:
    waiting = [
        cell_line(3, "x.item()", ts=0, dur=900 * MS),
        runtime(SYNC, ts=10 * MS, dur=800 * MS),
    ]
    assert FINDINGS["lines"](trace_of(*waiting)) == []
    found = only("lines", trace_of(*waiting, cell_line(4, "y", ts=900 * MS, dur=100 * MS)))
    assert found.text.endswith("(900 ms), 800 ms of it waiting for the GPU.")
    assert found.remedy.startswith("`cudaStreamSynchronize` makes it wait. The trace shows no GPU")


def test_a_line_that_waits_for_its_own_copy_says_so() -> None:
    record = trace_of(
        cell_line(2, "y = f(x)", ts=0, dur=100 * MS),
        op("aten::mm", ts=0, dur=2 * MS),
        cell_line(3, "x = x.cuda()", ts=100 * MS, dur=800 * MS),
        op("aten::copy_", ts=110 * MS, dur=780 * MS),
        runtime("cudaMemcpyAsync", ts=111 * MS, dur=MS),
        runtime(SYNC, ts=120 * MS, dur=700 * MS),
        copy("Memcpy HtoD (Pageable -> Device)", ts=113 * MS, dur=706 * MS, launched_by=4),
        op("aten::add", ts=830 * MS, dur=20 * MS),
        runtime("cudaLaunchKernel", ts=840 * MS, dur=5),
        kernel("add", ts=850 * MS, dur=10 * MS, launched_by=8),
    )
    remedy = only("lines", record).remedy
    assert remedy.startswith("`aten::copy_` waits until its copy is done. Copy from pinned memory")


@pytest.mark.parametrize(
    ("name", "begins", "ends"),
    [
        ("aten::index", "`aten::index` makes it wait. The CPU has to", "keep a fixed shape."),
        ("aten::item", "`aten::item` waits for GPU work that was launched before", "per epoch."),
        ("mine", "`mine` waits for GPU work that was launched before", "with much GPU time."),
        (EVALUATE + "MineBackward0", "`MineBackward0` waits for GPU work", "time."),
    ],
)
def test_a_line_that_waits_names_the_op_that_makes_it(name: str, begins: str, ends: str) -> None:
    record = trace_of(
        cell_line(2, "y = f(x)", ts=0, dur=100 * MS),
        op("aten::mm", ts=0, dur=2 * MS),
        runtime("cudaLaunchKernel", ts=MS, dur=5),
        kernel("gemm", ts=2 * MS, dur=800 * MS, launched_by=2),
        cell_line(3, "y[mask]", ts=100 * MS, dur=800 * MS),
        op(name, ts=110 * MS, dur=780 * MS),
        runtime(SYNC, ts=120 * MS, dur=700 * MS),
        op("aten::add", ts=830 * MS, dur=20 * MS),
        runtime("cudaLaunchKernel", ts=840 * MS, dur=5),
        kernel("add", ts=850 * MS, dur=10 * MS, launched_by=8),
    )
    found = only("lines", record)
    assert found.line == ("Cell [3]", 3)
    assert found.remedy.startswith(begins)
    assert found.remedy.endswith(ends)


@pytest.mark.parametrize(("waited", "says"), [(449, True), (450, False)])
def test_a_line_that_waits_for_the_dataloader_is_left_to_the_finding_about_it(
    waited: int, says: bool
) -> None:
    record = trace_of(
        cell_line(2, "for x in loader:", ts=0, dur=1000 * MS),
        annotation(LOADING, ts=0, dur=waited * MS),
        cell_line(3, "y(x)", ts=900 * MS, dur=100 * MS),
    )
    assert bool(FINDINGS["lines"](record)) is says
    assert FINDINGS["dataloader"](record) != []


@pytest.mark.parametrize(("took", "says"), [(MS, True), (MS - 1, False)])
def test_a_line_that_nobody_waits_for_is_not_named(took: int, says: bool) -> None:
    record = trace_of(cell_line(2, "a()", ts=0, dur=took), cell_line(3, "b()", ts=took, dur=9))
    assert bool(FINDINGS["lines"](record)) is says


def limited(*rows: Row, beyond: list[int], limit: int | None = 10_000) -> Record:
    """A loop at line 3, of which these rows were recorded, until they ran too often."""
    source = {"label": "Cell [3]", "source": "", "beyond_limit": beyond}
    head = cell_line(3, "for i in range(30000):", ts=0, dur=900 * MS)
    after = cell_line(9, "h()", ts=900 * MS, dur=100 * MS)
    known = {"cells": [source]} if limit is None else {"cells": [source], "limit": limit}
    return trace_of(head, *rows, after, lines=known)


@pytest.mark.parametrize(
    ("limit", "runs", "often"),
    [(10_000, "10,000 runs", "than 10,000 times"), (None, "runs", "often than is recorded")],
    ids=["known", "not in the file"],
)
def test_no_line_is_blamed_for_what_ran_in_it_beyond_the_limit(
    limit: int | None, runs: str, often: str
) -> None:
    two = [cell_line(4 + i, "g()", ts=50 * i * MS, dur=50 * MS) for i in range(2)]
    finding = only("lines", limited(*two, beyond=[4, 5], limit=limit))
    assert finding.text == (
        "Line 3 `for i in range(30000):` took 80 % of the time (800 ms), including that of lines "
        f"4 and 5 after their first {runs}."
    )
    assert (finding.cost_ns, finding.end_ns) == (800 * MS, 900 * MS)
    alone = only("lines", limited(two[0], beyond=[4], limit=limit))
    assert alone.text.endswith(f", including that of line 4 after its first {runs}.")
    most = cell_line(4, "g()", ts=0, dur=700 * MS)
    finding = only("lines", limited(most, beyond=[4], limit=limit))
    assert finding.text == (
        f"Line 4 `g()` took at least 70 % of the time (700 ms). It ran more {often}. "
        "Beyond that, its time counts for line 3 (20 % of the time, 200 ms)."
    )
    assert (finding.cost_ns, finding.end_ns) == (700 * MS, 700 * MS)
    assert only("lines", limited(most, beyond=[9])).text.startswith("Line 4 `g()` took 70 %")


def test_lines_of_a_recursion_beyond_the_limit_took_together_what_cannot_be_told_apart() -> None:
    calls = [cell_line(5, "return f(n - 1)", ts=n * MS, dur=(900 - 2 * n) * MS) for n in range(4)]
    test = cell_line(4, "if n < 2:", ts=100 * MS, dur=60 * MS)
    finding = only("lines", limited(*calls, test, beyond=[4, 5]))
    assert finding.text == (
        "Lines 4 and 5 took at least 90 % of the time (900 ms). They ran more than 10,000 "
        "times. Beyond that, their time counts for line 3 (0 % of the time, 0 ns)."
    )
    aside = cell_line(4, "if n < 2:", ts=897 * MS, dur=3 * MS)
    calls = [cell_line(5, "return f(n - 1)", ts=n * MS, dur=(896 - 2 * n) * MS) for n in range(4)]
    assert only("lines", limited(*calls, aside, beyond=[4, 5])).text.startswith(
        "Line 5 `return f(n - 1)` took at least 90 % of the time (896 ms). It ran"
    )


def test_without_gpu_the_cpu_ops_are_ranked() -> None:
    record = trace_of(
        annotation("forward", ts=0, dur=1000),
        op("aten::addmm", ts=0, dur=170), op("aten::addmm", ts=200, dur=170),
        op("aten::copy_", ts=400, dur=600), op("aten::empty", ts=410, dur=4),
        cuda=False,
    )  # fmt: skip
    finding = only("cpu_ops", record)
    assert finding.text == (
        "`aten::copy_` took 596 ns in 1 call (60 % of the time, 63 % of CPU op time). Next: "
        "`aten::addmm` (36 %). PyTorch sees no GPU here."
    )
    assert finding.cost_ns == 596
    assert (finding.start_ns, finding.end_ns) == (400, 1000)
    assert record.trace.slices["name"].iloc[list(finding.rows)].tolist() == ["aten::copy_"]


@pytest.mark.parametrize(
    ("took", "metadata", "remedy"),
    [
        (19_999, {}, "Its only call takes 20.0 µs, much of it the overhead of any op"),
        (20_000, {"cuda": False}, "Its only call takes 20.0 µs: smaller sizes"),
        (20_000, {"cuda": True}, "PyTorch sees a GPU. If nothing ran on it"),
        (20_000, {"framework": "TensorFlow"}, "Its only call takes 20.0 µs: smaller sizes or a GPU "
         "make it shorter."),
    ],
)  # fmt: skip
def test_what_to_do_about_a_cpu_op_goes_by_its_length(
    took: int, metadata: dict[str, Any], remedy: str
) -> None:
    (finding,) = findings(trace_of(op("aten::mm", ts=0, dur=took), **metadata))
    assert finding.remedy.startswith(remedy)


WARMED_UP = {"steps": {"iterations": [{"step": 0, "kind": "warmup", "dur_ns": 9}]}}
"""Metadata of a loop whose first iteration was not recorded."""


def products(*durations: int, **metadata: Any) -> Record:
    """Calls of one op of these lengths (µs)."""
    calls = [
        op("aten::mm", ts=number * 10**9, dur=1000 * dur) for number, dur in enumerate(durations)
    ]
    return trace_of(*calls, **metadata)


@pytest.mark.parametrize(
    ("durations", "metadata", "remedy"),
    [
        ((970, 30, 40), {}, "One call took most of that time (970 µs); the others take 35.0 µs "
         "each. The first call may set up a library or its threads: warm up before measuring "
         "(--steps with --warmup)"),
        ((970, 30, 40), WARMED_UP, "One call took most of that time (970 µs); the others take "
         "35.0 µs each. Check whether its tensors are larger, and look at the timeline"),
        ((30, 970), {}, "One call took most of that time (970 µs); the other takes 30.0 µs. Check "
         "whether its tensors are larger, and look at the timeline"),
        ((970, 30), {"framework": "TensorFlow"}, "One call took most of that time (970 µs); the "
         "other takes 30.0 µs. The first call may set up a library or its threads: warm up before "
         "measuring, or"),
        ((500, *[100] * 5), {}, "One call took most of that time (500 µs); the others take 100 µs "
         "each"),
        ((499, *[100] * 5), {}, "The median call takes 100 µs: smaller sizes"),
        ((60, 40), {}, "The median call takes 50.0 µs: smaller sizes"),
        ((20, 20, 20, 90, 90, 90, 20), {}, "The median call takes 20.0 µs: smaller sizes"),
        ((*[10] * 90, *[500] * 10), {}, "A few calls (of up to 500 µs) took most of that time; "
         "the median call takes 10.0 µs. Check whether their tensors are larger"),
        ((900, *[10] * 99), {}, "The median call takes 10.0 µs, much of it the overhead"),
    ],
)  # fmt: skip
def test_of_a_cpu_op_most_of_which_is_one_call_or_few_it_says_so(
    durations: tuple[int, ...], metadata: dict[str, Any], remedy: str
) -> None:
    assert only("cpu_ops", products(*durations)).cost_ns == 1000 * sum(durations)
    found = [one for one in findings(products(*durations, **metadata)) if one.rule == "cpu_ops"]
    assert [one.remedy[: len(remedy)] for one in found] == [remedy]


@pytest.mark.parametrize(
    ("took", "parts", "remedy"),
    [
        (50_000, 30, "Its only call takes 50.0 µs (20.0 µs itself): smaller sizes"),
        (19_000, 11, "Its only call takes 19.0 µs (8.00 µs itself), much of it the overhead of"),
        (30_000, 15, "Its only call takes 30.0 µs: smaller sizes"),
    ],
)
def test_an_op_that_calls_long_ones_is_not_one_of_short_calls(
    took: int, parts: int, remedy: str
) -> None:
    within = [op(f"aten::part{i}", ts=i * 1000, dur=1000) for i in range(parts)]
    record = trace_of(op("mine::outer", ts=0, dur=took), *within)
    assert only("cpu_ops", record).remedy.startswith(remedy)


@pytest.mark.parametrize(
    ("metadata", "said"),
    [
        ({"recorded_by": "VizTracer"}, []),
        ({}, ["No GPU activity was recorded. No PyTorch op was recorded either."]),
    ],
)
def test_that_nothing_of_a_gpu_was_recorded_is_said_where_it_could_have_been(
    metadata: dict[str, Any], said: list[str]
) -> None:
    record = trace_of(python("train.py(3): step", ts=0, dur=100), **metadata)
    assert [one.text for one in FINDINGS["cpu_ops"](record)] == said


@pytest.mark.parametrize(
    ("flops_peak", "bytes_peak", "kind", "remedy", "narrower"),
    [
        (1e15, 1.5e12, "float", "It mostly moves data, at 80 % of the GPU's memory bandwidth. Fuse",
         True),
        (2.5e13, 1.5e13, "float", "It computes at 80 % of the GPU's peak in fp32. Only less", True),
        (1e14, 1.5e13, "float", "It computes at 20 % of the GPU's peak in fp32. Use larger", True),
        (1e15, 1e12, "float", "It mostly moves data, at 120 % of the GPU's memory bandwidth: part",
         True),
        (1e17, 3e15, "float", "It reaches less than 0.1 % of the GPU's memory bandwidth. ", False),
        (1.6e13, 1.5e13, "float", "By its shapes, it would compute at 125 % of the GPU's", False),
        (1e14, 1.5e13, "signed char", "It computes at 20 % of the GPU's peak in int8. Use", False),
        (1e14, 1e13, "", "Record shapes (--shapes, record_shapes=True) to see how", False),
    ],
)  # fmt: skip
def test_the_costliest_op_is_held_against_the_roof(
    flops_peak: float, bytes_peak: float, kind: str, remedy: str, narrower: bool
) -> None:
    said = only("gpu_ops", roofed(flops_peak, bytes_peak, kind=kind)).remedy
    assert said.startswith(remedy)
    assert ("16 bits" in said) == narrower


def test_what_is_known_of_a_part_of_an_op_is_said_of_that_part() -> None:
    """Of two products of one op the shapes of one are known."""
    known = {"shapes": [[100, 100]] * 2, "Input type": ["float"] * 2}
    record = trace_of(
        op("aten::mm", ts=0, dur=9, **known), kernel("gemm", ts=10, dur=100, launched_by=0),
        op("aten::mm", ts=120, dur=9), kernel("gemm", ts=130, dur=25, launched_by=2),
        peaks=Peaks("GPU", {"fp32": 1e14}, 1.5e13, "hand-made").as_dict(),
    )  # fmt: skip
    said = only("gpu_ops", record).remedy
    assert said.startswith("For 80 % of its time (1 call in fp32), it computes at 20 % of the GPU")


def test_of_many_kernels_alike_none_is_named() -> None:
    kernels = [kernel(f"k{i}(int)", ts=10 + 10 * i, dur=9, launched_by=0) for i in range(4)]
    few = trace_of(op("mine::x", ts=0, dur=9, shapes=[[100]]), *kernels[:3])
    many = trace_of(op("mine::x", ts=0, dur=9, shapes=[[100]]), *kernels)
    assert "The kernel `k0` takes 33 % of that time" in only("gpu_ops", few).remedy
    said = only("gpu_ops", many).remedy
    assert said.startswith("The time is spread over 4 kernels, whose work is not known")


@pytest.mark.parametrize(
    ("name", "category", "remedy"),
    [
        ("Memcpy HtoD (Pageable -> Device)", "gpu_memcpy", "Or copy it while the GPU computes"),
        ("Memcpy DtoD (Device -> Device)", "gpu_memcpy", "Views and ops in place need no copy."),
        ("Memset (Device)", "gpu_memset", "do not initialise what is overwritten anyway"),
    ],
)
@pytest.mark.parametrize("shapes", [{}, {"shapes": [[9]] * 2, "Input type": ["float"] * 2}])
def test_an_op_that_mostly_copies_is_told_what_helps_against_copies(
    name: str, category: str, remedy: str, shapes: dict[str, Any]
) -> None:
    """Even where the roof over the one kernel that it also has is known."""
    record = trace_of(
        op("aten::copy_", ts=0, dur=9, **shapes),
        copy(name, ts=10, dur=80, launched_by=0, category=category),
        kernel("cast", ts=90, dur=20, launched_by=0),
        peaks=Peaks("GPU", {"fp32": 1e14}, 1e13, "hand-made").as_dict(),
    )
    said = only("gpu_ops", record).remedy
    assert f"`{name}` takes 80 % of that time" in said
    assert remedy in said


def test_a_built_in_function_is_named_with_who_called_it() -> None:
    search = "<method 'search' of 're.Pattern' objects>"
    record = trace_of(
        calls=calls_of(
            (None, "main", 1, 10),
            ("main", "read", 1, 10),
            ("main", "poll", 1, 10),
            ("read", search, 3, 7_000_000),
            ("poll", search, 90, 2_000_000),
        )
    )
    finding = only("python_time", record)
    assert finding.text.endswith("(9.00 ms in 93 calls, mostly from `cell.py:2(read)`).")
    assert finding.remedy.startswith("It is not written in Python")


@pytest.mark.parametrize(
    ("calls", "remedy"),
    [
        (1_000, "On average a call takes only 9.00 µs. Call it less often"),
        (900, "Look in it for loops"),
    ],
)
def test_a_function_that_is_called_often_is_to_be_called_less(calls: int, remedy: str) -> None:
    record = trace_of(calls=calls_of((None, "fib", calls, 9_000_000)))
    assert only("python_time", record).remedy.startswith(remedy)


@pytest.mark.parametrize(
    ("name", "remedy"),
    [
        ("<built-in method posix.fork>", "It starts a process"),
        ("<built-in method _posixsubprocess.fork_exec>", "It starts a process"),
        ("<method 'read' of '_io.BytesIO' objects>", "It is not written in Python"),
        ("<built-in method builtins.sorted>", "`sorted` sorts all elements each time"),
        ("<method 'index' of 'list' objects>", "`list.index` searches the list from its start"),
        ("<method 'index' of 'tuple' objects>", "It is not written in Python"),
    ],
)
def test_no_loop_is_looked_for_in_what_is_built_in(name: str, remedy: str) -> None:
    record = trace_of(calls=calls_of((None, name, 3, 9_000_000)))
    assert only("python_time", record).remedy.startswith(remedy)


def starting_workers(*also: tuple[str | None, str, int, int]) -> Calls:
    """Calls of a run that starts workers by forking, 9 ms, and these."""
    return through_the_library(
        (None, "train", 1, 5 * MS), ("train", "__init__", 1, MS), ("__init__", "start", 2, MS),
        ("start", "_launch", 2, MS), ("_launch", FORK, 2, 9 * MS), *also,
        __init__="/x/torch/utils/data/dataloader.py", start="/x/multiprocessing/process.py",
        _launch="/x/multiprocessing/popen_fork.py",
    )  # fmt: skip


FORK = "<built-in method posix.fork>"
STARTS_WORKERS = "enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__init__"


@pytest.mark.parametrize(
    ("region", "also", "named"),
    [
        (STARTS_WORKERS, [], "`cell.py:1(train)`"),
        (STARTS_WORKERS, [("train", FORK, 1, MS)], "`posix.fork`"),  # their own process
        (STARTS_WORKERS, [("train", "_launch", 1, MS)], "`posix.fork`"),
        (STARTS_WORKERS, [(None, FORK, 1, MS)], "`posix.fork`"),
        ("their own region", [], "`posix.fork`"),
    ],
    ids=["workers alone", "forks too", "launches too", "by nobody seen", "no region"],
)
def test_what_starts_workers_is_input_and_no_python(
    region: str, also: list[tuple[str | None, str, int, int]], named: str
) -> None:
    record = trace_of(annotation(region, ts=0, dur=12 * MS), calls=starting_workers(*also))
    assert f" function {named} itself" in only("python_time", record).text


def test_of_a_range_nothing_is_said_of_functions_that_cprofile_counted() -> None:
    record = waiting_for_a_matmul()
    assert FINDINGS["python_time"](record)
    assert FINDINGS["python_waiting"](record)
    part = window(record, 0, record.trace.end_ns - 1)
    assert FINDINGS["python_time"](part) == FINDINGS["python_waiting"](part) == []
    whole = window(record, 0, record.trace.end_ns)
    assert FINDINGS["python_time"](whole) == FINDINGS["python_time"](record)


def test_recorded_frames_tell_of_a_range_as_well() -> None:
    frames = [python("/home/train.py(3): step", ts=0, dur=500 * MS)]
    part = window(waiting_for_a_matmul(*frames), 0, 499 * MS)
    assert "`train.py:3(step)`" in only("python_time", part).text


def test_a_function_that_calls_what_takes_long_is_not_one_of_short_calls() -> None:
    """`step` itself takes 9 µs of the 17 µs of a call."""
    record = trace_of(
        calls=calls_of((None, "step", 1000, 9_000_000), ("step", "slow", 1000, 8_000_000))
    )
    finding = only("python_time", record)
    assert "`cell.py:1(step)` itself took 53 %" in finding.text
    assert finding.remedy.startswith("Look in it for loops")


def test_a_finding_on_a_function_names_its_row_in_the_table_of_functions() -> None:
    record = python_function(500)
    finding = only("python_time", record)
    assert finding.function in function_labels(python_time(record))
    assert finding.rows == ()


def test_a_python_function_of_less_than_a_millisecond_is_not_worth_a_finding() -> None:
    assert FINDINGS["python_time"](trace_of(calls=calls_of((None, "fib", 1, 999_999)))) == []
    assert FINDINGS["python_time"](trace_of(calls=calls_of((None, "fib", 1, 1_000_000))))


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
    finding = only("python_time", operators_of_two_functions())
    assert finding.text == (
        "The Python function `cell.py:1(f)` itself took at most 50 % of the time (50.0 ms in 1 "
        "call). The real time may be shorter, because cProfile counts the ops of operators such "
        "as `x[i]` as the function's own."
    )
    busy = op("aten::mm", ts=80 * MS, dur=15 * MS)
    assert only("python_time", operators_of_two_functions(busy)).cost_ns == 35 * MS
    busier = op("aten::mm", ts=70 * MS, dur=41 * MS)
    assert FINDINGS["python_time"](operators_of_two_functions(busier)) == []


def test_recorded_frames_tell_in_which_function_the_operators_were() -> None:
    finding = only(
        "python_time",
        operators_of_two_functions(
            python("/home/cell.py(1): f", ts=0, dur=50 * MS),
            python("/home/cell.py(2): g", ts=50 * MS, dur=50 * MS),
        ),
    )
    assert finding.text == (
        "The Python function `cell.py:2(g)` itself took 40 % of the time, PyTorch ops not counted "
        "(40.0 ms in 1 call)."
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
    assert sum(finding.cost_ns for finding in FINDINGS["python_time"](record)) <= python_ns - ops


def waiting_for_a_matmul(*frames: Row) -> Record:
    place = {"cell": "Cell [3]", "line": 12}
    return trace_of(
        annotation("Cell [3]", ts=0, dur=500 * MS),
        op("12: c = a @ b", ts=0, dur=10 * MS, category="cell_line", **place),
        op("aten::mm", ts=1 * MS, dur=5 * MS), runtime("cudaLaunchKernel", ts=2 * MS, dur=1 * MS),
        op("aten::item", ts=20 * MS, dur=410 * MS), runtime(SYNC, ts=25 * MS, dur=395 * MS),
        kernel("sgemm_128x64", ts=10 * MS, dur=409 * MS, launched_by=3), *frames,
        calls=calls_of((None, "step", 1, 88 * MS), ("step", ITEM, 9, 412 * MS)),
        label="Cell [3]", execution_count=3,
    )  # fmt: skip


def test_a_function_that_cprofile_blames_says_what_it_waited_for() -> None:
    record = waiting_for_a_matmul()
    finding = only("python_waiting", record)
    assert finding.text == (
        "`Tensor.item` took 412 ms (82 % of the time). It waited for the GPU for an estimated "
        "395 ms of that (79 % of the time), mostly for `sgemm_128x64`, launched by `aten::mm` "
        "at line 12."
    )
    assert (finding.cost_ns, finding.share) == (395 * MS, 0.79)
    assert (finding.start_ns, finding.end_ns) == (25 * MS, 420 * MS)
    assert record.trace.slices["name"].iloc[list(finding.rows)].tolist() == [SYNC]


def test_with_recorded_frames_the_wait_is_no_estimate() -> None:
    frames = [
        python("/home/train.py(3): step", ts=0, dur=500 * MS),
        python("<built-in method item of Tensor object at 0x7f>", ts=19 * MS, dur=412 * MS),
    ]
    text = only("python_waiting", waiting_for_a_matmul(*frames)).text
    assert text.startswith(
        "`Tensor.item` took 412 ms (82 % of the time). It waited for the GPU for 395 ms of that "
        "(79 %"
    )
    assert FINDINGS["python_time"](waiting_for_a_matmul(*frames))[0].cost_ns == 83 * MS


def test_a_wait_that_a_call_tells_of_is_not_told_of_its_function_as_well() -> None:
    told = [one.rule for one in findings(waiting_for_a_matmul())]
    assert ("synchronising" in told, "python_waiting" in told) == (True, False)
    told = [one.rule for one in findings(waiting_for_a_matmul(), synchronising_share=0.9)]
    assert ("synchronising" in told, "python_waiting" in told) == (False, True)


@pytest.mark.parametrize(
    ("label", "words"),
    [
        (ITEM, "Tensor.item"),
        ("<built-in method item of Tensor object>", "Tensor.item"),
        ("<built-in method nonzero of type object at 0x7f10>", "torch.nonzero"),
        ("<built-in method torch.nonzero>", "torch.nonzero"),
        ("<built-in function _cuda_synchronize>", "_cuda_synchronize"),
        ("<method 'run_backward' of 'torch._C._EngineBase' objects>", "run_backward"),
        ("train.py:12(step)", "train.py:12(step)"),
        ("<lambda>", "<lambda>"),
    ],
)
def test_built_in_functions_are_called_as_users_write_them(label: str, words: str) -> None:
    assert function_name(label) == words


def test_steps_and_loaders_that_torch_1_8_wrote_as_ops_are_none() -> None:
    record = trace_of(
        op("ProfilerStep#4", ts=0, dur=1000), op(LOADING, ts=0, dur=40),
        op("Optimizer.step#SGD", ts=50, dur=300), op("aten::add_", ts=60, dur=30),
        op("aten::item", ts=400, dur=100), runtime(SYNC, ts=410, dur=80),
    )  # fmt: skip
    assert "No GPU activity was recorded. `aten::add_`" in only("cpu_ops", record).text
    assert only("synchronising", record).text.startswith("`aten::item` waited 80 ns")


@pytest.mark.parametrize(
    "name",
    [
        "<built-in function sin>",
        "<built-in method torch.sin>",
        "<method 'run_backward' of 'torch._C._EngineBase' objects>",
    ],
)
def test_a_function_that_is_an_op_is_left_to_the_op_table(name: str) -> None:
    other = (None, "<built-in method builtins.sorted>", 1, 1_000_000)
    calls = calls_of((None, name, 10, 9_000_000), other)
    record = trace_of(op("aten::sin", ts=0, dur=900), calls=calls)
    assert "`sorted`" in only("python_time", record).text


def test_a_file_of_cprofile_is_not_said_to_lack_a_gpu() -> None:
    assert FINDINGS["cpu_ops"](trace_of(calls=calls_of((None, "fib", 1, 9)))) == []


def test_an_error_and_an_interruption_come_first() -> None:
    rows = [op("aten::mm", ts=0, dur=900)]
    cell = {"wall_ns": 2_000_000, "execution_count": 4}
    failed = findings(trace_of(*rows, error="ValueError: no such file", **cell))
    assert failed[0].text == (
        "The cell raised ValueError: no such file after 2.00 ms. This profile ends there."
    )
    sentence = findings(trace_of(*rows, error="RuntimeError: it is lost.", wall_ns=2_000_000))
    assert sentence[0].text.startswith("The run raised RuntimeError: it is lost after 2.00 ms. ")
    stopped = findings(trace_of(*rows, interrupted=True, error="KeyboardInterrupt"))
    assert stopped[0].text == "The run was interrupted after 900 ns. This profile ends there."


@pytest.mark.parametrize(
    ("options", "calls", "remedy"),
    [
        ({}, False, "Record fewer iterations."),
        ({"stack": True}, False, "Record fewer iterations, or record less (without stacks)."),
        ({"stack": True}, True, "Record fewer iterations, or record less (without stacks)."),
        (
            {"shapes": True, "memory": True, "stack": False},
            True,
            "Record fewer iterations, or record less (without shapes, memory and cProfile).",
        ),
    ],
)
def test_only_what_was_recorded_is_to_be_left_out(
    options: dict[str, bool], calls: bool, remedy: str
) -> None:
    counted = calls_of((None, "main", 1, 10)) if calls else None
    noted = {"events": 7, "estimate_ns": 900 * MS}
    metadata = {"wall_ns": 1000 * MS, "overhead": noted, "options": options}
    record = trace_of(op("aten::mm", ts=0, dur=9), calls=counted, **metadata)
    assert only("overhead", record).remedy == remedy


@pytest.mark.parametrize(
    ("calls", "wall", "says"),
    [
        (60_000, 10 * MS, "about 6.00 ms of that time (60,000 calls at 100 ns each)"),
        (200_000, 10 * MS, "about 20.0 ms of that"),  # by its estimate, longer than the run
        (17_000, 10 * MS, "about 1.70 ms of that"),
        (16_000, 10 * MS, ""),  # 19 % of the run without it
        (0, 10 * MS, ""),
    ],
)
def test_cprofile_s_own_time_is_told_where_it_is_a_fifth(calls: int, wall: int, says: str) -> None:
    noted = {"events": 7, "calls": calls, "call_cost_ns": 100.0, "estimate_ns": 2 * MS}
    record = trace_of(op("aten::mm", ts=0, dur=9), wall_ns=wall, overhead=noted)
    remedy = only("overhead", record).remedy
    assert ("--python sampled" in remedy) == bool(says)
    assert says in remedy


@pytest.mark.parametrize(
    ("noted", "counted", "says"),
    [
        ({"calls": 2001, "call_cost_ns": 1000.0}, "2,001 Python calls", PYTHON_FUNCTIONS),
        ({"frames": 2001, "frame_cost_ns": 1000.0}, "2,001 frames", PYTHON_FUNCTIONS),
        ({"calls": 2000, "call_cost_ns": 1000.0}, "2,000 Python calls", SHORT_OPS),
        ({"calls": 1}, "1 Python call", SHORT_OPS),  # of an older version, without costs
    ],
)
def test_what_is_recorded_most_looks_longer(noted: dict[str, Any], counted: str, says: str) -> None:
    noted = {"events": 7, "estimate_ns": 4 * MS, **noted}
    record = trace_of(op("aten::mm", ts=0, dur=9), wall_ns=10 * MS, overhead=noted)
    assert only("overhead", record).text == (
        f"Recording 7 events and {counted} took about 4.00 ms (40 % of the run's 10.0 ms). "
        f"{says} look longer here than they are."
    )


def test_gpu_events_without_launch_are_counted() -> None:
    record = trace_of(
        op("aten::mm", ts=0, dur=9),
        kernel("gemm", ts=10, dur=5, launched_by=0),
        kernel("a", ts=20, dur=5), kernel("b", ts=30, dur=5),
    )  # fmt: skip
    assert only("unlinked", record).text == (
        "3 GPU events of 3 (100 %, and 100 % of the GPU's time) have no launch in the trace. "
        "Their time is counted, but no op is known for 2 of them. Ops, modules and functions "
        "may cause more GPU time than their rows show."
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
        ("void <unnamed>::elementwise<int, at::native::arange(int)>(int)", "`elementwise`"),
        (" ", "`(no name)`"),
        ("autograd::engine::f: MmBackward0", "`autograd::engine::f: MmBackward0`"),
        ("k" * 80, "`" + "k" * 59 + "…`"),
    ],
)  # fmt: skip
def test_names_are_short_enough_to_read(name: str, short: str) -> None:
    assert code(name) == short


def test_findings_of_real_traces_are_sane(shared_record: Record) -> None:
    span, rows = shared_record.trace.span_ns, len(shared_record.trace)
    devices = max(shared_record.trace.tracks["device"].nunique(), 1)
    said = findings(shared_record)
    assert said
    assert [problem for each in said for problem in title_problems([each])] == []
    for finding in said:
        assert 0 <= finding.cost_ns <= span * devices
        assert 0 <= finding.share <= 1
        assert finding.text.endswith(".")
        assert finding.text.count("`") % 2 == 0
        assert all(0 <= row < rows for row in finding.rows)
        if finding.start_ns is not None and finding.end_ns is not None:
            assert 0 <= finding.start_ns < finding.end_ns <= span
        assert dataclasses.replace(finding) == finding


VARIES = "It is not known how much profiling slows a step, because step times vary too much: "


@pytest.mark.parametrize(
    ("plain", "recorded", "says", "cost"),
    [
        ((80, 86, 300, 85, 87), (100, 121, 900), "Profiling made a step 1.4x slower. The median of "
         "3 recorded steps is 121 ns; that of 5 unrecorded steps before is 86 ns.", 3 * 35),
        ((80, 90, 60), (70, 121, 400), f"{VARIES}70 ns to 400 ns in 3 recorded steps, 60 ns to 90 "
         "ns in 3 unrecorded steps before.", 0),
        # Few unrecorded steps tell no slowdown where a recorded one was as fast.
        ([80] * 4, (5, 118, 118, 160), f"{VARIES}5 ns to 160 ns", 0),
        ([80] * 5, (5, 118, 118, 160), "Profiling made a step 1.5x slower", 4 * 38),
        # All took longer, however uneven.
        ((80, 90, 60), (91, 121, 400), "Profiling made a step 1.5x slower", 3 * 41),
    ],
)  # fmt: skip
def test_recorded_steps_are_compared_with_unrecorded_ones_without_the_first(
    plain: Sequence[int], recorded: Sequence[int], says: str, cost: int
) -> None:
    before = [("wait", 900), *(("warmup", ns) for ns in plain)]
    record = bounded(*before, *(("recorded", ns) for ns in recorded), ("cprofile", 5))
    finding = only("step_overhead", record)
    assert finding.text.startswith(says)
    assert finding.cost_ns == cost


def test_ops_are_weighed_up_where_cprofile_counted_more_steps_than_the_trace_has() -> None:
    calls = calls_of((None, "train", 1, 10_000_000))
    rows = op("aten::mm", ts=0, dur=4_000_000)
    steps = {"iterations": [{"step": 0, "kind": "recorded", "dur_ns": 9}]}
    alone = only("python_time", trace_of(rows, calls=calls, steps=steps))
    assert alone.cost_ns == 6_000_000
    steps["iterations"].append({"step": 1, "kind": "cprofile", "dur_ns": 9})
    assert only("python_time", trace_of(rows, calls=calls, steps=steps)).cost_ns == 2_000_000


def test_a_step_that_was_left_in_the_middle_is_not_compared() -> None:
    record = slowed(to=109)
    record.metadata["steps"]["iterations"].append(
        {"step": 5, "kind": "recorded", "dur_ns": 900, "left": True}
    )
    assert FINDINGS["step_overhead"](record) == []


@pytest.mark.parametrize(("plain", "recorded"), [(0, 8), (1, 8), (2, 8), (8, 1)])
def test_too_few_steps_to_compare_are_said_to_be_too_few(plain: int, recorded: int) -> None:
    record = bounded(*[("warmup", 100)] * plain, *[("recorded", 500)] * recorded)
    finding = only("step_overhead", record)
    assert "not known" in finding.text
    assert finding.cost_ns == 0


def test_the_estimate_of_the_overhead_gives_way_to_the_measured_one() -> None:
    noted = {"wall_ns": 1000 * MS, "overhead": {"events": 7, "estimate_ns": 900 * MS}}
    measured = slowed(to=109)
    assert FINDINGS["overhead"](dataclasses.replace(measured, metadata=noted)) != []
    measured.metadata.update(noted)
    assert FINDINGS["overhead"](measured) == []


def test_one_off_costs_are_listed() -> None:
    record = bounded(
        ("warmup", 5_000_000), ("warmup", 1_000_000), ("recorded", 1_000_000),
        compile_ns=3_000_000, graphs=2, reserved_bytes=3 << 30, alloc_retries=1,
        cudnn_benchmark=True, after_warmup={"graphs": 0, "compile_ns": 0},
    )  # fmt: skip
    assert only("one_off", record).text == (
        "The warm-up had one-off costs, which the recording leaves out: the first step took "
        "5.00 ms, 4.00 ms more than the other steps of the warm-up; torch.compile compiled 2 "
        "graphs in 3.00 ms; CUDA's allocator reserved 3.00 GiB more; CUDA's allocator freed its "
        "cached memory and retried 1 time; cuDNN tried its algorithms on new shapes "
        "(torch.backends.cudnn.benchmark is on)."
    )


def test_a_first_step_that_was_not_counted_or_was_recorded_is_no_cost_of_the_warm_up() -> None:
    record = bounded(("warmup", 5_000_000), ("warmup", 1_000_000), ("recorded", 1_000_000))
    assert len(FINDINGS["one_off"](record)) == 1
    for row in record.metadata["steps"]["iterations"]:
        row["step"] += 1
    assert FINDINGS["one_off"](record) == []
    assert FINDINGS["one_off"](bounded(("recorded", 900), ("recorded", 100))) == []


def test_compilation_after_the_warm_up_costs_recorded_time() -> None:
    late = {"graphs": 1, "compile_ns": 7}
    finding = only("one_off", bounded(("recorded", 9), after_warmup=late))
    assert finding.cost_ns == 7
    assert "still compiled 1 graph after the warm-up" in finding.text


@pytest.mark.parametrize(
    ("name", "row"),
    [
        ("eval", annotation("eval", ts=2, dur=3)),
        ("encoder.norm", op("encoder.norm", ts=2, dur=3, category="module")),
        ("norm", op("encoder.norm", ts=2, dur=3, category="module")),
        ("LayerNorm", module("encoder.norm", ts=2, dur=3, kind="LayerNorm")),
        ("mul", op("aten::mul", ts=2, dur=3)),
        ("aten::mul", op("aten::mul", ts=2, dur=3)),
        ("save", python("train.py(12): save", ts=2, dur=3)),
        ("save", python("<built-in method save of type object at 0x7f>", ts=2, dur=3)),
    ],
)
def test_what_is_expected_is_found_under_its_names(name: str, row: Row) -> None:
    assert FINDINGS["expected"](expecting(name, row)) == []
    assert len(FINDINGS["expected"](expecting(name))) == 1


def test_what_was_expected_stands_before_what_cost_more() -> None:
    said = findings(expecting("checkpoint"))
    assert [finding.rule for finding in said] == ["expected", "cpu_ops"]
    assert said[0].cost_ns < said[1].cost_ns


def test_what_cprofile_counted_did_run() -> None:
    record = dataclasses.replace(
        expecting("step,checkpoint"), calls=calls_of((None, "step", 1, 10))
    )
    assert only("expected", record).text == "`checkpoint` did not run in what was recorded."


def test_a_guard_in_the_source_says_how_often_it_runs() -> None:
    steps = {"iterations": [{"step": n, "kind": "recorded", "dur_ns": 9} for n in range(8)]}
    guards = {"checkpoint": {"every": 1500, "line": 12}}
    record = expecting("checkpoint", steps=steps, guards=guards)
    assert only("expected", record).text == (
        "`checkpoint` did not run in these 8 steps. Line 12 runs it only every 1,500 iterations."
    )


def test_a_wait_in_the_backward_pass_is_shown_with_its_forward_op_and_told_once() -> None:
    finding = only("backward", backward_waiting(120))
    assert FINDINGS["synchronising"](backward_waiting(120)) == []
    assert (finding.cost_ns, finding.share) == (120, 0.12)
    assert (finding.start_ns, finding.end_ns) == (200, 500)
    named = backward_waiting(120).trace.slices["name"].iloc[list(finding.rows)].tolist()
    assert named == ["autograd::engine::evaluate_function: GatherBackward0", "aten::gather"]


def test_the_line_to_look_at_is_that_of_the_forward_op() -> None:
    record = trace_of(
        cell_line(4, "loss = model(x)", ts=0, dur=100),
        op("aten::gather", ts=20, dur=30, sequence=3),
        cell_line(5, "loss.backward()", ts=200, dur=500),
        *backward_op("GatherBackward0", ts=250, dur=400, sequence=3),
    )
    (remedy,) = (finding.remedy for finding in findings(record) if finding.rule == "backward")
    assert remedy.endswith(" Look at line 4: `loss = model(x)`.")


def test_the_line_to_look_at_is_the_one_with_most_of_the_op_s_time() -> None:
    """Not that of its longest call, which is where "Show" leads."""
    loop = [
        row
        for ts in range(200, 900, 100)
        for row in (
            cell_line(8, "z = x @ x", ts=ts, dur=60),
            op("aten::mm", ts=ts, dur=50),
        )
    ]
    long = [cell_line(6, "y = big @ big", ts=0, dur=110), op("aten::mm", ts=0, dur=100)]
    (finding,) = [one for one in findings(trace_of(*long, *loop)) if one.rule == "cpu_ops"]
    assert finding.remedy.endswith(" Look at line 8: `z = x @ x`.")
    assert (finding.start_ns, finding.end_ns) == (0, 100)


def test_what_an_op_takes_in_the_backward_pass_counts_for_the_line_of_the_forward_op() -> None:
    record = trace_of(
        cell_line(2, "y = x @ x", ts=0, dur=60),
        op("aten::mm", ts=0, dur=50),
        cell_line(4, "z = m(y)", ts=100, dur=60),
        op("aten::mm", ts=110, dur=20, sequence=3),
        cell_line(5, "z.sum().backward()", ts=200, dur=200),
        *backward_op("MmBackward0", ts=210, dur=180, sequence=3),
        op("aten::mm", ts=220, dur=45),
        op("aten::mm", ts=280, dur=45),
    )
    (finding,) = [one for one in findings(record) if one.rule == "cpu_ops"]
    assert finding.remedy.endswith(" Look at line 4 (mostly its backward pass): `z = m(y)`.")


def test_all_calls_of_the_costliest_op_are_its_evidence() -> None:
    record = trace_of(
        op("aten::mm", ts=0, dur=50), op("aten::add", ts=60, dur=5), op("aten::mm", ts=100, dur=70)
    )
    finding = only("cpu_ops", record)
    assert finding.rows == (0, 2)
    assert (finding.start_ns, finding.end_ns) == (100, 170)


def test_the_line_to_look_at_of_a_gpu_op_is_where_most_of_its_kernels_were_launched() -> None:
    record = trace_of(
        cell_line(2, "a = big @ big", ts=0, dur=60),
        op("aten::mm", ts=0, dur=50),
        kernel("gemm", ts=1000, dur=300, launched_by=1),
        cell_line(3, "b = x @ x", ts=100, dur=40),
        op("aten::mm", ts=100, dur=10),
        kernel("gemm", ts=1300, dur=250, launched_by=4),
        cell_line(3, "b = x @ x", ts=140, dur=40),
        op("aten::mm", ts=140, dur=10),
        kernel("gemm", ts=1550, dur=250, launched_by=7),
    )
    (finding,) = [one for one in findings(record) if one.rule == "gpu_ops"]
    assert finding.remedy.endswith(" Look at line 3: `b = x @ x`.")


def said_of_gather(record: Record) -> list[str]:
    return [one.text for one in FINDINGS["backward"](record) if "`GatherBackward0`" in one.text]


def test_a_large_part_of_the_backward_pass_is_said_where_no_gpu_works() -> None:
    assert said_of_gather(backward_on_cpu(252)) == [
        "`GatherBackward0` of `patch_drop` (forward `aten::gather`) took 250 ns (25 % of the "
        "backward pass)."
    ]
    assert said_of_gather(backward_on_cpu(251)) == []


def test_a_backward_op_out_of_proportion_to_its_forward_is_said() -> None:
    (text,) = said_of_gather(backward_on_cpu(102, forward=20))
    assert text.endswith("took 100 ns (10 % of the backward pass), 5 times as long as its forward.")
    assert said_of_gather(backward_on_cpu(102, forward=21)) == []
    assert said_of_gather(backward_on_cpu(101, forward=1)) == []  # below 10 % of the backward pass


def test_of_a_backward_op_most_of_which_is_one_call_no_smaller_sizes_are_asked_for() -> None:
    calls = [
        row
        for number, dur in enumerate((400, 30, 20))
        for row in (
            op("aten::addmm", ts=number * 1000, dur=20, sequence=number),
            *backward_op("AddmmBackward0", ts=number * 1000 + 500, dur=dur, sequence=number),
        )
    ]
    assert only("backward", trace_of(*calls)).remedy.startswith(
        "One call took most of that time (400 ns); the others take 25 ns each. The first call may"
    )


def test_many_short_calls_are_to_be_made_fewer_and_compiled_graphs_are_no_op_to_change() -> None:
    def many(name: str, forward: str, dur: int, calls: int = 10) -> Record:
        return trace_of(
            *(
                row
                for at in range(calls)
                for row in (
                    op(forward, ts=at * 10**6, dur=100, sequence=at),
                    *backward_op(name, ts=at * 10**6 + 500_000, dur=dur, sequence=at),
                )
            )
        )

    said = only("backward", many("ExpBackward0", "aten::exp", 20_001))
    assert said.remedy.startswith("On average a call takes 20.0 µs, much of it the overhead")
    longer = only("backward", many("ExpBackward0", "aten::exp", 20_002))
    assert "On average a call" not in longer.remedy
    few = only("backward", many("ExpBackward0", "aten::exp", 20_001, calls=9))
    assert "On average a call" not in few.remedy
    compiled = many("CompiledFunctionBackward", "CompiledFunction", 90_000)
    assert FINDINGS["backward"](compiled) == []


JIT = "torch::jit::(anonymous namespace)::DifferentiableGraphBackward"


@pytest.mark.parametrize(
    ("name", "forward", "tells", "remedy"),
    [
        ("CumsumBackward0", "aten::cumsum", True, "Look for another op"),
        ("ViewBackward0", "aten::view", False, ""),
        ("NllLossBackward0", "aten::nll_loss_forward", False, "That is usual for its forward op"),
        ("EmbeddingBackward0", "aten::embedding", True, "It fills a gradient as"),
        ("CopyBackwards", "aten::detach_", False, ""),
        (JIT, "aten::mm", False, "Run it once with the environment variable PYTORCH_JIT=0"),
    ],
)
def test_what_is_no_whole_forward_gives_no_ratio(
    name: str, forward: str, tells: bool, remedy: str
) -> None:
    record = trace_of(
        op(forward, ts=0, dur=100, sequence=3),
        *backward_op(name, ts=500, dur=402, sequence=3),
        op("aten::add", ts=500, dur=100),
        op("aten::exp", ts=1000, dur=10, sequence=4),
        *backward_op("ExpBackward0", ts=1500, dur=20, sequence=4),
    )
    (said,) = FINDINGS["backward"](record, backward_ratio=4)
    assert "took 400 ns (95 % of the backward pass)" in said.text
    assert said.text.endswith("4 times as long as its forward.") == tells
    assert said.remedy.startswith(remedy)
    assert bool(said.remedy) == bool(remedy)
    by_ratio_alone = FINDINGS["backward"](record, backward_ratio=4, backward_large_share=1)
    assert bool(by_ratio_alone) == tells


def test_a_graph_of_torchscript_is_not_linked_with_its_last_op() -> None:
    record = trace_of(
        op("aten::detach_", ts=0, dur=1, sequence=3),
        *backward_op(JIT, ts=500, dur=400, sequence=3),
        op("end", ts=990, dur=10),
    )
    assert only("backward", record).text == (
        "`DifferentiableGraphBackward` (all ops of a TorchScript graph) took 398 ns (100 % of "
        "the backward pass)."
    )


def test_what_sorts_on_a_gpu_is_foreseen_with_deterministic_algorithms_alone() -> None:
    (text,) = said_of_gather(backward_on_cpu(10, deterministic=True))
    assert "took 10 ns (1.0 % of the backward pass). On a GPU" in text
    assert said_of_gather(backward_on_cpu(10, deterministic=False)) == []


def test_a_synchronising_op_is_named_with_its_module_and_line() -> None:
    record = trace_of(
        cell_line(7, "total += loss.item()", ts=0, dur=600),
        module("model.head", ts=0, dur=550),
        op("aten::item", ts=0, dur=500),
        runtime(SYNC, ts=1, dur=100),
        op("end", ts=990, dur=10),
    )
    text = only("synchronising", record).text
    assert text.endswith("in 1 call of `cudaStreamSynchronize`, in `model.head` on line 7.")


def test_of_several_places_the_one_where_most_was_waited_is_named() -> None:
    record = trace_of(
        cell_line(7, "a = x.item()", ts=0, dur=300),
        op("aten::item", ts=0, dur=200),
        runtime(SYNC, ts=1, dur=100),
        cell_line(9, "b = y.item()", ts=400, dur=300),
        op("aten::item", ts=400, dur=200),
        runtime(SYNC, ts=401, dur=150),
        op("end", ts=990, dur=10),
    )
    assert only("synchronising", record).text.endswith(", mostly on line 9.")


def test_a_gpu_whose_reserved_memory_lies_idle_is_told() -> None:
    assert only("memory_room", full(400, used=280)).text == (
        "PyTorch had reserved 400 B on GPU 0 when most was allocated. 120 B (30 %) of that was "
        "not in use."
    )
    assert FINDINGS["memory_room"](full(400, used=281)) == []


def test_what_is_made_twice_or_on_one_line_is_not_yet_a_loop() -> None:
    assert FINDINGS["made_anew"](making(took=500, calls=2)) == []
    makes = [op("aten::zeros", ts=100 * number, dur=90) for number in range(3)]
    once = trace_of(cell_line(3, "a, b, c = zeros(1), zeros(2), zeros(3)", ts=0, dur=400), *makes)
    assert FINDINGS["made_anew"](once) == []


def test_what_an_op_of_the_backward_pass_makes_is_no_users_tensor() -> None:
    rows = [
        row
        for at in range(0, 300, 100)
        for row in (
            cell_line(3, "loss.backward()", ts=at, dur=90),
            op("EmbeddingBackward0", ts=at, dur=80),
            op("aten::zeros", ts=at + 1, dur=70),
        )
    ]
    assert FINDINGS["made_anew"](trace_of(*rows, op("end", ts=990, dur=10))) == []


def test_a_hostile_name_of_an_op_keeps_its_kernels() -> None:
    """Also one with a zero byte at its end, without which numpy compares texts."""
    record = trace_of(
        op("mine\0", ts=0, dur=100_000),
        runtime("cudaLaunchKernel", ts=1_000, dur=3_000),
        kernel("gemm", ts=5_000, dur=90_000, launched_by=1),
    )
    assert "100 % of all GPU work" in only("gpu_ops", record).text


if __name__ == "__main__":
    WORDS.write_text(words_of_all(), encoding="utf-8")
