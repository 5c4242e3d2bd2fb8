"""How near the GPU's memory came to being full, and how much of it lay in unused pieces."""

from __future__ import annotations

from typing import Any

import pandas as pd

from gpuprof_widgets.analyses.findings.finding import Finding
from gpuprof_widgets.analyses.memory import memory_curve
from gpuprof_widgets.analyses.quantity import format_bytes, format_ns, format_share
from gpuprof_widgets.trace.model import Record

FULL_REMEDY = (
    "The next larger batch or longer sequence fails: a smaller batch, activation checkpointing "
    "(torch.utils.checkpoint) or autocast leave room."
)
FRAGMENTED_REMEDY = (
    "The pieces are too small for what is asked next: PYTORCH_CUDA_ALLOC_CONF="
    "expandable_segments:True, or sizes that do not change from step to step."
)

MEMORY_UNUSED_SHARE = 0.3


def memory_room(
    record: Record,
    *,
    memory_full_share: float = 0.9,
    memory_unused_share: float = MEMORY_UNUSED_SHARE,
    memory_unused_of_device: float = 0.1,
) -> list[Finding]:
    """Per GPU: its memory was nearly all taken, or much of what was taken lay idle in pieces.

    Fires where the most that was reserved (allocated, where the trace has no more) is
    ``memory_full_share`` of the device's, and where of what was reserved at the allocated peak
    ``memory_unused_share`` was free, if that is also a tenth of the device.

    ``memory_full_share``: Of the device's memory (TB: 90 %).
    ``memory_unused_share``: Of what PyTorch has reserved, free when most was allocated.
    ``memory_unused_of_device``: Of the device's memory: fewer unused bytes are nobody's trouble.
    """
    curve, totals = memory_curve(record), _total_bytes(record)
    said = []
    for device, moments in curve.groupby("device", sort=False):
        total = totals.get(str(device), 0)
        if total:
            said += [*_full(str(device), moments, total, memory_full_share)]
            unused = memory_unused_share, memory_unused_of_device * total
            said += [*_fragmented(str(device), moments, *unused)]
    return said


def _total_bytes(record: Record) -> dict[str, int]:
    """Memory of each GPU by its name in the memory tables."""
    devices = record.metadata.get("devices") or []
    known = [one for one in devices if one.get("total_memory_bytes")]
    return {f"GPU {one['index']}": int(one["total_memory_bytes"]) for one in known}


def _full(device: str, moments: pd.DataFrame, total: int, least_share: float) -> list[Finding]:
    held = moments[["allocated_bytes", "reserved_bytes"]].max(axis=1)
    most = moments.iloc[int(held.to_numpy().argmax())]
    share = int(held.max()) / total
    if share < least_share:
        return []
    text = (
        f"{device} had {format_share(share)} of its {format_bytes(total)} of memory taken "
        f"at {format_ns(most['ts_ns'])}."
    )
    return [_at(most, text, FULL_REMEDY)]


def _fragmented(
    device: str, moments: pd.DataFrame, least_share: float, least_bytes: float
) -> list[Finding]:
    known = moments[(moments["reserved_bytes"] > 0) & (moments["allocated_bytes"] >= 0)]
    if not len(known):
        return []
    peak = known.iloc[int(known["allocated_bytes"].to_numpy().argmax())]
    unused = int(peak["reserved_bytes"] - peak["allocated_bytes"])
    share = unused / int(peak["reserved_bytes"])
    if share < least_share or unused < least_bytes:
        return []
    text = (
        f"Of the {format_bytes(peak['reserved_bytes'])} that PyTorch had reserved on {device} when "
        f"most was allocated, {format_bytes(unused)} ({format_share(share)}) were not in use."
    )
    return [_at(peak, text, FRAGMENTED_REMEDY)]


def _at(moment: Any, text: str, remedy: str) -> Finding:
    start = int(moment["ts_ns"])
    return Finding(text, start_ns=start, end_ns=start + 1, remedy=remedy)
