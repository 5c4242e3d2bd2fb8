"""The allocator of GPU memory: out of memory, retries and driver calls, and its segments.

`allocator_events` finds the events in a trace; `memory_segments` reads a CUDA memory snapshot.
"""

from __future__ import annotations

import re
from collections import Counter
from typing import Any

import numpy as np
import pandas as pd

from gpuprof_widgets.analyses.memory_blocks import (
    UNKNOWN,
    memory_events,
    owning_lines,
    owning_modules,
    owning_ops,
)
from gpuprof_widgets.analyses.memory_categories import lines_of_stacks, with_stack_lines
from gpuprof_widgets.analyses.operators import arg_numbers
from gpuprof_widgets.analyses.reasons import of_the_whole_run, says_if_empty
from gpuprof_widgets.trace.arrays import Rows
from gpuprof_widgets.trace.memory_history import ALLOCATED, AWAITING, FREE
from gpuprof_widgets.trace.model import Record, Trace
from gpuprof_widgets.trace.schema import CPU_DEVICE_TYPE, NONE, OUT_OF_MEMORY_EVENT

ALLOCATING = re.compile(
    r"(cuda|hip)Malloc(Async|Managed|Pitch|3D)?(_\w+)?|cuMem(Create|Map)(_\w+)?"
)
FREEING = re.compile(r"(cuda|hip)Free(Async)?(_\w+)?|cuMem(Unmap|Release)(_\w+)?")
COLUMNS = (
    *("kind", "row", "name", "start_ns", "dur_ns", "device", "bytes"),
    *("op", "op_name", "module_name", "line_name"),
)
SEGMENT_COLUMNS = (
    *("device", "stream", "pool", "kind", "expandable", "address", "bytes", "allocated_bytes"),
    *("awaiting_bytes", "free_bytes", "largest_free_bytes", "rounding_bytes"),
    *("blocks", "free_blocks", "line_name"),
)


@says_if_empty("the trace has no call of the driver for GPU memory, no retry and no failure")
def allocator_events(record: Record) -> pd.DataFrame:
    """One row per failure, retry and call of the driver for memory, in order of time.

    Columns:

    - ``kind``: "out of memory" (torch's ``[OutOfMemory]``); "retry" (an op freed cached blocks of
      the GPU and asked again: the time from its first ``cudaFree`` to the end of the next
      ``cudaMalloc``; needs recorded memory); "malloc" or "free" (a ``cudaMalloc`` or ``cudaFree``,
      which may wait for the GPU).
    - ``row``, ``name``: the event.
    - ``start_ns``, ``dur_ns``: when, and how long.
    - ``device``: "" if the trace does not tell.
    - ``bytes``: asked for; -1 if the trace does not tell.
    - ``op``, ``op_name``, ``module_name``, ``line_name``: its owners; -1 and "" without.

    Source: torch's CUDA caching allocator (``c10/cuda/CUDACachingAllocator.cpp``) retries in this
    way.
    """
    trace = record.trace
    on_cpu = trace.index.on_tracks("cpu")
    malloc = np.flatnonzero(trace.index.matching(ALLOCATING) & on_cpu)
    free = np.flatnonzero(trace.index.matching(FREEING) & on_cpu)
    failed = np.flatnonzero(trace.index.named(frozenset({OUT_OF_MEMORY_EVENT})))
    parts = [
        _events(trace, failed, "out of memory"),
        _events(trace, malloc, "malloc"),
        _events(trace, free, "free"),
        _retries(trace, malloc, free),
    ]
    table = pd.concat([part for part in parts if len(part)] or parts[:1])
    table = table.sort_values("start_ns", kind="stable", ignore_index=True)
    rows = table["row"].to_numpy(np.intp)
    table["op"] = owning_ops(trace, rows)
    owners = {"op": table["op"].to_numpy(), "module": owning_modules(trace, rows)}
    for level, owner in (owners | {"line": owning_lines(trace, rows)}).items():
        table[f"{level}_name"] = pd.Series(trace.index.names_of(owner), dtype=object)
    return with_stack_lines(table[list(COLUMNS)], record)


def _events(trace: Trace, rows: Rows, kind: str) -> pd.DataFrame:
    types = arg_numbers(trace, "Device Type", rows, NONE)
    numbers = arg_numbers(trace, "Device Id", rows, 0)
    device = [
        "" if kind == NONE else "CPU" if kind == CPU_DEVICE_TYPE else f"GPU {number}"
        for kind, number in zip(types.tolist(), numbers.tolist(), strict=True)
    ]
    return pd.DataFrame(
        {
            "kind": kind,
            "row": rows.astype(np.int32),
            "name": pd.Series(trace.index.names_of(rows), dtype=object),
            "start_ns": trace.index.ts[rows],
            "dur_ns": trace.index.dur[rows],
            "device": pd.Series(device, dtype=object),
            "bytes": arg_numbers(trace, "Bytes", rows, NONE).tolist(),
        }
    )


def _retries(trace: Trace, malloc: Rows, free: Rows) -> pd.DataFrame:
    """Return frees within an op that allocates after them, if reserved memory shrank.

    Libraries free and allocate for themselves too (cuDNN in its first call), which leaves the
    allocator's reserved bytes alone. Source: ``alloc_block``, ``release_available_cached_blocks``
    and ``release_cached_blocks`` in c10/cuda/CUDACachingAllocator.cpp.
    """
    ts, end, parent = trace.index.ts, trace.index.end, trace.index.parent
    events, shrunk = memory_events(trace), [np.empty(0, np.intp)]
    for device in events.devices:  # allocations that raised reserved memory by less than their size
        of = events.of(device)
        growth = np.diff(of.reserved, prepend=of.reserved[:1])
        known = (of.reserved != UNKNOWN) & (of.size > 0)
        shrunk.append(of.row[known & (growth != 0) & (growth < of.size)])
    first, last = [], []
    for op in np.intersect1d(parent[free], parent[np.concatenate(shrunk)]):
        frees = free[parent[free] == op]
        after = malloc[(parent[malloc] == op) & (ts[malloc] >= ts[frees[0]])]
        if op >= 0 and len(after):
            first.append(int(frees[0]))
            last.append(int(after[0]))
    table = _events(trace, np.array(first, np.intp), "retry")
    return table.assign(dur_ns=end[last] - ts[first])


@says_if_empty(
    "only a CUDA memory snapshot (torch.cuda.memory._dump_snapshot) has the allocator's segments"
)
def memory_segments(record: Record) -> pd.DataFrame:
    """One row per segment that the allocator held of a GPU's memory, the largest first.

    It needs a CUDA memory snapshot. A window does not cut it.

    Formula: ``bytes`` = ``allocated_bytes`` + ``awaiting_bytes`` + ``free_bytes``.

    Columns:

    - ``device``, ``stream``: where the segment belongs.
    - ``pool``: "0.0": the usual one; others are of CUDA graphs and MemPools.
    - ``kind``: "small" or "large".
    - ``expandable``: whether it is an expandable segment.
    - ``address``: where it begins.
    - ``bytes``: its size.
    - ``allocated_bytes``: in use.
    - ``awaiting_bytes``: released, but another stream may still use it.
    - ``free_bytes``, ``largest_free_bytes``: free in all, and the largest free piece.
    - ``rounding_bytes``: how much of what is allocated was not asked for.
    - ``blocks``, ``free_blocks``: number of blocks, and of free ones.
    - ``line_name``: the line that holds most of it; "": unknown.

    Source: torch's ``torch.cuda.memory._snapshot()``.
    """
    lines = lines_of_stacks(record)
    segments = record.metadata.get("memory_segments") or []
    rows = [_segment_row(segment, lines) for segment in segments]
    table = pd.DataFrame(rows, columns=list(SEGMENT_COLUMNS))
    table = table.sort_values("bytes", ascending=False, kind="stable", ignore_index=True)
    return of_the_whole_run(table, "a snapshot has the segments of its own moment alone")


def _segment_row(segment: dict[str, Any], lines: list[str]) -> dict[str, Any]:
    columns = (segment["blocks"][key] for key in ("state", "bytes", "requested", "stack"))
    # A saved profile that was changed may have columns of different lengths.
    blocks = list(zip(*columns, strict=False))
    free = [size for state, size, *_ in blocks if state == FREE]
    awaiting = sum(size for state, size, *_ in blocks if state == AWAITING)
    allocated, rounding, held = 0, 0, Counter[str]()
    for state, size, requested, stack in blocks:
        if state == ALLOCATED:
            allocated += size
            rounding += size - requested
            held[lines[stack] if 0 <= stack < len(lines) else ""] += size
    del held[""]
    return {
        "device": f"GPU {segment['device']}",
        **{key: segment[key] for key in ("stream", "pool", "kind", "expandable", "address")},
        "bytes": segment["bytes"],
        "allocated_bytes": allocated,
        "awaiting_bytes": awaiting,
        "free_bytes": segment["bytes"] - allocated - awaiting,
        "largest_free_bytes": max(free, default=0),
        "rounding_bytes": rounding,
        "blocks": len(blocks),
        "free_blocks": len(free),
        "line_name": max(held, key=lambda line: held[line], default=""),
    }
