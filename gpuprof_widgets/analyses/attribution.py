"""What every line, module, op or Python function cost, its backward pass included."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import pandas as pd

from gpuprof_widgets.analyses.call_tree import merged_parents
from gpuprof_widgets.analyses.operators import INSTANTS, allocations
from gpuprof_widgets.analyses.owners import captured_calls, cause_of, graph_launches, module_frames
from gpuprof_widgets.analyses.reasons import (
    FRAMES,
    IN_NO_MODULE,
    LACKS,
    LINES,
    MODULES,
    NOBODY,
    not_recorded,
)
from gpuprof_widgets.analyses.remembered import remembered
from gpuprof_widgets.analyses.waits import is_synchronising
from gpuprof_widgets.exceptions import OptionError
from gpuprof_widgets.trace import intervals, links
from gpuprof_widgets.trace.model import Record, Trace
from gpuprof_widgets.trace.owners import is_engine
from gpuprof_widgets.trace.schema import NONE, RESUMED

Ints = npt.NDArray[np.int64]
Rows = npt.NDArray[np.int32]
Mask = npt.NDArray[np.bool_]

SHARES = (
    "cpu_self_ns",
    "backward_cpu_ns",
    "device_ns",
    "backward_device_ns",
    "wait_ns",
    "allocated_bytes",
)
"""Columns that add up over all owners to what was recorded."""
COLUMNS = ("name", "detail", "calls", *SHARES, "cpu_total_ns", "device_total_ns")

OF_NOBODY = {
    "line": "(in no line)",
    "module": IN_NO_MODULE,
    "op": "(in no op)",
    "python": "(in no Python function)",
}
"""What belongs to nobody, in words, by level."""

ONLY_PYTHON = (
    "the trace has Python functions, but no op, call or region, whose time would be theirs here: "
    "python_time has the functions' own"
)


def attribution(record: Record, level: str) -> pd.DataFrame:
    """One row per owner at that level ("line", "module", "op", "python"), the costliest first.

    What runs in the backward pass is its forward op's owner's. Columns (times in ns):

    - ``name``; ``detail``: the cell of a line, the class of a module;
    - ``calls``: executions of the line, of the module's forward, of the op or function;
    - ``cpu_self_ns``: CPU time that it and nothing inside it took, and ``backward_cpu_ns``: the
      same in the backward pass; times of several threads add up;
    - ``device_ns``, ``backward_device_ns``: GPU time that it launched itself, in either pass;
    - ``wait_ns``: waited for the GPU; ``allocated_bytes`` (recorded with memory), both passes;
    - ``cpu_total_ns``, ``device_total_ns``: both passes, with all that ran inside it.

    Of the first six every ns and byte of the trace is in one row; in the last row, whose name is
    empty, what belongs to nobody. For "op" an op is the innermost one of the forward pass, for
    "python" a function the innermost one whose frame was recorded.

    CPU time is that in which a thread ran an op, a call or a region, such as a step, a line or the
    cell: the same at all levels. Where stacks were recorded, a frame outside of all of them counts
    for none of it, nor does a thread of frames alone, which mostly waits; `python_time` has those.
    """
    if level not in LEVELS:
        raise OptionError(f"unknown level {level!r}: it is one of {', '.join(LEVELS)}.")
    table = _table(owned(record.trace, level))
    table.attrs[NOBODY] = OF_NOBODY[level]
    if len(table) == 1:  # nobody's
        table.attrs[LACKS] = _without_owners(record, level)
    elif level == "python" and not table[list(SHARES)].any(axis=None):
        table.attrs[LACKS] = ONLY_PYTHON
    return table


def _without_owners(record: Record, level: str) -> str:
    if level in (said := {"line": LINES, "module": MODULES}):
        return not_recorded(record, said[level])
    return FRAMES if level == "python" else "the trace has no ops"


@dataclass(frozen=True)
class Owned:
    """The owners of one level and what each has by itself.

    ``row``: the owners; per owner ``parent`` (its place among them, -1), ``key`` (number of its
    name in ``names``; the last name is nobody's) and ``calls``. ``own``: per slice of the trace the
    row of its owner, -1 for nobody. ``shares``: per slice that is an owner its part of each column
    of `SHARES`; one more entry for nobody's.
    """

    row: npt.NDArray[np.intp]
    parent: Rows
    key: Ints
    names: pd.DataFrame
    calls: Ints
    own: Rows
    shares: dict[str, Ints]

    def shared(self, rows: npt.NDArray[np.integer], values: Ints) -> Ints:
        """The sum of the values of these slices, per owner as in ``shares``."""
        sums = np.zeros(len(self.own) + 1, np.int64)  # the last one takes what belongs to nobody
        np.add.at(sums, self.own[rows], values)
        return sums

    def by_name(self, share: Ints) -> Ints:
        """Per name the sum over its owners; nobody's last."""
        return self._named(share[self.row], int(share[-1]))

    def calls_by_name(self) -> Ints:
        """Per name how often it ran."""
        return self._named(self.calls, 0)

    def total(self, *shares: Ints) -> Ints:
        """Per name the sum over its owners and all within them, an owner in its own kind once."""
        whole = np.sum(shares, axis=0)
        below = links.subtree_sum(whole[self.row], self.parent)
        outermost = ~links.below_its_like(self.parent, self.key)
        return self._named(np.where(outermost, below, 0), int(whole[-1]))

    def _named(self, values: Ints, of_nobody: int) -> Ints:
        sums = np.zeros(len(self.names), np.int64)
        np.add.at(sums, self.key, values)
        sums[-1] = of_nobody
        return sums


def owned(trace: Trace, level: str) -> Owned:
    """The owners at that level, and what belongs to whom."""
    owning, slices = LEVELS[level](trace), trace.slices
    nearest = links.nearest_ancestor(owning.cause, owning.owner)
    row = np.flatnonzero(owning.owner)
    index = np.full(len(trace) + 1, NONE, np.int32)
    index[row] = np.arange(len(row))
    key, names = _names(trace, row, owning.detail)
    found = Owned(
        row,
        index[nearest[row]],
        key,
        names,
        (slices["count"].to_numpy()[row] * owning.calls[row]).astype(np.int64),
        np.where(owning.owner, np.arange(len(trace)), nearest).astype(np.int32),
        {},
    )
    return replace(found, shares=_shares(trace, owning, found))


def _shares(trace: Trace, owning: Owning, found: Owned) -> dict[str, Ints]:
    backward, cpu = in_backward(trace), self_times(trace, owning)
    gpu, memory = trace.index.gpu, allocations(trace)
    waits = np.flatnonzero(is_synchronising(trace))
    dur = trace.slices["dur"].to_numpy()
    rows, late = owning.rows, backward[owning.rows]
    return {
        "cpu_self_ns": found.shared(rows, np.where(late, 0, cpu)),
        "backward_cpu_ns": found.shared(rows, np.where(late, cpu, 0)),
        "device_ns": found.shared(gpu, np.where(backward[gpu], 0, dur[gpu])),
        "backward_device_ns": found.shared(gpu, np.where(backward[gpu], dur[gpu], 0)),
        "wait_ns": found.shared(waits, dur[waits]),
        "allocated_bytes": found.shared(memory.row, np.maximum(memory.size, 0)),
    }


def _table(found: Owned) -> pd.DataFrame:
    """The shares of single owners by name, and the totals: what is within its own kind once."""
    shares = found.shares
    table = found.names.assign(
        calls=found.calls_by_name(),
        **{name: found.by_name(share) for name, share in shares.items()},
        cpu_total_ns=found.total(shares["cpu_self_ns"], shares["backward_cpu_ns"]),
        device_total_ns=found.total(shares["device_ns"], shares["backward_device_ns"]),
    )
    costs = [table[column].to_numpy() for column in ("cpu_total_ns", "device_total_ns")]
    named = np.arange(len(table)) < len(table) - 1
    order = np.lexsort((*(-cost for cost in costs), ~named))
    return table.iloc[order].reset_index(drop=True)[list(COLUMNS)]


@remembered
def in_backward(trace: Trace) -> Mask:
    """Which slices ran in a backward pass, or were launched or captured there."""
    slices = trace.slices
    inside = (slices["forward"].to_numpy() >= 0) | is_engine(trace.slices["name"])
    inside |= trace.index.in_category("module_backward")
    inside |= links.nearest_ancestor(slices["parent"].to_numpy(), inside) >= 0
    gpu = trace.index.gpu
    captured = captured_calls(trace)
    launcher = np.where(captured >= 0, captured, trace.index.launcher)
    inside[gpu] = np.append(inside, False)[launcher[gpu]]
    return inside


def self_times(trace: Trace, owning: Owning) -> Ints:
    """Per row of ``owning.rows`` its own CPU time; all add up to the time of the ``cpu`` tracks.

    Frames and ops of a thread are on two tracks. Time in which nothing is on the second is taken
    out of the clock before, so that a frame has none of it and nesting stays as it was.
    """
    if not len(owning.rows):
        return np.empty(0, np.int64)
    ts = trace.slices["ts"].to_numpy()[owning.rows]
    end = ts + trace.slices["dur"].to_numpy()[owning.rows]
    parent, _ = links.nest(ts, end, owning.group)
    counts = trace.index.on_tracks("cpu")[owning.rows]
    room = end.max() - ts.min() + 1  # threads stand one after another on a line, never touching
    place = owning.group.astype(np.int64) * room - ts.min()
    ran = intervals.union((ts + place)[counts], (end + place)[counts])
    started, ended = (intervals.covered_until(ran, times + place) for times in (ts, end))
    return links.self_times(started, ended, parent)


def _names(trace: Trace, row: npt.NDArray[np.intp], detail: str) -> tuple[Ints, pd.DataFrame]:
    """Per owner the number of its name, and the names with their details; nobody's is the last."""
    given = trace.args.get(detail) if detail else None  # an arg may be called "" as well
    known = None if given is None else given.reindex(row).astype(object).fillna("")
    details = "" if known is None else [str(one) for one in known]  # other people's may be lists
    pairs = pd.DataFrame(
        {"name": trace.slices["name"].to_numpy(object)[row], "detail": details}, dtype=object
    )
    key = pairs.groupby(["name", "detail"], sort=False).ngroup().to_numpy().astype(np.int64)
    nobody = pd.DataFrame({"name": [""], "detail": [""]}, dtype=object)
    return key, pd.concat([pairs.drop_duplicates(), nobody], ignore_index=True)


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
