"""The gaps of each GPU by cause and by what the CPU did then."""

from __future__ import annotations

import re

from gpuprof_widgets.analyses.idle import idle
from gpuprof_widgets.trace.model import Record
from gpuprof_widgets.trace.schema import NONE
from gpuprof_widgets.views.panels.panel import Bars, Panel
from gpuprof_widgets.views.table import Column

COLUMNS = (
    Column("where", "Device", "text"),
    Column("cause", "Cause", "text"),
    Column("doing", "CPU meanwhile", "text"),
    Column("line", "Line", "text"),
    Column("module", "Module", "text"),
    Column("gaps", "Gaps", "count", "count"),
    Column("time_ns", "Time", "ns", "time"),
    Column("share", "Share of idle", "share", "share", "time_ns/where"),
    Column("longest_ns", "Longest", "ns", "max"),
)
SAME = ["where", "cause", "doing", "line", "module"]
STEP = re.compile(r"ProfilerStep#\d+")


def idle_panel(record: Record) -> Panel | None:
    """A row per device, cause and doing of the CPU; its events are the gaps, the longest first."""
    gaps = idle(record)
    if not len(gaps):
        return None
    doing = {name: STEP.sub("no op", name) or "no op" for name in gaps["cpu_name"].unique()}
    where = {device: f"GPU {device}" if device >= 0 else "GPU" for device in gaps["device"]}
    gaps = gaps.assign(where=gaps["device"].map(where), doing=gaps["cpu_name"].map(doing))
    grouped = gaps.groupby(SAME, sort=False)
    rows = grouped["dur_ns"].agg(["size", "sum", "max"]).reset_index()
    rows = rows.set_axis([*SAME, "gaps", "time_ns", "longest_ns"], axis=1)
    rows["share"] = rows["time_ns"] / rows.groupby("where")["time_ns"].transform("sum")
    rows = rows.sort_values("time_ns", ascending=False, kind="stable")
    place = rows.index.argsort()
    events = gaps[["start_ns", "end_ns"]].assign(group=place[grouped.ngroup()], row=NONE)
    return Panel(
        "Idle",
        COLUMNS,
        rows.reset_index(drop=True),
        events,
        notes=(
            "Gaps in which no stream of the GPU had anything to do.",
            "The cause is how a gap came about (synchronise: the CPU had just waited for the GPU, "
            "so nothing was queued); what the CPU did from moment to moment of it is in Breakdown.",
        ),
        sort="time_ns",
        bars=Bars("where", "cause", "time_ns"),
    )
