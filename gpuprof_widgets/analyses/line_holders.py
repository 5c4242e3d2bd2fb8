"""What holds a line's time: the function or the module that took most of it, or much of it.

Modules and recorded frames have times. cProfile's functions have none: `_least_in_line` finds how
much of their time must have been in a line, by what the lines name, what room they have, and which
modules ran in them.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import pandas as pd

from gpuprof_widgets.analyses.lines import cell_lines, lines, lines_at
from gpuprof_widgets.analyses.owners import line_of
from gpuprof_widgets.analyses.python_calls import calls_modules, function_labels, is_user_code
from gpuprof_widgets.analyses.regions import calls_per_traced_step
from gpuprof_widgets.analyses.waits import python_lanes, run_lane
from gpuprof_widgets.trace import intervals
from gpuprof_widgets.trace.model import Calls, Record, Trace
from gpuprof_widgets.trace.pstats import functions_of_frames
from gpuprof_widgets.trace.schema import MODULE_CATEGORIES, NONE

Ints = npt.NDArray[np.int64]
Rows = npt.NDArray[np.intp]

MOST, MUCH = 0.5, 0.25
"""Shares of a line's self time: what the deepest holder has at least, and what a function has at
least that is named without having most of it."""
TORCH = re.compile(r"(?:^|[/\\])torch[/\\]")
CALLED = re.compile(r"(\w+)\s*\(")


@dataclass(frozen=True)
class Holder:
    """A function (``trainer.py:40(step)``) or a module, and its time in the line (ns).

    ``is_backward``: the time is that of its backward pass alone. ``has_most``: it has `MOST` of the
    line's self time; else it is a function that has `MUCH` of it.
    """

    name: str
    ns: int
    is_module: bool = False
    is_backward: bool = False
    has_most: bool = True


def holder(record: Record, line: int) -> Holder | None:
    """Return what holds most of the self time of a line (a row of `lines`), or much of it, or None.

    That is the deepest holder of most of it. Where that is a module or none, a function that has a
    quarter of the line's time and more tells more. Recorded modules stand for their ``forward``.

    Recorded frames and modules have known times. cProfile's calls have none, so that only the time
    counts that must have been in this line (see `_least_in_line`).
    """
    self_ns = int(lines(record)["self_ns"].iloc[line])
    functions = [*_frames(record, line), *_calls(record, line)]
    if len(_module_rows(record, line)):
        functions = [function for function in functions if not function.name.endswith("(forward)")]
    candidates = [*_modules(record, line), *functions]
    holders = [candidate for candidate in candidates if candidate.ns >= MOST * self_ns]
    deepest = min(holders, key=lambda candidate: candidate.ns, default=None)
    if deepest is not None and not deepest.is_module:
        return deepest
    much = [function for function in functions if MUCH <= function.ns / self_ns < MOST]
    largest = max(much, key=lambda function: function.ns, default=None)
    return deepest if largest is None else replace(largest, has_most=False)


def main_callee(record: Record, holder: Holder) -> tuple[pd.DataFrame, float] | None:
    """Return the library's or built-in function in which a function spent most, and the share.

    The function is a table of one row; torch's Python code, which only passes on, is none. None
    where no such callee has `MOST` of the function's time, and without cProfile.
    """
    calls = record.calls
    if calls is None or holder.is_module:
        return None
    functions, edges = calls.functions, calls.edges
    is_it = np.array([label == holder.name for label in function_labels(functions)], bool)
    torchs = functions["file"].astype(str).str.contains(TORCH).to_numpy(bool)
    others = ~(is_user_code(functions) | torchs)
    callee = edges["callee"].to_numpy()
    called = is_it[edges["caller"].to_numpy()] & others[callee]
    spent = np.bincount(callee[called], edges["total_ns"].to_numpy()[called], len(functions))
    most, whole = int(spent.argmax()), int(functions["total_ns"].to_numpy()[is_it].sum())
    share = min(spent[most] / max(whole, 1), 1.0)
    return (functions.iloc[[most]], share) if share >= MOST else None


def _modules(record: Record, line: int) -> Iterator[Holder]:
    """Yield the modules in the line, except those that the line itself calls by their names."""
    trace = record.trace
    code = lines(record)["code"].iloc[line]
    row = _module_rows(record, line)
    key, names = pd.factorize(trace.slices["name"].astype(str).to_numpy(object)[row])
    forward_calls = np.bincount(key, trace.index.in_category("module")[row], len(names))
    open_ns = _open_ns(trace, row, key, len(names))
    for name, ns, forward in zip(names, open_ns, forward_calls, strict=True):
        if not re.search(rf"(?<![\w.]){re.escape(str(name))}\s*\(", code):
            yield Holder(str(name), int(ns), is_module=True, is_backward=not forward)


def _module_rows(record: Record, line: int) -> Rows:
    """Return the slices of modules, forward and backward, for which this is the innermost line."""
    trace, known = record.trace, cell_lines(record.trace)
    cell, number = lines(record)[["cell", "line"]].iloc[line]
    in_line = known.lines[(known.lines["cell"] == cell) & (known.lines["line"] == number)].index
    row = np.flatnonzero(trace.index.in_category(*MODULE_CATEGORIES))
    return row[np.isin(np.append(known.of_slice, NONE)[line_of(trace)[row]], in_line)]


def _frames(record: Record, line: int) -> Iterator[Holder]:
    """Yield the user's functions with recorded frames in the line."""
    if not len(python_lanes(record)):
        return
    trace, lane = record.trace, run_lane(record)
    functions, function = functions_of_frames(trace)
    lanes = trace.tracks["lane"].to_numpy()[trace.slices["track"].to_numpy()]
    named = np.append(_may_be_named(record, line, functions), False)[function]
    row = np.flatnonzero(named & (lanes == lane))
    row = row[lines_at(record, lane, trace.slices["ts"].to_numpy()[row]) == line]
    open_ns = _open_ns(trace, row, function[row], len(functions))
    labels = function_labels(functions)
    for number in np.flatnonzero(open_ns):
        yield Holder(labels[number], int(open_ns[number]))


def _may_be_named(record: Record, line: int, functions: pd.DataFrame) -> npt.NDArray[np.bool_]:
    """Return the user's functions, without those of the line's cell, whose lines are recorded."""
    in_cell = functions["file"] == lines(record)["cell"].iloc[line]
    return np.asarray(is_user_code(functions) & ~in_cell.to_numpy(bool), bool)


def _open_ns(trace: Trace, row: Rows, key: Ints, size: int) -> Ints:
    """Return per key how long any of its slices was open (ns)."""
    times = trace.index.ts[row], trace.index.end[row]
    return np.asarray(intervals.length_by(key, *times, size), np.int64)


def _calls(record: Record, line: int) -> Iterator[Holder]:
    """Yield the user's functions of cProfile that must have been in the line, and how long."""
    calls = record.calls
    if calls is None or len(python_lanes(record)):
        return
    per_step, self_ns = calls_per_traced_step(record), int(lines(record)["self_ns"].iloc[line])
    named, labels = _may_be_named(record, line, calls.functions), function_labels(calls.functions)
    least_ns = np.minimum(_least_in_line(record, calls, line), self_ns * per_step)
    for number in np.flatnonzero(named & (least_ns > 0)):
        yield Holder(labels[number], round(least_ns[number] / per_step))


def _least_in_line(record: Record, calls: Calls, line: int) -> npt.NDArray[np.float64]:
    """Return per function how much of its time (ns, with callees) must have been in the line.

    What the cell calls was in the line with all of its time if only this line names it, else with
    what the other lines have no room for. Calls of modules were in it as long as its modules were
    open. Where a function must have been in the line, so must its callees, less the time that it
    may have spent elsewhere. What ran in lines within this one never counts.
    """
    table, functions = lines(record), calls.functions
    cell, wall_ns, self_ns = (table[key].iloc[line] for key in ("cell", "wall_ns", "self_ns"))
    caller, callee = (calls.edges[end].to_numpy() for end in ("caller", "callee"))
    in_cell = (functions["file"] == cell).to_numpy(bool)
    edge_ns = calls.edges["total_ns"].to_numpy(np.float64)
    function_ns = functions["total_ns"].to_numpy(np.float64)
    called = [set(CALLED.findall(code)) for code in table["code"]]
    by_others = set().union(*called[:line], *called[line + 1 :])
    only_here = functions["name"].isin(called[line] - by_others).to_numpy(bool)
    per_step = calls_per_traced_step(record)
    within_ns = float(wall_ns - self_ns) * per_step
    elsewhere = float(table["self_ns"].sum() - self_ns) * per_step
    room = edge_ns - np.where(only_here[callee], 0, elsewhere) - within_ns
    edge_least = np.where(in_cell[caller] & ~in_cell[callee], room, 0)
    marked = calls_modules(functions) & (functions["name"] == "_call_impl").to_numpy(bool)
    least = np.where(marked, _in_modules(record, line) * per_step - within_ns, 0)
    while True:
        np.maximum.at(least, callee, edge_least)
        least = np.clip(least, 0, function_ns)
        below = edge_ns - (function_ns - least)[caller]
        if not (below > edge_least).any():
            return least
        edge_least = np.maximum(edge_least, below)


def _in_modules(record: Record, line: int) -> float:
    """Return how long the run's thread was in the forward passes of modules in the line (ns)."""
    trace, row = record.trace, _module_rows(record, line)
    lanes = trace.tracks["lane"].to_numpy()[trace.slices["track"].to_numpy()]
    row = row[trace.index.in_category("module")[row] & (lanes[row] == run_lane(record))]
    return float(_open_ns(trace, row, np.zeros(len(row), np.int64), 1)[0])
