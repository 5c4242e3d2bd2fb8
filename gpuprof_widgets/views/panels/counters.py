"""Tabs on counters over time, and on the segments of the memory allocator."""

from __future__ import annotations

import numpy as np
import pandas as pd

from gpuprof_widgets.analyses.allocator import memory_segments
from gpuprof_widgets.analyses.columns import format_bytes, format_count, format_share
from gpuprof_widgets.analyses.counters import counters
from gpuprof_widgets.analyses.memory_blocks import memory_events
from gpuprof_widgets.trace.model import Record
from gpuprof_widgets.views.table import Bars, Column, Curve, Panel

COUNTER_COLUMNS = (
    Column("counter", "Counter", "text"),
    Column("unit", "Unit", "text"),
    Column("readings", "Readings", "count"),
    Column("mean", "Mean", "number"),
    Column("min", "Min", "number"),
    Column("max", "Max", "number"),
)


def counters_panel(record: Record) -> Panel | None:
    """Return a row and a curve per counter; None where there are none.

    Memory has a view of its own, which needs allocations; without them its totals are shown here.
    """
    table = counters(record, derived=False)
    if len(table) and len(memory_events(record.trace)):
        table = table[~table["name"].str.fullmatch(r"(CPU|GPU -?\d+) memory")]
    if not len(table):
        return None
    named = table.assign(counter=(table["name"] + " " + table["series"]).str.strip())
    groups = list(named.groupby("counter", sort=False))
    rows = pd.DataFrame([_counter_row(record, str(name), readings) for name, readings in groups])
    curves = tuple(
        Curve(
            str(name),
            "bytes" if readings["unit"].iloc[0] == "bytes" else "number",
            readings[["ts_ns", "value"]].fillna({"value": 0.0}),
        )
        for name, readings in groups
    )
    return Panel("Counters", COUNTER_COLUMNS, rows, curves=curves)


def _counter_row(record: Record, counter: str, readings: pd.DataFrame) -> dict[str, object]:
    """Return the row of a counter; its mean weighs each reading by the time it held."""
    value = readings["value"].to_numpy()
    held = np.diff(np.append(readings["ts_ns"].to_numpy(), record.trace.end_ns))
    known = ~np.isnan(value)
    weight = held[known] if held[known].sum() else np.ones(int(known.sum()))
    return {
        "counter": counter,
        "unit": readings["unit"].iloc[0],
        "readings": int(known.sum()),
        "mean": np.average(value[known], weights=weight),
        "min": value[known].min(),
        "max": value[known].max(),
    }


ALLOCATOR_COLUMNS = (
    Column("where", "Segment", "text"),
    Column("state", "State", "text"),
    Column("size", "Size", "bytes"),
    Column("share", "Share of segment", "share"),
    Column("pieces", "Blocks", "count"),
    Column("largest_free_bytes", "Largest free", "bytes"),
    Column("rounding_bytes", "Rounded up", "bytes"),
    Column("line_name", "Mostly held by", "text"),
)
SEGMENT_PARTS = {
    "allocated_bytes": "allocated",
    "awaiting_bytes": "awaiting free",
    "free_bytes": "free",
}


def allocator_panel(record: Record) -> Panel | None:
    """Return a row per segment and state of its memory; None without a memory snapshot."""
    table = memory_segments(record)
    if not len(table):
        return None
    segments = zip(table["device"], table["address"], table["stream"], table["pool"], strict=True)
    names = [
        f"{device} · {address:#x}"
        + (f" · stream {stream}" if stream else "")
        + (f" · pool {pool}" if pool != "0.0" else "")
        for device, address, stream, pool in segments
    ]
    table = table.assign(where=names)
    rows = pd.concat([_part_sizes(table, part) for part in SEGMENT_PARTS]).sort_index(kind="stable")
    rows = rows[rows["size"] > 0].reset_index(drop=True)
    notes = tuple(
        _free_sentence(str(device), segments) for device, segments in table.groupby("device")
    )
    return Panel(
        "Allocator", ALLOCATOR_COLUMNS, rows, notes=notes, bars=Bars("where", "state", "size")
    )


def _part_sizes(table: pd.DataFrame, part: str) -> pd.DataFrame:
    """Return the rows of one state; columns that do not apply to it are empty."""
    free, allocated = part == "free_bytes", part == "allocated_bytes"
    pieces = table["free_blocks"] if free else table["blocks"] - table["free_blocks"]
    return pd.DataFrame(
        {
            "where": table["where"],
            "state": SEGMENT_PARTS[part],
            "size": table[part],
            "share": table[part] / table["bytes"].clip(lower=1),
            "pieces": pieces if free or allocated else float("nan"),
            "largest_free_bytes": table["largest_free_bytes"] if free else float("nan"),
            "rounding_bytes": table["rounding_bytes"] if allocated else float("nan"),
            "line_name": table["line_name"] if allocated else "",
        }
    )


def _free_sentence(device: str, segments: pd.DataFrame) -> str:
    reserved, free = int(segments["bytes"].sum()), int(segments["free_bytes"].sum())
    return (
        f"When the snapshot was taken, {device} had {format_bytes(reserved)} reserved in "
        f"{format_count(len(segments), 'segment')}. {format_bytes(free)} of it "
        f"({format_share(free / max(reserved, 1))}) was free, in pieces of up to "
        f"{format_bytes(int(segments['largest_free_bytes'].max()))}."
    )
