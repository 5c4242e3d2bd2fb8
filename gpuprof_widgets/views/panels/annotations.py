"""What each annotated region cost, with its calls and the GPU work behind them."""

from __future__ import annotations

import numpy as np
import pandas as pd

from gpuprof_widgets.analyses.annotations import annotation_slices
from gpuprof_widgets.analyses.annotations import annotations as by_annotation
from gpuprof_widgets.analyses.table_with_reason import what_is_lacking
from gpuprof_widgets.trace.model import Record
from gpuprof_widgets.views.panels.panel import Panel
from gpuprof_widgets.views.table import Column

MOST_ROWS = 200
MOST_EVENTS = 10_000
COLUMNS = (
    Column("name", "Annotation", "text"),
    Column("calls", "Calls", "count", "count"),
    Column("device_busy_ns", "GPU busy", "ns"),
    Column("kernel_ns", "GPU work", "ns"),
    Column("kernel_self_ns", "GPU work, self", "ns"),
    Column("kernels", "Slices", "count"),
    Column("cpu_total_ns", "CPU", "ns"),
    Column("cpu_self_ns", "CPU self", "ns"),
)
GPU_COLUMNS = ("device_busy_ns", "kernel_ns", "kernel_self_ns", "kernels")
GPU_NOTE = "GPU work is what was launched within it, counted once; self without those within."


def annotations_panel(record: Record) -> Panel | None:
    """A row per annotation by name; its events are its calls."""
    table = by_annotation(record)
    if what_is_lacking(table):
        return None
    on_gpu = bool(table["kernels"].any())
    sort = "kernel_ns" if on_gpu else "cpu_total_ns"
    rows = table.sort_values(sort, ascending=False, kind="stable", ignore_index=True)
    rows = rows.head(MOST_ROWS)
    calls = annotation_slices(record)
    group = pd.Series(np.arange(len(rows)), pd.Index(rows["name"]))
    events = calls.assign(group=group.reindex(calls["name"]).to_numpy())
    events = events[events["group"].notna()].astype({"group": np.int32})
    columns = ["group", "start_ns", "end_ns", "row"]
    return Panel(
        "Annotations",
        COLUMNS if on_gpu else tuple(each for each in COLUMNS if each.key not in GPU_COLUMNS),
        rows,
        events[columns].reset_index(drop=True),
        notes=(GPU_NOTE,) if on_gpu else (),
        sort=sort,
        most_events=MOST_EVENTS,
    )
