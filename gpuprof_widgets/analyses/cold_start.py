"""What is paid once per process: first calls, which load libraries and the code of kernels."""

from __future__ import annotations

import re

import numpy as np
import numpy.typing as npt
import pandas as pd

from gpuprof_widgets.analyses.kernels import launching_op
from gpuprof_widgets.analyses.launches import SLOW_CALL_NS, launches
from gpuprof_widgets.analyses.remembered import remembered
from gpuprof_widgets.trace import intervals
from gpuprof_widgets.trace.intervals import Intervals
from gpuprof_widgets.trace.model import Record, Trace

Ints = npt.NDArray[np.int64]
Rows = npt.NDArray[np.intp]

TIMES_LATER = 10
"""As long as a later call of the same: from here on a first one did more than they do."""
SLOW_OP_NS = 1_000_000
"""Of a first op: on the CPU no op that launches takes that long once it is warm."""
LOADING = re.compile(
    r"cu(Module|Library)(Load|Get)\w*|cuda(Library|Module)\w*|cuda(GetFuncBySymbol|FuncGetAttrib)\w*"
    r"|hip(Module(Load|GetFunction)|FuncGetAttrib|GetFuncBySymbol)\w*"
)
"""Calls that load kernels' code: by default (CUDA_MODULE_LOADING=LAZY) each at its first use."""


LAUNCH, LOAD, OP = "first launch", "loading", "first op"
COLUMNS = ("row", "kind", "start_ns", "dur_ns", "later_ns")


@remembered
def cold_start(record: Record) -> pd.DataFrame:
    """One row per first call that took far longer than later ones of the same.

    Columns: ``row``, ``kind``, ``start_ns``, ``dur_ns``, ``later_ns`` (what a later one takes at
    the median; 0 where there is none). Kinds: "first launch" of a kernel that had not run before
    (over 50 µs, and ten times what launches of kernels that had take at the median), "loading" (a
    call, of any time, that loads modules; over 50 µs), and "first op", which launches GPU work
    (over 1 ms, and ten times the median of its later calls).
    """
    found = [_first_launches(record), _loading(record.trace), _first_ops(record.trace)]
    rows, later = (np.concatenate(column).astype(np.int64) for column in zip(*found, strict=True))
    ts, dur = (record.trace.slices[name].to_numpy(np.int64)[rows] for name in ("ts", "dur"))
    kinds = np.repeat(np.array([LAUNCH, LOAD, OP], object), [len(part) for part, _ in found])
    return pd.DataFrame(dict(zip(COLUMNS, (rows, kinds, ts, dur, later), strict=True)))


def cold_spans(record: Record) -> Intervals:
    """The disjoint stretches of time in which any of these calls was open."""
    table = cold_start(record)
    return intervals.union(table["start_ns"], table["start_ns"] + table["dur_ns"])


def _first_launches(record: Record) -> tuple[Rows, Ints]:
    """Rows of these calls, and what later launches take."""
    table = launches(record)[["category", "launched", "name", "call_ns", "launch"]]
    table = table[((table["category"] == "kernel") & (table["launched"] == 1)).to_numpy(bool)]
    first = ~table["name"].duplicated().to_numpy(bool)
    took = table["call_ns"].to_numpy(np.int64)
    later = 0 if first.all() else round(float(np.median(took[~first])))
    cold = first & (took > max(SLOW_CALL_NS, TIMES_LATER * later))
    rows = table["launch"].to_numpy(np.intp)[cold]
    return rows, np.full(len(rows), later)


def _loading(trace: Trace) -> tuple[Rows, Ints]:
    calls = trace.index.is_launch
    slow = trace.slices["dur"].to_numpy(np.int64) > SLOW_CALL_NS
    rows = np.flatnonzero(calls & trace.index.matching(LOADING) & slow)
    return rows, np.zeros(len(rows), np.int64)


def _first_ops(trace: Trace) -> tuple[Rows, Ints]:
    """First calls of the ops that launch GPU work, by their names, which later took far less."""
    op = launching_op(trace)[trace.index.gpu]
    rows = np.unique(op[op >= 0])
    calls = pd.DataFrame({
        "row": rows,
        "name": trace.slices["name"].cat.codes.to_numpy()[rows],
        "ts": trace.slices["ts"].to_numpy(np.int64)[rows],
        "dur": trace.slices["dur"].to_numpy(np.int64)[rows],
    }).sort_values("ts", kind="stable")  # fmt: skip
    again = calls["name"].duplicated()
    median = calls[again].groupby("name")["dur"].median()
    first = calls[~again]
    later = median.reindex(first["name"]).to_numpy(float)  # NaN, and never cold, without any
    cold = (first["dur"].to_numpy() >= SLOW_OP_NS) & (first["dur"].to_numpy() > TIMES_LATER * later)
    return first["row"].to_numpy(np.intp)[cold], later[cold].astype(np.int64)
