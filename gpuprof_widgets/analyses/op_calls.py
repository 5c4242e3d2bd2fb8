"""One call of an op as it was recorded: shapes, formats, strides and plain arguments."""

from __future__ import annotations

import ast
import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from gpuprof_widgets.analyses.grouped import group_rows
from gpuprof_widgets.analyses.shapes import SHAPE_KEYS
from gpuprof_widgets.trace.model import Trace

TYPES, STRIDES, CONCRETE = "Input type", "Input Strides", "Concrete Inputs"

Rows = npt.NDArray[np.intp]
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
"""By the name that torch writes: the number format (see `trace.peaks.DTYPES`) and its bytes."""


@dataclass(frozen=True)
class Call:
    """Shapes, types, strides and plain arguments, each by the argument's position.

    A plain argument (a number, a list of numbers) has an empty shape and no type of a tensor; a
    tensor has no plain value.
    """

    name: str
    dims: Sequence[Any]
    types: Sequence[str]
    strides: Sequence[Any]
    concrete: Sequence[str]

    def shape(self, position: int) -> Shape:
        """Of the tensor at that position; an error where there is none."""
        if not self.is_tensor(position):
            raise ValueError(f"argument {position} of {self.name} is no recorded tensor")
        shape: Shape = self.dims[position]
        return shape

    def is_tensor(self, position: int) -> bool:
        """Whether a single tensor of a known format was recorded at that position."""
        return (
            position < len(self.dims)
            and position < len(self.types)
            and (self.types[position] in FORMATS)
        )

    def tensors(self) -> list[int]:
        """The positions of all tensors."""
        return [position for position in range(len(self.dims)) if self.is_tensor(position)]

    def size(self, position: int) -> int:
        """Bytes of one element of the tensor at that position."""
        return FORMATS[self.types[position]][1]

    def value(self, position: int) -> Any:
        """The plain argument at that position; an error where it was not recorded."""
        return ast.literal_eval(self.concrete[position])

    @property
    def dtype(self) -> str:
        """Number format of the first tensor with axes that has one, else of a number; or ""."""
        arrays_first = sorted(self.tensors(), key=lambda position: not self.dims[position])
        found = (FORMATS[self.types[position]][0] for position in arrays_first)
        return next((name for name in found if name), "")


def of_calls(trace: Trace, rows: Rows, answer: Callable[[Call], Answer]) -> list[Answer]:
    """The answer to each of these rows' calls; calls that look the same are asked once."""
    calls, call = distinct_calls(trace, rows)
    answers = [answer(each) for each in calls]
    return [answers[each] for each in call.tolist()]


def distinct_calls(trace: Trace, rows: Rows) -> tuple[list[Call], Rows]:
    """The different calls of these rows, and for each row the place of its own among them."""
    shapes = next((key for key in SHAPE_KEYS if key in trace.args), SHAPE_KEYS[0])
    args = {key: trace.index.arg(key) for key in (shapes, TYPES, STRIDES, CONCRETE)}
    given = {key: place[rows] for key, (place, _) in args.items()}
    call, first = group_rows({"name": trace.index.name[rows], **given})
    listed = [
        [_listed(args[key][1], at) for at in place[first].tolist()] for key, place in given.items()
    ]
    names = trace.index.names_of(rows[first])
    return list(itertools.starmap(Call, zip(names, *listed, strict=True))), call


def _listed(values: list[Any], place: int) -> Sequence[Any]:
    given = values[place] if place >= 0 else ()
    return given if isinstance(given, list | tuple) else ()
