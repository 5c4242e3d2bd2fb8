"""Bytes that an op has to move to and from memory at least, and the shape of its output.

Traces hold neither; both follow from the recorded shapes of the inputs.

Every input is read once and every output written once. An expanded axis (stride 0) holds one value
whatever its length; an in-place op writes its first input; an op that fills or copies does not read
what it overwrites. Tensors in a list have no recorded format and count nothing, nor do workspaces
and what a cache saves. Outputs are counted where the op has a rule (`OUTPUTS`).

Where indices choose elements of a tensor (`CHOOSING`), the number of indices is counted, up to the
size of the tensor; the true number is lower if an index repeats. Sources: torch's reference of each
op (``torch.gather``, ``Tensor.index_add_``, ...) and, for ``nll_loss``,
aten/src/ATen/native/cuda/Loss.cu. Bytes are unknown where shapes do not tell: indices in a list,
masks that choose, sparse tensors (`UNKNOWN`), and ops outside of torch, which may read one page of
the cache that they get.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable
from dataclasses import dataclass
from math import prod

from gpuprof_widgets.analyses.flops import output_of_convolution, output_of_transposed
from gpuprof_widgets.analyses.op_calls import Call, Shape

BOTH, INPUTS, NOTHING = "inputs and outputs", "inputs", ""

Rule = Callable[[Call], int]

NOT_RECORDED = (IndexError, TypeError, ValueError, SyntaxError, ZeroDivisionError)
"""What a rule raises if a shape or number that it needs is missing or does not fit the op."""


@dataclass(frozen=True)
class Moved:
    """Bytes of one call, what they count (`BOTH`, `INPUTS` or `NOTHING`), and the op's kind.

    ``moves_only``: the op does at most a few steps of arithmetic per number.
    """

    bytes: int
    counted: str
    moves_only: bool


def bytes_of(call: Call) -> Moved:
    """Return what one call moves."""
    simple = call.name in SIMPLE or call.name.startswith(FUSED) or _is_in_place(call)
    if _is_unknown(call):
        return Moved(0, NOTHING, simple)
    if call.name in CHOOSING:
        with contextlib.suppress(*NOT_RECORDED):
            return Moved(CHOOSING[call.name](call), BOTH, simple)
        return Moved(0, NOTHING, simple)
    if call.name.startswith(TRITON):
        return Moved(_read(call), BOTH, simple)
    rule = OUTPUTS.get(call.name) or (_like(0) if _is_in_place(call) else None)
    if rule is not None:
        with contextlib.suppress(*NOT_RECORDED):
            return Moved(_read(call) + rule(call), BOTH, simple)
    return Moved(_read(call), INPUTS, simple)


def elements_of(call: Call) -> int:
    """Return the elements of what an op with two operands returns; 0 if one was not recorded."""
    if not call.tensors() or "" in call.types[:2]:
        return 0
    with contextlib.suppress(ValueError):
        return prod(_broadcast_shape(call))
    return 0


def output_shape(call: Call) -> Shape | None:
    """Return the shape of the tensor that this call returns; None if no rule tells.

    Known are products, convolutions, in-place and element-wise ops.
    """
    rule, operands = OUTPUT_SHAPES.get(call.name), OPERANDS.get(call.name)
    in_place = call.name.startswith("aten::") and call.name.endswith("_")
    try:
        if rule is not None:
            return rule(call)
        if in_place and not call.name.endswith("__"):
            return call.shape(0)
        return None if operands is None else _broadcast_shape(call, operands)
    except NOT_RECORDED:
        return None


def _is_unknown(call: Call) -> bool:
    if not call.tensors() or not call.types[0]:  # the first input is a tensor without a shape
        return True
    if call.name.startswith(TRITON):
        return bool(FUSED_CHOICE.search(call.name))
    if not call.name.startswith("aten::") or UNKNOWN.fullmatch(call.name.removeprefix("aten::")):
        return True
    # A sparse tensor alone has no strides; it holds less than its shape.
    strides = dict(enumerate(call.strides))
    return any(call.dims[at] and at in strides and not strides[at] for at in call.tensors())


def _read(call: Call) -> int:
    operands = call.tensors()[: OPERANDS.get(call.name)]  # one more is out=: where to write
    beta = 1.0
    if call.name in ADDING:
        with contextlib.suppress(*NOT_RECORDED):
            beta = float(call.value(3))
    # A product is added to beta times the first input.
    if call.name in OVERWRITING or beta == 0:
        operands = operands[1:]
    return sum(_tensor(call, position) for position in operands)


def _tensor(call: Call, position: int) -> int:
    """Return the bytes of the distinct elements of one input; 0 if it is no tensor."""
    if not call.is_tensor(position):
        return 0
    shape: list[int] = list(call.dims[position])
    strides = call.strides[position] if position < len(call.strides) else ()
    if len(strides) == len(shape):
        shape = [size for size, stride in zip(shape, strides, strict=True) if stride or not size]
    return prod(shape) * call.size(position)


def _elements(call: Call, position: int) -> int:
    return prod(call.shape(position))


def _slices(call: Call, chosen: int) -> int:
    """Return the elements of so many slices of the first tensor along the axis in argument 1."""
    length: int = call.shape(0)[call.value(1)]
    return chosen * _elements(call, 0) // length


def _part(call: Call, position: int, elements: int) -> int:
    """Return the bytes of so many elements of a tensor, at most of all it has."""
    return min(elements, _elements(call, position)) * call.size(position)


def _looked_up(call: Call, index: int, elements: int) -> int:
    """Return the bytes of the index, the elements read from the first tensor, and their copies."""
    return _tensor(call, index) + _part(call, 0, elements) + elements * call.size(0)


def _embedding_bag(call: Call) -> int:
    """One row per bag is written; with include_last_offset there is one more offset than bags."""
    width = prod(call.shape(0)[1:])
    bags = _elements(call, 2) - bool(call.value(7))
    indices = sum(_tensor(call, position) for position in (1, 2, 6))
    return indices + _part(call, 0, _elements(call, 1) * width) + bags * width * call.size(0)


def _put(index: int, source: int, *, slices: bool = False, adds: bool = False) -> Rule:
    """Return a rule: read the index and as much of the source, write these elements of argument 0.

    ``slices``: the index chooses slices, not elements; ``adds``: the old values are read as well.
    """

    def moved(call: Call) -> int:
        chosen = _elements(call, index)
        if slices:
            chosen = _slices(call, chosen)
        read = _part(call, source, chosen) if call.is_tensor(source) else 0
        return _tensor(call, index) + read + _part(call, 0, chosen) * (1 + adds)

    return moved


def _nll_loss(call: Call) -> int:
    """One score per target is read; losses per target (reduction "none") are not counted."""
    return _tensor(call, 1) + _part(call, 0, _elements(call, 1)) + call.size(0)


def _nll_loss_backward(call: Call) -> int:
    """One gradient per target is written; another op fills in the zeros."""
    return _tensor(call, 0) + _tensor(call, 2) + _part(call, 1, _elements(call, 2))


def _is_in_place(call: Call) -> bool:
    """Return whether the op writes over its first input: most of those with a trailing "_" do."""
    return IN_PLACE.fullmatch(call.name) is not None and call.is_tensor(0)


def _like(position: int) -> Rule:
    """Return a rule for an output like the input at that position."""
    return lambda call: prod(call.shape(position)) * call.size(position)


def _written(shape: Callable[[Call], Shape], position: int = 0) -> Rule:
    """Return a rule for an output of that shape in the format of the input at that position."""
    return lambda call: prod(shape(call)) * call.size(position)


def _broadcast(call: Call) -> int:
    """All tensors broadcast, in the widest format; 0-d tensors do not widen it."""
    _, size = max((len(call.shape(at)) > 0, call.size(at)) for at in call.tensors())
    return prod(_broadcast_shape(call)) * size


def _broadcast_shape(call: Call, operands: int | None = None) -> Shape:
    """Broadcast the first tensors as torch does: from the last axis on, an axis of 1 fits any."""
    shapes = [list(call.shape(at)) for at in call.tensors()[:operands]]
    axes = max(map(len, shapes))
    padded = [[1] * (axes - len(shape)) + shape for shape in shapes]
    return [0 if 0 in sizes else max(sizes) for sizes in zip(*padded, strict=True)]


def _product(first: int) -> Callable[[Call], Shape]:
    """Return a shape rule for the product of the operands at that position and the next."""
    return lambda call: [*call.shape(first)[:-1], call.shape(first + 1)[-1]]


def _convolution(call: Call) -> Shape:
    if call.value(6):
        return output_of_transposed(call, int(call.value(8)))
    return _plain_convolution(call)


def _plain_convolution(call: Call) -> Shape:
    stride, padding, dilation = (call.value(position) for position in (3, 4, 5))
    return output_of_convolution(call.shape(0), call.shape(1), stride, padding, dilation)


def _convolution_backward(call: Call) -> int:
    """The gradients of input, weight and bias, if they were asked for."""
    wanted = call.value(10)
    sizes = [prod(call.shape(1)), prod(call.shape(2)), call.shape(2)[0]]
    elements = sum(size for size, is_wanted in zip(sizes, wanted, strict=True) if is_wanted)
    return elements * call.size(0)


def _attention(call: Call) -> Shape:
    """As long as the query, as wide as the value."""
    return [*call.shape(0)[:-1], call.shape(2)[-1]]


def _attention_backward(call: Call) -> int:
    """The gradients of query, key and value."""
    return sum(prod(call.shape(position)) * call.size(position) for position in (1, 2, 3))


def _aten(*names: str) -> tuple[str, ...]:
    return tuple(f"aten::{name}" for name in names)


ADDING = ("aten::addmm", "aten::baddbmm")
CHOOSING: dict[str, Rule] = {
    "aten::embedding": lambda call: _looked_up(
        call, 1, _elements(call, 1) * prod(call.shape(0)[1:])
    ),
    **dict.fromkeys(
        _aten("embedding_bag", "_embedding_bag", "_embedding_bag_forward_only"), _embedding_bag
    ),
    "aten::index_select": lambda call: _looked_up(call, 2, _slices(call, _elements(call, 2))),
    "aten::gather": lambda call: _looked_up(call, 2, _elements(call, 2)),
    "aten::take": lambda call: _looked_up(call, 1, _elements(call, 1)),
    "aten::put_": _put(1, 2),
    **dict.fromkeys(
        _aten("index_copy", "index_copy_", "index_fill", "index_fill_"), _put(2, 3, slices=True)
    ),
    **dict.fromkeys(
        _aten("index_add", "index_add_", "index_reduce", "index_reduce_"),
        _put(2, 3, slices=True, adds=True),
    ),
    **dict.fromkeys(_aten("scatter", "scatter_"), _put(2, 3)),
    **dict.fromkeys(
        _aten("scatter_add", "scatter_add_", "scatter_reduce", "scatter_reduce_"),
        _put(2, 3, adds=True),
    ),
    **dict.fromkeys(_aten("nll_loss", "nll_loss_forward", "nll_loss2d_forward"), _nll_loss),
    **dict.fromkeys(_aten("nll_loss_backward", "nll_loss2d_backward"), _nll_loss_backward),
}
"""All bytes moved by ops whose indices choose elements of a tensor."""

UNKNOWN = re.compile(
    r"_?(unsafe_)?(masked_)?index(_put(_impl)?)?(_accumulate)?_?|masked_(select|scatter)\w*"
    r"|\w*sparse\w*|\w*coalesce\w*|embedding_renorm_|_?upsample_\w+|grid_sampler\w*"
    r"|searchsorted|bucketize"
)
"""Ops that read or write a part of their tensors that no shape tells."""

IN_PLACE = re.compile(
    r"aten::(?!(detach|t|transpose|swapaxes|swapdims|squeeze|unsqueeze|as_strided|requires_grad|set"
    r"|resize|resize_as|rename)_$)\w+_"
)
"""Ops that write their first input, not those that change its view, which move nothing."""

TRITON = "triton_"
FUSED = ("triton_poi_", "triton_red_", "triton_per_")
"""Names that torch.compile gives to fused pointwise ops and reductions."""
FUSED_CHOICE = re.compile(
    r"embedding|index|gather|scatter|slice|select|split|narrow|unfold|take|nll_loss|upsample"
)
"""Fused ops by which a kernel may read only a part of a tensor that it gets."""

OVERWRITING = frozenset(
    _aten("copy_", "fill_", "zero_", "uniform_", "normal_", "random_", "bernoulli_", "exponential_")
)
_UNARY = _aten(
    *("abs", "neg", "exp", "log", "sqrt", "rsqrt", "reciprocal", "sin", "cos", "tanh", "sigmoid"),
    *("relu", "gelu", "silu", "mish", "elu", "leaky_relu", "hardtanh", "hardswish", "softplus"),
    *("erf", "floor", "ceil", "round", "sign", "clamp_min", "clamp_max", "threshold", "pow"),
    *("_softmax", "_log_softmax", "cumsum", "tril", "triu", "roll", "flip"),
)
_NORMALISING = _aten(
    *("native_batch_norm", "cudnn_batch_norm", "miopen_batch_norm", "native_layer_norm"),
    *("native_group_norm", "_fused_rms_norm", "clamp"),
)
_BINARY = _aten(
    *("add", "sub", "mul", "div", "maximum", "minimum", "remainder", "fmod", "atan2"),
    *("masked_fill", "bitwise_and", "bitwise_or", "bitwise_xor"),
    *("threshold_backward", "gelu_backward", "silu_backward", "tanh_backward", "elu_backward"),
    *("sigmoid_backward", "leaky_relu_backward", "hardtanh_backward", "hardswish_backward"),
    *("_softmax_backward_data", "_log_softmax_backward_data", "native_dropout_backward"),
)
_TERNARY = _aten("addcmul", "addcdiv", "lerp", "where", "mse_loss_backward")
_COMPARING = _aten("eq", "ne", "lt", "le", "gt", "ge", "isnan", "isinf", "isfinite", "logical_not")
_COMPARING += _aten("logical_and", "logical_or", "logical_xor")
_NORM_BACKWARD = {
    "aten::native_batch_norm_backward": 1,
    "aten::cudnn_batch_norm_backward": 0,
    "aten::miopen_batch_norm_backward": 0,
    "aten::native_layer_norm_backward": 1,
    "aten::max_pool2d_with_indices_backward": 1,
}
"""Ops whose result is like the input at that position, apart from a few numbers per channel."""

_REDUCING = _aten("sum", "mean", "max", "min", "amax", "amin", "argmax", "argmin", "any", "all")
_REDUCING += _aten("prod", "norm", "linalg_vector_norm", "var", "std", "var_mean")
_REDUCING += _aten("mse_loss", "max_pool2d_with_indices", "_adaptive_avg_pool2d")
_REDUCING += _aten("avg_pool2d", "count_nonzero", "nonzero", "isin", "index", "cat")


_ATTENTIONS = [f"{kind}_attention" for kind in ("efficient", "flash", "cudnn")]
_ATTENTIONS.append("flash_attention_for_cpu")

OUTPUTS: dict[str, Rule] = {
    "aten::mm": _written(_product(0)),
    "aten::addmm": _written(_product(1), 1),
    "aten::bmm": _written(_product(0)),
    "aten::baddbmm": _written(_product(1), 1),
    **dict.fromkeys(
        _aten("convolution", "_convolution", "convolution_overrideable"), _written(_convolution)
    ),
    "aten::convolution_backward": _convolution_backward,
    **{f"aten::_scaled_dot_product_{kind}": _written(_attention) for kind in _ATTENTIONS},
    **{f"aten::_scaled_dot_product_{kind}_backward": _attention_backward for kind in _ATTENTIONS},
    "aten::_flash_attention_forward": _written(_attention),
    "aten::_efficient_attention_forward": _written(_attention),
    **dict.fromkeys((*_UNARY, *_NORMALISING), _like(0)),
    **dict.fromkeys((*_BINARY, *_TERNARY), _broadcast),
    **dict.fromkeys(_COMPARING, lambda call: prod(_broadcast_shape(call))),  # booleans
    **{name: _like(position) for name, position in _NORM_BACKWARD.items()},
}
"""Bytes written, by op; of other ops, unless in place, only the inputs count."""

OPERANDS = {
    **dict.fromkeys(_UNARY, 1),
    **dict.fromkeys((*_BINARY, *_COMPARING), 2),
    **dict.fromkeys(_TERNARY, 3),
}
"""How many tensors an op reads; one more is that of ``out=``."""

SIMPLE = frozenset({*OPERANDS, *_NORMALISING, *_NORM_BACKWARD, *_REDUCING, *CHOOSING, *OVERWRITING})
"""Ops that do at most a few steps per number: memory bounds them."""

OUTPUT_SHAPES: dict[str, Callable[[Call], Shape]] = {
    "aten::mm": _product(0),
    "aten::addmm": _product(1),
    "aten::bmm": _product(0),
    "aten::baddbmm": _product(1),
    "aten::linear": lambda call: [*call.shape(0)[:-1], call.shape(1)[0]],
    "aten::convolution": _convolution,
    "aten::_convolution": _convolution,
    **{f"aten::conv{axes}d": _plain_convolution for axes in (1, 2, 3)},
}
