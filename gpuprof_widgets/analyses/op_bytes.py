"""Bytes that an op has to move to and from memory at least, from its recorded shapes.

Every input is read once and every output written once. An expanded axis (stride 0) holds one value
however long it is; an op in place writes its first input; one that fills or copies does not read
what it overwrites. A tensor in a list has no recorded format and counts nothing, nor do workspaces
and what a cache saves. Outputs are counted where the op's rule is known (`OUTPUTS`).

Of a tensor in which indices choose, what they can choose is counted (`CHOOSING`): as many elements
as they are, but no more than it has. It is less where they name an element twice. Which ops touch
how much is in torch's reference of each (``torch.gather``, ``Tensor.index_add_``, ...) and, for
``nll_loss``, in aten/src/ATen/native/cuda/Loss.cu. Nothing is said where shapes do not tell: of
indices in a list, of masks that choose, of sparse tensors (`UNKNOWN`), and of what is none of
torch's own ops, which may read a page of the cache it is given.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from math import prod

from gpuprof_widgets.analyses.flops import output_of_convolution, output_of_transposed
from gpuprof_widgets.analyses.op_calls import Call, Shape

BOTH, INPUTS, NOTHING = "inputs and outputs", "inputs", ""

Rule = Callable[[Call], int]

NOT_RECORDED = (IndexError, TypeError, ValueError, SyntaxError, ZeroDivisionError)
"""What a rule raises where a shape or number that it needs is missing."""


@dataclass(frozen=True)
class Moved:
    """Bytes of one call, what they count (`BOTH`, `INPUTS` or `NOTHING`), and the op's kind.

    ``moves_only``: the op is known to do no more arithmetic than a few steps per number.
    """

    bytes: int
    of: str
    moves_only: bool


def bytes_of(call: Call) -> Moved:
    """What one call moves."""
    simple = call.name in SIMPLE or call.name.startswith(FUSED) or _is_in_place(call)
    if _is_unknown(call):
        return Moved(0, NOTHING, simple)
    if call.name in CHOOSING:
        return _chosen(call)
    if call.name.startswith(TRITON):
        return Moved(_read(call), BOTH, simple)
    rule = OUTPUTS.get(call.name) or (_first if _is_in_place(call) else None)
    if rule is None:
        return Moved(_read(call), INPUTS, simple)
    try:
        return Moved(_read(call) + rule(call), BOTH, simple)
    except NOT_RECORDED:
        return Moved(_read(call), INPUTS, simple)  # the output cannot be told


def _is_unknown(call: Call) -> bool:
    if not call.tensors() or not call.types[0]:  # the first input is a tensor without a shape
        return True
    if call.name.startswith(TRITON):
        return bool(FUSED_CHOICE.search(call.name))
    if not call.name.startswith("aten::") or UNKNOWN.fullmatch(call.name.removeprefix("aten::")):
        return True
    return any(_is_sparse(call, position) for position in call.tensors())


def _is_sparse(call: Call, position: int) -> bool:
    """Whether it has no strides although they were recorded: its shape is not what it holds."""
    shape = call.dims[position]
    return bool(shape) and position < len(call.strides) and not call.strides[position]


def _chosen(call: Call) -> Moved:
    try:
        return Moved(CHOOSING[call.name](call), BOTH, moves_only=True)
    except NOT_RECORDED:
        return Moved(0, NOTHING, moves_only=True)


def _read(call: Call) -> int:
    operands = call.tensors()[: OPERANDS.get(call.name)]  # what follows is where to write (out=)
    if call.name in OVERWRITING or _adds_nothing(call):
        operands = operands[1:]
    return sum(_tensor(call, position) for position in operands)


def _adds_nothing(call: Call) -> bool:
    """Whether a product is added to zero times its first input: that is not read then."""
    if call.name not in ADDING:
        return False
    try:
        return float(call.value(3)) == 0
    except NOT_RECORDED:
        return False  # beta was not recorded: one unless given


def _tensor(call: Call, position: int) -> int:
    """Bytes of the distinct elements of one input; 0 where there is no tensor."""
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
    """Elements of so many slices of the first tensor along the axis that the second input names."""
    length: int = call.shape(0)[call.value(1)]
    return chosen * _elements(call, 0) // length


def _part(call: Call, position: int, elements: int) -> int:
    """Bytes of so many elements of a tensor, which has no more than it has."""
    return min(elements, _elements(call, position)) * call.size(position)


def _looked_up(call: Call, index: int, elements: int) -> int:
    """The index, so many elements of the first tensor, and as many written elsewhere."""
    return _tensor(call, index) + _part(call, 0, elements) + elements * call.size(0)


def _embedding(call: Call) -> int:
    return _looked_up(call, 1, _elements(call, 1) * prod(call.shape(0)[1:]))


def _embedding_bag(call: Call) -> int:
    """A row per bag is written; of offsets that include the last there is one more."""
    width = prod(call.shape(0)[1:])
    bags = _elements(call, 2) - bool(call.value(7))
    given = sum(_tensor(call, position) for position in (1, 2, 6))
    return given + _part(call, 0, _elements(call, 1) * width) + bags * width * call.size(0)


def _index_select(call: Call) -> int:
    return _looked_up(call, 2, _slices(call, _elements(call, 2)))


def _gather(call: Call) -> int:
    return _looked_up(call, 2, _elements(call, 2))


def _take(call: Call) -> int:
    return _looked_up(call, 1, _elements(call, 1))


def _put(index: int, source: int, *, slices: bool = False, adds: bool = False) -> Rule:
    """Index and source are read as far as they go together, the first tensor is written there.

    ``slices``: the index chooses these, not elements; ``adds``: what was there is read before.
    """

    def moved(call: Call) -> int:
        chosen = _elements(call, index)
        if slices:
            chosen = _slices(call, chosen)
        read = _part(call, source, chosen) if call.is_tensor(source) else 0
        return _tensor(call, index) + read + _part(call, 0, chosen) * (1 + adds)

    return moved


def _nll_loss(call: Call) -> int:
    """One score per target is read; that each has a loss of its own is not counted."""
    return _tensor(call, 1) + _part(call, 0, _elements(call, 1)) + call.size(0)


def _nll_loss_backward(call: Call) -> int:
    """One gradient per target is written; the zeros of all others are an op of their own."""
    return _tensor(call, 0) + _tensor(call, 2) + _part(call, 1, _elements(call, 2))


def _is_in_place(call: Call) -> bool:
    return call.name.startswith("aten::") and call.name.endswith("_") and call.is_tensor(0)


def _first(call: Call) -> int:
    """An output like the first input, written in full."""
    return prod(call.shape(0)) * call.size(0)


def _like(position: int) -> Rule:
    return lambda call: prod(call.shape(position)) * call.size(position)


def _broadcast(call: Call) -> int:
    """Elements of all tensors broadcast against each other, in the widest tensor's format."""
    elements, sizes = _broadcast_elements(call)
    return elements * sizes


def elements_of(call: Call) -> int:
    """Elements of what an op with two operands returns; 0 where one was not recorded."""
    if not call.tensors() or "" in call.types[:2]:
        return 0
    try:
        return _broadcast_elements(call)[0]
    except ValueError:
        return 0


def _broadcast_elements(call: Call) -> tuple[int, int]:
    shapes = [call.shape(position) for position in call.tensors()]
    longest = max(len(shape) for shape in shapes)
    padded = [[1] * (longest - len(shape)) + list(shape) for shape in shapes]
    full = [0 if 0 in sizes else max(sizes) for sizes in zip(*padded, strict=True)]
    widest = max((len(call.shape(at)) > 0, call.size(at)) for at in call.tensors())
    return prod(full), widest[1]


def _compared(call: Call) -> int:
    """Booleans, one byte each."""
    return _broadcast_elements(call)[0]


def _product(first: int) -> Rule:
    def output(call: Call) -> int:
        left, right = call.shape(first), call.shape(first + 1)
        return prod([*left[:-1], right[-1]]) * call.size(first)

    return output


def _convolution(call: Call) -> int:
    if call.value(6):
        shape: Shape = output_of_transposed(call, int(call.value(8)))
    else:
        given = (call.value(position) for position in (3, 4, 5))
        shape = output_of_convolution(call.shape(0), call.shape(1), *given)
    return prod(shape) * call.size(0)


def _convolution_backward(call: Call) -> int:
    """The gradients of input, weight and bias, as far as they were asked for."""
    wanted = call.value(10)
    sizes = [prod(call.shape(1)), prod(call.shape(2)), call.shape(2)[0]]
    return sum(size for size, is_wanted in zip(sizes, wanted, strict=True) if is_wanted) * (
        call.size(0)
    )


def _attention(call: Call) -> int:
    """As long as the query, as wide as the value."""
    return prod([*call.shape(0)[:-1], call.shape(2)[-1]]) * call.size(0)


def _attention_backward(call: Call) -> int:
    """The gradients of query, key and value."""
    return sum(prod(call.shape(position)) * call.size(position) for position in (1, 2, 3))


def _aten(*names: str) -> tuple[str, ...]:
    return tuple(f"aten::{name}" for name in names)


ADDING = ("aten::addmm", "aten::baddbmm")
CHOOSING: dict[str, Rule] = {
    "aten::embedding": _embedding,
    **dict.fromkeys(
        _aten("embedding_bag", "_embedding_bag", "_embedding_bag_forward_only"), _embedding_bag
    ),
    "aten::index_select": _index_select,
    "aten::gather": _gather,
    "aten::take": _take,
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
"""All that is moved by ops whose indices choose in a tensor."""

UNKNOWN = re.compile(
    r"_?(unsafe_)?(masked_)?index(_put(_impl)?)?(_accumulate)?_?|masked_(select|scatter)\w*"
    r"|\w*sparse\w*|\w*coalesce\w*|embedding_renorm_|_?upsample_\w+|grid_sampler\w*"
    r"|searchsorted|bucketize"
)
"""Ops that read or write a part of what they are given, and no shape tells which."""

TRITON = "triton_"
FUSED = ("triton_poi_", "triton_red_", "triton_per_")
"""Names that torch.compile gives to fused pointwise ops and reductions."""
FUSED_CHOICE = re.compile(
    r"embedding|index|gather|scatter|slice|select|split|narrow|unfold|take|nll_loss|upsample"
)
"""What is fused in one where a kernel has all of a tensor and may want a part."""

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
"""Ops whose result is like the input at that position, but for a few numbers per channel."""

_REDUCING = _aten("sum", "mean", "max", "min", "amax", "amin", "argmax", "argmin", "any", "all")
_REDUCING += _aten("prod", "norm", "linalg_vector_norm", "var", "std", "var_mean")
_REDUCING += _aten("mse_loss", "max_pool2d_with_indices", "_adaptive_avg_pool2d")
_REDUCING += _aten("avg_pool2d", "count_nonzero", "nonzero", "isin", "index", "cat")

_CONVOLUTIONS = _aten("convolution", "_convolution", "convolution_overrideable")
_ATTENTIONS = (
    *("efficient_attention", "flash_attention", "cudnn_attention", "flash_attention_for_cpu"),
)

OUTPUTS: dict[str, Rule] = {
    "aten::mm": _product(0),
    "aten::addmm": _product(1),
    "aten::bmm": _product(0),
    "aten::baddbmm": _product(1),
    **dict.fromkeys(_CONVOLUTIONS, _convolution),
    "aten::convolution_backward": _convolution_backward,
    **{f"aten::_scaled_dot_product_{kind}": _attention for kind in _ATTENTIONS},
    **{f"aten::_scaled_dot_product_{kind}_backward": _attention_backward for kind in _ATTENTIONS},
    "aten::_flash_attention_forward": _attention,
    "aten::_efficient_attention_forward": _attention,
    **dict.fromkeys((*_UNARY, *_NORMALISING), _first),
    **dict.fromkeys((*_BINARY, *_TERNARY), _broadcast),
    **dict.fromkeys(_COMPARING, _compared),
    **{name: _like(position) for name, position in _NORM_BACKWARD.items()},
}
"""Bytes written, by op; what is not here and not in place counts its inputs alone."""

OPERANDS = {
    **dict.fromkeys(_UNARY, 1),
    **dict.fromkeys((*_BINARY, *_COMPARING), 2),
    **dict.fromkeys(_TERNARY, 3),
}
"""How many tensors an op reads; one more is where ``out=`` has it write."""

SIMPLE = frozenset({*OPERANDS, *_NORMALISING, *_NORM_BACKWARD, *_REDUCING, *CHOOSING, *OVERWRITING})
"""Ops that do a few steps per number at most: memory bounds them, whatever they count."""


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
    return None if operands is None else _output_broadcast(call, operands)


def _output_broadcast(call: Call, operands: int) -> Shape:
    """As numpy and torch broadcast: from the last axis on, an axis of 1 fits any."""
    shapes = [list(call.shape(at)) for at in call.tensors()[:operands]]
    axes = max(map(len, shapes))
    padded = [[1] * (axes - len(shape)) + shape for shape in shapes]
    return [0 if 0 in sizes else max(sizes) for sizes in zip(*padded, strict=True)]


def _output_product(first: int) -> Callable[[Call], Shape]:
    """Of the operands at that position and the next."""
    return lambda call: [*call.shape(first)[:-1], call.shape(first + 1)[-1]]


def _output_convolution(call: Call) -> Shape:
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
    "aten::mm": _output_product(0),
    "aten::addmm": _output_product(1),
    "aten::bmm": _output_product(0),
    "aten::baddbmm": _output_product(1),
    "aten::linear": _linear,
    "aten::convolution": _output_convolution,
    "aten::_convolution": _output_convolution,
    **{f"aten::conv{axes}d": _conv for axes in (1, 2, 3)},
}
