"""Cold start and CPU time that belongs to no op: first calls, the recording, compiling, dispatch.

`cold_start` lists the first calls, which load libraries and kernels' code and are paid once per
process. `recording_time` is when the recording held up a launch. The masks below mark CPU slices of
torch.compile, of communication and of dispatch, so that other analyses do not take their time for
an op's.
"""

from __future__ import annotations

import re

import numpy as np
import pandas as pd

from gpuprof_widgets.analyses.collectives import HANDING_OVER, annotation
from gpuprof_widgets.analyses.gpu_work import open_times
from gpuprof_widgets.analyses.kernels import launching_op
from gpuprof_widgets.analyses.launches import SLOW_CALL_NS, launch_times
from gpuprof_widgets.analyses.remembered import remembered
from gpuprof_widgets.trace import intervals, links
from gpuprof_widgets.trace.arrays import Ints, Mask, Rows
from gpuprof_widgets.trace.intervals import Intervals
from gpuprof_widgets.trace.model import Record, Trace

TIMES_LATER = 10
"""A first call that takes this many times a later call's time did more than later calls do."""
SLOW_OP_NS = 1_000_000
"""A first op takes this long at least; no warm op that launches does, on the CPU."""
LOADING = re.compile(
    r"cu(Module|Library)(Load|Get)\w*|cuda(Library|Module)\w*|cuda(GetFuncBySymbol|FuncGetAttrib)\w*"
    r"|hip(Module(Load|GetFunction)|FuncGetAttrib|GetFuncBySymbol)\w*"
)
"""Calls that load kernels' code: by default (CUDA_MODULE_LOADING=LAZY) each at its first use."""

LAUNCH, LOAD, OP = "first launch", "loading", "first op"
BUFFERS = frozenset({"Activity Buffer Request"})
"""What CUPTI reports when it asks for memory for its records, in the launch that needs it: 0.4 to
3.2 ms on an H200 (CUDA 13, torch 2.11), in the first launch of each thread, seldom in others."""

COLUMNS = ("row", "kind", "start_ns", "dur_ns", "later_ns")

TIMED = re.compile(r".* \(dynamo_timed\)")
"""Spans of `dynamo_timed` (torch/_dynamo/utils.py): all phases, backends and tuning included."""
COMPILING = re.compile(
    rf"{TIMED.pattern}|dynamo|entire_(frame|backward)_compile|.+_data: .*compile_id=.+"
    r"|TorchDynamo Cache Lookup"
)
"""Those, and what else torch.compile marks of its work (`ChromiumEventLogger`,
torch/_dynamo/utils.py), and its search for a graph that fits."""
COMPILED_FUNCTION = re.compile(r"_compile(?:\.(?:<locals>\.)?compile_inner)? \(dynamo_timed\)")
"""One compilation as the trace has it; before torch 2.6 the middle was spelt otherwise."""

COMMUNICATION = "communication"
COMPILATION = "torch.compile's own work"
DISPATCH = "hooks and Python that hands over"

_PACKING = "fsdp::"
"""How the names of ops begin that copy parameters into a message and out of it."""

_AROUND = re.compile(
    r"PythonDispatchMode|PythonSubclass|PythonTLSSnapshot|autograd::engine::.+"
    r"|RegisterPostBackwardFunction(Backward)?|BackwardHookFunction(Backward)?"
    r"|Torch-Compiled Region.*|Pregraph bytecode|AOTDispatcher .+|CompiledFunction(Backward)?"
)
"""What torch marks around calls of others; the self time is that of hooks and of Python that hands
over. Line by line: modes, subclasses (torch/csrc/autograd/) and hooks of autograd; hooks of FSDP
and of modules; torch.compile (torch/_dynamo, torch/_functorch)."""


@remembered
def cold_start(record: Record) -> pd.DataFrame:
    """One row per first call that took far longer than later ones of the same.

    Columns: ``row``, ``kind``, ``start_ns``, ``dur_ns``, ``later_ns`` (what a later one takes at
    the median; 0 where there is none). Kinds: "first launch" of a kernel that had not run before
    (over 50 µs, and ten times what launches of kernels that had take at the median), "loading" (a
    call, of any time, that loads modules; over 50 µs), and "first op", which launches GPU work
    (over 1 ms, and ten times the median of its later calls).
    """
    index = record.trace.index
    slow = index.is_launch & index.matching(LOADING) & (index.dur > SLOW_CALL_NS)
    loading = np.flatnonzero(slow)
    calls = [
        _first_launches(record),
        (loading, np.zeros(len(loading), np.int64)),
        _first_ops(record.trace),
    ]
    rows, later = (np.concatenate(column).astype(np.int64) for column in zip(*calls, strict=True))
    kinds = np.repeat(np.array([LAUNCH, LOAD, OP], object), [len(part) for part, _ in calls])
    columns = rows, kinds, index.ts[rows], index.dur[rows], later
    return pd.DataFrame(dict(zip(COLUMNS, columns, strict=True)))


def cold_spans(record: Record) -> Intervals:
    """Return the disjoint intervals in which any of these calls was open, less `recording_time`."""
    table = cold_start(record)
    spans = intervals.union(table["start_ns"], table["start_ns"] + table["dur_ns"])
    return intervals.difference(spans, recording_time(record.trace))


def paid_once(record: Record) -> Intervals:
    """Return the disjoint intervals of first calls and of the recording's own start."""
    parts = cold_spans(record), recording_time(record.trace)
    return intervals.union(*(np.concatenate(edges) for edges in zip(*parts, strict=True)))


@remembered
def recording_time(trace: Trace) -> Intervals:
    """Return the disjoint intervals in which the recording asked for memory amid a launch.

    The trace does not say in whose launch. Where calls of the runtime ran meanwhile, some thread
    was not held up, and the interval is left out.
    """
    index = trace.index
    asked = np.flatnonzero(index.in_category("overhead") & index.named(BUFFERS))
    calls = np.flatnonzero(index.is_launch)
    calls = calls[np.argsort(index.ts[calls], kind="stable")]
    first, last = (np.searchsorted(index.ts[calls], edge[asked]) for edge in (index.ts, index.end))
    ran = [bool((index.end[calls[a:b]] <= index.end[row]).any())
           for row, a, b in zip(asked, first, last, strict=True)]  # fmt: skip
    return open_times(trace, asked[~np.array(ran, bool)])


def _first_launches(record: Record) -> tuple[Rows, Ints]:
    """Return the rows of slow first launches, and the median time (ns) of later launches."""
    index, table = record.trace.index, launch_times(record)
    kernels = index.in_category("kernel")[table["row"].to_numpy(np.intp)]
    table = table[kernels & (table["launched"] == 1).to_numpy(bool)]
    row, launch, call_ns = (table[key].to_numpy(np.int64) for key in ("row", "launch", "call_ns"))
    first = ~pd.Series(index.name[row]).duplicated().to_numpy(bool)
    later = 0 if first.all() else round(float(np.median(call_ns[~first])))
    cold = first & (call_ns > max(SLOW_CALL_NS, TIMES_LATER * later))
    return launch[cold], np.full(np.count_nonzero(cold), later)


def _first_ops(trace: Trace) -> tuple[Rows, Ints]:
    """Return the rows of slow first calls of ops that launch GPU work, and later calls' median.

    The time in which the recording asked for memory is not the op's.
    """
    index, op = trace.index, launching_op(trace)[trace.index.gpu]
    rows = np.flatnonzero(np.bincount(op[op >= 0]))
    rows = rows[np.argsort(index.ts[rows], kind="stable")]
    held_up = intervals.overlap((index.ts[rows], index.end[rows]), recording_time(trace))
    dur = index.dur[rows] - held_up
    calls = pd.DataFrame({"row": rows, "name": index.name[rows], "dur": dur})
    again = calls["name"].duplicated()
    median = calls[again].groupby("name")["dur"].median()
    first = calls[~again]
    later = median.reindex(first["name"]).to_numpy(float)  # NaN, and never cold, without any
    cold = (first["dur"].to_numpy() >= SLOW_OP_NS) & (first["dur"].to_numpy() > TIMES_LATER * later)
    return first["row"].to_numpy(np.intp)[cold], later[cold].astype(np.int64)


@remembered
def is_compiling(trace: Trace) -> Mask:
    """Return which CPU slices are work of torch.compile (graph look-ups too), or ran within it."""
    return _marked_or_within(trace, trace.index.matching(COMPILING))


def compiled_functions(trace: Trace) -> Rows:
    """Return the rows of the compilations of functions, without those within another one."""
    return _outermost(trace, trace.index.matching(COMPILED_FUNCTION))


def compiling_time(trace: Trace) -> Intervals:
    """Return when anything was compiled, on any thread."""
    return open_times(trace, _outermost(trace, trace.index.matching(TIMED)))


def _outermost(trace: Trace, mask: Mask) -> Rows:
    """Return the rows of the mask that began in this range and are within no other of it."""
    inside = links.nearest_ancestor(trace.index.parent, mask) >= 0
    return np.flatnonzero(mask & ~inside & (trace.index.column("count") > 0))


@remembered
def is_communication(trace: Trace) -> Mask:
    """Return which CPU slices hand a collective over or wait for other ranks, or ran within these.

    These are ops of `HANDING_OVER` and FSDP, and the CPU spans of backends (``gloo:all_reduce``).
    """
    starts, names = (*HANDING_OVER, _PACKING), trace.index.names
    marked = frozenset(name for name in names if name.startswith(starts) or annotation(name)[0])
    return _marked_or_within(trace, trace.index.named(marked))


def _marked_or_within(trace: Trace, mask: Mask) -> Mask:
    marked = mask & trace.index.in_category("cpu_op", "user_annotation")
    return links.itself_or_ancestor(trace.index.parent, marked) >= 0


def is_dispatch(trace: Trace) -> Mask:
    """Return which CPU slices only hand over to others, without the slices that they call."""
    return trace.index.matching(_AROUND) & trace.index.in_category("cpu_op")
