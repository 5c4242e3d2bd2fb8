"""Collectives by operation, size and process group: how often, how long, and how fast.

`collectives` groups the rows of `collective_calls`, which finds the collectives of a trace: NCCL's
kernels on GPUs, and on the CPU the spans of gloo, MPI and UCC. Then follow: the time in which
nothing hides a collective, what names of kernels, annotations and types say, and process groups.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from math import nan, prod
from typing import Any

import numpy as np
import pandas as pd

from gpuprof_widgets.analyses.columns import durations_by_group, group_rows, group_sums
from gpuprof_widgets.analyses.gpu_work import (
    COMMUNICATION,
    COMPUTE,
    gpu_kinds,
    open_times,
    without_parameters,
)
from gpuprof_widgets.analyses.operators import arg_numbers
from gpuprof_widgets.analyses.reasons import empty_table, why_empty
from gpuprof_widgets.analyses.remembered import remembered
from gpuprof_widgets.trace import intervals
from gpuprof_widgets.trace.arrays import Ints, Rows
from gpuprof_widgets.trace.index import take
from gpuprof_widgets.trace.intervals import Intervals
from gpuprof_widgets.trace.links import places_in
from gpuprof_widgets.trace.model import Record, Trace
from gpuprof_widgets.trace.schema import NONE

ALL_REDUCE, ALL_GATHER, REDUCE_SCATTER = "all_reduce", "all_gather", "reduce_scatter"
ALL_TO_ALL, BARRIER = "all_to_all", "barrier"

SYNCHRONISING = frozenset({ALL_REDUCE, ALL_GATHER, REDUCE_SCATTER, ALL_TO_ALL, BARRIER})
"""Operations that no rank can end before all have begun, because each needs data of all others."""

_OPERATIONS = (
    (re.compile(r"reduce_?scatter"), REDUCE_SCATTER),
    (re.compile(r"all_?reduce|cross_device_reduce"), ALL_REDUCE),
    (re.compile(r"all_?gather"), ALL_GATHER),
    (re.compile(r"all_?to_?all|all2all"), ALL_TO_ALL),
    (re.compile(r"(::(notify_)?|a2a_?|\bep)dispatch"), "dispatch"),
    (re.compile(r"(::|a2a_?|\bep)combine"), "combine"),
    (re.compile(r"broadcast"), "broadcast"),
    (re.compile(r"barrier"), BARRIER),
    (re.compile(r"gather"), "gather"),
    (re.compile(r"scatter"), "scatter"),
    (re.compile(r"send_?recv"), "send_recv"),
    (re.compile(r"\bsend"), "send"),
    (re.compile(r"\brecv"), "recv"),
    (re.compile(r"reduce"), "reduce"),
)
"""Operations by name; the first match counts, since all_gather contains gather. Exchanges among
experts are not called all_to_all: where receiving is a call by itself, a rank sends and goes on."""

_ANNOTATION = re.compile(r"(?P<backend>nccl|rccl|gloo|mpi|ucc|xccl|hccl):(?P<operation>.+)")

_SENT_TO_ALL = {ALL_REDUCE: 2, **dict.fromkeys((ALL_GATHER, REDUCE_SCATTER, ALL_TO_ALL), 1)}
_SENT_TO_ALL |= {"gather": 1, "scatter": 1}
"""How often a message crosses the busiest link to all other ranks; others cross it once."""

_TYPES = (
    (re.compile(r"bfloat16|\bbf16"), "bfloat16", 2),
    (re.compile(r"float8_\w+"), "float8", 1),
    (re.compile(r"half|float16|f16"), "float16", 2),
    (re.compile(r"double|float64|f64"), "float64", 8),
    (re.compile(r"float|f32"), "float32", 4),
    (re.compile(r"unsigned char|byte|uint8|u8"), "uint8", 1),
    (re.compile(r"signed char|char|int8"), "int8", 1),
    (re.compile(r"short|int16"), "int16", 2),
    (re.compile(r"long|int64|i64"), "int64", 8),
    (re.compile(r"int|int32|i32"), "int32", 4),
    (re.compile(r"bool"), "bool", 1),
)

HANDING_OVER = ("c10d::", "_c10d_functional::", "c10d_functional::", "record_param_comms")
"""How the names of ops begin that hand a collective over or wait for it and compute nothing."""

KEYS = ["name", "backend", "dtype", "bytes", "group", "ranks", "device"]
BANDWIDTH = ("algorithm_bytes_per_s", "bus_bytes_per_s")
COLUMNS = (
    *(*KEYS, "count", "total_bytes", "total_ns", "mean_ns", "min_ns", "max_ns", "exposed_ns"),
    *(*BANDWIDTH, "best_bus_bytes_per_s"),
)
CALL_COLUMNS = (
    *("name", "backend", "dtype", "group", "ranks", "bytes", "in_bytes", "out_bytes"),
    *("device", "start_ns", "end_ns", "dur_ns", "exposed_ns", "sequence", "row", "op"),
)


def collectives(record: Record, *, instances: bool = False) -> pd.DataFrame:
    """One row per operation, data type, message size and group, the longest in total first.

    The time of one rank includes its waiting for the others, so a bandwidth is a lower bound; that
    of the shortest collective is the nearest to moving data only. `gpuprof_widgets.ranks` tells the
    two apart.

    Formula: ``algorithm_bytes_per_s`` = bytes / time. ``bus_bytes_per_s`` =
    ``algorithm_bytes_per_s`` × the share of the message on the busiest link: all_reduce 2(n-1)/n;
    all_gather, reduce_scatter and all_to_all (n-1)/n; broadcast, reduce and point to point 1, with
    n ranks.

    Options:

    - ``instances``: a row per collective instead, in order of time.

    Columns:

    - ``name``, ``backend``, ``dtype``: the operation as in ``torch.distributed``, "nccl" or "gloo"
      and so on, and the data type.
    - ``bytes``: size of one message; -1: not recorded.
    - ``group``, ``ranks``: ranks of the process group, or its name, and how many; "" and -1:
      unknown.
    - ``device``: -1: the CPU.
    - ``count``: number of collectives.
    - ``total_bytes``: of all messages; -1: unknown.
    - ``total_ns``, ``mean_ns``, ``min_ns``, ``max_ns``: durations.
    - ``exposed_ns``: time not covered by compute. Of several at a time the one that began first has
      it, so that they add up to the exposed time.
    - ``algorithm_bytes_per_s``, ``bus_bytes_per_s``: see the formula; NaN: unknown.
    - ``best_bus_bytes_per_s``: that of the shortest collective, the highest of the row.

    Columns with ``instances=True``:

    - ``name``, ``backend``, ``dtype``, ``group``, ``ranks``: as above; without a group, ``ranks``
      are those of the whole job.
    - ``bytes``, ``in_bytes``, ``out_bytes``: the larger of input and output, and both; -1: unknown.
    - ``device``: -1: the CPU.
    - ``start_ns``, ``end_ns``, ``dur_ns``: when it ran.
    - ``exposed_ns``: as above.
    - ``sequence``: torch's number of it in its group; -1: not recorded.
    - ``row``, ``op``: the collective, and the annotation that issued it.
    - ``algorithm_bytes_per_s``, ``bus_bytes_per_s``: as above.

    Source: nccl-tests (``doc/PERFORMANCE.md``) for sizes and factors.
    """
    calls = collective_calls(record)
    if not len(calls):
        columns = (*CALL_COLUMNS, *BANDWIDTH) if instances else COLUMNS
        return empty_table(columns, why_empty(calls))
    return with_bandwidth(calls, "bytes", "dur_ns") if instances else _grouped(calls)


def _grouped(calls: pd.DataFrame) -> pd.DataFrame:
    groups, first = collective_groups(calls)
    times = durations_by_group(groups, calls["dur_ns"].to_numpy(np.int64), len(first))
    table = calls[KEYS].iloc[first].reset_index(drop=True)
    table = table.assign(
        count=times["calls"],
        total_bytes=np.where(table["bytes"] < 0, NONE, times["calls"] * table["bytes"]),
        total_ns=times["total_ns"],
        mean_ns=times["average_ns"],
        min_ns=times["min_ns"],
        max_ns=times["max_ns"],
        exposed_ns=group_sums(groups, calls["exposed_ns"], len(first)),
    )
    best = with_bandwidth(table, "bytes", "min_ns")["bus_bytes_per_s"]
    table = with_bandwidth(table, "total_bytes", "total_ns").assign(best_bus_bytes_per_s=best)
    return table[list(COLUMNS)]


def collective_groups(calls: pd.DataFrame) -> tuple[Rows, Rows]:
    """Return per call the number of its row in the grouped table, and per row its first call."""
    groups, first = group_rows({key: calls[key].to_numpy() for key in KEYS})
    total = np.bincount(groups, calls["dur_ns"], minlength=len(first))
    order = np.argsort(-total, kind="stable")
    return places_in(order)[groups], first[order]


def with_bandwidth(table: pd.DataFrame, size: str, time: str) -> pd.DataFrame:
    """Add algorithm and bus bandwidth, from the columns of bytes and ns; NaN where unknown."""
    ns, byte_count = (table[key].to_numpy(np.float64) for key in (time, size))
    known = (ns > 0) & (byte_count >= 0)
    algorithm = np.divide(byte_count * 1e9, ns, out=np.full(len(table), np.nan), where=known)
    pairs = zip(table["name"], table["ranks"], strict=True)
    share = np.array([bus_share(name, ranks) for name, ranks in pairs], np.float64)
    columns = dict(zip(BANDWIDTH, (algorithm, algorithm * share), strict=True))
    return table.assign(**columns)


@remembered
def collective_calls(record: Record) -> pd.DataFrame:
    """One row per collective, in order of time: a kernel that moves data between ranks, or its op.

    On a GPU a collective is its kernel; on the CPU the span that the backend marks
    (``gloo:all_reduce``), which runs on one of the backend's threads. The columns are those of
    `collectives` with ``instances=True``, without bandwidths. ``exposed_ns`` is time in which no
    compute kernel ran on that GPU; for the CPU, no op on any thread.
    """
    trace = record.trace
    gpu, kinds = gpu_kinds(trace)
    kernels = gpu[kinds == COMMUNICATION]
    kernels = kernels[trace.index.column("count")[kernels] > 0]
    backends = {name: annotation(name)[0] for name in trace.index.names}
    # ``nccl:`` on a CPU only launches a kernel.
    of_cpu = frozenset(name for name, of in backends.items() if of in ("gloo", "mpi", "ucc"))
    spans = trace.index.named(of_cpu) & trace.index.on_tracks("cpu")
    on_cpu = np.flatnonzero(spans & (trace.index.column("count") > 0))
    rows = np.concatenate([kernels, on_cpu])
    if not len(rows):
        why = "the trace has no collectives: neither NCCL kernels nor spans of gloo"
        if any(backends.values()):
            why = "the trace has calls of collectives but none of their kernels"
        return empty_table(CALL_COLUMNS, why)
    op = np.concatenate([trace.index.column("op")[kernels], on_cpu]).astype(np.intp)
    table = _described(record, rows, op).assign(
        device=trace.index.device[rows],
        start_ns=trace.index.ts[rows],
        end_ns=trace.index.end[rows],
        dur_ns=trace.index.dur[rows],
        row=rows,
        op=op,
    )
    table["exposed_ns"] = _exposed_ns(trace, table, gpu[kinds == COMPUTE])
    return table.sort_values(["start_ns", "row"], ignore_index=True)[list(CALL_COLUMNS)]


def _described(record: Record, rows: Rows, op: Rows) -> pd.DataFrame:
    """Return name, backend, data type, group and sizes of each collective."""
    trace = record.trace
    recorded = pd.DataFrame(
        {
            "collective": _arg(trace, "Collective name", rows, ""),
            "annotation": trace.index.names_of(op),
            "kernel": trace.index.names_of(rows),
            "dtype": _arg(trace, "dtype", rows, ""),
            "op_dtypes": _arg(trace, "Input type", op, ""),
            "op_dims": _arg(trace, "Input Dims", op, None),
            "in_elements": arg_numbers(trace, "In msg nelems", rows, NONE),
            "out_elements": arg_numbers(trace, "Out msg nelems", rows, NONE),
        }
    )
    group = _groups(record, rows)
    sizes = [
        _sizes(collective, ranks)
        for collective, ranks in zip(recorded.itertuples(), group["ranks"], strict=True)
    ]
    table = pd.DataFrame(sizes, columns=["name", "backend", "dtype", "in_bytes", "out_bytes"])
    table = table.assign(group=group["group"], ranks=group["ranks"])
    table["bytes"] = table[["in_bytes", "out_bytes"]].max(axis=1)
    table["sequence"] = arg_numbers(trace, "Seq", rows, NONE)
    return table


def _sizes(collective: Any, ranks: int) -> tuple[str, str, str, int, int]:
    """Return name, backend, data type, and bytes in and out, of one collective."""
    backend, operation = annotation(collective.annotation)
    kernel = collective.kernel
    backend = backend or ("nccl" if "ccl" in kernel.lower() else "")
    name = operation_of(collective.collective, operation, kernel) or kernel.split("(")[0]
    types = collective.op_dtypes  # of all inputs, the first of which may be no tensor
    if isinstance(types, list | tuple):
        types = next((str(text) for text in types if dtype_of(str(text))[1]), "")
    dtype, size = dtype_of(str(collective.dtype or types or ""))
    counts = collective.in_elements, collective.out_elements
    if size and min(counts) >= 0:
        return name, backend, dtype, int(counts[0]) * size, int(counts[1]) * size
    sent = elements(collective.op_dims) * size
    if name == BARRIER or not sent:
        sent = 0 if name == BARRIER else NONE
        return name, backend, dtype, sent, sent
    received = {ALL_GATHER: sent * max(ranks, 1), REDUCE_SCATTER: sent // max(ranks, 1)}
    return name, backend, dtype, sent, received.get(name, sent)


def _arg(trace: Trace, key: str, rows: Rows, missing: Any) -> list[Any]:
    """Return an arg of each slice, or ``missing`` where a slice has none."""
    place, values = trace.index.arg(key)
    return [missing if at < 0 else values[at] for at in take(place, rows).tolist()]


def _exposed_ns(trace: Trace, table: pd.DataFrame, computing: Rows) -> Ints:
    """Return per collective how long it ran while its device computed nothing.

    Time in which an earlier collective of the device still ran belongs to that one.
    """
    exposed = np.zeros(len(table), np.int64)
    kernel_device = trace.index.device[computing]
    for device in table["device"].unique():
        rows = computing[kernel_device == device] if device >= 0 else _cpu_ops(trace)
        here = (table["device"] == device).to_numpy()
        start, end, row = (table.loc[here, key].to_numpy() for key in ("start_ns", "end_ns", "row"))
        start, order = start.copy(), np.lexsort((row, trace.index.uncut[0][row]))
        reached = np.maximum.accumulate(end[order])[:-1]
        start[order[1:]] = np.minimum(np.maximum(start[order[1:]], reached), end[order[1:]])
        exposed[here] = end - start - intervals.overlap((start, end), open_times(trace, rows))
    return exposed


def exposed_on_cpu(record: Record) -> Intervals:
    """Return when a collective of the CPU was in flight and no thread ran an op that computes."""
    calls = collective_calls(record)
    calls = calls[calls["device"] == NONE]
    in_flight = intervals.union(calls["start_ns"], calls["end_ns"])
    return intervals.difference(in_flight, open_times(record.trace, _cpu_ops(record.trace)))


def compute_intervals(record: Record) -> Intervals:
    """Return when a compute kernel ran on any GPU; without a GPU, when an op of the CPU ran."""
    gpu, kinds = gpu_kinds(record.trace)
    return open_times(record.trace, gpu[kinds == COMPUTE] if len(gpu) else _cpu_ops(record.trace))


def _cpu_ops(trace: Trace) -> Rows:
    """Return the CPU ops that compute, without those that hand a collective over."""
    handing_over = frozenset(name for name in trace.index.names if name.startswith(HANDING_OVER))
    return np.flatnonzero(trace.index.is_op & ~trace.index.named(handing_over))


def operation_of(*texts: str) -> str:
    """Return the operation in the first text that names one, as ``torch.distributed`` calls it.

    Callers pass the best text first: the collective's name, its annotation, its kernel. "" if none
    names an operation.
    """
    for text in texts:
        lower = without_parameters(text).lower()
        for pattern, operation in _OPERATIONS:
            if pattern.search(lower):
                return operation
    return ""


def annotation(name: str) -> tuple[str, str]:
    """Return backend and operation of ``nccl:all_reduce``; "" and "" for any other name."""
    match = _ANNOTATION.fullmatch(name)
    return (match["backend"], match["operation"]) if match else ("", "")


def bus_share(operation: str, ranks: int) -> float:
    """Return the share of the message on the busiest link (see `collectives`); NaN if unknown."""
    if ranks < 1:
        return nan
    times = _SENT_TO_ALL.get(operation)
    return times * (ranks - 1) / ranks if times else 1.0


def dtype_of(text: str) -> tuple[str, int]:
    """Return name and bytes of a type that Kineto writes (``c10::Half``, ``Float``), or "", 0."""
    known = ((name, size) for pattern, name, size in _TYPES if pattern.search(text.lower()))
    return next(known, ("", 0))


def elements(dims: Any) -> int:
    """Return the number of elements of all the tensors in an op's input dims."""
    if not isinstance(dims, list | tuple) or not dims:
        return 0
    if all(isinstance(size, int) for size in dims):
        return prod(dims)
    return sum(elements(tensor) for tensor in dims)


def _groups(record: Record, rows: Rows) -> pd.DataFrame:
    """Return the ranks of each collective's process group as text, and their number."""
    trace = record.trace
    listed_groups = _distributed_info(record.metadata).get("pg_config")
    by_name = {
        str(group.get("pg_name")): ranks_text(group["ranks"])
        for group in (listed_groups if isinstance(listed_groups, list) else [])
        if isinstance(group, dict) and isinstance(group.get("ranks"), list)
    }
    names = _arg(trace, "Process Group Name", rows, "")
    listed = [str(ranks) for ranks in _arg(trace, "Process Group Ranks", rows, "")]
    texts = {}
    for text in set(listed):  # torch cuts a long list short, which is no JSON then
        try:
            ranks = json.loads(text)
        except ValueError:
            ranks = None
        texts[text] = ranks_text(ranks) if isinstance(ranks, list) else ""
    group = [
        texts[ranks] or by_name.get(str(name), str(name))
        for ranks, name in zip(listed, names, strict=True)
    ]
    size = arg_numbers(trace, "Group size", rows, NONE)
    size = np.where(size > 0, size, world_size_of(record.metadata))
    return pd.DataFrame({"group": pd.Series(group, dtype=object), "ranks": size})


def world_size_of(metadata: Mapping[str, Any]) -> int:
    """Return the number of ranks of the whole job; -1 where the trace does not say."""
    size = metadata.get("world_size", _distributed_info(metadata).get("world_size"))
    return size if isinstance(size, int) else NONE


def _distributed_info(metadata: Mapping[str, Any]) -> Mapping[str, Any]:
    information = metadata.get("distributedInfo")
    return information if isinstance(information, dict) else {}


def ranks_text(ranks: list[int]) -> str:
    """Return ``0-7`` for consecutive ranks, else ``0,2,4``."""
    runs: list[list[int]] = []
    for rank in sorted(ranks):
        if runs and rank == runs[-1][1] + 1:
            runs[-1][1] = rank
        else:
            runs.append([rank, rank])
    return ",".join(str(low) if low == high else f"{low}-{high}" for low, high in runs)
