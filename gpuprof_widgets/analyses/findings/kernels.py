"""Findings on GPU kernels: the op that causes most GPU work, tensor cores, precision and sizes."""

from __future__ import annotations

import pandas as pd

from gpuprof_widgets.analyses.columns import format_count, format_ns, format_share
from gpuprof_widgets.analyses.critical_path import gpu_path_saving_ns
from gpuprof_widgets.analyses.findings.finding import (
    EVIDENCE,
    Finding,
    Place,
    are_op_names,
    code,
    kernel_code,
    place_in,
    place_of,
    run_ns,
    share_of,
    shorter,
)
from gpuprof_widgets.analyses.gpu_work import COMMUNICATION, COPY, MEMSET, gpu_kinds
from gpuprof_widgets.analyses.operators import operators
from gpuprof_widgets.analyses.reasons import SHAPES, why_empty
from gpuprof_widgets.analyses.roofline import MEMORY_BOUND, roofline
from gpuprof_widgets.analyses.tensor_cores import (
    HALF_SAVED,
    HALVES,
    capability,
    products,
    unaligned,
)
from gpuprof_widgets.trace.arrays import Mask, Rows
from gpuprof_widgets.trace.index import take
from gpuprof_widgets.trace.model import Record, Trace

NO_SHAPES = (
    "Record shapes (--shapes, record_shapes=True) to see how close that comes to what the GPU can "
    "do (roofline)."
)
UNKNOWN_WORK = (
    "The kernel {kernel} takes {share} of that time, and its work is not known. Check whether "
    "narrower types, other sizes or another library have a faster kernel."
)
MANY_KERNELS = (
    "The time is spread over {count} kernels, whose work is not known. Narrower types or other "
    "sizes may take less time."
)
COPYING = "The copy {kernel} takes {share} of that time: leave data where it is. {otherwise}"
TO_OR_FROM_THE_HOST = (
    "Or copy it while the GPU computes: use pinned memory, non_blocking=True and a separate stream."
)
ON_GPUS = "Views and ops in place need no copy."
SETTING = (
    "{kernel} takes {share} of that time: do not initialise what is overwritten anyway "
    "(torch.empty)."
)
MOVES_DATA = (
    "{it} mostly moves data, at {share} of the GPU's memory bandwidth. Fuse it with the ops before "
    "and after it, so that they move less.{narrower}"
)
CACHED = (
    "{it} mostly moves data, at {share} of the GPU's memory bandwidth: part of the data comes from "
    "a cache. Only less work makes it shorter.{narrower}"
)
NEAR_THE_PEAK = (
    "{it} computes at {share} of the GPU's peak in {dtype}. Only less work makes it "
    "shorter.{narrower}"
)
FAR_FROM_THE_PEAK = (
    "{it} computes at {share} of the GPU's peak in {dtype}. Use larger batches or sizes, which "
    "fill the GPU better.{narrower}"
)
FAR_FROM_THE_BANDWIDTH = (
    "{it} reaches {share} of the GPU's memory bandwidth. Each call has too little work to fill the "
    "GPU, or its kernels do not suit these sizes. Use larger batches or sizes, or merge many calls "
    "into one."
)
OVER_THE_PEAK = (
    "By its shapes, {it} would compute at {share} of the GPU's peak in {dtype}, which is "
    "impossible. Its kernels do less work than that (sparse, or another algorithm), or compute in "
    "a faster format."
)
NEAR = 0.6
"""Share of the peak that good kernels for large products reach."""
FAR = 0.1
"""Share of the bandwidth that even simple kernels exceed when they have enough to move."""
ALMOST_ALL = 0.95
"""Share of an op's time from which on a part of it stands for the op."""
WIDER_THAN_16_BITS = ("fp64", "fp32", "tf32")
STANDS_OUT = 1 / 3
"""Share of an op's time from which on one of its kernels is worth naming."""
GPU_OP_SHARE = 0.1
OF_THE_RUN = 0.02
"""Share of the run below which the run does not wait for the op's GPU work."""


def gpu_ops(record: Record, *, gpu_op_share: float = GPU_OP_SHARE) -> list[Finding]:
    """Fires for the op that launched most GPU time, from a tenth of it and 2 % of the run on.

    Communication, which mostly belongs to regions, is no op; it is named if it takes more.

    Cost: the GPU time that the op launched itself.
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
    more = more_communication(record, str(top["name"]), cost)
    text = (
        f"{code(top['name'])} caused {format_ns(cost)} of GPU work in "
        f"{format_count(top['calls'], 'call')} ({format_share(share)} of the time, "
        f"{format_share(top['device_self_share'])} of all GPU work)"
    )
    text += f". Only communication takes more ({format_share(more)})" if more else ""
    named = [
        f"{code(row['name'])} ({format_share(row['device_self_share'])})"
        for row in table.iloc[1:3].to_dict("records")
        if row["device_self_share"] >= gpu_op_share
    ]
    text += f". Next: {' and '.join(named)}." if named else "."
    gpu = record.trace.index.gpu  # where the op's calls are long is elsewhere
    where = place_of(record.trace, gpu[called_by(record.trace, str(top["name"]), gpu)])
    title = f"{code(top['name'])} causes the most GPU work{' after communication' if more else ''}"
    remedy = _remedy(record, top["name"])
    return [Finding(text, cost, share, remedy=remedy, title=title, **where)]


def more_communication(record: Record, op: str, op_ns: int) -> float:
    """Return the share of all GPU time in communication that others than this op launched.

    0 where that is no more than the time of the op.
    """
    rows, kinds = gpu_kinds(record.trace)
    others = (kinds == COMMUNICATION) & ~called_by(record.trace, op, rows)
    dur = record.trace.index.dur[rows]
    others_ns = int(dur[others].sum())
    return others_ns / int(dur.sum()) if others_ns > op_ns else 0.0


def called_by(trace: Trace, op: str, rows: Rows) -> Mask:
    """Whether calls of this op launched each of these slices."""
    return take(trace.index.named(frozenset({op})), trace.index.column("op")[rows], False)


def _remedy(record: Record, name: str) -> str:
    """Return the remedy: for copies where they stand out, else by distance from the roofline."""
    kernels = _kernels(record.trace, name)
    top = kernels.iloc[0]
    stands_out, kernel, share = top["share"] >= STANDS_OUT, str(top["name"]), top["share"]
    if stands_out and top["kind"] == MEMSET:
        return SETTING.format(share=format_share(share), kernel=code(kernel))
    if stands_out and top["kind"] == COPY:
        with_host = any(way in kernel for way in ("HtoD", "DtoH"))
        otherwise = TO_OR_FROM_THE_HOST if with_host else ON_GPUS
        return COPYING.format(share=format_share(share), kernel=code(kernel), otherwise=otherwise)
    table = roofline(record)
    if why_empty(table) == SHAPES:
        return NO_SHAPES
    of_op = table[table["name"] == name]
    known = of_op[(of_op["bound"] != "") & of_op["roof_share"].notna()]
    if not len(known) and not stands_out:
        return MANY_KERNELS.format(count=len(kernels))
    if not len(known):
        return UNKNOWN_WORK.format(share=format_share(share), kernel=kernel_code(kernel))
    longest = known.iloc[0]
    dtype = str(longest["dtype"])
    narrower = " Or compute in 16 bits." if dtype in WIDER_THAN_16_BITS else ""
    reached, it = format_share(longest["roof_share"]), _part(longest, of_op)
    text = _against_the_roof(longest).format(it=it, share=reached, dtype=dtype, narrower=narrower)
    return text[0].upper() + text[1:]


def _kernels(trace: Trace, op: str) -> pd.DataFrame:
    """Return the op's kernels, copies and memsets, longest first: ``name``, ``kind``, ``share``."""
    rows, kinds = gpu_kinds(trace)
    of_op = called_by(trace, op, rows)
    rows = rows[of_op]
    dur = trace.index.dur[rows]
    columns = {"name": trace.index.texts_of(rows), "kind": kinds[of_op], "share": dur / dur.sum()}
    slices = pd.DataFrame(columns)
    table = slices.groupby(["name", "kind"], sort=False)["share"].sum().reset_index()
    return table.sort_values("share", ascending=False, kind="stable")


def _part(row: pd.Series, of_op: pd.DataFrame) -> str:
    """Name the part of the op that a row of the roofline covers; "it" where that is almost all."""
    share = share_of(row["time_ns"], of_op["time_ns"].sum())
    if share >= ALMOST_ALL:
        return "it"
    calls = format_count(row["calls"], "call")
    in_format = f" in {row['dtype']}" if row["dtype"] else ""
    return f"for {format_share(share)} of its time ({calls}{in_format}), it"


def _against_the_roof(row: pd.Series) -> str:
    """Return the remedy by the op's bound and its share of the roofline."""
    reached = float(row["roof_share"])
    if row["bound"] == MEMORY_BOUND:
        if reached < FAR:
            return FAR_FROM_THE_BANDWIDTH
        return MOVES_DATA if reached <= 1 else CACHED
    if reached > 1:
        return OVER_THE_PEAK
    return NEAR_THE_PEAK if reached >= NEAR else FAR_FROM_THE_PEAK


VOLTA, AMPERE = 7, 8
"""Major compute capabilities: the first with tensor cores, the first with TF32 and bfloat16."""
TF32_REMEDY = (
    "`torch.set_float32_matmul_precision('high')` lets products of fp32 run on tensor cores as "
    "TF32, which has 10 instead of 23 bits of mantissa. Autocast to bfloat16 saves more."
)

FP32_MATMUL_SHARE = 0.05
PRECISION_SAVING_SHARE = 0.005


def fp32_matmul(
    record: Record,
    *,
    fp32_matmul_share: float = FP32_MATMUL_SHARE,
    precision_saving_share: float = PRECISION_SAVING_SHARE,
) -> list[Finding]:
    """Fires if products in plain fp32 took 5 % of the GPU's time on an Ampere or newer GPU.

    Convolutions use TF32 by default.

    Cost: what the products on the critical path would save in TF32, at the same share of the
    roofline.

    Source: torch's FP32MatMulPattern. It reads the setting, which no trace holds: here the names of
    the kernels tell.
    """
    major = capability(record)
    table = _gpu_products(record)
    pieces = table[_in_plain_fp32(table, major, fp32_matmul_share)]
    if not len(pieces):
        return []
    time, whole = int(pieces["time_ns"].sum()), int(table["time_ns"].sum())
    saved = gpu_path_saving_ns(record, pieces, pieces["in_tf32_ns"])
    share = share_of(saved, run_ns(record))
    if share < precision_saving_share:
        return []
    names = record.trace.index.names_of(pieces["row"].to_numpy())
    by = pieces["op"].where(pieces["op"] != "", names)
    longest = str(pieces["time_ns"].groupby(by).sum().idxmax())
    text = (
        f"Matrix products in full fp32 took {format_ns(time)} ({format_share(time / whole)} of the "
        f"GPU's time), mostly {code(longest)}. In TF32, which this GPU has, they would take about "
        f"{format_ns(int(pieces['in_tf32_ns'].sum()))}, and {shorter(saved, record)}."
    )
    title = "Matrix products run in full fp32, not in TF32"
    return [Finding(text, saved, share, **_longest_of(pieces), remedy=TF32_REMEDY, title=title)]


def _gpu_products(record: Record) -> pd.DataFrame:
    """Return the `products` of a run with GPU work; none where the CPU computed them."""
    table = products(record)
    return table if len(record.trace.index.gpu) else table.iloc[:0]


def _in_plain_fp32(table: pd.DataFrame, major: int | None, least_share: float) -> pd.Series:
    """Return a mask of the `products` in plain fp32 on a GPU with TF32; empty where few are."""
    plain = table["plain"] & ~table["tensor_cores"]
    few = table["time_ns"][plain].sum() < least_share * table["time_ns"].sum()
    return plain & (major is not None and major >= AMPERE and not few)


def _longest_of(pieces: pd.DataFrame) -> Place:
    """Return the longest of these kernels, and the range of the longest one."""
    longest = pieces.nlargest(EVIDENCE, "time_ns").rename(columns={"time_ns": "dur_ns"})
    return place_in(longest, longest.iloc[0])


IN_HALF = (
    "The inputs have 16 bits already. Give the products sizes that are multiples of 8, and check "
    "whether a library without tensor cores was chosen."
)
IN_BF16 = (
    "Compute in 16 bits: `with torch.autocast('cuda', dtype=torch.bfloat16):` around forward and "
    "loss."
)
IN_FP16 = (
    "Compute in 16 bits: `with torch.autocast('cuda', dtype=torch.float16):` around forward and "
    "loss, with torch.amp.GradScaler in training."
)


def tensor_cores_idle(
    record: Record,
    *,
    tensor_cores_share: float = 0.1,
    fp32_matmul_share: float = FP32_MATMUL_SHARE,
    precision_saving_share: float = PRECISION_SAVING_SHARE,
) -> list[Finding]:
    """Fires if no kernel used tensor cores and ops that could took 10 % of the GPU's time.

    `fp32_matmul` reports products in plain fp32 on newer GPUs.

    Cost: what the ops on the critical path would save in 16 bits, at the same share of the
    roofline.

    Source: TB reports compute capability 7 or more, tensor core time 0 and eligible ops; XProf
    reports idle tensor cores from 10 % on.
    """
    major = capability(record)
    if major is None or major < VOLTA:
        return []
    table = _gpu_products(record)
    if table["tensor_cores"].any():
        return []
    eligible = table[table["eligible"] & ~_in_plain_fp32(table, major, fp32_matmul_share)]
    time, whole = int(eligible["time_ns"].sum()), int(table["time_ns"].sum())
    if not time or time < tensor_cores_share * whole:
        return []
    saved = gpu_path_saving_ns(record, eligible, eligible["in_half_ns"])
    share = share_of(saved, run_ns(record))
    if share < precision_saving_share:
        return []
    longest = str(eligible.groupby("op")["time_ns"].sum().idxmax())
    text = (
        f"No kernel used the tensor cores. Ops that could use them took {format_ns(time)} "
        f"({format_share(time / whole)} of the GPU's time), mostly {code(longest)}. With tensor "
        f"cores, {shorter(saved, record)}."
    )
    remedy = IN_BF16 if major >= AMPERE else IN_FP16
    if eligible["dtype"].isin(HALVES).mean() > 0.5:
        remedy = IN_HALF
    title = "No kernel uses the tensor cores"
    return [Finding(text, saved, share, **_longest_of(eligible), remedy=remedy, title=title)]


MATMUL_SIZES_REMEDY = (
    "Pad features, heads, classes or the vocabulary to the next multiple of 8 (better 64), for "
    "instance `vocabulary = (vocabulary + 63) // 64 * 64`."
)


def matmul_sizes(
    record: Record,
    *,
    matmul_sizes_share: float = 0.02,
    precision_saving_share: float = PRECISION_SAVING_SHARE,
) -> list[Finding]:
    """Fires if products in 16 bits with a size that is no multiple of 8 took 2 % of GPU time.

    Cost: half of their time on the critical path: an estimate, as products of odd sizes reach about
    half the speed.

    Source: torch's MatMulDimInFP16Pattern, without sizes along which memory does not run.
    """
    table = _gpu_products(record)
    pieces = table[unaligned(record, table)]
    time, whole = int(pieces["time_ns"].sum()), int(table["time_ns"].sum())
    if not time or time < matmul_sizes_share * whole:
        return []
    cost = gpu_path_saving_ns(record, pieces, (pieces["time_ns"] * (1 - HALF_SAVED)).astype(int))
    share = share_of(cost, run_ns(record))
    if share < precision_saving_share:
        return []
    by_call = pieces.groupby(["op", "input_shapes"], as_index=False)["time_ns"].sum()
    longest = by_call.iloc[int(by_call["time_ns"].to_numpy().argmax())]
    text = (
        f"Matrix products in 16 bits with sizes that are no multiples of 8 took {format_ns(time)} "
        f"({format_share(time / whole)} of the GPU's time), mostly {code(str(longest['op']))} of "
        f"`{longest['input_shapes']}`. At twice the speed, {shorter(cost, record)}."
    )
    title, place = "Matrix products have sizes that are no multiples of 8", _longest_of(pieces)
    return [Finding(text, cost, share, **place, remedy=MATMUL_SIZES_REMEDY, title=title)]
