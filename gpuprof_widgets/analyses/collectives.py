"""Collectives by operation, size and group: how often, how long, and how fast."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from gpuprof_widgets.analyses.columns import Groups, durations_by_group, group_rows
from gpuprof_widgets.analyses.gpu_work import (
    COMMUNICATION,
    COMPUTE,
    annotation,
    bus_share,
    dtype_of,
    elements,
    gpu_kinds,
    groups_of,
    message_bytes,
    open_times,
    operation_of,
    ranks_text,
    world_size_of,
)
from gpuprof_widgets.analyses.reasons import lacking, why_empty
from gpuprof_widgets.analyses.remembered import remembered
from gpuprof_widgets.trace import intervals
from gpuprof_widgets.trace.intervals import Intervals
from gpuprof_widgets.trace.model import Record, Trace
from gpuprof_widgets.trace.schema import NONE

Rows = npt.NDArray[np.intp]

KEYS = ["name", "backend", "dtype", "bytes", "group", "ranks", "device"]
BANDWIDTH = ("algorithm_bytes_per_s", "bus_bytes_per_s")
COLUMNS = (
    *(*KEYS, "count", "total_bytes", "total_ns", "mean_ns", "min_ns", "max_ns", "exposed_ns"),
    *(*BANDWIDTH, "best_bus_bytes_per_s"),
)


def collectives(record: Record, *, instances: bool = False) -> pd.DataFrame:
    """One row per operation, data type, message size and group, the longest in total first.

    Columns (ns, bytes, bytes per s): ``name``, ``backend``, ``dtype``, ``bytes`` (of one message;
    -1: not recorded), ``group``, ``ranks``, ``device``, ``count``, ``total_bytes``, ``total_ns``,
    ``mean_ns``, ``min_ns``, ``max_ns``, ``exposed_ns`` (not covered by compute; of
    several at a time the one that began first has it, so that they add up to the exposed time);
    ``algorithm_bytes_per_s`` (bytes over time), ``bus_bytes_per_s`` (that times what the busiest
    link carries of a message) and ``best_bus_bytes_per_s`` (of the shortest). Where a size is
    unknown, ``total_bytes`` is -1 and a bandwidth NaN. The time of one rank holds its waiting for
    the others, so that bandwidth is a lower bound; the shortest is the nearest to moving data only.
    `gpuprof_widgets.ranks` tells the two apart.

    ``instances``: a row per collective instead, in order of time, with the columns of
    `collective_calls` and both bandwidths.

    Sizes and factors are those of nccl-tests (doc/PERFORMANCE.md), see `bus_share`.
    """
    calls = collective_calls(record)
    if not len(calls):
        columns = (*CALL_COLUMNS, *BANDWIDTH) if instances else COLUMNS
        return lacking(columns, why_empty(calls))
    return with_bandwidth(calls, "bytes", "dur_ns") if instances else _grouped(calls)


def _grouped(calls: pd.DataFrame) -> pd.DataFrame:
    groups, first = collective_groups(calls)
    times = durations_by_group(groups, calls["dur_ns"].to_numpy(np.int64), len(first))
    exposed = np.zeros(len(first), np.int64)
    np.add.at(exposed, groups, calls["exposed_ns"].to_numpy(np.int64))
    table = calls[KEYS].iloc[first].reset_index(drop=True)
    table = table.assign(
        count=times["calls"],
        total_bytes=np.where(table["bytes"] < 0, NONE, times["calls"] * table["bytes"]),
        total_ns=times["total_ns"],
        mean_ns=times["average_ns"],
        min_ns=times["min_ns"],
        max_ns=times["max_ns"],
        exposed_ns=exposed,
    )
    best = with_bandwidth(table, "bytes", "min_ns")["bus_bytes_per_s"]
    table = with_bandwidth(table, "total_bytes", "total_ns").assign(best_bus_bytes_per_s=best)
    return table[list(COLUMNS)]


def collective_groups(calls: pd.DataFrame) -> tuple[Groups, Groups]:
    """Of each call the number of its row in the table, and of each row the first call."""
    groups, first = group_rows({key: calls[key].to_numpy() for key in KEYS})
    total = np.bincount(groups, calls["dur_ns"], minlength=len(first))
    order = np.argsort(-total, kind="stable")
    place = np.empty(len(order), np.intp)
    place[order] = np.arange(len(order))
    return place[groups], first[order]


def with_bandwidth(table: pd.DataFrame, size: str, time: str) -> pd.DataFrame:
    """The table with algorithm and bus bandwidth of these bytes in these ns; NaN: unknown."""
    ns, moved = (table[key].to_numpy(np.float64) for key in (time, size))
    known = (ns > 0) & (moved >= 0)
    algorithm = np.divide(moved * 1e9, ns, out=np.full(len(table), np.nan), where=known)
    pairs = zip(table["name"], table["ranks"], strict=True)
    share = np.array([bus_share(name, ranks) for name, ranks in pairs], np.float64)
    columns = dict(zip(BANDWIDTH, (algorithm, algorithm * share), strict=True))
    return table.assign(**columns)


CALL_COLUMNS = (
    *("name", "backend", "dtype", "group", "ranks", "bytes", "in_bytes", "out_bytes"),
    *("device", "start_ns", "end_ns", "dur_ns", "exposed_ns", "sequence", "row", "op"),
)

HANDING_OVER = ("c10d::", "_c10d_functional::", "c10d_functional::", "record_param_comms")
"""How ops begin that hand a collective over or wait for it: they compute nothing."""


@remembered
def collective_calls(record: Record) -> pd.DataFrame:
    """One row per collective, in order of time: a kernel that moves data between ranks, or its op.

    On a GPU a collective is its kernel; on the CPU the span that the backend marks
    (``gloo:all_reduce``), which runs on a thread of the backend's own. Columns (ns, bytes):
    ``name`` (as in ``torch.distributed``), ``backend``, ``dtype``; ``group`` (ranks of its process
    group, or its name, "" where the trace does not tell) and ``ranks`` (how many; where the trace
    names no group that of the whole job, -1 where that is unknown too); ``bytes`` (the larger of
    ``in_bytes`` and ``out_bytes``: the size that nccl-tests counts; -1 where unknown); ``device``
    (-1: the CPU), ``start_ns``, ``end_ns``, ``dur_ns``; ``exposed_ns`` (while nothing was computed:
    no compute kernel on that GPU; of a CPU's, no op on any thread; of several at a time the one
    that began first has it, so that those of a device add up to its exposed time and no more);
    ``sequence`` (torch's number of it in its group, -1 if not recorded), ``row`` and ``op`` (the
    annotation that issued it).
    """
    trace = record.trace
    gpu, kinds = gpu_kinds(trace)
    kernels = gpu[kinds == COMMUNICATION]
    kernels = kernels[trace.slices["count"].to_numpy()[kernels] > 0]
    computing = gpu[kinds == COMPUTE]
    on_cpu = _spans_on_cpu(trace)
    rows = np.concatenate([kernels, on_cpu])
    if not len(rows):
        return lacking(CALL_COLUMNS, _why_none(trace))
    op = np.concatenate([trace.slices["op"].to_numpy()[kernels], on_cpu]).astype(np.intp)
    start = trace.slices["ts"].to_numpy()[rows]
    end = start + trace.slices["dur"].to_numpy()[rows]
    table = _described(record, rows, op)
    table = table.assign(device=trace.index.device[rows], start_ns=start, end_ns=end)
    table = table.assign(dur_ns=end - start, row=rows, op=op)
    table["exposed_ns"] = _exposed(trace, table, computing)
    table = table.sort_values(["start_ns", "row"], ignore_index=True)
    return table[list(CALL_COLUMNS)]


def _spans_on_cpu(trace: Trace) -> Rows:
    """What backends mark on the CPU; ``nccl:`` there is but the launch of a kernel."""
    names = trace.slices["name"].cat.categories
    told = frozenset(n for n in names if annotation(str(n))[0] in ("gloo", "mpi", "ucc"))
    marked = trace.index.named(told) & trace.index.on_tracks("cpu")
    return np.flatnonzero(marked & (trace.slices["count"].to_numpy() > 0))


def _why_none(trace: Trace) -> str:
    names = trace.slices["name"].cat.categories
    if any(annotation(str(name))[0] for name in names):
        return "the trace has calls of collectives but none of their kernels"
    return "the trace has no collectives: neither NCCL kernels nor spans of gloo"


def _described(record: Record, rows: Rows, op: Rows) -> pd.DataFrame:
    """Name, backend, data type, group and sizes of each."""
    trace = record.trace
    told = pd.DataFrame(
        {
            "told": _arg(trace, "Collective name", rows, ""),
            "of_op": trace.index.names_of(op),
            "kernel": trace.index.names_of(rows),
            "type": _arg(trace, "dtype", rows, ""),
            "op_type": _arg(trace, "Input type", op, ""),
            "dims": _arg(trace, "Input Dims", op, None),
            "in": _arg(trace, "In msg nelems", rows, NONE),
            "out": _arg(trace, "Out msg nelems", rows, NONE),
        }
    )
    group = _groups(record, rows)
    sizes = [
        _sizes(one, ranks) for one, ranks in zip(told.itertuples(), group["ranks"], strict=True)
    ]
    described = pd.DataFrame(
        sizes, columns=["name", "backend", "dtype", "in_bytes", "out_bytes"]
    ).assign(group=group["group"], ranks=group["ranks"])
    described["bytes"] = described[["in_bytes", "out_bytes"]].max(axis=1)
    described["sequence"] = _numbers(_arg(trace, "Seq", rows, NONE))
    return described


def _sizes(told: Any, ranks: int) -> tuple[str, str, str, int, int]:
    """Name, backend, data type, and bytes in and out, of one collective."""
    backend, operation = annotation(told.of_op)
    backend = backend or ("nccl" if "ccl" in told.kernel.lower() else "")
    name = operation_of(told.told, operation, told.kernel) or told.kernel.split("(")[0]
    written = told.type or _first_text(told.op_type)
    dtype, size = dtype_of(str(written))
    each = told[7], told[8]  # itertuples renames "in", which is a keyword
    if size and min(each) >= 0:
        return name, backend, dtype, int(each[0]) * size, int(each[1]) * size
    sent = elements(told.dims) * size
    if not sent:
        nothing = 0 if name == "barrier" else NONE
        return name, backend, dtype, nothing, nothing
    return name, backend, dtype, *message_bytes(name, sent, ranks)


def _first_text(types: Any) -> str:
    """Of an op's input types the first that is one."""
    if not isinstance(types, list | tuple):
        return str(types or "")
    return next((str(one) for one in types if dtype_of(str(one))[1]), "")


def _groups(record: Record, rows: Rows) -> pd.DataFrame:
    """Of each collective the group's ranks as text, and how many they are."""
    trace = record.trace
    by_name, world = groups_of(record.metadata), world_size_of(record.metadata)
    name = _arg(trace, "Process Group Name", rows, "")
    listed = _arg(trace, "Process Group Ranks", rows, "")
    texts = {key: _ranks_listed(key) for key in {str(one) for one in listed}}
    group = [
        texts[str(ranks)] or by_name.get(str(label), str(label))
        for ranks, label in zip(listed, name, strict=True)
    ]
    size = _numbers(_arg(trace, "Group size", rows, NONE))
    size = np.where(size > 0, size, world)
    return pd.DataFrame({"group": pd.Series(group, dtype=object), "ranks": size})


def _ranks_listed(text: str) -> str:
    """``0-7`` of "[0, 1, ..., 7]" where all of them are named; long lists torch cuts short."""
    try:
        ranks = json.loads(text)
    except ValueError:
        return ""
    return ranks_text(ranks) if isinstance(ranks, list) else ""


def _exposed(trace: Trace, table: pd.DataFrame, computing: Rows) -> npt.NDArray[np.int64]:
    """Of each collective the time in which its device computed nothing and none before it ran."""
    exposed = np.zeros(len(table), np.int64)
    device = trace.index.device[computing]
    for one in table["device"].unique():
        compute = (
            open_times(trace, computing[device == one])
            if one >= 0
            else open_times(trace, _cpu_ops(trace))
        )
        here = (table["device"] == one).to_numpy()
        start, end = _first_in_flight(trace, table[here])
        exposed[here] = end - start - intervals.overlap((start, end), compute)
    return exposed


def _first_in_flight(trace: Trace, table: pd.DataFrame) -> Intervals:
    """The end of each collective of a device, from where all that began before it had ended."""
    start, end, row = (table[key].to_numpy(np.int64) for key in ("start_ns", "end_ns", "row"))
    began, _ = trace.index.uncut
    order = np.lexsort((row, began[row]))
    reach = np.maximum.accumulate(end[order])
    start = start.copy()
    start[order[1:]] = np.maximum(start[order[1:]], reach[:-1])
    return np.minimum(start, end), end


def exposed_on_cpu(record: Record) -> Intervals:
    """When a collective of the CPU was in flight and no thread was in an op that computes."""
    calls = collective_calls(record)
    calls = calls[calls["device"] == NONE]
    flight = intervals.union(calls["start_ns"], calls["end_ns"])
    return intervals.difference(flight, open_times(record.trace, _cpu_ops(record.trace)))


def compute_intervals(record: Record) -> Intervals:
    """When anything was computed: compute kernels on any GPU; without a GPU, ops of the CPU."""
    gpu, kinds = gpu_kinds(record.trace)
    return open_times(record.trace, gpu[kinds == COMPUTE] if len(gpu) else _cpu_ops(record.trace))


def _cpu_ops(trace: Trace) -> Rows:
    """Ops of the CPU that compute; those that hand a collective over do not."""
    names = trace.slices["name"].cat.categories
    handing = frozenset(n for n in names if str(n).startswith(HANDING_OVER))
    return np.flatnonzero(trace.index.is_op & ~trace.index.named(handing))


def _arg(trace: Trace, key: str, rows: Rows, otherwise: Any) -> list[Any]:
    """That arg of each slice, or what stands for none."""
    values = trace.args.get(key)
    if values is None:
        return [otherwise] * len(rows)
    position = values.index.get_indexer(pd.Index(rows))
    found = values.to_numpy(object)
    return [found[at] if at >= 0 else otherwise for at in position.tolist()]


def _numbers(values: list[Any]) -> npt.NDArray[np.int64]:
    return np.array([int(v) if isinstance(v, int | np.integer) else NONE for v in values], np.int64)
