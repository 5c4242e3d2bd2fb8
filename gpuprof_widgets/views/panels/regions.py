"""Tabs on regions of the user's code: modules, annotations and Python functions."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd

from gpuprof_widgets.analyses.lines import sampled_lines, stretches
from gpuprof_widgets.analyses.modules import module_slices, modules
from gpuprof_widgets.analyses.python_calls import function_labels
from gpuprof_widgets.analyses.python_time import function_of, python_time
from gpuprof_widgets.analyses.reasons import why_empty
from gpuprof_widgets.analyses.regions import annotation_slices
from gpuprof_widgets.analyses.regions import annotations as by_annotation
from gpuprof_widgets.analyses.waits import python_lanes
from gpuprof_widgets.trace.arrays import Ints, Rows
from gpuprof_widgets.trace.model import Record
from gpuprof_widgets.trace.schema import NONE, SAMPLED
from gpuprof_widgets.views.table import Column, Panel

MOST_MODULES = 500
MOST_EVENTS_OF_MODULES = 10_000
DEEPEST = 30
INDENT = "\u2003"  # an em space: several of them stay several in HTML
MODULE_COLUMNS = (
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
MODULE_COSTS = [
    "device_total_ns",
    "backward_device_total_ns",
    "cpu_total_ns",
    "backward_cpu_total_ns",
]


def modules_panel(record: Record) -> Panel | None:
    """Return a row per module, parents before their children; its events are its calls."""
    table = modules(record)
    if why_empty(table):
        return None
    named = table[table["name"] != ""]
    # In the order of the tree, which stays whole: none costs more than its parent.
    by_cost = named.assign(cost=named[MODULE_COSTS].sum(axis=1)).sort_values(
        ["cost", "depth"], ascending=[False, True], kind="stable"
    )
    rows = named.loc[by_cost.index[:MOST_MODULES].sort_values()]
    notes = [
        "Times include inner modules, except self times. The backward pass counts for the modules "
        "of its forward ops."
    ]
    if len(rows) < len(named):
        notes.append(f"The costliest {len(rows)} of {len(named):,} modules.")
    if (rows["depth"] > DEEPEST).any():
        notes.append(f"Modules more than {DEEPEST} levels deep are indented like level {DEEPEST}.")
    indented = [
        INDENT * min(depth, DEEPEST) + name
        for depth, name in zip(rows["depth"], rows["name"], strict=True)
    ]
    rows = rows.assign(label=pd.Series(indented, rows.index, dtype=object))
    shown = tuple(
        column for column in MODULE_COLUMNS if column.unit == "text" or rows[column.key].any()
    )
    return Panel(
        "Modules",
        shown,
        rows.reset_index(drop=True),
        _call_events(module_slices(record), "module", rows.index),
        notes=tuple(notes),
        most_events=MOST_EVENTS_OF_MODULES,
    )


def _call_events(calls: pd.DataFrame, key: str, rows: pd.Index) -> pd.DataFrame:
    """Return the calls whose ``key`` is one of ``rows``, with its position there as ``group``."""
    group = pd.Series(np.arange(len(rows)), rows)
    events = calls.assign(group=group.reindex(calls[key]).to_numpy())
    events = events[events["group"].notna()].astype({"group": np.int32})
    return events[["group", "start_ns", "end_ns", "row"]].reset_index(drop=True)


MOST_ANNOTATIONS = 200
MOST_EVENTS_OF_ANNOTATIONS = 10_000
ANNOTATION_COLUMNS = (
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
GPU_NOTE = "GPU work is all that a region launched, counted once. Self leaves out inner regions."


def annotations_panel(record: Record) -> Panel | None:
    """Return a row per annotation by name; its events are its calls."""
    table = by_annotation(record)
    if why_empty(table):
        return None
    on_gpu = bool(table["kernels"].any())
    sort = "kernel_ns" if on_gpu else "cpu_total_ns"
    rows = table.sort_values(sort, ascending=False, kind="stable", ignore_index=True)
    rows = rows.head(MOST_ANNOTATIONS)
    columns: tuple[Column, ...] = ANNOTATION_COLUMNS
    if not on_gpu:
        columns = tuple(column for column in columns if column.key not in GPU_COLUMNS)
    return Panel(
        "Annotations",
        columns,
        rows,
        _call_events(annotation_slices(record), "name", pd.Index(rows["name"])),
        notes=(GPU_NOTE,) if on_gpu else (),
        sort=sort,
        most_events=MOST_EVENTS_OF_ANNOTATIONS,
    )


MOST_EVENTS_OF_LINES = 10_000
MOST_PIECES = 2_000
"""Pieces for a page that does not have all slices: 15 kB of a notebook."""
FUNCTION_CALLS = Column("calls", "Calls", "count")
FUNCTION_TIMES: tuple[Column, ...] = (
    Column("self_ns", "Self", "ns", "time"),
    Column("share", "Share", "share", "share", "self_ns"),
    Column("total_ns", "Total", "ns"),
)
FUNCTION_ERRORS = (
    Column("self_error_ns", "Self ±", "ns"),
    Column("total_error_ns", "Total ±", "ns"),
)
FUNCTION_WAITS = (
    Column("self_waiting_ns", "Self, waiting for GPU", "ns"),
    Column("total_waiting_ns", "Total, waiting for GPU", "ns"),
    Column("waited_for", "Waited for", "text"),
)


def _estimates(table: pd.DataFrame) -> str:
    """Return how exact the times of samples are."""
    known = ", off by no more than ± in 95 % of runs" if table["total_error_ns"].any() else ""
    return f"times are estimates{known}"


def python_time_panel(record: Record) -> Panel | None:
    """Return a row per function; its events are the pieces of its self time."""
    table = python_time(record)
    if not len(table):
        return None
    table = table.iloc[_by_better_rank(table)].reset_index(drop=True)
    sampled = bool(record.metadata.get(SAMPLED))
    rows = table.assign(
        label=pd.Series(function_labels(table), dtype=object),
        share=table["self_ns"] / max(int(table["self_ns"].sum()), 1),
    )
    waits = FUNCTION_WAITS if rows["total_waiting_ns"].any() else ()
    errors = FUNCTION_ERRORS if rows["total_error_ns"].any() else ()
    frames = _frames(record, table)
    note = ""
    if sampled:
        note = f"From samples: {_estimates(table)}, and no calls were counted."
    elif table["total_waiting_ns"].any() and not table["exact"].all():
        note = "From cProfile. Waiting for the GPU is estimated (with --stack it is exact)."
    return Panel(
        "Python functions",
        (
            Column("label", "Function", "text"),
            *(() if sampled else (FUNCTION_CALLS,)),
            *FUNCTION_TIMES,
            *errors,
            *waits,
        ),
        rows,
        _pieces(record, frames),
        notes=(note,),
        sort="self_ns",
        most_events=MOST_PIECES,
        frames=frames if (frames >= 0).any() else None,
    )


def _by_better_rank(table: pd.DataFrame) -> Rows:
    """Return the order of rows by their better rank in self and total time.

    The page gets only the first rows, and sorts them by either.
    """
    ranks = table[["self_ns", "total_ns"]].rank(method="first", ascending=False).min(axis=1)
    return np.argsort(ranks.to_numpy(), kind="stable")


def _frames(record: Record, table: pd.DataFrame) -> Ints:
    """Return the function of each slice, -1 on threads that do not count."""
    tracks = record.trace.tracks
    counts = (tracks["kind"] == "python") & tracks["lane"].isin(python_lanes(record))
    track = record.trace.slices["track"].to_numpy()
    return np.where(counts.to_numpy()[track], function_of(record.trace, table)[:-1], NONE)


def _pieces(record: Record, frames: Ints) -> pd.DataFrame | None:
    """Return the stretches of time in which each function ran itself, not one that it called.

    None where there are no frames: cProfile does not say when a function ran.
    """
    trace = record.trace
    function = np.append(frames, NONE)  # where no frame was open, the row is -1
    tables = []
    for track in np.unique(trace.slices["track"].to_numpy()[frames >= 0]):
        pieces = trace.index.segments(int(track))
        group = function[pieces.row]
        columns = {"start_ns": pieces.start, "end_ns": pieces.end, "row": pieces.row}
        tables.append(pd.DataFrame({"group": group, **columns})[group >= 0])
    return pd.concat(tables, ignore_index=True) if tables else None


LINE_COLUMNS = (
    Column("place", "Line", "text"),
    Column("code", "Code", "text"),
    Column("function", "Function", "text"),
    *FUNCTION_TIMES,
)


def sampled_lines_panel(record: Record) -> Panel | None:
    """Return a row per line of the user's code that samples found; its events are its self time."""
    table = sampled_lines(record)
    if why_empty(table):
        return None
    found = stretches(record)
    order = _by_better_rank(found.lines)
    rows = found.lines.iloc[order].reset_index(drop=True)
    group = np.empty(len(order), np.int64)
    group[order] = np.arange(len(order))
    rows = rows.assign(
        place=[
            f"{Path(file).name}:{line}"
            for file, line in zip(rows["file"], rows["line"], strict=True)
        ],
        share=rows["self_ns"] / max(int(rows["self_ns"].sum()), 1),
    )
    return Panel(
        "Sampled lines",
        (
            *LINE_COLUMNS,
            *(FUNCTION_ERRORS if rows["total_error_ns"].any() else ()),
            *(FUNCTION_WAITS[:2] if rows["total_waiting_ns"].any() else ()),
        ),
        rows,
        found.pieces.assign(group=group[found.pieces["group"]]),
        notes=(f"From samples: {_estimates(rows)}. The time of a library is its caller's.",),
        sort="self_ns",
        most_events=MOST_EVENTS_OF_LINES,
    )
