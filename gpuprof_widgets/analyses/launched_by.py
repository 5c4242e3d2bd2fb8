"""Who asked for a piece of GPU work, in words: the op, module, line and Python function."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pandas as pd

from gpuprof_widgets.analyses.kernels import launching_op
from gpuprof_widgets.analyses.line_owners import line_of
from gpuprof_widgets.analyses.module_frames import MODULE_FRAME, module_frame_around
from gpuprof_widgets.analyses.region_owners import region_behind
from gpuprof_widgets.analyses.stacks import frame_of
from gpuprof_widgets.trace.model import Trace
from gpuprof_widgets.trace.schema import NONE

Rows = npt.NDArray[np.intp]


def launched_by(trace: Trace, rows: Rows) -> pd.DataFrame:
    """Per GPU slice, in the order of ``rows``, who asked for it.

    Columns: ``op`` (row of the op that Python called; of what a graph replays the captured op, else
    that around the replaying call, else this call; -1 without), ``op_name``; ``module`` (our
    region, else the innermost ``nn.Module`` frame), ``line`` (of the cell), ``python`` (the
    innermost Python frame): names, "" where the trace does not tell.
    """
    names = trace.index.names_of
    op = _outermost_op(trace, rows)
    frame = _frames(trace, rows)
    nowhere = np.full(len(rows), NONE, np.intp)
    has_modules, has_lines = (_has(trace, category) for category in ("module", "cell_line"))
    module = region_behind(trace, "module")[rows] if has_modules else nowhere
    columns = {
        "op": op.astype(np.int32),
        "op_name": names(op),
        "module": np.where(module >= 0, names(module), _module_frames(trace, frame)),
        "line": names(line_of(trace)[rows] if has_lines else nowhere),
        "python": names(frame),
    }
    return pd.DataFrame(columns)


def _has(trace: Trace, category: str) -> bool:
    """Most traces have no regions of ours: looking for those around each slice would be idle."""
    return category in trace.index.categories


def _outermost_op(trace: Trace, rows: Rows) -> Rows:
    op = launching_op(trace)[rows]
    outermost = np.append(trace.index.outermost_op, NONE)[op]
    found: Rows = np.where(outermost >= 0, outermost, op).astype(np.intp)
    return found


def _frames(trace: Trace, rows: Rows) -> Rows:
    """The Python frame that was innermost when each was launched; -1 without stacks."""
    if not trace.index.in_category("python_function").any():
        return np.full(len(rows), NONE, np.intp)
    return np.append(frame_of(trace), NONE)[trace.index.launcher[rows]].astype(np.intp)


def _module_frames(trace: Trace, frame: Rows) -> npt.NDArray[np.object_]:
    """Name of the innermost module's frame around each frame, without its prefix."""
    if not (frame >= 0).any():
        return np.full(len(frame), "", object)
    names = trace.index.names_of(module_frame_around(trace, frame))
    return np.array([name.removeprefix(MODULE_FRAME) for name in names], object)
