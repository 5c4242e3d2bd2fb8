"""One call of an op as it was recorded: shapes, formats, strides and plain arguments."""

from __future__ import annotations

import ast
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from gpuprof_widgets.analyses.shapes import SHAPE_KEYS
from gpuprof_widgets.trace.model import Trace

TYPES, STRIDES, CONCRETE = "Input type", "Input Strides", "Concrete Inputs"

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


def of_calls(
    trace: Trace, rows: npt.NDArray[np.intp], answer: Callable[[Call], Answer]
) -> list[Answer]:
    """The answer to each of these rows' calls; calls that look the same are asked once."""
    names = trace.slices["name"].to_numpy(object)[rows]
    dims = arg_of(trace, rows, *SHAPE_KEYS)
    types, strides = arg_of(trace, rows, TYPES), arg_of(trace, rows, STRIDES)
    concrete = arg_of(trace, rows, CONCRETE)
    known: dict[tuple[str, str, str, str, str], Answer] = {}
    answers = []
    for parts in zip(names, dims, types, strides, concrete, strict=True):
        key = (parts[0], str(parts[1]), str(parts[2]), str(parts[3]), str(parts[4]))
        if key not in known:
            name, *given = parts
            known[key] = answer(Call(name, *(_listed(one) for one in given)))
        answers.append(known[key])
    return answers


def _listed(given: Any) -> Sequence[Any]:
    return given if isinstance(given, list | tuple) else ()


def arg_of(trace: Trace, rows: npt.NDArray[np.intp], *keys: str) -> list[Any]:
    """The arg of each of the rows; None where an event did not carry it."""
    for key in keys:
        if key in trace.args:
            return list(trace.args[key].astype(object).reindex(rows, fill_value=None))
    return [None] * len(rows)
