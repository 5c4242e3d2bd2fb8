"""The op table: what `key_averages()` of torch.profiler shows, from any trace."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from gpuprof_widgets.analyses import op_rows as rows
from gpuprof_widgets.analyses.flops import recorded_work, slice_flops
from gpuprof_widgets.analyses.lacking import says_if_empty, which_other_kind
from gpuprof_widgets.analyses.op_rows import Allocations, OpRows
from gpuprof_widgets.analyses.quantity import format_ns
from gpuprof_widgets.analyses.remembered import remembered
from gpuprof_widgets.analyses.shapes import shape_codes
from gpuprof_widgets.analyses.sort_keys import sort_column
from gpuprof_widgets.analyses.stacks import stack_codes
from gpuprof_widgets.analyses.steps import names_with_steps_merged
from gpuprof_widgets.trace import links
from gpuprof_widgets.trace.model import Record, Trace
from gpuprof_widgets.trace.schema import FLOPS, GPU_TRACKS

Ints = npt.NDArray[np.int64]
Columns = dict[str, Ints]

SELF_TIMES = "self_times"
"""Attribute of an op table: ns of self time of all its rows, by "CPU" and "GPU"."""

SUMS = (
    "calls",
    "cpu_total_ns",
    "cpu_self_ns",
    "device_total_ns",
    "device_self_ns",
    "cpu_memory_bytes",
    "cpu_self_memory_bytes",
    "device_memory_bytes",
    "device_self_memory_bytes",
    "flops",
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

    ``by_shape`` also groups by input shapes, ``stack_depth`` by the innermost n Python frames;
    ``sort`` is one of `SORT_KEYS` or a key of torch; without any device time, ``device_self``
    sorts by ``cpu_self``. Columns (times in ns, sizes in bytes, shares of one):

    - ``name``, ``category``, with ``by_shape`` ``input_shapes``, with ``stack_depth`` ``stack``;
    - ``calls``; ``cpu_total_ns``, ``cpu_self_ns``, ``cpu_average_ns``, ``cpu_self_share``,
      ``cpu_total_share`` (torch's "CPU total %"): both of the self times of all rows together;
    - ``device_total_ns``, ``device_self_ns``, ``device_average_ns``, ``device_self_share``: GPU
      time launched by the op (self) and all below it (total); of a kernel or copy its own;
    - ``cpu_memory_bytes``, ``cpu_self_memory_bytes``, ``device_memory_bytes``,
      ``device_self_memory_bytes``: allocated less released (<NA>: no memory was recorded);
      ``flops``: as torch estimates them, from the recorded shapes, or as the program counted them
      (<NA> where neither can be told; torch says 0).

    ``attrs["self_times"]``: the self time of all rows (ns), by "CPU" and, where the trace has GPU
    tracks, "GPU": torch's "Self CPU time total" and "Self CUDA time total". The GPU's is that of
    kernels, copies and memsets: their ops have the same time once more.

    Equal to torch's table, ``ProfilerStep*`` and merged repeats (`OpRows`) included, except that
    Python functions and GPU-side annotations get no rows (the call tree has the former, whose time
    torch counts in its total and shares; the latter would count GPU time twice), and that memory is
    counted on the op's own thread only. A backward op has the stack of the last forward op with its
    sequence number, where torch takes the first.
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
    ops, gpu = rows.op_rows(trace), trace.index.gpu
    memory = rows.allocations(trace)
    loose = memory.row[ops.index[memory.row] < 0]
    counted = np.concatenate([ops.row[ops.host], gpu, loose])
    values = _concatenate(
        [
            _op_values(trace, ops, memory),
            _gpu_values(trace, gpu),
            _loose_values(trace, memory, loose),
        ]
    )
    groups, labels = _groups(trace, counted, by_shape, stack_depth)
    table = pd.DataFrame({**labels, **_sums(groups, values, len(labels["name"]))})
    told = np.zeros(len(table), bool)
    told[groups[recorded_work(trace, FLOPS)[counted] >= 0]] = True
    told |= table["flops"].to_numpy() > 0
    if which_other_kind(trace):  # what it allocated is no op's
        table = table[:0]
    table = table[table[list(SUMS)].any(axis=1)]  # a window keeps some ops for their links alone
    table = _with_unknown(table, told[table.index], len(memory.row) > 0)
    kernel_ns = _kernel_ns(trace)
    table = _with_averages_and_shares(table, kernel_ns)
    if len(table):
        table.attrs[SELF_TIMES] = _self_times(trace, table, kernel_ns)
    return table


def _kernel_ns(trace: Trace) -> int:
    return int(trace.index.dur[trace.index.gpu].sum())


def _self_times(trace: Trace, table: pd.DataFrame, kernel_ns: int) -> dict[str, int]:
    """Of the sides that were recorded: of a range without GPU work 0 ns, without a GPU nothing."""
    found = {"CPU": int(table["cpu_self_ns"].sum()), "GPU": kernel_ns}
    tracks = {"CPU": ("cpu",), "GPU": GPU_TRACKS}
    kinds = trace.tracks["kind"]
    return {side: ns for side, ns in found.items() if kinds.isin(tracks[side]).any()}


def self_time_lines(table: pd.DataFrame) -> list[str]:
    """``Self CPU time total: 12.3 ms``, and of the GPU: what torch prints below its table."""
    times = table.attrs.get(SELF_TIMES, {})
    return [f"Self {side} time total: {format_ns(ns)}" for side, ns in times.items()]


def _op_values(trace: Trace, ops: OpRows, memory: Allocations) -> Columns:
    """Per op slice what it adds to the row of its host; a repeat adds only what is its own."""
    single = ~ops.repeat
    slices = trace.slices
    cpu = rows.memory_self(ops, memory.row, np.where(memory.on_cpu, memory.size, 0))
    device = rows.memory_self(ops, memory.row, np.where(memory.on_cpu, 0, memory.size))
    launched = rows.device_self(trace, ops)
    return {
        "calls": slices["count"].to_numpy()[ops.row] * single,
        "cpu_total_ns": slices["dur"].to_numpy()[ops.row] * single,
        "cpu_self_ns": rows.cpu_self(trace, ops),
        "device_total_ns": links.subtree_sum(launched, ops.parent) * single,
        "device_self_ns": launched,
        "cpu_memory_bytes": links.subtree_sum(cpu, ops.parent) * single,
        "cpu_self_memory_bytes": cpu,
        "device_memory_bytes": links.subtree_sum(device, ops.parent) * single,
        "device_self_memory_bytes": device,
        "flops": slice_flops(trace)[ops.row] * single * (slices["count"].to_numpy()[ops.row] > 0),
    }


def _gpu_values(trace: Trace, gpu: npt.NDArray[np.intp]) -> Columns:
    dur = trace.slices["dur"].to_numpy()[gpu]
    calls = trace.slices["count"].to_numpy()[gpu]
    return _zeros(len(gpu)) | {"calls": calls, "device_total_ns": dur, "device_self_ns": dur}


def _loose_values(trace: Trace, memory: Allocations, loose: npt.NDArray[np.intp]) -> Columns:
    """Allocations outside of any op: torch's ``[memory]`` row."""
    kept = np.isin(memory.row, loose)
    size, on_cpu = memory.size[kept], memory.on_cpu[kept]
    cpu, device = np.where(on_cpu, size, 0), np.where(on_cpu, 0, size)
    return _zeros(len(loose)) | {
        "calls": trace.slices["count"].to_numpy()[loose],
        "cpu_memory_bytes": cpu,
        "cpu_self_memory_bytes": cpu,
        "device_memory_bytes": device,
        "device_self_memory_bytes": device,
    }


def _zeros(length: int) -> Columns:
    return {name: np.zeros(length, np.int64) for name in SUMS}


def _concatenate(parts: list[Columns]) -> Columns:
    return {name: np.concatenate([part[name] for part in parts]) for name in SUMS}


def _groups(
    trace: Trace, counted: npt.NDArray[np.intp], by_shape: bool, stack_depth: int
) -> tuple[npt.NDArray[np.intp], dict[str, Any]]:
    """Per counted slice its row of the table, and the columns that tell those rows apart."""
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


def _sums(groups: npt.NDArray[np.intp], values: Columns, length: int) -> Columns:
    sums = _zeros(length)
    for name, total in sums.items():
        np.add.at(total, groups, values[name].astype(np.int64))  # of another type it is slow
    return sums


def _with_unknown(
    table: pd.DataFrame, has_flops: npt.NDArray[np.bool_], has_memory: bool
) -> pd.DataFrame:
    """The table with <NA> where a trace does not tell of FLOPs and memory."""
    known = {name: np.full(len(table), has_memory) for name in SUMS if name.endswith("_bytes")}
    known["flops"] = has_flops
    columns = {name: table[name].astype("Int64").where(rows) for name, rows in known.items()}
    return table.assign(**columns)


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
