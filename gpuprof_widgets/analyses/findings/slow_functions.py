"""Advice on Python functions that are slow by nature, by the names by which users know them."""

from __future__ import annotations

import pandas as pd

from gpuprof_widgets.analyses.findings.finding import code, function_name
from gpuprof_widgets.analyses.python_calls import function_labels, library_names
from gpuprof_widgets.trace.pstats import BUILT_IN

SORTS = (
    "sorts all elements each time: sort once at the end, insert into what is sorted (`bisect`), "
    "or sort a tensor (`torch.sort`)."
)
ADVICE = {
    "copy.deepcopy": "copies every object that it reaches, one by one: copy less often, or only "
    "what changes (a state dict: `{key: value.clone() for key, value in ...}`).",
    "list.index": "searches the list from its start in each call: a dict made once finds the "
    "position at once.",
    "list.count": "goes through the whole list in each call: count all at once "
    "(`collections.Counter`).",
    "list.remove": "searches the list and moves what follows in each call: use a set, a dict or "
    "`collections.deque`.",
    "list.sort": SORTS,
    "builtins.sorted": SORTS,
}


def advice_on(functions: pd.DataFrame) -> list[str]:
    """Return what to do about each of these functions (``file``, ``line``, ``name``), or ""."""
    built_in = (functions["file"] == BUILT_IN).tolist()
    pairs = zip(built_in, function_labels(functions), library_names(functions), strict=True)
    names = [function_name(label) if is_built_in else name for is_built_in, label, name in pairs]
    return [f"{code(name)} {ADVICE[name]}" if name in ADVICE else "" for name in names]
