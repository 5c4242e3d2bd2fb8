"""The GPU's allocator as a memory snapshot shows it: segments, and what of them is free."""

from __future__ import annotations

import pandas as pd

from gpuprof_widgets.analyses.memory_segments import memory_segments
from gpuprof_widgets.analyses.quantity import format_bytes, format_count, format_share
from gpuprof_widgets.trace.model import Record
from gpuprof_widgets.views.panels.panel import Bars, Panel
from gpuprof_widgets.views.table import Column

COLUMNS = (
    Column("where", "Segment", "text"),
    Column("state", "State", "text"),
    Column("size", "Size", "bytes"),
    Column("share", "Of the segment", "share"),
    Column("pieces", "Blocks", "count"),
    Column("largest_free_bytes", "Largest free", "bytes"),
    Column("rounding_bytes", "Rounded up", "bytes"),
    Column("line_name", "Most held by", "text"),
)
PARTS = {"allocated_bytes": "allocated", "awaiting_bytes": "awaiting free", "free_bytes": "free"}


def allocator_panel(record: Record) -> Panel | None:
    """A row per segment and state of its memory; None for anything but a memory snapshot."""
    table = memory_segments(record)
    if not len(table):
        return None
    table = table.assign(where=_names(table))
    rows = pd.concat([_of(table, part) for part in PARTS]).sort_index(kind="stable")
    rows = rows[rows["size"] > 0].reset_index(drop=True)
    notes = tuple(_sentence(str(device), own) for device, own in table.groupby("device"))
    return Panel("Allocator", COLUMNS, rows, notes=notes, bars=Bars("where", "state", "size"))


def _names(table: pd.DataFrame) -> list[str]:
    rows = zip(table["device"], table["address"], table["stream"], table["pool"], strict=True)
    return [
        f"{device} · {address:#x}"
        + (f" · stream {stream}" if stream else "")
        + (f" · pool {pool}" if pool != "0.0" else "")
        for device, address, stream, pool in rows
    ]


def _of(table: pd.DataFrame, part: str) -> pd.DataFrame:
    """The rows of one state; of what is told of a state alone the others have nothing."""
    free, allocated = part == "free_bytes", part == "allocated_bytes"
    pieces = table["free_blocks"] if free else table["blocks"] - table["free_blocks"]
    return pd.DataFrame(
        {
            "where": table["where"],
            "state": PARTS[part],
            "size": table[part],
            "share": table[part] / table["bytes"].clip(lower=1),
            "pieces": pieces if free or allocated else float("nan"),
            "largest_free_bytes": table["largest_free_bytes"] if free else float("nan"),
            "rounding_bytes": table["rounding_bytes"] if allocated else float("nan"),
            "line_name": table["line_name"] if allocated else "",
        }
    )


def _sentence(device: str, own: pd.DataFrame) -> str:
    reserved, free = int(own["bytes"].sum()), int(own["free_bytes"].sum())
    return (
        f"When the snapshot was taken, {device} had {format_bytes(reserved)} reserved in "
        f"{format_count(len(own), 'segment')}; {format_bytes(free)} of it "
        f"({format_share(free / max(reserved, 1))}) were free, the largest piece "
        f"{format_bytes(int(own['largest_free_bytes'].max()))}."
    )
