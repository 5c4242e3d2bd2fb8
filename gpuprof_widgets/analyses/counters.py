"""Counters over time: memory, CUPTI metrics, power, utilisation, queues, copies.

Some are recorded (counter events, allocation totals, CUPTI ranges), others are derived from slices.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable

import numpy as np
import pandas as pd

from gpuprof_widgets.analyses.columns import group_rows
from gpuprof_widgets.analyses.copies import copy_bandwidth
from gpuprof_widgets.analyses.kernels import gpu_curves
from gpuprof_widgets.analyses.launches import queue_length
from gpuprof_widgets.analyses.reasons import empty_table
from gpuprof_widgets.trace.assemble import TOTALS
from gpuprof_widgets.trace.model import Record, Trace
from gpuprof_widgets.trace.schema import UNCUT_ARGS

COLUMNS = ("ts_ns", "name", "series", "value", "unit", "derived")

METRICS = "cuda_profiler_range"
"""Category of slices with CUPTI's metrics as args (torch's ``profiler_metrics``)."""
NOT_METRICS = frozenset({"device", "stream", "context", "Ev Idx", "Record function id"})
"""Numeric args of such a slice that are no metrics."""

UNITS = (
    (re.compile(r"\b(allocated|reserved|bytes|memory used)\b", re.I), "bytes"),
    (re.compile(r"utili[sz]ation|efficiency|occupancy|_pct\b|%", re.I), "%"),
    (re.compile(r"bandwidth|GB/s|throughput_gb", re.I), "GB/s"),
    (re.compile(r"power|watt", re.I), "W"),
    (re.compile(r"temperature", re.I), "°C"),
    (re.compile(r"clock|frequency", re.I), "MHz"),
    (re.compile(r"energy", re.I), "J"),
)
"""Units by a counter's name, as files do not have units; the first match counts."""


def counters(record: Record, *, derived: bool = True) -> pd.DataFrame:
    """One row per change of a counter, by name, series and time.

    Recorded counters are the file's counter events, the allocator's totals, and the metrics of
    CUPTI, which hold for the length of their slice.

    Options:

    - ``derived``: also list the length of each stream's queue (`queue_length`), the bytes per
      second of each direction (`copy_bandwidth`), and each GPU's utilisation and SM efficiency (in
      at most a hundred buckets).

    Columns:

    - ``ts_ns``: time of the change.
    - ``name``: "GPU 0 memory", "Queue length", or as the file has it.
    - ``series``: "allocated", "GPU 0 · stream 7", a CUPTI metric; "" if there is only one.
    - ``value``: from then on; NaN: not measured from then on.
    - ``unit``: "bytes", "%", "GB/s", "W", ...; "" if the name does not tell.
    - ``derived``: worked out here, not recorded.

    Source: the file; utilisation and SM efficiency as in PyTorch's TensorBoard plugin.
    """
    trace = record.trace
    tables = [_recorded(trace), _metrics(trace)]
    if derived:
        tables += _derived(record)
    tables = [table for table in tables if len(table)]
    if not tables:
        derivable = ", and no kernels, launches or copies of known size to count"
        return empty_table(COLUMNS, f"the trace has no counters{derivable if derived else ''}")
    return pd.concat(tables, ignore_index=True)[list(COLUMNS)]


def _recorded(trace: Trace) -> pd.DataFrame:
    parts = []  # name, series and unit
    for name in map(str, trace.counters["name"].cat.categories):
        device, _, word = name.rpartition(" ")
        is_total = word in TOTALS and re.fullmatch(r"CPU|GPU -?\d+", device)
        parts.append((f"{device} memory", word, "bytes") if is_total else (name, "", unit_of(name)))
    words = np.array(parts, object).reshape(-1, 3)[trace.counters["name"].cat.codes.to_numpy()]
    columns = dict(zip(("name", "series", "unit"), words.T, strict=True))
    ts, value = (trace.counters[key].to_numpy() for key in ("ts", "value"))
    return pd.DataFrame({"ts_ns": ts, **columns, "value": value, "derived": False})


def unit_of(name: str) -> str:
    """Return the unit of a counter by its name; "" if unknown."""
    return next((unit for pattern, unit in UNITS if pattern.search(name)), "")


def _metrics(trace: Trace) -> pd.DataFrame:
    """Return each number in the args of CUPTI ranges, from the range's start to its end."""
    rows = np.flatnonzero(trace.index.in_category(METRICS) & (trace.index.column("count") > 0))
    keys = [key for key in trace.args if key not in NOT_METRICS and key not in UNCUT_ARGS]
    ts, end = trace.index.uncut
    rows, tables = rows[np.argsort(ts[rows], kind="stable")], []
    for key in keys:
        values = trace.args[key]
        known = rows[np.isin(rows, values.index.to_numpy())]
        if not len(known) or not pd.api.types.is_numeric_dtype(values.dtype):
            continue
        measured = values.reindex(known).to_numpy(np.float64)
        open_end = end[known] < np.append(ts[known][1:], np.iinfo(np.int64).max)
        moments = np.concatenate([ts[known], end[known][open_end]])
        value = np.concatenate([measured, np.full(int(open_end.sum()), np.nan)])
        order = np.argsort(moments, kind="stable")
        within = np.clip(moments[order], trace.start_ns, trace.end_ns)
        columns = {"ts_ns": within, "name": "CUPTI", "series": key, "value": value[order]}
        tables.append(pd.DataFrame(columns | {"unit": unit_of(key), "derived": False}))
    return pd.concat(tables) if tables else pd.DataFrame(columns=list(COLUMNS))


def _derived(record: Record) -> list[pd.DataFrame]:
    """Return the queues of streams, the bandwidth of copies and the use of GPUs as counters."""
    queue, moved, use = queue_length(record), copy_bandwidth(record), gpu_curves(record)
    words = {"utilisation": "GPU utilisation", "sm_efficiency": "Est. SM efficiency"}
    on_stream = _texts(queue, "GPU {} · stream {}".format, "device", "stream")
    one_way = _texts(moved, "GPU {} · {}".format, "device", "direction")
    what, on_gpu = _texts(use, words.__getitem__, "name"), _texts(use, "GPU {}".format, "device")
    tables = [
        queue.assign(name="Queue length", series=on_stream, value=queue["length"], unit="launches"),
        moved.assign(
            name="Copy bandwidth", series=one_way, value=moved["bytes_per_s"], unit="bytes/s"
        ),
        use.assign(name=what, series=on_gpu, value=100 * use["value"], unit="%"),
    ]
    return [table.astype({"value": np.float64}).assign(derived=True) for table in tables]


def _texts(table: pd.DataFrame, text: Callable[..., str], *columns: str) -> pd.Index:
    """Return a text for each row from these columns, made once for all equal rows."""
    group, first = group_rows({key: table[key] for key in columns})
    distinct = zip(*(table[key].iloc[first] for key in columns), strict=True)
    return pd.Index(list(itertools.starmap(text, distinct))).take(group)
