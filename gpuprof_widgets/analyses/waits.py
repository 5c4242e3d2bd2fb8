"""Waits of the CPU: calls that wait for the GPU, and waits for the DataLoader.

`waits` lists them, `wait_costs` says what the run would gain without them, and `thread_waits` says
when each thread waited, and for what.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pandas as pd

from gpuprof_widgets.analyses.gpu_work import open_times
from gpuprof_widgets.analyses.owners import line_of
from gpuprof_widgets.analyses.reasons import WAITS, says_if_empty
from gpuprof_widgets.analyses.remembered import remembered
from gpuprof_widgets.trace import intervals, links
from gpuprof_widgets.trace.arrays import Codes, Ints, Mask, Rows
from gpuprof_widgets.trace.index import take
from gpuprof_widgets.trace.model import Record, Trace
from gpuprof_widgets.trace.owners import BACKWARD, run_region
from gpuprof_widgets.trace.schema import EXECUTOR_LANE, NONE

SYNCHRONISING = re.compile(
    r"(cuda|hip)(Stream|Device|Event)Synchronize(_\w+)?"
    r"|cu(Stream|Event|Ctx)Synchronize(_\w+)?|cuMemcpy(DtoH|HtoD|DtoD)?(_\w+)?"
    r"|(cuda|hip)Memcpy(2D|3D|ToSymbol|FromSymbol|Peer|DtoH|HtoD|WithStream)?(_\w+)?"
)
"""Runtime calls that return when GPU work is done."""

OF_MEGENGINE = re.compile(r"TensorWaitProp|SyncEvent")
"""Calls of MegEngine that return when its worker, or the GPU if there is one, has a value."""

ASYNC_COPY = re.compile(r"(cuda|hip)Memcpy\w*Async(_\w+)?|cuMemcpy\w*Async(_\w+)?")
"""Calls that wait only for copies from or to pageable memory: these are not asynchronous.

Source: CUDA Runtime API, "API synchronization behavior".
"""

FREEING = re.compile(r"(cuda|hip)Free(Host|Array)?(_\w+)?|cuMemFree(Host)?(_\w+)?")
"""Calls that free memory and so wait for the GPU, as when the allocator runs out of room.

Source: CUDA C++ Best Practices Guide: cudaFree synchronises. Freeing before any GPU work (torch
starts CUDA that way) waits for nothing.
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


@says_if_empty(WAITS)
@remembered
def waits(record: Record) -> pd.DataFrame:
    """One row per synchronising call or DataLoader wait, the longest first.

    Ops in which TensorFlow takes a batch from a queue or an iterator count as DataLoader waits. The
    last five columns are for synchronising calls.

    Columns:

    - ``kind``: "synchronise" or "dataloader".
    - ``row``, ``name``: the call.
    - ``start_ns``, ``dur_ns``: when it waited, and how long.
    - ``op``, ``op_name``: the outermost op in which the call was made (``aten::item``); -1 and ""
      where it was made outside of any.
    - ``gpu_busy_ns``: how much of the wait some GPU was busy.
    - ``gpu``, ``gpu_name``: the GPU slice that ended last before the wait did, other than the copy
      that the call asked for; -1 and "" where none ran meanwhile.
    - ``copy``, ``copy_name``: the copy that the call launched, else the last one that its innermost
      op launched before it; -1 and "" without.

    Source: the calls that wait are those of the CUDA Runtime and Driver API; DataLoader waits are
    torch's ``enumerate(DataLoader)`` annotations.
    """
    trace = record.trace
    calls = np.flatnonzero(is_synchronising(trace))
    op = take(trace.index.outermost_op, trace.index.parent[calls])
    gpu, copy, busy = _waited_for(trace, calls), _copied(trace, calls), _gpu_busy(trace, calls)
    loading = _outermost(trace, np.flatnonzero(is_dataloader(trace)))
    nothing = np.full(len(loading), NONE, np.int32)
    zeros = np.zeros(len(loading), np.int64)
    table = pd.concat(
        [
            _table(trace, "synchronise", calls, op, gpu, copy, busy),
            _table(trace, "dataloader", loading, nothing, nothing, nothing, zeros),
        ]
    )
    return table.sort_values("dur_ns", ascending=False, kind="stable", ignore_index=True)


def is_dataloader(trace: Trace) -> Mask:
    """Return which CPU slices are a DataLoader's ``__next__``, or take from TensorFlow's queues."""
    return (trace.index.matching(DATALOADER) | is_taking(trace)) & trace.index.on_tracks("cpu")


def is_taking(trace: Trace) -> Mask:
    """Return which ops of TensorFlow's executor wait for a batch of a queue or an iterator."""
    return on_executor(trace) & trace.index.matching(TAKING)


def on_executor(trace: Trace) -> Mask:
    """Return which slices are on lanes of TensorFlow's executor, which are no threads."""
    of_executor = trace.args.get(EXECUTOR_LANE, pd.Series(dtype=object))
    return np.isin(np.arange(len(trace)), of_executor.index)


@remembered
def is_synchronising(trace: Trace) -> Mask:
    """Return which CPU slices are runtime calls that wait for the GPU."""
    index = trace.index
    waiting = index.matching(SYNCHRONISING)
    if len(index.gpu):  # without GPU work MegEngine's calls wait for the CPU
        waiting = waiting | index.matching(OF_MEGENGINE)
    # Asynchronous copies wait whose call returned only when the copy was done.
    _, end = index.uncut
    launch, copies = _launched_copies(trace)
    waited = index.matching(ASYNC_COPY)[launch] & (end[copies] <= end[launch])
    waiting[launch[waited]] = True
    # Calls that free memory wait while a GPU is at work.
    freeing = np.flatnonzero(index.matching(FREEING))
    waiting[freeing[_gpu_busy(trace, freeing) > 0]] = True
    return waiting & index.on_tracks("cpu") & index.is_launch & (index.column("count") > 0)


def _launched_copies(trace: Trace) -> tuple[Codes, Rows]:
    """Return the calls that launched copies, and these copies."""
    launch = trace.index.column("launch")
    copies = np.flatnonzero(trace.index.in_category("gpu_memcpy") & (launch >= 0))
    return launch[copies], copies


def _outermost(trace: Trace, rows: Rows) -> Rows:
    """Return the rows that lie in none of the others (a loader may wrap a loader)."""
    among = np.zeros(len(trace), bool)
    among[rows] = True
    within = links.nearest_ancestor(trace.index.parent, among)[rows] >= 0
    return rows[~within & (trace.index.column("count")[rows] > 0)]


def _table(
    trace: Trace, kind: str, rows: Rows, op: Codes, gpu: Codes, copy: Codes, busy: Ints
) -> pd.DataFrame:
    columns = {
        "kind": kind,
        "row": rows.astype(np.int32),
        "name": trace.index.names_of(rows),
        "start_ns": trace.index.ts[rows],
        "dur_ns": trace.index.dur[rows],
        "op": op,
        "op_name": trace.index.texts_of(op),
        "gpu_busy_ns": busy,
        "gpu": gpu,
        "gpu_name": trace.index.texts_of(gpu),
        "copy": copy,
        "copy_name": trace.index.texts_of(copy),
    }
    return pd.DataFrame(columns)


def _copied(trace: Trace, rows: Rows) -> Codes:
    """Return the copy that each call waited for: its own, else the last before it in the same op.

    ``tensor.cpu()`` launches an asynchronous copy and then synchronises, both in `aten::copy_`.
    """
    ts, op = trace.index.ts, trace.index.column("op")
    launch, copies = _launched_copies(trace)
    copy_of_call = np.full(len(trace), NONE, np.int32)
    copy_of_call[launch] = copies
    op = np.where(take(trace.index.is_op, op, missing=False), op, NONE)
    inside, calls = copies[op[launch] >= 0], launch[op[launch] >= 0]
    hit = links.latest_before(op[rows], ts[rows], op[calls], ts[calls])
    before = take(inside, hit)
    earlier = (before >= 0) & (ts[trace.index.column("launch")[before]] <= ts[rows])
    launched = copy_of_call[rows]
    return np.where(launched >= 0, launched, np.where(earlier, before, NONE)).astype(np.int32)


def _gpu_busy(trace: Trace, rows: Rows) -> Ints:
    if not len(rows):
        return np.empty(0, np.int64)
    stretches = trace.index.ts[rows], trace.index.end[rows]
    return intervals.overlap(stretches, open_times(trace, trace.index.gpu))


def _waited_for(trace: Trace, rows: Rows) -> Codes:
    """Return the GPU slice that ended last before the wait did, if it ran during the wait.

    The copy that the call itself launched does not count: the work queued before it made it wait.
    """
    gpu = trace.index.gpu
    if not len(gpu):
        return np.full(len(rows), NONE, np.int32)
    ts, end = trace.index.ts, trace.index.end
    order = gpu[np.argsort(end[gpu], kind="stable")]
    last = np.searchsorted(end[order], end[rows], side="right") - 1
    last -= (last > 0) & (trace.index.column("launch")[order[last]] == rows)
    last_slice = order[np.maximum(last, 0)]
    during = (last >= 0) & (end[last_slice] > ts[rows])
    return np.where(during, last_slice, NONE).astype(np.int32)


def wait_costs(trace: Trace, table: pd.DataFrame) -> Ints:
    """Return by how many ns, at most, the run would be shorter without each synchronising wait.

    Without the wait the CPU would be ahead by its length, until it waits again. So a wait costs the
    time in which no GPU worked during it, plus the time until the next wait in which no GPU had
    work queued (`_starved`), at most its length. Calls of one op count as one wait, whose cost is
    that of the longest call.
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
    """Return the times in which no GPU worked and no work was queued."""
    ts, gpu = trace.index.ts, trace.index.gpu
    gpu = gpu[np.argsort(ts[gpu], kind="stable")]
    free = np.append(trace.start_ns, np.maximum.accumulate(trace.index.end[gpu]))
    begins = np.append(ts[gpu], trace.end_ns)
    launch = np.append(trace.index.column("launch")[gpu], NONE)
    empty = (launch < 0) | (take(ts, launch) >= free)
    return intervals.union(free[empty], begins[empty])


REASONS = ("waited_for", "launched_by", "launched_at")


@dataclass(frozen=True)
class ThreadWaits:
    """The waits of a run for the GPU, cut so that no moment of a thread counts twice.

    ``table``: ``start_ns``, ``end_ns``, ``lane``, ``row`` (of the call), ``name``, ``op_name``,
    ``line`` (row of the cell line, -1), ``backward`` (on a thread of the backward pass without
    Python: its caller waits), ``reason`` (row of ``reasons``).
    ``reasons``: ``waited_for`` (the kernel or copy), ``launched_by`` (its op), ``launched_at`` (its
    cell line as "Cell [3]:12"); "" if unknown.
    """

    table: pd.DataFrame
    reasons: pd.DataFrame

    @property
    def length_ns(self) -> Ints:
        return np.asarray(self.table["end_ns"] - self.table["start_ns"], np.int64)


def thread_waits(record: Record) -> ThreadWaits:
    """Return the synchronising calls of all threads."""
    trace = record.trace
    with_python = [run_lane(record), *python_lanes(record)]
    table = waits(record)
    table = table[table["kind"] == "synchronise"].sort_values("start_ns", kind="stable")
    rows = table["row"].to_numpy(np.intp)
    table = table.assign(
        end_ns=table["start_ns"] + table["dur_ns"],
        lane=(lane := lane_of(trace)[rows]),
        backward=table["op_name"].str.startswith(BACKWARD) & ~np.isin(lane, with_python),
        line=line_of(trace)[rows],
        **_reasons(trace, table),
    )
    table["start_ns"] = _uncovered_starts(table)
    table = table[table["end_ns"] > table["start_ns"]].reset_index(drop=True)
    reason = table.groupby(list(REASONS), sort=False).ngroup().to_numpy(np.int64)
    reasons = table[list(REASONS)].drop_duplicates(ignore_index=True)
    columns = ["start_ns", "end_ns", "lane", "row", "name", "op_name", "line", "backward"]
    return ThreadWaits(table[columns].assign(reason=reason), reasons)


def _uncovered_starts(table: pd.DataFrame) -> Ints:
    """Return where each wait begins that no earlier wait of its thread covers: waits may nest.

    The threads of a backward pass count as one, because their caller waits once.
    """
    group = table["lane"].where(~table["backward"], NONE)
    ends = table["end_ns"].groupby(group).cummax()
    before = ends.groupby(group).shift().fillna(-1).astype(np.int64)
    return np.asarray(np.maximum(table["start_ns"], before), np.int64)


def run_lane(record: Record) -> int:
    """Return the thread of the label's region, else of the first CPU slice; else -1."""
    row = run_region(record)
    rows = [row] if row >= 0 else np.flatnonzero(record.trace.index.on_tracks("cpu"))
    return int(lane_of(record.trace)[rows[0]]) if len(rows) else NONE


def python_lanes(record: Record) -> Ints:
    """Return the threads whose Python frames count: the run's, or all without a label's region."""
    lanes = np.unique(lane_of(record.trace)[record.trace.index.on_tracks("python")])
    return lanes[lanes == run_lane(record)] if run_region(record) >= 0 else lanes


def lane_of(trace: Trace) -> Ints:
    """Return per slice the number of its thread."""
    return trace.tracks["lane"].to_numpy(np.int64)[trace.index.track]


def _reasons(trace: Trace, table: pd.DataFrame) -> dict[str, npt.NDArray[np.object_]]:
    """Return what each call waited for: the GPU work that ended last, else the copy it launched."""
    gpu = np.where(table["gpu"] >= 0, table["gpu"], table["copy"]).astype(np.int64)
    op = take(trace.index.column("op"), gpu)
    places = np.array([_place(trace, row) for row in take(line_of(trace), gpu).tolist()], object)
    columns = (trace.index.names_of(gpu), trace.index.names_of(op), places)
    return dict(zip(REASONS, columns, strict=True))


def _place(trace: Trace, line: int) -> str:
    """Return a cell line as ``Cell [3]:12``; "" if unknown."""
    known = line >= 0 and {"cell", "line"} <= set(trace.args)
    if not known or line not in trace.args["line"].index:
        return ""
    return f"{trace.args['cell'].get(line, '')}:{int(trace.args['line'][line])}"
