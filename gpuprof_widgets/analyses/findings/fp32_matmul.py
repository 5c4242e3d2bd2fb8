"""Matrix products in full fp32 on a GPU that has TF32."""

from __future__ import annotations

from typing import TypedDict

import pandas as pd

from gpuprof_widgets.analyses.findings.finding import Finding, of_gpu_work
from gpuprof_widgets.analyses.findings.wording import code, run_ns, share_of, shorter
from gpuprof_widgets.analyses.path_time import gpu_path_saving_ns
from gpuprof_widgets.analyses.quantity import format_ns, format_share
from gpuprof_widgets.analyses.tensor_core_use import capability, products
from gpuprof_widgets.trace.model import Record

AMPERE = 8
EVIDENCE = 2_000
"""Slices that light up: the longest ones."""
REMEDY = (
    "`torch.set_float32_matmul_precision('high')` lets products of fp32 run on tensor cores as "
    "TF32, with 10 instead of 23 bits of mantissa; autocast to bfloat16 saves more."
)

FP32_MATMUL_SHARE = 0.05
PRECISION_SAVING_SHARE = 0.005


class Evidence(TypedDict):
    """Where to look, as the arguments of a `Finding`."""

    start_ns: int
    end_ns: int
    rows: tuple[int, ...]


@of_gpu_work
def fp32_matmul(
    record: Record,
    *,
    fp32_matmul_share: float = FP32_MATMUL_SHARE,
    precision_saving_share: float = PRECISION_SAVING_SHARE,
) -> list[Finding]:
    """Fires where products in plain fp32 took 5 % of the GPU's time on an Ampere or newer GPU.

    torch's FP32MatMulPattern reads the setting itself, which no trace holds: here the kernels'
    names tell (`tensor_cores`). Convolutions are in TF32 unless told otherwise. The cost is what
    those on the critical path would save in TF32, as near to their roof as they are now.

    ``fp32_matmul_share``: Of GPU time, in matrix products in full fp32 where the GPU has TF32
        (torch: any).
    ``precision_saving_share``: By which the run would be shorter with tensor cores, TF32 or other
        sizes; below: not said.
    """
    major = capability(record)
    table = products(record)
    found = table[in_plain_fp32(table, major, fp32_matmul_share)]
    if not len(found):
        return []
    time, whole = int(found["time_ns"].sum()), int(table["time_ns"].sum())
    saved = gpu_path_saving_ns(record, found, found["in_tf32_ns"])
    share = share_of(saved, run_ns(record))
    if share < precision_saving_share:
        return []
    by = found["op"].where(found["op"] != "", record.trace.slices["name"].iloc[found["row"]].array)
    longest = str(found["time_ns"].groupby(by).sum().idxmax())
    text = (
        f"Matrix products in full fp32 took {format_ns(time)} ({format_share(time / whole)} of the "
        f"GPU's time), mostly {code(longest)}; in TF32, which this GPU has, they would take about "
        f"{format_ns(int(found['in_tf32_ns'].sum()))}, and {shorter(saved, record)}."
    )
    return [Finding(text, saved, share, **evidence(found), remedy=REMEDY)]


def in_plain_fp32(table: pd.DataFrame, major: int | None, least_share: float) -> pd.Series:
    """Which rows of `products` are in plain fp32 on a GPU with TF32; none where they are few."""
    plain = table["plain"] & ~table["tensor_cores"]
    few = table["time_ns"][plain].sum() < least_share * table["time_ns"].sum()
    return plain & (major is not None and major >= AMPERE and not few)


def evidence(pieces: pd.DataFrame) -> Evidence:
    """The longest of these kernels, and the range of the longest of all."""
    longest = pieces.nlargest(EVIDENCE, "time_ns")
    start = int(longest["start_ns"].iloc[0])
    return Evidence(
        start_ns=start,
        end_ns=start + int(longest["time_ns"].iloc[0]),
        rows=tuple(longest["row"].astype(int)),
    )
