"""Tabs on where the GPUs' time went: breakdown, steps, idle gaps, streams, critical path."""

from __future__ import annotations

import re

import numpy as np
import pandas as pd

from gpuprof_widgets.analyses.breakdown import HOST, breakdown, breakdown_segments
from gpuprof_widgets.analyses.columns import format_count, format_ns
from gpuprof_widgets.analyses.critical_path import critical_path
from gpuprof_widgets.analyses.gpu_work import gpu_kinds
from gpuprof_widgets.analyses.idle import idle, stream_of
from gpuprof_widgets.analyses.regions import steps
from gpuprof_widgets.analyses.streams import streams
from gpuprof_widgets.analyses.what_if import what_ifs
from gpuprof_widgets.trace.arrays import Ints
from gpuprof_widgets.trace.model import Record
from gpuprof_widgets.trace.schema import NONE
from gpuprof_widgets.views.table import Bars, Column, Panel, slice_events

MOST_EVENTS = 8_000
MOST_ROWS = 500
BREAKDOWN_BARS = Bars("where", "class", "time_ns")
BREAKDOWN_COLUMNS = (
    Column("where", "Where", "text"),
    Column("state", "State", "text"),
    Column("class", "Class", "text"),
    Column("time_ns", "Time", "ns", "time"),
    Column("share", "Share", "share", "share", "time_ns/where"),
)
BREAKDOWN_NOTE = "Every nanosecond is in exactly one class."


def breakdown_panel(record: Record) -> Panel | None:
    """Return a row per device and class of time; its events are the stretches of that class."""
    rows = _classes(breakdown(record))
    if not len(rows):
        return None
    events, width = _class_events(record, rows)
    on_gpu = bool((rows["state"] != HOST).any())
    title = "Breakdown" if on_gpu else "Breakdown (CPU)"
    exact = f"In a selected range the times are exact to {format_ns(width)}." if width else ""
    return Panel(
        title, BREAKDOWN_COLUMNS, rows, events, notes=(BREAKDOWN_NOTE, exact), bars=BREAKDOWN_BARS
    )


def step_breakdown_panel(record: Record) -> Panel | None:
    """Return a row per step, device and class with its time; a click on it shows the step."""
    table = breakdown(record, by="step")
    if table["step"].nunique() < 2:
        return None
    rows = _classes(table)
    shown = rows["where"].drop_duplicates()
    fitting = MOST_ROWS * len(shown) // max(len(rows), MOST_ROWS)
    rows = rows[rows["where"].isin(shown[:fitting])]
    times = steps(record).set_index("step")
    events = times.loc[rows["step"], ["start_ns", "end_ns"]].reset_index(drop=True)
    events = events.assign(group=np.arange(len(rows)), row=NONE)
    columns = tuple(Column(column.key, column.label, column.unit) for column in BREAKDOWN_COLUMNS)
    left_out = len(shown) - len(shown[:fitting])
    more = f"On the timeline only: {format_count(left_out, 'more step')}." if left_out else ""
    return Panel("Steps", columns, rows, events, notes=(BREAKDOWN_NOTE, more), bars=BREAKDOWN_BARS)


def _classes(table: pd.DataFrame) -> pd.DataFrame:
    """Return the classes that took any time, with the name of each one's bar."""
    rows = table[table["time_ns"] > 0].reset_index(drop=True)
    where = [
        ("CPU" if state == HOST else _gpu_name(device)) + (f" · step {step}" if step >= 0 else "")
        for device, state, step in zip(rows["device"], rows["state"], rows["step"], strict=True)
    ]
    return rows.assign(where=pd.Series(where, dtype=object))


def _gpu_name(device: int) -> str:
    return f"GPU {device}" if device >= 0 else "GPU"


def _class_events(record: Record, rows: pd.DataFrame) -> tuple[pd.DataFrame, int]:
    """Return the segments of each device, made `coarse` if too many, and their width in ns."""
    segments = breakdown_segments(record)
    number = pd.Series(np.arange(len(rows)), pd.MultiIndex.from_frame(rows[["device", "class"]]))
    group = number.reindex(pd.MultiIndex.from_frame(segments[["device", "class"]]))
    segments = segments.assign(group=group.to_numpy())
    devices = segments["device"].unique()
    parts = [
        coarse(segments[segments["device"] == device], MOST_EVENTS // len(devices))
        for device in devices
    ]
    events = pd.concat([part for part, _ in parts], ignore_index=True)
    return events.assign(row=NONE), max(width for _, width in parts)


def coarse(segments: pd.DataFrame, most: int) -> tuple[pd.DataFrame, int]:
    """Return at most ``most`` segments that stand for the given ones, and the width of a stretch.

    ``segments``: ``group``, ``start_ns``, ``end_ns``, those of a group disjoint. Within each
    stretch of time the segments of a group become one, so that every range from stretch to stretch
    has the same time of each group as before. The width is in ns, 0 where nothing changes.
    """
    if len(segments) <= most:
        return segments, 0
    group = segments["group"].to_numpy(np.int64)
    start, end = (segments[f"{edge}_ns"].to_numpy(np.int64) for edge in ("start", "end"))
    origin, span = int(start.min()), int(end.max() - start.min())
    width = 2 ** int(np.ceil(np.log2(max(span / most, 1))))
    pieces = _stretched(group, start - origin, end - origin, width)
    while len(pieces[0]) > most and width < span:
        width *= 2
        pieces = _stretched(group, start - origin, end - origin, width)
    group, start, end = pieces
    return pd.DataFrame({"group": group, "start_ns": origin + start, "end_ns": origin + end}), width


def _stretched(group: Ints, start: Ints, end: Ints, width: int) -> tuple[Ints, Ints, Ints]:
    """Return one piece per stretch and group; the pieces of a stretch follow one another."""
    first, last = start // width, (end - 1) // width
    count = np.maximum(last - first + 1, 0)
    of = np.repeat(np.arange(len(start)), count)
    stretch = first[of] + np.arange(len(of)) - np.repeat(np.cumsum(count) - count, count)
    time = np.minimum(end[of], (stretch + 1) * width) - np.maximum(start[of], stretch * width)
    groups = int(group.max()) + 1
    key, inverse = np.unique(stretch * groups + group[of], return_inverse=True)
    total = np.zeros(len(key), np.int64)
    np.add.at(total, inverse.reshape(-1), time)
    stretch = key // groups
    opens = np.append(True, stretch[1:] != stretch[:-1])[: len(key)]
    before = np.cumsum(total) - total
    begins = stretch * width + before - before[opens][np.cumsum(opens) - 1]
    return key % groups, begins, begins + total


IDLE_COLUMNS = (
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
SAME_GAP = ["where", "cause", "doing", "line", "module"]
STEP = re.compile(r"ProfilerStep#\d+")


def idle_panel(record: Record) -> Panel | None:
    """Return a row per device, cause and CPU activity; its events are the idle gaps."""
    gaps = idle(record)
    if not len(gaps):
        return None
    doing = {name: STEP.sub("no op", name) or "no op" for name in gaps["cpu_name"].unique()}
    gaps = gaps.assign(where=gaps["device"].map(_gpu_name), doing=gaps["cpu_name"].map(doing))
    grouped = gaps.groupby(SAME_GAP, sort=False)
    rows = grouped["dur_ns"].agg(["size", "sum", "max"]).reset_index()
    rows = rows.set_axis([*SAME_GAP, "gaps", "time_ns", "longest_ns"], axis=1)
    rows["share"] = rows["time_ns"] / rows.groupby("where")["time_ns"].transform("sum")
    rows = rows.sort_values("time_ns", ascending=False, kind="stable")
    place = rows.index.argsort()
    events = gaps[["start_ns", "end_ns"]].assign(group=place[grouped.ngroup()], row=NONE)
    return Panel(
        "Idle",
        IDLE_COLUMNS,
        rows.reset_index(drop=True),
        events,
        notes=(
            "Gaps in which no stream of the GPU had anything to do.",
            "Each gap has one cause: how it began (synchronise: the CPU had just waited for the "
            "GPU, so nothing was queued). Breakdown says what the CPU did at each moment of it.",
        ),
        sort="time_ns",
        bars=Bars("where", "cause", "time_ns"),
    )


STREAM_COLUMNS = (
    Column("where", "Stream", "text"),
    Column("kind", "Kind", "text"),
    Column("calls", "Calls", "count", "count"),
    Column("time_ns", "Busy", "ns", "covered"),
    Column("busy_share", "Stream busy", "share"),
    Column("shared_ns", "Overlaps other streams", "ns"),
    Column("serialised_ns", "Serialised with compute", "ns"),
)
SAME_STREAM = ["device", "stream", "kind"]
OF_THE_STREAM = ["busy_share", "shared_ns", "serialised_ns"]


def streams_panel(record: Record) -> Panel | None:
    """Return a row per stream and kind of work; its events are the slices.

    Values of a whole stream stand in its first row only.
    """
    table = streams(record)
    if not len(table):
        return None
    trace = record.trace
    row, kind = gpu_kinds(trace)
    stream = {"device": trace.index.device[row], "stream": stream_of(trace, row)}
    slices = slice_events(trace, row, kind=kind, **stream)
    grouped = slices.groupby(SAME_STREAM, sort=True)
    rows = grouped.size().rename("calls").reset_index()
    rows = rows.merge(table.drop(columns="calls"), "left", on=["device", "stream"])
    times = zip(rows["kind"], rows.to_dict("records"), strict=True)
    rows["time_ns"] = np.array([row[f"{kind}_ns"] for kind, row in times], np.int64)
    again = rows.duplicated(["device", "stream"])
    rows[OF_THE_STREAM] = rows[OF_THE_STREAM].astype(float).mask(again)
    rows["where"] = [
        f"{_gpu_name(device)} · stream {stream}"
        for device, stream in zip(rows["device"], rows["stream"], strict=True)
    ]
    return Panel(
        "Streams",
        STREAM_COLUMNS,
        rows,
        slices[["start_ns", "end_ns", "row"]].assign(group=grouped.ngroup()),
        notes=(
            "The last three columns are of the whole stream over the whole trace, "
            "shown once per stream.",
        ),
        bars=Bars("where", "kind", "time_ns"),
    )


PATH_COLUMNS = (
    Column("name", "On the path", "text"),
    Column("kind", "Bound by", "text"),
    Column("pieces", "Pieces", "count", "count"),
    Column("time_ns", "Time", "ns", "time"),
    Column("share", "Share", "share", "share", "time_ns"),
    Column("saved_ns", "Saved if it cost nothing", "ns"),
)
BETWEEN = "(between ops)"


def critical_path_panel(record: Record) -> Panel | None:
    """Return a row per op and kind of bound; its events are the pieces of the path.

    The saving of an op belongs to all of its rows together, so it stands in the longest only. The
    table is sorted by it, as the finding goes by it, and then by time.
    """
    if not len(record.trace.index.gpu):
        return None
    path = critical_path(record)
    if not len(path):
        return None
    # On texts, pandas' mask takes a fifth of the time of its where.
    slice_name = path["name"].mask(path["name"] == "", BETWEEN)
    path = path.assign(label=path["op_name"].mask(path["op"] < 0, slice_name))
    grouped = path.groupby(["label", "kind"], sort=False)
    rows = grouped["dur_ns"].agg(pieces="size", time_ns="sum").reset_index()
    rows = rows.rename(columns={"label": "name"})
    rows = rows.sort_values("time_ns", ascending=False, kind="stable")
    saved = what_ifs(record)
    saving = rows["name"].map(dict(zip(saved["name"], saved["saved_ns"], strict=True)))
    rows["saved_ns"] = saving.mask(rows["name"].duplicated())  # once, or readers would add it up
    rows = rows.sort_values("saved_ns", ascending=False, kind="stable")
    place = np.argsort(rows.index)
    rows = rows.reset_index(drop=True)
    rows["share"] = rows["time_ns"] / max(int(rows["time_ns"].sum()), 1)
    events = path[["start_ns", "end_ns", "row", "track"]]
    return Panel(
        "Critical path",
        PATH_COLUMNS,
        rows,
        events.assign(group=place[grouped.ngroup().to_numpy()]),
        notes=(
            "The chain of work that sets the length of the run. Work that is not on it could take "
            "longer at no cost.",
            "The last column replays the run without the op and all that it launched: once per op, "
            "for all its rows together. The savings of two ops need not add up.",
        ),
        sort="saved_ns",
        bars=Bars("", "kind", "time_ns"),
    )
