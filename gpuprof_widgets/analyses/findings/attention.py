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
from gpuprof_widgets.analyses.op_calls import distinct_calls
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
OF_SCORES = SOFTMAX | {"aten::masked_fill", "aten::masked_fill_"}
"""Ops of which hardly anything but attention makes costly ones."""
OTHER_PRODUCTS = frozenset({"aten::mm", "aten::addmm", "aten::convolution"})
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
    `scaled_dot_product_attention` and other single ops, whatever ops these call. The cost is the
    time of the ops between the products, on the GPU where they ran there, and of their backward
    ops: the products stay. Source: Dao et al., FlashAttention (2022).

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
    kinds = {
        "batched": _calls(trace, index.named(BATCHED)),
        "other": _calls(trace, index.named(OTHER_PRODUCTS)),
        "softmax": _calls(trace, softmax),
    }
    is_kind = {kind: mask[rows] for kind, mask in kinds.items()}
    stops = np.flatnonzero(is_kind["batched"] | is_kind["other"] | is_kind["softmax"])
    for at in range(1, len(stops) - 1):
        first, middle, last = stops[at - 1 : at + 2]
        is_attention = (
            is_kind["softmax"][middle]
            and is_kind["batched"][[first, last]].all()
            and len(set(index.track[rows[[first, last]]].tolist())) == 1
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
    softmax = rows[np.isin(trace.index.names_of(rows), tuple(SOFTMAX))]
    if not len(softmax):
        return True
    calls, number = distinct_calls(trace, np.array([softmax[0], rows[-1]]))
    scores, product = (calls[each] for each in number.tolist())
    if not scores.is_tensor(0) or not (product.is_tensor(0) and product.is_tensor(1)):
        return True
    matrix = list(scores.shape(0)[-2:])
    return matrix == list(product.shape(0)[-2:]) or matrix[::-1] == list(product.shape(1)[-2:])


def _times(trace: Trace, calls: Rows) -> tuple[Ints, bool]:
    """Return the time of each call with its backward ops, on the GPU if any of it ran there."""
    index = trace.index
    behind = forward_of(trace)
    caller = np.append(index.outermost_op, NONE)
    of_call = np.full(len(trace) + 1, NONE, np.intp)
    of_call[calls] = np.arange(len(calls))
    forward = of_call[caller[behind]]
    on_gpu = np.zeros(len(calls) + 1, np.int64)
    gpu = index.gpu
    here = of_call[caller[index.column("op")[gpu]]]
    np.add.at(on_gpu, np.where(here >= 0, here, forward[gpu]), index.dur[gpu])
    if on_gpu[:-1].any():
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
