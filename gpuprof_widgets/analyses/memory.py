"""Memory: every block with its owner, the curve over time, its peak, and the totals by op.

`memory` is by op, as in the TensorBoard plugin. Traces without single allocations may still have
the totals of each device (`reserved_totals`).
"""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from gpuprof_widgets.analyses.columns import group_sums
from gpuprof_widgets.analyses.memory_blocks import (
    UNKNOWN,
    MemoryEvents,
    blocks,
    memory_events,
    owning_lines,
    owning_modules,
    owning_ops,
    released_from_before,
    totals,
)
from gpuprof_widgets.analyses.memory_categories import (
    BEFORE,
    categories,
    places_of_slices,
    seen,
    with_stack_owners,
)
from gpuprof_widgets.analyses.operators import OpRows, op_rows
from gpuprof_widgets.analyses.reasons import MEMORY, empty_table, says_if_empty
from gpuprof_widgets.analyses.regions import names_with_steps_merged
from gpuprof_widgets.analyses.remembered import remembered
from gpuprof_widgets.trace import links
from gpuprof_widgets.trace.index import take
from gpuprof_widgets.trace.model import Record, Trace
from gpuprof_widgets.trace.schema import HELD_BY, NONE

OWNERS = ("op", "module", "line")
COLUMNS = (
    *("device", "start_ns", "end_ns", "bytes", "category", "classified_by", "tensor"),
    *("op", "op_name", "module", "module_name", "line", "line_name", "address", "row", "release"),
)
PEAK_COLUMNS = (
    *("device", "ts_ns", "allocated_bytes", "reserved_bytes", "category"),
    *("line_name", "module_name", "op_name", "bytes", "share", "blocks"),
)
SUMS = (
    *("size_increase_bytes", "self_size_increase_bytes", "allocations", "self_allocations"),
    *("allocation_bytes", "self_allocation_bytes"),
)
OP_COLUMNS = ("device", "name", "calls", *SUMS)
GRANULE = 512
"""CUDA's caching allocator hands out multiples of this (c10/cuda/CUDACachingAllocator.cpp)."""


@says_if_empty(MEMORY)
@remembered
def allocations(record: Record) -> pd.DataFrame:
    """One row per block of memory that lived during the record, in order of time.

    Columns:

    - ``device``: "CPU", "GPU 0".
    - ``start_ns``: -1: it was there before the record.
    - ``end_ns``: its release; -1: it lived on past the record.
    - ``bytes``: its size.
    - ``category``: "parameters", "gradients", "optimizer state", "inputs", "activations", "autograd
      detail", "temporaries", "other" or "before the record".
    - ``classified_by``: "torch", if torch's memory profiler told the category, or "rules".
    - ``tensor``: the parameter, gradient or state that held it; "": unknown.
    - ``op``, ``op_name``, ``module``, ``module_name``, ``line``, ``line_name``: its owners (of the
      ops the outermost); -1 and "" without. For the backward pass those of the forward op; in a
      memory snapshot names only, from its stacks.
    - ``address``: -1 in traces of torch 1.8, where a release ends the latest block of its size.
    - ``row``, ``release``: the instants that allocated and released it; -1: none.

    Source: the categories of torch's memory profiler (``torch/profiler/_memory_profiler.py``).
    """
    trace = record.trace
    events = memory_events(trace)
    pieces = blocks(events)
    category, by = categories(record, events, pieces)
    either = np.where(pieces.begin >= 0, pieces.begin, pieces.end)
    released = np.where(pieces.released, pieces.end, NONE)
    table = pd.DataFrame(
        {
            "device": pd.Series(events.device[either], dtype=object),
            "start_ns": take(events.ts, pieces.begin),
            "end_ns": take(events.ts, pieces.end),
            "bytes": np.abs(events.size[either]),
            "category": pd.Series(category, dtype=object),
            "classified_by": pd.Series(by, dtype=object),
            "tensor": pd.Series(seen(trace, events, pieces, HELD_BY), dtype=object),
            "address": events.address[either],
            "row": take(events.row, pieces.begin).astype(np.int32),
            "release": take(events.row, released).astype(np.int32),
        }
    )
    row = table["row"].to_numpy()
    for owner, find in zip(OWNERS, (owning_ops, owning_modules, owning_lines), strict=True):
        owners = np.full(len(row), NONE, np.int32)
        owners[row >= 0] = find(trace, row[row >= 0])
        table[owner] = owners
        table[f"{owner}_name"] = pd.Series(trace.index.names_of(owners), dtype=object)
    return with_stack_owners(_with_held_before(record, table), record)[list(COLUMNS)]


def _with_held_before(record: Record, table: pd.DataFrame) -> pd.DataFrame:
    """Add what held the blocks from before the record, and the blocks that were never released.

    Only as many bytes as the device's totals leave room for are added: torch's CPU totals start
    from 0, those of CUDA's allocator include everything.
    """
    held = pd.DataFrame(record.metadata.get("memory", {}).get("before", []))
    if not len(held):
        return table
    held = held[held["device"] != "CPU"]
    held = held.astype(dict.fromkeys(("device", "category", "tensor"), object))
    if not record.metadata["memory"].get("exact_bytes"):
        held = held.assign(bytes=-(-held["bytes"] // GRANULE) * GRANULE)
    old = table["start_ns"] == NONE
    key = ["device", "address"]
    known = table[old][key].merge(held, on=key, how="left")
    for column in ("category", "tensor"):
        current = table.loc[old, column].to_numpy(object)
        better = known[column].to_numpy(object)
        table.loc[old, column] = np.where(known["bytes"].notna(), better, current)
    known_blocks = pd.MultiIndex.from_frame(table.loc[old, key])
    kept = held[~pd.MultiIndex.from_frame(held[key]).isin(known_blocks)]
    rest = _bytes_from_before(record.trace)
    room = np.array([rest.get(device, 0) for device in kept["device"]], np.int64)
    kept = kept[kept.groupby("device")["bytes"].cumsum().to_numpy(np.int64) <= room]
    columns = [name for name in (*COLUMNS, "stack") if name in kept]
    nothing = dict.fromkeys(("start_ns", "end_ns", "row", "release", *OWNERS), NONE)
    nowhere = {f"{owner}_name": "" for owner in OWNERS}
    living_through = kept[columns].assign(classified_by="rules", **nothing, **nowhere)
    return pd.concat([living_through, table], ignore_index=True)


def _bytes_from_before(trace: Trace) -> dict[str, int]:
    """Return the bytes per device from before the record that were not released in it."""
    events = memory_events(trace)
    pieces = blocks(events)
    rest = {}
    for device in events.devices:
        here = np.flatnonzero(events.device == device)
        base = int(events.allocated[here[0]] - events.size[here[0]])
        rest[device] = base - released_from_before(events, pieces, here)
    return rest


@says_if_empty(MEMORY)
def memory_curve(record: Record) -> pd.DataFrame:
    """One row per allocation or release: what the device held after it, as torch counted it.

    The CPU's allocated bytes count from the first memory event on; older memory counts only if it
    is released in the record. A trace without allocations may have totals of reserved bytes (Nsight
    Systems): then there is one row per change of these, with ``allocated_bytes`` -1.

    Columns:

    - ``device``: "GPU 0", "CPU".
    - ``ts_ns``: time of the allocation or release.
    - ``allocated_bytes``: from then on; -1: unknown.
    - ``reserved_bytes``: from then on; -1: unknown, as for the CPU.

    Source: torch's ``[memory]`` events, with torch's own totals.
    """
    events = memory_events(record.trace)
    if not len(events):
        return reserved_totals(record.trace)
    table = pd.DataFrame(
        {
            "device": pd.Series(events.device, dtype=object),
            "ts_ns": events.ts,
            "allocated_bytes": totals(events, blocks(events)),
            "reserved_bytes": events.reserved,
        }
    )
    parts = [table[table["device"] == device] for device in events.devices]
    return pd.concat(parts, ignore_index=True)


@says_if_empty(MEMORY)
def memory_peak(record: Record) -> pd.DataFrame:
    """What was alive when each device held most: a row per category and owner, biggest first.

    The bytes of a device add up to its total: memory without a known owner is "before the record".

    Columns:

    - ``device``: "GPU 0", "CPU".
    - ``ts_ns``: time of the peak.
    - ``allocated_bytes``, ``reserved_bytes``: totals at the peak; -1: unknown.
    - ``category``: see `allocations`.
    - ``line_name``, ``module_name``, ``op_name``: who allocated it; "": unknown.
    - ``bytes``: size of these blocks together.
    - ``share``: ``bytes`` / ``allocated_bytes``.
    - ``blocks``: number of these blocks.

    Source: torch's totals; categories as in `allocations`.
    """
    events, peaks = _peaks(record)
    parts = [_peak(device, events, *peak) for device, peak in peaks.items()]
    if not parts:
        return pd.DataFrame(columns=list(PEAK_COLUMNS))
    return pd.concat(parts, ignore_index=True)[list(PEAK_COLUMNS)]


def blocks_at_peak(record: Record, device: str) -> pd.DataFrame:
    """Return the rows of `allocations` that `memory_peak` adds up for a device, largest first."""
    _, alive = _peaks(record)[1][device]
    return alive.sort_values("bytes", ascending=False, kind="stable")


def _peaks(record: Record) -> tuple[MemoryEvents, dict[str, tuple[int, pd.DataFrame]]]:
    """Return the events; per device the fullest one's number and the `allocations` alive then."""
    events = memory_events(record.trace)
    table, pieces = allocations(record), blocks(events)
    events = replace(events, allocated=totals(events, pieces))
    peaks = {}
    for device in events.devices:
        here = np.flatnonzero(events.device == device)
        peak = int(here[events.allocated[here].argmax()])
        alive = (pieces.begin <= peak) & ((pieces.end > peak) | (pieces.end < 0))
        # Blocks from before the record that have no events come first, and live throughout.
        alive = np.append(np.ones(len(table) - len(pieces), bool), alive)
        peaks[device] = peak, table[alive & (table["device"] == device)]
    return events, peaks


def fullest(peaks: pd.DataFrame) -> pd.DataFrame:
    """Return the rows of `memory_peak` of the fullest GPU, or of the CPU if there is no GPU."""
    on_gpu = peaks[peaks["device"] != "CPU"]
    peaks = on_gpu if len(on_gpu) else peaks
    by_size = peaks.sort_values("allocated_bytes", ascending=False, kind="stable")
    return peaks[peaks["device"].isin(by_size["device"].head(1))]


def _peak(device: str, events: MemoryEvents, peak: int, alive: pd.DataFrame) -> pd.DataFrame:
    total = int(events.allocated[peak])
    owner = ["category", *(f"{owner}_name" for owner in reversed(OWNERS))]
    groups = alive.groupby(owner, as_index=False)["bytes"]
    rows: Any = groups.agg(bytes="sum", blocks="count")
    rows.loc[len(rows)] = [BEFORE, "", "", "", total - int(rows["bytes"].sum()), 0]
    rows = rows[rows["bytes"] != 0].groupby(owner, as_index=False).sum()
    rows = rows.sort_values("bytes", ascending=False, kind="stable")
    peak_rows: pd.DataFrame = rows.assign(
        device=device,
        ts_ns=int(events.ts[peak]),
        allocated_bytes=total,
        reserved_bytes=int(events.reserved[peak]),
        share=rows["bytes"] / max(total, 1),
    )
    return peak_rows


def memory(record: Record) -> pd.DataFrame:
    """One row per device and op, the one that allocated most by itself first.

    Memory outside of any op is in the row ``[memory]``, in a memory snapshot in a row for each line
    that allocated or released it. So the selfs of a device add up to everything. As in `operators`,
    only an op's own thread counts, and an op that only calls itself counts once. See also
    `memory_curve` (over time), `allocations` (every block) and `memory_peak` (what was alive at the
    peak).

    Columns:

    - ``device``: "GPU 0", "CPU".
    - ``name``: the op.
    - ``calls``: of the op, whether it allocated or not.
    - ``size_increase_bytes``: allocated minus released, in the op and all that it calls.
    - ``self_size_increase_bytes``: the same while it was the innermost op.
    - ``allocations``, ``self_allocations``: number of allocations, with and without what it calls.
    - ``allocation_bytes``, ``self_allocation_bytes``: their sum, whatever was released.

    Source: the memory view of PyTorch's TensorBoard plugin.
    """
    trace = record.trace
    events = memory_events(trace)
    if not len(events):
        return empty_table(OP_COLUMNS, MEMORY)
    ops = op_rows(trace)
    place = places_of_slices(record)
    tables = [
        _by_op(trace, ops, events.of(device), place).assign(device=device)
        for device in events.devices
    ]
    return pd.concat(tables, ignore_index=True)[list(OP_COLUMNS)]


def _by_op(
    trace: Trace, ops: OpRows, events: MemoryEvents, place: npt.NDArray[np.object_]
) -> pd.DataFrame:
    owner = ops.index[events.row]
    selfs = {
        "size_increase_bytes": events.size,
        "allocations": events.size > 0,
        "allocation_bytes": np.maximum(events.size, 0),
    }
    single = ~ops.repeat
    code, names = names_with_steps_merged(trace)
    table = pd.DataFrame({"name": code[ops.row]})
    table["calls"] = trace.slices["count"].to_numpy()[ops.row].astype(np.int64) * single
    for column, values in selfs.items():
        sums = group_sums(owner, values, len(ops) + 1)[:-1]  # the last is for no op
        table[column] = links.subtree_sum(sums, ops.parent) * single
        table[f"self_{column}"] = sums
    table = table.groupby("name", as_index=False).sum()
    table["name"] = np.array(names, object)[table["name"]]
    loose = owner == NONE
    of_loose = {column: values[loose].astype(np.int64) for column, values in selfs.items()}
    in_no_op = pd.DataFrame({"name": place[events.row[loose]], "calls": 1, **of_loose})
    in_no_op = in_no_op.groupby("name", as_index=False, sort=False).sum()
    in_no_op = in_no_op.assign(**{f"self_{column}": in_no_op[column] for column in selfs})
    table = pd.concat([table, in_no_op])
    table = pd.DataFrame(table[table[list(SUMS)].any(axis=1)])
    return table.sort_values("self_allocation_bytes", ascending=False, kind="stable")


TOTAL = re.compile(r"(GPU -?\d+) (allocated|reserved)")
"""Counters of a GPU's memory (`COUNTER_COLUMNS`); torch writes both, others only "reserved"."""


def reserved_totals(trace: Trace) -> pd.DataFrame:
    """Return one row per change of the reserved bytes, with the columns of `memory_curve`.

    Nsight Systems records these: calls of cudaMalloc and cudaFree, not those of PyTorch's
    allocator. Devices of torch's traces are left out, as in a window without allocations.
    """
    counters = trace.counters
    names = counters["name"].cat
    matches = [TOTAL.fullmatch(str(text)) for text in names.categories]
    torch = {match[1] for match in matches if match and match[2] == "allocated"}
    devices = [match[1] if match and match[1] not in torch else "" for match in matches]
    device = take(np.array(devices, object), names.codes.to_numpy(), missing="")
    changes = counters[device != ""]
    columns = {
        "device": pd.Series(device[device != ""], dtype=object),
        "ts_ns": changes["ts"].to_numpy(),
        "allocated_bytes": np.full(len(changes), UNKNOWN, np.int64),
        "reserved_bytes": changes["value"].to_numpy(np.int64),
    }
    return pd.DataFrame(columns)
