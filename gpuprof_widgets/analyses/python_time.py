"""What each Python function cost, and how much of that it waited for the GPU."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from gpuprof_widgets.analyses.operators import has_ops
from gpuprof_widgets.analyses.owners import LineSource, line_sources
from gpuprof_widgets.analyses.python_calls import carried_up
from gpuprof_widgets.analyses.reasons import (
    CALLS,
    NO_TIMES,
    of_the_whole_run,
    says_if_empty,
    unless_recorded,
)
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
from gpuprof_widgets.trace.model import Calls, Record, Trace
from gpuprof_widgets.trace.owners import BACKWARD, is_engine
from gpuprof_widgets.trace.pstats import calls_from_slices, function_place
from gpuprof_widgets.trace.schema import NONE, SAMPLED

Amounts = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]

COLUMNS = (
    *("file", "line", "name", "calls", "primitive_calls"),
    *("self_ns", "self_waiting_ns", "self_python_ns"),
    *("total_ns", "total_waiting_ns", "total_python_ns"),
    *REASONS,
    "exact",
)


@says_if_empty(unless_recorded(CALLS))
@remembered
def python_time(record: Record) -> pd.DataFrame:
    """One row per Python function, the largest self time first; empty without Python calls.

    Columns (times in ns):

    - ``file``, ``line``, ``name``, ``calls``, ``primitive_calls`` (not recursive): where samplers
      (pyinstrument, py-spy) recorded, no calls but how often samples in a row found the function;
    - ``self_ns`` (cProfile's tottime) = ``self_waiting_ns`` (stood still in a call that waits for
      the GPU) + ``self_python_ns`` (Python's own, and that of the ops it called);
    - ``total_ns`` (cProfile's cumtime) = ``total_waiting_ns`` + ``total_python_ns``;
    - ``waited_for`` (the kernel or copy after which most of its waiting was over),
      ``launched_by`` (the op), ``launched_at`` (the cell line, as "Cell [3]:12"); "" where not
      known;
    - ``exact``: the waiting is known from recorded frames (``--stack``), or there was none.
      Samples are never exact. Otherwise it is estimated: the waits of ops are given to the
      built-in functions that run them, and passed on to the callers by their shares of time.

    Where frames were recorded the table follows the window; what cProfile counted stays whole
    (``attrs["whole"]`` says why).
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
    exact = known and not is_sampled
    table = _table(calls, waits, waited.reasons).assign(exact=exact)[list(COLUMNS)]
    table = table.sort_values("self_ns", ascending=False, kind="stable", ignore_index=True)
    if is_sampled:
        table.attrs[SAMPLED] = True
    return table if framed else of_the_whole_run(table, NO_TIMES)


def has_python_alone(record: Record) -> bool:
    """Whether there are Python functions, and neither an op nor GPU work."""
    return not has_ops(record.trace) and len(python_time(record)) > 0


def _table(calls: Calls, waits: FunctionWaits, reasons: pd.DataFrame) -> pd.DataFrame:
    functions = calls.functions
    own = np.clip(waits.self_ns, 0, functions["self_ns"].to_numpy())
    total = np.clip(waits.total_ns, 0, functions["total_ns"].to_numpy())
    texts = {name: np.append(reasons[name].to_numpy(object), "") for name in REASONS}
    reason = np.where(total > 0, waits.reason, NONE)
    return functions.assign(
        self_waiting_ns=own,
        self_python_ns=functions["self_ns"] - own,
        total_waiting_ns=total,
        total_python_ns=functions["total_ns"] - total,
        **{name: column[reason] for name, column in texts.items()},
    )


OF_TORCH = re.compile(r"^<.*(?:torch|Tensor|of type object)")
BUILTIN = re.compile(r"^<(?:built-in )?(?:(?:method|function|slot wrapper) )?'?([\w.]+)")
"""How cProfile spells a built-in function; the last part of its name is what it is called by."""

SERVES = {
    **dict.fromkeys(("item", "__float__", "__int__", "__bool__"), ("item", "is_nonzero")),
    **dict.fromkeys(("to", "cpu", "cuda", "type", "tolist", "numpy"), ("to", "_to_copy", "copy_")),
    **dict.fromkeys(("where", "argwhere"), ("nonzero", "nonzero_numpy")),
}
"""Built-ins whose ops have other names than they have themselves."""

OUTSIDE_OF_OPS = (
    (re.compile(r".*Synchronize.*"), re.compile(r".*synchronize.*", re.IGNORECASE)),
    (re.compile(r".*Free.*"), re.compile(r".*emptyCache")),
)
"""Runtime calls that Python makes without an op, and the built-ins that make them."""

MOST_REASONS = 32  # that are followed up the callers; the others are too short to be the main one


def estimated_waits(calls: Calls, waited: ThreadWaits, record: Record) -> FunctionWaits:
    """The waits of ops are those of the built-ins that run them, but no more than their own time.

    What no built-in can have waited (operators and indexing are no calls to cProfile) is that of
    the cell's function whose line it was, where lines were recorded, and otherwise of all Python
    functions by the share of their own time.
    """
    table = waited.table.assign(ns=waited.length_ns * calls_per_traced_step(record))
    table = table[(table["lane"] == run_lane(record)) | table["backward"]]
    dealt = _Dealt(calls.functions, table)
    for groups in (_by_builtin, _by_cell_function, _by_language):
        parts = [dealt.deal(owners, part) for owners, part in groups(record, calls, table)]
        table = pd.concat([table.iloc[:0], *parts])
    return dealt.result(carried_up(calls, dealt.own))


class _Dealt:
    """The waits that each function was given, by reason, within its own time."""

    def __init__(self, functions: pd.DataFrame, table: pd.DataFrame) -> None:
        longest = table.groupby("reason")["ns"].sum().sort_values(ascending=False)
        self._reasons = longest.index.to_numpy(np.int64)[:MOST_REASONS]
        self._functions = functions
        self._room = functions["self_ns"].to_numpy(np.float64, copy=True)
        self.own = np.zeros((len(functions), len(self._reasons) + 1))

    def deal(self, owners: npt.NDArray[np.intp], part: pd.DataFrame) -> pd.DataFrame:
        """Give these waits to these functions by the time that they have left; return the rest."""
        room, whole = self._room[owners], float(part["ns"].sum())
        given = min(whole, float(room.sum()))
        if given <= 0:
            return part
        shares = room / room.sum() * given
        self._room[owners] -= shares
        self.own[owners] += shares[:, None] * self._by_reason(part) / whole
        return part.assign(ns=part["ns"] * (1 - given / whole))

    def _by_reason(self, part: pd.DataFrame) -> Amounts:
        column = {reason: number for number, reason in enumerate(self._reasons.tolist())}
        last = len(column)
        ns = np.zeros(last + 1)
        np.add.at(ns, [column.get(r, last) for r in part["reason"].tolist()], part["ns"])
        return ns

    def result(self, below: Amounts) -> FunctionWaits:
        """Whole ns, of each function no more than its time, and the reason of most of them."""
        columns = (self._functions["self_ns"], self._functions["total_ns"])
        own, total = (
            np.clip(np.rint(amounts.sum(axis=1)), 0, column).astype(np.int64)
            for amounts, column in zip((self.own, below), columns, strict=True)
        )
        named = below[:, :-1] if below.shape[1] > 1 else np.zeros((len(below), 1))
        reasons = self._reasons if len(self._reasons) else np.array([NONE])
        main = np.where(named.any(axis=1), reasons[named.argmax(axis=1)], NONE)
        return FunctionWaits(own, np.maximum(total, own), main)


Groups = Iterator[tuple[npt.NDArray[np.intp], pd.DataFrame]]


def _by_builtin(_: Record, calls: Calls, table: pd.DataFrame) -> Groups:
    """The waits of each op, and the built-ins that may have run it; the least ambiguous first."""
    names = _builtin_names(calls.functions)
    groups = [
        (_running(names, str(op), str(call)), part)
        for (op, call), part in table.groupby(["op_name", "name"], sort=False)
    ]
    yield from sorted(groups, key=lambda group: len(group[0]))


def _builtin_names(functions: pd.DataFrame) -> list[str]:
    """By what each of torch's built-in functions is called; "" for all other functions."""
    texts = functions["name"].astype(str).where(functions["file"] == "~", "")
    found = [BUILTIN.match(text) if OF_TORCH.match(text) else None for text in texts]
    return [match[1].rsplit(".", 1)[-1] if match else "" for match in found]


def _running(names: list[str], op: str, call: str) -> npt.NDArray[np.intp]:
    """The built-ins that run this op, or make this call of the runtime outside of any."""
    if op.startswith(BACKWARD):
        return np.array([n for n, name in enumerate(names) if name == RUNS_BACKWARD], np.intp)
    if not op:
        makes = [builtin for calls, builtin in OUTSIDE_OF_OPS if calls.fullmatch(call)]
        return np.array(
            [n for n, name in enumerate(names) if any(b.fullmatch(name) for b in makes)], np.intp
        )
    wanted = op.rsplit("::", 1)[-1]
    runs = [name == wanted or wanted in SERVES.get(name, ()) for name in names]
    return np.flatnonzero(runs)


def _by_cell_function(record: Record, calls: Calls, table: pd.DataFrame) -> Groups:
    """The waits of each cell line, and the function of the cell that the line is in."""
    args = record.trace.args
    functions = _cell_functions(record, calls.functions)
    cells, lines = (args.get(key, pd.Series(dtype=object)) for key in ("cell", "line"))
    for row, part in table.groupby("line", sort=False):
        owner = functions.get((cells.get(row), lines.get(row)))
        yield np.array([] if owner is None else [owner], np.intp), part


def _by_language(_: Record, calls: Calls, table: pd.DataFrame) -> Groups:
    """All that is left, and all functions that are not built in."""
    yield np.flatnonzero(calls.functions["file"] != "~"), table


def _cell_functions(record: Record, functions: pd.DataFrame) -> dict[tuple[Any, Any], int]:
    """Per cell and line the row of the function whose code the line is."""
    keys = zip(functions["file"], functions["line"], functions["name"], strict=True)
    rows = {(str(f), int(line), str(name)): row for row, (f, line, name) in enumerate(keys)}
    found: dict[tuple[Any, Any], int] = {}
    for source in line_sources(record):
        for line, first, name in _innermost_functions(source):
            row = rows.get((source.name, first, name))
            if row is not None:
                found[source.name, line] = row
    return found


def _innermost_functions(source: LineSource) -> Iterator[tuple[int, int, str]]:
    """Each line of a text with the first line and the name of the function around it."""
    last = source.first + len(source.text)
    for line in range(source.first, last):
        yield line, 1, "<module>"
    try:
        tree = ast.parse("\n".join(map(_as_python, source.text)))
    except SyntaxError:
        return
    for node in ast.walk(tree):  # those inside come after those around them
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            first = min([node.lineno, *(part.lineno for part in node.decorator_list)])
            for line in range(node.lineno, (node.end_lineno or node.lineno) + 1):
                yield line + source.first - 1, first + source.first - 1, node.name


def _as_python(line: str) -> str:
    """The line, or what can stand in its place where only IPython understands it."""
    code = line.lstrip()
    return line[: len(line) - len(code)] + "pass" if code.startswith(("%", "!")) else line


RUNS_BACKWARD = "run_backward"
"""The built-in in which a thread waits for those of the backward pass."""


@dataclass(frozen=True)
class FunctionWaits:
    """Per function: ns of its own and of everything below; and the main reason, -1 for none."""

    self_ns: Ints
    total_ns: Ints
    reason: Ints


def recorded_waits(functions: pd.DataFrame, waited: ThreadWaits, record: Record) -> FunctionWaits:
    """Each wait is the innermost frame's that was open on its thread, and of all above it."""
    trace = record.trace
    parts = _frames_waiting(trace, waited, python_lanes(record))
    function = function_of(trace, functions)
    parts = parts[function[parts["frame"]] >= 0]
    own = np.zeros(len(functions), np.int64)
    np.add.at(own, function[parts["frame"]], parts["ns"])
    by = _with_callers(trace, parts, function)
    by = by.groupby(["function", "reason"])["ns"].sum().reset_index()
    total = np.zeros(len(functions), np.int64)
    np.add.at(total, by["function"], by["ns"])
    main = np.full(len(functions), NONE, np.int64)
    by = by.sort_values("ns", kind="stable")
    main[by["function"]] = by["reason"]  # the last one assigned stays: the longest
    return FunctionWaits(own, total, main)


def _frames_waiting(trace: Trace, waited: ThreadWaits, lanes: Ints) -> pd.DataFrame:
    """``frame`` (row), ``reason`` and ``ns`` of every piece of a wait inside one frame."""
    tracks, table = trace.tracks, waited.table
    parts = []
    name, lane = trace.slices["name"].cat, tracks["lane"].to_numpy()
    runs = np.array([RUNS_BACKWARD in str(one) for one in name.categories] + [False], bool)
    code = np.append(name.codes.to_numpy(), NONE)
    backward = table["backward"].to_numpy(bool)
    late = np.flatnonzero(backward)
    of_lane = links.rows_by(np.where(backward, NONE, table["lane"].to_numpy()))
    for track in np.flatnonzero((tracks["kind"] == "python") & np.isin(lane, lanes)):
        pieces = trace.index.segments(int(track))
        calling = runs[code[pieces.row]]
        here = of_lane.get(int(lane[track]), np.empty(0, np.intp))
        for rows, usable in ((here, pieces.row >= 0), (late, calling)):
            if len(rows) and usable.any():
                met = _overlaps(table.iloc[rows], pieces.start[usable], pieces.end[usable])
                parts.append(met.assign(frame=pieces.row[usable][met["at"]]))
    found = pd.concat(parts) if parts else pd.DataFrame({"frame": [], "reason": [], "ns": []})
    return found[["frame", "reason", "ns"]].astype(np.int64).reset_index(drop=True)


def _overlaps(rows: pd.DataFrame, start: Ints, end: Ints) -> pd.DataFrame:
    """Where waits meet disjoint, sorted stretches: ``at`` (of the stretch), ``reason``, ``ns``."""
    begins, ends = rows["start_ns"].to_numpy(), rows["end_ns"].to_numpy()
    first = np.searchsorted(end, begins, side="right")
    count = np.maximum(np.searchsorted(start, ends, side="left") - first, 0)
    wait = np.repeat(np.arange(len(rows)), count)
    at = np.arange(count.sum()) - np.repeat(np.cumsum(count) - count, count) + first[wait]
    ns = np.minimum(ends[wait], end[at]) - np.maximum(begins[wait], start[at])
    return pd.DataFrame({"at": at, "reason": rows["reason"].to_numpy()[wait], "ns": ns})


def function_of(trace: Trace, functions: pd.DataFrame) -> Ints:
    """Per slice the row of its function; -1 for what is no frame of one of them."""
    keys = zip(functions["file"], functions["line"], functions["name"], strict=True)
    number = {(str(f), int(line), str(name)): row for row, (f, line, name) in enumerate(keys)}
    names = trace.slices["name"].cat
    of_name = [number.get(function_place(str(name)), NONE) for name in names.categories]
    found = np.array([*of_name, NONE], np.int64)[names.codes.to_numpy()]
    frames = (trace.slices["category"] == "python_function").to_numpy()
    return np.append(np.where(frames, found, NONE), NONE)  # the last one answers for parent -1


def _with_callers(trace: Trace, parts: pd.DataFrame, function: Ints) -> pd.DataFrame:
    """``function``, ``reason`` and ``ns`` of every frame and all above it, each function once.

    From the deepest frames up: what waits for one reason goes on as one, however much it was.
    """
    parent, (part, why) = trace.slices["parent"].to_numpy(), parts[["frame", "reason"]].to_numpy().T
    kind = np.where(function < 0, function.max(initial=0) + 1, function)[:-1]
    counted = (function[:-1] >= 0) & ~links.below_its_like(parent, kind)
    depth = links.depths(parent)[part]
    reasons, of_depth = int(why.max(initial=0)) + 1, links.rows_by(depth)
    keys, length = part * reasons + why, parts["ns"].to_numpy()
    key, ns, found = keys[:0], length[:0], []
    for level in range(int(depth.max(initial=-1)), -1, -1):
        here = of_depth.get(level, np.empty(0, np.intp))
        key, at = np.unique(np.append(key, keys[here]), return_inverse=True)
        sums = np.zeros(len(key), np.int64)
        np.add.at(sums, at.reshape(-1), np.append(ns, length[here]))
        frame, reason = np.divmod(key, reasons)
        found.append(np.stack([function[frame], reason, sums])[:, counted[frame]])
        above = parent[frame].astype(np.int64)
        key, ns = (above * reasons + reason)[above >= 0], sums[above >= 0]
    table = np.concatenate(found, axis=1) if found else np.empty((3, 0), np.int64)
    return pd.DataFrame(dict(zip(("function", "reason", "ns"), table, strict=True)))


FUNCTION = re.compile(r"(?!Compiled)[A-Za-z_]\w*(?<!Undefined)Backward")
"""Autograd's nodes of functions that are written in Python, ``MyFunctionBackward``.

torch's own nodes have a number (``MulBackward0``), those of C++ extensions a namespace. What
``CompiledFunction`` runs itself may be compiled code.
Source: torch/autograd/function.py, ``FunctionMeta``.
"""
ENGINE_OWN = re.compile(rf"{re.escape(BACKWARD)}: .*|torch::autograd::AccumulateGrad")
"""Where the engine runs hooks of tensors and of nodes."""
HOOK_NS = 50_000
"""What the engine does itself between two nodes takes a few microseconds."""


def python_functions(trace: Trace) -> Mask:
    """Which ops are an ``autograd.Function`` in Python, forward or backward: their own time is its.

    A forward is known by the node that it has in the same trace.
    """
    ops = trace.index.is_op
    nodes = ops & trace.index.matching(FUNCTION) & ~is_engine(trace.slices["name"])
    names = {str(name) for name in trace.slices["name"][nodes].unique()}
    forward = frozenset(name.removesuffix("Backward") for name in names)
    return nodes | (ops & trace.index.named(forward))


def in_hooks(record: Record, start: Ints, end: Ints, own: Mask) -> Mask:
    """Which of these stretches of time, ``own`` the engine's innermost ones, ran Python hooks.

    Those that are long, if functions that the engine called took about as long, as cProfile saw it.
    Took they far more, then ops ran in them, as where checkpointing runs a forward anew: then it is
    not known. Where Python frames were recorded these tell by themselves.
    """
    long = own & (end - start >= HOOK_NS)
    if record.calls is None or (record.trace.tracks["kind"] == "python").any():
        return np.zeros(len(start), bool)
    took = _called_by_the_engine(record.calls)
    all_long = int((end - start)[long].sum())
    return long & (all_long / 2 < took < 2 * all_long)


def _called_by_the_engine(calls: Calls) -> int:
    """Time (ns) of the functions that ``run_backward`` called, but for backwards of Functions."""
    file, name = (calls.functions[key] for key in ("file", "name"))
    engine = ((file == "~") & name.str.contains("run_backward", regex=False)).to_numpy(bool)
    node = ((name == "apply") & file.str.endswith("function.py")).to_numpy(bool)
    edges = calls.edges
    hooks = engine[edges["caller"].to_numpy()] & ~node[edges["callee"].to_numpy()]
    return int(edges["total_ns"].to_numpy()[hooks].sum())
