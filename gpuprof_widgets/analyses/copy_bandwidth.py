"""How many bytes per second moved at any time, by device and direction."""

from __future__ import annotations

import numpy as np
import pandas as pd

from gpuprof_widgets.analyses.copies import copies
from gpuprof_widgets.analyses.lacking import lacking
from gpuprof_widgets.analyses.remembered import remembered
from gpuprof_widgets.analyses.table_with_reason import what_is_lacking
from gpuprof_widgets.trace.model import Record

COLUMNS = ("device", "direction", "ts_ns", "bytes_per_s", "copies")


@remembered
def copy_bandwidth(record: Record) -> pd.DataFrame:
    """One row per change of a device's bandwidth in one direction, by device, direction and time.

    Columns: ``device``, ``direction`` (see `copies`), ``ts_ns``, ``bytes_per_s`` (from then on; of
    all copies that run, each moving its bytes evenly over its time), ``copies`` (how many run).
    Copies of unknown size or without duration are left out.

    HTA (get_memory_bw_time_series) counts memsets as well, gives copies without duration one
    microsecond, and adds up the rounded ``memory bandwidth`` of the file, so that what ought to be
    0 between two copies is not quite.
    """
    table = copies(record)
    known = table[table["bytes_per_s"].notna() & (table["dur_ns"] > 0)] if len(table) else table
    if not len(known):
        why = what_is_lacking(table) or "the trace has no copies of known size and time."
        return lacking(COLUMNS, why)
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
