"""Advice on lines that are steps of an optimizer on the CPU."""

from __future__ import annotations

import numpy as np
import pytest

from gpuprof_widgets.analyses.findings import findings
from gpuprof_widgets.analyses.findings.model import advice_on_step
from gpuprof_widgets.trace.model import Record
from tests.cells import recorded
from tests.traces import Row, annotation, cell_line, kernel, op, trace_of

MS = 1_000_000
ADVICE = (
    "It updates one tensor after the other, 20 ops in a step: pass `fused=True` to `Adam`, and one "
    "op updates all (on the CPU too since PyTorch 2.4)."
)


def stepping(
    *more: Row, kind: str = "Adam", ops: int = 20, took: int = 51, name: str = "aten::addcdiv_"
) -> Record:
    """Line 3 takes 100 ms, a step of so many ops ``took`` of them; line 4 takes 10 ms."""
    rows = [cell_line(3, "optimizer.step()", ts=0, dur=100 * MS)]
    rows.append(annotation(f"Optimizer.step#{kind}.step", ts=0, dur=took * MS))
    rows += [op(name, ts=number * MS, dur=MS) for number in range(ops)]
    return trace_of(*rows, cell_line(4, "log()", ts=100 * MS, dur=10 * MS), *more)


def advice(record: Record) -> str:
    return advice_on_step(
        record, np.flatnonzero(record.trace.slices["name"] == "3: optimizer.step()")
    )


def test_a_line_that_steps_one_tensor_after_the_other_says_what_to_pass() -> None:
    assert advice(stepping()) == ADVICE
    (line,) = [one for one in findings(stepping()) if one.rule == "lines"]
    assert line.remedy == ADVICE


@pytest.mark.parametrize(
    "record",
    [
        stepping(took=50),
        stepping(ops=19),
        stepping(kind="RMSprop"),
        stepping(name="aten::_fused_adam_"),
        stepping(name="aten::_foreach_add_"),
        stepping(kernel("gemm", ts=0, dur=MS)),
    ],
    ids=["half", "few ops", "cannot be fused", "fused", "foreach", "with a GPU"],
)
def test_other_lines_get_no_such_advice(record: Record) -> None:
    assert advice(record) == ""


@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize("kind", ["Adam", "AdamW", "SGD"])
def test_the_advice_holds_for_torchs_optimizers(kind: str, fused: bool) -> None:
    """They take ``fused=True`` for tensors of the CPU, and then update them in one op."""
    body = f"""import torch
given = [torch.nn.Parameter(torch.ones(3)) for _ in range(30)]
for one in given:
    one.grad = torch.ones(3)
optimizer = torch.optim.{kind}(given, lr=0.1, fused={fused}{", momentum=0.9" * (kind == "SGD")})
optimizer.step()"""
    _, record = recorded(body)
    lines = record.trace.slices["name"].astype(str).str.contains("optimizer.step()", regex=False)
    told = advice_on_step(
        record, np.flatnonzero(lines & record.trace.index.in_category("cell_line"))
    )
    assert bool(told) is not fused
    assert f"pass `fused=True` to `{kind}`" in told or fused
