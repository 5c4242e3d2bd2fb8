"""The timelines of the page: read again, one after another, and kept without their details."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pandas as pd

from gpuprof_widgets.many_ranks.progress import Progress
from gpuprof_widgets.trace.edit import NewSlice, kept_slices, with_slices
from gpuprof_widgets.trace.model import Record, Trace
from gpuprof_widgets.trace.readers import load
from gpuprof_widgets.trace.schema import NVTX_RANGE

MOST_SLICES = 20_000
"""Slices that one rank has on the page: its GPU's, annotations, and the longest of the others."""

WAITING = "cuda_sync"
"""Category of the slices that say for whom a collective waited: it has a colour of its own."""

ANNOTATIONS = ("user_annotation", "gpu_user_annotation", NVTX_RANGE)


def light_records(
    files: Sequence[Path], waits: Sequence[pd.DataFrame], clocks: Sequence[int]
) -> Iterator[Record]:
    """The record of each file without what the timelines do not draw; one is read at a time.

    ``waits``: of each rank the rows of `waiting`; ``clocks``: what their times are less the ns
    since the epoch.
    """
    with Progress(len(files), "timelines read") as progress:
        for file, table, clock in zip(files, waits, clocks, strict=True):
            yield progress.counted(light(load(file), table, clock))


def light(record: Record, waits: pd.DataFrame, clock_ns: int = 0) -> Record:
    """The slices and tracks alone: no args, no counters, no Python calls, and not too many.

    What a collective waited for the last rank becomes a slice of its own, before it.
    """
    trace = record.trace
    drawn = _drawn(trace)
    trace = replace(trace, args={}, counters=trace.counters.iloc[:0])
    trace, told = _shortened(trace, waits, clock_ns)
    metadata = {key: record.metadata[key] for key in ("source", "label") if key in record.metadata}
    return Record(with_slices(kept_slices(trace, drawn), told), None, metadata)


def _shortened(trace: Trace, waits: pd.DataFrame, clock_ns: int) -> tuple[Trace, list[NewSlice]]:
    """The trace whose collectives begin when the last rank came, and slices for what was before."""
    row = waits["row"].to_numpy(np.int64)
    start = waits["start_ns"].to_numpy(np.int64) - clock_ns - trace.epoch_ns
    ts, dur = trace.slices["ts"].to_numpy().copy(), trace.slices["dur"].to_numpy().copy()
    track = trace.slices["track"].to_numpy()
    wait = waits["wait_ns"].to_numpy(np.int64)
    here = (row < len(ts)) & (wait > 0)
    here[here] = ts[row[here]] == start[here]  # not those of another file of this rank
    told = [
        NewSlice(int(ts[at]), int(ns), f"rank {last} awaited", WAITING, int(track[at]))
        for at, ns, last in zip(row[here], wait[here], waits["last_rank"][here], strict=True)
    ]
    ts[row[here]] += wait[here]
    dur[row[here]] -= wait[here]
    return replace(trace, slices=trace.slices.assign(ts=ts, dur=dur)), told


def _drawn(trace: Trace) -> npt.NDArray[np.bool_]:
    """The GPU's slices and annotations first, then the longest of all others."""
    if len(trace) <= MOST_SLICES:
        return np.ones(len(trace), bool)
    first = trace.index.in_category(*ANNOTATIONS).copy()
    first[trace.index.gpu] = True
    dur = trace.slices["dur"].to_numpy()
    order = np.lexsort((-dur, ~first))
    drawn = np.zeros(len(trace), bool)
    drawn[order[:MOST_SLICES]] = True
    return drawn
