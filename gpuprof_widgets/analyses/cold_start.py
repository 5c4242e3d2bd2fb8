"""What is paid once per process: first calls, which load libraries and the code of kernels."""

from __future__ import annotations

import re

import numpy as np
import numpy.typing as npt
import pandas as pd

from gpuprof_widgets.analyses.collectives import HANDING_OVER
from gpuprof_widgets.analyses.gpu_work import annotation
from gpuprof_widgets.analyses.kernels import launching_op
from gpuprof_widgets.analyses.launches import SLOW_CALL_NS, launches
from gpuprof_widgets.analyses.remembered import remembered
from gpuprof_widgets.trace import intervals, links
from gpuprof_widgets.trace.intervals import Intervals
from gpuprof_widgets.trace.model import Record, Trace

Ints = npt.NDArray[np.int64]
Rows = npt.NDArray[np.intp]
Mask = npt.NDArray[np.bool_]

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


TIMED = re.compile(r".* \(dynamo_timed\)")
"""torch/_dynamo/utils.py: `dynamo_timed` opens it for all phases, backends and tuning included."""
OWN_WORK = re.compile(
    rf"{TIMED.pattern}|dynamo|entire_(frame|backward)_compile|.+_data: .*compile_id=.+"
    r"|TorchDynamo Cache Lookup"
)
"""What else torch.compile marks of its work (`ChromiumEventLogger`, torch/_dynamo/utils.py), and
its search for a graph that fits."""
OF_A_FUNCTION = re.compile(r"_compile(?:\.(?:<locals>\.)?compile_inner)? \(dynamo_timed\)")
"""One compilation as the trace has it; the middle was spelt otherwise before torch 2.6."""


@remembered
def is_compiling(trace: Trace) -> Mask:
    """Which CPU slices are torch.compile's own work, the search for a graph too, or ran in it."""
    own = trace.index.matching(OWN_WORK) & trace.index.in_category("cpu_op", "user_annotation")
    return np.asarray(links.itself_or_ancestor(trace.slices["parent"].to_numpy(), own) >= 0)


def compiled_functions(trace: Trace) -> npt.NDArray[np.intp]:
    """The rows of the compilations of a function, those that are part of another left out."""
    return _outermost(trace, trace.index.matching(OF_A_FUNCTION))


def compiling_time(trace: Trace) -> intervals.Intervals:
    """When anything was compiled, on any thread."""
    rows = _outermost(trace, trace.index.matching(TIMED))
    start, dur = (trace.slices[name].to_numpy()[rows] for name in ("ts", "dur"))
    return intervals.union(start, start + dur)


def _outermost(trace: Trace, mask: Mask) -> npt.NDArray[np.intp]:
    """Those with time in this range, outside of all others of their kind."""
    inside = links.nearest_ancestor(trace.slices["parent"].to_numpy(), mask) >= 0
    return np.flatnonzero(mask & ~inside & (trace.slices["count"].to_numpy() > 0))


COMMUNICATION = "communication"
COMPILATION = "torch.compile's own work"
DISPATCH = "hooks and Python that hands over"

_PACKING = "fsdp::"
"""How ops begin that copy parameters into what is sent, and out of it."""

_AROUND = re.compile(
    r"PythonDispatchMode|PythonSubclass|PythonTLSSnapshot|autograd::engine::.+"
    r"|RegisterPostBackwardFunction(Backward)?|BackwardHookFunction(Backward)?"
    r"|Torch-Compiled Region.*|Pregraph bytecode|AOTDispatcher .+|CompiledFunction(Backward)?"
)
"""What torch marks around calls of others: the time in them is of hooks and of Python that hands
over. What they call is no part. Line by line: modes, subclasses (torch/csrc/autograd/) and hooks of
autograd; hooks of FSDP and of modules; torch.compile (torch/_dynamo, torch/_functorch)."""


@remembered
def is_communication(trace: Trace) -> Mask:
    """Which CPU slices hand a collective over or wait for other ranks, and all that runs in them.

    Ops of `HANDING_OVER` and of FSDP, and what backends mark on the CPU (``gloo:all_reduce``).
    """
    names = [str(name) for name in trace.slices["name"].cat.categories]
    told = frozenset(
        n for n in names if n.startswith((*HANDING_OVER, _PACKING)) or annotation(n)[0]
    )
    marked = trace.index.named(told) & trace.index.in_category("cpu_op", "user_annotation")
    return np.asarray(links.itself_or_ancestor(trace.slices["parent"].to_numpy(), marked) >= 0)


def is_dispatch(trace: Trace) -> Mask:
    """Which CPU slices only hand over to others; those are not meant."""
    return trace.index.matching(_AROUND) & trace.index.in_category("cpu_op")
