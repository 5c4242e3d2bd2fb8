"""What a record says that recording cost: everything counted, each kind at its measured cost."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.profiler import ProfilerActivity, profile

from gpuprof_widgets.analyses.findings.recording import overhead as finding
from gpuprof_widgets.capture import overhead as measured
from gpuprof_widgets.options import Options
from tests.cells import recorded
from tests.traces import annotation, kernel, memory, op, python, trace_of

CELL = """\
import torch
model = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.ReLU())
x = torch.ones(1, 2)
for _ in range(5):
    y = model(x)
pass
"""
COSTS = {"event": 1.0, "line": 10.0, "module": 100.0, "allocation": 1e3, "frame": 1e4}
CALL = 1e5


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The costs are given; which were asked for is here."""
    found: list[Any] = []
    monkeypatch.setattr(measured, "trace_costs", lambda *which: found.append(which) or COSTS)
    monkeypatch.setattr(measured, "call_cost_ns", lambda: found.append("call") or CALL)
    return found


def total(noted: dict[str, Any]) -> float:
    costs = COSTS | {"call": CALL}
    return sum(noted[f"{kind}s"] * cost for kind, cost in costs.items())


def test_each_kind_is_counted_once_and_what_the_gpu_does_not_at_all() -> None:
    trace = trace_of(
        annotation("cell", ts=0, dur=100),
        op("aten::mm", ts=1, dur=9),
        op("aten::add", ts=11, dur=9),
        memory(64, ts=12),
        python("f", ts=30, dur=9),
        kernel("gemm", ts=50, dur=10),
    ).trace
    assert measured.counted(trace, calls=7, framed=True) == {
        "event": 3, "line": 0, "module": 0, "allocation": 1, "frame": 1, "call": 7,
    }  # fmt: skip


def test_the_estimate_is_the_sum_of_what_was_counted_at_its_cost(asked: list[Any]) -> None:
    noted = recorded(CELL)[1].metadata["overhead"]
    assert (noted["modules"], noted["frames"], noted["allocations"]) == (15, 0, 0)
    assert noted["lines"] == 4 + 5  # the last line takes no time
    assert noted["estimate_ns"] == total(noted)
    assert asked == [(False, False, False), "call"]


def test_costs_are_those_with_the_options_of_the_record(asked: list[Any]) -> None:
    options = {"stack": True, "shapes": True, "memory": True, "modules": "none", "lines": False}
    noted = recorded(CELL, **options)[1].metadata["overhead"]
    assert noted["frames"] > 5
    assert noted["allocations"] > 5
    assert (noted["modules"], noted["lines"], noted["calls"]) == (0, 0, 0)
    assert noted["module_cost_ns"] == noted["call_cost_ns"] == 0
    assert noted["estimate_ns"] == total(noted)
    assert asked == [(True, True, True)]


def test_our_own_calls_cost_cprofile_as_much(asked: list[Any]) -> None:
    """A marked module is three calls more, which the table of calls does not show."""
    with_marks, without = (
        recorded(CELL, modules=modules, lines=False)[1] for modules in ("auto", "none")
    )
    more = with_marks.metadata["overhead"]["calls"] - without.metadata["overhead"]["calls"]
    assert more >= 3 * 15
    counts = [made.calls.functions["calls"].sum() for made in (with_marks, without) if made.calls]
    assert counts[0] == counts[1]


def test_nothing_is_measured_under_a_profiler_of_the_users(asked: list[Any]) -> None:
    counts = dict.fromkeys(measured.KINDS, 3)
    with profile(activities=[ProfilerActivity.CPU]):
        noted = measured.overhead(counts, Options())
        torch.ones(1)
    assert asked == ["call"]
    assert noted["estimate_ns"] == 3 * CALL


@pytest.mark.parametrize("stack", [False, True])
def test_measuring_leaves_nothing_behind(stack: bool) -> None:
    code = torch.nn.Module._call_impl.__code__
    costs = measured.trace_costs.__wrapped__(True, True, stack)
    assert set(costs) | {"call"} == set(measured.KINDS)
    assert min(costs.values()) >= 0
    assert (costs["frame"] > 0) is stack
    assert torch.nn.Module._call_impl.__code__ is code


def test_the_finding_names_what_was_counted(asked: list[Any]) -> None:
    (text,) = [one.text for one in finding(recorded(CELL)[1])]
    assert "15 module calls and 9 line runs took about" in text
    assert " Python calls, 15 module calls" in text
