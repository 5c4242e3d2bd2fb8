"""Where to look: the cell's line, or the Python function, that has most of a finding's evidence."""

from __future__ import annotations

import re
import sys
from dataclasses import replace
from importlib.util import find_spec

import numpy as np
import numpy.typing as npt

from gpuprof_widgets.analyses.columns import format_share
from gpuprof_widgets.analyses.critical_path import path_times
from gpuprof_widgets.analyses.findings.cpu_ops import cpu_calls
from gpuprof_widgets.analyses.findings.finding import Finding, code, share_of
from gpuprof_widgets.analyses.findings.kernels import called_by
from gpuprof_widgets.analyses.line_holders import TORCH
from gpuprof_widgets.analyses.lines import CellLines, cell_lines
from gpuprof_widgets.analyses.op_calls import calling_frame
from gpuprof_widgets.analyses.owners import MODULE_FRAME, line_behind, line_of
from gpuprof_widgets.analyses.reasons import PYTORCH, recorder_of
from gpuprof_widgets.analyses.remembered import remembered
from gpuprof_widgets.trace.arrays import Ints, Rows
from gpuprof_widgets.trace.gather import CALL_STACK
from gpuprof_widgets.trace.index import take
from gpuprof_widgets.trace.libraries import PACKAGES
from gpuprof_widgets.trace.links import itself_or_ancestor
from gpuprof_widgets.trace.model import Record, Trace
from gpuprof_widgets.trace.pstats import BUILT_IN, function_place
from gpuprof_widgets.trace.schema import NONE, WINDOW

RULES_ON_OPS = ("cpu_ops", "critical_path", "gpu_ops")
"""Rules about all calls of an op: those behind which a forward op stands count for its line."""

LOOK_AT = "Look at line"
"""How the sentence on the line begins, the last one of a remedy."""

IN_BACKWARD = " (mostly its backward pass)"
"""What follows the number of a line that ran the forward of most of the evidence."""

RULES_ON_BOTH_PASSES = ("python_autograd", "recomputation")
"""Rules whose evidence lies in the backward pass too: the line to change is the forward's."""

RULES_ON_CALLS = ("synchronising", "cpu_copies", "made_anew", "growing_cat", "loop_indexing")
"""Rules whose evidence are the calls that take the time: one function may have most of it."""

FUNCTIONS, FUNCTION_SHARE = 2, 0.25
"""How many functions are named at most, and the least share of an op's time of each."""

MOSTLY = 0.5
"""The least share of the time of other calls."""
TIME = {
    "critical_path": "of {op} on the critical path",
    "cpu_ops": "of the self time of {op}",
    "gpu_ops": "of the GPU time of {op}",
}
"""What the shares are of, by the rule."""

_PASSES_ON = frozenset({"torch", "gpuprof_widgets", "IPython", "ipykernel"})
"""Packages whose functions are on the way from the code that can be changed to an op."""


def with_places(record: Record, findings: list[Finding]) -> list[Finding]:
    """Return the findings with where to look, which remedies name at their end.

    A finding on a line has said so already.

    That is the cell's line with most of the evidence. Where no lines were recorded, but Python's
    frames, it is the functions with a quarter of an op's time or more, or with most of the calls'.
    """
    trace, cell = record.trace, cell_lines(record.trace)
    if len(cell.row):
        return [_with_line(trace, finding, cell) for finding in findings]
    if trace.index.on_tracks("python").any():
        return [_with_functions(record, finding) for finding in findings]
    return findings


NO_PLACES = (
    "Findings name ops, but no file and line, because the trace has no Python frames: "
    "torch.profiler records them with with_stack=True"
)


def lack_of_places(record: Record) -> str:
    """Say why findings on a trace of torch.profiler name no file and line; "" where they may."""
    index = record.trace.index
    named = index.in_category("cell_line").any() or index.on_tracks("python").any()
    with_stacks = named or CALL_STACK in record.trace.args
    of_torch = recorder_of(record) == PYTORCH and not {"options", WINDOW} & record.metadata.keys()
    return NO_PLACES if of_torch and index.is_op.any() and not with_stacks else ""


def _with_line(trace: Trace, finding: Finding, cell: CellLines) -> Finding:
    if not finding.rows:
        return finding
    line, in_backward = _costliest_line(trace, finding, cell)
    if line < 0:
        return finding
    name, number, statement = cell.lines.iloc[line][["cell", "line", "code"]]
    place = (str(name), int(number))
    is_told = finding.line == place or (statement and code(statement) in finding.text)
    finding = replace(finding, line=place)
    if not finding.remedy or is_told:
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
    line = take(cell.of_slice, executions[rows])
    dur = trace.index.dur[rows]
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
    return index.gpu[called_by(trace, costliest_op(trace, finding), index.gpu)]


def _with_functions(record: Record, finding: Finding) -> Finding:
    if not finding.rows or not finding.remedy:
        return finding
    trace = record.trace
    if finding.rule in RULES_ON_OPS:
        rows = _rows_of_op(trace, finding)
        shares = _shares(trace, rows, _times(record, finding, rows))
        named = [(name, share) for name, share in shares if share >= FUNCTION_SHARE][:FUNCTIONS]
        whose = TIME["gpu_ops" if trace.index.is_gpu[rows].all() else finding.rule]
        whose = whose.format(op=code(costliest_op(trace, finding)))
    elif finding.rule in RULES_ON_CALLS:
        rows, whose = np.array(finding.rows), ""
        shares = _shares(trace, rows, trace.index.dur[rows])
        named = [(name, share) for name, share in shares if share >= MOSTLY][:1]
    else:
        return finding
    if not named:
        return finding
    first, *others = [(name, format_share(share)) for name, share in named]
    sentence = f" Look at {first[0]}" + (f", with {first[1]} {whose}" if whose else "")
    sentence += "".join(f", and {name}, with {share}" for name, share in others)
    return replace(finding, remedy=f"{finding.remedy}{sentence}.")


def _times(record: Record, finding: Finding, rows: Rows) -> Ints:
    """Return the time (ns) of each call of the op that a finding is about.

    GPU time if the calls are its GPU work, for `critical_path` the time of the call and of its work
    on the path, else self time.
    """
    index = record.trace.index
    if index.is_gpu[rows].all():
        return np.asarray(index.dur[rows], np.int64)
    if finding.rule == "cpu_ops":
        own = np.zeros(len(index), np.int64)
        calls = cpu_calls(record.trace)
        own[calls["row"]] = calls["own_ns"]
        return own[rows]
    selected = np.zeros(len(index), bool)
    selected[rows] = True
    call = itself_or_ancestor(index.parent, selected)
    call[index.gpu] = take(call, index.launcher[index.gpu])
    by_call = np.bincount(call + 1, path_times(record), len(index) + 1)[1:]
    return np.asarray(by_call[rows], np.int64)


def _shares(trace: Trace, rows: Rows, time: Ints) -> list[tuple[str, float]]:
    """Return the functions that called these slices, with their shares of the time, most first.

    A function is a frame's file, line and name, and the class of its module if it is its
    ``forward``.
    """
    index = trace.index
    frame = take(_frames_to_change(trace), calling_frame(trace)[rows])
    known = frame >= 0
    kind = take(index.name, _module_of(trace)[frame[known]])
    pairs = np.stack([index.name[frame[known]], kind])
    distinct, function = np.unique(pairs, axis=1, return_inverse=True)
    spent: dict[tuple[str, int, str], int] = {}
    by_function = np.bincount(function.reshape(-1), time[known], distinct.shape[1])
    for (frame_name, module), ns in zip(distinct.T.tolist(), by_function.tolist(), strict=True):
        file, line, name = function_place(index.names[frame_name])
        if module >= 0 and name == "forward":
            kind = index.names[module].removeprefix(MODULE_FRAME)
            name = re.sub(r"_[0-9]+$", "", kind) + ".forward"
        spent[file, line, name] = spent.get((file, line, name), 0) + int(ns)
    total, shares = int(time.sum()), []
    for file, line, name in sorted(spent, key=lambda key: -spent[key]):
        basename = re.split(r"[/\\]", file)[-1]
        share = share_of(spent[file, line, name], total)
        shares.append((f"{code(name)} ({code(f'{basename}:{line}')})", share))
    return shares


@remembered
def _frames_to_change(trace: Trace) -> npt.NDArray[np.int32]:
    """Return per slice the innermost frame around it outside torch and Python; -1: none."""
    index = trace.index
    wanted = np.array([_can_be_changed(function_place(name)[0]) for name in index.names], bool)
    frames = index.on_tracks("python") & wanted[index.name]
    return itself_or_ancestor(index.parent, frames)


@remembered
def _module_of(trace: Trace) -> npt.NDArray[np.int32]:
    """Return per slice the module whose method it may be: no other frame to change is between."""
    index = trace.index
    is_module = index.matching(re.compile(rf"{re.escape(MODULE_FRAME)}.*", re.DOTALL))
    module = itself_or_ancestor(index.parent, is_module)
    caller = take(_frames_to_change(trace), index.parent)
    return np.where(module > caller, module, NONE).astype(np.int32)


def _can_be_changed(file: str) -> bool:
    """Whether a file is neither of torch nor of Python, but of the user or a package of models."""
    if file in (BUILT_IN, "") or (file.startswith("<") and not file.startswith("<ipython-input")):
        return False
    if TORCH.search(file):
        return False
    first, *rest = re.split(r"[/\\]", PACKAGES.sub("", file))
    package = first.removesuffix(".py")
    if package in _PASSES_ON or package not in sys.stdlib_module_names or not rest:
        return package not in _PASSES_ON | sys.stdlib_module_names
    spec = find_spec(package)  # the standard library has `code.py`, but no `code/`
    return spec is None or spec.submodule_search_locations is None
