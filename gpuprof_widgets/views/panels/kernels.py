"""Tabs on kernels: by name, their launches, their sequences, and their ops under the roofline."""

from __future__ import annotations

import re

import numpy as np
import pandas as pd

from gpuprof_widgets.analyses.columns import format_count, format_ns, format_share, group_rows
from gpuprof_widgets.analyses.findings.finding import code
from gpuprof_widgets.analyses.kernels import (
    UTILISATION,
    counted_gpu_rows,
    gpu_curves,
    gpu_summary,
    kernels,
)
from gpuprof_widgets.analyses.launches import UNLINKED, by_call, launches, queue_length, queues
from gpuprof_widgets.analyses.reasons import NOTE, why_empty
from gpuprof_widgets.analyses.roofline import grouped_pieces, roofline
from gpuprof_widgets.analyses.sequences import ARROW, LENGTH, occurrences, sequences
from gpuprof_widgets.trace.known_metadata import Peaks
from gpuprof_widgets.trace.model import Record
from gpuprof_widgets.trace.owners import EVALUATE
from gpuprof_widgets.views.table import Column, Curve, Panel, Points, slice_events

KERNEL_COLUMNS = (
    Column("label", "Name", "text"),
    Column("calls", "Calls", "count", "count"),
    Column("time_ns", "GPU time", "ns", "time"),
    Column("share", "Share of busy", "share"),
    Column("op_name", "Launched by", "text"),
    Column("average_ns", "Mean", "ns", "mean"),
    Column("p50_ns", "Median", "ns"),
    Column("p99_ns", "p99", "ns"),
    Column("max_ns", "Longest", "ns", "max"),
    Column("tensor", "Tensor cores", "text"),
    Column("occupancy", "Occupancy", "share"),
    Column("blocks_per_sm", "Blocks per SM", "number"),
    Column("grid", "Grid", "text"),
    Column("block", "Block", "text"),
    Column("registers", "Registers", "number"),
    Column("shared_memory", "Shared memory", "bytes"),
)
UNKNOWN = ("registers", "shared_memory")


def kernels_panel(record: Record) -> Panel | None:
    """Return a row per kernel, copy and memset by name; its events are the GPU slices."""
    table = kernels(record)
    if not len(table):
        return None
    eligible = (table["eligible_share"] >= 0.5) & (table["kind"] == "compute")
    rows = table.rename(columns={"total_ns": "time_ns"}).assign(
        label=[kernel_name(name) for name in table["name"]],
        tensor=np.select([table["tensor_cores"], eligible], ["used", "op eligible"], "").tolist(),
    )
    for key in UNKNOWN:
        rows[key] = rows[key].where(rows[key] >= 0, np.nan)
    several = " and " + (rows["ops"] - 1).astype(str) + " more"
    rows["op_name"] += several.where(rows["ops"] > 1, "")
    return Panel(
        "Kernels",
        KERNEL_COLUMNS,
        rows,
        _kernel_events(record, table),
        notes=(_kernel_note(record),),
        curves=tuple(_running_curves(record)),
    )


def _kernel_events(record: Record, table: pd.DataFrame) -> pd.DataFrame:
    slices, rows = record.trace.slices, counted_gpu_rows(record.trace)
    name, category = slices["name"].cat, slices["category"].cat
    kinds = len(category.categories)
    listed = name.categories.get_indexer(pd.Index(table["name"])) * kinds
    listed += category.categories.get_indexer(pd.Index(table["category"]))
    key = name.codes.to_numpy()[rows].astype(np.intp) * kinds + category.codes.to_numpy()[rows]
    order = np.argsort(listed)
    group = order[np.searchsorted(listed[order], key)]
    return slice_events(record.trace, rows, group=group)


def _running_curves(record: Record) -> list[Curve]:
    """Return the utilisation and SM efficiency of each GPU over time."""
    return [
        Curve(
            f"{'Kernels ran' if name == UTILISATION else 'SMs at work'}, GPU {device}",
            "share",
            changes[["ts_ns", "value"]],
        )
        for (device, name), changes in gpu_curves(record).groupby(["device", "name"], sort=False)
        if changes["value"].any()
    ]


def _kernel_note(record: Record) -> str:
    """Return how well each GPU was used, in the TensorBoard plugin's figures."""
    sentences = []
    for gpu in gpu_summary(record).to_dict("records"):
        figures = {
            "a kernel ran {} of the time": gpu["utilisation"],
            "SMs at work {}": gpu["sm_efficiency"],
            "occupancy {}": gpu["occupancy"],
            "tensor cores {} of kernel time": gpu["tensor_core_share"],
        }
        known = [words.format(format_share(v)) for words, v in figures.items() if not np.isnan(v)]
        sentences.append(f"GPU {gpu['device']}: {', '.join(known)}.")
    return " ".join(sentences)


LONGEST_NAME = 120
LEFT_OUT = ("(anonymous namespace)::", "at::native::", "void ", "static ")

CUTLASS_KERNEL = re.compile(r"cutlass\w*::Kernel\d*<(\w+)")
"""CUTLASS's kernels are all called Kernel: only their template arguments differ."""


def kernel_name(name: str) -> str:
    """Return a kernel's name without its parameters and the namespaces that nearly all have."""
    for words in LEFT_OUT:
        name = name.replace(words, "")
    if name.endswith(")") and "<" in name:
        name = _without_parameters(name)
    return _cut(name, LONGEST_NAME)


def function_name(name: str) -> str:
    """Return the name of a kernel's function alone, where there is no room for its types."""
    cutlass = CUTLASS_KERNEL.search(name)
    return cutlass[1] if cutlass else code(name).strip("`")


def _cut(text: str, longest: int) -> str:
    return text if len(text) <= longest else text[: longest - 1] + "…"


def _without_parameters(name: str) -> str:
    """Return the text before the parenthesis that the last one closes."""
    depth = 0
    for place in range(len(name) - 1, -1, -1):
        depth += {")": 1, "(": -1}.get(name[place], 0)
        if not depth:
            return name[:place] or name
    return name


MOST_SEQUENCES = 100
LONGEST_SEQUENCE = 300
"""Letters of a sequence; of a longer one the page shows the beginning."""
SHORTEST_NAME = 30
"""Letters of each kernel's name in a sequence, without its template arguments."""

SEQUENCE_COLUMNS = (
    Column("op_name", "Op", "text"),
    Column("sequence", "Launches", "text"),
    Column("kernels", "Kernels", "number"),
    Column("calls", "Calls", "count", "count"),
    Column("gpu_ns", "GPU time", "ns", "sum", "gpu_ns"),
    Column("launching_ns", "CPU launching", "ns"),
    Column("cpu_ns", "CPU time", "ns", "time"),
    Column("short_kernels", "Shorter than launch", "share"),
)


def sequences_panel(record: Record) -> Panel | None:
    """Return a row per op and sequence of kernels; its events are the op's calls."""
    table = sequences(record, top=MOST_SEQUENCES)
    if not len(table):
        return None
    rows = table.assign(
        op_name=table["op_name"].str.removeprefix(EVALUATE),
        sequence=[
            _cut(
                ARROW.join(_cut(function_name(name), SHORTEST_NAME) for name in text.split(ARROW)),
                LONGEST_SEQUENCE,
            )
            for text in table["sequence"]
        ],
        gpu_ns=table["total_ns"],
        cpu_ns=table["op_ns"],
    )
    return Panel(
        "Sequences",
        SEQUENCE_COLUMNS,
        rows,
        _sequence_events(record, table),
        notes=(
            f"Outermost ops that launch {LENGTH} or more kernels in a call, grouped by what they "
            "launch. A fused kernel needs one launch, and passes no intermediate results through "
            "memory.",
        ),
        sort="gpu_ns",
    )


def _sequence_events(record: Record, table: pd.DataFrame) -> pd.DataFrame:
    trace = record.trace
    calls = occurrences(trace, None, LENGTH)
    dur = pd.Series(trace.slices["dur"].to_numpy()[calls.rows])
    first = pd.Series(calls.op).groupby(calls.group).transform("first")
    place = pd.Series(table.index, table["first"].to_numpy())
    events = slice_events(
        trace,
        calls.op,
        group=place.reindex(first).to_numpy(),
        gpu_ns=dur.groupby(calls.call).sum().to_numpy(),
    )
    return events[events["group"].notna()].astype({"group": int})


LAUNCH_COLUMNS = (
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
    """Return a row per op and kind of launch call; its events are the calls."""
    table = launches(record)
    if not len(table):
        return None
    table = by_call(table)
    keys = ["op_name", "launch_name"]
    group, _ = group_rows({key: table[key].to_numpy() for key in keys})
    events = table[["call_ns", "latency_ns", "queue_ns", "pure_latency_ns"]].assign(
        group=group,
        start_ns=table["call_start_ns"],
        end_ns=table["call_start_ns"] + table["call_ns"],
        row=table["launch"],
        gpu_ns=table["work_ns"],
        short=table["short"].astype(int),
        late=table["late"].astype(int),
        call_ns=table["call_ns"] / table.groupby("launch")["launch"].transform("size"),
    )
    by = events.groupby("group")
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
        LAUNCH_COLUMNS,
        rows.reset_index(drop=True),
        events,
        notes=(_launch_note(record),),
        sort="call_ns",
        curves=tuple(_queue_curves(record)),
    )


def _queue_curves(record: Record) -> list[Curve]:
    """Return the length of each stream's queue over time, the busiest stream first."""
    by_stream = list(queue_length(record).groupby(["device", "stream"]))
    by_stream.sort(key=lambda pair: -len(pair[1]))
    return [
        Curve(
            f"Queue of GPU {device} · stream {stream}",
            "count",
            changes[["ts_ns", "length"]].rename(columns={"length": "value"}),
        )
        for (device, stream), changes in by_stream
    ]


def _launch_note(record: Record) -> str:
    table = queues(record)
    short, total, full = (int(table[key].sum()) for key in ("short", "launches", "full_ns"))
    parts = [f"{short:,} of {total:,} launches took longer than what they launched"]
    if full:
        parts.append(f"the CPU met a full queue (1,024) for {format_ns(full)}")
    if unlinked := int(table.attrs.get(UNLINKED, 0)):
        parts.append(f"{format_count(unlinked, 'GPU event')} without a launch in the trace")
    return "; ".join(parts) + "."


MOST_OPS = 300
MOST_EVENTS_OF_OPS = 10_000
ROOFLINE_BY = "shape"
ROOFLINE_KEYS = ["name", "dtype", "input_shapes"]
ROOFLINE_COLUMNS = (
    Column("name", "Op", "text"),
    Column("input_shapes", "Input shapes", "text"),
    Column("dtype", "Format", "text"),
    Column("calls", "Calls", "count"),
    Column("time_ns", "Time", "ns", "time"),
    Column("roof_share", "Share of roof", "share"),
    Column("bound", "Bound by", "text"),
    Column("flops_per_s", "FLOP/s", "flop/s", "ratio", "flops/time_ns"),
    Column("bytes_per_s", "Bytes/s", "bytes/s", "ratio", "bytes/time_ns"),
    Column("intensity", "FLOP/byte", "number"),
    Column("flops", "FLOPs", "flop", "sum", "flops"),
    Column("bytes", "Bytes", "bytes", "sum", "bytes"),
    Column("bytes_counted", "Bytes counted", "text"),
)


def roofline_panel(record: Record) -> Panel | None:
    """Return a row per op, number format and input shapes; its events are the kernels."""
    table = roofline(record, by=ROOFLINE_BY)
    if why_empty(table) or not (table["bytes"] > 0).any():
        return None
    note, peaks = table.attrs[NOTE], table.attrs["peaks"]
    worked = table[(table["flops"] > 0) | (table["bytes"] > 0)]
    rows = worked.head(MOST_OPS).reset_index(drop=True)
    rows["bytes"] = rows["bytes"].where(rows["bytes"] >= 0, np.nan)
    if len(worked) > len(rows):
        note += f". The {MOST_OPS} longest of {len(worked):,} rows."
    points = None
    if (rows["intensity"] > 0).any():
        points = Points("intensity", "flops_per_s", "time_ns", _roofs(rows, peaks))
    return Panel(
        "Roofline",
        ROOFLINE_COLUMNS,
        rows,
        _roofline_events(record, rows),
        notes=(note[:1].upper() + note[1:],),
        sort="time_ns",
        points=points,
        most_events=MOST_EVENTS_OF_OPS,
    )


def _roofline_events(record: Record, rows: pd.DataFrame) -> pd.DataFrame:
    """Return the pieces of work of these rows."""
    pieces, keys = grouped_pieces(record, ROOFLINE_BY)
    group = pd.Series(np.arange(len(rows)), pd.MultiIndex.from_frame(rows[ROOFLINE_KEYS]))
    row = group.reindex(pd.MultiIndex.from_frame(pieces[keys])).to_numpy()
    pieces = pieces.assign(group=row, end_ns=pieces["start_ns"] + pieces["time_ns"])
    pieces = pieces[pieces["group"].notna()].astype({"group": np.int32})
    columns = ["group", "start_ns", "end_ns", "row", "flops", "bytes"]
    pieces = pieces.sort_values("start_ns", kind="stable")
    return pieces[columns].reset_index(drop=True)


def _roofs(
    rows: pd.DataFrame, peaks: dict[str, object] | None
) -> tuple[tuple[tuple[float, ...], tuple[float, ...], str], ...]:
    """Return a roof per number format of the ops: memory's slope up to the format's ceiling."""
    if not peaks:
        return ()
    roof = Peaks.from_dict(peaks)
    intensity = rows["intensity"][rows["intensity"] > 0]
    used = rows["dtype"][rows["flops"] > 0].drop_duplicates()
    lines = []
    for dtype in used[used.isin(list(roof.flops_per_s))]:
        top = roof.flops_per_s[dtype]
        ridge = top / roof.bytes_per_s
        left = min(float(intensity.min()), ridge) / 2
        right = max(float(intensity.max()), ridge) * 4
        lines.append(((left, ridge, right), (left * roof.bytes_per_s, top, top), str(dtype)))
    return tuple(lines)
