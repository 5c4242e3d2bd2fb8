"""A Python function whose own time goes into the dispatch of many small ops."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pandas as pd

from gpuprof_widgets.analyses.iterations import calls_per_traced_step
from gpuprof_widgets.analyses.lines import cell_lines
from gpuprof_widgets.analyses.region_owners import region_around
from gpuprof_widgets.analyses.thread_waits import run_lane
from gpuprof_widgets.trace import links
from gpuprof_widgets.trace.callers import open_beside
from gpuprof_widgets.trace.model import Record, Trace
from gpuprof_widgets.trace.python_frames import BUILT_IN, functions_of_frames
from gpuprof_widgets.trace.schema import NONE

Rows = npt.NDArray[np.intp]

OPERATORS = re.compile(r"(?:^|[/\\])torch[/\\]_tensor\.py$")
"""Where some operators of tensors are Python functions (``x ** 3``)."""
MANY = 3
"""Ops per call."""
DISPATCH_NS = 15_000
"""Of the function's own time per op: dispatch takes a few microseconds, recording as much again."""
SMALL_NS = 100_000
"""Of the median op on the CPU: of longer ones the dispatch is no matter."""

REMEDY = "It is mostly the dispatch of {count} small ops per call: fuse them ({means})."
TORCH_COMPILE = "`torch.compile`"


@dataclass(frozen=True)
class DirectOps:
    """The ops that a function called itself: their rows, for so many of its calls."""

    row: Rows
    calls: int


def dispatch_remedy(record: Record, function: pd.Series, own_ns: int) -> str:
    """What to do about a function (a row of `python_time`) of many small ops; "" for others."""
    ops = direct_ops(record, function)
    if ops is None or len(ops.row) < MANY * ops.calls:
        return ""
    each = own_ns / calls_per_traced_step(record) / len(ops.row)
    if each > DISPATCH_NS or np.median(record.trace.slices["dur"].to_numpy()[ops.row]) > SMALL_NS:
        return ""
    names = record.trace.slices["name"].iloc[ops.row].astype(str)
    per_call = Counter(names.str.removeprefix("aten::").str.rstrip("_").tolist())
    per_call = Counter({name: round(count / ops.calls) for name, count in per_call.items()})
    means = ", ".join([*_gelu(per_call), TORCH_COMPILE])
    return REMEDY.format(count=round(len(ops.row) / ops.calls), means=means)


def direct_ops(record: Record, function: pd.Series) -> DirectOps | None:
    """The ops that a function (a row of `python_time`) called itself; None where nothing says."""
    ops = _in_frames(record, function)
    return _in_regions(record, function) if ops is None else ops


def _gelu(ops: Counter[str]) -> list[str]:
    """``F.gelu`` for the chain of ops that it is, in either form."""
    used = {name for name, count in ops.items() if count}
    if not used <= {"mul", "add", "pow", "div", "tanh", "erf"} or ops["mul"] + ops["div"] < 2:
        return []
    if ops["erf"] == 1 and not ops["tanh"] and ops["add"]:
        return ["`F.gelu(x)`"]
    cubed = ops["pow"] == 1 or ops["mul"] >= 5
    if ops["tanh"] == 1 and not ops["erf"] and cubed and ops["add"] >= 2:
        return ['`F.gelu(x, approximate="tanh")`']
    return []


def _outermost_ops(trace: Trace) -> Rows:
    """Ops that are in no other, those of the backward pass left out."""
    ops = trace.index.is_op & trace.index.on_tracks("cpu")
    parent = trace.index.parent
    late = trace.index.column("forward") >= 0
    return np.flatnonzero(ops & ~late & (links.nearest_ancestor(parent, ops) < 0))


def _in_frames(record: Record, function: pd.Series) -> DirectOps | None:
    """The ops right in the function's frames, or in operators and built-ins that it called."""
    trace = record.trace
    if not trace.index.on_tracks("python").any():
        return None
    functions, of_frame = functions_of_frames(trace)
    same = np.all([functions[key] == function[key] for key in ("file", "line", "name")], axis=0)
    between = (functions["file"] == BUILT_IN) | functions["file"].str.contains(OPERATORS)
    opaque = ~np.append(between.to_numpy(bool), False)[of_frame]
    mine = np.append(np.append(same, False)[of_frame], False)
    ops = _outermost_ops(trace)
    frame = open_beside(trace, *trace.index.uncut)[ops]
    caller = links.itself_or_ancestor(trace.slices["parent"].to_numpy(), opaque)
    around = np.append(caller, NONE)[frame]
    return DirectOps(ops[mine[around]], max(int(function["calls"]), 1))


def _in_regions(record: Record, function: pd.Series) -> DirectOps | None:
    """The ops right in what the function was: the forward of a class of modules, or a line.

    cProfile does not say in which function an operator ran. A ``forward``, and what such alone call
    once each, is that of the only class that was called as often and has many ops of its own; any
    other is called on the only line that names it, and ran as often.
    """
    trace = record.trace
    calls = round(int(function["calls"]) / calls_per_traced_step(record))
    ops = _outermost_ops(trace)
    lane = trace.tracks["lane"].to_numpy()[trace.slices["track"].to_numpy()]
    ops = ops[lane[ops] == run_lane(record)]
    if function["name"] == "forward" or _is_called_by_forwards(record, function):
        found = _of_classes(trace, ops, calls)
    else:
        found = _of_lines(trace, ops, calls, str(function["name"]))
    found = [rows for rows in found if len(rows) >= MANY * calls]
    return DirectOps(found[0], calls) if len(found) == 1 and calls else None


def _is_called_by_forwards(record: Record, function: pd.Series) -> bool:
    """Whether cProfile saw no other function call this one."""
    if record.calls is None:
        return False
    functions, edges = record.calls.functions, record.calls.edges
    same = np.all([functions[key] == function[key] for key in ("file", "line", "name")], axis=0)
    callers = functions["name"].to_numpy(object)[edges["caller"][same[edges["callee"]]]]
    return bool(len(callers)) and bool((callers == "forward").all())


def _of_classes(trace: Trace, ops: Rows, calls: int) -> list[Rows]:
    """Per class whose modules were called so often the ops right in these."""
    module = np.flatnonzero(trace.index.in_category("module"))
    if not len(module) or "class" not in trace.args:
        return []
    codes, _ = pd.factorize(trace.args["class"].reindex(module).astype(str))
    kind = np.full(len(trace) + 1, NONE, np.int64)
    kind[module] = codes
    counted = np.bincount(codes)
    of_op = kind[region_around(trace, "module")[ops]]
    return [ops[of_op == one] for one in np.flatnonzero(counted == calls)]


def _of_lines(trace: Trace, ops: Rows, calls: int, name: str) -> list[Rows]:
    """Per line that calls a function of that name, and ran so often, the ops in no module of it."""
    known = cell_lines(trace)
    if not len(known.row):
        return []
    names_it = known.lines["code"].str.contains(rf"\b{re.escape(name)}\s*\(", regex=True)
    counted = np.bincount(known.of_slice[known.row], minlength=len(known.lines))
    line = np.append(known.of_slice, NONE)[region_around(trace, "cell_line")[ops]]
    line = np.where(region_around(trace, "module")[ops] >= 0, NONE, line)
    return [
        ops[line == one] for one in np.flatnonzero(names_it.to_numpy(bool) & (counted == calls))
    ]
