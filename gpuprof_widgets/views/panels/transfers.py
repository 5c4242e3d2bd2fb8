"""Tabs on data that moves: copies with their bandwidth over time, and collectives."""

from __future__ import annotations

import numpy as np
import pandas as pd

from gpuprof_widgets.analyses.collectives import collective_calls, collective_groups, collectives
from gpuprof_widgets.analyses.columns import group_rows
from gpuprof_widgets.analyses.copies import copies, copy_bandwidth
from gpuprof_widgets.trace.model import Record
from gpuprof_widgets.views.table import Column, Curve, Panel

COPY_COLUMNS = (
    Column("direction", "Copy", "text"),
    Column("memory", "Memory", "text"),
    Column("op_name", "Issued by", "text"),
    Column("where", "Where", "text"),
    Column("copies", "Copies", "count", "count"),
    Column("bytes", "Bytes", "bytes", "sum", "bytes"),
    Column("time_ns", "GPU time", "ns", "time"),
    Column("bytes_per_s", "Bandwidth", "bytes/s", "ratio", "bytes/time_ns"),
    Column("stalled_ns", "CPU waited", "ns", "sum", "stalled_ns"),
    Column("blocking", "Blocking", "count", "sum", "blocking"),
    Column("needless", "Needless", "count", "sum", "needless"),
)
SAME_COPY = ["direction", "memory", "op_name", "where"]


def copies_panel(record: Record) -> Panel | None:
    """Return a row per direction, memory, op and place; its events are the copies."""
    table = copies(record)
    if not len(table):
        return None
    sized = table["bytes"].clip(lower=0)
    events = pd.DataFrame(
        {
            "start_ns": table["start_ns"],
            "end_ns": table["start_ns"] + table["dur_ns"],
            "row": table["row"],
            "bytes": sized,
            "time_ns": table["dur_ns"],
            "stalled_ns": table["call_ns"].where(table["blocking"], 0) + table["wait_ns"],
            "blocking": table["blocking"].astype(int),
            "needless": (table["needless"] != "").astype(int),
            "memory": table["source"].where(
                table["source"] == "", table["source"] + " → " + table["target"]
            ),
            # The nearest place to change in user code: line, else module, else Python function.
            "where": table["line"].where(
                table["line"] != "", table["module"].where(table["module"] != "", table["python"])
            ),
            "direction": table["direction"],
            "op_name": table["op_name"],
        }
    )
    group, _ = group_rows({key: events[key].to_numpy() for key in SAME_COPY})
    events = events.assign(group=group)
    by = events.groupby("group")
    summed = ["bytes", "time_ns", "stalled_ns", "blocking", "needless"]
    rows = by[SAME_COPY].first().join(by[summed].sum()).assign(copies=by.size())
    rows["bytes_per_s"] = rows["bytes"] * 1e9 / rows["time_ns"].where(rows["time_ns"] > 0)
    unsized = int((table["bytes"] < 0).sum())
    return Panel(
        "Copies",
        COPY_COLUMNS,
        rows.reset_index(drop=True),
        events.drop(columns=SAME_COPY),
        notes=(f"{unsized:,} copies of unknown size count as 0 B." if unsized else "",),
        sort="time_ns",
        curves=tuple(_bandwidths(record)),
    )


def _bandwidths(record: Record) -> list[Curve]:
    table = copy_bandwidth(record)
    return [
        Curve(
            f"{direction or 'Copies'} of GPU {device}",
            "bytes/s",
            changes[["ts_ns", "bytes_per_s"]].rename(columns={"bytes_per_s": "value"}),
        )
        for (device, direction), changes in table.groupby(["device", "direction"])
    ]


COLLECTIVE_COLUMNS = (
    Column("name", "Collective", "text"),
    Column("dtype", "Type", "text"),
    Column("bytes", "Message", "bytes"),
    Column("group_of", "Group", "text"),
    Column("where", "Where", "text"),
    Column("count", "Calls", "count", "count"),
    Column("time_ns", "Time", "ns", "time"),
    Column("exposed_ns", "Exposed", "ns", "sum", "exposed_ns"),
    Column("mean_ns", "Mean", "ns", "mean"),
    Column("min_ns", "Shortest", "ns", "min"),
    Column("max_ns", "Longest", "ns", "max"),
    Column("bus_bytes_per_s", "Bus bandwidth", "bytes/s", "ratio", "bus_bytes/time_ns"),
    Column("best_bus_bytes_per_s", "Best bus bandwidth", "bytes/s"),
    Column("bus_bytes", "Over the bus", "bytes", "sum", "bus_bytes"),
)
COLLECTIVE_NOTE = (
    "The time of one rank includes waiting for other ranks, so its bandwidth is a lower bound. "
    "gpuprof_widgets.ranks(...) compares the ranks of a run and separates the two."
)


def collectives_panel(record: Record) -> Panel | None:
    """Return a row per operation, type, size and group; its events are the collectives."""
    table = collectives(record)
    if not len(table):
        return None
    rows = table.rename(columns={"total_ns": "time_ns"})
    of_ranks = (table["ranks"].astype(str) + " ranks").where(table["ranks"] > 0, "")
    rows = rows.assign(
        group_of=table["group"].where(table["group"] != "", of_ranks),
        where=[f"GPU {device}" if device >= 0 else "CPU" for device in table["device"]],
        bytes=table["bytes"].where(table["bytes"] >= 0, np.nan),
        bus_bytes=table["bus_bytes_per_s"] * table["total_ns"] / 1e9,
    )
    known = table["bus_bytes_per_s"] > 0
    for key in ("bus_bytes", "bus_bytes_per_s", "best_bus_bytes_per_s"):
        rows[key] = rows[key].where(known, np.nan)
    return Panel(
        "Collectives",
        COLLECTIVE_COLUMNS,
        rows,
        _collective_events(record, table),
        notes=(COLLECTIVE_NOTE,),
        sort="time_ns",
    )


def _collective_events(record: Record, table: pd.DataFrame) -> pd.DataFrame:
    calls = collective_calls(record)
    group, _ = collective_groups(calls)
    over_the_bus = (table["bus_bytes_per_s"] * table["mean_ns"] / 1e9).fillna(0).to_numpy()
    return pd.DataFrame(
        {
            "group": group,
            "start_ns": calls["start_ns"],
            "end_ns": calls["end_ns"],
            "row": calls["row"],
            "exposed_ns": calls["exposed_ns"],
            "bus_bytes": over_the_bus[group],
        }
    )
