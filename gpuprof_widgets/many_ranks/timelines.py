"""The timelines of the page: read again, one after another, and kept without their details."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import numpy.typing as npt

from gpuprof_widgets.analyses.op_rows import gpu_rows, in_category
from gpuprof_widgets.many_ranks.progress import Progress
from gpuprof_widgets.trace.edit import kept_slices
from gpuprof_widgets.trace.model import Record, Trace
from gpuprof_widgets.trace.readers import load

MOST_SLICES = 20_000
"""Slices that one rank has on the page: its GPU's, annotations, and the longest of the others."""

ANNOTATIONS = ("user_annotation", "gpu_user_annotation")


def light_records(files: Sequence[Path]) -> Iterator[Record]:
    """The record of each file without what the timelines do not draw; one is read at a time."""
    with Progress(len(files), "timelines read") as progress:
        for file in files:
            yield progress.counted(light(load(file)))


def light(record: Record) -> Record:
    """The slices and tracks alone: no args, no counters, no Python calls, and not too many."""
    trace = record.trace
    bare = replace(trace, args={}, counters=trace.counters.iloc[:0])
    metadata = {key: record.metadata[key] for key in ("source", "label") if key in record.metadata}
    return Record(kept_slices(bare, _drawn(trace)), None, metadata)


def _drawn(trace: Trace) -> npt.NDArray[np.bool_]:
    """The GPU's slices and annotations first, then the longest of all others."""
    if len(trace) <= MOST_SLICES:
        return np.ones(len(trace), bool)
    first = in_category(trace, *ANNOTATIONS)
    first[gpu_rows(trace)] = True
    dur = trace.slices["dur"].to_numpy()
    order = np.lexsort((-dur, ~first))
    drawn = np.zeros(len(trace), bool)
    drawn[order[:MOST_SLICES]] = True
    return drawn
