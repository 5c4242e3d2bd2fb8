"""Data that goes from one GPU to another by copies."""

from __future__ import annotations

import re

from gpuprof_widgets.analyses.copies import copies
from gpuprof_widgets.analyses.findings.finding import Finding, of_gpu_work
from gpuprof_widgets.analyses.findings.wording import copies_counted, run_ns, share_of
from gpuprof_widgets.analyses.quantity import format_bytes, format_ns, format_share
from gpuprof_widgets.trace.model import Record

DATA_PARALLEL = re.compile(
    r"DataParallel\.forward|Scatter|ReduceAddCoalesced|nn\.Module: DataParal.*"
)
"""What torch.nn.DataParallel leaves in a trace (the first is the TensorBoard plugin's sign)."""

PARALLEL = (
    "torch.nn.DataParallel scatters inputs and gathers outputs and gradients in each step: "
    "DistributedDataParallel, with one process per GPU, exchanges gradients alone, beside backward."
)
OTHERWISE = (
    "Keep tensors that are used together on one GPU, or exchange them with torch.distributed, "
    "which overlaps with compute."
)


@of_gpu_work
def peer_copies(record: Record, *, peer_copies_share: float = 0.02) -> list[Finding]:
    """Fires where copies between GPUs took 2 % of the run or more.

    ``peer_copies_share``: Copies from GPU to GPU.
    """
    table = copies(record)
    table = table[(table["direction"] == "PtoP").to_numpy(bool)]
    cost = int(table["dur_ns"].sum())
    share = share_of(cost, run_ns(record))
    if not len(table) or share < peer_copies_share:
        return []
    longest = table.iloc[int(table["dur_ns"].to_numpy().argmax())]
    start = int(longest["start_ns"])
    size = int(table["bytes"].clip(lower=0).sum())
    amount = f" ({format_bytes(size)})" if size else ""
    text = (
        f"{copies_counted(len(table))} from GPU to GPU{amount} "
        f"took {format_ns(cost)} ({format_share(share)} of the time)."
    )
    remedy = PARALLEL if record.trace.index.matching(DATA_PARALLEL).any() else OTHERWISE
    rows, end = tuple(table["row"]), start + int(longest["dur_ns"])
    return [Finding(text, cost, share, start, end, rows, remedy)]
