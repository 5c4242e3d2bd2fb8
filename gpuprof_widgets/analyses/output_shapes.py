"""Shapes that ops return, which traces do not hold: from the shapes of their inputs."""

from __future__ import annotations

from collections.abc import Callable

from gpuprof_widgets.analyses.flop_formulas import output_of_convolution, output_of_transposed
from gpuprof_widgets.analyses.op_bytes import OPERANDS
from gpuprof_widgets.analyses.op_calls import Call, Shape


def output_shape(call: Call) -> Shape | None:
    """Of the tensor that this call returns; None where no rule says so.

    Known are products, convolutions, ops in place, and those that work element by element.
    """
    try:
        return _shape(call)
    except (IndexError, TypeError, ValueError, SyntaxError, ZeroDivisionError):
        return None  # too little was recorded, or shapes that do not fit the op


def _shape(call: Call) -> Shape | None:
    rule = RULES.get(call.name)
    if rule is not None:
        return rule(call)
    if call.name.startswith("aten::") and call.name.endswith("_") and not call.name.endswith("__"):
        return call.shape(0)
    operands = OPERANDS.get(call.name)
    return None if operands is None else _broadcast(call, operands)


def _broadcast(call: Call, operands: int) -> Shape:
    """As numpy and torch broadcast: from the last axis on, an axis of 1 fits any."""
    shapes = [list(call.shape(at)) for at in call.tensors()[:operands]]
    axes = max(map(len, shapes))
    padded = [[1] * (axes - len(shape)) + shape for shape in shapes]
    return [0 if 0 in sizes else max(sizes) for sizes in zip(*padded, strict=True)]


def _product(first: int) -> Callable[[Call], Shape]:
    """Of the operands at that position and the next."""
    return lambda call: [*call.shape(first)[:-1], call.shape(first + 1)[-1]]


def _convolution(call: Call) -> Shape:
    if call.value(6):
        return output_of_transposed(call, int(call.value(8)))
    given = (call.value(at) for at in (3, 4, 5))
    return output_of_convolution(call.shape(0), call.shape(1), *given)


def _conv(call: Call) -> Shape:
    given = (call.value(at) for at in (3, 4, 5))
    return output_of_convolution(call.shape(0), call.shape(1), *given)


def _linear(call: Call) -> Shape:
    return [*call.shape(0)[:-1], call.shape(1)[0]]


RULES: dict[str, Callable[[Call], Shape]] = {
    "aten::mm": _product(0),
    "aten::addmm": _product(1),
    "aten::bmm": _product(0),
    "aten::baddbmm": _product(1),
    "aten::linear": _linear,
    "aten::convolution": _convolution,
    "aten::_convolution": _convolution,
    **{f"aten::conv{axes}d": _conv for axes in (1, 2, 3)},
}
