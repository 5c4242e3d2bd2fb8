"""One call of an op as it was recorded: shapes, formats, strides, plain arguments, Python stack."""

from __future__ import annotations

import ast
import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np

from gpuprof_widgets.analyses.columns import group_rows
from gpuprof_widgets.analyses.remembered import remembered
from gpuprof_widgets.trace import links
from gpuprof_widgets.trace.arrays import Codes, Rows
from gpuprof_widgets.trace.index import take
from gpuprof_widgets.trace.model import Trace
from gpuprof_widgets.trace.owners import EVALUATE
from gpuprof_widgets.trace.schema import NONE

SHAPE_KEYS = ("Input Dims", "Input dims")
"""Arg that holds the shapes, in today's files and in those of torch 1.8."""
TYPES, STRIDES, CONCRETE = "Input type", "Input Strides", "Concrete Inputs"

HIDDEN_FRAMES = (
    ("autograd/__init__", "_make_grads"),
    ("autograd/__init__", "backward"),
    ("torch/tensor", "backward"),
)
"""Frames that torch takes out of a stack: the module and the function."""

Shape = Sequence[int]
Answer = TypeVar("Answer")

FORMATS = {
    "double": ("fp64", 8),
    "float": ("fp32", 4),
    "c10::Half": ("fp16", 2),
    "c10::BFloat16": ("bf16", 2),
    "c10::Float8_e4m3fn": ("fp8", 1),
    "c10::Float8_e4m3fnuz": ("fp8", 1),
    "c10::Float8_e5m2": ("fp8", 1),
    "c10::Float8_e5m2fnuz": ("fp8", 1),
    "signed char": ("int8", 1),
    "unsigned char": ("", 1),
    "c10::complex<double>": ("", 16),
    "c10::complex<float>": ("", 8),
    "c10::complex<c10::Half>": ("", 4),
    "long int": ("", 8),
    "long": ("", 8),
    "int": ("", 4),
    "short int": ("", 2),
    "short": ("", 2),
    "bool": ("", 1),
}
"""Number format (see `known_metadata.DTYPES`, "" for others) and its bytes, by torch's name."""


@dataclass(frozen=True)
class Call:
    """Shapes, types, strides and plain values of one call's arguments, by position.

    A plain argument (a number, a list of numbers) has an empty shape and no tensor type; a tensor
    has no plain value.
    """

    name: str
    dims: Sequence[Any]
    types: Sequence[str]
    strides: Sequence[Any]
    concrete: Sequence[str]

    def shape(self, position: int) -> Shape:
        """Return the shape of the tensor at that position; raise ValueError if there is none."""
        if not self.is_tensor(position):
            raise ValueError(f"argument {position} of {self.name} is no recorded tensor")
        shape: Shape = self.dims[position]
        return shape

    def is_tensor(self, position: int) -> bool:
        """Return whether a single tensor of a known format was recorded at that position."""
        is_known = position < min(len(self.dims), len(self.types))
        return is_known and self.types[position] in FORMATS

    def tensors(self) -> list[int]:
        """Return the positions of all tensors."""
        return [position for position in range(len(self.dims)) if self.is_tensor(position)]

    def size(self, position: int) -> int:
        """Return the bytes of one element of the tensor at that position."""
        return FORMATS[self.types[position]][1]

    def value(self, position: int) -> Any:
        """Return the plain argument at that position; raise an error if it was not recorded."""
        return ast.literal_eval(self.concrete[position])

    @property
    def dtype(self) -> str:
        """Number format of the first tensor that has one; 0-d tensors come last; or ""."""
        arrays_first = sorted(self.tensors(), key=lambda position: not self.dims[position])
        formats = (FORMATS[self.types[position]][0] for position in arrays_first)
        return next((name for name in formats if name), "")


def of_calls(trace: Trace, rows: Rows, answer: Callable[[Call], Answer]) -> list[Answer]:
    """Return the answer for the call of each row, computed once per distinct call."""
    calls, numbers = distinct_calls(trace, rows)
    answers = [answer(call) for call in calls]
    return [answers[number] for number in numbers.tolist()]


def distinct_calls(trace: Trace, rows: Rows) -> tuple[list[Call], Rows]:
    """Return the different calls of these rows, and for each row the number of its call."""
    shapes = next((key for key in SHAPE_KEYS if key in trace.args), SHAPE_KEYS[0])
    args = {key: trace.index.arg(key) for key in (shapes, TYPES, STRIDES, CONCRETE)}
    codes = {key: code[rows] for key, (code, _) in args.items()}
    number, first = group_rows({"name": trace.index.name[rows], **codes})
    fields = []
    for key, column in codes.items():
        values = [value if isinstance(value, list | tuple) else () for value in args[key][1]]
        fields.append([values[code] if code >= 0 else () for code in column[first].tolist()])
    names = trace.index.names_of(rows[first])
    return list(itertools.starmap(Call, zip(names, *fields, strict=True))), number


def shape_text(dims: Any) -> str:
    """Return ``[[8, 3, 16, 16], [8, 3, 3, 3], []]``; a list of tensors is ``[]``, as in torch."""
    if not isinstance(dims, list | tuple):
        return str(dims)
    sequence = (list, tuple)
    lists = [
        isinstance(dim, sequence) and any(isinstance(size, sequence) for size in dim)
        for dim in dims
    ]
    return str([[] if of_lists else dim for of_lists, dim in zip(lists, dims, strict=True)])


def shape_codes(trace: Trace) -> tuple[Codes, list[str]]:
    """Return per slice the number of its shape text (-1: none was recorded), and the texts."""
    codes = np.full(len(trace), NONE, np.int32)
    number: dict[str, int] = {}
    for place, values in map(trace.index.arg, SHAPE_KEYS):
        written = (shape_text(dims) for dims in values)
        code = [NONE if text == "[]" else number.setdefault(text, len(number)) for text in written]
        codes = np.where(place >= 0, take(np.array(code, np.int32), place), codes)
    return codes, list(number)


@remembered
def frame_of(trace: Trace) -> Codes:
    """Return per slice of a CPU track the innermost Python frame open when it starts; or -1.

    Only frames count: a `record_function` region outlasts the frame of its ``__enter__``, which
    does not call what the region holds.
    """
    index = trace.index
    frame = np.full(len(trace), NONE, np.int32)
    kind, lane = (trace.tracks[key].to_numpy() for key in ("kind", "lane"))
    ops_of_lane = links.rows_by(np.where(kind == "cpu", lane, NONE)[index.track])
    for python in np.flatnonzero(kind == "python").tolist():
        ops = ops_of_lane.get(int(lane[python]), np.empty(0, np.intp))
        frame[ops] = index.innermost_open(index.rows_of_track(python), index.ts[ops])
    return frame


@remembered
def calling_frame(trace: Trace) -> Codes:
    """Return per slice the innermost Python frame that called it; -1: none is known.

    GPU work was called where it was launched, a backward op where its forward op was.
    """
    launcher = np.where(trace.index.is_gpu, trace.index.launcher, np.arange(len(trace)))
    return take(frame_of(trace), take(_stack_source(trace), launcher))


def stack_codes(trace: Trace, depth: int) -> tuple[Codes, list[tuple[str, ...]]]:
    """Return per slice the number of its stack of at most ``depth`` frames, and the stacks.

    Stacks are innermost first. A backward op has the stack of its forward op, as in torch, and none
    if that is unknown.
    """
    index, texts = trace.index, trace.index.names
    frame = take(frame_of(trace), _stack_source(trace))
    hidden = [any(all(part in name for part in pair) for pair in HIDDEN_FRAMES) for name in texts]
    is_hidden = np.array(hidden, bool)[index.name]
    shown = links.itself_or_ancestor(index.parent, ~is_hidden)
    codes, width = np.zeros(len(trace), np.int64), len(texts) + 1
    stacks: list[tuple[str, ...]] = [()]
    for _ in range(depth):
        frame = take(shown, frame)
        if not (frame >= 0).any():
            break
        # One more frame for each stack, none where there is no further one.
        used, codes = np.unique(codes * width + take(index.name, frame) + 1, return_inverse=True)
        pairs = [divmod(int(key), width) for key in used]
        stacks = [stacks[code] + ((texts[name - 1],) if name else ()) for code, name in pairs]
        frame = take(index.parent, frame)
    return codes.reshape(-1).astype(np.int32), stacks


def _stack_source(trace: Trace) -> Codes:
    """Return the slice whose stack counts: itself, or below a backward node the forward op.

    A node is ``XBackward0`` within ``...::evaluate_function: XBackward0``.
    """
    index = trace.index
    number = {text: code for code, text in enumerate(index.names)}
    node_in = [
        number.get(text.removeprefix(EVALUATE), NONE) if text.startswith(EVALUATE) else NONE
        for text in index.names
    ]
    expected = take(np.array(node_in, np.int64), take(index.name, index.parent))
    is_node = (expected >= 0) & (expected == index.name)
    node = links.itself_or_ancestor(index.parent, is_node)
    forward = index.column("forward")
    return np.where(node >= 0, forward[node], np.arange(len(trace))).astype(np.int32)
