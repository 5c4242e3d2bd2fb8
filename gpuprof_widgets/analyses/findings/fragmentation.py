"""Free memory in pieces that are too small, as a memory snapshot shows it."""

from __future__ import annotations

import pandas as pd

from gpuprof_widgets.analyses.allocator import allocator_events
from gpuprof_widgets.analyses.findings.finding import Finding
from gpuprof_widgets.analyses.findings.limits import Limits
from gpuprof_widgets.analyses.findings.memory_room import FRAGMENTED_REMEDY
from gpuprof_widgets.analyses.memory_segments import memory_segments
from gpuprof_widgets.analyses.quantity import format_bytes, format_count, format_share
from gpuprof_widgets.trace.model import Record


def fragmentation(record: Record, limits: Limits) -> list[Finding]:
    """Per GPU of a memory snapshot: much was reserved and free, in pieces that did not do.

    Fires where ``memory_unused_share`` of what was reserved was free (at least
    ``memory_peak_bytes``), and no piece was half of that or what was asked for when memory ran out.
    """
    said = []
    for device, own in memory_segments(record).groupby("device"):
        free, reserved = int(own["free_bytes"].sum()), int(own["bytes"].sum())
        asked = _asked_in_vain(record, str(device))
        largest = int(own["largest_free_bytes"].max())
        enough = free >= limits.memory_peak_bytes and free >= limits.memory_unused_share * reserved
        if enough and (2 * largest < free or largest < asked <= free):
            said.append(
                Finding("fragmentation", _text(str(device), own, asked), remedy=FRAGMENTED_REMEDY)
            )
    return said


def _asked_in_vain(record: Record, device: str) -> int:
    """The last size that was asked for when memory had run out; 0 where none is known."""
    events = allocator_events(record)
    failed = events[(events["kind"] == "out of memory") & (events["device"] == device)]
    return max(int(failed["bytes"].iloc[-1]), 0) if len(failed) else 0


def _text(device: str, own: pd.DataFrame, asked: int) -> str:
    free, reserved = int(own["free_bytes"].sum()), int(own["bytes"].sum())
    failed = f", and {format_bytes(asked)} were asked for in vain" if asked else ""
    return (
        f"Of the {format_bytes(reserved)} that PyTorch had reserved on {device} when the snapshot "
        f"was taken, {format_bytes(free)} ({format_share(free / reserved)}) were free, in "
        f"{format_count(int(own['free_blocks'].sum()), 'piece')} of at most "
        f"{format_bytes(int(own['largest_free_bytes'].max()))}{failed}."
    )
