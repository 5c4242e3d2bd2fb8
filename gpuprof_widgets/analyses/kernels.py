"""The kernel table: every kernel, copy and memset by name, launch geometry or kind of work.

`kernels` groups the GPU slices; `launching_op` finds the op behind each, and `launch_geometry` how
it was launched (grid, block, registers, occupancy).
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
from gpuprof_widgets.analyses.gpu_work import KINDS, kind_codes
from gpuprof_widgets.analyses.owners import captured_calls, graph_launches
from gpuprof_widgets.analyses.reasons import says_if_empty
from gpuprof_widgets.analyses.remembered import remembered
from gpuprof_widgets.analyses.tensor_cores import are_eligible, on_tensor_cores
from gpuprof_widgets.exceptions import OptionError
from gpuprof_widgets.trace import intervals
from gpuprof_widgets.trace.arrays import Codes, Floats, Ints, Mask, Rows
from gpuprof_widgets.trace.model import Record, Trace
from gpuprof_widgets.trace.schema import NONE

GROUPINGS = {
    "name": ("name", "category"),
    "geometry": (*("name", "category", "op_name", "grid", "block", "registers", "shared_memory"),),
    "kind": ("kind",),
}
"""What `kernels` can group by, and the columns that are equal within a group."""

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
    table = pd.concat(
        [
            _labels(slices, groups, first, by),
            durations_by_group(groups, slices["dur_ns"].to_numpy(), len(first)),
            _covered(trace, rows, groups, len(first)),
            _ops(slices, groups, len(first)),
            _geometry(slices, groups, first),
        ],
        axis=1,
    )
    return table.sort_values("total_ns", ascending=False, kind="stable", ignore_index=True)


def counted_gpu_rows(trace: Trace) -> Rows:
    """Return the rows of kernels, copies and memsets that began in the trace or window."""
    rows = trace.index.gpu
    return rows[trace.slices["count"].to_numpy()[rows] > 0]


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
    inner = np.append(trace.index.op_around, NONE)
    replay = np.where(np.append(graph_launches(trace), False)[launch], launch, NONE)
    captured = inner[np.append(op, NONE)[captured_calls(trace)]]
    owner = np.where(captured >= 0, captured, inner[op])
    return np.where(owner >= 0, owner, replay).astype(np.int32)


def _labels(slices: pd.DataFrame, groups: Rows, first: Rows, by: str) -> pd.DataFrame:
    """Return name, category and kind of each group; "" for what differs within it."""
    labels = slices.loc[first, ["name", "category", "kind"]].reset_index(drop=True)
    if by == "kind":
        labels = labels.assign(name=labels["kind"], category="")
    return labels.astype(object)


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
    used = _on_tensor_cores(slices)
    columns["tensor_cores"] = np.bincount(groups[used], minlength=length) > 0
    return pd.DataFrame(columns)


def _on_tensor_cores(slices: pd.DataFrame) -> Mask:
    code, names = pd.factorize(slices["name"])
    is_kernel = (slices["category"] == "kernel").to_numpy(bool)
    return np.asarray(on_tensor_cores(names)[code] & is_kernel)


def launch_geometry(rows: Rows, record: Record) -> pd.DataFrame:
    """Return how each GPU slice was launched, in the order of ``rows``, as Kineto wrote it.

    Columns: ``grid``, ``block`` (categorical: "x, y, z"; "" where unknown), ``registers`` (per
    thread) and ``shared_memory`` (bytes per block), -1 where unknown; ``blocks_per_sm`` and
    ``occupancy`` (of one; Kineto's estimate of the achieved one), NaN where unknown. For traces
    with grids but no blocks per SM (AMD), these are the grid's blocks over the device's SMs, as
    Kineto counts them.
    """
    trace = record.trace
    columns = {
        "grid": _texts(trace, "grid", rows),
        "block": _texts(trace, "block", rows),
        "registers": _whole(trace, REGISTERS, rows),
        "shared_memory": _whole(trace, SHARED_MEMORY, rows),
        "blocks_per_sm": blocks_per_sm(rows, record),
        "occupancy": occupancy(rows, record.trace),
    }
    return pd.DataFrame(columns)


def numbers(trace: Trace, key: str, rows: Rows) -> Floats:
    """Return an arg of these slices as numbers; NaN where a slice has none."""
    values = trace.args.get(key)
    result = np.full(len(rows), np.nan)
    if values is not None:
        known = np.isin(rows, values.index.to_numpy())
        of_rows = values.reindex(rows[known])
        result[known] = pd.to_numeric(of_rows, errors="coerce").to_numpy(np.float64)
    return result


def occupancy(rows: Rows, trace: Trace) -> Floats:
    """Return Kineto's estimate of each GPU slice's occupancy, of one; NaN if unknown."""
    return _not_negative(numbers(trace, OCCUPANCY, rows)) / 100


def blocks_per_sm(rows: Rows, record: Record) -> Floats:
    """Return the blocks per SM of each GPU slice, recorded or from its grid; NaN if unknown."""
    result = _not_negative(numbers(record.trace, BLOCKS_PER_SM, rows))
    sms = _multiprocessors(record)
    grids = record.trace.args.get("grid")
    missing = np.flatnonzero(np.isnan(result))
    if grids is None or not sms or not len(missing):
        return result
    count = pd.Series(record.trace.index.device[rows[missing]]).map(sms).to_numpy(np.float64)
    blocks = grids.astype(object).reindex(rows[missing]).map(_blocks, na_action="ignore")
    result[missing] = blocks.to_numpy(np.float64) / count
    return result


def _multiprocessors(record: Record) -> dict[int, int]:
    """Return the number of SMs (AMD: compute units) of each device that the file describes."""
    listed = record.metadata.get("deviceProperties") or []
    counts = {gpu.get("id"): gpu.get("numSms") for gpu in listed if isinstance(gpu, dict)}
    return {int(d): n for d, n in counts.items() if isinstance(d, int) and isinstance(n, int) and n}


def _blocks(grid: Any) -> float:
    sizes = grid if isinstance(grid, list) else []
    whole = sizes and all(isinstance(size, int) for size in sizes)
    return float(prod(sizes)) if whole else np.nan


def _not_negative(values: Floats) -> Floats:
    """Return NaN for negative values, which some versions of Kineto wrote without a meaning."""
    return np.where(values >= 0, values, np.nan)


def _whole(trace: Trace, key: str, rows: Rows) -> Ints:
    values = numbers(trace, key, rows)
    return np.where(np.isnan(values), -1, np.nan_to_num(values)).astype(np.int64)


def _texts(trace: Trace, key: str, rows: Rows) -> pd.Categorical[str]:
    """Return an arg's lists of sizes as "x, y, z"."""
    place, values = trace.index.arg(key)
    texts = [", ".join(map(str, sizes)) if isinstance(sizes, list) else "" for sizes in values]
    return pd.Categorical([*texts, ""]).take(place[rows])
