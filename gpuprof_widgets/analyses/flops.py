"""FLOPs of ops, from the shapes that a trace records.

There are two counts. `slice_flops` repeats torch's ``with_flops`` (matmuls, 2d convolutions, adds
and multiplies), which torch counts while it records but does not export. `flops_of` counts the
products of more ops (any convolution, attention, their backward) for roofline and utilisation.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Sequence
from math import prod
from typing import Any, TypeAlias

import numpy as np

from gpuprof_widgets.analyses.op_calls import Call, Shape, of_calls
from gpuprof_widgets.trace.arrays import Ints
from gpuprof_widgets.trace.model import Trace
from gpuprof_widgets.trace.schema import FLOPS, NONE

MOST_WORK = 2**60
"""FLOPs that keep a GPU busy for minutes: a single op whose shapes give more is damaged."""

Dims: TypeAlias = Sequence[Any]
Formula = Callable[[Call], int]


def slice_flops(trace: Trace) -> Ints:
    """Return the FLOPs of every slice, as torch counts them; 0 where unknown."""
    flops = np.maximum(recorded_work(trace, FLOPS), 0)
    rows = np.flatnonzero(trace.index.named(frozenset(TORCH_FORMULAS)))
    flops[rows] = of_calls(trace, rows, _evaluate)
    return flops


def recorded_work(trace: Trace, key: str) -> Ints:
    """Return the work of each slice that the program counted (`FLOPS`, `MEMORY_TRAFFIC`), or -1."""
    work = np.full(len(trace), NONE, np.int64)
    counted = trace.args.get(key)
    if counted is not None and counted.dtype == np.int64:
        work[counted.index.to_numpy()] = counted.to_numpy()
    return work


def _evaluate(call: Call) -> int:
    try:
        work = TORCH_FORMULAS[call.name](call.dims, call.concrete)
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


TORCH_FORMULAS: dict[str, Callable[[Dims, Dims], int]] = {
    "aten::mm": lambda dims, inputs: _matmul(dims[0], dims[1]),
    "aten::addmm": lambda dims, inputs: _matmul(dims[1], dims[2]),
    "aten::bmm": lambda dims, inputs: _batched(dims[0], dims[1]),
    "aten::baddbmm": lambda dims, inputs: _batched(dims[1], dims[2]),
    "aten::conv2d": _conv2d,
    "aten::add": lambda dims, inputs: prod(dims[0]),
    "aten::mul": lambda dims, inputs: prod(dims[0]),
}


def flops_of(call: Call) -> int:
    """Return the FLOPs of a call; 0 where it has no formula or too little was recorded."""
    formula = FORMULAS.get(call.name)
    if formula is None:
        return 0
    try:
        return formula(call)
    except (IndexError, TypeError, ValueError, SyntaxError, ZeroDivisionError):
        return 0  # shapes that do not fit the op, or were not recorded


def product(left: Shape, right: Shape) -> int:
    """Return the FLOPs of ``left @ right``, of two dimensions, or of three with the same batch."""
    *batch, rows, inner = left
    *right_batch, right_inner, columns = right
    if list(batch) != list(right_batch) or inner != right_inner:
        raise ValueError(f"{left} @ {right} is no product")
    return 2 * prod(batch) * rows * inner * columns


def _product_of(first: int) -> Formula:
    """Return the formula for a product of the operands at that position and the next."""
    return lambda call: product(call.shape(first), call.shape(first + 1))


def output_of_convolution(
    shape: Shape,
    weight: Shape,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
) -> list[int]:
    """Return the output shape of a convolution, by the documentation of ``torch.nn.Conv2d``."""
    space = len(shape) - 2
    stride, padding, dilation = (_per_axis(value, space) for value in (stride, padding, dilation))
    axes = zip(shape[2:], weight[2:], stride, padding, dilation, strict=True)
    sizes = [
        (size + 2 * pad - dilate * (kernel - 1) - 1) // step + 1
        for size, kernel, step, pad, dilate in axes
    ]
    return [shape[0], weight[0], *sizes]


def output_of_transposed(call: Call, groups: int) -> list[int]:
    """Return the output shape of a transposed ``aten::convolution``.

    Source: the documentation of ``torch.nn.ConvTranspose2d``.
    """
    shape, weight = call.shape(0), call.shape(1)
    stride, padding, dilation, extra = (
        _per_axis(call.value(position), len(shape) - 2) for position in (3, 4, 5, 7)
    )
    axes = zip(shape[2:], weight[2:], stride, padding, dilation, extra, strict=True)
    sizes = [
        (size - 1) * step - 2 * pad + dilate * (kernel - 1) + more + 1
        for size, kernel, step, pad, dilate, more in axes
    ]
    return [shape[0], weight[1] * groups, *sizes]


def _per_axis(values: Sequence[int], axes: int) -> list[int]:
    return list(values) * axes if len(values) == 1 else list(values)


def _convolving(space: Shape, batch: int, weight: Shape) -> int:
    """Multiply every point of ``space`` of every sample with every weight once."""
    return 2 * batch * prod(space) * prod(weight)


def _convolved(
    call: Call, stride: Sequence[int], padding: Sequence[int], dilation: Sequence[int]
) -> int:
    shape, weight = call.shape(0), call.shape(1)
    output = output_of_convolution(shape, weight, stride, padding, dilation)
    return _convolving(output[2:], shape[0], weight)


def _convolution(call: Call) -> int:
    if call.value(6):  # transposed
        return _convolving(call.shape(0)[2:], call.shape(0)[0], call.shape(1))
    return _convolved(call, *(call.value(position) for position in (3, 4, 5)))


def _library_convolution(call: Call) -> int:
    """``cudnn_convolution(input, weight, padding, stride, dilation, ...)``; MIOpen's has a bias."""
    first = 3 if call.name == "aten::miopen_convolution" else 2
    padding, stride, dilation = (call.value(first + offset) for offset in range(3))
    return _convolved(call, stride, padding, dilation)


def _convolution_backward(call: Call) -> int:
    """Count each of the two gradients as the forward, and that of the bias as nothing."""
    gradient, shape, weight = (call.shape(position) for position in range(3))
    space = shape if call.value(7) else gradient  # transposed
    gradients = sum(call.value(10)[:2])
    return int(gradients) * _convolving(space[2:], shape[0], weight)


def _attention(query: Shape, key: Shape, value: Shape) -> int:
    """Take shapes (batch, heads, length, size); a head of keys may serve several of queries."""
    batch, heads, length, size = query
    scores = product((batch * heads, length, size), (batch * heads, size, key[2]))
    return scores + product((batch * heads, length, key[2]), (batch * heads, key[2], value[3]))


def _attention_backward(query: Shape, key: Shape, value: Shape) -> int:
    """Count the scores again, two products for the values, and two for queries and keys."""
    batch, heads, length, size = query
    per_product = 2 * batch * heads * length * key[2]
    return per_product * (3 * size + 2 * value[3])


def _attention_of(
    formula: Callable[[Shape, Shape, Shape], int], first: int, *, is_kernel: bool = False
) -> Formula:
    """Return the formula for query, key and value from that position of a call's inputs on.

    Kernels called directly take the length before the heads; packed lengths have no shapes.
    """

    def of_call(call: Call) -> int:
        shapes = [call.shape(first + offset) for offset in range(3)]
        if is_kernel:
            shapes = [(batch, heads, length, size) for batch, length, heads, size in shapes]
        return formula(*shapes)

    return of_call


_SCALED = ("efficient_attention", "flash_attention", "cudnn_attention", "flash_attention_for_cpu")
_KERNELS = ("flash_attention", "efficient_attention")

FORMULAS: dict[str, Formula] = {
    **dict.fromkeys(("aten::mm", "aten::bmm", "aten::_scaled_mm"), _product_of(0)),
    **dict.fromkeys(("aten::addmm", "aten::baddbmm"), _product_of(1)),
    "aten::convolution": _convolution,
    "aten::_convolution": _convolution,
    "aten::convolution_overrideable": _convolution,
    "aten::cudnn_convolution": _library_convolution,
    "aten::miopen_convolution": _library_convolution,
    # Its arguments are input, weight, kernel_size, bias, stride and padding.
    "aten::_slow_conv2d_forward": lambda call: _convolved(call, call.value(4), call.value(5), [1]),
    "aten::convolution_backward": _convolution_backward,
    **{f"aten::_scaled_dot_product_{kind}": _attention_of(_attention, 0) for kind in _SCALED},
    **{
        f"aten::_scaled_dot_product_{kind}_backward": _attention_of(_attention_backward, 1)
        for kind in _SCALED
    },
    **{f"aten::_{kind}_forward": _attention_of(_attention, 0, is_kernel=True) for kind in _KERNELS},
    **{
        f"aten::_{kind}_backward": _attention_of(_attention_backward, 1, is_kernel=True)
        for kind in _KERNELS
    },
}
"""Formulas by op. Work of an op within another of these is already counted by the outer one."""
