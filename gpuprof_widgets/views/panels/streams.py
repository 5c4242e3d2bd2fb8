"""What ran on each stream, and how much of it beside the others."""

from __future__ import annotations

import numpy as np
import pandas as pd

from gpuprof_widgets.analyses.gpu_kinds import gpu_kinds
from gpuprof_widgets.analyses.idle import stream_of
from gpuprof_widgets.analyses.streams import streams
from gpuprof_widgets.trace.model import Record
from gpuprof_widgets.views.panels.panel import Bars, Panel
from gpuprof_widgets.views.table import Column

COLUMNS = (
    Column("where", "Stream", "text"),
    Column("kind", "Kind", "text"),
    Column("calls", "Calls", "count", "count"),
    Column("time_ns", "Busy", "ns", "covered"),
    Column("busy_share", "Stream busy", "share"),
    Column("shared_ns", "Beside other streams", "ns"),
    Column("serialised_ns", "Behind its own compute", "ns"),
)
SAME = ["device", "stream", "kind"]
OF_THE_STREAM = ["busy_share", "shared_ns", "serialised_ns"]


def streams_panel(record: Record) -> Panel | None:
    """A row per stream and kind of work; its events are the slices.

    What is told of a whole stream stands in the first of its rows.
    """
    table = streams(record)
    if not len(table):
        return None
    slices = _slices(record)
    grouped = slices.groupby(SAME, sort=True)
    rows = grouped.size().rename("calls").reset_index()
    rows = rows.merge(table.drop(columns="calls"), "left", on=["device", "stream"])
    times = zip(rows["kind"], rows.to_dict("records"), strict=True)
    rows["time_ns"] = np.array([row[f"{kind}_ns"] for kind, row in times], np.int64)
    again = rows.duplicated(["device", "stream"])
    rows[OF_THE_STREAM] = rows[OF_THE_STREAM].astype(float).mask(again)
    rows["where"] = [
        (f"GPU {device}" if device >= 0 else "GPU") + f" · stream {stream}"
        for device, stream in zip(rows["device"], rows["stream"], strict=True)
    ]
    return Panel(
        "Streams",
        COLUMNS,
        rows,
        slices[["start_ns", "end_ns", "row"]].assign(group=grouped.ngroup()),
        notes=(
            "The last three columns are those of the whole stream in the whole run, "
            "told once per stream.",
        ),
        bars=Bars("where", "kind", "time_ns"),
    )


def _slices(record: Record) -> pd.DataFrame:
    trace = record.trace
    row, kind = gpu_kinds(trace)
    start = trace.slices["ts"].to_numpy()[row]
    columns = {
        "device": trace.index.device[row],
        "stream": stream_of(trace, row),
        "kind": kind,
        "start_ns": start,
        "end_ns": start + trace.slices["dur"].to_numpy()[row],
        "row": row,
    }
    return pd.DataFrame(columns)
