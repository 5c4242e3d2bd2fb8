"""The tree of modules, with the slices of each one's forward and backward."""

from __future__ import annotations

import numpy as np
import pandas as pd

from gpuprof_widgets.analyses.modules import module_slices, modules
from gpuprof_widgets.analyses.table_with_reason import what_is_lacking
from gpuprof_widgets.trace.model import Record
from gpuprof_widgets.views.panels.panel import Panel
from gpuprof_widgets.views.table import Column

MOST_ROWS = 500
MOST_EVENTS = 10_000
DEEPEST = 30
INDENT = "\u2003"  # an em space: several of them stay several in HTML
COLUMNS = (
    Column("label", "Module", "text"),
    Column("class", "Class", "text"),
    Column("calls", "Calls", "count"),
    Column("device_total_ns", "GPU", "ns"),
    Column("backward_device_total_ns", "GPU backward", "ns"),
    Column("device_self_ns", "GPU self", "ns"),
    Column("cpu_total_ns", "CPU", "ns"),
    Column("backward_cpu_total_ns", "CPU backward", "ns"),
    Column("cpu_self_ns", "CPU self", "ns"),
    Column("flops", "FLOPs", "flop"),
    Column("backward_flops", "FLOPs backward", "flop"),
    Column("allocated_total_bytes", "Allocated", "bytes"),
)
COSTS = ["device_total_ns", "backward_device_total_ns", "cpu_total_ns", "backward_cpu_total_ns"]


def modules_panel(record: Record) -> Panel | None:
    """A row per module, parents before their children; its events are its calls."""
    table = modules(record)
    if what_is_lacking(table):
        return None
    named = table[table["name"] != ""]
    rows = named.loc[_shown(named)]
    notes = ["With the modules within, but for self; the backward pass by its forward ops."]
    if len(rows) < len(named):
        notes.append(f"The costliest {len(rows)} of {len(named):,} modules.")
    if (rows["depth"] > DEEPEST).any():
        notes.append(f"Those more than {DEEPEST} deep are indented as if they were {DEEPEST} deep.")
    indented = [
        INDENT * min(depth, DEEPEST) + name
        for depth, name in zip(rows["depth"], rows["name"], strict=True)
    ]
    rows = rows.assign(label=pd.Series(indented, rows.index, dtype=object))
    shown = tuple(column for column in COLUMNS if column.unit == "text" or rows[column.key].any())
    return Panel(
        "Modules",
        shown,
        rows.reset_index(drop=True),
        _events(record, rows),
        notes=tuple(notes),
        most_events=MOST_EVENTS,
    )


def _shown(table: pd.DataFrame) -> pd.Index:
    """The costliest modules, as the tree has them: none of them costs more than its parent."""
    depth_last = table.assign(cost=table[COSTS].sum(axis=1)).sort_values(
        ["cost", "depth"], ascending=[False, True], kind="stable"
    )
    return depth_last.index[:MOST_ROWS].sort_values()


def _events(record: Record, rows: pd.DataFrame) -> pd.DataFrame:
    calls = module_slices(record)
    group = pd.Series(np.arange(len(rows)), rows.index)
    events = calls.assign(group=group.reindex(calls["module"]).to_numpy())
    events = events[events["group"].notna()].astype({"group": np.int32})
    columns = ["group", "start_ns", "end_ns", "row"]
    return events[columns].reset_index(drop=True)
