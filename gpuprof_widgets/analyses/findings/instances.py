"""Which rows of an op table are ops, and the one call of an op that is worth jumping to."""

from __future__ import annotations

from typing import TypedDict

import numpy as np
import numpy.typing as npt
import pandas as pd

from gpuprof_widgets.trace.index import REGION
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


def longest_call(record: Record, name: str, category: str) -> Place:
    """The longest call of that name."""
    slices = record.trace.slices
    calls = slices.loc[(slices["name"] == name) & (slices["category"] == category), ["ts", "dur"]]
    row = int(calls["dur"].to_numpy().argmax())
    start, dur = (int(value) for value in calls.iloc[row])
    return Place(start_ns=start, end_ns=start + dur, rows=(int(calls.index[row]),))
