"""How much of each Python function was waiting for the GPU, estimated from cProfile's table.

cProfile has no timestamps: which call waited is not known. But it names built-in functions, and
the waits of the ops behind them were measured; who called them is known by their shares of time.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from gpuprof_widgets.analyses.call_graph import carried_up
from gpuprof_widgets.analyses.iterations import calls_per_traced_step
from gpuprof_widgets.analyses.line_sources import LineSource, line_sources
from gpuprof_widgets.analyses.python_waits import RUNS_BACKWARD, FunctionWaits
from gpuprof_widgets.analyses.thread_waits import ThreadWaits, run_lane
from gpuprof_widgets.trace.callers import BACKWARD
from gpuprof_widgets.trace.model import Calls, Record
from gpuprof_widgets.trace.schema import NONE

Amounts = npt.NDArray[np.float64]

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
