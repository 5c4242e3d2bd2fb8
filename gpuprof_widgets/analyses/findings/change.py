"""Which line of the user's code a remedy is for."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from gpuprof_widgets.analyses.findings.finding import Finding
from gpuprof_widgets.analyses.findings.wording import code
from gpuprof_widgets.analyses.line_owners import line_behind, line_of
from gpuprof_widgets.analyses.lines import CellLines, cell_lines
from gpuprof_widgets.trace.model import Record, Trace

OF_AN_OP = ("cpu_ops", "critical_path", "gpu_ops")
"""Rules that speak of all calls of an op, and show the longest."""

OF_BOTH_PASSES = ("python_autograd", "recomputation")
"""Rules whose evidence lies in the backward pass too: the line to change is that of the forward."""

Rows = npt.NDArray[np.intp]


def with_lines(record: Record, said: Iterable[Finding]) -> list[Finding]:
    """The findings, each remedy with the line of the cell in which most of its evidence lies."""
    known = cell_lines(record.trace)
    if not len(known.row):
        return list(said)
    return [_with_line(record.trace, finding, known) for finding in said]


def _with_line(trace: Trace, finding: Finding, known: CellLines) -> Finding:
    if not finding.remedy or not finding.rows:
        return finding
    line = _line_of_most(trace, finding, known)
    if line < 0:
        return finding
    cell, number, statement = known.lines.iloc[line][["cell", "line", "code"]]
    if code(statement) in finding.text:
        return finding
    of = f" of {cell}" if known.lines["cell"].nunique() > 1 else ""
    sentence = f" The line to look at is {number}{of}: {code(statement)}."
    return replace(finding, remedy=finding.remedy + sentence)


def _line_of_most(trace: Trace, finding: Finding, known: CellLines) -> int:
    """The index in ``known.lines`` of the line that has most of the evidence; -1 outside of all."""
    rows, executions = np.array(finding.rows), line_of(trace)
    if finding.rule == "backward":  # its forward op: that, and not `backward()`, is to change
        rows = rows[1:]
    elif finding.rule in OF_AN_OP:
        rows = _of_the_op(trace, finding)
        behind = line_behind(trace)
        executions = np.where(behind >= 0, behind, executions)
    elif finding.rule in OF_BOTH_PASSES:
        behind = line_behind(trace)
        executions = np.where(behind >= 0, behind, executions)
    line = np.append(known.of_slice, -1)[executions[rows]]
    spent = np.bincount(line + 1, trace.slices["dur"].to_numpy()[rows])
    return int(spent.argmax()) - 1


def _of_the_op(trace: Trace, finding: Finding) -> Rows:
    """All calls of the op that a finding shows one of; what they launched where it speaks of it."""
    slices, one = trace.slices, finding.rows[0]
    same = (slices["name"] == slices["name"].iloc[one]) & (
        slices["category"] == slices["category"].iloc[one]
    )
    calls = same.to_numpy(bool)
    if finding.rule != "gpu_ops":
        return np.flatnonzero(calls)
    gpu = trace.index.gpu
    of_the_op = np.append(calls, False)[slices["op"].to_numpy()[gpu]]
    return np.asarray(gpu[of_the_op], np.intp)
