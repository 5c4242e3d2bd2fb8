"""Which kernels follow one another again and again under an op: what could be fused."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pandas as pd

from gpuprof_widgets.analyses.kernels import counted_gpu_rows
from gpuprof_widgets.analyses.lacking import lacking
from gpuprof_widgets.analyses.launches import launches
from gpuprof_widgets.exceptions import OptionError
from gpuprof_widgets.trace import links
from gpuprof_widgets.trace.model import Record, Trace
from gpuprof_widgets.trace.schema import NONE

Rows = npt.NDArray[np.intp]

ARROW = " → "
"""Between the names of a sequence."""
LENGTH = 3
"""Kernels of a sequence at least (HTA: min_pattern_len)."""

COLUMNS = (
    *("op_name", "sequence", "kernels", "calls", "total_ns", "average_ns", "launching_ns"),
    *("op_ns", "average_until_launch_ns", "average_until_start_ns", "first", "short_kernels"),
)


@dataclass(frozen=True)
class Occurrences:
    """Calls of ops that launched enough kernels, and what each of them launched.

    ``op``: row of each call; ``group``: which sequence (row of the table) it is one of; ``rows``:
    the GPU slices of all calls in the order of their start, ``call`` the position of each one's
    call in ``op``.
    """

    op: Rows
    group: Rows
    rows: Rows
    call: Rows


def sequences(
    record: Record, *, op: str | None = None, length: int = LENGTH, top: int = 50
) -> pd.DataFrame:
    """One row per op and sequence of GPU work that its calls launched, the most time first.

    ``op``: a part of the names of the ops to look under (those that lie in no other such op);
    without one, the outermost op of each kernel. ``length``: GPU slices that a call has to launch
    at least; ``top``: rows at most. Columns: ``op_name``, ``sequence`` (the names of kernels,
    copies and memsets by their start, with arrows between), ``kernels`` (how many), ``calls`` (of
    the op with this very sequence), ``total_ns`` (of the GPU), ``average_ns`` (per call),
    ``launching_ns`` (CPU time in the launch calls: what fusing could spare), ``op_ns`` (of the op's
    calls on the CPU), ``average_until_launch_ns`` (per call, from the op's start to its first
    launch call) and ``average_until_start_ns`` (from there to the start on the GPU; both NaN where
    launches are missing), ``first`` (row of the first call), ``short_kernels`` (share that is
    shorter than its launch; see `launches`).

    HTA (get_frequent_cuda_kernel_sequences) looks only at the calls on the lowest depth at which
    the name occurs, and sorts by count; here every call counts, wherever it is. The two means are
    those of its get_aten_op_kernels_and_delay.
    """
    if length < 1:
        raise OptionError(f"a sequence has at least one kernel, not {length}")
    found = occurrences(record.trace, op, length)
    if not len(found.op):
        return lacking(COLUMNS, _why(record.trace, op, length))
    table = _table(record, found)
    table = table.sort_values(["total_ns", "first"], ascending=[False, True], kind="stable")
    return table.head(top).reset_index(drop=True)


def occurrences(trace: Trace, op: str | None, length: int) -> Occurrences:
    """The calls of ops that launched at least so many GPU slices, grouped by what they launched."""
    rows = counted_gpu_rows(trace)
    ts, _ = trace.index.uncut
    around = links.outermost(trace.index.parent, _wanted(trace, op))
    owner = np.append(around, NONE)[trace.index.column("op")[rows]].astype(np.intp)
    rows, owner = rows[owner >= 0], owner[owner >= 0]
    ops, call, launched = np.unique(owner, return_inverse=True, return_counts=True)
    enough = launched >= length
    kept = enough[call]
    renumbered = np.cumsum(enough) - 1
    rows, call, ops = rows[kept], renumbered[call[kept]], ops[enough]
    order = np.lexsort((ts[rows], call))
    rows, call = rows[order], call[order]
    return Occurrences(ops, _alike(trace, ops, rows, call), rows, call)


def _wanted(trace: Trace, op: str | None) -> npt.NDArray[np.bool_]:
    ops = trace.index.is_op
    if op is None:
        return ops
    return ops & trace.index.named(frozenset(name for name in trace.index.names if op in name))


def _alike(trace: Trace, ops: Rows, rows: Rows, call: Rows) -> Rows:
    """Per call the number of its sequence: same op, same GPU work in the same order."""
    codes = trace.slices["name"].cat.codes.to_numpy().astype(np.int32)
    counts = np.bincount(call, minlength=len(ops))
    ends = np.cumsum(counts)
    worked = codes[rows]
    keys = [
        (int(codes[op]), worked[start:end].tobytes())
        for op, start, end in zip(ops, ends - counts, ends, strict=True)
    ]
    number: dict[tuple[int, bytes], int] = {}
    return np.array([number.setdefault(key, len(number)) for key in keys], np.intp)


def _table(record: Record, found: Occurrences) -> pd.DataFrame:
    trace, slices = record.trace, record.trace.slices
    ts, end = trace.index.uncut
    dur = slices["dur"].to_numpy()
    groups = int(found.group.max()) + 1
    of_row = found.group[found.call]
    launch = slices["launch"].to_numpy()[found.rows]
    linked = launch >= 0
    calls = np.unique(launch[linked])
    launcher = pd.Series(of_row[linked], index=launch[linked]).groupby(level=0).first()
    launching = end[calls] - ts[calls]
    of_launches = launches(record)
    short = np.zeros(len(trace), bool)
    short[of_launches["row"].to_numpy(np.intp)] = of_launches["short"].to_numpy(bool)
    _, first = np.unique(found.group, return_index=True)
    total = _sum(of_row, dur[found.rows], groups)
    count = np.bincount(found.group, minlength=groups)
    in_all = np.bincount(of_row, minlength=groups)
    columns = {
        "op_name": slices["name"].to_numpy(object)[found.op[first]],
        "sequence": _texts(trace, found, first),
        "kernels": in_all // count,
        "calls": count,
        "total_ns": total,
        "average_ns": total / count,
        "launching_ns": _sum(launcher.loc[calls].to_numpy(np.intp), launching, groups),
        "op_ns": _sum(found.group, dur[found.op], groups),
        **_delays(trace, found, groups),
        "first": found.op[first].astype(np.int32),
        "short_kernels": np.bincount(of_row, short[found.rows], minlength=groups) / in_all,
    }
    return pd.DataFrame(columns)


def _delays(trace: Trace, found: Occurrences, groups: int) -> dict[str, npt.NDArray[np.float64]]:
    """Mean time from an op's start to its first launch call, and on to the start on the GPU."""
    ts, _ = trace.index.uncut
    launch = trace.slices["launch"].to_numpy()[found.rows]
    linked = np.flatnonzero(launch >= 0)
    order = linked[np.lexsort((ts[launch[linked]], found.call[linked]))]
    of_call = found.call[order]
    first = order[np.append(True, np.diff(of_call) != 0)[: len(order)]]
    calls, called = found.call[first], ts[launch[first]]
    count = np.bincount(found.group[calls], minlength=groups)
    means = {}
    for key, delay in (
        ("average_until_launch_ns", called - ts[found.op[calls]]),
        ("average_until_start_ns", ts[found.rows[first]] - called),
    ):
        total = np.bincount(found.group[calls], delay, minlength=groups)
        means[key] = np.where(count > 0, total / np.maximum(count, 1), np.nan)
    return means


def _texts(trace: Trace, found: Occurrences, first: Rows) -> list[str]:
    names = trace.slices["name"].to_numpy(object)
    low = np.searchsorted(found.call, first, side="left")
    high = np.searchsorted(found.call, first, side="right")
    return [ARROW.join(names[found.rows[start:end]]) for start, end in zip(low, high, strict=True)]


def _sum(
    group: npt.NDArray[np.intp], values: npt.NDArray[np.int64], groups: int
) -> npt.NDArray[np.int64]:
    total = np.zeros(groups, np.int64)
    np.add.at(total, group, values)
    return total


def _why(trace: Trace, op: str | None, length: int) -> str:
    if not len(counted_gpu_rows(trace)):
        return "the trace has no GPU work, so there are no sequences of it."
    under = f"no op whose name holds {op!r}" if op else "no op"
    return f"{under} launched {length} or more kernels or copies in one call."
