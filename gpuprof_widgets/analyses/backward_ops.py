"""The ops of the backward pass: what each took, and who made them necessary."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pandas as pd

from gpuprof_widgets.analyses.backward_work import own_ns
from gpuprof_widgets.analyses.lacking import BACKWARD, says_if_empty, unless_recorded
from gpuprof_widgets.analyses.region_owners import region_behind
from gpuprof_widgets.analyses.remembered import remembered
from gpuprof_widgets.analyses.waits import is_synchronising
from gpuprof_widgets.trace import links
from gpuprof_widgets.trace.model import Record, Trace
from gpuprof_widgets.trace.owners import EVALUATE, is_engine
from gpuprof_widgets.trace.schema import NONE

Ints = npt.NDArray[np.int64]
Rows = npt.NDArray[np.int32]
Mask = npt.NDArray[np.bool_]

KEYS = ["name", "forward", "module", "line", "cell"]
NUMBERS = ["calls", "cpu_ns", "own_ns", "forward_cpu_ns", "device_ns", "wait_ns"]


@says_if_empty(unless_recorded(BACKWARD))
@remembered
def backward_ops(record: Record) -> pd.DataFrame:
    """One row per backward op, forward op, module and line, the longest on the CPU first.

    Columns (times in ns): ``name`` (`GatherBackward0`), ``forward`` (`aten::gather`), ``module``
    and ``line`` in which the forward op ran ("" and -1 where that is not known), ``cell`` of the
    line; ``calls``; ``cpu_ns``: time on the thread of the backward pass, waits and hooks included;
    ``own_ns``: that without hooks, collectives, torch.compile's work and a forward computed anew
    (checkpointing); ``forward_cpu_ns`` of the forward ops; ``device_ns``: GPU time launched;
    ``wait_ns``: waited for the GPU; ``row``: the longest call. What the engine does itself
    (`AccumulateGrad`) is in no row.
    """
    trace = record.trace
    calls = _calls(trace)
    rows = np.flatnonzero(calls)
    above = links.nearest_ancestor(trace.index.parent, calls)
    call = np.where(calls, np.arange(len(trace)), above)
    call_of = np.where(trace.index.is_gpu, np.append(call, NONE)[trace.index.launcher], call)
    dur = trace.slices["dur"].to_numpy()
    gpu, waits = trace.index.gpu, np.flatnonzero(is_synchronising(trace))

    def summed(at: npt.NDArray[np.intp]) -> Ints:
        sums = np.zeros(len(trace) + 1, np.int64)  # the last one takes what is in no backward op
        np.add.at(sums, call_of[at], dur[at])
        return sums[rows]

    forward = trace.slices["forward"].to_numpy()[rows]
    table = pd.DataFrame(
        {
            **_owners(trace, rows, forward),
            "calls": trace.slices["count"].to_numpy()[rows].astype(np.int64),
            "cpu_ns": _without_inner(dur, rows, above),
            "own_ns": own_ns(trace, calls, above)[rows],
            "forward_cpu_ns": np.where(_first(forward), dur[forward], 0),
            "device_ns": summed(gpu),
            "wait_ns": summed(waits),
            "row": rows.astype(np.int32),
        }
    )
    table = table.sort_values("cpu_ns", ascending=False, kind="stable")
    table = table.groupby(KEYS, sort=False, as_index=False).agg(
        {**dict.fromkeys(NUMBERS, "sum"), "row": "first"}
    )
    return table.sort_values("cpu_ns", ascending=False, kind="stable", ignore_index=True)


def backward_ns(record: Record) -> int:
    """How long the backward passes took, on all threads that ran them."""
    trace = record.trace
    within = (trace.slices["forward"].to_numpy() >= 0) | is_engine(trace.slices["name"])
    outermost = within & (links.nearest_ancestor(trace.slices["parent"].to_numpy(), within) < 0)
    return int(trace.slices["dur"].to_numpy()[outermost].sum())


def _calls(trace: Trace) -> Mask:
    """The outermost slice of every call of a backward op: the engine's, where torch wrote one."""
    slices = trace.slices
    forward = slices["forward"].to_numpy()
    backward = forward >= 0
    above = links.nearest_ancestor(slices["parent"].to_numpy(), backward)
    return np.asarray(backward & ((above < 0) | (forward[above] != forward)))


def _without_inner(dur: Ints, rows: npt.NDArray[np.intp], above: Rows) -> Ints:
    """The length of each call without the backward passes in it (checkpointing runs one)."""
    length = np.append(dur, 0)
    np.subtract.at(length, above[rows], dur[rows])
    return length[rows]


def _first(forward: Rows) -> Mask:
    """Each forward op once, whoever goes back through it."""
    first = np.zeros(len(forward), bool)
    first[np.unique(forward, return_index=True)[1]] = True
    return first


def _owners(trace: Trace, rows: npt.NDArray[np.intp], forward: Rows) -> dict[str, object]:
    module = region_behind(trace, "module")[forward]
    line = region_behind(trace, "cell_line")[forward]
    return {
        "name": [str(name).removeprefix(EVALUATE) for name in trace.index.names_of(rows)],
        "forward": trace.index.names_of(forward),
        "module": trace.index.names_of(module),
        "line": _given(trace, "line", line, NONE).astype(np.int64),
        "cell": _given(trace, "cell", line, ""),
    }


def _given(trace: Trace, key: str, rows: Rows, nothing: object) -> npt.NDArray[np.object_]:
    """That arg of each row, which may be -1."""
    known = trace.args.get(key, pd.Series(dtype=object)).to_dict()
    return np.array([known.get(int(row), nothing) for row in rows], object)
