"""Kernels, copies and memsets by name, launch geometry or kind; and how well they used each GPU.

`kernels` groups the GPU slices; `launching_op` finds the op behind each, and `launch_geometry` how
it was launched (grid, block, registers, occupancy). `gpu_summary` and `gpu_curves` are the figures
of the TensorBoard plugin's GPU summary.
"""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from gpuprof_widgets.analyses.columns import (
    different,
    durations_by_group,
    group_rows,
    most_of,
    weighted_mean,
)
from gpuprof_widgets.analyses.gpu_work import KINDS, busy_intervals, kind_codes
from gpuprof_widgets.analyses.operators import arg_numbers
from gpuprof_widgets.analyses.owners import captured_calls, graph_launches
from gpuprof_widgets.analyses.reasons import empty_table, says_if_empty
from gpuprof_widgets.analyses.regions import steps
from gpuprof_widgets.analyses.remembered import remembered
from gpuprof_widgets.analyses.tensor_cores import are_eligible, on_tensor_cores
from gpuprof_widgets.exceptions import OptionError
from gpuprof_widgets.trace import intervals
from gpuprof_widgets.trace.arrays import Codes, Floats, Ints, Rows
from gpuprof_widgets.trace.index import take
from gpuprof_widgets.trace.intervals import Intervals
from gpuprof_widgets.trace.model import Record, Trace
from gpuprof_widgets.trace.schema import NONE

GROUPINGS = {
    "name": ("name", "category"),
    "geometry": (*("name", "category", "op_name", "grid", "block", "registers", "shared_memory"),),
    "kind": ("kind",),
}
"""What `kernels` can group by, and the columns that are equal within a group."""

GPU_COLUMNS = (
    *("device", "device_name", "memory_bytes", "compute_capability", "span_ns", "kernel_ns"),
    *("utilisation", "sm_efficiency", "occupancy", "tensor_core_share"),
)
CURVE_COLUMNS = ("device", "name", "ts_ns", "value")
UTILISATION, SM_EFFICIENCY = "utilisation", "sm_efficiency"
MOST_BUCKETS = 100
SHORTEST_BUCKET_NS = 1_000

REGISTERS, SHARED_MEMORY = "registers per thread", "shared memory"
BLOCKS_PER_SM, OCCUPANCY = "blocks per SM", "est. achieved occupancy %"


@says_if_empty("the trace has no GPU work: neither kernels nor copies")
def kernels(record: Record, *, by: str = "name") -> pd.DataFrame:
    """One row per kernel, copy and memset by name, the longest in total first.

    Options:

    - ``by``: "name"; "geometry" (by name, op, grid, block, registers and shared memory); "kind".

    Columns:

    - ``name``, ``category``: the name, and Kineto's category.
    - ``kind``: "compute", "communication", "copy" or "memset".
    - ``calls``: how often it ran.
    - ``total_ns``, ``average_ns``, ``min_ns``, ``max_ns``, ``p50_ns``, ``p90_ns``, ``p99_ns``,
      ``std_ns``: sum, mean, extremes, percentiles and standard deviation of the durations.
    - ``covered_ns``: time in which at least one of them ran, per device.
    - ``share``: ``covered_ns`` divided by the time in which the devices were busy. It is never over
      one, but where streams overlap the shares may add up to more than one.
    - ``op_name``: the op that launched most of the time; "" if no op is known.
    - ``ops``: number of different ops that launched it.
    - ``eligible_share``: share of its time launched by ops whose work tensor cores can do.
    - ``grid``, ``block``: "x, y, z"; "" where calls differ.
    - ``registers``: per thread, the largest; -1: unknown.
    - ``shared_memory``: bytes per block, the largest; -1: unknown.
    - ``blocks_per_sm``: mean, weighted by duration; NaN: unknown.
    - ``occupancy``: Kineto's estimate, mean weighted by duration; NaN: unknown.
    - ``tensor_cores``: whether it uses tensor cores, by its name: as in the TensorBoard plugin,
      with flash attention and the kernels of Hopper and AMD's GPUs added.

    Source: the kernel view of PyTorch's TensorBoard plugin. Unlike there, means leave out calls
    with unknown values, which the plugin takes for 0. HTA adds up the shares of sums, which exceed
    100 % where streams overlap.
    """
    if by not in GROUPINGS:
        raise OptionError(f"kernels are grouped by {', '.join(GROUPINGS)}, not by {by!r}")
    trace = record.trace
    rows = counted_gpu_rows(trace)
    slices = _slices(record, rows)
    groups, first = group_rows({key: slices[key] for key in GROUPINGS[by]})
    labels = slices.loc[first, ["name", "category", "kind"]].reset_index(drop=True)
    if by == "kind":
        labels = labels.assign(name=labels["kind"], category="")
    table = pd.concat(
        [
            labels.astype(object),
            durations_by_group(groups, slices["dur_ns"].to_numpy(), len(first)),
            _covered(trace, rows, groups, len(first)),
            _ops(slices, groups, len(first)),
            _geometry(slices, groups, first),
        ],
        axis=1,
    )
    return table.sort_values("total_ns", ascending=False, kind="stable", ignore_index=True)


def counted_gpu_rows(trace: Trace, *categories: str) -> Rows:
    """Return the GPU slices of these categories, else of all, that began in the trace or window."""
    index = trace.index
    wanted = index.in_category(*categories) if categories else index.is_gpu
    return np.flatnonzero(wanted & (index.column("count") > 0))


def _slices(record: Record, rows: Rows) -> pd.DataFrame:
    """Return name, category, kind, duration, op and launch geometry of each GPU slice.

    Texts are categorical; ``op_name`` is missing where no op is known.
    """
    trace = record.trace
    names = trace.slices["name"].array
    columns = {
        "name": names.take(rows),
        "category": trace.slices["category"].array.take(rows),
        "kind": pd.Categorical(KINDS).take(kind_codes(trace)[rows]),
        "dur_ns": trace.index.dur[rows],
        "op_name": names.take(launching_op(trace)[rows], allow_fill=True),
    }
    return pd.DataFrame(columns).join(launch_geometry(rows, record))


@remembered
def launching_op(trace: Trace) -> Codes:
    """Return per slice the innermost op (no annotation) that launched it; -1 for none.

    For the work of a graph that is the captured op, where the trace holds it; where the replaying
    call is in no op, it is that call.
    """
    op, launch = trace.index.column("op"), trace.index.column("launch")
    inner = trace.index.op_around
    replay = np.where(take(graph_launches(trace), launch, False), launch, NONE)
    captured = take(inner, take(op, captured_calls(trace)))
    owner = np.where(captured >= 0, captured, take(inner, op))
    return np.where(owner >= 0, owner, replay).astype(np.int32)


def _covered(trace: Trace, rows: Rows, groups: Rows, length: int) -> pd.DataFrame:
    """Return the time that each group covers, added up over devices, and its share."""
    start, end = trace.index.ts[rows], trace.index.end[rows]
    devices, device = np.unique(trace.index.device[rows], return_inverse=True)
    count = max(len(devices), 1)
    covered = intervals.length_by(groups * count + device, start, end, length * count)
    covered = covered.reshape(length, count).sum(axis=1)
    busy = int(intervals.length_by(device, start, end, len(devices)).sum())
    return pd.DataFrame({"covered_ns": covered, "share": covered / max(busy, 1)})


def _ops(slices: pd.DataFrame, groups: Rows, length: int) -> pd.DataFrame:
    dur = slices["dur_ns"].to_numpy()
    total = np.bincount(groups, dur, minlength=length)
    known = (slices["op_name"].notna() & (slices["op_name"] != "")).to_numpy()
    groups, dur = groups[known], dur[known]
    code, names = pd.factorize(slices["op_name"][known])
    can_use_them = are_eligible(names)[code]
    eligible = np.bincount(groups[can_use_them], dur[can_use_them], minlength=length)
    columns = {
        "op_name": np.append(np.asarray(names, object), "")[most_of(groups, code, dur, length)],
        "ops": different(groups, code, length),
        "eligible_share": eligible / np.maximum(total, 1),
    }
    return pd.DataFrame(columns)


def _geometry(slices: pd.DataFrame, groups: Rows, first: Rows) -> pd.DataFrame:
    length, dur = len(first), slices["dur_ns"].to_numpy()
    columns: dict[str, npt.ArrayLike] = {}
    for key in ("grid", "block"):
        is_same = different(groups, pd.factorize(slices[key])[0], length) == 1
        columns[key] = np.where(is_same, slices[key].iloc[first].to_numpy(object), "")
    for key in ("registers", "shared_memory"):
        largest = np.full(length, -1, np.int64)
        np.maximum.at(largest, groups, slices[key].to_numpy())
        columns[key] = largest
    for key in ("blocks_per_sm", "occupancy"):
        columns[key] = weighted_mean(groups, slices[key].to_numpy(), dur, length)
    code, names = pd.factorize(slices["name"])
    used = on_tensor_cores(names)[code] & (slices["category"] == "kernel").to_numpy(bool)
    columns["tensor_cores"] = np.bincount(groups[used], minlength=length) > 0
    return pd.DataFrame(columns)


def launch_geometry(rows: Rows, record: Record) -> pd.DataFrame:
    """Return how each GPU slice was launched, in the order of ``rows``, as Kineto wrote it.

    Columns as in `kernels`; ``grid`` and ``block`` are categorical. For traces with grids but no
    blocks per SM (AMD), these are the grid's blocks over the device's SMs, as Kineto counts them.
    """
    trace = record.trace
    columns = {
        "grid": _texts(trace, "grid", rows),
        "block": _texts(trace, "block", rows),
        "registers": arg_numbers(trace, REGISTERS, rows, -1),
        "shared_memory": arg_numbers(trace, SHARED_MEMORY, rows, -1),
        "blocks_per_sm": blocks_per_sm(rows, record),
        "occupancy": occupancy(rows, trace),
    }
    return pd.DataFrame(columns)


def numbers(trace: Trace, key: str, rows: Rows) -> Floats:
    """Return an arg of these slices as numbers; NaN where a slice has none."""
    if key not in trace.args:
        return np.full(len(rows), np.nan)
    return pd.to_numeric(trace.args[key].reindex(rows), errors="coerce").to_numpy(np.float64)


def occupancy(rows: Rows, trace: Trace) -> Floats:
    """Return Kineto's estimate of each GPU slice's occupancy, of one; NaN if unknown."""
    return _not_negative(numbers(trace, OCCUPANCY, rows)) / 100


def blocks_per_sm(rows: Rows, record: Record) -> Floats:
    """Return the blocks per SM of each GPU slice, recorded or from its grid; NaN if unknown."""
    result = _not_negative(numbers(record.trace, BLOCKS_PER_SM, rows))
    sms = {id_: gpu.get("numSms") for id_, gpu in _properties_by_id(record).items()}
    known = {id_: count for id_, count in sms.items() if isinstance(count, int) and count}
    missing = np.flatnonzero(np.isnan(result))
    count = pd.Series(record.trace.index.device[rows[missing]]).map(known).to_numpy(np.float64)
    place, grids = record.trace.index.arg("grid")
    blocks = np.array([*map(_blocks, grids), np.nan])
    result[missing] = blocks[place[rows[missing]]] / count
    return result


def _blocks(grid: Any) -> float:
    is_grid = isinstance(grid, list) and grid and all(isinstance(size, int) for size in grid)
    return float(prod(grid)) if is_grid else np.nan


def _properties_by_id(record: Record) -> dict[Any, dict[str, Any]]:
    """Return what Kineto wrote of each GPU, by its index; of two with one index the first."""
    listed = record.metadata.get("deviceProperties") or []
    return {gpu.get("id"): gpu for gpu in reversed(listed) if isinstance(gpu, dict)}


def _not_negative(values: Floats) -> Floats:
    """Return NaN for negative values, which some versions of Kineto wrote without a meaning."""
    return np.where(values >= 0, values, np.nan)


def _texts(trace: Trace, key: str, rows: Rows) -> pd.Categorical[str]:
    """Return an arg's lists of sizes as "x, y, z"."""
    place, values = trace.index.arg(key)
    texts = [", ".join(map(str, sizes)) if isinstance(sizes, list) else "" for sizes in values]
    return pd.Categorical([*texts, ""]).take(place[rows])


def gpu_summary(record: Record) -> pd.DataFrame:
    """One row per GPU that ran kernels, by index.

    The span is from the start of the first step to the end of the last, or the whole trace if it
    has no steps.

    Formula: ``utilisation`` = time in which at least one kernel ran / span. ``sm_efficiency`` =
    mean over the span of min(1, sum of the blocks per SM of the kernels that run).

    Columns:

    - ``device``, ``device_name``: index and name; "" if the file does not say it.
    - ``memory_bytes``: the GPU's memory; -1 if the file does not say it.
    - ``compute_capability``: "8.0"; "" if the file does not say it.
    - ``span_ns``: see above.
    - ``kernel_ns``: time in which at least one kernel ran.
    - ``utilisation``: ``kernel_ns`` / ``span_ns``.
    - ``sm_efficiency``: estimated share of SMs at work; NaN: unknown.
    - ``occupancy``: Kineto's estimate, mean weighted by duration; NaN: unknown.
    - ``tensor_core_share``: share of the kernels' time in kernels that use tensor cores, by their
      names (see `kernels`).

    Source: PyTorch's TensorBoard plugin. Its tensor core share is that of the whole trace and its
    other figures are those of the steps; here all are of the same span.
    """
    trace, rows = record.trace, counted_gpu_rows(record.trace, "kernel")
    if not len(rows):
        why = "the trace has no kernels: there is no use of a GPU to sum up"
        return empty_table(GPU_COLUMNS, why)
    t0, t1, marked = trace.start_ns, trace.end_ns, steps(record)
    if len(marked):
        t0, t1 = int(marked["start_ns"].min()), int(marked["end_ns"].max())
    device = trace.index.device[rows]
    table = [
        _device_properties(record, number) | _figures(record, rows[device == number], t0, t1)
        for number in np.unique(device).tolist()
    ]
    return pd.DataFrame(table, columns=list(GPU_COLUMNS))


def _device_properties(record: Record, device: int) -> dict[str, Any]:
    properties = _properties_by_id(record).get(device, {})
    major, minor = properties.get("computeMajor"), properties.get("computeMinor")
    return {
        "device": device,
        "device_name": str(properties.get("name", "")),
        "memory_bytes": int(properties.get("totalGlobalMem") or -1),
        "compute_capability": "" if major is None else f"{major}.{minor}",
    }


def _figures(record: Record, rows: Rows, t0: int, t1: int) -> dict[str, float]:
    """Return what these kernels of a GPU did within [t0, t1)."""
    index, span = record.trace.index, t1 - t0
    start, end = np.clip(index.ts[rows], t0, t1), np.clip(index.end[rows], t0, t1)
    dur = end - start
    busy, total = intervals.length(intervals.union(start, end)), int(dur.sum())
    blocks, reached = blocks_per_sm(rows, record), occupancy(rows, record.trace)
    at_work: float = np.nan
    if span and not np.isnan(blocks).all():
        ts, value = sms_at_work((start, end), blocks)
        at_work = float((value[:-1] * np.diff(ts)).sum() / span)
    known = ~np.isnan(reached) & (dur > 0)
    on_tensor_cores_ns = dur[on_tensor_cores(pd.Index(index.names))[index.name[rows]]].sum()
    return {
        "span_ns": span,
        "kernel_ns": busy,
        "utilisation": busy / span if span else 0.0,
        "sm_efficiency": at_work,
        "occupancy": np.average(reached[known], weights=dur[known]) if known.any() else np.nan,
        "tensor_core_share": on_tensor_cores_ns / total if total else np.nan,
    }


@remembered
def gpu_curves(record: Record) -> pd.DataFrame:
    """One row per change of a GPU's utilisation or estimated SM efficiency, by device and time.

    Columns: ``device``, ``name`` ("utilisation": the share of a bucket in which a kernel ran;
    "sm_efficiency": blocks per SM of the kernels that run, added up, at most 1), ``ts_ns``,
    ``value`` (of one, from then on). As in the TensorBoard plugin a bucket lasts a power of ten of
    a microsecond, at most a hundred of them fit in the trace, and the last takes what remains.
    """
    trace, rows = record.trace, counted_gpu_rows(record.trace, "kernel")
    if not len(rows):
        why = "the trace has no kernels: there is no use of a GPU to draw"
        return empty_table(CURVE_COLUMNS, why)
    index, tables = trace.index, []
    size = SHORTEST_BUCKET_NS
    while trace.span_ns > MOST_BUCKETS * size:
        size *= 10
    start = trace.start_ns + size * np.arange(max(trace.span_ns // size, 1))
    end = np.append(start[1:], trace.end_ns)
    for device in np.unique(index.device[rows]).tolist():
        covered = intervals.overlap((start, end), busy_intervals(trace, device, "kernel"))
        share = np.append(covered / np.maximum(end - start, 1), 0.0)
        on_device = rows[index.device[rows] == device]
        ran = index.ts[on_device], index.end[on_device]
        curves = {
            UTILISATION: (np.append(start, trace.end_ns), share),
            SM_EFFICIENCY: sms_at_work(ran, blocks_per_sm(on_device, record)),
        }
        tables += [
            pd.DataFrame({"device": device, "name": name, "ts_ns": ts, "value": value})
            for name, (ts, value) in curves.items()
        ]
    return pd.concat(tables, ignore_index=True)[list(CURVE_COLUMNS)]


def sms_at_work(ran: Intervals, blocks: Floats) -> tuple[Ints, Floats]:
    """Return moments of change, and from each on the running kernels' blocks per SM, at most 1.

    ``blocks``: those per SM of each kernel; a kernel with NaN does not count.
    """
    known = ~np.isnan(blocks)
    times = np.concatenate([ran[0][known], ran[1][known]])
    change = np.concatenate([blocks[known], -blocks[known]])
    order = np.argsort(times, kind="stable")
    last = np.append(np.diff(times[order]) != 0, True)[: len(order)]
    value = np.clip(np.cumsum(change[order]), 0.0, 1.0)
    value[-1:] = 0.0  # sums of floats do not end at 0 exactly
    return times[order][last], value[last]
