"""Ops as points under the device's roof."""

from __future__ import annotations

import numpy as np
import pandas as pd

from gpuprof_widgets.analyses.roofline import grouped_pieces, roofline
from gpuprof_widgets.analyses.table_with_reason import what_is_lacking
from gpuprof_widgets.trace.model import Record
from gpuprof_widgets.trace.peaks import Peaks
from gpuprof_widgets.views.panels.panel import Panel, Points
from gpuprof_widgets.views.table import Column

MOST_ROWS = 300
MOST_EVENTS = 10_000
BY = "shape"
KEYS = ["name", "dtype", "input_shapes"]
COLUMNS = (
    Column("name", "Op", "text"),
    Column("input_shapes", "Input shapes", "text"),
    Column("dtype", "Format", "text"),
    Column("calls", "Calls", "count"),
    Column("time_ns", "Time", "ns", "time"),
    Column("roof_share", "Of the roof", "share"),
    Column("bound", "Bound by", "text"),
    Column("flops_per_s", "FLOP/s", "flop/s", "ratio", "flops/time_ns"),
    Column("bytes_per_s", "Bytes/s", "bytes/s", "ratio", "bytes/time_ns"),
    Column("intensity", "FLOP/byte", "number"),
    Column("flops", "FLOPs", "flop", "sum", "flops"),
    Column("bytes", "Bytes", "bytes", "sum", "bytes"),
    Column("bytes_counted", "Bytes of", "text"),
)


def roofline_panel(record: Record) -> Panel | None:
    """A row per op, format and input shapes; its events are the kernels."""
    table = roofline(record, by=BY)
    if what_is_lacking(table) or not (table["bytes"] > 0).any():
        return None
    note, peaks = table.attrs["note"], table.attrs["peaks"]
    worked = table[(table["flops"] > 0) | (table["bytes"] > 0)]
    rows = worked.head(MOST_ROWS).reset_index(drop=True)
    rows["bytes"] = rows["bytes"].where(rows["bytes"] >= 0, np.nan)
    if len(worked) > len(rows):
        note += f". The {MOST_ROWS} longest of {len(worked):,} rows."
    return Panel(
        "Roofline",
        COLUMNS,
        rows,
        _events(record, rows),
        notes=(note[:1].upper() + note[1:],),
        sort="time_ns",
        points=Points("intensity", "flops_per_s", "time_ns", _roofs(rows, peaks)),
        most_events=MOST_EVENTS,
    )


def _events(record: Record, rows: pd.DataFrame) -> pd.DataFrame:
    """The pieces of work of these rows."""
    pieces, keys = grouped_pieces(record, BY)
    group = pd.Series(np.arange(len(rows)), pd.MultiIndex.from_frame(rows[KEYS]))
    found = group.reindex(pd.MultiIndex.from_frame(pieces[keys])).to_numpy()
    pieces = pieces.assign(group=found, end_ns=pieces["start_ns"] + pieces["time_ns"])
    pieces = pieces[pieces["group"].notna()].astype({"group": np.int32})
    columns = ["group", "start_ns", "end_ns", "row", "flops", "bytes"]
    pieces = pieces.sort_values("start_ns", kind="stable")
    return pieces[columns].reset_index(drop=True)


def _roofs(
    rows: pd.DataFrame, peaks: dict[str, object] | None
) -> tuple[tuple[tuple[float, ...], tuple[float, ...], str], ...]:
    """A roof per number format that the ops have: memory's slope up to the format's ceiling."""
    if not peaks:
        return ()
    roof = Peaks.from_dict(peaks)
    intensity = rows["intensity"][rows["intensity"] > 0]
    used = rows["dtype"][rows["flops"] > 0].drop_duplicates()
    lines = []
    for dtype in used[used.isin(list(roof.flops_per_s))]:
        top = roof.flops_per_s[dtype]
        ridge = top / roof.bytes_per_s
        left = min(float(intensity.min()), ridge) / 2
        right = max(float(intensity.max()), ridge) * 4
        lines.append(((left, ridge, right), (left * roof.bytes_per_s, top, top), str(dtype)))
    return tuple(lines)
