"""Slices that a reader selected, with their owners."""

from __future__ import annotations

from collections.abc import Iterable
from operator import index

import numpy as np
import numpy.typing as npt
import pandas as pd

from gpuprof_widgets.analyses.memory_blocks import owning_lines, owning_modules
from gpuprof_widgets.analyses.remembered import remembered
from gpuprof_widgets.exceptions import OptionError
from gpuprof_widgets.trace.arrays import Codes, Rows
from gpuprof_widgets.trace.model import Record


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
    # Of GPU work and runtime calls the op that launched it.
    launching = trace.index.column("op")[row]
    op = np.where(launching >= 0, launching, trace.index.op_around[row])
    columns = {
        "name": names(row),
        "category": chosen["category"].astype(str).to_numpy(),
        "op": names(op),
        "kernel": np.where(is_gpu, names(row), ""),
        "module": names(owning_modules(trace, row)),
        "line": names(owning_lines(trace, row)),
        "track": tracks[chosen["track"].to_numpy()],
        "start_ns": chosen["ts"].to_numpy(),
        "duration_ns": chosen["dur"].to_numpy(),
    }
    return pd.DataFrame(columns, index=pd.Index(row, name="row"))


Selection = str | pd.DataFrame | Iterable[int] | None
"""A query of the columns of `selected_slices`, a table with its index, numbers of slices, none."""


def selected_rows(record: Record, wanted: Selection) -> Codes:
    """Return the numbers of the slices that are meant, ascending, each once.

    Raises an `OptionError` for numbers that no slice has, and for a query without an answer.
    """
    rows = _queried(record, wanted) if isinstance(wanted, str) else _numbers(wanted)
    outside = rows[(rows < 0) | (rows >= len(record.trace))]
    if len(outside):
        raise OptionError(
            f"the trace has no slice {outside[0]}: its slices are 0 to {len(record.trace) - 1}"
        )
    return np.unique(rows).astype(np.int32)


def about_selection(wanted: Selection) -> str:
    """Return what the page says of a selection that was made in Python."""
    return wanted if isinstance(wanted, str) else "selected in Python"


@remembered
def _all_slices(record: Record) -> pd.DataFrame:
    return selected_slices(record, np.arange(len(record.trace)))


def _queried(record: Record, query: str) -> Rows:
    slices = _all_slices(record)
    try:
        return np.asarray(slices.query(query).index, np.intp)
    except Exception as error:
        columns = ", ".join(slices.columns)
        raise OptionError(
            f"the query {query!r} cannot be answered: {error}. The columns are {columns}"
        ) from error


def _numbers(wanted: pd.DataFrame | Iterable[int] | None) -> Rows:
    if wanted is None:
        return np.empty(0, np.intp)
    try:
        rows = wanted.index if isinstance(wanted, pd.DataFrame) else wanted
        return np.array([index(row) for row in rows], dtype=np.intp)
    except (TypeError, OverflowError) as error:
        raise OptionError(
            f"{wanted!r} is no selection: that is a query, numbers of slices, or a table with such "
            "numbers as its index"
        ) from error
