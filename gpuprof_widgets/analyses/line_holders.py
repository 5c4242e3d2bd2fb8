"""What below a line of the cell holds most of its time: a function of the user's, or a module."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pandas as pd

from gpuprof_widgets.analyses.iterations import calls_per_traced_step
from gpuprof_widgets.analyses.line_owners import line_of
from gpuprof_widgets.analyses.lines import cell_lines, lines, lines_at
from gpuprof_widgets.analyses.python_calls import function_labels
from gpuprof_widgets.analyses.thread_waits import python_lanes, run_lane
from gpuprof_widgets.analyses.user_code import is_user_code
from gpuprof_widgets.trace import intervals
from gpuprof_widgets.trace.model import Calls, Record
from gpuprof_widgets.trace.python_frames import functions_of_frames
from gpuprof_widgets.trace.schema import NONE

Ints = npt.NDArray[np.int64]

REGIONS = ("module", "module_backward")
MOST = 0.5
"""Of the line's own time."""
CALLED = re.compile(r"(\w+)\s*\(")


@dataclass(frozen=True)
class Holder:
    """A function (``trainer.py:40(step)``) or a module, and its time in the line (ns).

    ``is_backward``: that is its backward pass alone.
    """

    name: str
    ns: int
    is_module: bool = False
    is_backward: bool = False


def holder(record: Record, line: int) -> Holder | None:
    """The deepest one that has most of the own time of a line, a row of `lines`; None without any.

    Of recorded frames and modules the times are known. What cProfile counted has none: of it counts
    what must have run in this line, as it can be in no other.
    """
    own = int(lines(record)["self_ns"].iloc[line])
    known = [*_modules(record, line), *_frames(record, line), *_calls(record, line)]
    most = [one for one in known if one.ns >= MOST * own]
    return min(most, key=lambda one: one.ns, default=None)


def _modules(record: Record, line: int) -> Iterator[Holder]:
    """Modules but for those that the line itself calls by their names: forward and backward."""
    trace, known = record.trace, cell_lines(record.trace)
    table = lines(record)
    cell, number, code = table[["cell", "line", "code"]].iloc[line]
    of = known.lines[(known.lines["cell"] == cell) & (known.lines["line"] == number)].index
    row = np.flatnonzero(trace.index.in_category(*REGIONS))
    row = row[np.isin(np.append(known.of_slice, NONE)[line_of(trace)[row]], of)]
    key, names = pd.factorize(trace.slices["name"].astype(str).to_numpy(object)[row])
    forward = np.bincount(key, trace.index.in_category("module")[row], len(names))
    spent = _open(record, row, key, len(names))
    for name, ns, runs in zip(names, spent, forward, strict=True):
        if not re.search(rf"(?<![\w.]){re.escape(str(name))}\s*\(", code):
            yield Holder(str(name), int(ns), is_module=True, is_backward=not runs)


def _frames(record: Record, line: int) -> Iterator[Holder]:
    if not len(python_lanes(record)):
        return
    trace, lane = record.trace, run_lane(record)
    functions, function = functions_of_frames(trace)
    lanes = trace.tracks["lane"].to_numpy()[trace.slices["track"].to_numpy()]
    users = np.append(_may_be_named(record, line, functions), False)[function]
    row = np.flatnonzero(users & (lanes == lane))
    row = row[lines_at(record, lane, trace.slices["ts"].to_numpy()[row]) == line]
    spent = _open(record, row, function[row], len(functions))
    labels = function_labels(functions)
    for at in np.flatnonzero(spent):
        yield Holder(labels[at], int(spent[at]))


def _may_be_named(record: Record, line: int, functions: pd.DataFrame) -> npt.NDArray[np.bool_]:
    """The user's functions, but for those of the line's own cell: of these the lines tell."""
    own_cell = functions["file"] == lines(record)["cell"].iloc[line]
    return np.asarray(is_user_code(functions) & ~own_cell.to_numpy(bool), bool)


def _open(record: Record, row: npt.NDArray[np.intp], key: Ints, size: int) -> Ints:
    """Per key how long any of its slices was open (ns)."""
    ts, dur = (record.trace.slices[column].to_numpy()[row] for column in ("ts", "dur"))
    return np.asarray(intervals.length_by(key, ts, ts + dur, size), np.int64)


def _calls(record: Record, line: int) -> Iterator[Holder]:
    """Down the callees of cProfile from what the line calls, while these must hold most of it."""
    calls = record.calls
    if calls is None or len(python_lanes(record)):
        return
    per_step, own = calls_per_traced_step(record), int(lines(record)["self_ns"].iloc[line])
    users, labels = _may_be_named(record, line, calls.functions), function_labels(calls.functions)
    caller, callee = (calls.edges[end].to_numpy() for end in ("caller", "callee"))
    spent = calls.edges["total_ns"].to_numpy(np.float64)
    total = calls.functions["total_ns"].to_numpy(np.float64)
    least = _in_the_line(record, calls, line)
    seen = np.zeros(len(total), bool)
    while least.max(initial=0) >= MOST * own * per_step:
        edge = int(least.argmax())
        function, ns = callee[edge], min(least[edge], own * per_step)
        seen[function] = True
        if users[function]:
            yield Holder(labels[function], round(ns / per_step))
        elsewhere = max(total[function] - ns, 0)
        further = (caller == function) & ~seen[callee]
        least = np.where(further, np.minimum(spent - elsewhere, ns), 0)


def _in_the_line(record: Record, calls: Calls, line: int) -> npt.NDArray[np.float64]:
    """Per edge out of the cell's code how much of its time (ns) must have been in the line.

    All of it where only this line names the function; else what the other lines have no room for.
    Never what ran in lines within this one.
    """
    table, functions = lines(record), calls.functions
    cell, wall, own = (table[key].iloc[line] for key in ("cell", "wall_ns", "self_ns"))
    caller, callee = (calls.edges[end].to_numpy() for end in ("caller", "callee"))
    of_cell = (functions["file"] == cell).to_numpy(bool)
    spent = calls.edges["total_ns"].to_numpy(np.float64)
    named = [set(CALLED.findall(code)) for code in table["code"]]
    others = set().union(*named[:line], *named[line + 1 :])
    only_here = functions["name"].isin(named[line] - others).to_numpy(bool)
    elsewhere = float(table["self_ns"].sum() - own) * calls_per_traced_step(record)
    room = spent - np.where(only_here[callee], 0, elsewhere) - float(wall - own)
    return np.where(of_cell[caller] & ~of_cell[callee], room, 0)
