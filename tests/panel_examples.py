"""Panels of every kind over hand-made traces, and what their columns are in any range of time."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd

from gpuprof_widgets.analyses.kernels import kernels
from gpuprof_widgets.trace.model import Record
from gpuprof_widgets.views.table import Bars, Column, Curve, Panel, Points

KERNELS = (
    Column("name", "Kernel", "text"),
    Column("calls", "Calls", "count", "count"),
    Column("total_ns", "Total", "ns", "time"),
    Column("average_ns", "Mean", "ns", "mean"),
    Column("min_ns", "Least", "ns", "min"),
    Column("max_ns", "Most", "ns", "max"),
    Column("covered_ns", "Covered", "ns", "covered"),
    Column("part", "Part", "share", "share", "total_ns"),
    Column("share", "Share of busy", "share"),
)


def kernels_panel(record: Record) -> Panel:
    """A row per kernel and copy by name, with its slices, as points."""
    table = kernels(record)
    trace, rows = record.trace, record.trace.index.gpu
    group = dict(zip(table["name"], table.index, strict=True))
    start = trace.slices["ts"].to_numpy()[rows]
    events = {
        "group": [group[name] for name in trace.slices["name"].to_numpy(object)[rows]],
        "start_ns": start,
        "end_ns": start + trace.slices["dur"].to_numpy()[rows],
        "row": rows,
    }
    return Panel(
        "Kernels",
        KERNELS,
        table.assign(part=table["total_ns"] / max(table["total_ns"].sum(), 1)),
        pd.DataFrame(events),
        notes=("Every kernel and copy.",),
        sort="total_ns",
        points=Points("calls", "average_ns", lines=(((1, 2, 100), (1e5, 1e6, 1e6), "a roof"),)),
    )


def gaps_panel(record: Record) -> Panel:
    """Two causes of gaps on GPU 0, which are no slices, as bars; and bytes that waited."""
    ms = 1_000_000
    rows = pd.DataFrame({"where": "GPU 0", "cause": ["host", "input"], "time_ns": [5 * ms, 3 * ms]})
    rows = rows.assign(bytes=[30, 7], rate=[30 / 5e-3, 7 / 3e-3], share=[5 / 8, 3 / 8])
    start = np.array([0, 8, 5]) * ms
    events = pd.DataFrame({"group": [0, 0, 1], "start_ns": start, "row": -1, "bytes": [10, 20, 7]})
    columns = (
        Column("where", "Device", "text"),
        Column("cause", "Cause", "text"),
        Column("time_ns", "Time", "ns", "time"),
        Column("share", "Share", "share", "share", "time_ns/where"),
        Column("bytes", "Bytes", "bytes", "sum", "bytes"),
        Column("rate", "Rate", "bytes/s", "ratio", "bytes/time_ns"),
    )
    return Panel(
        "Gaps",
        columns,
        rows,
        events.assign(end_ns=start + np.array([3, 2, 3]) * ms),
        bars=Bars("where", "cause", "time_ns"),
    )


def queue_panel(record: Record) -> Panel:
    """How many slices run on the GPU over time, and a table without events."""
    events = kernels_panel(record).events
    assert events is not None
    ts = np.concatenate([events["start_ns"], events["end_ns"]])
    change = np.repeat([1, -1], len(events))
    order = np.lexsort((change, ts))
    curve = pd.DataFrame({"ts_ns": ts[order], "value": change[order].cumsum()})
    curve = curve.groupby("ts_ns", as_index=False).last()
    rows = pd.DataFrame({"name": ["GPU 0"], "most": [curve["value"].max()]})
    columns = (Column("name", "Device", "text"), Column("most", "Most", "count"))
    return Panel("Queue", columns, rows, curves=(Curve("Running on GPU 0", "count", curve),))


DERIVED = ("share", "ratio")  # of other columns
EXAMPLES = {"kernels": kernels_panel, "gaps": gaps_panel, "queue": queue_panel}


def column_values(panel: Panel, start: int, end: int, last: int) -> dict[str, list[Any]]:
    """What the columns that follow from events are in [start, end): by plain loops.

    ``last``: the end of the record, where a range is closed.
    """
    assert panel.events is not None
    inside = [
        [each for each in _of_row(panel, row) if _is_inside(each, start, end, last)]
        for row in range(len(panel.rows))
    ]
    values: dict[str, list[Any]] = {}
    for column in sorted(panel.columns, key=lambda column: column.aggregate in DERIVED):
        if column.aggregate == "share":
            of, _, among = column.of.partition("/")
            keys = [panel.rows[key].tolist() for key in among.split(",") if key]
            group = list(zip(*keys, strict=True)) or [()] * len(panel.rows)
            values[column.key] = _shares(values[of], group)
        elif column.aggregate == "ratio":
            above, below = (values[key] for key in column.of.split("/"))
            scale = 1e9 if column.unit.endswith("/s") else 1
            values[column.key] = [
                scale * a / b if b else None for a, b in zip(above, below, strict=True)
            ]
        elif column.aggregate:
            values[column.key] = [_aggregate(column, each, start, end) for each in inside]
    return values


def _of_row(panel: Panel, row: int) -> list[dict[str, Any]]:
    assert panel.events is not None
    own = panel.events[panel.events["group"] == row].sort_values("start_ns", kind="stable")
    return own.to_dict("records")  # type: ignore[return-value]


def _is_inside(event: dict[str, Any], start: int, end: int, last: int) -> bool:
    begins, ends = event["start_ns"], event["end_ns"]
    if ends > begins:
        return bool(begins < end and ends > start)
    return bool(start <= begins and (begins < end or begins == end == last))


def _aggregate(column: Column, events: list[dict[str, Any]], start: int, end: int) -> float | None:
    cut = [(max(e["start_ns"], start), min(e["end_ns"], end)) for e in events]
    times = [to - begin for begin, to in cut]
    values = [e[column.of] for e in events] if column.of else times
    match column.aggregate:
        case "count":
            return len(events)
        case "time":
            return sum(times)
        case "covered":
            covered, until = 0, start
            for begin, to in cut:
                covered += max(to - max(begin, until), 0)
                until = max(until, to)
            return covered
        case "sum":
            return sum(values)
    if not values:
        return None
    match column.aggregate:
        case "mean":
            return sum(values) / len(values)
        case "min":
            return min(values)
    return max(values)


def _shares(values: list[float], group: list[Any]) -> list[float]:
    sums = dict.fromkeys(group, 0.0)
    for value, key in zip(values, group, strict=True):
        sums[key] += value
    return [
        value / sums[key] if sums[key] else 0.0 for value, key in zip(values, group, strict=True)
    ]
