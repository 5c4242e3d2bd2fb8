"""Collectives by operation, size and group, with what of them nothing hid."""

from __future__ import annotations

import numpy as np
import pandas as pd

from gpuprof_widgets.analyses.collective_calls import collective_calls
from gpuprof_widgets.analyses.collectives import collective_groups, collectives
from gpuprof_widgets.trace.model import Record
from gpuprof_widgets.views.panels.panel import Panel
from gpuprof_widgets.views.table import Column

COLUMNS = (
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
    Column("best_bus_bytes_per_s", "of the shortest", "bytes/s"),
    Column("bus_bytes", "Over the bus", "bytes", "sum", "bus_bytes"),
)
NOTE = (
    "The time of one rank holds its waiting for the others, so that its bandwidth is a lower "
    "bound; gpuprof_widgets.ranks(...) compares the ranks of a run and tells the two apart."
)


def collectives_panel(record: Record) -> Panel | None:
    """A row per operation, type, size and group; its events are the collectives."""
    table = collectives(record)
    if not len(table):
        return None
    rows = table.rename(columns={"total_ns": "time_ns"})
    rows = rows.assign(
        group_of=[_group(*pair) for pair in zip(table["group"], table["ranks"], strict=True)],
        where=[f"GPU {device}" if device >= 0 else "CPU" for device in table["device"]],
        bytes=table["bytes"].where(table["bytes"] >= 0, np.nan),
        bus_bytes=table["bus_bytes_per_s"] * table["total_ns"] / 1e9,
    )
    known = table["bus_bytes_per_s"] > 0
    for key in ("bus_bytes", "bus_bytes_per_s", "best_bus_bytes_per_s"):
        rows[key] = rows[key].where(known, np.nan)
    events = _events(record, table)
    keys = [column.key for column in COLUMNS]
    return Panel("Collectives", COLUMNS, rows[keys], events, notes=(NOTE,), sort="time_ns")


def _group(group: str, ranks: int) -> str:
    """Its ranks, or else how many they are."""
    return group or (f"{ranks} ranks" if ranks > 0 else "")


def _events(record: Record, table: pd.DataFrame) -> pd.DataFrame:
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
