"""Which op the GPU worked for."""

from __future__ import annotations

import numpy as np
import pandas as pd

from gpuprof_widgets.analyses.findings.finding import Finding, of_gpu_work
from gpuprof_widgets.analyses.findings.instances import are_op_names, longest_call
from gpuprof_widgets.analyses.findings.wording import code, kernel_code, run_ns, share_of
from gpuprof_widgets.analyses.gpu_kinds import COPY, MEMSET, gpu_kinds
from gpuprof_widgets.analyses.lacking import SHAPES, not_recorded
from gpuprof_widgets.analyses.operators import operators
from gpuprof_widgets.analyses.quantity import format_count, format_ns, format_share
from gpuprof_widgets.analyses.roofline import MEMORY_BOUND, roofline
from gpuprof_widgets.analyses.table_with_reason import what_is_lacking
from gpuprof_widgets.trace.model import Record, Trace

NO_SHAPES = (
    "With recorded shapes (--shapes) the profile tells how close that comes to what the GPU can do "
    "(roofline)."
)
UNKNOWN_WORK = (
    "{share} of that is the kernel {kernel}, whose work is not known: look whether narrower types, "
    "other sizes or another library have a faster one."
)
MANY_KERNELS = (
    "None of its {count} kernels takes a third of that, and what work they have is not known: look "
    "whether narrower types, other sizes or another library take less."
)
COPYING = "{share} of that is the copy {kernel}: leave data where it is. {otherwise}"
TO_OR_FROM_THE_HOST = (
    "Or copy it while the GPU computes: pinned memory, non_blocking=True, a stream of its own."
)
ON_GPUS = "Views and ops in place need none."
SETTING = (
    "{share} of that is {kernel}: what is overwritten anyway need not be set before (torch.empty)."
)
MOVES_DATA = (
    "{it} mostly moves data, at {share} of the GPU's memory bandwidth: fuse it with the ops before "
    "and after it, which then move less{narrower}."
)
CACHED = (
    "{it} mostly moves data, and faster than the GPU's memory could ({share} of its bandwidth), as "
    "a cache has part of it: only less work makes it shorter{narrower}."
)
NEAR_THE_PEAK = (
    "{it} computes at {share} of the GPU's peak in {dtype}: only less work makes it "
    "shorter{narrower}."
)
FAR_FROM_THE_PEAK = (
    "{it} computes at {share} of the GPU's peak in {dtype}: larger batches or sizes fill the GPU "
    "better{narrower}."
)
FAR_FROM_THE_BANDWIDTH = (
    "{it} reaches {share} of what the GPU's memory bandwidth allows: too little work at a time to "
    "fill the GPU, or kernels that do not fit these sizes. Make batches or sizes larger, or one "
    "call of many."
)
OVER_THE_PEAK = (
    "By its shapes {it} would compute at {share} of the GPU's peak in {dtype}, which cannot be: "
    "its kernels do less than that (sparse, or another algorithm), or in a faster format."
)
NEAR = 0.6
"""Of the peak: what good kernels for large products reach."""
FAR = 0.1
"""Of the bandwidth: what even simple kernels exceed that have enough to move."""
ALMOST_ALL = 0.95
"""Of an op's time, from which on what is known of it is said of the op."""
WIDER_THAN_16_BITS = ("fp64", "fp32", "tf32")
STANDS_OUT = 1 / 3
"""Of an op's time, from which on one of its kernels is worth naming."""
OF_THE_RUN = 0.02  # below it, the GPU's work is not what the run waits for


@of_gpu_work
def gpu_ops(record: Record, *, gpu_op_share: float = 0.1) -> list[Finding]:
    """Fires for the op that launched most GPU time: a tenth of it and 2 % of the run, or more.

    ``gpu_op_share``: Of all GPU time: an op that is named.
    """
    table = operators(record, sort="device_self")
    table = table[are_op_names(table) & (table["device_self_ns"] > 0)]
    if not len(table) or table["device_self_share"].iloc[0] < gpu_op_share:
        return []
    top = table.iloc[0]
    cost = int(top["device_self_ns"])
    share = share_of(cost, run_ns(record))
    if share < OF_THE_RUN:
        return []
    text = (
        f"{code(top['name'])} caused {format_share(top['device_self_share'])} of the GPU's work "
        f"({format_ns(cost)} in {format_count(top['calls'], 'call')})"
        f"{_next(table.iloc[1:3], gpu_op_share)}."
    )
    where = longest_call(record, top["name"], "cpu_op")
    return [Finding(text, cost, share, remedy=_remedy(record, top["name"]), **where)]


def _remedy(record: Record, name: str) -> str:
    """About its copies where they stand out; else by how close its kernels come to the roof."""
    kernels = _kernels(record.trace, name)
    if said := _of_copies(kernels):
        return said
    table = roofline(record)
    if what_is_lacking(table) == not_recorded(record, SHAPES):
        return NO_SHAPES
    own = table[table["name"] == name]
    known = own[(own["bound"] != "") & own["roof_share"].notna()]
    if not len(known):
        return _of_unknown_work(kernels)
    longest = known.iloc[0]
    dtype = str(longest["dtype"])
    narrower = ", or compute in 16 bits" if dtype in WIDER_THAN_16_BITS else ""
    share, it = format_share(longest["roof_share"]), _part(longest, own)
    said = _against_the_roof(longest).format(it=it, share=share, dtype=dtype, narrower=narrower)
    return said[0].upper() + said[1:]


def _kernels(trace: Trace, op: str) -> pd.DataFrame:
    """The op's kernels, copies and memsets, the longest first: ``name``, ``kind``, ``share``."""
    rows, kinds = gpu_kinds(trace)
    called = np.append(trace.index.named(frozenset({op})), False)
    mine = called[trace.index.column("op")[rows]]
    rows = rows[mine]
    dur = trace.index.dur[rows]
    columns = {"name": trace.index.texts_of(rows), "kind": kinds[mine], "share": dur / dur.sum()}
    each = pd.DataFrame(columns)
    table = each.groupby(["name", "kind"], sort=False)["share"].sum().reset_index()
    return table.sort_values("share", ascending=False, kind="stable")


def _of_copies(kernels: pd.DataFrame) -> str:
    """What to do where a copy or a memset takes most; "" where a kernel does."""
    top = kernels.iloc[0]
    share, kernel = format_share(top["share"]), code(str(top["name"]))
    if top["share"] < STANDS_OUT or top["kind"] not in (COPY, MEMSET):
        return ""
    if top["kind"] == MEMSET:
        return SETTING.format(share=share, kernel=kernel)
    with_host = any(way in str(top["name"]) for way in ("HtoD", "DtoH"))
    otherwise = TO_OR_FROM_THE_HOST if with_host else ON_GPUS
    return COPYING.format(share=share, kernel=kernel, otherwise=otherwise)


def _of_unknown_work(kernels: pd.DataFrame) -> str:
    """Which kernel took most of the op's time on the GPU, where one stands out."""
    top = kernels.iloc[0]
    if top["share"] < STANDS_OUT:
        return MANY_KERNELS.format(count=len(kernels))
    return UNKNOWN_WORK.format(
        share=format_share(top["share"]), kernel=kernel_code(str(top["name"]))
    )


def _part(row: pd.Series, own: pd.DataFrame) -> str:
    """Of which part of the op a row of the roofline tells, unless that is almost all of it."""
    share = share_of(row["time_ns"], own["time_ns"].sum())
    if share >= ALMOST_ALL:
        return "it"
    calls = format_count(row["calls"], "call")
    in_format = f" in {row['dtype']}" if row["dtype"] else ""
    return f"for {format_share(share)} of its time ({calls}{in_format}) it"


def _against_the_roof(row: pd.Series) -> str:
    """What to do about an op, by its bound and by how much of the roof it reaches."""
    reached = float(row["roof_share"])
    if row["bound"] == MEMORY_BOUND:
        if reached < FAR:
            return FAR_FROM_THE_BANDWIDTH
        return MOVES_DATA if reached <= 1 else CACHED
    if reached > 1:
        return OVER_THE_PEAK
    return NEAR_THE_PEAK if reached >= NEAR else FAR_FROM_THE_PEAK


def _next(rest: pd.DataFrame, least_share: float) -> str:
    """The ops that come next, where they matter too."""
    matter = rest[rest["device_self_share"] >= least_share]
    named = [
        f"{code(name)} {format_share(share)}"
        for name, share in zip(matter["name"], matter["device_self_share"], strict=True)
    ]
    return f"; then {', '.join(named)}" if named else ""
