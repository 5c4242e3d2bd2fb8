"""Floating point operations of matmuls, 2d convolutions, adds and multiplies.

torch counts them while it records but does not export them. The counts follow from the recorded
shapes, so any trace with shapes has them: the formulas are those of torch's ``with_flops``.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Sequence
from math import prod
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from gpuprof_widgets.analyses.op_calls import Call, of_calls
from gpuprof_widgets.trace.model import Trace
from gpuprof_widgets.trace.schema import FLOPS, NONE

MOST_WORK = 2**60
"""FLOPs of no single op, as it is a whole GPU's for minutes: shapes that tell more are damage."""

Dims: TypeAlias = Sequence[Any]


def slice_flops(trace: Trace) -> npt.NDArray[np.int64]:
    """FLOPs of every slice; 0 where they cannot be told from what was recorded."""
    flops = np.maximum(recorded_work(trace, FLOPS), 0)
    rows = np.flatnonzero(trace.index.named(frozenset(FORMULAS)))
    flops[rows] = of_calls(trace, rows, _evaluate)
    return flops


def recorded_work(trace: Trace, key: str) -> npt.NDArray[np.int64]:
    """What the program itself counted of each slice (`FLOPS`, `MEMORY_TRAFFIC`), else -1."""
    work = np.full(len(trace), NONE, np.int64)
    counted = trace.args.get(key)
    if counted is not None and counted.dtype == np.int64:
        work[counted.index.to_numpy()] = counted.to_numpy()
    return work


def _evaluate(call: Call) -> int:
    try:
        work = FORMULAS[call.name](call.dims, call.concrete)
    except (ArithmeticError, IndexError, TypeError, ValueError, SyntaxError, RecursionError):
        return 0  # shapes that do not fit the op, or were not recorded: torch says 0 as well
    return work if abs(work) < MOST_WORK else 0


def _matmul(left: Dims, right: Dims) -> int:
    return int(2 * prod(left) * (prod(right) // left[-1]))


def _batched(left: Dims, right: Dims) -> int:
    return int(2 * prod(left) * (prod(right) // left[-1] // right[0]))


def _conv2d(dims: Dims, inputs: Dims) -> int:
    batch, channels_in, height, width = dims[0]
    channels_out, _, kernel_height, kernel_width = dims[1]
    stride, padding, dilation, groups = (ast.literal_eval(text) for text in inputs[3:7])
    rows = (height + 2 * padding[0] - dilation[0] * (kernel_height - 1) - 1) // stride[0] + 1
    columns = (width + 2 * padding[1] - dilation[1] * (kernel_width - 1) - 1) // stride[1] + 1
    kernel = kernel_height * kernel_width * channels_in * channels_out
    return int(2 * batch * rows * columns * kernel // groups)


def _elementwise(dims: Dims, inputs: Dims) -> int:
    return prod(dims[0])


FORMULAS: dict[str, Callable[[Dims, Dims], int]] = {
    "aten::mm": lambda dims, inputs: _matmul(dims[0], dims[1]),
    "aten::addmm": lambda dims, inputs: _matmul(dims[1], dims[2]),
    "aten::bmm": lambda dims, inputs: _batched(dims[0], dims[1]),
    "aten::baddbmm": lambda dims, inputs: _batched(dims[1], dims[2]),
    "aten::conv2d": _conv2d,
    "aten::add": _elementwise,
    "aten::mul": _elementwise,
}
