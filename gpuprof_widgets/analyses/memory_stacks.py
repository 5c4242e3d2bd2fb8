"""Whose memory it is, by the stacks of a CUDA memory snapshot: it has neither ops nor modules.

``metadata["memory"]`` has the ``frames`` and, as lists of their numbers, the ``stacks``, innermost
first; a ``[memory]`` instant names its stack by number.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from gpuprof_widgets.analyses.memory_categories import (
    ACTIVATIONS,
    AUTOGRAD_DETAIL,
    BEFORE,
    GRADIENTS,
    OPTIMIZER_STATE,
    OTHER,
    PARAMETERS,
    TEMPORARIES,
)
from gpuprof_widgets.analyses.remembered import remembered
from gpuprof_widgets.trace.model import Record
from gpuprof_widgets.trace.schema import MEMORY_EVENT, NONE

STACK = "Stack"
COLUMNS = ("op_name", "line_name", "category", "in_module")

CPP_OP = re.compile(r"\bat::_ops::([a-z_0-9]+?)(?:_[A-Z]\w*|_out)?::(?:call|redispatch)\b")
"""An op's entry in ATen (``torchgen`` writes ``at::_ops::add__Tensor::call``)."""
PYTHON_FRAME = re.compile(r"^(?P<file>.*)\((?P<line>\d+)\): (?P<name>.*)$", re.DOTALL)
CPP_FILE = re.compile(r"\.(?:c|cc|cpp|cu|cuh|h|hpp|so)(?:[.\d]*)$")
LIBRARY = re.compile(
    r"(?:site|dist)-packages[/\\]|[/\\]lib[/\\]python\d|^<frozen "
    r"|(?:^|[/\\])torch[/\\](?:_|amp|autograd|cuda|distributed|fx|jit|nn|optim|overrides|utils)"
)
"""Files that are not the user's own: installed, or of torch (also where `redacted` cut it)."""
GENERATED = re.compile(r"^<(?!frozen |ipython-input|stdin)")
"""Code without a file: what a library has written at run time, or the text of ``python -c``."""

BY_FRAME = (
    (re.compile(r"torch[/\\]optim[/\\]\w+\.py\(\d+\): _?init_group"), OPTIMIZER_STATE),
    (re.compile(r"torch::autograd::AccumulateGrad\b"), GRADIENTS),
    (re.compile(r"torch::autograd::Engine::|: _engine_run_backward$"), AUTOGRAD_DETAIL),
    (
        re.compile(r"torch[/\\]nn[/\\]modules[/\\]module\.py\(\d+\): (?:_apply|convert)$"),
        PARAMETERS,
    ),
)
"""What a frame on the stack says about the memory, the first that applies."""

MODULE_CALL = re.compile(
    r"torch[/\\]nn[/\\]modules[/\\]module\.py\(\d+\): _(?:wrapped_)?call_impl$"
)
UNDECIDED = (TEMPORARIES, OTHER, BEFORE)
"""Categories by rules that know no more than whether a block outlived the record."""


def with_stack_owners(table: pd.DataFrame, record: Record) -> pd.DataFrame:
    """Blocks with the line, op and category that their stacks tell, where nothing else did.

    ``table``: `allocations`, with ``stack`` for blocks from before the record where it is known.
    """
    table = with_stack_lines(table, record)
    told = _told_by_stacks(record, table, "category")
    # What the backward pass leaves behind: as rule 5 of `memory_categories`.
    told[(told == AUTOGRAD_DETAIL) & (table["category"] == OTHER)] = GRADIENTS
    told[(told == "") & _outlive_their_module(record, table)] = ACTIVATIONS
    undecided = table["category"].isin(UNDECIDED) & (table["classified_by"] == "rules")
    category = np.where(undecided & (told != ""), told, table["category"].to_numpy(object))
    return table.assign(category=pd.Series(category, table.index, dtype=object))


def _outlive_their_module(record: Record, table: pd.DataFrame) -> npt.NDArray[np.bool_]:
    """Blocks that a module allocated and that no module released, nor the end of the history.

    The backward pass releases what was saved for it: in autograd's own thread, which has no Python
    on its stacks. So a release without a stack counts, if others have one.
    """
    released = table.drop(columns="stack", errors="ignore").assign(row=table["release"])
    known = _stack_numbers(record, released, len(_of_stacks(record))) != NONE
    in_module = _told_by_stacks(record, table, "in_module") != ""
    at_release = _told_by_stacks(record, released, "in_module") != ""
    alive = (table["release"] == NONE).to_numpy()
    kept = alive | (~at_release & bool(known.any()))
    return np.asarray(in_module & kept & (table["row"] != NONE).to_numpy())


def with_stack_lines(table: pd.DataFrame, record: Record) -> pd.DataFrame:
    """A table with ``row``, ``op_name`` and ``line_name``, these filled in where stacks tell."""
    return table.assign(
        **{
            column: table[column].where(table[column] != "", _told_by_stacks(record, table, column))
            for column in ("op_name", "line_name")
        }
    )


def _told_by_stacks(record: Record, table: pd.DataFrame, column: str) -> npt.NDArray[np.object_]:
    """Per row of the table what its stack tells, "" where it has none."""
    owners = _of_stacks(record)
    texts: npt.NDArray[np.object_] = np.append(owners[column].to_numpy(object), "")
    return texts[_stack_numbers(record, table, len(owners))]


def lines_of_stacks(of: Record) -> list[str]:
    """Per stack the user's line at which memory was asked for; "" where it is not known."""
    return [str(line) for line in _of_stacks(of)["line_name"]]


def places_of_slices(of: Record) -> npt.NDArray[np.object_]:
    """Per slice the line, else the op, that its stack tells; "[memory]" where it has none."""
    owners, rows = _of_stacks(of), np.arange(len(of.trace))
    number = _stack_numbers(of, pd.DataFrame({"row": rows}), len(owners))
    op, line = (owners[column].to_numpy(object) for column in ("op_name", "line_name"))
    names = np.append(np.where(line != "", line, op), "")[number]
    return np.where(names != "", names, MEMORY_EVENT).astype(object)


def _stack_numbers(record: Record, table: pd.DataFrame, stacks: int) -> npt.NDArray[np.int64]:
    """Per block the number of its stack, `NONE` where it has none."""
    number = np.full(len(table), NONE, np.int64)
    if "stack" in table:
        number = table["stack"].fillna(NONE).to_numpy(np.int64).copy()
    of_row = record.trace.args.get(STACK)
    row = table["row"].to_numpy(np.int64)
    if of_row is not None:
        numeric = pd.to_numeric(of_row, errors="coerce").reindex(row[row >= 0])
        number[row >= 0] = numeric.fillna(NONE).to_numpy(np.int64)
    return np.where((number >= 0) & (number < stacks), number, NONE)


@remembered
def _of_stacks(record: Record) -> pd.DataFrame:
    """Per stack ``op_name``, ``line_name`` and ``category``, each "" where it does not tell."""
    memory = record.metadata.get("memory") or {}
    frames = [str(text) for text in memory.get("frames") or ()]
    stacks = memory.get("stacks") or ()
    facts = [_fact(text) for text in frames]
    rows = [_told(facts, [n for n in stack if 0 <= n < len(facts)]) for stack in stacks]
    return pd.DataFrame(rows, columns=list(COLUMNS), dtype=object)


Fact = tuple[str, tuple[str, int], str, bool]
"""Of a frame: its op, its line and how foreign that is, its category, if it is a module."""


def _fact(frame: str) -> Fact:
    return _op(frame), _place(frame), _category(frame), bool(MODULE_CALL.search(frame))


def _told(facts: Sequence[Fact], stack: Sequence[int]) -> tuple[str, str, str, str]:
    """The outermost op, the innermost of the user's (or least foreign) lines, the first category.

    Last "module" where one was called.
    """
    own = [facts[number] for number in stack]
    ops = [op for op, _, _, _ in own if op]
    places = [place for _, place, _, _ in own if place[0]]
    line, _ = min(places, key=lambda place: place[1], default=("", 0))
    found = {category for _, _, category, _ in own}
    first = next((category for _, category in BY_FRAME if category in found), "")
    module = "module" if any(is_module for _, _, _, is_module in own) else ""
    return (ops[-1] if ops else ""), line, first, module


def _op(frame: str) -> str:
    found = CPP_OP.search(frame)
    return f"aten::{found[1]}" if found else ""


def _place(frame: str) -> tuple[str, int]:
    """``train.py:12(step)`` of a Python frame, and how foreign it is.

    0: a file of the user's own; 1: generated, which the text of ``python -c`` looks as well; 2: of
    a library.
    """
    found: Any = PYTHON_FRAME.match(frame)
    if not found or CPP_FILE.search(found["file"]) or "::" in found["name"]:
        return "", 0
    foreign = 2 if LIBRARY.search(found["file"]) else int(bool(GENERATED.match(found["file"])))
    name = found["file"].replace("\\", "/").rsplit("/", 1)[-1]
    return f"{name}:{found['line']}({found['name']})", foreign


def _category(frame: str) -> str:
    return next((category for pattern, category in BY_FRAME if pattern.search(frame)), "")
