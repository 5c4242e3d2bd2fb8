"""Whose a slice is: the line, the module, the op or the Python function that caused it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from gpuprof_widgets.analyses.call_tree import merged_parents
from gpuprof_widgets.analyses.graph_replays import captured_calls, graph_launches
from gpuprof_widgets.analyses.module_frames import module_frames
from gpuprof_widgets.analyses.op_rows import INSTANTS
from gpuprof_widgets.analyses.region_owners import cause_of
from gpuprof_widgets.trace import links
from gpuprof_widgets.trace.model import Trace
from gpuprof_widgets.trace.owners import is_engine
from gpuprof_widgets.trace.schema import NONE, RESUMED

Rows = npt.NDArray[np.int32]
Mask = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class Owning:
    """Which slices are owners, who caused whom, and whose CPU time counts.

    ``rows`` are sorted by ``group``, start, longest first: within a group they nest.
    """

    owner: Mask
    cause: Rows
    rows: Rows
    group: Rows
    calls: Mask
    detail: str


def _lines(trace: Trace) -> Owning:
    lines = trace.index.in_category("cell_line")
    return _regions(trace, lines, lines & ~_resumed(trace), "cell")


def _resumed(trace: Trace) -> Mask:
    resumed = np.zeros(len(trace), bool)
    if RESUMED in trace.args:
        resumed[trace.args[RESUMED].index.to_numpy()] = True
    return resumed


def _modules(trace: Trace) -> Owning:
    """Our own regions; a trace of another's recording may have torch's ``nn.Module`` frames."""
    forward = trace.index.in_category("module")
    if not forward.any() and (frames := module_frames(trace)).any():
        return replace(_functions(trace), owner=frames, calls=frames)
    called = forward & ~_resumed(trace)
    return _regions(trace, trace.index.in_category("module", "module_backward"), called, "class")


def _regions(trace: Trace, owner: Mask, calls: Mask, detail: str) -> Owning:
    rows = np.flatnonzero(trace.index.on_tracks("cpu") & ~trace.index.in_category(INSTANTS))
    group = trace.slices["track"].to_numpy()[rows]
    return Owning(
        owner,
        cause_of(trace),
        rows.astype(np.int32),
        group.astype(np.int32),
        calls,
        detail,
    )


def _ops(trace: Trace) -> Owning:
    """Ops of the forward pass, and what the engine does beside the backward ops.

    What a graph replays is the op's that was captured, where the trace holds it; else the op's
    around the call that replays it, and outside of any op the call's own.
    """
    linked = trace.slices["forward"].to_numpy() >= 0
    engine = is_engine(trace.slices["name"])
    within = engine | linked
    inside = within | (links.nearest_ancestor(trace.slices["parent"].to_numpy(), within) >= 0)
    owner = (trace.index.is_op & ~inside) | (engine & ~linked)
    owning = _regions(trace, owner, owner, "")
    replays = graph_launches(trace) & (links.nearest_ancestor(owning.cause, owner) < 0)
    owner |= replays
    captured = captured_calls(trace)
    in_op = links.nearest_ancestor(owning.cause, owner)[captured] >= 0
    cause = np.where((captured >= 0) & in_op, captured, owning.cause).astype(np.int32)
    return replace(owning, owner=owner, calls=owner, cause=cause)


def _functions(trace: Trace) -> Owning:
    """Python frames and ops of each thread nested together."""
    rows, parent, lane = merged_parents(trace)
    cause = cause_of(trace)
    merged = cause.copy()  # of allocations, which are among no frames, the op stays the cause
    merged[rows] = np.where(parent >= 0, rows[parent], NONE)
    backward = cause != trace.slices["parent"].to_numpy()
    merged = np.where(backward, cause, merged).astype(np.int32)
    frames = trace.index.in_category("python_function")
    return Owning(frames, merged, rows, lane, frames, "")


LEVELS: dict[str, Callable[[Trace], Owning]] = {
    "line": _lines,
    "module": _modules,
    "op": _ops,
    "python": _functions,
}
