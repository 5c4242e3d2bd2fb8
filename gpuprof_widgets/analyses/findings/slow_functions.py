"""Advice on Python functions that are slow by nature, by the names by which users know them."""

from __future__ import annotations

import re

import pandas as pd

from gpuprof_widgets.analyses.findings.finding import code, function_name
from gpuprof_widgets.analyses.line_holders import Holder, selected
from gpuprof_widgets.analyses.python_calls import calls_modules, function_labels, library_names
from gpuprof_widgets.trace.model import Record
from gpuprof_widgets.trace.pstats import BUILT_IN

SORTS = (
    "sorts all elements each time. Sort once at the end, insert into the sorted list (`bisect`), "
    "or sort a tensor (`torch.sort`)."
)
ELEMENTS = (
    "makes or looks up one row or element at a time. Take all values at once before the loop "
    "(`frame.to_numpy()`)."
)
ADVICE = {
    "copy.deepcopy": "copies every object that it reaches, one by one. Copy less often, or copy "
    "only what changes (a state dict: `{key: value.clone() for key, value in ...}`).",
    "list.index": "searches the list from its start in each call. Make a dict once: it finds the "
    "position at once.",
    "list.count": "goes through the whole list in each call. Count all elements at once "
    "(`collections.Counter`).",
    "list.remove": "searches the list in each call, and moves all elements that follow. Use a set, "
    "a dict or `collections.deque`.",
    "list.sort": SORTS,
    "sorted": SORTS,
    "pandas.core.series.__getitem__": ELEMENTS,
    "pandas.core.indexing.__getitem__": ELEMENTS,
    "pandas.core.frame.iterrows": ELEMENTS,
}


MAKES_TENSORS = re.compile(r"^<built-in method torch\.(arange|eye|full|linspace|logspace|ones)>")
"""Functions that make the same tensor of the same arguments, and seldom a buffer."""
PRODUCTS = re.compile(r"mm\b|matmul|conv|linear|einsum|softmax|attention")
"""Names of what computes with the inputs of a model."""
AGAIN = 3
"""Calls from which on a function is called again and again."""
MADE_ANEW = (
    "{function} makes new tensors with {made_with} in each call. If they are always the same, make "
    "them once (in `__init__`, with `register_buffer`)."
)


def known_names(functions: pd.DataFrame) -> list[str]:
    """Return ``list.index``, ``sorted`` or ``copy.deepcopy`` for functions not of the user."""
    built_in = (functions["file"] == BUILT_IN).tolist()
    pairs = zip(built_in, function_labels(functions), library_names(functions), strict=True)
    return [
        function_name(label).removeprefix("builtins.") if is_built_in else name
        for is_built_in, label, name in pairs
    ]


def advice_on(function: pd.Series) -> str:
    """Return what to do about a function (a row of `Calls.functions`) called often, or ""."""
    (name,) = known_names(function.to_frame().T)
    often = int(function["calls"]) >= AGAIN
    return f"{code(name)} {ADVICE[name]}" if often and name in ADVICE else ""


def advice_in_line(record: Record, holder: Holder, callee: pd.DataFrame | None) -> str:
    """Return what to do about the function that has much of a line; ``callee``: its main one.

    One that makes tensors in each of many calls may do without, but not one that calls modules, as
    a step of a training does, nor one that the cell calls itself.
    """
    if callee is not None and (advice := advice_on(callee.iloc[0])):
        return advice
    calls = record.calls
    if calls is None or holder.function is None:
        return ""
    if callee is not None and PRODUCTS.search(known_names(callee)[0]):
        return ""
    functions, edges = calls.functions, calls.edges
    is_it = selected(functions, holder.function)
    caller, called = (edges[end].to_numpy() for end in ("caller", "callee"))
    names, counted = functions["name"].astype(str), functions["calls"].to_numpy()[is_it].sum()
    from_cell = (names == "<module>").to_numpy(bool)[caller[is_it[called]]].any()
    calls_on = calls_modules(functions)[called[is_it[caller]]].any()
    if counted < AGAIN or from_cell or calls_on:
        return ""
    in_each = is_it[caller] & (edges["calls"].to_numpy() >= counted)
    made = names.iloc[called[in_each]].str.extract(MAKES_TENSORS, expand=False).dropna()
    made_with = " and ".join(code(f"torch.{name}") for name in sorted(set(made))[:2])
    return MADE_ANEW.format(function=code(holder.name), made_with=made_with) if made_with else ""
