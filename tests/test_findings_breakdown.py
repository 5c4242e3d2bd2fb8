"""Rules on where a GPU's time goes, at their thresholds and just below; what they say."""

from __future__ import annotations

import re

import pytest

from gpuprof_widgets.analyses.breakdown import breakdown
from gpuprof_widgets.analyses.columns import format_share
from gpuprof_widgets.analyses.findings import Finding, findings
from gpuprof_widgets.analyses.findings.communication import exposed_communication
from gpuprof_widgets.analyses.findings.gpu_idle import device_idle
from gpuprof_widgets.analyses.findings.input import dataloader
from gpuprof_widgets.analyses.findings.launches import launch_bound
from gpuprof_widgets.analyses.findings.transfers import one_stream
from gpuprof_widgets.trace.model import Record
from gpuprof_widgets.views import cards
from tests.traces import Row, annotation, calls_of, copy, kernel, op, runtime, trace_of

LOADING = "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__"
NCCL = "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevComm*, unsigned long)"


def communicating(exposed: int, hidden: int = 50) -> Record:
    """In 1000 ns all is computed but for ``exposed`` ns in which the GPU communicates alone."""
    return trace_of(
        op("train", ts=0, dur=1000),
        kernel("gemm", ts=0, dur=1000 - exposed),
        kernel(NCCL, ts=1000 - exposed - hidden, dur=exposed + hidden, stream=20),
    )


def one_after_the_other(copying: int, name: str = "Memcpy HtoD (Pageable -> Device)") -> Record:
    """In 1000 ns one stream computes, and copies for so long."""
    return trace_of(
        op("train", ts=0, dur=1000),
        kernel("gemm", ts=0, dur=1000 - copying),
        copy(name, ts=1000 - copying, dur=copying),
    )


def launched_slowly(took: int, *more: Row, calls: int = 10) -> Record:
    """In 1000 ns ten kernels, each of which starts as its launch returns after so long."""
    rows: list[Row] = [op("train", ts=0, dur=1000)]
    for number in range(calls):
        end = 100 * (number + 1)
        rows.append(runtime("cudaLaunchKernel", ts=end - 50 - took, dur=took))
        rows.append(kernel("gemm", ts=end - 50, dur=50, launched_by=len(rows) - 1))
    return trace_of(*rows, *more)


CASES = {
    "exposed_communication": (communicating(100), communicating(99)),
    "one_stream": (one_after_the_other(50), one_after_the_other(49)),
    "launch_bound": (launched_slowly(15), launched_slowly(14)),
}
"""A trace that fires each rule, and one just below its threshold."""


def only(said: list[Finding]) -> Finding:
    (finding,) = said
    return finding


def names(record: Record, finding: Finding) -> list[str]:
    return record.trace.slices["name"].iloc[list(finding.rows)].tolist()


def test_exposed_communication_says_how_much_is_hidden_and_shows_where() -> None:
    record = communicating(150)
    finding = only(exposed_communication(record))
    assert "Compute hid 25 % of its communication" in finding.text
    assert (finding.cost_ns, finding.share) == (150, 0.15)
    assert (finding.start_ns, finding.end_ns) == (850, 1000)
    assert names(record, finding) == [NCCL]
    bare = only(exposed_communication(communicating(150, hidden=0)))
    assert "Compute hid none of its communication" in bare.text


def test_communication_that_the_run_does_not_wait_for_costs_nothing() -> None:
    """The CPU launches the next kernel only after the collective has ended: nothing is gained."""
    rows: list[Row] = []
    for step in range(5):
        rows += [
            op("aten::mm", ts=200 * step, dur=190),
            runtime("cudaLaunchKernel", ts=200 * step + 10, dur=5),
            kernel("gemm", ts=200 * step + 20, dur=30, launched_by=4 * step + 1),
            kernel(NCCL, ts=200 * step + 50, dur=100, launched_by=4 * step + 1),
        ]
    record = trace_of(*rows)
    finding = only(exposed_communication(record))
    assert finding.text.endswith(
        "(100 ns). Without communication, the run would be no shorter: the CPU bounds it."
    )
    assert (finding.cost_ns, finding.share) == (0, 0)
    assert finding.remedy.startswith("First shorten the critical path")
    card = cards.exposed_communication(record)
    assert card is not None
    assert card.about.endswith(
        "no compute hid it. Without communication the run would be no shorter: the CPU bounds it."
    )


def test_communication_for_which_the_next_kernel_waits_costs_its_time() -> None:
    """All is launched at once: kernels and collectives run one after the other."""
    rows: list[Row] = [op("train", ts=0, dur=100)]
    for step in range(5):
        rows.append(runtime("cudaLaunchKernel", ts=10 + 10 * step, dur=5))
        launch = len(rows) - 1
        rows.append(kernel("gemm", ts=100 + 200 * step, dur=100, launched_by=launch))
        rows.append(kernel(NCCL, ts=200 + 200 * step, dur=100, launched_by=launch))
    finding = only(exposed_communication(trace_of(*rows)))
    assert finding.cost_ns == 500
    assert finding.text.endswith("(100 ns).")
    card = cards.exposed_communication(trace_of(*rows))
    assert card is not None
    assert card.about.endswith("and no compute hid it.")
    assert finding.remedy.startswith("Overlap communication with")


def test_exposed_communication_of_a_cpu_is_named_as_such() -> None:
    record = trace_of(
        op("aten::mm", ts=0, dur=600),
        op("gloo:all_reduce", ts=500, dur=400, thread=7, category="user_annotation"),
        op("aten::add", ts=900, dur=100),
    )
    finding = only(exposed_communication(record))
    assert finding.text == (
        "For 300 ns (30 % of the time), the CPU had a collective in flight and was in no op "
        "that computes. Compute hid 25 % of its communication. The most exposed call is "
        "`gloo:all_reduce` (300 ns)."
    )
    assert (finding.cost_ns, finding.start_ns, finding.end_ns) == (300, 600, 900)
    assert names(record, finding) == ["gloo:all_reduce"]


def test_copies_on_the_stream_that_computes_are_named_with_what_they_could_save() -> None:
    record = one_after_the_other(200)
    finding = only(one_stream(record))
    assert (finding.cost_ns, finding.start_ns, finding.end_ns) == (200, 800, 1000)


def test_copies_within_the_gpu_are_none_that_could_overlap() -> None:
    within = one_after_the_other(200, "Memcpy DtoD (Device -> Device)")
    assert one_stream(within) == []


def test_copies_on_a_stream_of_their_own_are_not_on_one_stream() -> None:
    record = trace_of(
        op("train", ts=0, dur=1000),
        kernel("gemm", ts=0, dur=800),
        copy(ts=800, dur=200, stream=9),
    )
    assert one_stream(record) == []


def test_collectives_on_the_computing_stream_have_a_remedy_of_their_own() -> None:
    record = trace_of(
        op("train", ts=0, dur=1000), kernel("gemm", ts=0, dur=800), kernel(NCCL, ts=800, dur=200)
    )
    finding = only(one_stream(record))
    assert "1 collective ran on this stream" in finding.text
    assert "async_op=True" in finding.remedy


def test_waiting_for_launches_shows_the_calls() -> None:
    record = launched_slowly(30)
    finding = only(launch_bound(record))
    assert finding.cost_ns == 300
    assert set(names(record, finding)) == {"cudaLaunchKernel"}


def test_a_single_slow_launch_is_warming_up_and_told_once() -> None:
    record = trace_of(
        op("train", ts=0, dur=1000),
        runtime("hipLaunchKernel", ts=100, dur=650),
        kernel("gemm", ts=800, dur=200, launched_by=1),
    )
    said = {finding.rule: finding for finding in findings(record)}
    assert "launch_bound" not in said
    assert "went into one launch (650 ns)" in said["device_idle"].remedy
    assert "Warm up" in said["device_idle"].remedy
    assert "fewer" not in said["device_idle"].remedy


def test_a_single_slow_launch_that_the_idle_time_is_not_put_down_to_is_told_apart() -> None:
    record = trace_of(
        op("train", ts=0, dur=1000),
        runtime("hipLaunchKernel", ts=600, dur=150),
        kernel("gemm", ts=800, dur=200, launched_by=1),
    )
    assert "Warm up" in only(launch_bound(record)).remedy


def test_launches_that_are_longer_than_their_kernels_are_told_once() -> None:
    """`short_kernels` names them with their op."""
    rows: list[Row] = []
    for number in range(10):
        rows.append(runtime("cudaLaunchKernel", ts=100 * number, dur=80))
        rows.append(kernel("tiny", ts=100 * number + 85, dur=5, launched_by=2 * number))
    said = {finding.rule for finding in findings(trace_of(*rows))}
    assert "short_kernels" in said
    assert "launch_bound" not in said


def idle_gpu(*cpu: Row, launch: int = 890) -> str:
    """The remedy for a GPU that is idle from 100 to 900, its next kernel launched at 890."""
    record = trace_of(
        runtime("cudaLaunchKernel", ts=launch, dur=5),
        kernel("first", ts=0, dur=100),
        kernel("second", ts=900, dur=100, launched_by=0),
        *cpu,
        calls=calls_of((None, "main", 1, 1000)),
    )
    return only(device_idle(record)).remedy


def emptied(synchronised: int) -> str:
    """The remedy for a GPU that is idle for 1000 in all: so long from a synchronisation on.

    The wait itself goes on for 1 after the kernel; then the CPU is in Python.
    """
    last = 1250 + synchronised
    record = trace_of(
        runtime("cudaStreamSynchronize", ts=95, dur=6),
        runtime("cudaLaunchKernel", ts=95 + synchronised, dur=1),
        runtime("cudaLaunchKernel", ts=1195, dur=1),
        kernel("first", ts=0, dur=100),
        kernel("second", ts=100 + synchronised, dur=100, launched_by=1),
        kernel("third", ts=1200, dur=last - 1200, launched_by=2),
        calls=calls_of((None, "main", 1, last)),
    )
    return only(device_idle(record)).remedy


def test_an_idle_gpu_is_told_of_the_wait_that_emptied_its_queue_and_of_what_came_then() -> None:
    """What the CPU did in the gaps was Python; half of them there were because it had waited."""
    assert re.fullmatch(
        r"In 9\d % of its idle time, the GPU waited for the CPU to launch work\. Most of that time "
        r"went into Python\. Most of the idle time began when the CPU had just waited for the GPU, "
        r"so nothing was queued: "
        r"avoid \.item\(\), .* calls\. Then shorten the Python .*\.",
        emptied(500),
    )
    assert "had just waited" not in emptied(499)


@pytest.mark.parametrize(
    ("cpu", "words"),
    [
        ([], "the CPU to launch work. Most of that time went into Python: shorten the Python"),
        ([op("aten::copy_", ts=100, dur=700)], "went into PyTorch's ops: use larger batches"),
        (
            [runtime("cudaMalloc", ts=ts, dur=340) for ts in (100, 460)],
            "went into calls of the runtime: set up",
        ),
        (
            [runtime("cudaMalloc", ts=100, dur=700)],
            "went into one call of the runtime, `cudaMalloc` (700 ns): the allocator had no",
        ),
        (
            [runtime("cudaLaunchKernel", ts=ts, dur=340) for ts in (100, 460)],
            "went into the launches themselves and their way to the GPU: launch less",
        ),
        ([runtime("cudaLaunchKernel", ts=100, dur=700)], "went into one launch (700 ns): other"),
        ([annotation(LOADING, ts=100, dur=700)], "the GPU waited for the DataLoader"),
        ([runtime("cudaDeviceSynchronize", ts=-600, dur=750)], "the CPU had just waited for it"),
    ],
)
def test_an_idle_gpu_is_told_what_kept_the_cpu(cpu: list[Row], words: str) -> None:
    assert words in idle_gpu(*cpu)


def slow_ops(tail: int) -> Record:
    """The GPU waits twice for ops, about 200 each time, and is idle for so long in the end."""
    return trace_of(
        op("aten::copy_", ts=0, dur=700),
        *(runtime("cudaLaunchKernel", ts=ts, dur=1) for ts in (0, 298, 618)),
        *(kernel("gemm", ts=300 * n + 2, dur=98 + 20 * n, launched_by=n + 1) for n in range(2)),
        kernel("last", ts=620, dur=80, launched_by=3),
        op("end", ts=700 + tail - 1, dur=1),
    )


def test_idle_time_is_told_with_the_time_of_its_main_cause_as_the_breakdown_has_it() -> None:
    """The cost is all idle time, and the gap shown is one of that cause.

    A longer one after the last work is the end of the recording, and no example of anything.
    """
    record = slow_ops(tail=300)
    table = breakdown(record).set_index("class")
    ops_ns = int(table["time_ns"]["CPU ops"])
    (said,) = device_idle(record)
    assert said.title == "GPU 0 is idle, mostly while PyTorch's ops prepare launches"
    assert said.cost_ns == 2 + 202 + 200 + 300
    assert said.text == (
        f"GPU 0 was busy 30 % of 1.00 µs. It was idle for {said.cost_ns} ns, mostly while "
        f"PyTorch's ops prepared launches ({ops_ns} ns, "
        f"{format_share(table['share']['CPU ops'])} of the time). The longest gap of that kind "
        "(202 ns) lies between `gemm` and `gemm`. The CPU ran `aten::copy_` meanwhile."
    )
    assert (said.start_ns, said.end_ns) == (100, 302)


def test_a_cause_of_less_than_half_of_the_idle_time_is_a_part_of_it() -> None:
    """No gap is mostly of the titled cause's kind: it is the end's, and not told twice."""
    (said,) = device_idle(slow_ops(tail=500))
    assert said.title == "GPU 0 is idle, mostly after its last work"
    assert "mostly after its last work (500 ns, 42 % of the time). The longest gap (" in said.text
    rows = [
        runtime("cudaLaunchKernel", ts=898, dur=1), kernel("first", ts=0, dur=100),
        kernel("second", ts=900, dur=100, launched_by=0), op("aten::cat", ts=100, dur=300),
        runtime("cudaMalloc", ts=400, dur=270),
    ]  # fmt: skip
    (said,) = device_idle(trace_of(*rows, calls=calls_of((None, "main", 1, 1000))))
    assert said.title == "GPU 0 is idle, partly while PyTorch's ops prepare launches"
    assert "(300 ns, 30 % of the time). The gap with most of that time (800 ns) lies" in said.text


def test_a_gap_of_next_to_nothing_is_no_example_of_a_cause() -> None:
    record = trace_of(
        runtime("cudaLaunchKernel", ts=0, dur=1),
        kernel("a", ts=2, dur=98, launched_by=0),
        op("aten::cat", ts=100, dur=420),
        runtime("cudaMalloc", ts=520, dur=200),
        op("aten::cat", ts=1_001, dur=5),
        runtime("cudaLaunchKernel", ts=998, dur=1),
        kernel("b", ts=1_000, dur=100, launched_by=5),
        op("aten::cat", ts=1_101, dur=5),
        runtime("cudaLaunchKernel", ts=1_106, dur=1),
        kernel("c", ts=1_107, dur=100, launched_by=8),
        calls=calls_of((None, "main", 1, 1000)),
    )
    (said,) = device_idle(record)
    assert (said.start_ns, said.end_ns) == (100, 1_000)


def test_time_before_the_first_work_is_all_of_it() -> None:
    """Also what the CPU did then that has a class of its own in the breakdown."""
    record = trace_of(
        runtime("cudaHostAlloc", ts=0, dur=300),
        runtime("cudaLaunchKernel", ts=895, dur=2),
        kernel("first", ts=900, dur=100, launched_by=1),
    )
    (said,) = device_idle(record)
    assert said.title == "GPU 0 is idle, mostly before its first work"
    assert "mostly before its first work (900 ns, 90 % of the time). The longest gap" in said.text
    assert said.remedy.startswith(
        "In 100 % of its idle time, the GPU had not received its first work"
    )


def test_what_was_queued_waited_for_the_gpu_itself() -> None:
    assert "from one kernel to the next" in idle_gpu(launch=10)


def test_the_way_to_an_idle_gpu_is_part_of_launching() -> None:
    """The CPU launches every 10, so late that the GPU waits for each: no matter of its own pace."""
    rows: list[Row] = [op("train", ts=0, dur=5_000)]
    for number in range(500):
        rows.append(op("aten::add", ts=10 * number, dur=9))
        rows.append(runtime("cudaLaunchKernel", ts=10 * number + 2, dur=2))
        rows.append(kernel("add", ts=10 * number + 9, dur=1, launched_by=len(rows) - 1))
    (said,) = device_idle(trace_of(*rows))
    assert (
        "waited for the CPU to launch work. Most of that time went into the launches themselves"
    ) in said.remedy
    assert "from one kernel to the next" not in said.remedy


def test_work_that_begins_long_after_its_launch_is_put_down_to_no_launch() -> None:
    """Seen in a trace of vLLM: the GPU began 125 ms after the last call had returned."""
    record = trace_of(
        op("train", ts=0, dur=30_000),
        runtime("hipLaunchKernel", ts=10_000, dur=5_000),
        kernel("gemm", ts=125_000_000, dur=100_000_000, launched_by=1),
    )
    said = {finding.rule: finding for finding in findings(record)}
    assert "launch_bound" not in said
    assert "did not begin it. The trace does not show why" in said["device_idle"].remedy


def test_of_a_cpu_that_was_not_recorded_nothing_is_said() -> None:
    record = trace_of(
        *(runtime("hipLaunchKernel", ts=500 * number, dur=5) for number in range(3)),
        *(kernel("k", ts=500 * n + 10, dur=50, launched_by=n) for n in range(3)),
    )
    (said,) = device_idle(record)
    assert "whose ops are not in the trace. Record them as well" in said.remedy
    assert "Python" not in said.remedy
    assert "PyTorch op" not in said.text


def test_waiting_for_data_says_how_long_the_gpu_had_nothing_to_do() -> None:
    record = trace_of(
        annotation(LOADING, ts=100, dur=400),
        runtime("cudaLaunchKernel", ts=600, dur=5),
        kernel("first", ts=0, dur=200),
        kernel("second", ts=610, dur=390, launched_by=1),
    )
    said = only(dataloader(record))
    assert said.text.startswith("The run waited for the DataLoader 40 % of the time (400 ns of ")
    assert said.text.endswith(
        "in 1 wait. The GPU had nothing to do for 75 % of that time (300 ns)."
    )
    assert (said.cost_ns, said.share) == (300, 0.3)


def test_waits_of_two_threads_at_once_are_one_time_without_work() -> None:
    record = trace_of(
        annotation(LOADING, ts=100, dur=400),
        annotation(LOADING, ts=100, dur=400, thread=101),
        kernel("work", ts=500, dur=500),
    )
    said = only(dataloader(record))
    assert said.text.endswith(". The GPU had nothing to do for 100 % of that time (400 ns).")
    assert said.cost_ns == 400


@pytest.mark.parametrize(("busy_until", "said"), [(449, True), (451, False), (1_000, False)])
def test_waiting_for_data_costs_nothing_while_the_gpu_has_work(busy_until: int, said: bool) -> None:
    record = trace_of(
        annotation(LOADING, ts=100, dur=400),
        runtime("cudaLaunchKernel", ts=600, dur=5),
        kernel("first", ts=0, dur=busy_until),
        kernel("second", ts=1_000, dur=20, launched_by=1),
    )
    assert bool(dataloader(record)) == said
