"""NVTX ranges and marks as events; those that PyTorch's `emit_nvtx` pushed become the ops they are.

Their text is ``aten::mul, seq = 12, op_id = 5, sizes = [[64, 32], []], input_op_ids = [(4,0)]``:
the op, its autograd sequence number if it has one, its number in the run (since torch 1.11), and
with ``record_shapes`` the shapes of its inputs (flattened: those of a list of tensors stand one by
one) and the ops that made them. Source: `getNvtxStr` in torch/csrc/profiler/util.cpp; before torch
1.5 ``stashed seq=12`` on backward ops (torch/csrc/autograd/profiler.cpp of that time).

A range that was pushed and popped nests on its thread and owns what is in it. A range that was
started and ended by its number may begin on one thread, end on another and cross all others: it is
drawn on a row apart and owns nothing.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple

import msgspec
import numpy as np
import pandas as pd
from numpy.typing import NDArray

from gpuprof_widgets.trace import links
from gpuprof_widgets.trace.arrays import Ints
from gpuprof_widgets.trace.databases.activity import Group, Values, as_texts
from gpuprof_widgets.trace.databases.sqlite_tables import MISSING, Texts
from gpuprof_widgets.trace.schema import NVTX_RANGE
from gpuprof_widgets.trace.tracks import lanes

UNNAMED = "(unnamed range)"
CROSSING_ROW = "NVTX start/end"

_SEQUENCE = re.compile(r", (?:stashed )?seq ?= ?(\d{1,18})$")
_NUMBER = re.compile(r", op_id = \d+$")
_PLAIN_OP = re.compile(r"(aten|prim|prims|torch|autograd|c10d|quantized|torchvision)::\S")
_EMITTED_OP = re.compile(
    r"[\w.]+::|(record_param_comms|TorchDynamo Cache Lookup|triton_\w+)$|Torch-Compiled Region"
)
_BACKWARD = re.compile(
    r"(autograd::engine::evaluate_function: )?[\w:<>]*(Backward\d*|AccumulateGrad)$"
)
_PREFIX = re.compile(r"aten::|autograd::engine::evaluate_function: ")
_LINE = re.compile(r"(\d{1,9}): ")

_decode_shapes = msgspec.json.Decoder(list[list[int]]).decode


class Range(NamedTuple):
    """The name, category, sequence number, shapes... in the text of a range.

    ``emitted``: the text has the marks of `emit_nvtx`; otherwise a user pushed the name by hand.
    """

    name: str
    category: str
    sequence: int = MISSING
    shapes: Any = None
    inputs: str | None = None
    line: int = MISSING
    emitted: bool = True


@dataclass(frozen=True)
class NvtxRows:
    """NVTX ranges or marks, times in ns; ``domain`` is None for the default domain."""

    start: Ints
    end: Ints
    text: Texts
    process: Ints
    thread: Ints
    domain: Texts

    def chosen(self, rows: NDArray[Any]) -> NvtxRows:
        """Return these rows."""
        return NvtxRows(**{name: values[rows] for name, values in vars(self).items()})

    def group(
        self, name: Texts, category: Texts | str, thread: Texts, args: Mapping[str, Values]
    ) -> Group:
        """Return the rows as events with these names, categories, threads and args."""
        dur, process = self.end - self.start, as_texts(self.process)
        return Group(
            self.start, dur, name, category, process, thread, {**args, "domain": self.domain}
        )


def emitted_group(rows: NvtxRows, *, several: bool) -> Group:
    """Return pushed ranges on their threads, as ops where `emit_nvtx` pushed them.

    Only ranges of the default domain can be ops. Each process counts its sequence numbers itself:
    where the file has ``several``, the bits above the 40th tell these apart.
    """
    parsed = np.array([domain is None for domain in rows.domain], bool)
    ranges = read_ranges(np.where(parsed, rows.text, ""))
    sequence = ranges["sequence"].to_numpy(np.int64)
    if several:
        offset = pd.factorize(rows.process)[0].astype(np.int64) << 40
        sequence = np.where(sequence == MISSING, MISSING, sequence + offset)
    args: dict[str, Values] = {
        "Sequence number": sequence,
        "Fwd thread id": _forward_threads(ranges, rows),
        "Input Dims": ranges["shapes"].to_numpy(object),
        "Input op ids": ranges["inputs"].to_numpy(object),
        "line": ranges["line"].to_numpy(np.int64),
        "cell": _cells_of_lines(ranges, rows),
    }
    name = np.where(parsed, ranges["name"], rows.text)
    category = ranges["category"].to_numpy(object)
    return rows.group(name, category, as_texts(rows.thread), args)


def crossing_group(rows: NvtxRows) -> Group:
    """Return ranges that cross others, on as many rows of the timeline as are open at once."""
    free = lanes(rows.start, rows.end, rows.process)
    thread = [CROSSING_ROW if row == 0 else f"{CROSSING_ROW} {row + 1}" for row in free.tolist()]
    return rows.group(rows.text, NVTX_RANGE, np.array(thread, object), {})


def mark_group(rows: NvtxRows) -> Group:
    """Return NVTX marks, which end when they start, as instants on their threads."""
    return rows.group(rows.text, "cpu_instant_event", as_texts(rows.thread), {})


def read_ranges(texts: Texts) -> pd.DataFrame:
    """Return a row per text: the columns of `Range`, and ``backward`` for nodes of a backward pass.

    torch marks some ops a second time by part of their name (``detach`` inside of ``aten::detach``,
    a node inside of the engine's call of it): an emitted range with such a name is an op as well.
    """
    parsed = {text: read_range(text) for text in set(texts.tolist())}
    ops = {_PREFIX.sub("", r.name) for r in parsed.values() if r.category == "cpu_op"}
    for text, range_ in parsed.items():
        if range_.emitted and range_.name in ops:
            parsed[text] = range_._replace(category="cpu_op")
    table = pd.DataFrame([*parsed.values()], columns=Range._fields, dtype=object)
    table["backward"] = [bool(_BACKWARD.match(range_.name)) for range_ in parsed.values()]
    place = {text: row for row, text in enumerate(parsed)}
    return table.iloc[[place[text] for text in texts.tolist()]].reset_index(drop=True)


def read_range(text: str) -> Range:
    """Parse the text of one range; a text that `emit_nvtx` did not write is an annotation."""
    name, inputs = _cut(text, ", input_op_ids = ")
    name, sizes = _cut(name, ", sizes = ")
    shapes = _shapes(sizes)
    if sizes is not None and shapes is None:
        return Range(text, "user_annotation", emitted=False)
    numbered = _NUMBER.search(name)
    name = name[: numbered.start()] if numbered else name
    sequence = _SEQUENCE.search(name)
    name = name[: sequence.start()] if sequence else name
    if not (numbered or sequence or sizes is not None):
        category = "cpu_op" if _PLAIN_OP.match(text) else "user_annotation"
        return Range(text, category, emitted=False)
    if numbered and (line := _LINE.match(name)):
        return Range(name, "cell_line", line=int(line[1]))
    is_op = sequence or sizes is not None or _EMITTED_OP.match(name)
    return Range(
        name,
        "cpu_op" if is_op else "user_annotation",
        int(sequence[1]) if sequence else MISSING,
        shapes,
        inputs,
    )


def _cut(text: str, mark: str) -> tuple[str, str | None]:
    """Split the text at its last mark; None behind it where it has none."""
    before, separator, behind = text.rpartition(mark)
    return (before, behind) if separator else (text, None)


@lru_cache(maxsize=10_000)
def _shapes(sizes: str | None) -> Any:
    try:
        return None if sizes is None else _decode_shapes(sizes)
    except msgspec.DecodeError:
        return None


def _forward_threads(ranges: pd.DataFrame, nvtx: NvtxRows) -> Ints:
    """Number the threads that ran backward nodes (from 1), on those nodes.

    NVTX does not record on which thread the forward op ran. A backward thread (one per device)
    belongs to the forward thread that shares most of its sequence numbers.
    """
    numbers = np.full(len(nvtx.start), MISSING, np.int64)
    rows = np.flatnonzero(ranges["backward"] & (ranges["sequence"] != MISSING))
    ids = pd.DataFrame({"process": nvtx.process[rows], "thread": nvtx.thread[rows]})
    numbers[rows] = ids.groupby(["process", "thread"], sort=False).ngroup().to_numpy() + 1
    return numbers


def _cells_of_lines(ranges: pd.DataFrame, rows: NvtxRows) -> Texts:
    """Return for each cell line its cell's name: the range around it that a user pushed."""
    start, end = rows.start, rows.end
    cells: Texts = np.full(len(start), None, object)
    lines = np.flatnonzero(ranges["line"] != MISSING)
    by_hand = np.flatnonzero(~ranges["emitted"].to_numpy(bool))
    ids = pd.DataFrame({"process": rows.process, "thread": rows.thread})
    lane = np.asarray(ids.groupby(["process", "thread"]).ngroup())
    row = links.latest_before(lane[lines], start[lines], lane[by_hand], start[by_hand])
    around = by_hand[row] if len(by_hand) else row
    inside = (row >= 0) & (start[around] <= start[lines]) & (end[lines] <= end[around])
    cells[lines] = np.where(inside, ranges["name"].to_numpy(object)[around], "")
    return cells
