"""A Python function, rather than PyTorch, took the time."""

from __future__ import annotations

import re

from gpuprof_widgets.analyses.findings.finding import Finding
from gpuprof_widgets.analyses.findings.wording import code, share_of
from gpuprof_widgets.analyses.python_calls import function_labels, python_calls
from gpuprof_widgets.analyses.quantity import format_count, format_ns, format_share
from gpuprof_widgets.trace.model import Record

WORTH_A_LOOK = 0.1  # of all time that cProfile saw

PYTORCH = re.compile(
    r"[/\\]torch[/\\]|torch\.|of 'torch|run_backward|TensorBase|_VariableFunctions"
)
"""Functions whose time is that of the ops below them: the op table says it better."""


def python_time(record: Record) -> list[Finding]:
    """Fires for the function outside of PyTorch with the largest self time, from 10 % on."""
    table = python_calls(record)
    if not len(table):
        return []
    total = int(table["self_ns"].sum())
    place = table["file"].astype(str) + " " + table["name"].astype(str)
    table = table[~place.str.contains(PYTORCH).to_numpy(bool)]
    if not len(table) or share_of(table["self_ns"].iloc[0], total) < WORTH_A_LOOK:
        return []
    top, cost = table.iloc[0], int(table["self_ns"].iloc[0])
    share = share_of(cost, total)
    text = (
        f"The Python function {code(function_labels(table.head(1))[0])} itself took "
        f"{format_share(share)} of the time that cProfile saw ({format_ns(cost)} in "
        f"{format_count(top['calls'], 'call')})."
    )
    return [Finding("python_time", text, cost, share)]
