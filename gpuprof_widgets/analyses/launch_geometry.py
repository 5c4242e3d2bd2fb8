"""How kernels were laid out on the GPU: grid, block, registers, shared memory, occupancy."""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from gpuprof_widgets.trace.model import Record, Trace

Floats = npt.NDArray[np.float64]

REGISTERS, SHARED_MEMORY = "registers per thread", "shared memory"
BLOCKS_PER_SM, OCCUPANCY = "blocks per SM", "est. achieved occupancy %"
COLUMNS = ("grid", "block", "registers", "shared_memory", "blocks_per_sm", "occupancy")


def launch_geometry(rows: npt.NDArray[np.intp], record: Record) -> pd.DataFrame:
    """Per GPU slice, in the order of ``rows``: how it was launched, as Kineto wrote it.

    Columns: ``grid``, ``block`` (categorical: "x, y, z"; "" where unknown), ``registers`` (per
    thread) and ``shared_memory`` (bytes per block), -1 where unknown; ``blocks_per_sm`` and
    ``occupancy`` (of one; Kineto's estimate of what is reached), NaN where unknown. Where a trace
    has grids but no blocks per SM (AMD), these are the grid's blocks over the device's SMs, as
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


def numbers(trace: Trace, key: str, rows: npt.NDArray[np.intp]) -> Floats:
    """An arg of these slices as numbers; NaN where there is none."""
    if key not in trace.args:
        return np.full(len(rows), np.nan)
    values = trace.args[key]
    known = np.isin(rows, values.index.to_numpy())
    found = np.full(len(rows), np.nan)
    of_rows = values.reindex(rows[known])
    found[known] = pd.to_numeric(of_rows, errors="coerce").to_numpy(np.float64)
    return found


def _multiprocessors(record: Record) -> dict[int, int]:
    """Number of SMs (AMD: compute units) of each device that the file describes."""
    listed = record.metadata.get("deviceProperties") or []
    described = [one for one in listed if isinstance(one, dict)]
    counts = {one.get("id"): one.get("numSms") for one in described}
    return {int(d): n for d, n in counts.items() if isinstance(d, int) and isinstance(n, int) and n}


def occupancy(rows: npt.NDArray[np.intp], trace: Trace) -> Floats:
    """Kineto's estimate of the occupancy that each GPU slice reached, of one; NaN if unknown."""
    return _not_negative(numbers(trace, OCCUPANCY, rows)) / 100


def blocks_per_sm(rows: npt.NDArray[np.intp], record: Record) -> Floats:
    """Blocks per SM of each GPU slice, written or from its grid; NaN if unknown."""
    written = _not_negative(numbers(record.trace, BLOCKS_PER_SM, rows))
    sms = _multiprocessors(record)
    grids = record.trace.args.get("grid")
    missing = np.flatnonzero(np.isnan(written))
    if grids is None or not sms or not len(missing):
        return written
    track = record.trace.slices["track"].to_numpy()[rows[missing]]
    device = record.trace.tracks["device"].to_numpy()[track]
    count = pd.Series(device).map(sms).to_numpy(np.float64)
    blocks = grids.astype(object).reindex(rows[missing]).map(_blocks, na_action="ignore")
    written[missing] = blocks.to_numpy(np.float64) / count
    return written


def _blocks(grid: Any) -> float:
    sizes = grid if isinstance(grid, list) else []
    whole = sizes and all(isinstance(size, int) for size in sizes)
    return float(prod(sizes)) if whole else np.nan


def _not_negative(values: Floats) -> Floats:
    """Some versions of Kineto wrote negative ones, which mean nothing."""
    return np.where(values >= 0, values, np.nan)


def _whole(trace: Trace, key: str, rows: npt.NDArray[np.intp]) -> npt.NDArray[np.int64]:
    values = numbers(trace, key, rows)
    return np.where(np.isnan(values), -1, np.nan_to_num(values)).astype(np.int64)


def _texts(trace: Trace, key: str, rows: npt.NDArray[np.intp]) -> pd.Categorical[str]:
    """Lists of sizes as "x, y, z"."""
    place, values = trace.index.arg(key)
    texts = [", ".join(map(str, each)) if isinstance(each, list) else "" for each in values]
    return pd.Categorical([*texts, ""]).take(place[rows])
