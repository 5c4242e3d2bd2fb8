"""Which line of the user's code a remedy is for."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from gpuprof_widgets.analyses.findings.finding import Finding
from gpuprof_widgets.analyses.findings.wording import code
from gpuprof_widgets.analyses.line_owners import line_of
from gpuprof_widgets.analyses.lines import cell_lines
from gpuprof_widgets.trace.model import Record


def with_lines(record: Record, said: Iterable[Finding]) -> list[Finding]:
    """The findings, each remedy with the line of the cell in which most of its evidence lies."""
    if not len(cell_lines(record.trace).row):
        return list(said)
    around = line_of(record.trace)
    return [_with_line(record, finding, around) for finding in said]


def _with_line(record: Record, finding: Finding, around: npt.NDArray[np.int32]) -> Finding:
    slices = record.trace.slices
    if not finding.remedy or not finding.rows:
        return finding
    rows = np.array(_evidence(finding))
    spent: Counter[int] = Counter()
    for line, dur in zip(around[rows], slices["dur"].to_numpy()[rows], strict=True):
        spent[int(line)] += int(dur)
    line = spent.most_common(1)[0][0]
    if line < 0:
        return finding
    number, _, statement = str(slices["name"].iloc[line]).partition(": ")
    if code(statement) in finding.text:
        return finding
    cells = record.trace.args["cell"]
    cell = f" of {cells.loc[line]}" if cells.dropna().nunique() > 1 else ""
    sentence = f" The line to look at is {number}{cell}: {code(statement)}."
    return replace(finding, remedy=finding.remedy + sentence)


def _evidence(finding: Finding) -> tuple[int, ...]:
    """Of an op of the backward pass its forward op: that, and not `backward()`, is to change."""
    return finding.rows[1:] if finding.rule == "backward" else finding.rows
