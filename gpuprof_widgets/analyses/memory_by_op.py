"""Memory by op: what each allocated and what stayed allocated, as the TensorBoard plugin has it."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pandas as pd

from gpuprof_widgets.analyses.lacking import lacking
from gpuprof_widgets.analyses.memory_blocks import MemoryEvents, memory_events
from gpuprof_widgets.analyses.memory_stacks import places_of_slices
from gpuprof_widgets.analyses.memory_totals import no_memory_events
from gpuprof_widgets.analyses.op_rows import OpRows, op_rows
from gpuprof_widgets.analyses.steps import names_with_steps_merged
from gpuprof_widgets.trace import links
from gpuprof_widgets.trace.model import Record, Trace
from gpuprof_widgets.trace.schema import MEMORY_EVENT, NONE

Ints = npt.NDArray[np.int64]

SUMS = (
    "size_increase_bytes",
    "self_size_increase_bytes",
    "allocations",
    "self_allocations",
    "allocation_bytes",
    "self_allocation_bytes",
)
COLUMNS = ("device", "name", "calls", *SUMS)


def memory(record: Record) -> pd.DataFrame:
    """One row per device and op, that which allocated most by itself first.

    The curve over time is `memory_curve`, every block with its allocation and release
    `allocations`, and what was alive at the peak `memory_peak`. Columns (bytes):

    - ``device`` ("GPU 0", "CPU"), ``name``, ``calls`` (of the op, whether it allocated or not);
    - ``size_increase_bytes``: allocated less released in the op and all that it calls,
      ``self_size_increase_bytes``: while it was the innermost op;
    - ``allocations``, ``self_allocations``: their number; ``allocation_bytes``,
      ``self_allocation_bytes``: what they came to, whatever was released.

    What happened in no op is in the row ``[memory]``, in a memory snapshot in one for each line
    that asked for memory or gave it back: the selfs of a device add up to all there was. As in
    `operators`, an op answers for its own thread, and for one that only calls itself once.
    """
    trace = record.trace
    events = memory_events(trace)
    if not len(events):
        return lacking(COLUMNS, no_memory_events(record))
    ops = op_rows(trace)
    place = np.append(places_of_slices(record), MEMORY_EVENT)
    tables = [
        _of(trace, ops, events.of(device), place).assign(device=device) for device in events.devices
    ]
    return pd.concat(tables, ignore_index=True)[list(COLUMNS)]


def _of(
    trace: Trace, ops: OpRows, events: MemoryEvents, place: npt.NDArray[np.object_]
) -> pd.DataFrame:
    owner = ops.index[events.row]
    given = np.maximum(events.size, 0)
    selfs = {
        "size_increase_bytes": _summed(ops, owner, events.size),
        "allocations": _summed(ops, owner, (events.size > 0).astype(np.int64)),
        "allocation_bytes": _summed(ops, owner, given),
    }
    single = ~ops.repeat
    code, names = names_with_steps_merged(trace)
    table = pd.DataFrame({"name": code[ops.row]})
    table["calls"] = trace.slices["count"].to_numpy()[ops.row].astype(np.int64) * single
    for column, own in selfs.items():
        table[column] = links.subtree_sum(own[:-1], ops.parent) * single
        table[f"self_{column}"] = own[:-1]
    table = table.groupby("name", as_index=False).sum()
    table["name"] = np.array(names, object)[table["name"]]
    loose = owner == NONE
    table = pd.concat([table, _outside(events.size[loose], place[events.row[loose]])])
    table = table[table[list(SUMS)].any(axis=1)]
    return table.sort_values("self_allocation_bytes", ascending=False, kind="stable")


def _outside(size: Ints, place: npt.NDArray[np.object_]) -> pd.DataFrame:
    """What happened in no op, by where it did."""
    own = {
        "calls": np.ones(len(size), np.int64),
        "size_increase_bytes": size,
        "allocations": (size > 0).astype(np.int64),
        "allocation_bytes": np.maximum(size, 0),
    }
    table = pd.DataFrame({"name": place} | own).groupby("name", as_index=False, sort=False).sum()
    return table.assign(**{f"self_{name}": table[name] for name in own if name != "calls"})


def _summed(ops: OpRows, owner: npt.NDArray[np.int32], values: Ints) -> Ints:
    """Per op what is its own; the last entry has what is in none."""
    sums = np.zeros(len(ops) + 1, np.int64)
    np.add.at(sums, owner, values)
    return sums
