"""Where the CPU stood still: calls that wait for the GPU, and waits for the DataLoader."""

from __future__ import annotations

import re

import numpy as np
import numpy.typing as npt
import pandas as pd

from gpuprof_widgets.analyses.lacking import WAITS, says_if_empty, unless_recorded
from gpuprof_widgets.analyses.open_times import open_times
from gpuprof_widgets.analyses.remembered import remembered
from gpuprof_widgets.trace import intervals, links
from gpuprof_widgets.trace.model import Record, Trace
from gpuprof_widgets.trace.schema import EXECUTOR_LANE, NONE

Ints = npt.NDArray[np.int64]
Rows = npt.NDArray[np.int32]

SYNCHRONISING = re.compile(
    r"(cuda|hip)(Stream|Device|Event)Synchronize(_\w+)?"
    r"|cu(Stream|Event|Ctx)Synchronize(_\w+)?|cuMemcpy(DtoH|HtoD|DtoD)?(_\w+)?"
    r"|(cuda|hip)Memcpy(2D|3D|ToSymbol|FromSymbol|Peer|DtoH|HtoD|WithStream)?(_\w+)?"
)
"""Runtime calls that return when GPU work is done."""

OF_MEGENGINE = re.compile(r"TensorWaitProp|SyncEvent")
"""Calls of MegEngine that return when its worker has a value: when the GPU has, if there is one."""

ASYNC_COPY = re.compile(r"(cuda|hip)Memcpy\w*Async(_\w+)?|cuMemcpy\w*Async(_\w+)?")
"""Calls that wait only at times: to or from pageable memory the copy is not asynchronous.

Source: CUDA Runtime API, "API synchronization behavior".
"""

FREEING = re.compile(r"(cuda|hip)Free(Host|Array)?(_\w+)?|cuMemFree(Host)?(_\w+)?")
"""Calls that give memory back, for which the GPU has to be done: the allocator makes room so.

Source: CUDA C++ Best Practices Guide: cudaFree synchronises. Freeing before any GPU work (torch
does it to start CUDA) waits for nothing.
"""

DATALOADER = re.compile(r"enumerate\(Data(Loader|Pipe)\)#.*")
"""The region that torch (1.8 and newer) opens while the loop waits for the next batch."""

TAKING = re.compile(
    r"QueueDequeue(Many|UpTo)?(V2)?|(Iterator|OptionalIterator|MultiDeviceIterator)GetNext\w*"
    r"|(Ordered)?(Map)?Unstage(NoKey)?"
)
"""TensorFlow's ops that take a batch from a queue or an iterator, and wait until it is there.

Source: the kernels registered in tensorflow/core/ops/data_flow_ops.cc and dataset_ops.cc.
"""

COLUMNS = (
    "kind",
    "row",
    "name",
    "start_ns",
    "dur_ns",
    "op",
    "op_name",
    "gpu_busy_ns",
    "gpu",
    "gpu_name",
    "copy",
    "copy_name",
)


@says_if_empty(unless_recorded(WAITS))
@remembered
def waits(record: Record) -> pd.DataFrame:
    """One row per synchronising call or DataLoader wait, the longest first.

    Ops in which TensorFlow takes a batch from a queue or an iterator count as its DataLoader.
    Columns: ``kind`` ("synchronise" or "dataloader"), ``row``, ``name``, ``start_ns``, ``dur_ns``
    (waited); ``op``, ``op_name``: the outermost op in which the call was made (``aten::item``; -1
    and "" where it was made outside of any); ``gpu_busy_ns``: how much of the wait some GPU was
    busy; ``gpu``, ``gpu_name``: the GPU slice that ended last before the wait did, other than the
    copy that the call asked for (-1, "" where none ran meanwhile); ``copy``, ``copy_name``: the
    copy that the call launched, else the last one that its innermost op launched before it (-1, ""
    without). The last five are for synchronising calls.
    """
    trace = record.trace
    synchronising = np.flatnonzero(is_synchronising(trace))
    loading = _outermost(trace, np.flatnonzero(is_dataloader(trace)))
    table = pd.concat([_synchronising(trace, synchronising), _loading(trace, loading)])
    return table[list(COLUMNS)].sort_values(
        "dur_ns", ascending=False, kind="stable", ignore_index=True
    )


def is_dataloader(trace: Trace) -> npt.NDArray[np.bool_]:
    """Which CPU slices are a DataLoader's ``__next__``, or take from TensorFlow's queues."""
    return (trace.index.matching(DATALOADER) | is_taking(trace)) & trace.index.on_tracks("cpu")


def is_taking(trace: Trace) -> npt.NDArray[np.bool_]:
    """Which ops of TensorFlow's executor wait for the next batch of a queue or an iterator."""
    on_executor = np.zeros(len(trace), bool)
    if EXECUTOR_LANE not in trace.args:
        return on_executor
    on_executor[trace.args[EXECUTOR_LANE].index.to_numpy()] = True
    return on_executor & trace.index.matching(TAKING)


@remembered
def is_synchronising(trace: Trace) -> npt.NDArray[np.bool_]:
    """Which CPU slices are runtime calls that wait for the GPU."""
    counted = trace.slices["count"].to_numpy() > 0
    waiting = (
        trace.index.matching(SYNCHRONISING)
        | _of_megengine(trace)
        | _outlasting_its_copy(trace)
        | _freeing(trace)
    )
    return waiting & trace.index.on_tracks("cpu") & _launches(trace) & counted


def _of_megengine(trace: Trace) -> npt.NDArray[np.bool_]:
    """MegEngine's waits for values of a GPU; without one they are waits for the CPU."""
    found = trace.index.matching(OF_MEGENGINE)
    return found if len(trace.index.gpu) else np.zeros(len(trace), bool)


def _outlasting_its_copy(trace: Trace) -> npt.NDArray[np.bool_]:
    """Which calls of an asynchronous copy returned only when the copy was done."""
    asynchronous = trace.index.matching(ASYNC_COPY)
    _, end = trace.index.uncut
    launch = trace.slices["launch"].to_numpy()
    copies = np.flatnonzero(trace.index.in_category("gpu_memcpy") & (launch >= 0))
    copies = copies[asynchronous[launch[copies]] & (end[copies] <= end[launch[copies]])]
    outlasting = np.zeros(len(trace), bool)
    outlasting[launch[copies]] = True
    return outlasting


def _freeing(trace: Trace) -> npt.NDArray[np.bool_]:
    """Which calls give memory back while a GPU is at work."""
    rows = np.flatnonzero(trace.index.matching(FREEING))
    busy = np.zeros(len(trace), bool)
    busy[rows] = _gpu_busy(trace, rows) > 0
    return busy


def _launches(trace: Trace) -> npt.NDArray[np.bool_]:
    return trace.index.is_launch


def _outermost(trace: Trace, rows: npt.NDArray[np.intp]) -> npt.NDArray[np.intp]:
    """Those of the rows that lie in no other of them (a loader may wrap a loader)."""
    among = np.zeros(len(trace), bool)
    among[rows] = True
    within = links.nearest_ancestor(trace.slices["parent"].to_numpy(), among)[rows] >= 0
    return rows[~within & (trace.slices["count"].to_numpy()[rows] > 0)]


def _times(trace: Trace, rows: npt.NDArray[np.intp]) -> dict[str, object]:
    return {
        "row": rows.astype(np.int32),
        "name": trace.index.names_of(rows),
        "start_ns": trace.index.ts[rows],
        "dur_ns": trace.index.dur[rows],
    }


def _loading(trace: Trace, rows: npt.NDArray[np.intp]) -> pd.DataFrame:
    nothing = np.full(len(rows), NONE, np.int32)
    columns: dict[str, object] = {
        "op": nothing,
        "op_name": "",
        "gpu_busy_ns": 0,
        "gpu": nothing,
        "gpu_name": "",
    }
    columns |= {"copy": nothing, "copy_name": ""}
    return pd.DataFrame({"kind": "dataloader", **_times(trace, rows), **columns})


def _synchronising(trace: Trace, rows: npt.NDArray[np.intp]) -> pd.DataFrame:
    op, gpu, copy = _outermost_op(trace, rows), _waited_for(trace, rows), _copied(trace, rows)
    columns = {
        "op": op,
        "op_name": trace.index.names_of(op),
        "gpu_busy_ns": _gpu_busy(trace, rows),
        "gpu": gpu,
        "gpu_name": trace.index.names_of(gpu),
        "copy": copy,
        "copy_name": trace.index.names_of(copy),
    }
    return pd.DataFrame({"kind": "synchronise", **_times(trace, rows), **columns})


def _outermost_op(trace: Trace, rows: npt.NDArray[np.intp]) -> Rows:
    """The op that Python called: the last op on the way up."""
    around = np.append(trace.index.outermost_op, np.int32(NONE))
    return np.asarray(around[trace.index.parent[rows]])


def _copied(trace: Trace, rows: npt.NDArray[np.intp]) -> Rows:
    """The copy that each call waited to have: its own, else the last before it in the same op.

    ``tensor.cpu()`` launches an asynchronous copy and then synchronises, both in `aten::copy_`.
    """
    slices = trace.slices
    launch, ts = slices["launch"].to_numpy(), slices["ts"].to_numpy()
    copies = np.flatnonzero(trace.index.in_category("gpu_memcpy") & (launch >= 0))
    found = np.full(len(trace), NONE, np.int32)
    found[launch[copies]] = copies
    op = slices["op"].to_numpy()
    op = np.where(np.append(trace.index.is_op, False)[op], op, NONE)
    inside = copies[op[launch[copies]] >= 0]
    calls = launch[inside]
    hit = links.latest_before(op[rows], ts[rows], op[calls], ts[calls])
    before = np.append(inside, NONE)[hit]
    earlier = (before >= 0) & (ts[launch[before]] <= ts[rows])
    own = found[rows]
    return np.where(own >= 0, own, np.where(earlier, before, NONE)).astype(np.int32)


def _gpu_busy(trace: Trace, rows: npt.NDArray[np.intp]) -> Ints:
    if not len(rows):
        return np.empty(0, np.int64)
    stretches = trace.index.ts[rows], trace.index.end[rows]
    return intervals.overlap(stretches, open_times(trace, trace.index.gpu))


def _waited_for(trace: Trace, rows: npt.NDArray[np.intp]) -> Rows:
    """The GPU slice that ended last before the wait did, if it was running during the wait.

    Not the copy that the call itself asked for: what was queued before it made the call wait.
    """
    gpu = trace.index.gpu
    if not len(gpu):
        return np.full(len(rows), NONE, np.int32)
    ts, end = trace.index.ts, trace.index.end
    order = gpu[np.argsort(end[gpu], kind="stable")]
    last = np.searchsorted(end[order], end[rows], side="right") - 1
    last -= (last > 0) & (trace.slices["launch"].to_numpy()[order[last]] == rows)
    found = order[np.maximum(last, 0)]
    during = (last >= 0) & (end[found] > ts[rows])
    return np.where(during, found, NONE).astype(np.int32)
