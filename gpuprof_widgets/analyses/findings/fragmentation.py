"""Free memory in pieces that are too small, as a memory snapshot shows it."""

from __future__ import annotations

import pandas as pd

from gpuprof_widgets.analyses.allocator import allocator_events
from gpuprof_widgets.analyses.findings.finding import Finding
from gpuprof_widgets.analyses.findings.memory import MEMORY_PEAK_BYTES
from gpuprof_widgets.analyses.findings.memory_room import FRAGMENTED_REMEDY, MEMORY_UNUSED_SHARE
from gpuprof_widgets.analyses.memory import allocations
from gpuprof_widgets.analyses.memory_segments import memory_segments
from gpuprof_widgets.analyses.quantity import format_bytes, format_count, format_share
from gpuprof_widgets.trace.model import Record


def fragmentation(
    record: Record,
    *,
    memory_peak_bytes: int = MEMORY_PEAK_BYTES,
    memory_unused_share: float = MEMORY_UNUSED_SHARE,
) -> list[Finding]:
    """Per GPU of a memory snapshot: much was reserved and free, in pieces that did not do.

    Fires where ``memory_unused_share`` of what was reserved was free (at least
    ``memory_peak_bytes``), and no piece would hold what was asked for when memory ran out, or else
    the largest block that there was: many pieces that would are what the allocator keeps for reuse.

    The thresholds are those of `memory` and `memory_room`.
    """
    said = []
    for device, own in memory_segments(record).groupby("device"):
        free, reserved = int(own["free_bytes"].sum()), int(own["bytes"].sum())
        if free < max(memory_peak_bytes, memory_unused_share * reserved):
            continue
        asked = _asked_in_vain(record, str(device))
        wanted = asked or _largest_block(record, str(device))
        if own["largest_free_bytes"].max() < wanted <= free:
            text = _text(str(device), own, asked, wanted)
            said.append(Finding(text, remedy=FRAGMENTED_REMEDY))
    return said


def _asked_in_vain(record: Record, device: str) -> int:
    """The last size that was asked for when memory had run out; 0 where none is known."""
    events = allocator_events(record)
    failed = events[(events["kind"] == "out of memory") & (events["device"] == device)]
    return max(int(failed["bytes"].iloc[-1]), 0) if len(failed) else 0


def _largest_block(record: Record, device: str) -> int:
    """The most that was ever allocated at once; 0 where nothing was."""
    blocks = allocations(record)
    return int(max(blocks.loc[blocks["device"] == device, "bytes"], default=0))


def _text(device: str, own: pd.DataFrame, asked: int, wanted: int) -> str:
    free, reserved = int(own["free_bytes"].sum()), int(own["bytes"].sum())
    size = format_bytes(wanted)
    needed = f"and {size} were asked for in vain" if asked else f"and the largest block had {size}"
    return (
        f"Of the {format_bytes(reserved)} that PyTorch had reserved on {device} when the snapshot "
        f"was taken, {format_bytes(free)} ({format_share(free / reserved)}) were free, in "
        f"{format_count(int(own['free_blocks'].sum()), 'piece')} of at most "
        f"{format_bytes(int(own['largest_free_bytes'].max()))}, {needed}."
    )
