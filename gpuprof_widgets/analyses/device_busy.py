"""How much of the time each GPU had something to do."""

from __future__ import annotations

import numpy as np
import pandas as pd

from gpuprof_widgets.analyses.gpu_kinds import KINDS, kind_codes
from gpuprof_widgets.analyses.lacking import says_if_empty
from gpuprof_widgets.analyses.open_times import open_within
from gpuprof_widgets.trace import intervals
from gpuprof_widgets.trace.intervals import Intervals
from gpuprof_widgets.trace.model import Record, Trace
from gpuprof_widgets.trace.schema import GPU_TRACKS

COLUMNS = (
    "device",
    "span_ns",
    "busy_ns",
    "idle_ns",
    "busy_share",
    "kernel_ns",
    "copy_ns",
    "memset_ns",
    "slices",
)


@says_if_empty("the trace has no GPU work: neither kernels nor copies")
def device_busy(record: Record) -> pd.DataFrame:
    """One row per GPU that the run used, by index; busy and idle add up to the span exactly.

    A range in which a GPU ran nothing has its row too: windows that tile a run add up to it.

    Columns (ns): ``device``, ``span_ns`` (the whole trace or window), ``busy_ns`` (at least one
    kernel, copy or memset ran, on whichever stream), ``idle_ns``, ``busy_share``; ``kernel_ns``,
    ``copy_ns`` and ``memset_ns`` (at least one kernel, copy or memset ran: they may overlap),
    ``slices``.
    """
    trace = record.trace
    rows = [_row(trace, device) for device in devices(trace)]
    return pd.DataFrame(rows, columns=list(COLUMNS))


def devices(trace: Trace) -> list[int]:
    """Index of every GPU that the run used: of its tracks, which a window keeps."""
    tracks = trace.tracks
    return sorted(set(tracks["device"][tracks["kind"].isin(GPU_TRACKS)].tolist()))


def devices_at_work(trace: Trace) -> list[int]:
    """Index of every GPU that ran anything in this trace or range of it."""
    return [int(device) for device in np.unique(trace.index.device[trace.index.gpu])]


def busy_intervals(trace: Trace, device: int, *categories: str) -> Intervals:
    """When the GPU ran a slice of these categories (all of them where none is named)."""
    rows = trace.index.gpu
    rows = rows[trace.index.device[rows] == device]
    if categories:
        rows = rows[trace.index.in_category(*categories)[rows]]
    return open_within(trace, rows)


def kind_times(trace: Trace, device: int) -> dict[str, Intervals]:
    """When each kind of work ran on the GPU, by the names of `KINDS` and in their order."""
    rows = trace.index.gpu
    rows = rows[trace.index.device[rows] == device]
    kind = kind_codes(trace)[rows]
    return {name: open_within(trace, rows[kind == code]) for code, name in enumerate(KINDS)}


def _row(trace: Trace, device: int) -> dict[str, float]:
    rows = trace.index.gpu
    busy = intervals.length(busy_intervals(trace, device))
    return {
        "device": device,
        "span_ns": trace.span_ns,
        "busy_ns": busy,
        "idle_ns": trace.span_ns - busy,
        "busy_share": busy / trace.span_ns if trace.span_ns else 0.0,
        "kernel_ns": intervals.length(busy_intervals(trace, device, "kernel")),
        "copy_ns": intervals.length(busy_intervals(trace, device, "gpu_memcpy")),
        "memset_ns": intervals.length(busy_intervals(trace, device, "gpu_memset")),
        "slices": int((trace.index.device[rows] == device).sum()),
    }
