"""Functions of many small ops: what takes their time is the dispatch, which fusing saves."""

from __future__ import annotations

from typing import Any

import pandas as pd
import pytest
import torch

from gpuprof_widgets.analyses.findings import FINDINGS
from gpuprof_widgets.analyses.findings.dispatch import direct_ops, dispatch_remedy
from gpuprof_widgets.analyses.findings.finding import Finding
from gpuprof_widgets.analyses.python_time import python_time
from gpuprof_widgets.trace.model import Record
from tests.cells import recorded
from tests.traces import Row, calls_of, cell_line, module, op, python, trace_of

pytestmark = pytest.mark.slow

MS, US = 1_000_000, 1_000
GELU = ("pow", "mul", "add", "mul", "tanh", "add", "mul", "mul")
ERF = ("mul", "div", "erf", "add", "mul")
ROUNDS = 1000


def said(record: Record) -> Finding:
    (finding,) = FINDINGS["python_time"](record)
    return finding


def rounds(names: tuple[str, ...], *, each_ns: int = 1 * US, frames: bool = False) -> list[Row]:
    """A forward of these ops in each of 1,000 calls, one every 60 us."""
    rows = []
    for begin in range(0, ROUNDS * 60 * US, 60 * US):
        rows.append(module("act", ts=begin, dur=55 * US, kind="Activation"))
        if frames:
            rows.append(python("/home/me/act.py(3): forward", ts=begin, dur=55 * US))
        for number, name in enumerate(names):
            rows.append(op(f"aten::{name}", ts=begin + number * 6 * US, dur=each_ns))
    return rows


def forwards(names: tuple[str, ...], *, own_ns: int = 40 * MS, **given: Any) -> Record:
    calls = calls_of((None, "train", 1, 20 * MS), ("train", "forward", ROUNDS, own_ns))
    return trace_of(*rounds(names, **given), op("end", ts=90 * MS, dur=1), calls=calls)


@pytest.mark.parametrize("frames", [False, True])
@pytest.mark.parametrize(
    ("names", "means"),
    [
        (GELU, '(`F.gelu(x, approximate="tanh")`, `torch.compile`)'),
        (ERF, "(`F.gelu(x)`, `torch.compile`)"),
        (("mul", "add", "tanh", "mul"), "(`torch.compile`)"),
        (("mul", "add_", "relu_", "neg"), "(`torch.compile`)"),
        ((*GELU, "mm"), "(`torch.compile`)"),
    ],
)
def test_small_ops_are_to_be_fused(names: tuple[str, ...], means: str, frames: bool) -> None:
    remedy = said(forwards(names, frames=frames)).remedy
    count = len(names)
    assert (
        remedy
        == f"That time is mostly the dispatch of {count} small ops per call: fuse them {means}."
    )


@pytest.mark.parametrize("frames", [False, True])
def test_few_ops_and_long_ones_are_no_dispatch(frames: bool) -> None:
    few = forwards(("mul", "add"), frames=frames)
    assert "dispatch" not in said(few).remedy
    if not frames:  # these tell the time of the ops and of Python apart
        slow = forwards(("mul", "add", "tanh"), own_ns=46 * MS)
        assert "dispatch" not in said(slow).remedy


def test_two_classes_that_ran_as_often_are_not_told_apart() -> None:
    other = [
        module("loss", ts=begin + 56 * US, dur=3 * US, kind="Loss")
        for begin in range(0, ROUNDS * 60 * US, 60 * US)
    ]
    ops = [
        op(f"aten::{name}", ts=row.ts + at * 500, dur=300)
        for row in other
        for at, name in enumerate(("sub", "pow", "mean"))
    ]
    calls = calls_of((None, "train", 1, 20 * MS), ("train", "forward", ROUNDS, 40 * MS))
    record = trace_of(*rounds(GELU), *other, *ops, op("end", ts=90 * MS, dur=1), calls=calls)
    assert "dispatch" not in said(record).remedy


def test_a_function_on_a_line_of_the_cell_has_the_ops_of_that_line() -> None:
    rows: list[Row] = []
    for begin in range(0, ROUNDS * 60 * US, 60 * US):
        rows.append(cell_line(4, "y = activate(x)", ts=begin, dur=55 * US))
        rows += [
            op(f"aten::{name}", ts=begin + at * 6 * US, dur=US) for at, name in enumerate(GELU)
        ]
    calls = calls_of((None, "train", 1, 20 * MS), ("train", "activate", ROUNDS, 40 * MS))
    other = cell_line(5, "z = 1", ts=70 * MS, dur=MS)
    record = trace_of(*rows, other, op("end", ts=90 * MS, dur=1), calls=calls)
    assert "the dispatch of 8 small ops per call" in said(record).remedy
    renamed = calls.functions.assign(name=calls.functions["name"].replace("activate", "other"))
    unknown = trace_of(*rows, other, calls=type(calls)(pd.DataFrame(renamed), calls.edges))
    assert "dispatch" not in said(unknown).remedy


def test_what_a_forward_alone_calls_has_the_ops_of_its_module() -> None:
    passes = ((None, "train", 1, MS), ("train", "forward", ROUNDS, MS))
    called = calls_of(*passes, ("forward", "gelu", ROUNDS, 40 * MS))
    rows = [*rounds(GELU), op("end", ts=90 * MS, dur=1)]
    assert "(`F.gelu(x, approximate" in said(trace_of(*rows, calls=called)).remedy
    elsewhere = calls_of(*passes, ("train", "gelu", ROUNDS, 40 * MS))
    assert "dispatch" not in said(trace_of(*rows, calls=elsewhere)).remedy


class Activation(torch.nn.Module):
    """The chain of ops that `F.gelu` is."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = 0.5 * x * (1 + torch.tanh(0.79788456 * (x + 0.044715 * x**3)))
        return y


@pytest.mark.parametrize("stack", [False, True])
def test_the_ops_of_a_recorded_forward_are_counted(stack: bool) -> None:
    names = {"act": Activation(), "x": torch.randn(16)}
    outcome, record = recorded("for _ in range(30):\n    y = act(x)", names, stack=stack)
    assert not outcome.error
    table = python_time(record)
    (function,) = (row for _, row in table[table["name"] == "forward"].iterrows())
    ops = direct_ops(record, function)
    assert ops is not None
    assert (ops.calls, len(ops.row)) == (30, 30 * 8)
    assert "`F.gelu(" in dispatch_remedy(record, function, 30 * 8 * US)
    assert dispatch_remedy(record, function, 30 * 8 * 16 * US) == ""
