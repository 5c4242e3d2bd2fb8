"""Findings on stalls: single calls that take far longer than others of their name."""

from __future__ import annotations

import numpy as np
import pytest

from gpuprof_widgets.analyses.findings import FINDINGS, Finding
from gpuprof_widgets.analyses.findings.stalls import LEAST_CALLS, TIMES_USUAL, stalled
from gpuprof_widgets.trace.model import Record
from tests.traces import Row, kernel, op, runtime, trace_of

US, MS = 1_000, 1_000_000


def launching(*durations_us: int, name: str = "aten::add") -> Record:
    """Ops one after the other; each launches a kernel of 10 µs at its end, which is short."""
    rows: list[Row] = []
    at = 0
    for took in durations_us:
        rows.append(op(name, ts=at, dur=took * US))
        at += took * US
        rows.append(runtime("cudaLaunchKernel", ts=at - 5 * US, dur=4 * US))
        rows.append(kernel("add", ts=at, dur=10 * US, launched_by=len(rows) - 1))
    return trace_of(*rows, op("aten::end", ts=at, dur=50 * US))


def idle(record: Record) -> Finding:
    (finding,) = FINDINGS["device_idle"](record)
    return finding


def test_a_gpu_that_waits_for_a_few_long_calls_waits_for_stalls() -> None:
    record = launching(*[20] * 20, 9_000, *[20] * 20, 4_000)
    finding = idle(record)
    assert finding.title == "GPU 0 is idle, mostly while the CPU stalls"
    assert "mostly in 2 stalls of the CPU (" in finding.text
    assert finding.text.endswith("`aten::add` took 9.00 ms, where its median call takes 20.0 µs.")
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
        (LEAST_CALLS - 1, 10 * TIMES_USUAL, True),
        (LEAST_CALLS - 1, 10 * TIMES_USUAL - 1, False),
        (LEAST_CALLS - 2, 10 * TIMES_USUAL, False),
    ],
)
def test_a_call_stalls_from_a_multiple_of_the_median_on(
    others: int, longest: int, stalls: bool
) -> None:
    dur = np.array([*[10] * others, longest])
    assert stalled(dur).tolist() == [*[False] * others, stalls]


def test_an_op_that_would_save_much_because_it_stalled_says_so() -> None:
    (finding,) = FINDINGS["critical_path"](launching(*[20] * 20, 9_000, *[20] * 20))
    assert finding.text.endswith(
        "Most of its time lies in 1 of its 41 calls, each at least 20 times as long as the "
        "median: the CPU stalled there."
    )
    assert finding.remedy.startswith("Something held up the thread")
    (steady,) = FINDINGS["critical_path"](launching(*[200] * 40))
    assert "stalled" not in steady.text
