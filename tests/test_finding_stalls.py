"""Findings on stalls: single calls that take far longer than others of their name."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import pytest

from gpuprof_widgets.analyses.findings import FINDINGS, Finding
from gpuprof_widgets.analyses.findings.uneven_calls import LEAST_CALLS, TIMES_USUAL, stalled_ops
from gpuprof_widgets.trace.model import Record
from tests.traces import Row, kernel, op, runtime, trace_of

US, MS = 1_000, 1_000_000


def launching(
    *durations_us: int, more: Sequence[Row] = (), allocating: Collection[int] = ()
) -> Record:
    """Ops one after the other; each launches a kernel of 10 µs at its end, which is short.

    ``more``: events beside them; ``allocating``: the ops that wait for memory.
    """
    rows: list[Row] = []
    at = 0
    for number, took in enumerate(durations_us):
        rows.append(op("aten::add", ts=at, dur=took * US))
        if number in allocating:
            rows.append(runtime("cudaMalloc", ts=at, dur=(took - 8) * US))
        at += took * US
        rows.append(runtime("cudaLaunchKernel", ts=at - 5 * US, dur=4 * US))
        rows.append(kernel("add", ts=at, dur=10 * US, launched_by=len(rows) - 1))
    return trace_of(*rows, op("aten::end", ts=at, dur=50 * US), *more)


def idle(record: Record) -> Finding:
    (finding,) = FINDINGS["device_idle"](record)
    return finding


def test_a_gpu_that_waits_for_a_few_long_calls_waits_for_stalls() -> None:
    record = launching(*[20] * 20, 9_000, *[20] * 20, 4_000)
    finding = idle(record)
    assert finding.title == "GPU 0 is idle, mostly while the CPU stalls"
    assert "mostly in 2 gaps (" in finding.text
    assert finding.text.endswith("`aten::add` took 9.00 ms; its median call takes 20.0 µs.")
    dur = record.trace.index.dur
    assert sorted(dur[list(finding.rows)].tolist()) == [4_000 * US, 9_000 * US]
    assert finding.end_ns - finding.start_ns == pytest.approx(9 * MS, rel=0.01)
    assert "other programs" in finding.remedy


@pytest.mark.parametrize(
    "durations",
    [
        [2_000] * 10,  # all of them are long
        [20] * 200,  # none is
        [*[20] * 400, 1_500],  # one, but most idle time lies elsewhere
        [20, 20, 9_000, 20],  # too few to know what is usual
    ],
    ids=["all", "none", "little", "few"],
)
def test_no_stall_is_told_of(durations: list[int]) -> None:
    finding = idle(launching(*durations))
    assert "stall" not in finding.title + finding.text


@pytest.mark.parametrize(
    ("others", "longest", "stalls"),
    [
        (LEAST_CALLS - 1, 20 * TIMES_USUAL, True),
        (LEAST_CALLS - 1, 20 * TIMES_USUAL - 1, False),
        (LEAST_CALLS - 2, 20 * TIMES_USUAL, False),
    ],
)
def test_an_op_stalls_from_a_multiple_of_the_median_on(
    others: int, longest: int, stalls: bool
) -> None:
    found = stalled_ops(launching(*[20] * others, longest))
    assert found.usual_ns.tolist() == [20 * US] * stalls


def test_the_first_of_its_kind_is_slow_for_a_reason() -> None:
    assert len(stalled_ops(launching(9_000, *[20] * 20)).row) == 0


def test_an_op_on_the_cpu_that_computes_for_long_does_not_stall() -> None:
    """In each step the same op runs on a large tensor that is on no GPU."""
    rows: list[Row] = []
    for step in range(10):
        at = step * 10 * MS
        for _ in range(20):
            rows.append(op("aten::mul", ts=at, dur=20 * US))
            rows.append(runtime("cudaLaunchKernel", ts=at + 10 * US, dur=4 * US))
            rows.append(kernel("mul", ts=at + 20 * US, dur=10 * US, launched_by=len(rows) - 1))
            at += 20 * US
        rows.append(op("aten::mul", ts=at, dur=8 * MS))
    assert "stall" not in idle(trace_of(*rows)).title


def test_a_call_on_another_thread_stalls_no_launches() -> None:
    usual = [op("aten::add", ts=100 * n, dur=100, thread=77) for n in range(9)]
    long = op("aten::add", ts=US, dur=32 * MS, thread=77)
    record = launching(*[1_100] * 30, more=[*usual, long])
    assert len(stalled_ops(record).row) == 1
    assert "stall" not in idle(record).title


def test_calls_that_are_slow_for_reasons_of_their_own_are_no_stalls() -> None:
    durations = [6_000 if at in (7, 14) else 20 for at in range(20)]
    assert "stall" in idle(launching(*durations)).title
    assert "stall" not in idle(launching(*durations, allocating=(7, 14))).title


def test_an_op_that_would_save_much_because_it_stalled_says_so() -> None:
    (finding,) = FINDINGS["critical_path"](launching(*[20] * 20, 9_000, *[20] * 20))
    assert finding.text.endswith(
        "Most of its time lies in 1 of its 41 calls, in which the CPU stalled: each took at least "
        "20 times as long as the median call."
    )
    assert finding.title == "The CPU stalls in `aten::add`, which the run waits for"
    assert finding.remedy.startswith("The op is not to blame: something held up")
    (steady,) = FINDINGS["critical_path"](launching(*[200] * 40))
    assert "stalled" not in steady.text
