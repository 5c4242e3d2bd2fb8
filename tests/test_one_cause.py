"""Findings that tell parts of one cause, and what is said first because all else depends on it."""

from __future__ import annotations

import pytest

from gpuprof_widgets.analyses.findings import findings
from gpuprof_widgets.analyses.findings.communication import broadcast_buffers
from gpuprof_widgets.trace.model import Record
from gpuprof_widgets.trace.readers import load
from gpuprof_widgets.trace.window import window
from tests.test_findings_gpu import said
from tests.traces import Row, Shared, annotation, copy, kernel, op, runtime, trace_of

pytestmark = pytest.mark.slow

MS = 1_000_000
STEP = 10 * MS


def launching(steps: int, *, gpu: int, calls: int = 1) -> list[Row]:
    """Two kinds of ops in turn, of 10 ms, each of which launches work of so many ns at its end."""
    rows: list[Row] = []
    for step in range(steps):
        start = step * STEP
        rows.append(op(("aten::add", "aten::mul")[step % 2], ts=start, dur=STEP))
        for call in range(calls):
            ts = start + STEP - (calls - call) * MS // 4
            rows.append(runtime("cudaLaunchKernel", ts=ts, dur=MS // 25))
            launched = kernel("add", ts=ts + MS // 25, dur=gpu, launched_by=len(rows) - 1)
            rows.append(launched)
    return rows


def test_what_the_cpu_does_to_launch_is_part_of_why_the_gpu_is_idle() -> None:
    record = trace_of(*launching(60, gpu=1000, calls=2))
    told = findings(record)
    rules = [finding.rule for finding in told]
    assert rules[:3] == ["device_idle", "short_kernels", "critical_path"]
    for part in told[1:3]:
        assert part.part_of == "device_idle"
        assert part.text.endswith(
            " This is one part of why GPU 0 is idle: the CPU launches its work too slowly. Such "
            "parts overlap, so do not add them up."
        )
    assert not told[0].part_of


def test_parts_stand_below_the_whole_even_where_another_finding_costs_more() -> None:
    told = findings(trace_of(*broadcasting(4)))
    whole = [finding.rule for finding in told].index("device_idle")
    after = [bool(finding.part_of) for finding in told[whole + 1 :]]
    assert after == sorted(after, reverse=True)
    assert any(after)


def test_of_several_gpus_the_one_at_work_has_the_parts() -> None:
    """In a window in which the other has no work."""
    rows = launching(60, gpu=1000, calls=2)
    rows.append(kernel("add", ts=1000 * MS, dur=STEP, device=1))
    told = findings(window(trace_of(*rows), 0, 600 * MS))
    titles = [finding.title for finding in told]
    whole = next(at for at, title in enumerate(titles) if title.startswith("GPU 0 is idle"))
    assert "GPU 1 has nothing to do" in titles
    parts = [at for at, finding in enumerate(told) if finding.part_of]
    assert parts == list(range(whole + 1, whole + 1 + len(parts)))
    assert parts


def test_a_gpu_that_waits_after_synchronising_calls_has_no_parts() -> None:
    """Its queue is empty because the CPU waited, whatever takes long then."""
    rows: list[Row] = []
    for step in range(60):
        start = step * STEP
        rows += [op(("aten::add", "aten::mul")[step % 2], ts=start, dur=STEP - MS)]
        rows += [runtime("cudaLaunchKernel", ts=start + 8 * MS, dur=MS // 25)]
        rows.append(
            kernel("add", ts=start + 8 * MS + MS // 25, dur=MS // 4, launched_by=len(rows) - 1)
        )
        rows.append(runtime("cudaDeviceSynchronize", ts=start + 8 * MS + MS // 10, dur=MS // 2))
    told = findings(trace_of(*rows))
    assert "device_idle" in [finding.rule for finding in told]
    assert not any(finding.part_of for finding in told)


def test_stalls_have_no_parts() -> None:
    """A few ops have most of the idle time: not the many launches."""
    rows: list[Row] = []
    start = 0
    for step in range(200):
        took = 40 * MS if step % 50 == 49 else MS // 10
        rows.append(op(("aten::add", "aten::mul")[step % 2], ts=start, dur=took))
        rows.append(runtime("cudaLaunchKernel", ts=start + took - MS // 20, dur=MS // 50))
        rows.append(kernel("add", ts=start + took, dur=1000, launched_by=len(rows) - 1))
        start += took
    told = findings(trace_of(*rows))
    assert any("stall" in finding.title for finding in told)
    assert not any(finding.part_of for finding in told)


def test_a_gpu_that_waits_for_python_has_no_parts() -> None:
    """Nothing that launches is to blame for the time between the ops."""
    rows: list[Row] = []
    for step in range(30):
        start = step * STEP
        rows += [op("aten::add", ts=start, dur=MS), runtime("cudaLaunchKernel", ts=start, dur=MS)]
        rows.append(kernel("add", ts=start + MS, dur=1000, launched_by=len(rows) - 1))
    assert not any(finding.part_of for finding in findings(trace_of(*rows)))


def test_what_bounds_a_run_on_the_gpu_is_no_part() -> None:
    """The GPU waits for launches at first; then it computes for six times as long."""
    rows = launching(60, gpu=1000, calls=2)
    for number in range(12):
        start = 600 * MS + number * MS
        rows += [op(f"aten::conv{number}", ts=start, dur=MS)]
        rows.append(runtime("cudaLaunchKernel", ts=start, dur=MS // 25))
        began = 601 * MS + number * 300 * MS
        rows.append(kernel(f"conv{number}", ts=began, dur=300 * MS, launched_by=len(rows) - 1))
    told = said(trace_of(*rows))
    assert told["short_kernels"].part_of == "device_idle"
    assert told["critical_path"].cost_ns < told["device_idle"].cost_ns
    assert not told["critical_path"].part_of


def test_after_its_last_work_a_gpu_waits_for_no_launches() -> None:
    rows = [*launching(10, gpu=1000), op("aten::mul", ts=100 * MS, dur=400 * MS)]
    told = said(trace_of(*rows))
    assert told["critical_path"].cost_ns < told["device_idle"].cost_ns
    assert not told["critical_path"].part_of


def test_a_gpu_that_is_said_to_be_busy_has_no_parts() -> None:
    told = findings(trace_of(*launching(60, gpu=1000, calls=2)), device_idle_share=1.0)
    assert "GPU 0 is busy nearly all the time" in [finding.title for finding in told]
    assert not any(finding.part_of for finding in told)


def test_two_gpus_have_no_parts() -> None:
    """Which of them waits for which launches is another question."""
    rows = launching(30, gpu=1000, calls=2)
    rows.append(kernel("add", ts=0, dur=STEP, device=1))
    assert not any(finding.part_of for finding in findings(trace_of(*rows)))


def test_a_real_run_of_ddp_that_its_cpu_bounds(shared: Shared) -> None:
    told = findings(load(shared("hta/nccl_a100_rank0_of_2.json.gz")))
    parts = ["broadcast_buffers", "short_kernels", "critical_path"]
    assert [finding.rule for finding in told if finding.part_of] == parts
    (buffers,) = [finding for finding in told if finding.rule == "broadcast_buffers"]
    assert "before 3 forward passes, with 477 copies of single tensors" in buffers.text
    for quiet in (
        "hta/ddp_v100_ns_resolution.json.gz",
        "tracelens/resnet_ddp_mi300_stacks.json.gz",
    ):
        assert "broadcast_buffers" not in said(load(shared(quiet)))


def small(took: int) -> Record:
    """One forward pass of DDP in 1000 ns; its last op that sends buffers takes so long."""
    rows: list[Row] = [annotation("DistributedDataParallel.forward", ts=0, dur=900)]
    names = ("aten::flatten_dense_tensors", "c10d::broadcast_", "aten::copy_")
    for number, name in enumerate(names):
        rows.append(op(name, ts=10 * number, dur=took if number == 2 else 5))
    return trace_of(*rows, op("train", ts=100, dur=900))


CASES = {"broadcast_buffers": (small(10), small(9))}
"""A trace that fires the rule, and one just below its threshold."""


def broadcasting(
    steps: int, *, copies: int = 5, took: int = MS, sends: bool = True, region: str = ""
) -> list[Row]:
    """DDP's forward passes of 20 ms: flatten, broadcast, unflatten, copies, then a convolution."""
    rows: list[Row] = []
    for step in range(steps):
        at = 2 * step * STEP
        rows.append(annotation(region or "DistributedDataParallel.forward", ts=at, dur=2 * STEP))
        names = ["aten::flatten_dense_tensors", *(["c10d::broadcast_"] if sends else [])]
        names += ["aten::unflatten_dense_tensors", *["aten::copy_"] * copies]
        for name in names:
            rows.append(op(name, ts=at, dur=took))
            at += took
        rows.append(op("aten::conv2d", ts=at, dur=MS))
        rows.append(runtime("cudaLaunchKernel", ts=at, dur=MS // 2))
        rows.append(kernel("conv", ts=at + MS, dur=MS, launched_by=len(rows) - 1))
        rows.append(op("aten::copy_", ts=at + MS, dur=MS))  # the model's own
    return [*rows, op("end", ts=2 * steps * STEP, dur=10)]


def test_broadcasts_of_buffers_are_told_with_their_copies() -> None:
    record = trace_of(*broadcasting(4))
    (finding,) = broadcast_buffers(record)
    assert "before 4 forward passes, with 20 copies of single tensors" in finding.text
    assert finding.cost_ns == 32 * MS
    assert (finding.start_ns, finding.end_ns) == (0, 8 * MS)
    assert len(finding.rows) == 32


@pytest.mark.parametrize(
    "rows",
    [
        broadcasting(4, sends=False),
        broadcasting(4, region="forward"),
        broadcasting(4, took=MS // 25),
        [annotation("DistributedDataParallel.forward", ts=0, dur=STEP)],
        launching(4, gpu=MS),
    ],
    ids=["nothing sent", "not of DDP", "of 1.6 %", "empty", "without DDP"],
)
def test_broadcasts_of_buffers_stay_silent(rows: list[Row]) -> None:
    assert broadcast_buffers(trace_of(*rows)) == []


def without_launches(unknown: int, *, first: bool = True, ops: bool = True) -> Record:
    """In 100 ms the GPU works; so many ms of that, at the start or end, without a launch."""
    known = 100 - unknown
    at, later = (unknown, 0) if first else (0, known)
    rows = [op("aten::mm", ts=0, dur=MS), runtime("cudaLaunchKernel", ts=0, dur=10)]
    rows.append(kernel("gemm", ts=at * MS + 20, dur=known * MS - 20, launched_by=1))
    rows.append(copy("Memcpy DtoD (Device -> Device)", ts=later * MS + 20, dur=unknown * MS - 20))
    return trace_of(*(rows if ops else [row for row in rows[2:] if row is not rows[2]]))


def test_a_tenth_of_the_gpus_time_without_op_is_said_first() -> None:
    first, *others = findings(without_launches(11))
    assert first.rule == "unlinked"
    assert first.title == "The op is unknown for 11 % of GPU time"
    later = said(without_launches(11, first=False))["unlinked"]
    assert later.text.endswith("may cause more GPU time than their rows show.")
    assert others
    assert findings(without_launches(9))[-1].rule == "unlinked"
    assert findings(without_launches(9))[-1].title == "Some GPU work lacks its launch in the trace"


def test_where_no_ops_were_recorded_their_shares_mislead_nobody() -> None:
    told = said(without_launches(11, ops=False))
    assert told["unlinked"].title == "Some GPU work lacks its launch in the trace"


def test_work_before_all_launches_was_launched_before_the_recording() -> None:
    before = said(without_launches(20))["unlinked"]
    assert "it ran in the first 20.0 ms, before all work whose launch is known" in before.remedy
    assert before.text.endswith("but belongs to no op.")
    after = said(without_launches(20, first=False))["unlinked"]
    assert after.remedy.startswith("This work may have been launched before")


def test_work_whose_launch_was_dropped_is_not_said_to_be_from_before() -> None:
    """Twenty launches, of which only the last has its kernel."""
    rows: list[Row] = [op("aten::mm", ts=0, dur=200 * MS)]
    for step in range(20):
        rows.append(runtime("cudaLaunchKernel", ts=step * STEP, dur=10))
        launch = len(rows) - 1 if step == 19 else None
        rows.append(kernel("gemm", ts=step * STEP + 20, dur=5 * MS, launched_by=launch))
    assert said(trace_of(*rows))["unlinked"].remedy.startswith(
        "This work may have been launched before"
    )


def test_a_part_of_a_recording_does_not_tell_what_was_before_it() -> None:
    record = window(without_launches(20), 5 * MS, 100 * MS)
    assert "unlinked" in said(record)
    assert said(record)["unlinked"].remedy.startswith("This work may have been launched before")
