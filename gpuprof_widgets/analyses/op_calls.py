"""One call of an op as it was recorded: shapes, formats, strides, plain arguments, Python stack."""

from __future__ import annotations

import ast
import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
import pandas as pd

from gpuprof_widgets.analyses.columns import group_rows
from gpuprof_widgets.analyses.remembered import remembered
from gpuprof_widgets.trace import links
from gpuprof_widgets.trace.arrays import Codes, Ints, Mask, Rows
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
        return (
            position < len(self.dims)
            and position < len(self.types)
            and (self.types[position] in FORMATS)
        )

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
    fields = [
        [_sequence(args[key][1], code) for code in column[first].tolist()]
        for key, column in codes.items()
    ]
    names = trace.index.names_of(rows[first])
    return list(itertools.starmap(Call, zip(names, *fields, strict=True))), number


def _sequence(values: list[Any], code: int) -> Sequence[Any]:
    value = values[code] if code >= 0 else ()
    return value if isinstance(value, list | tuple) else ()


def shape_text(dims: Any) -> str:
    """Return ``[[8, 3, 16, 16], [8, 3, 3, 3], []]``; a list of tensors is ``[]``, as in torch."""
    if not isinstance(dims, list | tuple):
        return str(dims)
    return str([[] if _holds_lists(dim) else dim for dim in dims])


def shape_codes(trace: Trace) -> tuple[Codes, list[str]]:
    """Return per slice the number of its shape text (-1: none was recorded), and the texts."""
    codes = np.full(len(trace), NONE, np.int32)
    number: dict[str, int] = {}
    for place, values in map(trace.index.arg, SHAPE_KEYS):
        written = (shape_text(dims) for dims in values)
        code = [NONE if text == "[]" else number.setdefault(text, len(number)) for text in written]
        codes = np.where(place >= 0, np.array([*code, NONE], np.int32)[place], codes)
    return codes, list(number)


def _holds_lists(dim: Any) -> bool:
    return isinstance(dim, list | tuple) and any(isinstance(size, list | tuple) for size in dim)


@remembered
def frame_of(trace: Trace) -> Codes:
    """Return per slice of a CPU track the innermost Python frame open when it starts; or -1.

    Only frames count: a `record_function` region outlasts the frame of its ``__enter__``, which
    does not call what the region holds.
    """
    slices, tracks = trace.slices, trace.tracks
    ts, track = slices["ts"].to_numpy(), slices["track"].to_numpy()
    frame = np.full(len(slices), NONE, np.int32)
    kind, lane = tracks["kind"].to_numpy(), tracks["lane"].to_numpy()
    ops_of_lane = links.rows_by(np.where(kind == "cpu", lane, NONE)[track])
    for python in np.flatnonzero(kind == "python").tolist():
        ops = ops_of_lane.get(int(lane[python]), np.empty(0, np.intp))
        frame[ops] = trace.index.innermost_open(trace.index.rows_of_track(python), ts[ops])
    return frame


@remembered
def calling_frame(trace: Trace) -> Codes:
    """Return per slice the innermost Python frame that called it; -1: none is known.

    GPU work was called where it was launched, a backward op where its forward op was.
    """
    launcher = np.where(trace.index.is_gpu, trace.index.launcher, np.arange(len(trace)))
    source = np.append(_stack_source(trace), NONE)[launcher]
    return np.asarray(np.append(frame_of(trace), NONE)[source], np.int32)


def stack_codes(trace: Trace, depth: int) -> tuple[Codes, list[tuple[str, ...]]]:
    """Return per slice the number of its stack of at most ``depth`` frames, and the stacks.

    Stacks are innermost first. A backward op has the stack of its forward op, as in torch, and none
    if that is unknown.
    """
    frame = frame_of(trace)
    source = _stack_source(trace)
    frame = np.where(source >= 0, frame[source], NONE).astype(np.int32)
    names, parent = trace.slices["name"], trace.slices["parent"].to_numpy()
    hidden = _hidden(names.cat.categories.tolist())[names.cat.codes.to_numpy()]
    name_code = np.append(names.cat.codes.to_numpy(), NONE)
    texts = [str(text) for text in names.cat.categories]
    codes = np.zeros(len(trace), np.int64)
    stacks: list[tuple[str, ...]] = [()]
    for _ in range(depth):
        frame = _not_hidden(frame, hidden, parent)
        if not (frame >= 0).any():
            break
        codes, stacks = _extended(codes, stacks, name_code[frame], texts)
        frame = np.where(frame >= 0, parent[frame], NONE).astype(np.int32)
    return codes.astype(np.int32), stacks


def _extended(
    codes: Ints,
    stacks: list[tuple[str, ...]],
    name: npt.NDArray[np.integer[Any]],
    texts: list[str],
) -> tuple[Ints, list[tuple[str, ...]]]:
    """Return the stacks with one more frame each (none where the name is -1), renumbered."""
    width = len(texts) + 1
    used, longer = np.unique(codes * width + name + 1, return_inverse=True)
    pairs = [divmod(int(key), width) for key in used]
    extended = [stacks[code] + ((texts[name - 1],) if name else ()) for code, name in pairs]
    return longer.reshape(-1).astype(np.int64), extended


def _stack_source(trace: Trace) -> Codes:
    """Return the slice whose stack counts: itself, or below a backward node the forward op."""
    slices = trace.slices
    parent, forward = slices["parent"].to_numpy(), slices["forward"].to_numpy()
    node = links.itself_or_ancestor(parent, _backward_nodes(slices["name"], parent))
    return np.where(node >= 0, forward[node], np.arange(len(slices))).astype(np.int32)


def _backward_nodes(name: pd.Series, parent: Codes) -> Mask:
    """Return which slices are ``XBackward0`` within ``...::evaluate_function: XBackward0``."""
    number = {str(text): code for code, text in enumerate(name.cat.categories)}
    node_in = [number.get(text.removeprefix(EVALUATE), NONE) for text in number]
    starts = [text.startswith(EVALUATE) for text in number]
    expected = np.array([*np.where(starts, node_in, NONE), NONE])
    code = np.append(name.cat.codes.to_numpy(), NONE)
    return np.asarray((expected[code[parent]] >= 0) & (expected[code[parent]] == code[:-1]))


def _hidden(names: list[str]) -> Mask:
    marks = [any(all(part in name for part in pair) for pair in HIDDEN_FRAMES) for name in names]
    return np.array([*marks, False])


def _not_hidden(frame: Codes, hidden: Mask, parent: Codes) -> Codes:
    """Return each frame, or its nearest ancestor that is not hidden."""
    shown = links.itself_or_ancestor(parent, ~hidden)
    return np.append(shown, np.int32(NONE))[frame]
