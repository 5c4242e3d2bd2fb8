"""Which cell line every slice belongs to, on whichever thread it ran."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from gpuprof_widgets.analyses.op_rows import gpu_rows
from gpuprof_widgets.analyses.region_owners import forward_of, region_around
from gpuprof_widgets.analyses.remembered import remembered
from gpuprof_widgets.trace.callers import calling_lines
from gpuprof_widgets.trace.model import Trace
from gpuprof_widgets.trace.schema import NONE
from gpuprof_widgets.trace.window import uncut_times

Rows = npt.NDArray[np.int32]


@remembered
def line_of(trace: Trace) -> Rows:
    """Per slice the row of the cell line in which it ran or was launched; -1 for none.

    What the backward pass does on a thread of its own ran in the line that called it.
    """
    slices = trace.slices
    caller = np.append(calling_lines(trace, *uncut_times(trace)), NONE)
    gpu = gpu_rows(trace)
    launcher = np.where(slices["launch"] >= 0, slices["launch"], slices["op"])
    caller[gpu] = caller[launcher[gpu]]
    around = region_around(trace, "cell_line")
    return np.where(around >= 0, around, caller[:-1]).astype(np.int32)


def line_behind(trace: Trace) -> Rows:
    """Per slice of the backward pass the row of the cell line of its forward op; else -1."""
    return np.asarray(np.append(line_of(trace), NONE)[forward_of(trace)], np.int32)
