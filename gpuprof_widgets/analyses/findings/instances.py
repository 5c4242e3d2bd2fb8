"""Which rows of an op table are ops, and the one call of an op that is worth jumping to."""

from __future__ import annotations

from typing import TypedDict

import numpy as np
import numpy.typing as npt
import pandas as pd

from gpuprof_widgets.analyses.op_rows import REGION, cpu_self, op_rows
from gpuprof_widgets.trace.model import Record


class Place(TypedDict):
    """Where to look, as the arguments of a `Finding`."""

    start_ns: int
    end_ns: int
    rows: tuple[int, ...]


def are_op_names(table: pd.DataFrame) -> npt.NDArray[np.bool_]:
    """Which rows of `operators()` are ops proper, regions left out."""
    region = np.array([bool(REGION.fullmatch(name)) for name in table["name"]], bool)
    return np.asarray((table["category"] == "cpu_op").to_numpy(bool) & ~region)


def own_times(
    record: Record, name: str, category: str
) -> tuple[npt.NDArray[np.intp], npt.NDArray[np.int64]]:
    """The rows of an op's calls, and what each took on the CPU (ns) without the ops within it."""
    ops, slices = op_rows(record.trace), record.trace.slices
    own = np.zeros(len(ops), np.int64)
    np.add.at(own, ops.host, cpu_self(record.trace, ops))
    calls = slices.iloc[ops.row]
    mine = (calls["name"] == name) & (calls["category"] == category) & (calls["count"] > 0)
    mine &= ~ops.repeat
    return ops.row[mine], own[mine]


def longest_call(record: Record, name: str, category: str) -> Place:
    """The longest call of that name."""
    slices = record.trace.slices
    calls = slices.loc[(slices["name"] == name) & (slices["category"] == category), ["ts", "dur"]]
    row = int(calls["dur"].to_numpy().argmax())
    start, dur = (int(value) for value in calls.iloc[row])
    return Place(start_ns=start, end_ns=start + dur, rows=(int(calls.index[row]),))
