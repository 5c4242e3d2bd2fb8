"""The static table of what was in memory at the peak."""

from __future__ import annotations

from dataclasses import dataclass

from gpuprof_widgets.analyses.memory import fullest, memory_peak
from gpuprof_widgets.analyses.quantity import format_bytes, format_ns, format_share
from gpuprof_widgets.trace.model import Record
from gpuprof_widgets.views.static_tables import Column, OpTable

COLUMNS = (
    Column("Size", "bytes", format_bytes),
    Column("share", "share", format_share, share=True),
    Column("Blocks", "blocks", lambda value: f"{value:,.0f}" if value else "–"),
)
WORTH_A_TABLE = 2**20  # bytes


@dataclass(frozen=True)
class PeakTable(OpTable):
    """A table of categories, headed by the device and the moment."""

    title: str = ""

    @property
    def caption(self) -> str:
        return self.title


def peak_memory(record: Record) -> OpTable | None:
    """The fullest device's peak by category; None where little or no memory was recorded."""
    rows = fullest(memory_peak(record))
    if not len(rows) or rows["allocated_bytes"].iloc[0] < WORTH_A_TABLE:
        return None
    first = rows.iloc[0]
    columns = ["bytes", "share", "blocks"]
    table = rows.groupby("category", as_index=False)[columns].sum()
    table = table.sort_values("bytes", ascending=False, kind="stable")
    table = table.assign(name=table["category"])
    title = (
        f"Peak memory of {first['device']}: {format_bytes(first['allocated_bytes'])} "
        f"at {format_ns(first['ts_ns'])}"
    )
    if first["reserved_bytes"] >= first["allocated_bytes"]:
        title += f", {format_bytes(first['reserved_bytes'])} reserved"
    return PeakTable(COLUMNS, table, len(table), "size", "Memory", title)
