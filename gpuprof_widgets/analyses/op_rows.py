"""The slices that an op table counts: which, whose time is whose, and what each allocated."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from gpuprof_widgets.analyses.remembered import remembered
from gpuprof_widgets.trace import links
from gpuprof_widgets.trace.model import Trace
from gpuprof_widgets.trace.schema import MEMORY_EVENT, NONE, REGION_CATEGORIES, WRITTEN_CATEGORY

Ints = npt.NDArray[np.int64]
Rows = npt.NDArray[np.int32]
Mask = npt.NDArray[np.bool_]

LEFT_OUT = frozenset(
    {
        MEMORY_EVENT,
        "[OutOfMemory]",
        "profiler::_record_function_enter",
        "profiler::_record_function_enter_new",
        "profiler::_record_function_exit",
        "aten::is_leaf",
        "aten::output_nr",
        "aten::_version",
    }
)
"""Events that get no row: the profiler's own and trivial accessors, the same as in torch."""

INSTANTS = "cpu_instant_event"
CPU_DEVICE_TYPE = 0  # of an allocation; any other device type is an accelerator


@dataclass(frozen=True)
class OpRows:
    """CPU slices of the op table, as rows of the trace, and their links among themselves.

    ``parent`` is an index into these arrays. A slice is a ``repeat`` if it has its parent's name
    and is its only child (``aten::sum`` calling ``aten::sum``): it counts as one with its parent,
    as in torch. ``host`` is the slice itself, for a repeat the first of its ancestors that is none.
    """

    row: npt.NDArray[np.intp]
    parent: Rows
    host: Rows
    repeat: Mask
    index: Rows
    """Per slice of the trace: index of it or its nearest ancestor in these arrays, or -1."""

    def __len__(self) -> int:
        return len(self.row)


@remembered
def op_rows(trace: Trace) -> OpRows:
    """The CPU slices that an op table counts: ops, annotations, runtime calls, overhead."""
    kept = _listed(trace)
    row = np.flatnonzero(kept)
    number = np.full(len(trace) + 1, NONE, np.int32)  # the last one stands for "nobody"
    number[row] = np.arange(len(row))
    above = number[links.nearest_ancestor(trace.index.parent, kept)]
    index, parent = np.where(kept, number[:-1], above), above[row]
    repeat = _repeats(trace.index.name[row], parent)
    return OpRows(row, parent, links.itself_or_ancestor(parent, ~repeat), repeat, index)


def has_ops(trace: Trace) -> bool:
    """Whether an op table has a row: of a CPU slice that it counts, or of GPU work."""
    return bool(_listed(trace).any()) or len(trace.index.gpu) > 0


def _listed(trace: Trace) -> Mask:
    kept = trace.index.on_tracks("cpu") & ~trace.index.named(LEFT_OUT)
    return kept & ~trace.index.in_category(INSTANTS, *REGION_CATEGORIES)


def _repeats(name: npt.NDArray[np.integer[Any]], parent: Rows) -> Mask:
    child = np.flatnonzero(parent >= 0)
    above = parent[child]
    children = np.bincount(above, minlength=len(parent))
    repeat = np.zeros(len(parent), bool)
    repeat[child] = (name[child] == name[above]) & (children[above] == 1)
    return repeat


def are_named_regions(trace: Trace) -> Mask:
    """Which slices another program marked, of which we know no more than their names."""
    found = np.zeros(len(trace), bool)
    if (written := trace.args.get(WRITTEN_CATEGORY)) is not None:
        found[written.index.to_numpy()] = True
    return found & ~trace.index.in_category(INSTANTS)


def cpu_self(trace: Trace, ops: OpRows) -> Ints:
    """Time (ns) during which each op is the innermost one running on its thread.

    Nested anew among these rows alone: what is left out, or was cut by a window, covers nothing.
    """
    ts, end = trace.index.ts[ops.row], trace.index.end[ops.row]
    return links.self_times(ts, end, links.open_above(ops.parent, ts, end))


def device_self(trace: Trace, ops: OpRows) -> Ints:
    """GPU time (ns) that each op itself launched; kernels on several streams add up."""
    gpu = trace.index.gpu
    op = trace.slices["op"].to_numpy()[gpu]
    owner = np.where(op >= 0, ops.index[op], NONE)
    caused = np.zeros(len(ops) + 1, np.int64)  # the last one takes what no op owns
    np.add.at(caused, owner, trace.slices["dur"].to_numpy()[gpu])
    return caused[:-1]


@dataclass(frozen=True)
class Allocations:
    """The ``[memory]`` instants: where they happened and what they added (negative: released)."""

    row: npt.NDArray[np.intp]
    on_cpu: Mask
    size: Ints


def allocations(trace: Trace) -> Allocations:
    """Allocations and releases of the trace, in the order of their slices."""
    row = np.flatnonzero(trace.index.named(frozenset({MEMORY_EVENT})))
    size = _numbers(trace, "Bytes", row)
    return Allocations(row, _numbers(trace, "Device Type", row) == CPU_DEVICE_TYPE, size)


def _numbers(trace: Trace, key: str, rows: npt.NDArray[np.intp]) -> Ints:
    if key not in trace.args:
        return np.zeros(len(rows), np.int64)
    values = trace.args[key].reindex(rows, fill_value=0)
    return values.to_numpy(dtype=np.int64)


def memory_self(ops: OpRows, rows: npt.NDArray[np.intp], size: Ints) -> Ints:
    """Bytes that each op added while it was the innermost one of the table.

    torch also gives every op what other threads allocated meanwhile; here an op answers for its
    own thread only, so that backward's memory is not counted twice.
    """
    added = np.zeros(len(ops) + 1, np.int64)  # the last one takes what no op owns
    np.add.at(added, ops.index[rows], size)
    return added[:-1]
