"""Which op the GPU worked for."""

from __future__ import annotations

import pandas as pd

from gpuprof_widgets.analyses.findings.finding import Finding
from gpuprof_widgets.analyses.findings.instances import are_op_names, longest_call
from gpuprof_widgets.analyses.findings.limits import Limits
from gpuprof_widgets.analyses.findings.wording import code, run_ns, share_of
from gpuprof_widgets.analyses.operators import operators
from gpuprof_widgets.analyses.quantity import format_count, format_ns, format_share
from gpuprof_widgets.trace.model import Record

OF_THE_RUN = 0.02  # below it, the GPU's work is not what the run waits for


def gpu_ops(record: Record, limits: Limits) -> list[Finding]:
    """Fires for the op that launched most GPU time: a tenth of it and 2 % of the run, or more."""
    table = operators(record, sort="device_self")
    table = table[are_op_names(table) & (table["device_self_ns"] > 0)]
    if not len(table) or table["device_self_share"].iloc[0] < limits.gpu_op_share:
        return []
    top = table.iloc[0]
    cost = int(top["device_self_ns"])
    share = share_of(cost, run_ns(record))
    if share < OF_THE_RUN:
        return []
    text = (
        f"{code(top['name'])} caused {format_share(top['device_self_share'])} of the GPU's work "
        f"({format_ns(cost)} in {format_count(top['calls'], 'call')})"
        f"{_next(table.iloc[1:3], limits)}."
    )
    return [Finding("gpu_ops", text, cost, share, **longest_call(record, top["name"], "cpu_op"))]


def _next(rest: pd.DataFrame, limits: Limits) -> str:
    """The ops that come next, where they matter too."""
    matter = rest[rest["device_self_share"] >= limits.gpu_op_share]
    named = [
        f"{code(name)} {format_share(share)}"
        for name, share in zip(matter["name"], matter["device_self_share"], strict=True)
    ]
    return f"; then {', '.join(named)}" if named else ""
