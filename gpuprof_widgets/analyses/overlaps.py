"""How much communication and copying each GPU hid behind compute."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pandas as pd

from gpuprof_widgets.analyses.device_busy import devices, kind_times
from gpuprof_widgets.analyses.gpu_kinds import COMMUNICATION, COMPUTE, COPY, KINDS
from gpuprof_widgets.analyses.lacking import lacking
from gpuprof_widgets.analyses.steps import NO_STEPS, rank_of, time_ranges
from gpuprof_widgets.exceptions import OptionError
from gpuprof_widgets.trace import intervals
from gpuprof_widgets.trace.intervals import Intervals
from gpuprof_widgets.trace.model import Record

Ints = npt.NDArray[np.int64]

COLUMNS = (
    "rank",
    "device",
    "step",
    "span_ns",
    "busy_ns",
    "idle_ns",
    *(f"{kind}_ns" for kind in KINDS),
    "communication_overlapped_ns",
    "copy_overlapped_ns",
    "communication_overlapped_share",
    "copy_overlapped_share",
)
BY = ("device", "step")
NO_GPU = "the trace has no GPU work: nothing could overlap"


def overlaps(record: Record, *, by: str = "device") -> pd.DataFrame:
    """One row per GPU (and step): total times of each kind of work, and how much was hidden.

    Columns (ns): ``rank``, ``device``, ``step`` (-1: the whole), ``span_ns``, ``busy_ns``,
    ``idle_ns``; ``compute_ns``, ``communication_ns``, ``copy_ns``, ``memset_ns``: at least one
    such slice ran (they may overlap); ``communication_overlapped_ns``, ``copy_overlapped_ns``:
    while compute ran as well; ``communication_overlapped_share``, ``copy_overlapped_share``: of
    all communication and copies (HTA's comm/comp overlap; 0 where there is none).
    """
    if by not in BY:
        raise OptionError(f"overlaps are by one of {', '.join(BY)}, not by {by!r}")
    trace = record.trace
    number, start, end = time_ranges(record, by)
    kinds = {device: kind_times(trace, device) for device in devices(trace)}
    if not kinds or not len(number):
        return lacking(COLUMNS, NO_STEPS if kinds else NO_GPU)
    rows = [_overlap_row(device, unions, number, (start, end)) for device, unions in kinds.items()]
    return pd.concat(rows, ignore_index=True).assign(rank=rank_of(trace))[list(COLUMNS)]


def _overlap_row(
    device: int, unions: dict[str, Intervals], number: Ints, ranges: Intervals
) -> pd.DataFrame:
    starts, ends = zip(*unions.values(), strict=True)
    busy = intervals.overlap(ranges, intervals.union(np.concatenate(starts), np.concatenate(ends)))
    total = {kind: intervals.overlap(ranges, union) for kind, union in unions.items()}
    hidden = {
        kind: intervals.overlap(ranges, intervals.intersection(unions[kind], unions[COMPUTE]))
        for kind in (COMMUNICATION, COPY)
    }
    span = ranges[1] - ranges[0]
    columns: dict[str, object] = {"device": device, "step": number, "span_ns": span}
    columns |= {"busy_ns": busy, "idle_ns": span - busy}
    columns |= {f"{kind}_ns": time for kind, time in total.items()}
    columns |= {f"{kind}_overlapped_ns": time for kind, time in hidden.items()}
    columns |= {
        f"{kind}_overlapped_share": time / np.maximum(total[kind], 1)
        for kind, time in hidden.items()
    }
    return pd.DataFrame(columns)
