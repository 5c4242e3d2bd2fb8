"""What each block of memory was for: torch's own word where there is one, else ours by rules.

The words are those of torch.profiler's memory profiler (``torch/profiler/_memory_profiler.py``,
class ``Category``). It needs shapes, stacks and a Python session to follow the data; without them
these rules decide, the first that applies:

1. what a module's parameter, its ``.grad`` or an optimizer's state was seen to hold is that;
2. memory from before the record that nobody was seen to hold is "before the record";
3. what was released in the outermost op (or optimizer step) that allocated it is "temporaries";
4. what an optimizer's step left behind is "optimizer state" (SGD's momentum buffers are cloned in
   the first step: ``torch/optim/sgd.py``);
5. of what was allocated in a backward pass, "gradients" outlive the pass (``AccumulateGrad`` keeps
   them: ``torch/csrc/autograd/functions/accumulate_grad.h``), the rest is "autograd detail";
6. what the DataLoader's fetch left behind, and copies to another device or type made outside of any
   module, are "inputs";
7. what was allocated in a module, or in an op that a backward op belongs to, and lived when the
   next backward pass began is "activations": saved for it, or an output;
8. what was released before another backward pass began is "temporaries", the rest "other".

They are PyTorch's: of TensorFlow and MegEngine (where one cannot tell a variable from a temporary
by its life) all that lives in the record is "other".
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from gpuprof_widgets.analyses.memory_blocks import Blocks, MemoryEvents
from gpuprof_widgets.analyses.op_calls import frame_of
from gpuprof_widgets.analyses.owners import module_frames
from gpuprof_widgets.analyses.remembered import remembered
from gpuprof_widgets.analyses.waits import is_dataloader
from gpuprof_widgets.trace import links
from gpuprof_widgets.trace.model import Record, Trace
from gpuprof_widgets.trace.schema import (
    FRAMEWORK,
    HELD_AS,
    HELD_BY,
    MEGENGINE,
    MEMORY_EVENT,
    NONE,
    TENSORFLOW,
    TORCH_CATEGORY,
)

Mask = npt.NDArray[np.bool_]
Ints = npt.NDArray[np.int64]
Texts = npt.NDArray[np.object_]

PARAMETERS, GRADIENTS, OPTIMIZER_STATE = "parameters", "gradients", "optimizer state"
INPUTS, ACTIVATIONS, AUTOGRAD_DETAIL = "inputs", "activations", "autograd detail"
TEMPORARIES, OTHER, BEFORE = "temporaries", "other", "before the record"

CATEGORIES = (
    BEFORE,
    PARAMETERS,
    OPTIMIZER_STATE,
    INPUTS,
    GRADIENTS,
    ACTIVATIONS,
    AUTOGRAD_DETAIL,
    OTHER,
    TEMPORARIES,
)
"""In the order in which a plot stacks them: what lives longest below."""

BACKWARD = re.compile(r"autograd::engine::evaluate_function: .*")
OPTIMIZER_STEP = re.compile(r"Optimizer\.step#.*")
COPIES = re.compile(r"aten::(to|_to_copy|pin_memory|cuda)")
FOREVER = np.iinfo(np.int64).max


def categories(record: Record, events: MemoryEvents, found: Blocks) -> tuple[Texts, Texts]:
    """Per block its category, and by what it was classified: "torch" or "rules"."""
    trace = record.trace
    if record.metadata.get(FRAMEWORK) in (TENSORFLOW, MEGENGINE):
        category = np.where(found.begin < 0, BEFORE, OTHER).astype(object)
    else:
        category = _by_rules(trace, events, found)
    held = seen(trace, events, found, HELD_AS)
    category = np.where(held != "", held, category)
    of_torch = seen(trace, events, found, TORCH_CATEGORY)
    by = np.where(of_torch != "", "torch", "rules").astype(object)
    return np.where(of_torch != "", of_torch, category).astype(object), by


def seen(trace: Trace, events: MemoryEvents, found: Blocks, key: str) -> Texts:
    """Per block what its allocation, else its release, carries under one of our keys, or ""."""
    texts = np.full(len(found), "", object)
    if key not in trace.args:
        return texts
    values: pd.Series = trace.args[key]
    for position in (found.end, found.begin):
        known = position >= 0
        rows = events.row[position[known]]
        given = values.reindex(rows, fill_value="").to_numpy(object)
        texts[known] = np.where(given != "", given, texts[known])
    return texts


def holders(trace: Trace, events: MemoryEvents, found: Blocks) -> Texts:
    """Per block the name of the parameter, gradient or state that was seen to hold it, or ""."""
    return seen(trace, events, found, HELD_BY)


def _by_rules(trace: Trace, events: MemoryEvents, found: Blocks) -> Texts:
    if not len(found):
        return np.empty(0, object)
    where = Where(trace, events, found)
    category = np.full(len(found), OTHER, object)
    category[where.ended < where.next_pass] = TEMPORARIES
    category[where.forward & (where.ended >= where.next_pass)] = ACTIVATIONS
    category[where.loaded | (where.copied & ~where.in_module)] = INPUTS
    survives = where.in_backward & (where.ended > where.pass_end)
    category[where.in_backward] = np.where(survives, GRADIENTS, AUTOGRAD_DETAIL)[where.in_backward]
    category[where.in_step] = OPTIMIZER_STATE
    category[where.ended <= where.scope_end] = TEMPORARIES
    category[found.begin < 0] = BEFORE
    return category


class Where:
    """Per block: in what it was allocated, and how its life lies to the backward passes (ns)."""

    def __init__(self, trace: Trace, events: MemoryEvents, found: Blocks) -> None:
        slices = trace.slices
        row = np.where(found.begin >= 0, events.row[found.begin], NONE)
        times = np.append(events.ts, FOREVER)
        began = times[found.begin]
        self.ended = np.where(found.end >= 0, times[found.end], FOREVER)
        parent = slices["parent"].to_numpy()
        backward = _backward(trace)
        self.in_backward = _is_inside(parent, backward)[row]
        step = trace.index.matching(OPTIMIZER_STEP)
        self.in_step = _is_inside(parent, step)[row]
        self.in_module = _is_inside(parent, trace.index.in_category("module"))[row]
        if not self.in_module.any():
            self.in_module = _in_module_frame(trace)[row]
        self.forward = (self.in_module | _is_inside(parent, _differentiated(trace))[row]) & ~(
            self.in_backward | self.in_step
        )
        loading = is_dataloader(trace)
        end = slices["ts"].to_numpy() + slices["dur"].to_numpy()
        self.loaded = _is_inside(parent, loading)[row]
        self.copied = _is_inside(parent, trace.index.matching(COPIES))[row]
        scope = links.outermost(parent, trace.index.is_op | backward | step | loading)
        self.scope_end = np.append(end, NONE)[np.append(scope, NONE)[row]]
        self.next_pass, self.pass_end = _passes(trace, backward, began)


def _is_inside(parent: npt.NDArray[np.int32], wanted: Mask) -> Mask:
    """Per slice whether it or an ancestor is one of these; False at the end, for row -1."""
    return np.append(wanted | (links.nearest_ancestor(parent, wanted) >= 0), False)


def _backward(trace: Trace) -> Mask:
    """Which slices run a node of the backward pass, whatever torch wrote them."""
    linked = trace.slices["forward"].to_numpy() >= 0
    return np.asarray(trace.index.matching(BACKWARD) | (linked & trace.index.is_op))


def _differentiated(trace: Trace) -> Mask:
    """Which ops a backward op belongs to: all of the forward op's sequence number and thread."""
    slices = trace.slices
    forward = slices["forward"].to_numpy()
    rows = np.unique(forward[forward >= 0])
    sequence, track = slices["sequence"].to_numpy(), slices["track"].to_numpy()
    wanted = pd.MultiIndex.from_arrays([sequence[rows], track[rows]])
    own = pd.MultiIndex.from_arrays([sequence, track])
    named = (sequence >= 0) & own.isin(wanted) & (forward < 0)
    named[rows] = True
    return np.asarray(named)


def _in_module_frame(trace: Trace) -> Mask:
    frames = module_frames(trace)
    if not frames.any():
        return np.zeros(len(trace) + 1, bool)
    inside = _is_inside(trace.slices["parent"].to_numpy(), frames)
    return np.append(inside[frame_of(trace)], False)


def _passes(trace: Trace, backward: Mask, began: Ints) -> tuple[Ints, Ints]:
    """Per moment: when the next backward pass begins, and when the one going on ends.

    A pass is a run of backward nodes without a differentiated op between them; `FOREVER` where
    there is no other pass, and before the first one the end of nothing: -1.
    """
    slices = trace.slices
    parent = slices["parent"].to_numpy()
    inside = links.nearest_ancestor(parent, backward) >= 0
    outer = np.flatnonzero(backward & ~inside)
    forward = np.flatnonzero(_differentiated(trace) & ~inside)
    ts, dur = slices["ts"].to_numpy(), slices["dur"].to_numpy()
    rows = np.concatenate([outer, forward])
    is_backward = np.append(np.ones(len(outer), bool), np.zeros(len(forward), bool))
    order = np.argsort(ts[rows], kind="stable")
    rows, is_backward = rows[order], is_backward[order]
    opens = is_backward & ~np.append(False, is_backward[:-1])[: len(rows)]
    number = np.cumsum(opens)[is_backward] - 1
    start = ts[rows[opens]]
    end = np.zeros(len(start), np.int64)
    np.maximum.at(end, number, (ts + dur)[rows[is_backward]])
    following = np.searchsorted(start, began, side="right")
    return np.append(start, FOREVER)[following], np.append(end, NONE)[following - 1]


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
