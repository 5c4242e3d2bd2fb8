"""Copies to, from and on GPUs: which memory, how fast, who waited, who issued them.

`copies` has a row per copy or group of copies, and marks as needless what a program could do
without; `copy_bandwidth` is their speed over time.
"""

from __future__ import annotations

import re

import numpy as np
import pandas as pd

from gpuprof_widgets.analyses.columns import different, group_rows, group_sums
from gpuprof_widgets.analyses.gpu_work import open_times
from gpuprof_widgets.analyses.kernels import counted_gpu_rows, numbers
from gpuprof_widgets.analyses.launches import launched_by
from gpuprof_widgets.analyses.reasons import empty_table, why_empty
from gpuprof_widgets.analyses.regions import steps
from gpuprof_widgets.analyses.remembered import remembered
from gpuprof_widgets.analyses.waits import is_dataloader, waits
from gpuprof_widgets.exceptions import OptionError
from gpuprof_widgets.trace import intervals
from gpuprof_widgets.trace.arrays import Mask, Rows
from gpuprof_widgets.trace.index import take
from gpuprof_widgets.trace.model import Record, Trace

KIND = re.compile(
    r"(?:Memcpy |hipMemcpy |Copy)(?P<direction>[A-Z]to[A-Z])(?: \((?P<memory>.*)\))?.*"
)
"""Kineto's name of a copy: ``Memcpy HtoD (Pageable -> Device)``."""
SIZES = ("bytes", "Bytes", "size", "Size")
"""Args with a copy's size: Kineto's on the copy; on AMD also on the call that launched it."""
PEER_ENDS = ("fromDevice", "toDevice")
"""Args with the two GPUs of a copy between them."""

GROUPINGS = {
    "copy": (),
    "kind": ("direction", "source", "target"),
    "op": ("direction", "source", "target", "op_name", "module", "line", "python"),
}
"""What `copies` can group by, and the columns that are equal within a group."""

COLUMNS = (
    *("row", "name", "device", "stream", "direction", "source", "target", "bytes"),
    *("start_ns", "dur_ns", "bytes_per_s", "launch", "launch_name", "call_ns", "wait_ns"),
    *("blocking", "op", "op_name", "module", "line", "python", "needless"),
)
GROUPED = (
    *("copies", "bytes", "dur_ns", "bytes_per_s", "call_ns", "wait_ns"),
    *("blocking", "needless", "sizes"),
)
BANDWIDTH_COLUMNS = ("device", "direction", "ts_ns", "bytes_per_s", "copies")

THERE_AND_BACK, EVERY_STEP = "there and back", "every step"
SMALLEST = 4096
"""Bytes (a page) from which two copies of equal size are hardly a coincidence."""
STEPS = 3
"""Number of steps that must send the same bytes before they count as a constant."""
SAME_ORIGIN = ("device", "bytes", "source", "op_name", "module", "line", "python")
"""Columns that are equal for copies of one size from one place of the program."""


def copies(record: Record, *, by: str = "copy") -> pd.DataFrame:
    """One row per copy in order of time, or one per kind of copy or op that issued them.

    A copy is needless

    - "there and back": the same number of bytes, 4 KiB or more, goes to the GPU and comes back with
      no kernel in between, or leaves and returns in the same step with no other copy in between,
    - "every step": it is made within a module, with the same size from the same place, in every
      step: that is no batch but a constant.

    Options:

    - ``by``: "copy"; "kind" (direction and memory); "op" (and the op, module, line and Python
      function).

    Columns:

    - ``row``, ``name``: the GPU slice.
    - ``device``, ``stream``: where it ran.
    - ``direction``: "HtoD", "DtoH", "DtoD", "PtoP" (from one GPU to another), "HtoH"; "" if the
      name does not tell.
    - ``source``, ``target``: "pageable", "pinned", "device", "array", "managed"; "host" for unknown
      host memory; "": unknown.
    - ``bytes``: size; -1: unknown.
    - ``start_ns``, ``dur_ns``: on the GPU.
    - ``bytes_per_s``: ``bytes`` / ``dur_ns``; NaN where one of them is unknown.
    - ``launch``, ``launch_name``: the call; -1 and "" if unknown.
    - ``call_ns``: time of the CPU in that call.
    - ``wait_ns``: time of the CPU in calls after it that wait for the copy (see `waits`).
    - ``blocking``: the CPU waited for the copy in the call or after it.
    - ``op``, ``op_name``: the op that Python called.
    - ``module``, ``line``, ``python``: who issued it, as text; "": unknown.
    - ``needless``: "", or the reason (see above).

    Columns with ``by="kind"`` and ``by="op"``, the most time first:

    - ``direction``, ``source``, ``target``: as above.
    - ``op_name``, ``module``, ``line``, ``python``: as above, with "op" only.
    - ``copies``: number of copies.
    - ``bytes``: sum of the known sizes; -1: none is known.
    - ``dur_ns``, ``call_ns``, ``wait_ns``: sums.
    - ``bytes_per_s``: of the copies of known size.
    - ``blocking``, ``needless``: how many were so.
    - ``sizes``: number of different sizes.

    Source: what counts as needless is defined here. That copies of pageable memory block is from
    the CUDA Runtime API's "API synchronization behavior".
    """
    if by not in GROUPINGS:
        raise OptionError(f"copies are grouped by {', '.join(GROUPINGS)}, not by {by!r}")
    table = _copies(record)
    if by == "copy":
        return table
    keys = GROUPINGS[by]
    if not len(table):
        return empty_table((*keys, *GROUPED), why_empty(table))
    return _grouped(table, keys)


@remembered
def _copies(record: Record) -> pd.DataFrame:
    trace = record.trace
    rows = counted_gpu_rows(trace, "gpu_memcpy")
    if not len(rows):
        return empty_table(COLUMNS, "the trace has no copies to, from or on a GPU.")
    ts, _ = trace.index.uncut
    rows = rows[np.argsort(ts[rows], kind="stable")]
    table = pd.concat([_on_gpu(trace, rows), _on_cpu(record, rows)], axis=1)
    owners = launched_by(trace, rows).assign(needless=np.full(len(rows), "", object))
    table = table.join(owners)
    table.loc[_in_every_step(record, table), "needless"] = EVERY_STEP
    table.loc[_there_and_back(record, table), "needless"] = THERE_AND_BACK
    return table[list(COLUMNS)]


def _on_gpu(trace: Trace, rows: Rows) -> pd.DataFrame:
    """Return what the GPU did: memory, size, time and bandwidth of each copy."""
    names = trace.index.names_of(rows)
    code, distinct = pd.factorize(names)
    kinds = np.array([_kind_of(str(name)) for name in distinct], object).reshape(-1, 3)[code]
    sender, receiver = (numbers(trace, key, rows) for key in PEER_ENDS)
    kinds[~np.isnan(sender) & ~np.isnan(receiver) & (sender != receiver), 0] = "PtoP"
    size = np.full(len(rows), np.nan)
    for slices in (rows, trace.index.column("launch")[rows]):
        for key in SIZES:
            size = np.where(np.isnan(size), numbers(trace, key, slices), size)
    size = np.nan_to_num(size, nan=-1).astype(np.int64)
    ts, end = trace.index.uncut
    took = end[rows] - ts[rows]
    known = (size >= 0) & (took > 0)
    columns = {
        "row": rows.astype(np.int32),
        "name": names,
        "device": trace.index.device[rows],
        "stream": trace.index.stream[rows],
        **dict(zip(("direction", "source", "target"), kinds.T, strict=True)),
        "bytes": size,
        "start_ns": trace.index.ts[rows],
        "dur_ns": trace.index.dur[rows],
        "bytes_per_s": np.where(known, size, np.nan) * 1e9 / np.where(known, took, 1),
    }
    return pd.DataFrame(columns)


def _kind_of(name: str) -> tuple[str, str, str]:
    """Return direction, source and target memory of a copy by its name."""
    if not (match := KIND.fullmatch(name)):
        return "", "", ""
    memory = (match["memory"] or "").lower().split(" -> ")
    source, target = memory if len(memory) == 2 else ("", "")
    return match["direction"], source, target


def _on_cpu(record: Record, rows: Rows) -> pd.DataFrame:
    """Return what the CPU did: the call that launched each copy, and its waits for the copy."""
    trace, (ts, end) = record.trace, record.trace.index.uncut
    launch_of = trace.index.column("launch")
    launch = launch_of[rows]
    waited = waits(record)
    waited = waited[waited["copy"] >= 0]
    copy, wait = waited["copy"].to_numpy(np.intp), waited["dur_ns"].to_numpy(np.int64)
    later = waited["row"].to_numpy() != launch_of[copy]
    columns = {
        "launch": launch,
        "launch_name": trace.index.names_of(launch),
        "call_ns": take(end - ts, launch, 0),
        "wait_ns": group_sums(copy[later], wait[later], len(trace))[rows],
        "blocking": np.isin(rows, copy),
    }
    return pd.DataFrame(columns)


def _grouped(table: pd.DataFrame, keys: tuple[str, ...]) -> pd.DataFrame:
    groups, first = group_rows({key: table[key] for key in keys})
    length = len(first)
    size, dur = table["bytes"].to_numpy(), table["dur_ns"].to_numpy()
    known = size >= 0
    total_bytes = group_sums(groups[known], size[known], length)
    total_ns = group_sums(groups[known], dur[known], length)
    columns = {
        "copies": np.bincount(groups, minlength=length),
        "bytes": np.where(np.bincount(groups[known], minlength=length) > 0, total_bytes, -1),
        "dur_ns": group_sums(groups, dur, length),
        "bytes_per_s": np.where(total_ns > 0, total_bytes * 1e9 / np.maximum(total_ns, 1), np.nan),
        **{key: group_sums(groups, table[key], length) for key in ("call_ns", "wait_ns")},
        "blocking": group_sums(groups, table["blocking"], length),
        "needless": group_sums(groups, table["needless"] != "", length),
        "sizes": different(groups, size, length),
    }
    labels = table.loc[first, list(keys)].reset_index(drop=True)
    grouped = pd.concat([labels, pd.DataFrame(columns)], axis=1)
    return grouped.sort_values("dur_ns", ascending=False, kind="stable", ignore_index=True)


@remembered
def copy_bandwidth(record: Record) -> pd.DataFrame:
    """One row per change of a device's bandwidth in one direction, by device, direction and time.

    Formula: the sum of ``bytes / duration`` over all copies that run at that time. Copies of
    unknown size or without duration are left out.

    Columns:

    - ``device``, ``direction``: see `copies`.
    - ``ts_ns``: time of the change.
    - ``bytes_per_s``: from then on.
    - ``copies``: how many run from then on.

    Source: HTA's ``get_memory_bw_time_series``. It counts memsets as well, gives copies without
    duration one microsecond, and adds up the rounded ``memory bandwidth`` of the file, so that the
    sum between two copies is not quite 0.
    """
    table = copies(record)
    known = table[table["bytes_per_s"].notna() & (table["dur_ns"] > 0)] if len(table) else table
    if not len(known):
        why = why_empty(table) or "the trace has no copies of known size and time."
        return empty_table(BANDWIDTH_COLUMNS, why)
    start = known["start_ns"].to_numpy()
    ts = np.concatenate([start, start + known["dur_ns"].to_numpy()])
    rate = known["bytes_per_s"].to_numpy()
    direction, words = pd.factorize(known["direction"].to_numpy(object), sort=True)
    device, direction = np.tile(known["device"].to_numpy(), 2), np.tile(direction, 2)
    order = np.lexsort((ts, direction, device))
    device, direction, ts = device[order], direction[order], ts[order]
    copies_now = np.cumsum(np.repeat([1, -1], len(known))[order])
    rate_now = np.cumsum(np.concatenate([rate, -rate])[order])
    line_ends = (np.diff(device) != 0) | (np.diff(direction) != 0)
    last = np.append(line_ends | (np.diff(ts) != 0), True)
    columns = {
        "device": device,
        "direction": np.asarray(words, object)[direction],
        "ts_ns": ts,
        "bytes_per_s": np.where(copies_now > 0, rate_now, 0.0),
        "copies": copies_now,
    }
    return pd.DataFrame({key: values[last] for key, values in columns.items()})


def _there_and_back(record: Record, table: pd.DataFrame) -> Mask:
    """Return which copies are one of two in a row of equal size and opposite direction.

    Data that comes to the GPU and leaves it again was of no use there if no kernel ran in between.
    Data that leaves it and comes back may have been changed by the CPU: the round trip is needless.
    A copy in a new step or batch brings something else, whatever its size, and so does one on
    another stream that was sent before the first had arrived.
    """
    at = np.flatnonzero(table["direction"].isin(["HtoD", "DtoH"]).to_numpy(bool))
    device, direction, size, start = (
        table[key].to_numpy() for key in ("device", "direction", "bytes", "start_ns")
    )
    at = at[np.argsort(device[at], kind="stable")]
    first, second = at[:-1], at[1:]
    is_pair = (device[first] == device[second]) & (direction[first] != direction[second])
    is_pair &= (size[first] == size[second]) & (size[first] >= SMALLEST)
    first, second = first[is_pair], second[is_pair]
    comes_back = direction[first] == "DtoH"
    loading = record.trace.index.ts[is_dataloader(record.trace)]
    batches = np.sort(np.concatenate([steps(record)["start_ns"].to_numpy(np.int64), loading]))
    before, after = (np.searchsorted(batches, start[copy], "right") for copy in (first, second))
    comes_back &= before == after
    call = table["launch"].to_numpy(np.intp)[second]
    launched = take(record.trace.index.ts, call, np.iinfo(np.int64).max)  # late, if it is unknown
    arrived = start[first] + table["dur_ns"].to_numpy(np.int64)[first]
    stream = table["stream"].to_numpy()
    comes_back &= (stream[first] == stream[second]) | (launched >= arrived)
    unused = direction[first] == "HtoD"
    kernels = counted_gpu_rows(record.trace, "kernel")
    for number in np.unique(device[first]):
        here = device[first] == number
        busy = open_times(record.trace, kernels[record.trace.index.device[kernels] == number])
        unused[here] &= intervals.overlap((start[first[here]], start[second[here]]), busy) == 0
    result = np.zeros(len(table), bool)
    for copy in (first, second):
        result[copy[comes_back | unused]] = True
    return result


def _in_every_step(record: Record, table: pd.DataFrame) -> Mask:
    """Return which copies to the GPU within a module, of one size and place, are in every step.

    A batch comes from outside of modules, and where it does not, its size or place differ.
    """
    marked = steps(record)
    to_gpu = (table["direction"] == "HtoD").to_numpy(bool) & (table["module"] != "").to_numpy(bool)
    at = np.flatnonzero(to_gpu & (table["bytes"] >= 0).to_numpy(bool))
    result = np.zeros(len(table), bool)
    if len(marked) < STEPS or not len(at):
        return result
    called = take(record.trace.index.ts, table["launch"].to_numpy()[at])
    step = np.searchsorted(marked["start_ns"].to_numpy(), called, side="right") - 1
    step[called >= marked["end_ns"].to_numpy()[np.maximum(step, 0)]] = -1
    groups, first = group_rows({key: table[key].iloc[at] for key in SAME_ORIGIN})
    step_count = different(groups[step >= 0], step[step >= 0], len(first))
    result[at] = (step_count == len(marked))[groups]
    return result
