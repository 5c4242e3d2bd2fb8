"""Counters: allocated and reserved bytes per device, from the allocations that torch recorded."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from gpuprof_widgets.trace.events import Events, text_codes
from gpuprof_widgets.trace.schema import COUNTER_COLUMNS, MEMORY_EVENT

TOTALS = {"allocated": "Total Allocated", "reserved": "Total Reserved"}


def memory_counters(events: Events) -> pd.DataFrame:
    """``ts``, ``name`` ("CPU allocated", "GPU 0 reserved", ...) and ``value`` in bytes.

    Traces of torch 1.8 have the sizes alone: their counters sum these up from 0 at the start.
    """
    size = _of_memory_events(events)
    ts, names, values = [np.empty(0, np.int64)], list[str](), [np.empty(0)]
    for device, sizes in size.groupby(_devices(events, size.index)):
        for word, value in _readings(events, sizes):
            ts.append(events.ts[value.index.to_numpy()])
            names += [f"{device} {word}"] * len(value)
            values.append(value.to_numpy(dtype=np.float64))
    return counter_table(np.concatenate(ts), names, np.concatenate(values))


def _readings(events: Events, size: pd.Series) -> Iterator[tuple[str, pd.Series]]:
    """Totals by name; torch writes 0 for what it does not know (the CPU's reserved bytes)."""
    for word, key in TOTALS.items():
        total = events.args.get(key)
        if total is not None:
            total = total.reindex(size.index, fill_value=0)
            if total.any():
                yield word, total
        elif word == "allocated":
            yield word, size.cumsum()


def counter_table(
    ts: NDArray[np.int64], names: list[str], values: NDArray[np.float64]
) -> pd.DataFrame:
    """A counters table, by name and time; what one moment repeats is kept in its order."""
    table = pd.DataFrame(
        {
            "ts": np.asarray(ts, dtype=np.int64),
            "name": text_codes(names),
            "value": np.asarray(values, dtype=np.float64),
        }
    )[list(COUNTER_COLUMNS)]
    order = np.lexsort((table["ts"], table["name"].cat.codes))
    return table.iloc[order].reset_index(drop=True)


def _of_memory_events(events: Events) -> pd.Series:
    size = events.args.get("Bytes", pd.Series(dtype=np.int64))
    codes = np.flatnonzero(events.name.categories == MEMORY_EVENT)
    is_memory = np.isin(events.name.codes[size.index.to_numpy(dtype=np.int64)], codes)
    size = size[is_memory]
    return size if size.dtype == np.int64 else size.iloc[:0]


def _devices(events: Events, rows: pd.Index) -> NDArray[np.object_]:
    none = pd.Series(dtype=np.int64)
    kinds = events.args.get("Device Type", none).reindex(rows, fill_value=0)
    numbers = events.args.get("Device Id", none).reindex(rows, fill_value=-1)
    pairs = zip(kinds, numbers, strict=True)
    names = ["CPU" if kind == 0 else f"GPU {number}" for kind, number in pairs]
    return np.array(names, dtype=object)
