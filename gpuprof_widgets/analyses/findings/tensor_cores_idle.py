"""Tensor cores that had nothing to do although there was work for them."""

from __future__ import annotations

from gpuprof_widgets.analyses.findings.finding import Finding, of_gpu_work
from gpuprof_widgets.analyses.findings.fp32_matmul import (
    FP32_MATMUL_SHARE,
    PRECISION_SAVING_SHARE,
    evidence,
    in_plain_fp32,
)
from gpuprof_widgets.analyses.findings.wording import code, run_ns, share_of, shorter
from gpuprof_widgets.analyses.path_time import gpu_path_saving_ns
from gpuprof_widgets.analyses.quantity import format_ns, format_share
from gpuprof_widgets.analyses.tensor_core_use import HALVES, capability, products
from gpuprof_widgets.trace.model import Record

VOLTA, AMPERE = 7, 8
IN_HALF = (
    "The inputs have 16 bits already: give the products sizes that are multiples of 8, and see "
    "whether a library without tensor cores was chosen."
)
IN_FLOAT = (
    "Compute in 16 bits: `with torch.autocast('cuda', dtype={dtype}):` around forward and loss"
    "{scaler}."
)


@of_gpu_work
def tensor_cores_idle(
    record: Record,
    *,
    tensor_cores_share: float = 0.1,
    fp32_matmul_share: float = FP32_MATMUL_SHARE,
    precision_saving_share: float = PRECISION_SAVING_SHARE,
) -> list[Finding]:
    """Fires where no kernel used tensor cores and ops that could took 10 % of the GPU's time.

    TB: compute capability 7 or more, tensor core time 0, eligible ops; XProf: idle tensor cores
    from 10 % on. Products in plain fp32 on newer GPUs are `fp32_matmul`'s. The cost is what those
    of them on the critical path would save in 16 bits, as near to their roof as they are now.

    ``tensor_cores_share``: Of GPU time, in ops that could use tensor cores while nothing does
        (XProf: 10 %; TB: any).

    The other thresholds are those of `fp32_matmul`.
    """
    major = capability(record)
    if major is None or major < VOLTA:
        return []
    table = products(record)
    if table["tensor_cores"].any():
        return []
    eligible = table[table["eligible"] & ~in_plain_fp32(table, major, fp32_matmul_share)]
    time, whole = int(eligible["time_ns"].sum()), int(table["time_ns"].sum())
    if not time or time < tensor_cores_share * whole:
        return []
    saved = gpu_path_saving_ns(record, eligible, eligible["in_half_ns"])
    if share_of(saved, run_ns(record)) < precision_saving_share:
        return []
    longest = str(eligible.groupby("op")["time_ns"].sum().idxmax())
    text = (
        f"No kernel used the tensor cores, although ops that can took {format_ns(time)} "
        f"({format_share(time / whole)} of the GPU's time), mostly {code(longest)}; with them "
        f"{shorter(saved, record)}."
    )
    return [
        Finding(
            text,
            saved,
            share_of(saved, run_ns(record)),
            **evidence(eligible),
            remedy=_remedy(bool(eligible["dtype"].isin(HALVES).mean() > 0.5), major),
        )
    ]


def _remedy(in_half: bool, major: int) -> str:
    if in_half:
        return IN_HALF
    if major >= AMPERE:
        return IN_FLOAT.format(dtype="torch.bfloat16", scaler="")
    return IN_FLOAT.format(dtype="torch.float16", scaler=", with torch.amp.GradScaler in training")
