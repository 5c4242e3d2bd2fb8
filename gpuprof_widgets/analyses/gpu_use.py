"""Use of each GPU: the figures of the TensorBoard plugin's GPU summary, and their curves."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd

from gpuprof_widgets.analyses.gpu_work import busy_intervals
from gpuprof_widgets.analyses.kernels import blocks_per_sm, counted_gpu_rows, occupancy
from gpuprof_widgets.analyses.reasons import lacking
from gpuprof_widgets.analyses.regions import steps
from gpuprof_widgets.analyses.remembered import remembered
from gpuprof_widgets.analyses.tensor_cores import on_tensor_cores
from gpuprof_widgets.trace import intervals
from gpuprof_widgets.trace.arrays import Floats, Ints, Rows
from gpuprof_widgets.trace.intervals import Intervals
from gpuprof_widgets.trace.model import Record, Trace

COLUMNS = (
    *("device", "device_name", "memory_bytes", "compute_capability", "span_ns", "kernel_ns"),
    *("utilisation", "sm_efficiency", "occupancy", "tensor_core_share"),
)
CURVE_COLUMNS = ("device", "name", "ts_ns", "value")
UTILISATION, SM_EFFICIENCY = "utilisation", "sm_efficiency"
MOST_BUCKETS = 100
SHORTEST_BUCKET_NS = 1_000


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
    trace, rows = record.trace, _kernel_rows(record.trace)
    if not len(rows):
        return lacking(COLUMNS, "the trace has no kernels: there is no use of a GPU to sum up")
    marked = steps(record)
    t0 = int(marked["start_ns"].min()) if len(marked) else trace.start_ns
    t1 = int(marked["end_ns"].max()) if len(marked) else trace.end_ns
    kernels = _kernels_within(record, rows, t0, t1)
    table = [
        _device_properties(record, int(str(device))) | _figures(on_device, t0, t1)
        for device, on_device in kernels.groupby("device")
    ]
    return pd.DataFrame(table, columns=list(COLUMNS))


def _kernel_rows(trace: Trace) -> Rows:
    rows = counted_gpu_rows(trace)
    return rows[trace.index.in_category("kernel")[rows]]


def _kernels_within(record: Record, rows: Rows, t0: int, t1: int) -> pd.DataFrame:
    """Return start, end, device and geometry of the kernels, cut to [t0, t1)."""
    index, names = record.trace.index, record.trace.slices["name"].cat
    columns = {
        "device": index.device[rows],
        "start_ns": np.clip(index.ts[rows], t0, t1),
        "end_ns": np.clip(index.end[rows], t0, t1),
        "tensor_cores": on_tensor_cores(names.categories)[names.codes.to_numpy()[rows]],
        "blocks_per_sm": blocks_per_sm(rows, record),
        "occupancy": occupancy(rows, record.trace),
    }
    return pd.DataFrame(columns)


def _device_properties(record: Record, device: int) -> dict[str, Any]:
    listed = [d for d in record.metadata.get("deviceProperties") or [] if isinstance(d, dict)]
    properties = next((d for d in listed if d.get("id") == device), {})
    major, minor = properties.get("computeMajor"), properties.get("computeMinor")
    return {
        "device": device,
        "device_name": str(properties.get("name", "")),
        "memory_bytes": int(properties.get("totalGlobalMem") or -1),
        "compute_capability": "" if major is None else f"{major}.{minor}",
    }


def _figures(kernels: pd.DataFrame, t0: int, t1: int) -> dict[str, float]:
    start, end = kernels["start_ns"].to_numpy(), kernels["end_ns"].to_numpy()
    span, dur = t1 - t0, end - start
    busy, total = intervals.length(intervals.union(start, end)), int(dur.sum())
    known = kernels["occupancy"].notna().to_numpy(bool) & (dur > 0)
    reached = kernels["occupancy"][known]
    on_tensor_cores_ns = dur[kernels["tensor_cores"].to_numpy(bool)].sum()
    return {
        "span_ns": span,
        "kernel_ns": busy,
        "utilisation": busy / span if span else 0.0,
        "sm_efficiency": _mean_sms_at_work((start, end), kernels["blocks_per_sm"].to_numpy(), span),
        "occupancy": np.average(reached, weights=dur[known]) if known.any() else np.nan,
        "tensor_core_share": on_tensor_cores_ns / total if total else np.nan,
    }


def _mean_sms_at_work(ran: Intervals, blocks: Floats, span: int) -> float:
    """Return the mean share of SMs at work over the span; NaN if no kernel's blocks are known."""
    if np.isnan(blocks).all() or not span:
        return np.nan
    ts, value = sms_at_work(ran, blocks)
    return float((value[:-1] * np.diff(ts)).sum() / span)


@remembered
def gpu_curves(record: Record) -> pd.DataFrame:
    """One row per change of a GPU's utilisation or estimated SM efficiency, by device and time.

    Columns: ``device``, ``name`` ("utilisation": the share of a bucket in which a kernel ran;
    "sm_efficiency": blocks per SM of the kernels that run, added up, at most 1), ``ts_ns``,
    ``value`` (of one, from then on). As in the TensorBoard plugin a bucket lasts a power of ten of
    a microsecond, at most a hundred of them fit in the trace, and the last takes what remains.
    """
    trace, rows = record.trace, _kernel_rows(record.trace)
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


def _utilisation(trace: Trace, device: int) -> tuple[Ints, Floats]:
    """Return the start of each bucket, and the share of it in which a kernel ran."""
    size = SHORTEST_BUCKET_NS
    while trace.span_ns > MOST_BUCKETS * size:
        size *= 10
    start = trace.start_ns + size * np.arange(max(trace.span_ns // size, 1))
    end = np.append(start[1:], trace.end_ns)
    covered = intervals.overlap((start, end), busy_intervals(trace, device, "kernel"))
    share = covered / np.maximum(end - start, 1)
    return np.append(start, trace.end_ns), np.append(share, 0.0)


def _efficiency(record: Record, rows: Rows) -> tuple[Ints, Floats]:
    index = record.trace.index
    return sms_at_work((index.ts[rows], index.end[rows]), blocks_per_sm(rows, record))
