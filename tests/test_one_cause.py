"""Findings that tell parts of one cause, and what is said first because all else depends on it."""

from __future__ import annotations

import pytest

from gpuprof_widgets.analyses.findings import Finding, findings
from gpuprof_widgets.analyses.findings.communication import broadcast_buffers
from gpuprof_widgets.trace.model import Record
from gpuprof_widgets.trace.readers import load
from tests.traces import Row, Shared, annotation, copy, kernel, op, runtime, trace_of

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


def said(record: Record) -> dict[str, Finding]:
    return {finding.rule: finding for finding in findings(record)}


def test_what_the_cpu_does_to_launch_is_part_of_why_the_gpu_is_idle() -> None:
    record = trace_of(*launching(60, gpu=1000, calls=2))
    told = findings(record)
    rules = [finding.rule for finding in told]
    assert rules[:3] == ["device_idle", "short_kernels", "critical_path"]
    for part in told[1:3]:
        assert part.part_of == "device_idle"
        assert part.text.endswith(" It is part of why GPU 0 is idle: the CPU launches too slowly.")
    assert not told[0].part_of


def test_parts_stand_below_the_whole_even_where_another_finding_costs_more() -> None:
    told = findings(load_broadcasting())
    whole = [finding.rule for finding in told].index("device_idle")
    after = [bool(finding.part_of) for finding in told[whole + 1 :]]
    assert after == sorted(after, reverse=True)
    assert any(after)


def load_broadcasting() -> Record:
    return trace_of(*broadcasting(4))


def test_a_busy_gpu_has_no_parts() -> None:
    record = trace_of(*launching(30, gpu=STEP - MS))
    assert not any(finding.part_of for finding in findings(record))


def test_a_gpu_that_waits_for_python_has_no_parts() -> None:
    """Nothing that launches is to blame for the time between the ops."""
    rows: list[Row] = []
    for step in range(30):
        start = step * STEP
        rows += [op("aten::add", ts=start, dur=MS), runtime("cudaLaunchKernel", ts=start, dur=MS)]
        rows.append(kernel("add", ts=start + MS, dur=1000, launched_by=len(rows) - 1))
    assert not any(finding.part_of for finding in findings(trace_of(*rows)))


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
    """One forward pass of DDP in 1000 ns, seven ops of which send the buffers, each in so many ns.

    A further ns of the last op makes the difference.
    """
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
    assert finding.text == (
        "`DistributedDataParallel` sent the model's buffers from rank 0 to all ranks before 4 "
        "forward passes, with 20 copies of single tensors: 32.0 ms of the CPU's time; without that "
        "the run would be at most 32.0 ms (40 %) shorter."
    )
    assert (finding.start_ns, finding.end_ns) == (0, 8 * MS)
    assert len(finding.rows) == 32
    assert "broadcast_buffers=False" in finding.remedy


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
    assert first.text.endswith("cause more GPU time than is shown for them.")
    assert others
    assert findings(without_launches(9))[-1].rule == "unlinked"
    assert findings(without_launches(9))[-1].title == "Some GPU work lacks its launch in the trace"


def test_where_no_ops_were_recorded_their_shares_mislead_nobody() -> None:
    told = said(without_launches(11, ops=False))
    assert told["unlinked"].title == "Some GPU work lacks its launch in the trace"


def test_work_before_all_launches_was_launched_before_the_recording() -> None:
    before = said(without_launches(20))["unlinked"].remedy
    assert "it ran in the first 20.0 ms, before all work whose launch is known" in before
    after = said(without_launches(20, first=False))["unlinked"].remedy
    assert after.startswith("Either it was launched before")
