"""Lines beside the costliest one that have a function which is slow by nature."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gpuprof_widgets.analyses.findings import Finding, findings
from gpuprof_widgets.analyses.findings.lines import other_lines
from gpuprof_widgets.trace.model import Record
from tests.counted import Tree, record_of
from tests.traces import annotation, calls_of, cell_line, kernel, runtime, trace_of

MS = 1_000_000
COUNT = "<method 'count' of 'list' objects>"
SUM = "<built-in method builtins.sum>"
CODE = {4: "loss.backward()", 5: "best = score(seen)", 6: "log(best)"}


def scored(spent: int, *, inner: str = COUNT, own: int = 10, backward: int = 800) -> Record:
    """Line 4 takes most of about 1 s; in line 5 a function calls ``inner`` for all but a tenth.

    ``spent``: ms of line 5; ``own``: percent of it in the function itself; ``backward``: ms of
    line 4. Line 6 takes the rest.
    """
    calls: list[Tree] = [(inner, spent * (100 - own) * MS // 1000, []) for _ in range(10)]
    metric = ("score", spent * own * MS // 100, calls)
    lines = [
        [("backward", backward * MS, [])],
        [metric],
        [("log", (1000 - backward - spent) * MS, [])],
    ]
    return record_of(*lines, code=CODE)[0]


CASES = {"other_lines": (scored(100), scored(99))}
"""A record that fires the rule, and one just below its threshold."""


def only(record: Record) -> Finding:
    (finding,) = other_lines(record)
    return finding


def test_a_second_line_with_a_slow_function_has_a_finding() -> None:
    finding = only(scored(120))
    assert (finding.cost_ns, finding.function) == (120 * MS, "net.py:3(score)")
    assert finding.line == ("Cell [3]", 5)


@pytest.mark.parametrize(
    "record",
    [
        scored(120, inner=SUM),
        scored(120, own=60),
        scored(600, backward=300),
        record_of([("backward", 800 * MS, [])], [(COUNT, 100 * MS, [])], code=CODE)[0],
    ],
    ids=["no slow function", "mostly the function itself", "the costliest", "no user's function"],
)
def test_other_lines_are_not_told_of(record: Record) -> None:
    assert other_lines(record) == []


def test_the_function_is_told_once() -> None:
    """The costliest function is `list.count`, of which the finding on the line tells."""
    told = [finding.rule for finding in findings(scored(300, backward=350))]
    assert "other_lines" in told
    assert "python_time" not in told


def test_a_line_beyond_the_limit_is_not_told_of() -> None:
    record = scored(120)
    cells = [{"label": "Cell [3]", "source": "", "beyond_limit": [5]}]
    limited = replace(record, metadata={**record.metadata, "lines": {"limit": 10, "cells": cells}})
    assert other_lines(limited) == []


@pytest.mark.parametrize("waits", [False, True])
def test_a_line_that_waits_for_the_gpu_is_not_told_of(waits: bool) -> None:
    """Its function takes long because of that."""
    functions = [(None, "<module>", 1, 880 * MS), ("<module>", "score", 1, 20 * MS)]
    calls = calls_of(*functions, ("score", COUNT, 10, 100 * MS))
    in_cell = (calls.functions["name"] == "<module>").map({True: "Cell [3]", False: None})
    file = in_cell.where(in_cell.notna(), calls.functions["file"]).astype(object)
    rows = [
        annotation("Cell [3]", ts=0, dur=1000 * MS),
        cell_line(4, CODE[4], ts=0, dur=800 * MS),
        runtime("cudaLaunchKernel", ts=790 * MS, dur=MS),
        kernel("gemm", ts=795 * MS, dur=100 * MS, launched_by=2),
        cell_line(5, CODE[5], ts=800 * MS, dur=120 * MS),
        cell_line(6, CODE[6], ts=920 * MS, dur=80 * MS),
    ]
    if waits:
        rows.append(runtime("cudaStreamSynchronize", ts=801 * MS, dur=95 * MS))
    calls = replace(calls, functions=calls.functions.assign(file=file))
    record = trace_of(*rows, label="Cell [3]", calls=calls)
    assert len(other_lines(record)) == (not waits)
