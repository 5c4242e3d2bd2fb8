"""Launch calls by op, how long their work waited, and the streams' queues over time."""

from __future__ import annotations

from gpuprof_widgets.analyses.grouped import group_rows
from gpuprof_widgets.analyses.launches import UNLINKED, by_call, launches
from gpuprof_widgets.analyses.quantity import format_count, format_ns
from gpuprof_widgets.analyses.queue_length import queue_length, queues
from gpuprof_widgets.trace.model import Record
from gpuprof_widgets.views.panels.panel import Curve, Panel
from gpuprof_widgets.views.table import Column

COLUMNS = (
    Column("op_name", "Launched by", "text"),
    Column("launch_name", "Call", "text"),
    Column("launches", "Launches", "count", "count"),
    Column("call_ns", "CPU in calls", "ns", "sum", "call_ns"),
    Column("gpu_ns", "GPU time", "ns", "sum", "gpu_ns"),
    Column("latency_ns", "Mean latency", "ns", "mean", "latency_ns"),
    Column("queue_ns", "of it queued", "ns", "mean", "queue_ns"),
    Column("pure_latency_ns", "of it launching", "ns", "mean", "pure_latency_ns"),
    Column("longest_ns", "Longest latency", "ns", "max", "latency_ns"),
    Column("short", "Shorter than launch", "count", "sum", "short"),
    Column("late", "Over 100 µs late", "count", "sum", "late"),
)


def launches_panel(record: Record) -> Panel | None:
    """A row per op and kind of call; its events are the calls."""
    table = launches(record)
    if not len(table):
        return None
    table = by_call(table)
    keys = ["op_name", "launch_name"]
    group, _ = group_rows({key: table[key].to_numpy() for key in keys})
    each = table[["call_ns", "latency_ns", "queue_ns", "pure_latency_ns"]].assign(
        group=group,
        start_ns=table["call_start_ns"],
        end_ns=table["call_start_ns"] + table["call_ns"],
        row=table["launch"],
        gpu_ns=table["work_ns"],
        short=table["short"].astype(int),
        late=table["late"].astype(int),
        call_ns=table["call_ns"] / table.groupby("launch")["launch"].transform("size"),
    )
    by = each.groupby("group")
    rows = (
        table.groupby(group)[keys]
        .first()
        .assign(
            launches=by.size(),
            longest_ns=by["latency_ns"].max(),
            **{key: by[key].mean() for key in ("latency_ns", "queue_ns", "pure_latency_ns")},
            **{key: by[key].sum() for key in ("call_ns", "gpu_ns", "short", "late")},
        )
    )
    return Panel(
        "Launches",
        COLUMNS,
        rows[[column.key for column in COLUMNS]].reset_index(drop=True),
        each,
        notes=(_note(record),),
        sort="call_ns",
        curves=tuple(_curves(record)),
    )


def _curves(record: Record) -> list[Curve]:
    """The queue of each stream, the busiest first."""
    length = queue_length(record)
    by_stream = [(key, each) for key, each in length.groupby(["device", "stream"])]
    by_stream.sort(key=lambda pair: -len(pair[1]))
    return [
        Curve(
            f"Queue of GPU {device} · stream {stream}",
            "count",
            each[["ts_ns", "length"]].rename(columns={"length": "value"}),
        )
        for (device, stream), each in by_stream
    ]


def _note(record: Record) -> str:
    table = queues(record)
    short, total, full = (int(table[key].sum()) for key in ("short", "launches", "full_ns"))
    said = [f"{short:,} of {total:,} launches took longer than what they launched"]
    if full:
        said.append(f"the CPU met a full queue (1,024) for {format_ns(full)}")
    if unlinked := int(table.attrs.get(UNLINKED, 0)):
        said.append(f"{format_count(unlinked, 'GPU event')} without a launch in the trace")
    return "; ".join(said) + "."
