"""Copies by direction and origin, and the bytes per second over time."""

from __future__ import annotations

from typing import Any

import pandas as pd

from gpuprof_widgets.analyses.copies import copies
from gpuprof_widgets.analyses.copy_bandwidth import copy_bandwidth
from gpuprof_widgets.analyses.grouped import group_rows
from gpuprof_widgets.trace.model import Record
from gpuprof_widgets.views.panels.panel import Curve, Panel
from gpuprof_widgets.views.table import Column

COLUMNS = (
    Column("direction", "Copy", "text"),
    Column("memory", "Memory", "text"),
    Column("op_name", "Asked for by", "text"),
    Column("where", "Where", "text"),
    Column("copies", "Copies", "count", "count"),
    Column("bytes", "Bytes", "bytes", "sum", "bytes"),
    Column("time_ns", "GPU time", "ns", "time"),
    Column("bytes_per_s", "Bandwidth", "bytes/s", "ratio", "bytes/time_ns"),
    Column("stalled_ns", "CPU stood still", "ns", "sum", "stalled_ns"),
    Column("blocking", "Blocking", "count", "sum", "blocking"),
    Column("needless", "Needless", "count", "sum", "needless"),
)
SAME = ["direction", "memory", "op_name", "where"]


def copies_panel(record: Record) -> Panel | None:
    """A row per direction, memory, op and place; its events are the copies."""
    table = copies(record)
    if not len(table):
        return None
    sized = table["bytes"].clip(lower=0)
    each = pd.DataFrame(
        {
            "start_ns": table["start_ns"],
            "end_ns": table["start_ns"] + table["dur_ns"],
            "row": table["row"],
            "bytes": sized,
            "time_ns": table["dur_ns"],
            "stalled_ns": table["call_ns"].where(table["blocking"], 0) + table["wait_ns"],
            "blocking": table["blocking"].astype(int),
            "needless": (table["needless"] != "").astype(int),
            "memory": table["source"].where(table["source"] == "", _memory(table)),
            "where": _places(table),
            "direction": table["direction"],
            "op_name": table["op_name"],
        }
    )
    group, _ = group_rows({key: each[key].to_numpy() for key in SAME})
    each = each.assign(group=group)
    by = each.groupby("group")
    summed = ["bytes", "time_ns", "stalled_ns", "blocking", "needless"]
    rows = by[SAME].first().join(by[summed].sum()).assign(copies=by.size())
    rows["bytes_per_s"] = rows["bytes"] * 1e9 / rows["time_ns"].where(rows["time_ns"] > 0)
    unsized = int((table["bytes"] < 0).sum())
    return Panel(
        "Copies",
        COLUMNS,
        rows[[column.key for column in COLUMNS]].reset_index(drop=True),
        each.drop(columns=SAME),
        notes=(f"{unsized:,} copies of unknown size count as none." if unsized else "",),
        sort="time_ns",
        curves=tuple(_curves(record)),
    )


def _memory(table: pd.DataFrame) -> pd.Series[Any]:
    return table["source"] + " → " + table["target"]


def _places(table: pd.DataFrame) -> pd.Series[Any]:
    """The nearest place that a user would change: the line, the module, the Python function."""
    outer = table["module"].where(table["module"] != "", table["python"])
    return table["line"].where(table["line"] != "", outer)


def _curves(record: Record) -> list[Curve]:
    table = copy_bandwidth(record)
    return [
        Curve(
            f"{direction or 'Copies'} of GPU {device}",
            "bytes/s",
            each[["ts_ns", "bytes_per_s"]].rename(columns={"bytes_per_s": "value"}),
        )
        for (device, direction), each in table.groupby(["device", "direction"])
    ]
