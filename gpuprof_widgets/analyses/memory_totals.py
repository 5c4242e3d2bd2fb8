"""What each device held in all, of traces that tell of no single allocation."""

from __future__ import annotations

import re

import numpy as np
import pandas as pd

from gpuprof_widgets.analyses.lacking import MEMORY, not_recorded
from gpuprof_widgets.analyses.memory_blocks import UNKNOWN
from gpuprof_widgets.trace.model import Record, Trace

TOTAL = re.compile(r"(GPU -?\d+) (allocated|reserved)")
"""Name of the counter of a GPU's memory (`COUNTER_COLUMNS`); torch's are always of both."""


def reserved_totals(trace: Trace) -> pd.DataFrame:
    """One row per change of what is reserved: columns as `memory_curve`, nothing is allocated.

    That is what Nsight Systems records: calls of cudaMalloc and cudaFree, not those of PyTorch's
    own allocator. A window of torch's trace in which nothing happened has none.
    """
    counters = trace.counters
    names = counters["name"].cat
    found = [TOTAL.fullmatch(str(text)) for text in names.categories]
    torch = {match[1] for match in found if match and match[2] == "allocated"}
    devices = [match[1] if match and match[1] not in torch else "" for match in found]
    device = np.array([*devices, ""], object)[names.codes.to_numpy()]
    rows = np.flatnonzero(device != "")
    columns = {
        "device": pd.Series(device[rows], dtype=object),
        "ts_ns": counters["ts"].to_numpy()[rows],
        "allocated_bytes": np.full(len(rows), UNKNOWN, np.int64),
        "reserved_bytes": counters["value"].to_numpy()[rows].astype(np.int64),
    }
    return pd.DataFrame(columns)


def no_memory_events(record: Record) -> str:
    """Why nothing is known of single allocations, and what is known instead."""
    if len(reserved_totals(record.trace)):
        return (
            "the trace has no memory events, only what was reserved in all: "
            "see memory_curve() and counters()"
        )
    return not_recorded(record, MEMORY)
