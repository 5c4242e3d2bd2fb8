"""How busy each GPU was over time: the two counter tracks of the TensorBoard plugin."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pandas as pd

from gpuprof_widgets.analyses.device_busy import busy_intervals
from gpuprof_widgets.analyses.kernels import counted_gpu_rows
from gpuprof_widgets.analyses.lacking import lacking
from gpuprof_widgets.analyses.launch_geometry import blocks_per_sm
from gpuprof_widgets.analyses.remembered import remembered
from gpuprof_widgets.trace import intervals
from gpuprof_widgets.trace.intervals import Intervals
from gpuprof_widgets.trace.model import Record, Trace

COLUMNS = ("device", "name", "ts_ns", "value")
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
        return lacking(COLUMNS, "the trace has no kernels: there is no use of a GPU to draw")
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
    return pd.concat(tables, ignore_index=True)[list(COLUMNS)]


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
