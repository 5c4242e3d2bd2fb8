"""The finding on attention that is written out: its scores go through memory several times."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt
import pandas as pd

from gpuprof_widgets.analyses.attribution import in_backward
from gpuprof_widgets.analyses.columns import format_count, format_ns, format_share
from gpuprof_widgets.analyses.findings.finding import (
    WORTH_NS,
    Finding,
    code,
    longest_slice,
    run_ns,
    share_of,
    slice_range,
    spread,
)
from gpuprof_widgets.analyses.op_calls import Call, distinct_calls
from gpuprof_widgets.analyses.owners import forward_of
from gpuprof_widgets.trace import links
from gpuprof_widgets.trace.model import Record, Trace
from gpuprof_widgets.trace.schema import NONE

Rows = npt.NDArray[np.intp]
Ints = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]

BATCHED = frozenset({"aten::bmm", "aten::baddbmm"})
"""The products of attention: one for each head of each sequence."""
SOFTMAX = frozenset({"aten::softmax", "aten::_softmax"})
OTHERS = frozenset(
    f"aten::{name}"
    for name in (
        *("mm", "addmm", "convolution", "nll_loss"),
        *("topk", "sort", "argmax", "multinomial", "one_hot", "cumsum", "gather", "nonzero"),
    )
)
"""Ops that stand within no attention, such as the layers around it and the choices of a gate."""
MOST_BETWEEN = 24
"""Ops at most between the softmax and a product: scaling, mask, position bias, dropout."""
NAMED = 3

TITLE = "Attention is written out: its scores go through memory"
REMEDY = (
    "`torch.nn.functional.scaled_dot_product_attention`, with `is_causal=True` or `attn_mask=` for "
    "a mask, does all of it in one op, which on most inputs never writes the scores to memory. "
    "Modules call it if told so: `need_weights=False` for `nn.MultiheadAttention`, "
    '`attn_implementation="sdpa"` for Transformers. It returns no weights.'
)


def written_out_attention(
    record: Record, *, written_out_attention_share: float = 0.05
) -> list[Finding]:
    """Fires where what lies between the two products of attention took 5 % of the run or more.

    Attention is a batched product, a softmax of it, and a batched product with the result, called
    by the program itself; scaling, masks, biases and dropout may stand between them. Where shapes
    were recorded, the second product has to take what the softmax returns. Silent on
    `scaled_dot_product_attention` and other single ops, whatever ops these call, and on what
    checkpoints compute again. The cost is the time of the ops between the products and of their
    backward ops, on the GPU where the run has GPU work: the products stay. Source: Dao et al.,
    FlashAttention (2022).

    ``written_out_attention_share``: Ops between the products of attention that is written out.
    """
    trace = record.trace
    found = [rows for rows in _between_products(trace) if _takes_scores(trace, rows)]
    if not found:
        return []
    calls = np.concatenate([rows[1:-1] for rows in found])
    took, on_gpu = _times(trace, calls)
    cost, run = int(took.sum()), run_ns(record)
    if cost < max(WORTH_NS, written_out_attention_share * run):
        return []
    share = share_of(cost, run)
    by_name = pd.Series(took).groupby(trace.index.names_of(calls)).sum().nlargest(NAMED)
    names = [code(str(name)) for name, ns in by_name.items() if ns > 0]
    where = " on the GPU" if on_gpu else ""
    text = (
        f"Attention was written out {format_count(len(found), 'time')}: the ops between its two "
        f"products, mostly {_listed(names)}, took {format_ns(cost)}{where} "
        f"({format_share(share)} of the time). Each of them reads and writes all scores."
    )
    worst = calls[np.argsort(-took, kind="stable")]
    place = slice_range(trace, longest_slice(trace, worst[:1]))
    return [Finding(text, cost, share, *place, spread(np.sort(calls)), REMEDY, title=TITLE)]


def _between_products(trace: Trace) -> Iterator[Rows]:
    """Yield the ops of each attention, in order: its first product, what is between, its second.

    Only ops that the program calls count, outside of the backward pass.
    """
    index = trace.index
    softmax = index.named(SOFTMAX) & index.is_op & index.on_tracks("cpu")
    if not softmax.any() or not index.named(BATCHED).any():
        return
    called = index.is_op & index.on_tracks("cpu") & ~in_backward(trace)
    called &= index.outermost_op == np.arange(len(trace))
    rows = np.flatnonzero(called)
    rows = rows[np.lexsort((index.ts[rows], index.track[rows]))]
    is_product, is_softmax, is_other = (
        _calls(trace, mask)[rows] for mask in (index.named(BATCHED), softmax, index.named(OTHERS))
    )
    stops = np.flatnonzero(is_product | is_softmax | is_other)
    only_product, only_softmax = (
        one & ~other & ~is_other
        for one, other in ((is_product, is_softmax), (is_softmax, is_product))
    )
    for at in range(1, len(stops) - 1):
        first, middle, last = stops[at - 1 : at + 2]
        is_attention = (
            only_softmax[middle]
            and only_product[[first, last]].all()
            and index.track[rows[first]] == index.track[rows[last]]
            and max(middle - first, last - middle) <= MOST_BETWEEN
        )
        if is_attention:
            yield rows[first : last + 1]


def _calls(trace: Trace, wanted: Mask) -> Mask:
    """Return which slices are one of the wanted ones, or have one below them."""
    outermost = trace.index.outermost_op[np.flatnonzero(wanted)]
    mask = np.zeros(len(trace), bool)
    mask[outermost[outermost >= 0]] = True
    return mask


def _listed(names: list[str]) -> str:
    return " and ".join(filter(None, (", ".join(names[:-1]), *names[-1:])))


def _takes_scores(trace: Trace, rows: Rows) -> bool:
    """Whether the last op takes what the softmax returns, as far as recorded shapes tell."""
    index = trace.index
    below = np.flatnonzero(np.isin(index.outermost_op, rows))
    softmax = below[index.named(SOFTMAX)[below]]
    product = below[index.named(BATCHED)[below] & (index.outermost_op[below] == rows[-1])]
    calls, number = distinct_calls(trace, np.array([softmax[0], product[0]]))
    scores, taken = (calls[each] for each in number.tolist())
    matrix = _matrix(scores, 0)
    operands = [_matrix(taken, at) for at in range(len(taken.dims))]
    # A product may take them transposed, and `torch.einsum` on either side.
    return not matrix or not any(operands) or sorted(matrix) in map(sorted, operands)


def _matrix(call: Call, at: int) -> list[int]:
    """Return the last two lengths of an argument; [] where none were recorded."""
    shape = call.dims[at] if at < len(call.dims) else None
    lengths = shape[-2:] if isinstance(shape, list | tuple) else ()
    return list(lengths) if all(isinstance(length, int) for length in lengths) else []


def _times(trace: Trace, calls: Rows) -> tuple[Ints, bool]:
    """Return the time of each call with its backward ops, on the GPU where the run has GPU work."""
    index = trace.index
    behind = forward_of(trace)
    caller = np.append(index.outermost_op, NONE)
    of_call = np.full(len(trace) + 1, NONE, np.intp)
    of_call[calls] = np.arange(len(calls))
    forward = of_call[caller[behind]]
    if len(gpu := index.gpu):
        on_gpu = np.zeros(len(calls) + 1, np.int64)
        here = of_call[caller[index.column("op")[gpu]]]
        np.add.at(on_gpu, np.where(here >= 0, here, forward[gpu]), index.dur[gpu])
        return on_gpu[:-1], True
    took = np.append(index.dur[calls], 0)
    backward = np.flatnonzero(index.is_op & (index.column("forward") >= 0) & (forward >= 0))
    backward = backward[~_within(trace, backward)]
    np.add.at(took, forward[backward], index.dur[backward])
    return took[:-1], False


def _within(trace: Trace, rows: Rows) -> Mask:
    """Return which of these slices lie within another one of them."""
    chosen = np.zeros(len(trace), bool)
    chosen[rows] = True
    return links.nearest_ancestor(trace.index.parent, chosen)[rows] >= 0
