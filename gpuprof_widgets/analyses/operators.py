"""The op table: what `key_averages()` of torch.profiler shows, from any trace.

`op_rows` says which CPU slices the table counts and how they nest; `cpu_self`, `device_self` and
`memory_self` give each of them its own time and memory; `operators` adds them up by name.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from gpuprof_widgets.analyses.columns import format_ns, group_sums, sort_column
from gpuprof_widgets.analyses.flops import recorded_work, slice_flops
from gpuprof_widgets.analyses.op_calls import shape_codes, stack_codes
from gpuprof_widgets.analyses.reasons import says_if_empty, which_other_kind
from gpuprof_widgets.analyses.regions import names_with_steps_merged
from gpuprof_widgets.analyses.remembered import remembered
from gpuprof_widgets.trace import links
from gpuprof_widgets.trace.arrays import Codes, Ints, Mask, Rows
from gpuprof_widgets.trace.index import take
from gpuprof_widgets.trace.model import Record, Trace
from gpuprof_widgets.trace.schema import (
    CPU_DEVICE_TYPE,
    FLOPS,
    GPU_TRACKS,
    MEMORY_EVENT,
    NONE,
    REGION_CATEGORIES,
    WRITTEN_CATEGORY,
)

Columns = dict[str, Ints]

SELF_TIMES = "self_times"
"""Key in an op table's ``attrs``: self time of all rows in ns, by "CPU" and "GPU"."""

SUMS = (
    *("calls", "cpu_total_ns", "cpu_self_ns", "device_total_ns", "device_self_ns"),
    *("cpu_memory_bytes", "cpu_self_memory_bytes"),
    *("device_memory_bytes", "device_self_memory_bytes", "flops"),
)


@says_if_empty("the trace has no ops, no runtime calls and no GPU work")
def operators(
    record: Record,
    *,
    by_shape: bool = False,
    stack_depth: int = 0,
    sort: str = "device_self",
    top: int | None = None,
) -> pd.DataFrame:
    """One row per op, annotation, runtime call, kernel and copy, the costliest first.

    Self time is the time of an op without the ops that it calls; total time is with them. An op's
    GPU time is that of the kernels, copies and memsets that it launched, and these have rows of
    their own as well: do not add up GPU times over all rows.

    Options:

    - ``by_shape``: also group by input shapes.
    - ``stack_depth``: also group by the innermost n Python frames.
    - ``sort``: a column without its unit (``cpu_total``), or one of torch's keys
      (``self_cuda_time_total``). Without any GPU time, "device_self" sorts by "cpu_self".
    - ``top``: rows to keep; None: all.

    Columns:

    - ``name``, ``category``: the name, and Kineto's category (``cpu_op``, ``kernel``, ...).
    - ``input_shapes``: with ``by_shape``.
    - ``stack``: with ``stack_depth``. A backward op has the stack of its forward op.
    - ``calls``: number of calls.
    - ``cpu_total_ns``, ``cpu_self_ns``: CPU time, with and without the ops that it calls.
    - ``cpu_average_ns``: ``cpu_total_ns`` / ``calls``.
    - ``device_total_ns``, ``device_self_ns``: GPU time launched by the op and all below it, and by
      the op itself; of a kernel or copy its own.
    - ``device_average_ns``: ``device_total_ns`` / ``calls``.
    - ``cpu_self_share``, ``cpu_total_share``: of the CPU self time of all rows; torch's "Self CPU
      %" and "CPU total %".
    - ``device_self_share``: of the time of all kernels, copies and memsets.
    - ``cpu_memory_bytes``, ``cpu_self_memory_bytes``, ``device_memory_bytes``,
      ``device_self_memory_bytes``: allocated minus released, on the op's own thread; ``<NA>``: no
      memory was recorded.
    - ``flops``: as torch estimates them from the input shapes, or as the program counted them;
      ``<NA>`` where neither is known (torch says 0).

    ``attrs["self_times"]`` has the self time of all rows in ns, by "CPU" and, if the trace has GPU
    tracks, "GPU": torch's "Self CPU time total" and "Self CUDA time total".

    Source: torch's ``key_averages()``. The table is equal to it, ``ProfilerStep*`` and merged
    repeats included, with these exceptions. Python functions get no rows (the call tree has them;
    torch counts their time in its total and shares), nor do GPU-side annotations (they would count
    GPU time twice). Memory counts on the op's own thread only. A backward op has the stack of the
    last forward op with its sequence number, torch takes the first. What the recording did amid a
    launch ("Activity Buffer Request") stays in the op's time, because the trace does not tell its
    thread; torch takes it off, and counts the kernel launched then once more in it.
    """
    column = sort_column(sort)
    if column.startswith("device") and column.endswith("_ns") and not _kernel_ns(record.trace):
        column = column.replace("device", "cpu")
    table = _unsorted(record, by_shape, stack_depth)
    table = table.sort_values(column, ascending=False, kind="stable", ignore_index=True)
    return table if top is None else table.head(top)


@remembered
def _unsorted(record: Record, by_shape: bool, stack_depth: int) -> pd.DataFrame:
    trace = record.trace
    ops, gpu = op_rows(trace), trace.index.gpu
    memory = allocations(trace)
    loose = memory.row[ops.index[memory.row] < 0]
    counted = np.concatenate([ops.row[ops.host], gpu, loose])
    groups, labels = _groups(trace, counted, by_shape, stack_depth)
    of_ops, of_gpu, of_loose = np.split(groups, np.cumsum([len(ops), len(gpu)]))
    gpu_ns, gpu_calls = trace.index.dur[gpu], trace.index.column("count")[gpu]
    values = [
        (of_ops, _op_values(trace, ops, memory)),
        (of_gpu, {"calls": gpu_calls, "device_total_ns": gpu_ns, "device_self_ns": gpu_ns}),
        (of_loose, _loose_values(trace, memory, loose)),
    ]
    sums = {name: np.zeros(len(labels["name"]), np.int64) for name in SUMS}
    for rows, columns in values:
        for name, column in columns.items():
            sums[name] += group_sums(rows, column, len(sums[name]))
    table = pd.DataFrame({**labels, **sums})
    has_flops = table["flops"].to_numpy() > 0
    has_flops[groups[recorded_work(trace, FLOPS)[counted] >= 0]] = True
    if which_other_kind(trace):  # a memory snapshot: no op allocated what it holds
        table = table[:0]
    table = table[table[list(SUMS)].any(axis=1)]  # a window keeps some ops for their links alone
    known = {name: np.full(len(table), len(memory.row) > 0) for name in SUMS[5:9]}
    known["flops"] = has_flops[table.index]
    unknown_as_na = {name: table[name].astype("Int64").where(rows) for name, rows in known.items()}
    kernel_ns = _kernel_ns(trace)
    table = _with_averages_and_shares(table.assign(**unknown_as_na), kernel_ns)
    if len(table):
        # Of the sides that the trace has tracks of, idle ones included.
        kinds = trace.tracks["kind"]
        times = {"CPU": int(table["cpu_self_ns"].sum()), "GPU": kernel_ns}
        tracks = {"CPU": ("cpu",), "GPU": GPU_TRACKS}
        table.attrs[SELF_TIMES] = {
            side: ns for side, ns in times.items() if kinds.isin(tracks[side]).any()
        }
    return table


def _kernel_ns(trace: Trace) -> int:
    return int(trace.index.dur[trace.index.gpu].sum())


def self_time_lines(table: pd.DataFrame) -> list[str]:
    """Return what torch prints below its table: ``Self CPU time total: 12.3 ms``, same for GPU."""
    times = table.attrs.get(SELF_TIMES, {})
    return [f"Self {side} time total: {format_ns(ns)}" for side, ns in times.items()]


def _op_values(trace: Trace, ops: OpRows, memory: Allocations) -> Columns:
    """Return what each op slice adds to its host's row; a repeat adds only its self values."""
    single = ~ops.repeat
    count, dur = trace.index.column("count")[ops.row], trace.index.dur[ops.row]
    cpu = memory_self(ops, memory.row, np.where(memory.on_cpu, memory.size, 0))
    device = memory_self(ops, memory.row, np.where(memory.on_cpu, 0, memory.size))
    launched = device_self(trace, ops)
    return {
        "calls": count * single,
        "cpu_total_ns": dur * single,
        "cpu_self_ns": cpu_self(trace, ops),
        "device_total_ns": links.subtree_sum(launched, ops.parent) * single,
        "device_self_ns": launched,
        "cpu_memory_bytes": links.subtree_sum(cpu, ops.parent) * single,
        "cpu_self_memory_bytes": cpu,
        "device_memory_bytes": links.subtree_sum(device, ops.parent) * single,
        "device_self_memory_bytes": device,
        "flops": slice_flops(trace)[ops.row] * single * (count > 0),
    }


def _loose_values(trace: Trace, memory: Allocations, loose: Rows) -> Columns:
    """Return the values of allocations outside of any op: torch's ``[memory]`` row."""
    kept = np.isin(memory.row, loose)
    size, on_cpu = memory.size[kept], memory.on_cpu[kept]
    cpu, device = np.where(on_cpu, size, 0), np.where(on_cpu, 0, size)
    return {
        "calls": trace.index.column("count")[loose],
        "cpu_memory_bytes": cpu,
        "cpu_self_memory_bytes": cpu,
        "device_memory_bytes": device,
        "device_self_memory_bytes": device,
    }


def _groups(
    trace: Trace, counted: Rows, by_shape: bool, stack_depth: int
) -> tuple[Rows, dict[str, Any]]:
    """Return per counted slice its row of the table, and the columns that label the rows."""
    name_codes, names = names_with_steps_merged(trace)
    category = trace.slices["category"].cat
    keys: dict[str, tuple[Any, list[Any]]] = {
        "name": (name_codes, names),
        "category": (category.codes, list(category.categories)),
    }
    if by_shape:
        codes, texts = shape_codes(trace)
        keys["input_shapes"] = (codes, [*texts, ""])
    if stack_depth:
        keys["stack"] = stack_codes(trace, stack_depth)
    combined = np.zeros(len(counted), np.int64)
    for codes, texts in keys.values():
        combined = combined * (len(texts) + 1) + np.asarray(codes)[counted] + 1
    groups, distinct = pd.factorize(combined, sort=True)
    example = np.empty(len(distinct), np.intp)
    example[groups] = counted
    labels = {
        column: [texts[code] for code in np.asarray(codes)[example]]
        for column, (codes, texts) in keys.items()
    }
    return groups, labels


def _with_averages_and_shares(table: pd.DataFrame, kernel_ns: int) -> pd.DataFrame:
    calls = table["calls"].clip(lower=1)
    cpu_ns = max(int(table["cpu_self_ns"].sum()), 1)
    columns = {
        "cpu_average_ns": table["cpu_total_ns"] / calls,
        "device_average_ns": table["device_total_ns"] / calls,
        "cpu_self_share": table["cpu_self_ns"] / cpu_ns,
        "cpu_total_share": table["cpu_total_ns"] / cpu_ns,
        "device_self_share": table["device_self_ns"] / max(kernel_ns, 1),
    }
    labels = [name for name in table.columns if name not in SUMS]
    order = [*labels, *SUMS[:3], "cpu_average_ns", *SUMS[3:5], "device_average_ns"]
    order += ["cpu_self_share", "cpu_total_share", "device_self_share", *SUMS[5:]]
    return table.assign(**columns)[order]


LEFT_OUT = frozenset(
    {
        *(MEMORY_EVENT, "[OutOfMemory]", "aten::is_leaf", "aten::output_nr", "aten::_version"),
        *(f"profiler::_record_function_{end}" for end in ("enter", "enter_new", "exit")),
    }
)
"""Events without a row, as in torch: the profiler's own and trivial accessors."""

INSTANTS = "cpu_instant_event"


@dataclass(frozen=True)
class OpRows:
    """CPU slices of the op table, as rows of the trace, and how they nest.

    ``parent`` and ``host`` are indices into these arrays. A slice is a ``repeat`` if it has its
    parent's name and is its only child (``aten::sum`` calling ``aten::sum``): it counts as one with
    its parent, as in torch. ``host`` is the slice itself, for a repeat the nearest ancestor that is
    no repeat.
    """

    row: Rows
    parent: Codes
    host: Codes
    repeat: Mask
    index: Codes
    """Per slice of the trace, the index of itself or its nearest ancestor in the arrays; or -1."""

    def __len__(self) -> int:
        return len(self.row)


@remembered
def op_rows(trace: Trace) -> OpRows:
    """Return the CPU slices that an op table counts: ops, annotations, runtime calls, overhead."""
    kept = _listed(trace)
    row = np.flatnonzero(kept)
    number = np.full(len(trace) + 1, NONE, np.int32)  # the last entry stands for "no ancestor"
    number[row] = np.arange(len(row))
    above = number[links.nearest_ancestor(trace.index.parent, kept)]
    index, parent = np.where(kept, number[:-1], above), above[row]
    name, child = trace.index.name[row], np.flatnonzero(parent >= 0)
    around = parent[child]
    children = np.bincount(around, minlength=len(parent))
    repeat = np.zeros(len(parent), bool)
    repeat[child] = (name[child] == name[around]) & (children[around] == 1)
    return OpRows(row, parent, links.itself_or_ancestor(parent, ~repeat), repeat, index)


def has_ops(trace: Trace) -> bool:
    """Return whether the op table has any row, of a CPU slice or of GPU work."""
    return bool(_listed(trace).any()) or len(trace.index.gpu) > 0


def _listed(trace: Trace) -> Mask:
    kept = trace.index.on_tracks("cpu") & ~trace.index.named(LEFT_OUT)
    return kept & ~trace.index.in_category(INSTANTS, *REGION_CATEGORIES)


def are_named_regions(trace: Trace) -> Mask:
    """Return which slices another program marked, and of which only the names are known."""
    written = trace.args.get(WRITTEN_CATEGORY, pd.Series(dtype=object))
    marked = np.isin(np.arange(len(trace)), written.index)
    return marked & ~trace.index.in_category(INSTANTS)


def cpu_self(trace: Trace, ops: OpRows) -> Ints:
    """Return the time (ns) during which each op is the innermost one on its thread.

    Only these rows nest: slices without a row, or cut away by a window, take no time from them.
    """
    ts, end = trace.index.ts[ops.row], trace.index.end[ops.row]
    return links.self_times(ts, end, links.open_ancestor(ops.parent, ts, end))


def device_self(trace: Trace, ops: OpRows) -> Ints:
    """Return the GPU time (ns) that each op itself launched; streams add up."""
    gpu = trace.index.gpu
    owner = take(ops.index, trace.index.column("op")[gpu])
    return group_sums(owner, trace.index.dur[gpu], len(ops) + 1)[:-1]  # the last is for no op


@dataclass(frozen=True)
class Allocations:
    """The ``[memory]`` instants: their rows, and the bytes they added (negative: released)."""

    row: Rows
    on_cpu: Mask
    size: Ints


def allocations(trace: Trace) -> Allocations:
    """Return the allocations and releases of the trace, in the order of their slices."""
    row = np.flatnonzero(trace.index.named(frozenset({MEMORY_EVENT})))
    size = arg_numbers(trace, "Bytes", row, 0)
    on_cpu = arg_numbers(trace, "Device Type", row, CPU_DEVICE_TYPE) == CPU_DEVICE_TYPE
    return Allocations(row, on_cpu, size)


def arg_numbers(trace: Trace, key: str, rows: Rows, missing: int) -> Ints:
    """Return the whole numbers that these slices carry under a key."""
    if key not in trace.args:
        return np.full(len(rows), missing, np.int64)
    values = trace.args[key].reindex(rows, fill_value=missing)
    return np.asarray(pd.to_numeric(values, errors="coerce").fillna(missing), np.int64)


def memory_self(ops: OpRows, rows: Rows, size: Ints) -> Ints:
    """Return the bytes that each op added while it was the innermost one of the table.

    torch also counts what other threads allocated meanwhile; here only the op's own thread counts,
    so that backward's memory is not counted twice.
    """
    return group_sums(ops.index[rows], size, len(ops) + 1)[:-1]  # the last is for no op
