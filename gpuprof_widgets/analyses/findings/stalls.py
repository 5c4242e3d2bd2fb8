"""Stalls of the CPU: ops that take far longer than others of their name, for no reason of theirs.

Whatever op runs then is not to blame: something held up its thread, and with it the launches.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from gpuprof_widgets.analyses.cold_start import cold_spans
from gpuprof_widgets.analyses.columns import format_count, format_ns, format_share
from gpuprof_widgets.analyses.findings.finding import Finding, code, gpu_name, spread
from gpuprof_widgets.analyses.remembered import remembered
from gpuprof_widgets.trace import intervals
from gpuprof_widgets.trace.model import Record, Trace
from gpuprof_widgets.trace.schema import LAUNCH_CATEGORIES

LAUNCH = re.compile(r"(cuda|hip|cu)\w*Launch\w*")
TIMES_USUAL = 20
"""Times the median of its kind: an op this much longer stalled."""
LEAST_CALLS = 5
"""Ops of a kind from which on their median tells what is usual."""
LEAST_NS = 1_000_000
"""Length of a gap from which on a stall is looked for."""
MOST = 0.5
"""Share of a gap in which the stalled op ran, of all idle time that is mostly stalls, and of an op
that is a first call."""
REMEDY = (
    "The op is not to blame: something held up the thread that launches. Possible reasons: other "
    "programs, ranks or threads on its CPUs, garbage collection, first calls, or the recording "
    "itself. Give each rank separate CPUs, warm up for longer, and record again."
)


@dataclass(frozen=True)
class StalledOps:
    """The ops that stalled: their rows, and for each the median duration of its kind in ns."""

    row: npt.NDArray[np.intp]
    usual_ns: npt.NDArray[np.float64]


@remembered
def stalled_ops(record: Record) -> StalledOps:
    """Return the ops that took 20 times the median of their kind.

    Of one kind are ops of one name that all launch GPU work, or all none: on tensors of the CPU an
    op takes as long as it computes. The first of a kind, and what first calls take time of, is no
    stall.
    """
    trace, index = record.trace, record.trace.index
    row = np.flatnonzero(index.is_op)
    kinds = pd.DataFrame(
        {"name": index.name[row], "launches": _launches(trace)[row], "dur": index.dur[row]}
    )
    by_kind = kinds.groupby(["name", "launches"])["dur"]
    usual, calls = by_kind.transform("median"), by_kind.transform("size")
    long = (calls >= LEAST_CALLS) & (usual > 0) & (kinds["dur"] >= TIMES_USUAL * usual)
    long &= by_kind.cumcount() > 0
    cold = intervals.overlap((index.ts[row], index.end[row]), cold_spans(record))
    chosen = long.to_numpy(bool) & (cold < MOST * index.dur[row])
    return StalledOps(row[chosen], usual.to_numpy(float)[chosen])


def _launches(trace: Trace) -> npt.NDArray[np.bool_]:
    """Which slices launched GPU work, themselves or in what they called."""
    launches = np.zeros(len(trace), bool)
    parent, op = trace.index.parent, trace.index.column("op")[trace.index.gpu]
    rows = intervals.distinct(op[op >= 0])
    while len(rows):
        launches[rows] = True
        rows = intervals.distinct(parent[rows])
        rows = rows[rows >= 0]
        rows = rows[~launches[rows]]
    return launches


@dataclass(frozen=True)
class Stalls:
    """The gaps of a GPU (rows of `idle`, the longest first) and the op that stalled in each."""

    gaps: pd.DataFrame
    ops: StalledOps

    def in_words(self, trace: Trace, span_ns: int) -> str:
        """Return the number and time of the gaps, and what stalled in the longest."""
        took, longest = int(self.gaps["dur_ns"].sum()), int(self.gaps["dur_ns"].iloc[0])
        name = str(trace.index.names_of(self.ops.row[:1])[0])
        return (
            f"{format_count(len(self.gaps), 'gap')} ({format_ns(took)}, "
            f"{format_share(took / span_ns)} of the time) in which an op on the CPU stalled. In "
            f"the longest gap ({format_ns(longest)}), {code(name)} took "
            f"{format_ns(int(trace.index.dur[self.ops.row[0]]))}; its median call takes "
            f"{format_ns(self.ops.usual_ns[0])}"
        )


def main_stalls(record: Record, gaps: pd.DataFrame) -> Stalls | None:
    """Return the stalls that caused most of a GPU's idle time; None where they did not.

    ``gaps``: those of the GPU, the longest first. Runtime calls that are no launches take long for
    reasons of their own (allocations, copies, set-up).
    """
    whole, index = int(gaps["dur_ns"].sum()), record.trace.index
    cpu = gaps["cpu"].to_numpy(np.int64)
    is_call = np.append(index.in_category(*LAUNCH_CATEGORIES), False)[cpu]
    launches = np.append(index.matching(LAUNCH), False)[cpu]
    long = gaps[(gaps["dur_ns"] >= LEAST_NS).to_numpy(bool) & (~is_call | launches)]
    if int(long["dur_ns"].sum()) <= MOST * whole:
        return None
    stalled = stalled_ops(record)
    at = np.array([_stalled_in(record.trace, stalled, gap) for _, gap in long.iterrows()], int)
    found = long[at >= 0]
    if int(found["dur_ns"].sum()) <= MOST * whole:
        return None
    at = at[at >= 0]
    return Stalls(found, StalledOps(stalled.row[at], stalled.usual_ns[at]))


def _stalled_in(trace: Trace, stalled: StalledOps, gap: pd.Series) -> int:
    """Return which of the stalled ops ran most of a gap on its thread, the innermost; -1: none."""
    index, row = trace.index, stalled.row
    start = np.maximum(index.ts[row], gap["start_ns"])
    during = np.minimum(index.end[row], gap["end_ns"]) - start
    on_thread = index.column("track")[row] == gap["thread"]
    found = np.flatnonzero(on_thread & (during >= MOST * gap["dur_ns"]))
    return int(found[index.dur[row[found]].argmin()]) if len(found) else -1


def of_stalls(record: Record, busy: Any, before: str, stalls: Stalls) -> Finding:
    """Return the finding on a GPU (a row of `device_busy`) that waits for stalls."""
    longest = stalls.gaps.iloc[0]
    return Finding(
        f"{before} It was idle for {format_ns(busy.idle_ns)}, mostly in "
        f"{stalls.in_words(record.trace, busy.span_ns)}.",
        int(busy.idle_ns),
        1 - busy.busy_share,
        int(longest["start_ns"]),
        int(longest["end_ns"]),
        spread(np.unique(stalls.ops.row)),
        REMEDY,
        title=f"{gpu_name(busy.device)} is idle, mostly while the CPU stalls",
    )
