"""The backward pass: what each backward op took, by its forward op, and forwards computed again.

A backward op is the outermost slice with a forward op: autograd's engine where torch recorded it.
Column ``own_ns`` is the time of its formula alone; `recomputed` finds activation checkpointing.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pandas as pd

from gpuprof_widgets.analyses.cold_start import is_communication, is_compiling
from gpuprof_widgets.analyses.columns import group_sums
from gpuprof_widgets.analyses.operators import arg_numbers
from gpuprof_widgets.analyses.owners import region_behind
from gpuprof_widgets.analyses.reasons import BACKWARD, says_if_empty
from gpuprof_widgets.analyses.remembered import remembered
from gpuprof_widgets.analyses.waits import is_synchronising
from gpuprof_widgets.trace import links
from gpuprof_widgets.trace.arrays import Codes, Ints, Mask, Rows
from gpuprof_widgets.trace.index import take
from gpuprof_widgets.trace.model import Record, Trace
from gpuprof_widgets.trace.owners import EVALUATE, is_engine
from gpuprof_widgets.trace.schema import NONE

KEYS = ["name", "forward", "module", "line", "cell"]
NUMBERS = ["calls", "cpu_ns", "own_ns", "forward_cpu_ns", "device_ns", "wait_ns"]


@says_if_empty(BACKWARD)
@remembered
def backward_ops(record: Record) -> pd.DataFrame:
    """One row per backward op, forward op, module and line, the longest on the CPU first.

    What the engine does itself (``AccumulateGrad``) is in no row.

    Columns:

    - ``name``: ``GatherBackward0``.
    - ``forward``: its forward op, ``aten::gather``.
    - ``module``, ``line``, ``cell``: in which the forward op ran; "" and -1: unknown.
    - ``calls``: of the backward op.
    - ``cpu_ns``: time on the thread of the backward pass, waits and hooks included.
    - ``own_ns``: that without hooks, collectives, torch.compile's work and a forward computed again
      (checkpointing).
    - ``forward_cpu_ns``: of the forward ops.
    - ``device_ns``: GPU time launched.
    - ``wait_ns``: waited for the GPU.
    - ``row``: the longest call.

    Source: the links between forward and backward ops are Kineto's (``fwdbwd``) and torch's
    sequence numbers.
    """
    trace = record.trace
    # The outermost slice of each call of a backward op: the engine's if recorded.
    forward_of = trace.index.column("forward")
    backward = forward_of >= 0
    outer = links.nearest_ancestor(trace.index.parent, backward)
    calls = backward & ((outer < 0) | (forward_of[outer] != forward_of))
    rows = np.flatnonzero(calls)
    above = links.nearest_ancestor(trace.index.parent, calls)
    call = np.where(calls, np.arange(len(trace)), above)
    call_of = np.where(trace.index.is_gpu, take(call, trace.index.launcher), call)
    dur = trace.index.dur

    def summed(mask: Mask) -> Ints:
        # The last sum takes what is in no backward op.
        return group_sums(call_of[mask], dur[mask], len(trace) + 1)[rows]

    forward = forward_of[rows]
    module, line = (region_behind(trace, kind)[forward] for kind in ("module", "cell_line"))
    cells = trace.args.get("cell", pd.Series(dtype=object)).to_dict()
    is_first = np.zeros(len(forward), bool)
    is_first[np.unique(forward, return_index=True)[1]] = True
    alone = np.append(dur, 0)  # without backward passes in it: checkpointing runs one
    np.subtract.at(alone, above[rows], dur[rows])
    table = pd.DataFrame(
        {
            "name": [str(name).removeprefix(EVALUATE) for name in trace.index.names_of(rows)],
            "forward": trace.index.names_of(forward),
            "module": trace.index.names_of(module),
            "line": arg_numbers(trace, "line", line, NONE),
            "cell": np.array([cells.get(row, "") for row in line.tolist()], object),
            "calls": trace.index.column("count")[rows].astype(np.int64),
            "cpu_ns": alone[rows],
            "own_ns": formula_ns(trace, calls, above)[rows],
            "forward_cpu_ns": np.where(is_first, dur[forward], 0),
            "device_ns": summed(trace.index.is_gpu),
            "wait_ns": summed(is_synchronising(trace)),
            "row": rows.astype(np.int32),
        }
    )
    table = table.sort_values("cpu_ns", ascending=False, kind="stable")
    table = table.groupby(KEYS, sort=False, as_index=False).agg(
        {**dict.fromkeys(NUMBERS, "sum"), "row": "first"}
    )
    return table.sort_values("cpu_ns", ascending=False, kind="stable", ignore_index=True)


def backward_ns(record: Record) -> int:
    """Return how long the backward passes took, on all threads that ran them."""
    index = record.trace.index
    within = (index.column("forward") >= 0) | is_engine(record.trace.slices["name"])
    outermost = within & (links.nearest_ancestor(index.parent, within) < 0)
    return int(index.dur[outermost].sum())


@dataclass(frozen=True)
class Recomputed:
    """Forward ops that ran again in the backward pass, and when they did in each backward op.

    ``rows``: the outermost such ops; ``node``: each backward op in which some ran; ``start_ns``,
    ``end_ns``: from the first to the last of them, with the Python between.
    """

    rows: Rows
    node: Rows
    start_ns: Ints
    end_ns: Ints


@remembered
def recomputed(trace: Trace) -> Recomputed:
    """Return the forward that was computed again in backward ops (activation checkpointing).

    torch gives an op a sequence number if it runs with gradients on. In a backward op gradients are
    off, except while it computes its forward again: with ``use_reentrant=True`` a backward pass
    through that follows within the same op, otherwise the op's formula, without numbers. With
    ``create_graph=True`` gradients are on to the end of the formula: that is no recomputation.
    """
    index, ts, engine = trace.index, trace.index.ts, is_engine(trace.slices["name"])
    going_back = (index.column("forward") >= 0) | (index.column("forward_thread") > 0)
    op = index.is_op & ~engine
    numbered = op & ~going_back & (index.column("sequence") >= 0)
    node = going_back & ~engine
    above = links.nearest_ancestor(index.parent, op | engine | node)
    inside = (op | engine) & take(node, above, False)
    again, after = np.flatnonzero(inside & numbered), np.flatnonzero(inside & ~numbered)
    last = np.full(len(trace), np.iinfo(np.int64).min)
    np.maximum.at(last, above[after], ts[after])
    again = again[ts[again] < last[above[again]]]
    again = again[np.argsort(above[again], kind="stable")]  # and by time, as the rows are
    nodes, first = np.unique(above[again], return_index=True)
    end = np.zeros(len(trace), np.int64)
    np.maximum.at(end, above[again], index.end[again])
    return Recomputed(again, nodes.astype(np.intp), ts[again[first]], end[nodes])


def formula_ns(trace: Trace, calls: Mask, above: Codes) -> Ints:
    """Return per slice that is a call of a backward op the time of the op's formula alone.

    That leaves out what the engine does around it (such as hooks), the forward computed again
    (checkpointing), and other backward passes, collectives and compilations within it. ``above``:
    per slice the call around it.
    """
    index, engine = trace.index, is_engine(trace.slices["name"])
    parent, ts, dur, forward = index.parent, index.ts, index.dur, index.column("forward")
    # The op's slice within each call, or the call itself if the engine is not recorded.
    formula = take(engine, above, False) & ~engine & (forward >= 0) & ~calls
    formula &= forward == take(forward, above)
    alone = calls.copy()
    alone[above[formula]] = False
    formula |= alone
    part = formula | engine | is_communication(trace) | is_compiling(trace)
    around = links.nearest_ancestor(parent, part)
    inner = np.flatnonzero(part & (around >= 0))
    inner = inner[formula[around[inner]]]
    again = recomputed(trace)
    until = np.zeros(len(trace), np.int64)
    until[again.node] = again.end_ns
    inner = inner[ts[inner] >= until[around[inner]]]  # earlier ones are in the recomputed forward
    time = np.where(formula, dur, 0).astype(np.int64)
    np.subtract.at(time, around[inner], dur[inner])
    known = formula[again.node]
    time[again.node[known]] -= (again.end_ns - again.start_ns)[known]
    formulas = np.flatnonzero(formula)
    call = np.where(calls[formulas], formulas, above[formulas])
    # A window may cut a formula shorter than what it holds.
    return group_sums(call, np.maximum(time[formulas], 0), len(trace))
