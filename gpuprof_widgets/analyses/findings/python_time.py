"""A Python function, rather than PyTorch, took the time."""

from __future__ import annotations

import re

import numpy as np
import numpy.typing as npt
import pandas as pd

from gpuprof_widgets.analyses.findings.finding import Finding
from gpuprof_widgets.analyses.findings.wording import code, share_of
from gpuprof_widgets.analyses.python_calls import function_labels, python_calls
from gpuprof_widgets.analyses.quantity import format_count, format_ns, format_share
from gpuprof_widgets.trace.model import Record

WORTH_A_LOOK = 0.1  # of the time of all Python functions
WORTH_READING_NS = 1_000_000  # below it nobody waits, whatever the share

PYTORCH = re.compile(
    r"[/\\]torch[/\\]|torch\.|of 'torch|run_backward|TensorBase|_VariableFunctions"
)
"""Functions whose time is that of the ops below them: the op table says it better."""

BUILTIN = re.compile(r"^<(?:built-in )?(?:method|function) '?(\w+)'?")


def python_time(record: Record) -> list[Finding]:
    """Fires for the function outside of PyTorch with most self time, from 10 % and 1 ms on."""
    table = python_calls(record)
    if not len(table):
        return []
    total = int(table["self_ns"].sum())
    table = table[~_is_pytorch(record, table)]
    if not len(table):
        return []
    top, cost = table.iloc[0], int(table["self_ns"].iloc[0])
    share = share_of(cost, total)
    if share < WORTH_A_LOOK or cost < WORTH_READING_NS:
        return []
    text = (
        f"The Python function {code(function_labels(table.head(1))[0])} itself took "
        f"{format_share(share)} of the Python time ({format_ns(cost)} in "
        f"{format_count(top['calls'], 'call')})."
    )
    return [Finding("python_time", text, cost, share)]


def _is_pytorch(record: Record, table: pd.DataFrame) -> npt.NDArray[np.bool_]:
    """PyTorch's own functions; built-in ones also by the name of an op that the trace holds."""
    place = table["file"].astype(str) + " " + table["name"].astype(str)
    ops = {str(name) for name in record.trace.slices["name"].cat.categories}
    builtin = table["name"].astype(str).str.extract(BUILTIN, expand=False).fillna("")
    is_op = np.array([f"aten::{name}" in ops for name in builtin], bool)
    known: npt.NDArray[np.bool_] = place.str.contains(PYTORCH).to_numpy(bool) | is_op
    return known
