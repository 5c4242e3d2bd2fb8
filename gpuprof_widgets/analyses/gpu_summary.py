"""How well each GPU was used, in the figures of the TensorBoard plugin's GPU summary."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from gpuprof_widgets.analyses.gpu_curves import sms_at_work
from gpuprof_widgets.analyses.kernels import counted_gpu_rows
from gpuprof_widgets.analyses.lacking import lacking
from gpuprof_widgets.analyses.launch_geometry import blocks_per_sm, occupancy
from gpuprof_widgets.analyses.steps import steps
from gpuprof_widgets.analyses.tensor_cores import on_tensor_cores
from gpuprof_widgets.trace import intervals
from gpuprof_widgets.trace.intervals import Intervals
from gpuprof_widgets.trace.model import Record

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
