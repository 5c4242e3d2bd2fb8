"""Slices that a reader selected, with their owners."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pandas as pd

from gpuprof_widgets.analyses.memory_blocks import owning_lines, owning_modules
from gpuprof_widgets.trace.model import Record, Trace

COLUMNS = ("name", "category", "op", "kernel", "module", "line", "track", "start_ns", "duration_ns")


def selected_slices(record: Record, rows: npt.ArrayLike) -> pd.DataFrame:
    """Return one row per slice, with its number in the trace as the index.

    Columns: ``name``, ``category``; ``op``: the op itself or the innermost one that launched it;
    ``kernel``: the name of GPU work, "" of other slices; ``module``, ``line``: in whose forward
    pass it ran, or that of its forward op ("" where unknown); ``track``; ``start_ns``,
    ``duration_ns``.
    """
    trace = record.trace
    row = np.asarray(rows, dtype=np.intp)
    names = trace.index.names_of
    chosen = trace.slices.iloc[row]
    is_gpu = trace.index.is_gpu[row]
    tracks = trace.tracks["label"].to_numpy()
    columns = {
        "name": names(row),
        "category": chosen["category"].astype(str).to_numpy(),
        "op": names(_ops(trace, row)),
        "kernel": np.where(is_gpu, names(row), ""),
        "module": names(owning_modules(trace, row)),
        "line": names(owning_lines(trace, row)),
        "track": tracks[chosen["track"].to_numpy()],
        "start_ns": chosen["ts"].to_numpy(),
        "duration_ns": chosen["dur"].to_numpy(),
    }
    return pd.DataFrame(columns, index=pd.Index(row, name="row"))[list(COLUMNS)]


def _ops(trace: Trace, row: npt.NDArray[np.intp]) -> npt.NDArray[np.int32]:
    """Return the op of each slice: of GPU work and runtime calls the one that launched it."""
    launching = trace.slices["op"].to_numpy()
    around = trace.index.op_around
    return np.where(launching >= 0, launching, around)[row].astype(np.int32)
