"""Ops and kernels that follow one another again and again: what could be fused or batched.

- `sequences`: kernels that the calls of an op launch in the same order;
- `indexing_loops`: loops that index a tensor row by row, few ops after each ``aten::select``;
- `biased_before_norm`: convolutions whose bias the batch normalisation behind them takes away.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np
import pandas as pd

from gpuprof_widgets.analyses.columns import group_sums, weighted_mean
from gpuprof_widgets.analyses.kernels import counted_gpu_rows
from gpuprof_widgets.analyses.launches import launch_times
from gpuprof_widgets.analyses.op_calls import Call, of_calls
from gpuprof_widgets.analyses.reasons import empty_table
from gpuprof_widgets.exceptions import OptionError
from gpuprof_widgets.trace import links
from gpuprof_widgets.trace.arrays import Floats, Ints, Mask, Rows
from gpuprof_widgets.trace.index import take
from gpuprof_widgets.trace.model import Record, Trace
from gpuprof_widgets.trace.schema import NONE

ARROW = " → "
"""Between the names of a sequence."""
LENGTH = 3
"""Fewest kernels of a sequence (HTA: min_pattern_len)."""

COLUMNS = (
    *("op_name", "sequence", "kernels", "calls", "total_ns", "average_ns", "launching_ns"),
    *("op_ns", "average_until_launch_ns", "average_until_start_ns", "first", "short_kernels"),
)


@dataclass(frozen=True)
class Occurrences:
    """Calls of ops that launched enough kernels, and what each of them launched.

    ``op``: row of each call; ``group``: number of its sequence (row of the table); ``rows``: GPU
    slices of all calls, in order of start within a call; ``call``: position in ``op`` of the call
    that launched each of them.
    """

    op: Rows
    group: Rows
    rows: Rows
    call: Rows


def sequences(
    record: Record, *, op: str | None = None, length: int = LENGTH, top: int = 50
) -> pd.DataFrame:
    """One row per op and sequence of GPU work that its calls launched, the most time first.

    Options:

    - ``op``: a part of the names of the ops to look under (an op within another such op does not
      count); None: the outermost op of each kernel.
    - ``length``: number of GPU slices that a call has to launch at least.
    - ``top``: rows at most.

    Columns:

    - ``op_name``: the op.
    - ``sequence``: the names of kernels, copies and memsets in order of their start, with arrows
      between.
    - ``kernels``: number of GPU slices in the sequence.
    - ``calls``: calls of the op with this very sequence.
    - ``total_ns``, ``average_ns``: GPU time of all calls, and per call.
    - ``launching_ns``: CPU time in the launch calls: what fusing the kernels could save.
    - ``op_ns``: CPU time of the op's calls.
    - ``average_until_launch_ns``: per call, from the op's start to its first launch call; NaN where
      launches are missing.
    - ``average_until_start_ns``: per call, from there to the start on the GPU; NaN where launches
      are missing.
    - ``first``: row of the first call.
    - ``short_kernels``: share of the GPU slices that are shorter than their launch (see
      `launches`).

    Source: HTA's ``get_frequent_cuda_kernel_sequences``, and ``get_aten_op_kernels_and_delay`` for
    the two means. HTA looks only at calls on the lowest depth at which the name occurs, and sorts
    by count; here every call counts.
    """
    if length < 1:
        raise OptionError(f"a sequence has at least one kernel, not {length}")
    matches = occurrences(record.trace, op, length)
    if not len(matches.op):
        under = f"no op whose name holds {op!r}" if op else "no op"
        why = f"{under} launched {length} or more kernels or copies in one call."
        if not len(counted_gpu_rows(record.trace)):
            why = "the trace has no GPU work, so there are no sequences of it."
        return empty_table(COLUMNS, why)
    table = _table(record, matches)
    table = table.sort_values(["total_ns", "first"], ascending=[False, True], kind="stable")
    return table.head(top).reset_index(drop=True)


def occurrences(trace: Trace, op: str | None, length: int) -> Occurrences:
    """Return the calls of ops that launched at least ``length`` GPU slices, grouped by these."""
    rows = counted_gpu_rows(trace)
    ts, _ = trace.index.uncut
    wanted = trace.index.is_op
    if op is not None:
        wanted = wanted & trace.index.named(
            frozenset(name for name in trace.index.names if op in name)
        )
    around = links.outermost(trace.index.parent, wanted)
    owner = take(around, trace.index.column("op")[rows]).astype(np.intp)
    rows, owner = rows[owner >= 0], owner[owner >= 0]
    ops, call, launched = np.unique(owner, return_inverse=True, return_counts=True)
    enough = launched >= length
    kept = enough[call]
    renumbered = np.cumsum(enough) - 1
    rows, call, ops = rows[kept], renumbered[call[kept]], ops[enough]
    order = np.lexsort((ts[rows], call))
    rows, call = rows[order], call[order]
    counts = np.bincount(call, minlength=len(ops))
    ends, launched = np.cumsum(counts), trace.index.name[rows]
    number: dict[tuple[int, bytes], int] = {}  # of an op and its GPU work, in order
    group = [
        number.setdefault((name, launched[start:end].tobytes()), len(number))
        for name, start, end in zip(
            trace.index.name[ops].tolist(), ends - counts, ends, strict=True
        )
    ]
    return Occurrences(ops, np.array(group, np.intp), rows, call)


def _table(record: Record, matches: Occurrences) -> pd.DataFrame:
    trace = record.trace
    ts, end = trace.index.uncut
    dur, names = trace.index.dur, trace.index.names_of
    groups = int(matches.group.max()) + 1
    of_row = matches.group[matches.call]
    launch = trace.index.column("launch")[matches.rows]
    linked = launch >= 0
    calls = np.unique(launch[linked])
    launcher = pd.Series(of_row[linked], index=launch[linked]).groupby(level=0).first()
    launching = end[calls] - ts[calls]
    of_launches = launch_times(record)
    short = np.zeros(len(trace), bool)
    short[of_launches["row"].to_numpy(np.intp)] = of_launches["short"].to_numpy(bool)
    _, first = np.unique(matches.group, return_index=True)
    low, high = (np.searchsorted(matches.call, first, side) for side in ("left", "right"))
    launched = [names(matches.rows[a:b]) for a, b in zip(low, high, strict=True)]
    total = group_sums(of_row, dur[matches.rows], groups)
    count = np.bincount(matches.group, minlength=groups)
    in_all = np.bincount(of_row, minlength=groups)
    columns = {
        "op_name": names(matches.op[first]),
        "sequence": list(map(ARROW.join, launched)),
        "kernels": in_all // count,
        "calls": count,
        "total_ns": total,
        "average_ns": total / count,
        "launching_ns": group_sums(launcher.loc[calls].to_numpy(np.intp), launching, groups),
        "op_ns": group_sums(matches.group, dur[matches.op], groups),
        **_delays(trace, matches, groups),
        "first": matches.op[first].astype(np.int32),
        "short_kernels": np.bincount(of_row, short[matches.rows], minlength=groups) / in_all,
    }
    return pd.DataFrame(columns)


def _delays(trace: Trace, matches: Occurrences, groups: int) -> dict[str, Floats]:
    """Return the mean times from an op's start to its first launch call, and on to its kernel."""
    ts, _ = trace.index.uncut
    launch = trace.index.column("launch")[matches.rows]
    linked = np.flatnonzero(launch >= 0)
    order = linked[np.lexsort((ts[launch[linked]], matches.call[linked]))]
    of_call = matches.call[order]
    first = order[np.diff(of_call, prepend=NONE) != 0]
    calls, called = matches.call[first], ts[launch[first]]
    until_launch, until_start = called - ts[matches.op[calls]], ts[matches.rows[first]] - called
    group, once = matches.group[calls], np.ones(len(calls), np.int64)
    return {
        "average_until_launch_ns": weighted_mean(group, until_launch, once, groups),
        "average_until_start_ns": weighted_mean(group, until_start, once, groups),
    }


SELECT = "aten::select"
FEW_OPS = 10
"""Most ops besides the select in a round that differs from the one before it."""
FAR_LONGER = 10
"""Times the time of nine tenths of the rounds: a round that takes longer does more than index."""
INDEXING_COLUMNS = (
    *("ops", "rounds", "alike", "start_ns", "end_ns", "dur_ns", "per_op_ns", "per_select"),
    "rows",
)


def indexing_loops(record: Record) -> pd.DataFrame:
    """One row per loop of two rounds or more, in order of time.

    A round is ``aten::select`` and its siblings up to the next select, under the same op or
    annotation. Consecutive rounds are a loop if they have the same ops (torch's
    ForLoopIndexingPattern), or at most ten ops besides the select: an ``if`` may decide what is
    done with a row, or a round may have two selects. The last round perhaps has more after it.
    A round that takes far longer than nine tenths of the others does not count in times and means:
    where loops are nested, what the outer one does lies in the last round of the inner one.

    Columns (times in ns): ``ops`` (of the first round, by comma), ``rounds``, ``alike`` (how many
    of them, one after the other, have the same ops), ``start_ns``, ``end_ns``, ``dur_ns`` (between
    these, without rounds that take far longer), ``per_op_ns`` (what an op of the loop takes, the
    mean), ``per_select`` (ops on average, the select among them), ``rows`` (the selects' slices, a
    tuple).
    """
    trace = record.trace
    row, group = siblings(trace)
    selects = np.flatnonzero(trace.index.named(frozenset({SELECT}))[row])
    if len(selects) < 2:  # no round comes twice
        return pd.DataFrame(columns=list(INDEXING_COLUMNS))
    length = np.diff(selects)
    same = _same_rounds(trace.index.name[row].astype(np.int64), group, selects, length)
    short = (length <= FEW_OPS + 1) & (group[selects[1:]] == group[selects[:-1]])
    # How many consecutive rounds are the same, by each of them.
    goes_on = same & np.append(False, same[:-1] & (length[1:] == length[:-1]))
    number = np.cumsum(~goes_on)
    alike = np.where(same, np.bincount(number)[number] + 1, 1)
    edges = np.diff(np.concatenate([[False], same | short, [False]]).astype(np.int8))
    first, last = np.flatnonzero(edges == 1), np.flatnonzero(edges == -1)
    loops = [
        _loop(trace, row, selects[low : high + 1], int(alike[low:high].max()))
        for low, high in zip(first, last, strict=True)
    ]
    return pd.DataFrame(loops, columns=list(INDEXING_COLUMNS))


def siblings(trace: Trace) -> tuple[Rows, Ints]:
    """Return the ops, sorted by what is around them and then by time, and the number of that.

    Cell lines and modules do not count: each round of a loop in a cell has lines of its own.
    """
    index = trace.index
    ops = index.is_op & (index.column("count") > 0)
    above = links.nearest_ancestor(index.parent, ops | index.in_category("user_annotation"))
    row = np.flatnonzero(ops)
    group = above[row].astype(np.int64) * len(trace.tracks) + index.track[row]
    order = np.lexsort((index.ts[row], group))
    return row[order], group[order]


def _same_rounds(code: Ints, group: Ints, selects: Rows, length: Rows) -> Mask:
    """Return per select but the last whether the next round has the same ops."""
    ends = np.searchsorted(group, group[selects[:-1]], side="right")
    same = selects[1:] + length <= ends
    for offset in range(1, int(length[same].max(initial=1))):
        active = np.flatnonzero(same & (offset < length))
        same[active] = code[selects[active] + offset] == code[selects[active + 1] + offset]
    return np.asarray(same, bool)


def _loop(trace: Trace, row: Rows, selects: Rows, alike: int) -> dict[str, object]:
    length = int(selects[1] - selects[0])
    # The last round ends as the one before it does: what follows may be no part of the loop.
    inside = row[selects[0] : selects[-1] + (length if alike == len(selects) else 1)]
    ts, dur = trace.index.ts[inside], trace.index.dur[inside]
    names = [trace.index.names[code] for code in trace.index.name[inside[:length]]]
    at = selects - selects[0]
    spent = np.diff(ts[at])
    far_longer = spent > FAR_LONGER * np.quantile(spent, 0.9, method="lower")
    usual = ~np.append(far_longer, False)
    counted = np.repeat(usual, np.diff(at, append=len(inside)))
    end = int((ts + dur).max())
    return {
        "ops": ", ".join(names),
        "rounds": len(selects),
        "alike": alike,
        "start_ns": int(ts[0]),
        "end_ns": end,
        "dur_ns": end - int(ts[0]) - int(spent[far_longer].sum()),
        "per_op_ns": int(dur[counted].mean()),
        "per_select": counted.sum() / usual.sum(),
        "rows": tuple(row[selects].tolist()),
    }


CONVOLUTION = re.compile(r"aten::conv(_transpose)?[123]d")
NORM = "aten::batch_norm"
COUNTING = "aten::add_"
"""In training, BatchNorm counts its batches between convolution and normalisation."""


def biased_before_norm(trace: Trace) -> Rows:
    """Return the convolutions with a bias whose next op is a batch normalisation of their channels.

    torch's Conv2dBiasFollowedByBatchNorm2dPattern looks at modules and needs stacks; this looks at
    the ops, in any number of dimensions.
    """
    row, group = siblings(trace)
    convolution = trace.index.matching(CONVOLUTION)[row]
    norm, counting = (trace.index.named(frozenset({name}))[row] for name in (NORM, COUNTING))
    at = np.flatnonzero(convolution)
    beyond = len(row)
    following = np.minimum(at + 1, beyond - 1)
    following = np.where(counting[following], np.minimum(following + 1, beyond - 1), following)
    same = norm[following] & (group[following] == group[at]) & (following > at)
    at, following = at[same], following[same]
    channels = np.array(of_calls(trace, row[at], _channels), np.int64)
    normed = np.array(of_calls(trace, row[following], _normed), np.int64)
    return np.asarray(row[at[(channels > 0) & (channels == normed)]], np.intp)


def _channels(call: Call) -> int:
    """Return the output channels of a convolution with a bias; 0 without one."""
    return int(call.dims[2][0]) if call.is_tensor(2) and len(call.dims[2]) == 1 else 0


def _normed(call: Call) -> int:
    """Return the channels of the normalised tensor; -1 if they were not recorded."""
    return int(call.dims[0][1]) if call.is_tensor(0) and len(call.dims[0]) > 1 else -1
