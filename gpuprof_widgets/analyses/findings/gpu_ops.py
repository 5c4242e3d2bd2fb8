"""Which op the GPU worked for."""

from __future__ import annotations

import pandas as pd

from gpuprof_widgets.analyses.findings.finding import Finding
from gpuprof_widgets.analyses.findings.instances import are_op_names, longest_call
from gpuprof_widgets.analyses.findings.limits import Limits
from gpuprof_widgets.analyses.findings.wording import code, run_ns, share_of
from gpuprof_widgets.analyses.lacking import SHAPES, not_recorded, what_is_lacking
from gpuprof_widgets.analyses.operators import operators
from gpuprof_widgets.analyses.quantity import format_count, format_ns, format_share
from gpuprof_widgets.analyses.roofline import roofline
from gpuprof_widgets.trace.model import Record

NO_SHAPES = (
    "With recorded shapes the profile tells how close that comes to what the GPU can do (roofline)."
)
MEMORY_BOUND = (
    "It mostly moves data, at {share} of the GPU's memory bandwidth: fuse it with the ops before "
    "and after it, which then move less{narrower}."
)
NEAR_THE_PEAK = (
    "It computes at {share} of the GPU's peak in {dtype}: only less work makes it "
    "shorter{narrower}."
)
FAR_FROM_THE_PEAK = (
    "It computes at {share} of the GPU's peak in {dtype}: larger batches or sizes fill the GPU "
    "better{narrower}."
)
NEAR = 0.6
"""Of the peak: what good kernels for large products reach."""
SIXTEEN_BITS = ("fp16", "bf16", "fp8")
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
    where = longest_call(record, top["name"], "cpu_op")
    return [Finding("gpu_ops", text, cost, share, remedy=_remedy(record, top["name"]), **where)]


def _remedy(record: Record, name: str) -> str:
    """By how close the op's kernels come to the roof over them; "" where that is not known."""
    table = roofline(record)
    if what_is_lacking(table) == not_recorded(record, SHAPES):
        return NO_SHAPES
    known = table[(table["name"] == name) & (table["bound"] != "") & table["roof_share"].notna()]
    if not len(known):
        return ""
    top = known.iloc[0]
    reached, dtype = float(top["roof_share"]), str(top["dtype"])
    narrower = "" if dtype in SIXTEEN_BITS else ", or compute in 16 bits"
    if top["bound"] == "memory":
        return MEMORY_BOUND.format(share=format_share(min(reached, 1.0)), narrower=narrower)
    by_size = NEAR_THE_PEAK if reached >= NEAR else FAR_FROM_THE_PEAK
    return by_size.format(share=format_share(min(reached, 1.0)), dtype=dtype, narrower=narrower)


def _next(rest: pd.DataFrame, limits: Limits) -> str:
    """The ops that come next, where they matter too."""
    matter = rest[rest["device_self_share"] >= limits.gpu_op_share]
    named = [
        f"{code(name)} {format_share(share)}"
        for name, share in zip(matter["name"], matter["device_self_share"], strict=True)
    ]
    return f"; then {', '.join(named)}" if named else ""
