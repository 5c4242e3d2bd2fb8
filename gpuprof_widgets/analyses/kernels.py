"""The kernel table: every kernel, copy and memset by name."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pandas as pd

from gpuprof_widgets.analyses import intervals
from gpuprof_widgets.analyses.op_rows import gpu_rows
from gpuprof_widgets.trace.model import Record, Trace


def kernels(record: Record) -> pd.DataFrame:
    """One row per kernel, copy and memset by name, the longest in total first.

    Columns (ns): ``name``, ``category``, ``calls``, ``total_ns``, ``average_ns``, ``min_ns``,
    ``max_ns``, ``covered_ns`` (time in which at least one of them ran, per device) and ``share``
    (covered time as a share of the time the devices were busy: never over one, where streams
    overlap the sum of all shares may be).
    """
    trace = record.trace
    rows = gpu_rows(trace)
    slices = trace.slices
    start, dur = slices["ts"].to_numpy()[rows], slices["dur"].to_numpy()[rows]
    devices, device = np.unique(device_of(trace, rows), return_inverse=True)
    groups, labels = _groups(trace, rows)
    table = _statistics(groups, dur, slices["count"].to_numpy()[rows], len(labels))
    pairs, pair = np.unique(np.stack([groups, device]), axis=1, return_inverse=True)
    length = intervals.length_by(pair.reshape(-1), start, start + dur, pairs.shape[1])
    covered = np.zeros(len(labels), np.int64)
    np.add.at(covered, pairs[0], length)
    busy = intervals.length_by(device, start, start + dur, len(devices))
    table = pd.concat([labels, table], axis=1).assign(covered_ns=covered)
    table["share"] = covered / max(int(busy.sum()), 1)
    return table.sort_values("total_ns", ascending=False, kind="stable", ignore_index=True)


def device_of(trace: Trace, rows: npt.NDArray[np.intp]) -> npt.NDArray[np.int32]:
    """GPU index of each of these slices."""
    device = trace.tracks["device"].to_numpy()
    return np.asarray(device[trace.slices["track"].to_numpy()[rows]], np.int32)


def _groups(trace: Trace, rows: npt.NDArray[np.intp]) -> tuple[npt.NDArray[np.intp], pd.DataFrame]:
    """Per row its group, and name and category of each group."""
    name, category = trace.slices["name"].cat, trace.slices["category"].cat
    key = name.codes.to_numpy()[rows].astype(np.int64) * len(category.categories)
    key += category.codes.to_numpy()[rows]
    _, first, groups = np.unique(key, return_index=True, return_inverse=True)
    labels = trace.slices.loc[rows[first], ["name", "category"]].astype(object)
    return groups.reshape(-1), labels.reset_index(drop=True)


def _statistics(
    groups: npt.NDArray[np.intp],
    dur: npt.NDArray[np.int64],
    count: npt.NDArray[np.int32],
    length: int,
) -> pd.DataFrame:
    calls, total, longest = (np.zeros(length, np.int64) for _ in range(3))
    shortest = np.full(length, np.iinfo(np.int64).max)
    np.add.at(calls, groups, count)
    np.add.at(total, groups, dur)
    np.minimum.at(shortest, groups, dur)
    np.maximum.at(longest, groups, dur)
    columns = {
        "calls": calls,
        "total_ns": total,
        "average_ns": total / np.maximum(calls, 1),
        "min_ns": shortest,
        "max_ns": longest,
    }
    return pd.DataFrame(columns)
