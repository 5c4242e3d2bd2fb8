"""What holds a line's time: the function or the module that took most of it, or much of it.

Modules and recorded frames have times. cProfile's functions have none: `_least_in_line` finds how
much of their time must have been in a line, by what the lines name, what room they have, and which
modules ran in them.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pandas as pd

from gpuprof_widgets.analyses.gpu_work import open_ns
from gpuprof_widgets.analyses.lines import are_in_line, lines, lines_at
from gpuprof_widgets.analyses.python_calls import calls_modules, function_labels, is_user_code
from gpuprof_widgets.analyses.regions import calls_per_traced_step
from gpuprof_widgets.analyses.waits import lane_of, python_lanes, run_lane
from gpuprof_widgets.trace import intervals
from gpuprof_widgets.trace.arrays import Floats, Mask, Rows
from gpuprof_widgets.trace.index import take
from gpuprof_widgets.trace.model import Calls, Record
from gpuprof_widgets.trace.pstats import FUNCTION_KEY, functions_of_frames
from gpuprof_widgets.trace.schema import MODULE_CATEGORIES

MOST, MUCH = 0.5, 0.25
"""Shares of a line's self time: what the deepest holder has at least, and what a function has at
least that is named beside it."""
TORCH = re.compile(r"(?:^|[/\\])torch[/\\]")
CALLED = re.compile(r"(\w+)\s*\(")
BRACKETS = (("(", ")"), ("[", "]"), ("{", "}"))

FunctionKey = tuple[str, int, str]
Callee = tuple[pd.DataFrame, int, str]
"""A function, as a table of one row, its time (ns), and "at least " if that may be more."""


@dataclass(frozen=True)
class Holder:
    """A function (``trainer.py:40(step)``) or a module, and its time in the line (ns).

    ``function``: file, line and name of a function; None for a module. ``is_backward``: the time is
    that of a module's backward pass alone. ``known``: what to say before the time: "at least "
    where more of cProfile's time may have been in the line, "about " where cProfile saw more steps
    than the trace.
    """

    name: str
    ns: int
    function: FunctionKey | None = None
    is_backward: bool = False
    known: str = ""


def holders(record: Record, line: int) -> tuple[Holder | None, Holder | None]:
    """Return what holds most of the self time of a line (a row of `lines`), and a function in it.

    The first is the deepest holder of most of the time. Where that is a module or none, the second
    is the function that has a quarter of the line's time or more; recorded modules stand for their
    ``forward``.

    Recorded frames and modules have known times. cProfile's calls have none, so that only the time
    counts that must have been in this line (see `_least_in_line`).
    """
    self_ns = int(lines(record)["self_ns"].iloc[line])
    functions = [*_frames(record, line), *_calls(record, line)]
    if len(_module_rows(record, line)):
        functions = [function for function in functions if not function.name.endswith("(forward)")]
    candidates = [*_modules(record, line), *functions]
    large = [candidate for candidate in candidates if candidate.ns >= MOST * self_ns]
    deepest = min(large, key=lambda candidate: candidate.ns, default=None)
    if deepest is not None and (deepest.function or deepest.is_backward):
        return deepest, None
    much = [function for function in functions if MUCH * self_ns <= function.ns < MOST * self_ns]
    return deepest, max(much, key=lambda function: function.ns, default=None)


def main_callee(record: Record, holder: Holder) -> Callee | None:
    """Return the library's or built-in function that had most of a function's time in the line.

    Its time is what it must have had there. None where no callee has `MOST`, and without cProfile.
    Torch's Python code, and what mostly calls the user's code back, only pass on and do not count.
    """
    calls = record.calls
    if calls is None or holder.function is None:
        return None
    functions, edges = calls.functions, calls.edges
    is_it = selected(functions, holder.function)
    is_users = is_user_code(functions)
    caller, callee = (edges[end].to_numpy() for end in ("caller", "callee"))
    edge_ns, size = edges["total_ns"].to_numpy(np.float64), len(functions)
    function_ns = functions["total_ns"].to_numpy(np.float64)
    called_back = 2 * np.bincount(caller, edge_ns * is_users[callee], size) > function_ns
    passes_on = functions["file"].astype(str).str.contains(TORCH).to_numpy(bool) | called_back
    called = is_it[caller] & ~(is_users | passes_on)[callee]
    if not called.any():
        return None
    spent = np.bincount(callee[called], edge_ns[called], size)
    most, per_step = int(spent.argmax()), calls_per_traced_step(record)
    elsewhere = max(function_ns[is_it].sum() - holder.ns * per_step, 0)
    ns = round(min((spent[most] - elsewhere) / per_step, holder.ns))
    known = "at least " if elsewhere and ns < holder.ns else ""
    return (functions.iloc[[most]], ns, known) if ns >= MOST * holder.ns else None


def selected(functions: pd.DataFrame, function: FunctionKey) -> Mask:
    """Return which row of cProfile's functions is this one."""
    keys = zip(functions["file"], functions["line"], functions["name"], strict=True)
    return np.array([key == function for key in keys], bool)


def _modules(record: Record, line: int) -> Iterator[Holder]:
    """Yield the modules in the line, except those that the line itself calls by their names."""
    index, row = record.trace.index, _module_rows(record, line)
    code = lines(record)["code"].iloc[line]
    key, names = pd.factorize(index.names_of(row))
    forward_calls = np.bincount(key, index.in_category("module")[row], len(names))
    times = intervals.length_by(key, index.ts[row], index.end[row], len(names))
    for name, ns, forward in zip(names, times, forward_calls, strict=True):
        if not re.search(rf"(?<![\w.]){re.escape(str(name))}\s*\(", code):
            yield Holder(str(name), int(ns), is_backward=not forward)


def _module_rows(record: Record, line: int) -> Rows:
    """Return the slices of modules, forward and backward, for which this is the innermost line."""
    cell, number = lines(record)[["cell", "line"]].iloc[line]
    row = np.flatnonzero(record.trace.index.in_category(*MODULE_CATEGORIES))
    return row[are_in_line(record.trace, (cell, number), row)]


def _frames(record: Record, line: int) -> Iterator[Holder]:
    """Yield the user's functions with recorded frames in the line."""
    if not len(python_lanes(record)):
        return
    trace, index, lane = record.trace, record.trace.index, run_lane(record)
    functions, function = functions_of_frames(trace)
    named = take(_may_be_named(record, line, functions), function, missing=False)
    row = np.flatnonzero(named & (lane_of(trace) == lane))
    row = row[lines_at(record, lane, index.ts[row]) == line]
    times = intervals.length_by(function[row], index.ts[row], index.end[row], len(functions))
    labels = function_labels(functions)
    for number in np.flatnonzero(times):
        yield Holder(labels[number], int(times[number]), _key(functions, number))


def _may_be_named(record: Record, line: int, functions: pd.DataFrame) -> Mask:
    """Return the user's functions, without those of the line's cell, whose lines are recorded."""
    in_cell = functions["file"] == lines(record)["cell"].iloc[line]
    return np.asarray(is_user_code(functions) & ~in_cell.to_numpy(bool), bool)


def _calls(record: Record, line: int) -> Iterator[Holder]:
    """Yield the user's functions of cProfile that must have been in the line, and how long."""
    calls = record.calls
    if calls is None or len(python_lanes(record)):
        return
    per_step, self_ns = calls_per_traced_step(record), int(lines(record)["self_ns"].iloc[line])
    named, labels = _may_be_named(record, line, calls.functions), function_labels(calls.functions)
    least_ns = np.minimum(_least_in_line(record, calls, line), self_ns * per_step)
    most_ns = np.minimum(calls.functions["total_ns"].to_numpy(np.float64), self_ns * per_step)
    for number in np.flatnonzero(named & (least_ns > 0)):
        known = "at least " if least_ns[number] < most_ns[number] else ""
        known += "about " if per_step > 1 else ""
        ns = round(least_ns[number] / per_step)
        yield Holder(labels[number], ns, _key(calls.functions, number), known=known)


def _key(functions: pd.DataFrame, number: np.intp) -> FunctionKey:
    file, line, name = (functions[key].iloc[number] for key in FUNCTION_KEY)
    return file, line, name


def _least_in_line(record: Record, calls: Calls, line: int) -> Floats:
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
    function_ns = functions["total_ns"].to_numpy(np.float64)
    edge_ns = np.minimum(calls.edges["total_ns"].to_numpy(np.float64), function_ns[callee])
    only_here = functions["name"].isin(_named_only_in(table["code"].tolist(), line)).to_numpy(bool)
    per_step = calls_per_traced_step(record)
    within_ns = float(wall_ns - self_ns) * per_step
    elsewhere = float(table["self_ns"].sum() - self_ns) * per_step
    room = edge_ns - np.where(only_here[callee], 0, elsewhere) - within_ns
    edge_least = np.where(in_cell[caller] & ~in_cell[callee], room, 0)
    marked = calls_modules(functions) & (functions["name"] == "_call_impl").to_numpy(bool)
    row = _forward_rows(record, line)
    if len(row) == len(_forward_rows(record)) == int(functions["calls"][marked].sum()):
        in_modules = function_ns  # their spans end a moment before the calls do
    else:
        in_modules = np.full(len(functions), float(open_ns(record.trace, row)) * per_step)
    least = np.where(marked, in_modules - within_ns, 0)
    for _ in range(len(functions)):
        np.maximum.at(least, callee, edge_least)
        least = np.clip(least, 0, function_ns)
        below = edge_ns - (function_ns - least)[caller]
        if not (below > edge_least).any():
            break
        edge_least = np.maximum(edge_least, below)
    return least


def _named_only_in(code: list[str], line: int) -> set[str]:
    """Return the functions that this line calls by name and no other line mentions.

    None where another line shows only its first row, for the others may mention them.
    """
    others = code[:line] + code[line + 1 :]
    text = "".join(others)
    if any(text.count(opened) > text.count(closed) for opened, closed in BRACKETS):
        return set()
    mentioned = set().union(*(re.findall(r"\w+", other) for other in others))
    return set(CALLED.findall(code[line])) - mentioned


def _forward_rows(record: Record, line: int | None = None) -> Rows:
    """Return the forward passes of modules on the run's thread, in the line or anywhere."""
    trace = record.trace
    forward = trace.index.in_category("module")
    row = np.flatnonzero(forward) if line is None else _module_rows(record, line)
    return np.asarray(row[forward[row] & (lane_of(trace)[row] == run_lane(record))])
