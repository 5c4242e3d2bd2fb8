"""Matrix products in 16 bits whose sizes tensor cores do not like."""

from __future__ import annotations

from gpuprof_widgets.analyses.findings.finding import Finding
from gpuprof_widgets.analyses.findings.fp32_matmul import PRECISION_SAVING_SHARE, evidence
from gpuprof_widgets.analyses.findings.wording import code, run_ns, share_of, shorter
from gpuprof_widgets.analyses.path_time import gpu_path_saving_ns
from gpuprof_widgets.analyses.quantity import format_ns, format_share
from gpuprof_widgets.analyses.tensor_core_use import HALF_SAVED, products, unaligned
from gpuprof_widgets.trace.model import Record

REMEDY = (
    "Pad features, heads, classes or the vocabulary to the next multiple of 8 (better 64), for "
    "instance `vocabulary = (vocabulary + 63) // 64 * 64`."
)


def matmul_sizes(
    record: Record,
    *,
    matmul_sizes_share: float = 0.02,
    precision_saving_share: float = PRECISION_SAVING_SHARE,
) -> list[Finding]:
    """Fires where products in 16 bits with a size that is no multiple of 8 took 2 % of GPU time.

    torch's MatMulDimInFP16Pattern, but for sizes along which memory does not run (`unaligned`). The
    cost is half of their time on the critical path: a guess, as products of odd sizes reach about
    half the speed.

    ``matmul_sizes_share``: Of GPU time, in products in 16 bits with sizes that are no multiples of
        8 (torch: any).

    The other threshold is that of `fp32_matmul`.
    """
    if not len(record.trace.index.gpu):
        return []
    table = products(record)
    found = table[unaligned(record, table)]
    time, whole = int(found["time_ns"].sum()), int(table["time_ns"].sum())
    if not time or time < matmul_sizes_share * whole:
        return []
    cost = gpu_path_saving_ns(record, found, (found["time_ns"] * (1 - HALF_SAVED)).astype(int))
    share = share_of(cost, run_ns(record))
    if share < precision_saving_share:
        return []
    by_call = found.groupby(["op", "input_shapes"], as_index=False)["time_ns"].sum()
    longest = by_call.iloc[int(by_call["time_ns"].to_numpy().argmax())]
    text = (
        f"Matrix products in 16 bits with sizes that are no multiples of 8 took {format_ns(time)} "
        f"({format_share(time / whole)} of the GPU's time), mostly {code(str(longest['op']))} of "
        f"`{longest['input_shapes']}`; at twice the speed {shorter(cost, record)}."
    )
    return [Finding(text, cost, share, **evidence(found), remedy=REMEDY)]
