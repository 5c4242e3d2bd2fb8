"""How well each GPU was used, in the figures of the TensorBoard plugin's GPU summary."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from gpuprof_widgets.analyses.gpu_work import busy_intervals
from gpuprof_widgets.analyses.kernels import blocks_per_sm, counted_gpu_rows, occupancy
from gpuprof_widgets.analyses.reasons import lacking
from gpuprof_widgets.analyses.regions import steps
from gpuprof_widgets.analyses.remembered import remembered
from gpuprof_widgets.analyses.tensor_cores import on_tensor_cores
from gpuprof_widgets.trace import intervals
from gpuprof_widgets.trace.intervals import Intervals
from gpuprof_widgets.trace.model import Record, Trace

COLUMNS = (
    *("device", "device_name", "memory_bytes", "compute_capability", "span_ns", "kernel_ns"),
    *("utilisation", "sm_efficiency", "occupancy", "tensor_core_share"),
)


def gpu_summary(record: Record) -> pd.DataFrame:
    """One row per GPU that ran kernels, by index: the figures of the TensorBoard plugin.

    Columns: ``device``, ``device_name``, ``memory_bytes``, ``compute_capability`` ("8.0") as the
    file says ("" and -1 where it does not); ``span_ns``: from the start of the first step to the
    end of the last, or the whole trace where it has no steps; of that: ``kernel_ns`` (at least one
    kernel ran), ``utilisation`` (its share), ``sm_efficiency`` (the estimated share of SMs at work:
    blocks per SM of the kernels that run, added up, at most 1, over the span), ``occupancy`` (of
    one; Kineto's estimate, weighted by duration) and ``tensor_core_share`` (of the kernels' time,
    by their names; see `tensor_cores`). NaN where the trace does not tell.

    The plugin's tensor core share is that of the whole trace, its others those of the steps; here
    all are of the same span.
    """
    trace = record.trace
    rows = counted_gpu_rows(trace)
    rows = rows[trace.index.in_category("kernel")[rows]]
    if not len(rows):
        return lacking(COLUMNS, "the trace has no kernels: there is no use of a GPU to sum up")
    marked = steps(record)
    t0 = int(marked["start_ns"].min()) if len(marked) else trace.start_ns
    t1 = int(marked["end_ns"].max()) if len(marked) else trace.end_ns
    each = _kernels_within(record, rows, t0, t1)
    table = [
        _described(record, device) | _figures(each[each["device"] == device], t0, t1)
        for device in each["device"].sort_values().unique().tolist()
    ]
    return pd.DataFrame(table, columns=list(COLUMNS))


def _kernels_within(record: Record, rows: npt.NDArray[np.intp], t0: int, t1: int) -> pd.DataFrame:
    """Start, end, device and layout of the kernels, cut to [t0, t1)."""
    slices = record.trace.slices
    ts, dur = slices["ts"].to_numpy()[rows], slices["dur"].to_numpy()[rows]
    names = slices["name"].cat
    columns = {
        "device": record.trace.index.device[rows],
        "start_ns": np.clip(ts, t0, t1),
        "end_ns": np.clip(ts + dur, t0, t1),
        "tensor_cores": on_tensor_cores(names.categories)[names.codes.to_numpy()[rows]],
        "blocks_per_sm": blocks_per_sm(rows, record),
        "occupancy": occupancy(rows, record.trace),
    }
    return pd.DataFrame(columns)


def _described(record: Record, device: int) -> dict[str, Any]:
    listed = [d for d in record.metadata.get("deviceProperties") or [] if isinstance(d, dict)]
    one = next((d for d in listed if d.get("id") == device), {})
    major, minor = one.get("computeMajor"), one.get("computeMinor")
    return {
        "device": device,
        "device_name": str(one.get("name", "")),
        "memory_bytes": int(one.get("totalGlobalMem") or -1),
        "compute_capability": "" if major is None else f"{major}.{minor}",
    }


def _figures(each: pd.DataFrame, t0: int, t1: int) -> dict[str, float]:
    start, end = each["start_ns"].to_numpy(), each["end_ns"].to_numpy()
    span, dur = t1 - t0, end - start
    busy = intervals.length(intervals.union(start, end))
    known = each["occupancy"].notna().to_numpy(bool) & (dur > 0)
    total = int(dur.sum())
    weights = dur[known]
    return {
        "span_ns": span,
        "kernel_ns": busy,
        "utilisation": busy / span if span else 0.0,
        "sm_efficiency": _sms_at_work((start, end), each["blocks_per_sm"].to_numpy(), span),
        "occupancy": np.average(each["occupancy"][known], weights=weights)
        if known.any()
        else np.nan,
        "tensor_core_share": dur[each["tensor_cores"].to_numpy(bool)].sum() / total
        if total
        else np.nan,
    }


def _sms_at_work(ran: Intervals, blocks: npt.NDArray[np.float64], span: int) -> float:
    """Mean over the span of the share of SMs at work; NaN where no kernel tells its blocks."""
    if np.isnan(blocks).all() or not span:
        return np.nan
    ts, value = sms_at_work(ran, blocks)
    return float((value[:-1] * np.diff(ts)).sum() / span)


CURVE_COLUMNS = ("device", "name", "ts_ns", "value")
UTILISATION, SM_EFFICIENCY = "utilisation", "sm_efficiency"
MOST_BUCKETS = 100
SHORTEST_BUCKET_NS = 1_000


@remembered
def gpu_curves(record: Record) -> pd.DataFrame:
    """One row per change of a GPU's utilisation or estimated SM efficiency, by device and time.

    Columns: ``device``, ``name`` ("utilisation": the share of a bucket in which a kernel ran;
    "sm_efficiency": blocks per SM of the kernels that run, added up, at most 1), ``ts_ns``,
    ``value`` (of one, from then on). As in the TensorBoard plugin a bucket lasts a power of ten of
    a microsecond, at most a hundred of them fit in the trace, and the last takes what remains.
    """
    trace = record.trace
    rows = counted_gpu_rows(trace)
    rows = rows[trace.index.in_category("kernel")[rows]]
    if not len(rows):
        return lacking(CURVE_COLUMNS, "the trace has no kernels: there is no use of a GPU to draw")
    device = trace.index.device[rows]
    tables = []
    for number in np.unique(device).tolist():
        curves = {
            UTILISATION: _utilisation(trace, number),
            SM_EFFICIENCY: _efficiency(record, rows[device == number]),
        }
        tables += [
            pd.DataFrame({"device": number, "name": name, "ts_ns": ts, "value": value})
            for name, (ts, value) in curves.items()
        ]
    return pd.concat(tables, ignore_index=True)[list(CURVE_COLUMNS)]


def sms_at_work(
    ran: Intervals, blocks: npt.NDArray[np.float64]
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.float64]]:
    """Moments of change, and from each on the running kernels' blocks per SM, at most 1.

    ``blocks``: of each kernel; those of which they are not known (NaN) do not count.
    """
    known = ~np.isnan(blocks)
    times = np.concatenate([ran[0][known], ran[1][known]])
    change = np.concatenate([blocks[known], -blocks[known]])
    order = np.argsort(times, kind="stable")
    last = np.append(np.diff(times[order]) != 0, True)[: len(order)]
    value = np.clip(np.cumsum(change[order]), 0.0, 1.0)
    value[-1:] = 0.0  # sums of floats do not end at it exactly
    return times[order][last], value[last]


def _utilisation(
    trace: Trace, device: int
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.float64]]:
    size = SHORTEST_BUCKET_NS
    while trace.span_ns > MOST_BUCKETS * size:
        size *= 10
    start = trace.start_ns + size * np.arange(max(trace.span_ns // size, 1))
    end = np.append(start[1:], trace.end_ns)
    covered = intervals.overlap((start, end), busy_intervals(trace, device, "kernel"))
    share = covered / np.maximum(end - start, 1)
    return np.append(start, trace.end_ns), np.append(share, 0.0)


def _efficiency(
    record: Record, rows: npt.NDArray[np.intp]
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.float64]]:
    ts, dur = (record.trace.slices[key].to_numpy()[rows] for key in ("ts", "dur"))
    return sms_at_work((ts, ts + dur), blocks_per_sm(rows, record))
