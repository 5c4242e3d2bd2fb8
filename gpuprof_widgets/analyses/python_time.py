"""What each Python function cost, and how much of that it waited for the GPU.

Recorded frames tell which function waited (`recorded_waits`). cProfile has no times: there
`estimated_waits` gives the measured waits of ops to the built-in functions that run these ops, and
passes them on to the callers by their shares of time.

`python_functions` and `in_hooks` find Python that ran within an op, in an `autograd.Function` or a
hook, where neither its frames nor its lines were recorded.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from gpuprof_widgets.analyses.columns import group_sums
from gpuprof_widgets.analyses.lines import sampling_error
from gpuprof_widgets.analyses.operators import has_ops
from gpuprof_widgets.analyses.owners import LineSource, line_sources
from gpuprof_widgets.analyses.python_calls import carried_up
from gpuprof_widgets.analyses.reasons import CALLS, NO_TIMES, of_the_whole_run, says_if_empty
from gpuprof_widgets.analyses.regions import calls_per_traced_step
from gpuprof_widgets.analyses.remembered import remembered
from gpuprof_widgets.analyses.waits import (
    REASONS,
    ThreadWaits,
    python_lanes,
    run_lane,
    thread_waits,
)
from gpuprof_widgets.trace import links
from gpuprof_widgets.trace.arrays import Floats, Ints, Mask, Rows
from gpuprof_widgets.trace.index import take
from gpuprof_widgets.trace.model import Calls, Record, Trace
from gpuprof_widgets.trace.owners import BACKWARD, is_engine
from gpuprof_widgets.trace.pstats import BUILT_IN, calls_from_slices, function_place
from gpuprof_widgets.trace.schema import NONE, SAMPLED

COLUMNS = (
    *("file", "line", "name", "calls", "primitive_calls"),
    *("self_ns", "self_waiting_ns", "self_python_ns"),
    *("total_ns", "total_waiting_ns", "total_python_ns"),
    *REASONS,
    *("exact", "self_error_ns", "total_error_ns"),
)


@says_if_empty(CALLS)
@remembered
def python_time(record: Record) -> pd.DataFrame:
    """One row per Python function, the largest self time first; empty without Python calls.

    If frames were recorded, the table follows the window. What cProfile counted stays whole
    (``attrs["whole"]`` says why).

    Formula: ``self_ns`` = ``self_waiting_ns`` + ``self_python_ns``, and ``total_ns`` =
    ``total_waiting_ns`` + ``total_python_ns``.

    Columns:

    - ``file``, ``line``, ``name``: the function.
    - ``calls``, ``primitive_calls``: all calls, and those that are not recursive. If samples were
      recorded (``--python sampled``), how often samples in a row found the function.
    - ``self_ns``: cProfile's tottime.
    - ``self_waiting_ns``: of that, the time in calls that waited for the GPU.
    - ``self_python_ns``: the rest: Python's own time, and that of the ops it called.
    - ``total_ns``, ``total_waiting_ns``, ``total_python_ns``: the same for cProfile's cumtime.
    - ``waited_for``: the kernel or copy after which most of its waiting was over; "": unknown.
    - ``launched_by``, ``launched_at``: the op that launched it, and the cell line, as "Cell
      [3]:12"; "": unknown.
    - ``exact``: the waiting is known from recorded frames (``--stack``), or there was none. Samples
      are never exact. Otherwise it is estimated: the waits of ops are given to the built-in
      functions that run them, and passed on to the callers by their shares of time.
    - ``self_error_ns``, ``total_error_ns``: for samples by ``--python sampled``, how far the times
      may be off in 95 % of runs (see `sampled_lines`); else 0.

    Source: Python's cProfile for times and calls; the division of the waits is defined here.
    """
    framed = len(python_lanes(record)) > 0
    label = str(record.metadata.get("label"))
    calls = calls_from_slices(record.trace, label) if framed else record.calls
    if calls is None or not len(calls.functions):
        return pd.DataFrame(columns=list(COLUMNS))
    waited = thread_waits(record)
    if framed:
        waits = recorded_waits(calls.functions, waited, record)
    else:
        waits = estimated_waits(calls, waited, record)
    known = framed or (len(record.trace) > 0 and not len(waited.table))
    is_sampled = bool(record.metadata.get(SAMPLED))
    pieces: Any = _pieces_of(record, calls.functions) if is_sampled else 0
    table = _table(calls, waits, waited.reasons)
    table = table.assign(
        exact=known and not is_sampled,
        self_error_ns=sampling_error(pieces, record),
        total_error_ns=sampling_error(calls.functions["primitive_calls"], record),
    )[list(COLUMNS)]
    table = table.sort_values("self_ns", ascending=False, kind="stable", ignore_index=True)
    if is_sampled:
        table.attrs[SAMPLED] = True
    return table if framed else of_the_whole_run(table, NO_TIMES)


def _pieces_of(record: Record, functions: pd.DataFrame) -> Ints:
    """Return how many stretches the self time of each function has in recorded frames."""
    trace, function = record.trace, function_of(record.trace, functions)
    tracks = trace.tracks
    is_counted = (tracks["kind"] == "python") & tracks["lane"].isin(python_lanes(record))
    rows = [trace.index.segments(int(track)).row for track in np.flatnonzero(is_counted)]
    of_piece = function[np.concatenate(rows)] if rows else function[:0]
    return np.bincount(of_piece[of_piece >= 0], minlength=len(functions))


def has_python_alone(record: Record) -> bool:
    """Return whether there are Python functions, but neither ops nor GPU work."""
    return not has_ops(record.trace) and len(python_time(record)) > 0


def _table(calls: Calls, waits: FunctionWaits, reasons: pd.DataFrame) -> pd.DataFrame:
    functions = calls.functions
    self_ns = np.clip(waits.self_ns, 0, functions["self_ns"].to_numpy())
    total = np.clip(waits.total_ns, 0, functions["total_ns"].to_numpy())
    reason = np.where(total > 0, waits.reason, NONE)
    return functions.assign(
        self_waiting_ns=self_ns,
        self_python_ns=functions["self_ns"] - self_ns,
        total_waiting_ns=total,
        total_python_ns=functions["total_ns"] - total,
        **{name: take(reasons[name].to_numpy(object), reason, missing="") for name in REASONS},
    )


OF_TORCH = re.compile(r"^<.*(?:torch|Tensor|of type object)")
BUILTIN = re.compile(r"^<(?:built-in )?(?:(?:method|function|slot wrapper) )?'?([\w.]+)")
"""How cProfile writes a built-in function; the last part of the name is the function."""

SERVES = {
    **dict.fromkeys(("item", "__float__", "__int__", "__bool__"), ("item", "is_nonzero")),
    **dict.fromkeys(("to", "cpu", "cuda", "type", "tolist", "numpy"), ("to", "_to_copy", "copy_")),
    **dict.fromkeys(("where", "argwhere"), ("nonzero", "nonzero_numpy")),
}
"""Ops by the built-ins that run them, where their names differ."""

OUTSIDE_OF_OPS = (
    (re.compile(r".*Synchronize.*"), re.compile(r".*synchronize.*", re.IGNORECASE)),
    (re.compile(r".*Free.*"), re.compile(r".*emptyCache")),
)
"""Runtime calls that Python makes outside of ops, and the built-ins that make them."""

MOST_REASONS = 32
"""Reasons that are followed up to the callers; the others are too short to be the main one."""

RUNS_BACKWARD = "run_backward"
"""The built-in in which a thread waits for the threads of the backward pass."""


@dataclass(frozen=True)
class FunctionWaits:
    """Waiting per function in ns, its own and in total, and the main reason (-1: none)."""

    self_ns: Ints
    total_ns: Ints
    reason: Ints


def estimated_waits(calls: Calls, waited: ThreadWaits, record: Record) -> FunctionWaits:
    """Give the waits of ops to the built-ins that run them, at most as much as their self time.

    Waits that fit no built-in (cProfile does not see operators and indexing) go to the cell's
    function whose line it was, if lines were recorded, and otherwise to all Python functions by
    their self times.
    """
    table = waited.table.assign(ns=waited.length_ns * calls_per_traced_step(record))
    table = table[(table["lane"] == run_lane(record)) | table["backward"]]
    dealt = _Dealt(calls.functions, table)
    for groups in (_by_builtin, _by_cell_function, _by_language):
        parts = [dealt.deal(owners, part) for owners, part in groups(record, calls, table)]
        table = pd.concat([table.iloc[:0], *parts])
    return dealt.result(carried_up(calls, dealt.amounts))


class _Dealt:
    """The waits given to each function, by reason, within its self time."""

    def __init__(self, functions: pd.DataFrame, table: pd.DataFrame) -> None:
        longest = table.groupby("reason")["ns"].sum().sort_values(ascending=False)
        self._reasons = longest.index.to_numpy(np.int64)[:MOST_REASONS]
        self._functions = functions
        self._room = functions["self_ns"].to_numpy(np.float64, copy=True)
        self.amounts = np.zeros((len(functions), len(self._reasons) + 1))

    def deal(self, owners: Rows, part: pd.DataFrame) -> pd.DataFrame:
        """Divide waits among functions by the self time that they have left; return the rest."""
        room, whole = self._room[owners], float(part["ns"].sum())
        dealt_ns = min(whole, float(room.sum()))
        if dealt_ns <= 0:
            return part
        shares = room / room.sum() * dealt_ns
        self._room[owners] -= shares
        by_reason = np.zeros(len(self._reasons) + 1)  # the last is of all other reasons
        column = pd.Index(self._reasons).get_indexer(pd.Index(part["reason"]))
        np.add.at(by_reason, column, part["ns"])
        self.amounts[owners] += shares[:, None] * by_reason / whole
        return part.assign(ns=part["ns"] * (1 - dealt_ns / whole))

    def result(self, below: Floats) -> FunctionWaits:
        """Return whole ns, at most the time of each function, and the main reasons."""
        columns = (self._functions["self_ns"], self._functions["total_ns"])
        self_ns, total = (
            np.clip(np.rint(amounts.sum(axis=1)), 0, column).astype(np.int64)
            for amounts, column in zip((self.amounts, below), columns, strict=True)
        )
        named = below[:, :-1] if below.shape[1] > 1 else np.zeros((len(below), 1))
        reasons = self._reasons if len(self._reasons) else np.array([NONE])
        main = np.where(named.any(axis=1), reasons[named.argmax(axis=1)], NONE)
        return FunctionWaits(self_ns, np.maximum(total, self_ns), main)


Groups = Iterator[tuple[Rows, pd.DataFrame]]


def _by_builtin(_: Record, calls: Calls, table: pd.DataFrame) -> Groups:
    """Yield the built-ins that may have run each op and its waits, the least ambiguous first."""
    functions = calls.functions
    texts = functions["name"].astype(str).where(functions["file"] == BUILT_IN, "")
    matches = [BUILTIN.match(text) if OF_TORCH.match(text) else None for text in texts]
    names = [match[1].rsplit(".", 1)[-1] if match else "" for match in matches]
    groups = [
        (_running(names, str(op), str(call)), part)
        for (op, call), part in table.groupby(["op_name", "name"], sort=False)
    ]
    yield from sorted(groups, key=lambda group: len(group[0]))


def _running(names: list[str], op: str, call: str) -> Rows:
    """Return the built-ins that run this op, or make this runtime call outside of any op.

    ``names``: those of torch's built-in functions, "" for all other functions.
    """
    if op.startswith(BACKWARD):
        return np.flatnonzero([name == RUNS_BACKWARD for name in names])
    if not op:
        makes = [builtin for calls, builtin in OUTSIDE_OF_OPS if calls.fullmatch(call)]
        return np.flatnonzero([any(each.fullmatch(name) for each in makes) for name in names])
    wanted = op.rsplit("::", 1)[-1]
    return np.flatnonzero([name == wanted or wanted in SERVES.get(name, ()) for name in names])


def _by_cell_function(record: Record, calls: Calls, table: pd.DataFrame) -> Groups:
    """Yield the function around each cell line, and the waits of that line."""
    args = record.trace.args
    rows = _rows_by_place(calls.functions)
    functions: dict[tuple[Any, Any], int] = {}
    for source in line_sources(record):
        for number, first, name in _innermost_functions(source):
            if (source.name, first, name) in rows:
                functions[source.name, number] = rows[source.name, first, name]
    cells, lines = (args.get(key, pd.Series(dtype=object)) for key in ("cell", "line"))
    for row, part in table.groupby("line", sort=False):
        owner = functions.get((cells.get(row), lines.get(row)))
        yield np.array([] if owner is None else [owner], np.intp), part


def _by_language(_: Record, calls: Calls, table: pd.DataFrame) -> Groups:
    """Yield all functions that are not built in, and all waits that are left."""
    yield np.flatnonzero(calls.functions["file"] != BUILT_IN), table


def _rows_by_place(functions: pd.DataFrame) -> dict[tuple[str, int, str], int]:
    """Return the row of each function by its file, line and name."""
    keys = zip(functions["file"], functions["line"], functions["name"], strict=True)
    return {(str(file), int(line), str(name)): row for row, (file, line, name) in enumerate(keys)}


def _innermost_functions(source: LineSource) -> Iterator[tuple[int, int, str]]:
    """Yield each line with the first line and the name of the innermost function around it."""
    last = source.first + len(source.text)
    for line in range(source.first, last):
        yield line, 1, "<module>"
    # Magics, which only IPython understands, are passed over.
    code = "\n".join(re.sub(r"^(\s*)[%!].*", r"\1pass", line) for line in source.text)
    try:
        tree = ast.parse(code)
    except SyntaxError:
        return
    for node in ast.walk(tree):  # inner functions come after outer ones
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            first = min([node.lineno, *(part.lineno for part in node.decorator_list)])
            for line in range(node.lineno, (node.end_lineno or node.lineno) + 1):
                yield line + source.first - 1, first + source.first - 1, node.name


def recorded_waits(functions: pd.DataFrame, waited: ThreadWaits, record: Record) -> FunctionWaits:
    """Give each wait to the innermost frame open on its thread, and in total to all above it."""
    trace = record.trace
    parts = _frames_waiting(trace, waited, python_lanes(record))
    function = function_of(trace, functions)
    parts = parts[function[parts["frame"]] >= 0]
    self_ns = group_sums(function[parts["frame"]], parts["ns"], len(functions))
    by = _with_callers(trace, parts, function)
    by = by.groupby(["function", "reason"])["ns"].sum().reset_index()
    total = group_sums(by["function"].to_numpy(), by["ns"], len(functions))
    main = np.full(len(functions), NONE, np.int64)
    by = by.sort_values("ns", kind="stable")
    main[by["function"]] = by["reason"]  # the last assignment, of the longest, stays
    return FunctionWaits(self_ns, total, main)


def _frames_waiting(trace: Trace, waited: ThreadWaits, lanes: Ints) -> pd.DataFrame:
    """Return ``frame`` (row), ``reason`` and ``ns`` of every piece of a wait inside one frame."""
    tracks, table, index = trace.tracks, waited.table, trace.index
    parts = []
    lane = tracks["lane"].to_numpy()
    named = frozenset(name for name in index.names if RUNS_BACKWARD in name)
    backward = table["backward"].to_numpy(bool)
    late = np.flatnonzero(backward)
    of_lane = links.rows_by(np.where(backward, NONE, table["lane"].to_numpy()))
    for track in np.flatnonzero((tracks["kind"] == "python") & np.isin(lane, lanes)):
        pieces = index.segments(int(track))
        here = of_lane.get(int(lane[track]), np.empty(0, np.intp))
        runs = take(index.named(named), pieces.row, missing=False)
        for rows, usable in ((here, pieces.row >= 0), (late, runs)):
            if len(rows) and usable.any():
                met = _overlaps(table.iloc[rows], pieces.start[usable], pieces.end[usable])
                parts.append(met.assign(frame=pieces.row[usable][met["at"]]))
    columns = ["frame", "reason", "ns"]
    waits = pd.concat(parts) if parts else pd.DataFrame(columns=columns)
    return waits[columns].astype(np.int64).reset_index(drop=True)


def _overlaps(rows: pd.DataFrame, start: Ints, end: Ints) -> pd.DataFrame:
    """Intersect waits with disjoint, sorted stretches: ``at`` (stretch), ``reason``, ``ns``."""
    begins, ends = rows["start_ns"].to_numpy(), rows["end_ns"].to_numpy()
    first = np.searchsorted(end, begins, side="right")
    count = np.maximum(np.searchsorted(start, ends, side="left") - first, 0)
    wait = np.repeat(np.arange(len(rows)), count)
    at = np.arange(count.sum()) - np.repeat(np.cumsum(count) - count, count) + first[wait]
    ns = np.minimum(ends[wait], end[at]) - np.maximum(begins[wait], start[at])
    return pd.DataFrame({"at": at, "reason": rows["reason"].to_numpy()[wait], "ns": ns})


def function_of(trace: Trace, functions: pd.DataFrame) -> Ints:
    """Return per slice the row of its function, -1 for others; one more -1 is for parent -1."""
    rows, index = _rows_by_place(functions), trace.index
    of_name = [rows.get(function_place(name), NONE) for name in index.names]
    numbers = np.array([*of_name, NONE], np.int64)[index.name]
    return np.append(np.where(index.in_category("python_function"), numbers, NONE), NONE)


def _with_callers(trace: Trace, parts: pd.DataFrame, function: Ints) -> pd.DataFrame:
    """Return ``function``, ``reason``, ``ns`` of every frame and its callers, each function once.

    Goes up from the deepest frames and merges pieces of one frame and reason on the way.
    """
    parent, (part, why) = trace.slices["parent"].to_numpy(), parts[["frame", "reason"]].to_numpy().T
    kind = np.where(function < 0, function.max(initial=0) + 1, function)[:-1]
    counted = (function[:-1] >= 0) & ~links.below_its_like(parent, kind)
    depth = links.depths(parent)[part]
    reasons, of_depth = int(why.max(initial=0)) + 1, links.rows_by(depth)
    keys, length = part * reasons + why, parts["ns"].to_numpy()
    key, ns, levels = keys[:0], length[:0], []
    for level in range(int(depth.max(initial=-1)), -1, -1):
        here = of_depth.get(level, np.empty(0, np.intp))
        key, at = np.unique(np.append(key, keys[here]), return_inverse=True)
        sums = group_sums(at.reshape(-1), np.append(ns, length[here]), len(key))
        frame, reason = np.divmod(key, reasons)
        levels.append(np.stack([function[frame], reason, sums])[:, counted[frame]])
        above = parent[frame].astype(np.int64)
        key, ns = (above * reasons + reason)[above >= 0], sums[above >= 0]
    table = np.concatenate(levels, axis=1) if levels else np.empty((3, 0), np.int64)
    return pd.DataFrame(dict(zip(("function", "reason", "ns"), table, strict=True)))


FUNCTION = re.compile(r"(?!Compiled)[A-Za-z_]\w*(?<!Undefined)Backward")
"""Autograd's nodes of functions written in Python, ``MyFunctionBackward``.

torch's nodes have a number (``MulBackward0``), those of C++ extensions a namespace.
``CompiledFunction`` is left out, because it may run compiled code.
Source: torch/autograd/function.py, ``FunctionMeta``.
"""
ENGINE_SLICES = re.compile(rf"{re.escape(BACKWARD)}: .*|torch::autograd::AccumulateGrad")
"""Slices in which the engine runs hooks of tensors and of nodes."""
HOOK_NS = 50_000
"""Longer self times of the engine are hooks: its own work takes a few microseconds."""


def python_functions(trace: Trace) -> Mask:
    """Return which ops are an ``autograd.Function`` in Python, whose self time is Python's.

    A forward op counts if its backward node is in the trace.
    """
    ops = trace.index.is_op
    nodes = ops & trace.index.matching(FUNCTION) & ~is_engine(trace.slices["name"])
    names = {str(name) for name in trace.slices["name"][nodes].unique()}
    forward = frozenset(name.removesuffix("Backward") for name in names)
    return nodes | (ops & trace.index.named(forward))


def in_hooks(record: Record, start: Ints, end: Ints, is_engine_time: Mask) -> Mask:
    """Return which of these stretches of time ran Python hooks.

    ``is_engine_time``: the engine is innermost in the stretch. The long ones ran hooks if, in
    cProfile, the functions that the engine called took about as long in all. If these took far
    more, ops ran in them, as where checkpointing runs a forward again, and nothing is known.
    Recorded Python frames need no such guess.
    """
    long = is_engine_time & (end - start >= HOOK_NS)
    if record.calls is None or (record.trace.tracks["kind"] == "python").any():
        return np.zeros(len(start), bool)
    # What the engine called, except backwards of Functions.
    edges = record.calls.edges
    file, name = (record.calls.functions[key] for key in ("file", "name"))
    engine = ((file == BUILT_IN) & name.str.contains(RUNS_BACKWARD, regex=False)).to_numpy(bool)
    node = ((name == "apply") & file.str.endswith("function.py")).to_numpy(bool)
    hooks = engine[edges["caller"].to_numpy()] & ~node[edges["callee"].to_numpy()]
    hooks_ns = int(edges["total_ns"].to_numpy()[hooks].sum())
    all_long = int((end - start)[long].sum())
    return long & (all_long / 2 < hooks_ns < 2 * all_long)
