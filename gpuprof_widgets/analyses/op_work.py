"""The work of each op: its floating point operations, bytes and number format."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from gpuprof_widgets.analyses.flop_formulas import FORMULAS, flops_of
from gpuprof_widgets.analyses.flops import recorded_work
from gpuprof_widgets.analyses.op_bytes import BOTH, INPUTS, NOTHING, bytes_of, elements_of
from gpuprof_widgets.analyses.op_calls import Call, distinct_calls, of_calls
from gpuprof_widgets.analyses.remembered import remembered
from gpuprof_widgets.analyses.shapes import shape_text
from gpuprof_widgets.trace import links
from gpuprof_widgets.trace.model import Trace
from gpuprof_widgets.trace.schema import FLOPS, MEMORY_TRAFFIC, NONE

Ints = npt.NDArray[np.int64]
Rows = npt.NDArray[np.int32]

ARITHMETIC = frozenset(
    f"aten::{name}{end}" for name in ("add", "sub", "mul", "div") for end in ("", "_")
)
"""One operation per element of the result. torch's profiler counts ``add`` and ``mul`` alone, and
by their first input, which may be a single number."""


@dataclass(frozen=True)
class Work:
    """Of some ops: ``row`` in the trace, and per row what one call does."""

    row: npt.NDArray[np.intp]
    flops: Ints
    bytes: Ints
    counted: npt.NDArray[np.object_]
    """What the bytes count: "inputs and outputs", "inputs" or ""."""
    dtype: npt.NDArray[np.object_]
    moves_only: npt.NDArray[np.bool_]
    shapes: npt.NDArray[np.object_]
    """Input shapes as text; "" where none were recorded."""


@remembered
def worker_of(trace: Trace) -> Rows:
    """Per slice the op whose work it is part of; -1 for none.

    That is the outermost op around it for which there is a formula (`aten::convolution` for all
    that is below it), else the innermost op around it; an op is around itself. What runs on a GPU
    belongs where its op does.
    """
    index = trace.index
    around = links.outermost(index.parent, index.is_op & index.named(frozenset(FORMULAS)))
    worker = np.where(around >= 0, around, index.op_around)
    owner, launcher = np.append(worker, NONE), index.launcher
    found = np.where(owner[launcher] >= 0, owner[launcher], owner[index.column("op")])
    return np.where(launcher >= 0, found, worker).astype(np.int32)


def work_of(trace: Trace, row: npt.NDArray[np.intp]) -> Work:
    """What the ops at these rows do: as the program counted it, else by our formulas."""
    calls, call = distinct_calls(trace, row)
    columns = zip(*map(_work, calls), strict=True) if calls else [()] * len(WORK_TYPES)
    flops, moved, counted, dtype, moves_only, shapes = (
        np.array(values, kind)[call] for values, kind in zip(columns, WORK_TYPES, strict=True)
    )
    told_flops, told_moved = (recorded_work(trace, key)[row] for key in (FLOPS, MEMORY_TRAFFIC))
    return Work(
        row,
        np.where(told_flops >= 0, told_flops, flops),
        np.where(told_moved >= 0, told_moved, moved),
        np.where(told_moved >= 0, BOTH, counted),
        dtype,
        moves_only,
        shapes,
    )


def slice_work_flops(trace: Trace) -> Ints:
    """FLOPs of every slice: those of the outermost ops with a formula, 0 anywhere else.

    Where the program counted them itself, these.
    """
    counted = trace.index.named(frozenset((*FORMULAS, *ARITHMETIC))) & trace.index.is_op
    worker = worker_of(trace)
    row = np.flatnonzero(counted & (worker == np.arange(len(trace))))
    found = np.zeros(len(trace), np.int64)
    found[row] = of_calls(trace, row, _flops)
    recorded = recorded_work(trace, FLOPS)
    return np.where(recorded >= 0, recorded, found)


WORK_TYPES = (np.int64, np.int64, object, object, bool, object)


def _work(call: Call) -> tuple[int, int, str, str, bool, str]:
    moved = bytes_of(call)
    shapes = shape_text(call.dims) if call.dims else ""
    return _flops(call), moved.bytes, moved.of, call.dtype, moved.moves_only, shapes


def _flops(call: Call) -> int:
    return elements_of(call) if call.name in ARITHMETIC else flops_of(call)


def least_counted(counted: npt.NDArray[np.object_]) -> str:
    """What bytes count that add up several: no more than any of them does."""
    return next((kind for kind in (NOTHING, INPUTS, BOTH) if (counted == kind).any()), NOTHING)
