"""Attribution: what every line, module, op or Python function cost, its backward pass included.

A level says which slices are owners and what caused each slice (`Causes`); `owned` gives every
slice to its nearest owner along these causes; `attribution` adds the shares up by name. Work of the
backward pass belongs to the owner of its forward op.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import pandas as pd

from gpuprof_widgets.analyses.call_tree import merged_parents
from gpuprof_widgets.analyses.columns import group_sums
from gpuprof_widgets.analyses.operators import INSTANTS, allocations
from gpuprof_widgets.analyses.owners import captured_calls, cause_of, graph_launches, module_frames
from gpuprof_widgets.analyses.reasons import FRAMES, IN_NO_MODULE, LACKS, LINES, MODULES, NOBODY
from gpuprof_widgets.analyses.remembered import remembered
from gpuprof_widgets.analyses.waits import is_synchronising
from gpuprof_widgets.exceptions import OptionError
from gpuprof_widgets.trace import intervals, links
from gpuprof_widgets.trace.arrays import Codes, Ints, Mask, Rows
from gpuprof_widgets.trace.index import take
from gpuprof_widgets.trace.model import Record, Trace
from gpuprof_widgets.trace.owners import is_engine
from gpuprof_widgets.trace.schema import MODULE_CATEGORIES, RESUMED

SHARES = (
    *("cpu_self_ns", "backward_cpu_ns", "device_ns", "backward_device_ns"),
    *("wait_ns", "allocated_bytes"),
)
"""Columns whose sums over all owners are what was recorded."""
COLUMNS = ("name", "detail", "calls", *SHARES, "cpu_total_ns", "device_total_ns")

OF_NOBODY = {
    "line": "(in no line)",
    "module": IN_NO_MODULE,
    "op": "(in no op)",
    "python": "(in no Python function)",
}
"""How tables name what has no owner, by level."""

NO_OWNERS = {"line": LINES, "module": MODULES, "op": "the trace has no ops", "python": FRAMES}
"""What the trace lacks if it has no owner of that level."""

ONLY_PYTHON = (
    "the trace has Python functions, but no op, call or region, whose time would be theirs here: "
    "python_time has the functions' own"
)


def attribution(record: Record, level: str) -> pd.DataFrame:
    """One row per owner at that level, the costliest first.

    Backward work belongs to the owner of its forward op. In all columns but the totals, each ns and
    byte of the trace is in exactly one row; the last row, with an empty name, has what belongs to
    no owner.

    CPU time is time in which a thread ran an op, a call or a region (a step, a line, the cell): it
    is the same at all levels. A recorded frame outside of all of these has none, nor has a thread
    with frames alone, which mostly waits; `python_time` has the time of those.

    Options:

    - ``level``: "line", "module", "op" (the innermost op of the forward pass) or "python" (the
      innermost function with a recorded frame).

    Columns:

    - ``name``, ``detail``: the owner; the cell of a line, the class of a module.
    - ``calls``: executions of the line, of the module's forward, of the op or function.
    - ``cpu_self_ns``, ``backward_cpu_ns``: CPU time that it and nothing inside it took, in the
      forward and in the backward pass. Times of several threads add up.
    - ``device_ns``, ``backward_device_ns``: GPU time that it launched itself, in the forward and in
      the backward pass.
    - ``wait_ns``: waited for the GPU, both passes.
    - ``allocated_bytes``: recorded with memory, both passes.
    - ``cpu_total_ns``, ``device_total_ns``: both passes, with all that ran inside it.

    Source: defined here; backward ops are linked to forward ops as in `backward_ops`.
    """
    if level not in LEVELS:
        raise OptionError(f"unknown level {level!r}: it is one of {', '.join(LEVELS)}.")
    owners = owned(record.trace, level)
    shares = owners.shares
    table = owners.names.assign(
        calls=owners.calls_by_name(),
        **{name: owners.by_name(share) for name, share in shares.items()},
        cpu_total_ns=owners.total(shares["cpu_self_ns"], shares["backward_cpu_ns"]),
        device_total_ns=owners.total(shares["device_ns"], shares["backward_device_ns"]),
    )[list(COLUMNS)]
    costliest = ["device_total_ns", "cpu_total_ns"]
    named = table[:-1].sort_values(costliest, ascending=False, kind="stable")
    table = pd.concat([named, table[-1:]], ignore_index=True)
    table.attrs[NOBODY] = OF_NOBODY[level]
    if len(table) == 1:  # the row of what has no owner
        table.attrs[LACKS] = NO_OWNERS[level]
    elif level == "python" and not table[list(SHARES)].any(axis=None):
        table.attrs[LACKS] = ONLY_PYTHON
    return table


@dataclass(frozen=True)
class Owned:
    """The owners of one level and the share of each, without what is inside it.

    ``row``: the owners' slices; per owner ``parent`` (its place among them, -1), ``key`` (number of
    its name in ``names``; the last name is for what has no owner) and ``calls``. ``owner``: per
    slice of the trace the row of its owner, -1 for none. ``shares``: per slice that is an owner its
    part of each column of `SHARES`; the last entry is for what has no owner.
    """

    row: Rows
    parent: Codes
    key: Ints
    names: pd.DataFrame
    calls: Ints
    owner: Codes
    shares: dict[str, Ints]

    def shared(self, rows: npt.NDArray[np.integer], values: Ints) -> Ints:
        """Return the sums of the values of these slices, per owner as in ``shares``."""
        return group_sums(self.owner[rows], values, len(self.owner) + 1)

    def by_name(self, share: Ints) -> Ints:
        """Return per name the sum over its owners; the last entry is for what has no owner."""
        return self._named(share[self.row], int(share[-1]))

    def calls_by_name(self) -> Ints:
        """Return per name how often it ran."""
        return self._named(self.calls, 0)

    def total(self, *shares: Ints) -> Ints:
        """Return per name the sum over its owners and all inside them, a recursive one once."""
        whole = np.sum(shares, axis=0)
        below = links.subtree_sum(whole[self.row], self.parent)
        outermost = ~links.below_its_like(self.parent, self.key)
        return self._named(np.where(outermost, below, 0), int(whole[-1]))

    def _named(self, values: Ints, without_owner: int) -> Ints:
        sums = group_sums(self.key, values, len(self.names))
        sums[-1] = without_owner
        return sums


def owned(trace: Trace, level: str) -> Owned:
    """Return the owners at that level, and their shares."""
    causes = LEVELS[level](trace)
    nearest = links.nearest_ancestor(causes.cause, causes.is_owner)
    row = np.flatnonzero(causes.is_owner)
    place = np.cumsum(causes.is_owner, dtype=np.int32) - 1
    key, names = _names(trace, row, causes.detail)
    owners = Owned(
        row,
        take(place, nearest[row]),
        key,
        names,
        (trace.index.column("count")[row] * causes.is_call[row]).astype(np.int64),
        np.where(causes.is_owner, np.arange(len(trace)), nearest).astype(np.int32),
        {},
    )
    backward, cpu, rows = in_backward(trace), self_times(trace, causes), causes.rows
    gpu, dur, memory = trace.index.gpu, trace.index.dur, allocations(trace)
    waits = np.flatnonzero(is_synchronising(trace))
    shares = {
        "cpu_self_ns": owners.shared(rows, np.where(backward[rows], 0, cpu)),
        "backward_cpu_ns": owners.shared(rows, np.where(backward[rows], cpu, 0)),
        "device_ns": owners.shared(gpu, np.where(backward[gpu], 0, dur[gpu])),
        "backward_device_ns": owners.shared(gpu, np.where(backward[gpu], dur[gpu], 0)),
        "wait_ns": owners.shared(waits, dur[waits]),
        "allocated_bytes": owners.shared(memory.row, np.maximum(memory.size, 0)),
    }
    return replace(owners, shares=shares)


@remembered
def in_backward(trace: Trace) -> Mask:
    """Return which slices ran in a backward pass, or were launched or captured in one."""
    inside = (trace.index.column("forward") >= 0) | is_engine(trace.slices["name"])
    inside |= trace.index.in_category("module_backward")
    inside |= links.nearest_ancestor(trace.index.parent, inside) >= 0
    gpu, captured = trace.index.gpu, captured_calls(trace)
    launcher = np.where(captured >= 0, captured, trace.index.launcher)
    inside[gpu] = take(inside, launcher[gpu], False)
    return inside


def self_times(trace: Trace, causes: Causes) -> Ints:
    """Return the CPU self time of each of ``causes.rows``; the sum is the time of ``cpu`` tracks.

    Frames and ops of a thread are on two tracks. Time without ops is first taken out of the clock,
    so that frames have no self time then, and nesting stays as it is.
    """
    rows = causes.rows
    if not len(rows):
        return np.empty(0, np.int64)
    ts, end = trace.index.ts[rows], trace.index.end[rows]
    parent, _ = links.nest(ts, end, causes.group)
    is_op = trace.index.on_tracks("cpu")[rows]
    room = end.max() - ts.min() + 1  # threads follow one another on a line and never touch
    place = causes.group.astype(np.int64) * room - ts.min()
    ran = intervals.union((ts + place)[is_op], (end + place)[is_op])
    clock_start, clock_end = (intervals.covered_until(ran, times + place) for times in (ts, end))
    return links.self_times(clock_start, clock_end, parent)


def _names(trace: Trace, row: Rows, detail: str) -> tuple[Ints, pd.DataFrame]:
    """Return the number of each owner's name, and the names with details; the last is empty."""
    values = trace.args.get(detail) if detail else None  # an arg may be called "" as well
    known = None if values is None else values.reindex(row).astype(object).fillna("")
    details = "" if known is None else [str(value) for value in known]  # foreign files have lists
    pairs = pd.DataFrame(
        {"name": trace.slices["name"].to_numpy(object)[row], "detail": details}, dtype=object
    )
    key = pairs.groupby(["name", "detail"], sort=False).ngroup().to_numpy().astype(np.int64)
    no_owner = pd.DataFrame({"name": [""], "detail": [""]}, dtype=object)
    return key, pd.concat([pairs.drop_duplicates(), no_owner], ignore_index=True)


@dataclass(frozen=True)
class Causes:
    """Which slices are owners or calls, what caused each slice, and whose CPU time counts.

    ``rows`` are those with CPU time, sorted by ``group``, start, longest first: within a group they
    nest. ``detail``: the arg with the detail of a name.
    """

    is_owner: Mask
    cause: Codes
    rows: Codes
    group: Codes
    is_call: Mask
    detail: str


def _lines(trace: Trace) -> Causes:
    lines = trace.index.in_category("cell_line")
    return _regions(trace, lines, lines & (trace.index.arg(RESUMED)[0] < 0), "cell")


def _modules(trace: Trace) -> Causes:
    """Return our module regions, or torch's ``nn.Module`` frames in a trace without them."""
    forward = trace.index.in_category("module")
    if not forward.any() and (frames := module_frames(trace)).any():
        return replace(_functions(trace), is_owner=frames, is_call=frames)
    is_call = forward & (trace.index.arg(RESUMED)[0] < 0)
    return _regions(trace, trace.index.in_category(*MODULE_CATEGORIES), is_call, "class")


def _regions(trace: Trace, is_owner: Mask, is_call: Mask, detail: str) -> Causes:
    rows = np.flatnonzero(trace.index.on_tracks("cpu") & ~trace.index.in_category(INSTANTS))
    group = trace.index.track[rows].astype(np.int32)
    return Causes(is_owner, cause_of(trace), rows.astype(np.int32), group, is_call, detail)


def _ops(trace: Trace) -> Causes:
    """Return ops of the forward pass, and what the engine does outside of backward ops.

    The work of a graph belongs to the captured op, where the trace holds it; else to the op around
    the replaying call, and outside of any op to that call itself.
    """
    linked = trace.index.column("forward") >= 0
    engine = is_engine(trace.slices["name"])
    inside = links.itself_or_ancestor(trace.index.parent, engine | linked) >= 0
    owner = (trace.index.is_op & ~inside) | (engine & ~linked)
    causes = _regions(trace, owner, owner, "")
    replays = graph_launches(trace) & (links.nearest_ancestor(causes.cause, owner) < 0)
    owner |= replays
    captured = captured_calls(trace)
    in_op = links.nearest_ancestor(causes.cause, owner)[captured] >= 0
    cause = np.where((captured >= 0) & in_op, captured, causes.cause).astype(np.int32)
    return replace(causes, is_owner=owner, is_call=owner, cause=cause)


def _functions(trace: Trace) -> Causes:
    """Return Python frames as owners, nested together with the ops of each thread."""
    rows, parent, lane = merged_parents(trace)
    cause = cause_of(trace)
    merged = cause.copy()  # allocations are in no frame: their cause remains the op
    merged[rows] = take(rows, parent)
    merged = np.where(cause != trace.index.parent, cause, merged)  # in the backward pass
    frames = trace.index.in_category("python_function")
    return Causes(frames, merged.astype(np.int32), rows, lane, frames, "")


LEVELS: dict[str, Callable[[Trace], Causes]] = {
    "line": _lines,
    "module": _modules,
    "op": _ops,
    "python": _functions,
}
