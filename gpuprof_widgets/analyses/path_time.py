"""How much of the critical path is whose: what a change of some slices could save at most."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pandas as pd

from gpuprof_widgets.analyses.critical_path import are_delays, critical_path
from gpuprof_widgets.analyses.remembered import remembered
from gpuprof_widgets.trace.links import nearest_ancestor
from gpuprof_widgets.trace.model import Record

Ints = npt.NDArray[np.int64]


@remembered
def path_times(record: Record) -> Ints:
    """Per slice how many ns of the run's critical path are its own, without delays before it.

    The rest of its time is hidden behind others: no run gets shorter by it.
    """
    times = np.zeros(len(record.trace), np.int64)
    path = critical_path(record)
    if len(path):
        own = ((path["row"] >= 0) & ~are_delays(record.trace, path)).to_numpy(bool)
        row, dur = path["row"].to_numpy(np.intp), path["dur_ns"].to_numpy(np.int64)
        np.add.at(times, row[own], dur[own])
    return times


def cpu_path_ns(record: Record, rows: npt.NDArray[np.integer]) -> int:
    """How many ns of the run's critical path the CPU is in these slices or in any within them."""
    chosen = np.zeros(len(record.trace), bool)
    chosen[rows] = True
    inside = nearest_ancestor(record.trace.slices["parent"].to_numpy(), chosen) >= 0
    on_cpu = (chosen | inside) & record.trace.index.on_tracks("cpu", "python")
    return int(path_times(record)[on_cpu].sum())


def gpu_path_saving_ns(record: Record, pieces: pd.DataFrame, faster_ns: pd.Series) -> int:
    """What the critical path loses at most if the kernels ``pieces`` took ``faster_ns`` each.

    ``pieces``: ``row`` and ``time_ns``. Of a kernel that is on the path in part that part counts.
    """
    time = np.maximum(pieces["time_ns"].to_numpy(np.int64), 1)
    on_path = path_times(record)[pieces["row"].to_numpy(np.intp)] / time
    saved = pieces["time_ns"].to_numpy(np.int64) - faster_ns.to_numpy(np.int64)
    return round(float((saved * np.minimum(on_path, 1)).sum()))
