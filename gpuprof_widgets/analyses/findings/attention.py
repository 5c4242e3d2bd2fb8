"""The finding on attention that is written out: its scores go through memory several times."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pandas as pd

from gpuprof_widgets.analyses.attribution import in_backward
from gpuprof_widgets.analyses.columns import format_count, format_ns, format_share
from gpuprof_widgets.analyses.findings.finding import (
    WORTH_NS,
    Finding,
    code,
    listed,
    run_ns,
    share_of,
    slice_range,
    spread,
)
from gpuprof_widgets.analyses.op_calls import Call, distinct_calls
from gpuprof_widgets.analyses.owners import forward_of
from gpuprof_widgets.trace import links
from gpuprof_widgets.trace.arrays import Ints, Rows
from gpuprof_widgets.trace.index import take
from gpuprof_widgets.trace.model import Record, Trace
from gpuprof_widgets.trace.schema import NONE

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
    "Use `torch.nn.functional.scaled_dot_product_attention`, with `is_causal=True` or "
    "`attn_mask=` for a mask. It does all of this in one op, which on most inputs never writes the "
    "scores to memory. It returns no weights. Some modules call it on request: "
    "`nn.MultiheadAttention` with `need_weights=False`, and Transformers with "
    '`attn_implementation="sdpa"`.'
)


def written_out_attention(
    record: Record, *, written_out_attention_share: float = 0.05
) -> list[Finding]:
    """Fires if what lies between the two products of attention took 5 % of the run or more.

    Attention is a batched product, a softmax of it, and a batched product with the result, called
    by the program itself; scaling, masks, biases and dropout may stand between them. If shapes were
    recorded, the second product has to take what the softmax returns. Silent on
    ``scaled_dot_product_attention`` and other single ops, whatever ops these call, and on what
    checkpoints compute again.

    Cost: the time of the ops between the products and of their backward ops, on the GPU if the run
    has GPU work. The products stay.

    Source: Dao et al., FlashAttention (2022).
    """
    trace = record.trace
    found = _with_scores(trace, list(_between_products(trace)))
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
        f"Attention was written out {format_count(len(found), 'time')}. The ops between its two "
        f"products, mostly {listed(names)}, took {format_ns(cost)}{where} "
        f"({format_share(share)} of the time). Each of these ops reads and writes all scores."
    )
    place = slice_range(trace, int(calls[took.argmax()]))
    return [Finding(text, cost, share, *place, spread(np.sort(calls)), REMEDY, title=TITLE)]


def _between_products(trace: Trace) -> Iterator[Rows]:
    """Yield the ops of each attention, in order: its first product, what is between, its second.

    Only ops that the program calls count, outside of the backward pass.
    """
    index = trace.index
    if not index.named(SOFTMAX).any() or not index.named(BATCHED).any():
        return
    called = index.is_op & index.on_tracks("cpu") & ~in_backward(trace)
    called &= index.outermost_op == np.arange(len(trace))
    rows = np.flatnonzero(called)
    rows = rows[np.lexsort((index.ts[rows], index.track[rows]))]
    is_product, is_softmax, is_other = (
        _first_below(trace, names)[rows] >= 0 for names in (BATCHED, SOFTMAX, OTHERS)
    )
    stops = np.flatnonzero(is_product | is_softmax | is_other)
    only_product = is_product & ~is_softmax & ~is_other
    only_softmax = is_softmax & ~is_product & ~is_other
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


def _first_below(trace: Trace, names: frozenset[str]) -> Rows:
    """Return per outermost op the first op of these names, it itself or below it; -1: none."""
    rows = np.flatnonzero(trace.index.named(names) & trace.index.is_op)[::-1]
    first = np.full(len(trace), NONE, np.intp)
    first[trace.index.outermost_op[rows]] = rows  # the last one written is the first
    return first


def _with_scores(trace: Trace, found: list[Rows]) -> list[Rows]:
    """Return those whose last op takes what the softmax returns, as far as recorded shapes tell."""
    softmax, product = _first_below(trace, SOFTMAX), _first_below(trace, BATCHED)
    pairs = [(int(softmax[rows].max()), int(product[rows[-1]])) for rows in found]
    calls, number = distinct_calls(trace, np.array(pairs, np.intp).reshape(-1))
    scores, taken = ([calls[each] for each in number[at::2].tolist()] for at in (0, 1))
    fitting = []
    for rows, of_softmax, of_product in zip(found, scores, taken, strict=True):
        matrix, operands = _matrices(of_softmax)[:1], _matrices(of_product)
        # The product may take them transposed, and on either side.
        if not any(matrix) or not any(operands) or matrix[0] in operands:
            fitting.append(rows)
    return fitting


def _matrices(call: Call) -> list[list[int]]:
    """Return the last two lengths of each argument, sorted; [] where none were recorded."""
    shapes = [shape[-2:] if isinstance(shape, list | tuple) else () for shape in call.dims]
    return [sorted(shape) if all(isinstance(n, int) for n in shape) else [] for shape in shapes]


def _times(trace: Trace, calls: Rows) -> tuple[Ints, bool]:
    """Return the time of each call with its backward ops, on the GPU where the run has GPU work."""
    index = trace.index
    of_call = np.full(len(trace), NONE, np.intp)
    of_call[calls] = np.arange(len(calls))
    forward = take(of_call, take(index.outermost_op, forward_of(trace)))
    if len(gpu := index.gpu):
        on_gpu = np.zeros(len(calls) + 1, np.int64)  # the last one: of no call
        here = take(of_call, take(index.outermost_op, index.column("op")[gpu]))
        np.add.at(on_gpu, np.where(here >= 0, here, forward[gpu]), index.dur[gpu])
        return on_gpu[:-1], True
    took = index.dur[calls]
    backward = np.flatnonzero(index.is_op & (index.column("forward") >= 0) & (forward >= 0))
    chosen = np.zeros(len(trace), bool)
    chosen[backward] = True
    # The innermost ones lie within others, whose time includes theirs.
    backward = backward[links.nearest_ancestor(index.parent, chosen)[backward] < 0]
    np.add.at(took, forward[backward], index.dur[backward])
    return took, False
