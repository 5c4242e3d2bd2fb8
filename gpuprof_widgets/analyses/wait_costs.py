"""What waiting for the GPU costs: not the wait, but the GPU that has nothing to do by it."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pandas as pd

from gpuprof_widgets.trace import intervals
from gpuprof_widgets.trace.model import Trace

Ints = npt.NDArray[np.int64]


def wait_costs(trace: Trace, table: pd.DataFrame) -> Ints:
    """Per synchronising call of `waits` how many ns the run could be shorter without, at most.

    Without the wait the CPU would be ahead by as much, until it waits again. So it costs the time
    in it in which no GPU worked, and that after it until the next wait in which none had work
    queued (`_starved`); of both no more than it took. Calls of one op wait as one, whose cost is
    the longest call's.
    """
    if not len(table):
        return np.empty(0, np.int64)
    order = np.argsort(table["start_ns"].to_numpy(), kind="stable")
    start, dur, busy, op = (
        table[name].to_numpy(np.int64)[order]
        for name in ("start_ns", "dur_ns", "gpu_busy_ns", "op")
    )
    begins = np.append(True, (op[1:] != op[:-1]) | (op[1:] < 0))
    first = np.flatnonzero(begins)
    waited, idle = (np.add.reduceat(values, first) for values in (dur, dur - busy))
    end = np.maximum.reduceat(start + dur, first)
    until = np.maximum(np.append(start[first[1:]], trace.end_ns), end)
    lost = idle + intervals.overlap((end, until), _starved(trace))
    longest = np.lexsort((dur, np.cumsum(begins)))[np.append(first[1:], len(order)) - 1]
    costs = np.zeros(len(table), np.int64)
    costs[order[longest]] = np.minimum(lost, waited)
    return costs


def _starved(trace: Trace) -> intervals.Intervals:
    """When no GPU worked, and what came next was launched only then, or nothing came."""
    ts, gpu = trace.index.ts, trace.index.gpu
    gpu = gpu[np.argsort(ts[gpu], kind="stable")]
    free = np.append(trace.start_ns, np.maximum.accumulate(trace.index.end[gpu]))
    begins = np.append(ts[gpu], trace.end_ns)
    launch = np.append(trace.index.column("launch")[gpu], -1)
    empty = (launch < 0) | (np.append(ts, 0)[launch] >= free)
    return intervals.union(free[empty], begins[empty])
