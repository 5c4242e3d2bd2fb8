"""How full the queues were from which a run took its input."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from gpuprof_widgets.analyses.lacking import lacking
from gpuprof_widgets.analyses.waits import is_taking
from gpuprof_widgets.trace import intervals
from gpuprof_widgets.trace.model import Record, Trace
from gpuprof_widgets.trace.schema import EXECUTOR_LANE, NODE, NONE

COLUMNS = ("name", "source", "taken", "put", "empty_ns", "empty_share", "least", "average", "most")

PUTTING = re.compile(r"QueueEnqueue(V2)?|(Ordered)?(Map)?Stage")
SEVERAL = re.compile(r"Queue(Enqueue|Dequeue)(Many|UpTo)(V2)?")
"""Ops that move as many items at once as no trace tells."""
FIRST_INPUT = "input0"
OF_QUEUE = re.compile(
    r"(queue|prefetch|dataloader|buffer|iterator)\W*(size|length|depth|elements|items|batches|full)"
    r"|fraction_of_\d+_full",
    re.IGNORECASE,
)
"""Names of counters of how much is in a queue of inputs."""


def input_queues(record: Record) -> pd.DataFrame:
    """One row per queue or iterator from which the run took its input, the emptiest first.

    Columns: ``name`` (its node, or the counter's name); ``source`` ("ops": TensorFlow's that take
    from it and put into it; "counter": its own); ``taken``, ``put``: such ops in the trace
    (-1: of a counter unknown);
    ``empty_ns``, ``empty_share`` (of the trace's time): how long a take waited, so that nothing was
    there, by its counter how long that said 0; ``least``, ``average``, ``most``: items in it, over
    the time (NaN: unknown). By ops these are known where the trace has both sides, one item each;
    as what lay there at first is not told, no more than had to.
    """
    trace = record.trace
    rows = [*_of_counters(trace), *_of_ops(trace)]
    if not rows:
        why = "the trace has no op that takes from a queue or an iterator, and no counter of one"
        return lacking(COLUMNS, why)
    table = pd.DataFrame(rows, columns=list(COLUMNS))
    return table.sort_values("empty_ns", ascending=False, kind="stable", ignore_index=True)


def _of_ops(trace: Trace) -> list[tuple[object, ...]]:
    takes = is_taking(trace)
    if not takes.any():
        return []
    on_executor = np.zeros(len(trace), bool)
    on_executor[trace.args[EXECUTOR_LANE].index.to_numpy()] = True
    puts = trace.index.matching(PUTTING) & on_executor
    several = trace.index.matching(SEVERAL) & on_executor
    queue = _queues(trace, np.flatnonzero(takes | puts | several))
    ts = trace.slices["ts"].to_numpy()
    end = ts + trace.slices["dur"].to_numpy()
    found: list[tuple[object, ...]] = []
    for name, group in queue.groupby(queue, sort=False):
        row = group.index.to_numpy()
        taken, put = row[takes[row]], row[~takes[row]]
        if not len(taken):
            continue
        empty = intervals.length(intervals.union(ts[taken], end[taken]))
        levels: tuple[float, ...] = (np.nan,) * 3
        if len(put) and not several[row].any():
            order = np.lexsort((takes[row], end[row]))  # of one moment, what is put comes first
            held = np.cumsum(np.where(takes[row], -1, 1)[order])
            held = np.append(0, held) - min(int(held.min()), 0)
            levels = _levels(np.append(trace.start_ns, end[row][order]), held, trace)
        share = empty / max(trace.span_ns, 1)
        found.append((name, "ops", len(taken), len(put), empty, share, *levels))
    return found


def _queues(trace: Trace, row: npt.NDArray[np.intp]) -> pd.Series:
    """Of each op the node of its queue: its first input, else its own."""
    own, first = (
        trace.args.get(key, pd.Series(dtype=object)).reindex(row).astype(object)
        for key in (NODE, FIRST_INPUT)
    )
    names = pd.Series(trace.slices["name"].to_numpy(object)[row], index=row)
    return first.fillna(own).fillna(names).astype(str).str.replace(r":\d+$", "", regex=True)


def _of_counters(trace: Trace) -> list[tuple[object, ...]]:
    found: list[tuple[object, ...]] = []
    for name, changes in trace.counters.groupby("name", observed=True, sort=False):
        if OF_QUEUE.search(str(name)):
            ts, held = changes["ts"].to_numpy(), changes["value"].to_numpy()
            lasts = np.diff(np.append(ts, trace.end_ns))
            empty = int(lasts[held == 0].sum())
            share = empty / max(trace.span_ns, 1)
            levels = _levels(ts, held, trace)
            found.append((str(name), "counter", NONE, NONE, empty, share, *levels))
    return found


def _levels(ts: npt.NDArray[np.int64], held: npt.NDArray[Any], trace: Trace) -> tuple[float, ...]:
    """The least, the average over the time and the most, each value from its time on."""
    lasts = np.diff(np.append(ts, trace.end_ns))
    average = float((held * lasts).sum() / lasts.sum()) if lasts.sum() else float(held[-1])
    return float(held.min()), average, float(held.max())
