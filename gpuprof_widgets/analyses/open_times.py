"""When slices were open."""

from __future__ import annotations

from typing import Any

import numpy.typing as npt

from gpuprof_widgets.trace import intervals
from gpuprof_widgets.trace.model import Trace


def open_times(trace: Trace, chosen: npt.NDArray[Any]) -> intervals.Intervals:
    """When any of these slices (rows, or a mask of all) was open, each time once."""
    return intervals.union(trace.index.ts[chosen], trace.index.end[chosen])


def open_within(trace: Trace, chosen: npt.NDArray[Any]) -> intervals.Intervals:
    """The same, between the start and the end of the trace."""
    return intervals.clip(open_times(trace, chosen), trace.start_ns, trace.end_ns)


def open_ns(trace: Trace, chosen: npt.NDArray[Any]) -> int:
    """For how long any of these slices was open."""
    return intervals.length(open_times(trace, chosen))
