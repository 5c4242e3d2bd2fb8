"""Where to look: the cell's line, or the Python function, that has most of a finding's evidence."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from gpuprof_widgets.analyses.columns import format_share
from gpuprof_widgets.analyses.critical_path import path_times
from gpuprof_widgets.analyses.findings.finding import Finding, Rows, code, share_of
from gpuprof_widgets.analyses.lines import CellLines, cell_lines
from gpuprof_widgets.analyses.op_calls import calling_frame
from gpuprof_widgets.analyses.owners import MODULE_FRAME, line_behind, line_of
from gpuprof_widgets.trace.links import itself_or_ancestor
from gpuprof_widgets.trace.model import Record, Trace
from gpuprof_widgets.trace.pstats import BUILT_IN, function_place

RULES_ON_OPS = ("cpu_ops", "critical_path", "gpu_ops")
"""Rules about all calls of an op: those behind which a forward op stands count for its line."""

LOOK_AT = "Look at line"
"""How the sentence on the line begins, the last one of a remedy."""

IN_BACKWARD = " (mostly its backward pass)"
"""What follows the number of a line that ran the forward of most of the evidence."""

RULES_ON_BOTH_PASSES = ("python_autograd", "recomputation")
"""Rules whose evidence lies in the backward pass too: the line to change is the forward's."""


RULES_ON_CALLS = (
    *RULES_ON_OPS,
    *("synchronising", "pageable_copies", "needless_copies", "cpu_copies", "made_anew"),
    *("growing_cat", "loop_indexing", "fp32_matmul"),
)
"""Rules whose evidence is all that costs: their time can be shared out among Python functions."""

FUNCTIONS, FUNCTION_SHARE = 2, 0.25
"""How many functions are named at most, and the least share of the evidence's time of each."""

_PACKAGES = re.compile(r"^.*[/\\](?:site|dist)-packages[/\\]")
_STDLIB = re.compile(
    r".*[/\\]lib(?:64)?[/\\]python\d[\d.]*t?[/\\].*|.*[/\\]Python[\d.]+[/\\]Lib[/\\].*"
)
_PASSES_ON = frozenset({*sys.stdlib_module_names, "torch", "gpuprof_widgets"})
"""Packages whose functions are on the way from the code that can be changed to an op."""


def with_places(record: Record, findings: Iterable[Finding]) -> list[Finding]:
    """Return the findings with where to look, which remedies name at their end.

    That is the cell's line with most of the evidence. Where no lines were recorded, but Python's
    frames, it is the functions that cause a quarter of the evidence's time or more.
    """
    trace, cell = record.trace, cell_lines(record.trace)
    if len(cell.row):
        return [_with_line(trace, finding, cell) for finding in findings]
    if trace.index.on_tracks("python").any():
        return [_with_functions(record, finding) for finding in findings]
    return list(findings)


def _with_line(trace: Trace, finding: Finding, cell: CellLines) -> Finding:
    if not finding.rows:
        return finding
    line, in_backward = _costliest_line(trace, finding, cell)
    if line < 0:
        return finding
    name, number, statement = cell.lines.iloc[line][["cell", "line", "code"]]
    finding = replace(finding, line=(str(name), int(number)))
    if not finding.remedy or (statement and code(statement) in finding.text):
        return finding
    of = f" of {name}" if cell.lines["cell"].nunique() > 1 else ""
    of += IN_BACKWARD if in_backward else ""
    sentence = f" {LOOK_AT} {number}{of}{f': {code(statement)}' if statement else ''}."
    return replace(finding, remedy=finding.remedy + sentence)


def _costliest_line(trace: Trace, finding: Finding, cell: CellLines) -> tuple[int, bool]:
    """Return the line with most of the evidence, and whether that is mostly its backward pass.

    The line is an index in ``cell.lines``; -1: in no line.
    """
    rows, ran_in = np.array(finding.rows), line_of(trace)
    executions = ran_in
    if finding.rule == "backward":  # the forward op is to change, not the line with `backward()`
        rows = rows[1:]
    elif finding.rule in (*RULES_ON_OPS, *RULES_ON_BOTH_PASSES):
        behind = line_behind(trace)
        executions = np.where(behind >= 0, behind, executions)
        rows = _rows_of_op(trace, finding) if finding.rule in RULES_ON_OPS else rows
    line = np.append(cell.of_slice, -1)[executions[rows]]
    dur = trace.slices["dur"].to_numpy()[rows]
    costliest = int(np.bincount(line + 1, dur).argmax()) - 1
    if finding.rule not in RULES_ON_OPS:
        return costliest, False
    of_line = line == costliest
    ran_elsewhere = of_line & (ran_in[rows] != executions[rows])
    return costliest, 2 * int(dur[ran_elsewhere].sum()) > int(dur[of_line].sum())


def costliest_op(trace: Trace, finding: Finding) -> str:
    """Return the op that a finding of `RULES_ON_OPS` is about; "" where it has no evidence."""
    if not finding.rows:
        return ""
    index, row = trace.index, finding.rows[0]
    op = int(index.column("op")[row]) if index.is_gpu[row] else row
    return str(index.names_of(np.array([op]))[0])


def _rows_of_op(trace: Trace, finding: Finding) -> Rows:
    """Return all calls of the op that a finding is about, or all that they launched on a GPU."""
    index, row = trace.index, finding.rows[0]
    if not index.is_gpu[row]:
        category = index.column("category")
        same = index.name == index.name[row]
        return np.flatnonzero(same & (category == category[row]))
    called = np.append(index.named(frozenset({costliest_op(trace, finding)})), False)
    of_the_op = called[index.column("op")[index.gpu]]
    return np.asarray(index.gpu[of_the_op], np.intp)


def _with_functions(record: Record, finding: Finding) -> Finding:
    if finding.rule not in RULES_ON_CALLS or not finding.rows or not finding.remedy:
        return finding
    trace, rows = record.trace, np.array(finding.rows)
    rows = _rows_of_op(trace, finding) if finding.rule in RULES_ON_OPS else rows
    time = _times(record, finding, rows)
    frame = _frames_to_change(trace)[calling_frame(trace)[rows]]
    known = frame >= 0
    spent: dict[str, int] = {}
    for name, ns in zip(_functions(trace, frame[known]), time[known].tolist(), strict=True):
        spent[name] = spent.get(name, 0) + ns
    shares = {name: share_of(ns, int(time.sum())) for name, ns in spent.items()}
    named = sorted(shares, key=lambda name: -shares[name])[:FUNCTIONS]
    named = [name for name in named if shares[name] >= FUNCTION_SHARE]
    if not named:
        return finding
    first, *others = [(name, format_share(shares[name])) for name in named]
    also = "".join(f", and at {name}, {share}" for name, share in others)
    sentence = f" Look at {first[0]}, which causes {first[1]} of it{also}."
    return replace(finding, remedy=finding.remedy + sentence)


def _times(record: Record, finding: Finding, rows: Rows) -> npt.NDArray[np.int64]:
    """Return each slice's time in ns, for `critical_path` that of its work on the path."""
    index = record.trace.index
    if finding.rule != "critical_path" or index.is_gpu[rows].all():
        return np.asarray(index.dur[rows], np.int64)
    selected = np.zeros(len(index), bool)
    selected[rows] = True
    call = np.append(itself_or_ancestor(index.parent, selected), -1)
    call[index.gpu] = call[index.launcher[index.gpu]]
    by_call = np.bincount(call[:-1] + 1, path_times(record), len(index) + 1)[1:]
    return np.asarray(by_call[rows], np.int64)


def _frames_to_change(trace: Trace) -> npt.NDArray[np.int32]:
    """Return per slice the innermost frame around it outside torch and Python; the last is -1."""
    index = trace.index
    wanted = np.array([_can_be_changed(function_place(name)[0]) for name in index.names], bool)
    frames = index.on_tracks("python") & wanted[index.name]
    return np.append(itself_or_ancestor(index.parent, frames), -1).astype(np.int32)


def _can_be_changed(file: str) -> bool:
    """Whether a file is neither of torch nor of Python, but of the user or a package of models."""
    if file in (BUILT_IN, "") or file.startswith("<"):
        return False
    path = _PACKAGES.sub("", file)
    if path == file and _STDLIB.fullmatch(file):
        return False
    return re.split(r"[/\\]", path)[0].removesuffix(".py") not in _PASSES_ON


def _functions(trace: Trace, frames: npt.NDArray[np.int32]) -> list[str]:
    """Return each frame as ```MLP.forward` (`model.py:12`)``, with its module's class if known."""
    index = trace.index
    is_module = index.matching(re.compile(rf"{re.escape(MODULE_FRAME)}.*", re.DOTALL))
    around = np.append(itself_or_ancestor(index.parent, is_module), -1)
    caller = _frames_to_change(trace)[index.parent[frames]]
    functions = []
    for frame, outer in zip(frames.tolist(), caller.tolist(), strict=True):
        file, line, name = function_place(index.names[index.name[frame]])
        module = int(around[frame])
        if module >= 0 and module > outer and name == "forward":
            kind = index.names[index.name[module]].removeprefix(MODULE_FRAME)
            name = f"{re.sub(r'_[0-9]+$', '', kind)}.{name}"
        basename = re.split(r"[/\\]", file)[-1]
        functions.append(f"{code(name)} ({code(f'{basename}:{line}')})")
    return functions
