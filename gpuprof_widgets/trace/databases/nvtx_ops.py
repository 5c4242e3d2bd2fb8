"""NVTX ranges that PyTorch's `emit_nvtx` pushed, as the ops they are.

Their text is ``aten::mul, seq = 12, op_id = 5, sizes = [[64, 32], []], input_op_ids = [(4,0)]``:
the op, its autograd sequence number if it has one, its number in the run (since torch 1.11), and
with ``record_shapes`` the shapes of its inputs (flattened: those of a list of tensors stand one by
one) and who made them. Source: `getNvtxStr` in torch/csrc/profiler/util.cpp; before torch 1.5
``stashed seq=12`` on backward ops (torch/csrc/autograd/profiler.cpp of that time).
"""

from __future__ import annotations

import heapq
import re
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple

import msgspec
import numpy as np
import pandas as pd
from numpy.typing import NDArray

from gpuprof_widgets.trace import links
from gpuprof_widgets.trace.databases.activity import Group, Values, of_one, texts
from gpuprof_widgets.trace.databases.activity import texts as as_text
from gpuprof_widgets.trace.databases.sqlite_tables import MISSING, Ints, Texts
from gpuprof_widgets.trace.schema import NVTX_RANGE

_SEQUENCE = re.compile(r", (?:stashed )?seq ?= ?(\d{1,18})$")
_NUMBER = re.compile(r", op_id = \d+$")
_PLAIN_OP = re.compile(r"(aten|prim|prims|torch|autograd|c10d|quantized|torchvision)::\S")
_EMITTED_OP = re.compile(
    r"[\w.]+::|(record_param_comms|TorchDynamo Cache Lookup|triton_\w+)$|Torch-Compiled Region"
)
_BACKWARD = re.compile(
    r"(autograd::engine::evaluate_function: )?[\w:<>]*(Backward\d*|AccumulateGrad)$"
)
_MARK = re.compile(r"aten::|autograd::engine::evaluate_function: ")
_LINE = re.compile(r"(\d{1,9}): ")

_shapes = msgspec.json.Decoder(list[list[int]]).decode


class Range(NamedTuple):
    """What the text of a range says: its name, category, sequence number and shapes.

    ``emitted``: it has the marks of `emit_nvtx`, and is no name that somebody pushed by hand.
    """

    name: str
    category: str
    sequence: int = MISSING
    shapes: Any = None
    inputs: str | None = None
    line: int = MISSING
    emitted: bool = True


@dataclass(frozen=True)
class Ranges:
    """The same for many ranges, column by column; ``backward``: nodes of a backward pass."""

    name: Texts
    category: Texts
    sequence: Ints
    shapes: Texts
    inputs: Texts
    line: Ints
    backward: NDArray[np.bool_]
    emitted: NDArray[np.bool_]


def read_ranges(texts: Texts) -> Ranges:
    """What these ranges are; equal texts are read once.

    torch marks some ops a second time by less of a name (``detach`` inside of ``aten::detach``, a
    node inside of the engine's call of it): what was emitted under such a name is an op as well.
    """
    known = {text: read_range(text) for text in set(texts.tolist())}
    ops = {_MARK.sub("", one.name) for one in known.values() if one.category == "cpu_op"}
    known = {text: _as_op(one) if one.name in ops else one for text, one in known.items()}
    found = [known[text] for text in texts.tolist()]
    lists, inputs = np.empty(len(found), object), np.empty(len(found), object)
    lists[:] = [one.shapes for one in found]
    inputs[:] = [one.inputs for one in found]
    back = {name: bool(_BACKWARD.match(name)) for name in {one.name for one in known.values()}}
    return Ranges(
        name=np.array([one.name for one in found], object),
        category=np.array([one.category for one in found], object),
        sequence=np.array([one.sequence for one in found], np.int64),
        shapes=lists,
        inputs=inputs,
        line=np.array([one.line for one in found], np.int64),
        backward=np.array([back[one.name] for one in found], bool),
        emitted=np.array([one.emitted for one in found], bool),
    )


def read_range(text: str) -> Range:
    """What the text of one range says; a text that is not `emit_nvtx`'s is an annotation's name."""
    name, inputs = _cut(text, ", input_op_ids = ")
    name, written = _cut(name, ", sizes = ")
    shapes = _listed(written)
    if written is not None and shapes is None:
        return Range(text, "user_annotation", emitted=False)
    numbered = _NUMBER.search(name)
    name = name[: numbered.start()] if numbered else name
    sequence = _SEQUENCE.search(name)
    name = name[: sequence.start()] if sequence else name
    emitted = bool(numbered or sequence or written is not None)
    if not emitted:
        kind = "cpu_op" if _PLAIN_OP.match(text) else "user_annotation"
        return Range(text, kind, emitted=False)
    if numbered and (line := _LINE.match(name)):
        return Range(name, "cell_line", line=int(line[1]))
    is_op = sequence or written is not None or _EMITTED_OP.match(name)
    return Range(
        name,
        "cpu_op" if is_op else "user_annotation",
        int(sequence[1]) if sequence else MISSING,
        shapes,
        inputs,
    )


def forward_threads(ranges: Ranges, process: Ints, thread: Ints) -> Ints:
    """A number (from 1) for each thread that ran backward nodes, on those nodes.

    NVTX does not say on which thread the forward ran. A backward thread (there is one for each
    device) belongs to the one that has most of its sequence numbers.
    """
    numbers = np.full(len(process), MISSING, np.int64)
    rows = np.flatnonzero(ranges.backward & (ranges.sequence != MISSING))
    ids = pd.DataFrame({"process": process[rows], "thread": thread[rows]})
    numbers[rows] = ids.groupby(["process", "thread"], sort=False).ngroup().to_numpy() + 1
    return numbers


def cells_of_lines(ranges: Ranges, process: Ints, thread: Ints, start: Ints, end: Ints) -> Texts:
    """Of lines the name of the cell: the range around them that was pushed by hand."""
    cells: Texts = np.full(len(start), None, object)
    lines = np.flatnonzero(ranges.line != MISSING)
    by_hand = np.flatnonzero(~ranges.emitted)
    lane = np.asarray(pd.DataFrame({"p": process, "t": thread}).groupby(["p", "t"]).ngroup())
    row = links.latest_before(lane[lines], start[lines], lane[by_hand], start[by_hand])
    around = by_hand[row] if len(by_hand) else row
    inside = (row >= 0) & (start[around] <= start[lines]) & (end[lines] <= end[around])
    cells[lines] = np.where(inside, ranges.name[around], "")
    return cells


def emitted_group(
    start: Ints,
    end: Ints,
    texts: Texts,
    process: Ints,
    thread: Ints,
    read: NDArray[np.bool_],
    *,
    several: bool,
) -> Group:
    """Ranges on their threads, ops where `emit_nvtx` pushed them; only those to be ``read`` are.

    Each process counts its own sequence numbers: where there are ``several``, their bits above
    the 40th tell them apart.
    """
    ranges = read_ranges(np.where(read, texts, ""))
    sequence = ranges.sequence
    if several:
        offset = pd.factorize(process)[0].astype(np.int64) << 40
        sequence = np.where(sequence == MISSING, MISSING, sequence + offset)
    args: dict[str, Values] = {
        "Sequence number": sequence,
        "Fwd thread id": forward_threads(ranges, process, thread),
        "Input Dims": ranges.shapes,
        "Input op ids": ranges.inputs,
        "line": ranges.line,
        "cell": cells_of_lines(ranges, process, thread, start, end),
    }
    return Group(
        start,
        end - start,
        np.where(read, ranges.name, texts),
        ranges.category,
        as_text(process),
        as_text(thread),
        args,
    )


def _as_op(one: Range) -> Range:
    return one._replace(category="cpu_op") if one.emitted else one


def _cut(text: str, mark: str) -> tuple[str, str | None]:
    """The text before its last mark, and what stands behind it."""
    before, found, behind = text.rpartition(mark)
    return (before, behind) if found else (text, None)


@lru_cache(maxsize=10_000)
def _listed(written: str | None) -> Any:
    try:
        return None if written is None else _shapes(written)
    except msgspec.DecodeError:
        return None


ROW = "NVTX start/end"
UNNAMED = "(unnamed range)"


def crossing_group(start: Ints, end: Ints, said: Texts, process: Ints) -> Group:
    """Ranges that were started and ended by their number, on rows of their own.

    They may begin on one thread, end on another, and cross all others: as many rows as are open at
    once, and they own nothing.
    """
    rows = _rows(process, start, end)
    thread = np.array([ROW if row == 0 else f"{ROW} {row + 1}" for row in rows], object)
    category = of_one(NVTX_RANGE, len(start))
    return Group(start, end - start, said, category, texts(process), thread)


def _rows(process: Ints, start: Ints, end: Ints) -> list[int]:
    """Per range the first row of its process that is free when it starts."""
    free: dict[int, list[int]] = {}
    busy: dict[int, list[tuple[int, int]]] = {}
    found = [0] * len(start)
    for at in np.argsort(start, kind="stable").tolist():
        owner = int(process[at])
        ends, rows = busy.setdefault(owner, []), free.setdefault(owner, [])
        while ends and ends[0][0] <= start[at]:
            heapq.heappush(rows, heapq.heappop(ends)[1])
        found[at] = heapq.heappop(rows) if rows else len(ends)
        heapq.heappush(ends, (int(end[at]), found[at]))
    return found
