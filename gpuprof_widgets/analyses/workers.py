"""Input of a run: what the workers of DataLoaders did, why the loop waits, how full queues were.

`workers` and `worker_calls` need a recording with `--workers`. `while_waiting` and `slow_function`
say why the loop waits for its workers. `input_queues` is for TensorFlow's queues and iterators.
"""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from gpuprof_widgets.analyses.gpu_work import open_ns, open_times
from gpuprof_widgets.analyses.operators import arg_numbers
from gpuprof_widgets.analyses.python_calls import python_calls
from gpuprof_widgets.analyses.reasons import WORKERS, empty_table, says_if_empty
from gpuprof_widgets.analyses.waits import is_taking, on_executor, waits
from gpuprof_widgets.exceptions import OptionError
from gpuprof_widgets.trace import intervals
from gpuprof_widgets.trace.arrays import Ints, Mask
from gpuprof_widgets.trace.model import Calls, Record, Trace
from gpuprof_widgets.trace.pstats import added_up
from gpuprof_widgets.trace.schema import NODE, NONE

FETCH, COLLATE, PUT, IDLE = "fetch", "collate", "put", "idle"
COLUMNS = (
    *("worker", "pid", "batches", "items"),
    *("fetch_ns", "item_ns", "collate_ns", "put_ns", "idle_ns"),
)

_NAME = re.compile(r"worker(\d+)\.pid(\d+)")


@says_if_empty(WORKERS)
def workers(record: Record) -> pd.DataFrame:
    """One row per worker process, in the order in which they started; empty if none is recorded.

    Columns:

    - ``worker``: its number in its loader.
    - ``pid``: its process.
    - ``batches``, ``items``: how many it made.
    - ``fetch_ns``: making batches.
    - ``item_ns``, ``collate_ns``: of that, getting the items and putting them together.
    - ``put_ns``: pickling and sending batches, in a thread of its own beside the next fetch.
    - ``idle_ns``: waiting to be told what to load next.

    Source: measured in the worker processes, with ``--workers``.
    """
    trace = record.trace
    process, rows = processes(trace), np.arange(len(trace))
    items, number = (arg_numbers(trace, key, rows, NONE) for key in ("items", "worker"))
    fetch, collate, put, idle = (
        trace.index.named(frozenset({name})) for name in (FETCH, COLLATE, PUT, IDLE)
    )
    times = (fetch, are_items(trace), collate, put, idle)
    table = []
    for pid in dict.fromkeys(process[process >= 0]):
        of_worker = process == pid
        fetched = items[of_worker & fetch & (items > 0)]
        spent = [open_ns(trace, of_worker & wanted) for wanted in times]
        table.append((number[of_worker][0], pid, len(fetched), fetched.sum(), *spent))
    return pd.DataFrame(table, columns=list(COLUMNS)).astype(np.int64)


def processes(trace: Trace) -> Ints:
    """Return per slice the process id of its worker; -1 for all others."""
    tracks = trace.tracks
    of_track = pd.to_numeric(tracks["process"].where(tracks["kind"] == "worker"), errors="coerce")
    pid = of_track.fillna(-1).to_numpy(np.int64)[trace.index.track]
    counted = trace.index.on_tracks("worker") & (trace.index.column("count") > 0)
    return np.where(counted, pid, -1)


def are_items(trace: Trace) -> Mask:
    """Return which slices are a worker getting one or several items from its dataset."""
    other = trace.index.named(frozenset({FETCH, COLLATE, PUT, IDLE}))
    return np.asarray((processes(trace) >= 0) & ~other)


def worker_calls(record: Record, worker: int) -> pd.DataFrame:
    """One row per Python function that cProfile counted in that worker, as in `python_calls`.

    A loader starts its workers anew for every pass unless they are persistent: the processes with
    this number are added up. A window does not cut it.

    Options:

    - ``worker``: its number in its loader.

    Columns:

    - ``file``, ``line``, ``name``: the function.
    - ``calls``, ``primitive_calls``: all calls, and those that are not recursive.
    - ``self_ns``: cProfile's tottime.
    - ``self_per_call_ns``: ``self_ns`` / ``calls``.
    - ``total_ns``: cProfile's cumtime.
    - ``total_per_call_ns``: ``total_ns`` / ``primitive_calls``.

    Source: Python's cProfile, with ``--workers``.
    """
    calls_by_worker = by_worker(record)
    if worker not in calls_by_worker:
        known = ", ".join(map(str, sorted(calls_by_worker))) or "none"
        raise OptionError(
            f"no Python calls of worker {worker} were recorded; of workers: {known}. "
            "--workers records those that start in the cell."
        )
    return python_calls(replace(record, calls=added_up(calls_by_worker[worker])))


def by_worker(record: Record) -> dict[int, list[Calls]]:
    """Return the calls of every recorded process, by the number of its worker."""
    calls_by_worker: dict[int, list[Calls]] = {}
    for name, calls in record.calls_of_workers.items():
        if match := _NAME.fullmatch(name):
            calls_by_worker.setdefault(int(match[1]), []).append(calls)
    return calls_by_worker


WITH_WORKERS = re.compile(r"enumerate\(DataLoader\)#_MultiProcessing.*")
"""The region in which the loop waits for a batch from a worker."""

NOT_THE_USERS = re.compile(
    r"~|<frozen .*|.*[/\\](site|dist)-packages[/\\].*|.*[/\\]lib[/\\]python3[.\d]*[/\\].*"
    r"|.*[/\\]Lib[/\\](?!.*[/\\]).*"
)
"""Files of the interpreter and of installed packages, whose time counts as their caller's."""

Function = tuple[str, int, str]
"""File, line and name, as cProfile tells functions apart."""

LEAST_SHARE = 0.3
"""Of the time for items: a function with less of it is not what makes them slow."""
OUTLIER = 1.5
"""A worker that is this many times as slow as the others is the cause itself."""
_ROUNDS = 100
"""Most levels of calls through which time is handed up to callers."""


@dataclass(frozen=True)
class SlowFunction:
    """A function of the user's, and its time per item, over all workers and per worker.

    ``per_item_ns`` includes the library and built-in functions that it calls.
    """

    name: str
    per_item_ns: float
    by_worker: dict[int, float]

    @property
    def outlier(self) -> int | None:
        """The worker in which it is much slower than in the others, if there is one."""
        if len(self.by_worker) < 2:
            return None
        slowest = max(self.by_worker, key=lambda worker: self.by_worker[worker])
        others = [ns for worker, ns in self.by_worker.items() if worker != slowest]
        return slowest if self.by_worker[slowest] > OUTLIER * float(np.median(others)) else None


def while_waiting(record: Record) -> dict[str, int]:
    """Return in ns what the workers did while the loop waited; empty if none was recorded.

    ``items``: some worker was getting items; ``collate``, ``put`` likewise (they may overlap);
    ``idle``: workers existed, but did none of these; ``starting``: no worker existed yet;
    ``ending``: no worker existed any more.
    """
    trace = record.trace
    of_workers = processes(trace) >= 0
    table = waits(record)
    rows = table["row"][table["name"].map(lambda name: bool(WITH_WORKERS.fullmatch(name)))]
    if not of_workers.any() or not len(rows):
        return {}
    waiting = np.zeros(len(trace), bool)
    waiting[rows] = True
    when = open_times(trace, waiting)

    def during(wanted: Mask) -> int:
        return int(intervals.overlap(when, open_times(trace, wanted)).sum())

    did = {"items": are_items(trace)}
    did |= {name: of_workers & trace.index.named(frozenset({name})) for name in (COLLATE, PUT)}
    spent = {name: during(wanted) for name, wanted in did.items()}
    working = np.logical_or.reduce(list(did.values()))
    spent["idle"] = during(of_workers) - during(working)
    # In waits before the first worker, if one started during the wait.
    there, (start, end) = open_times(trace, of_workers), when
    place = np.searchsorted(there[1], start, side="right")
    first = np.append(there[0], np.iinfo(np.int64).max)[place]
    spent["starting"] = int((first - start)[(first > start) & (first < end)].sum())
    absent = intervals.length(when) - during(of_workers)
    return spent | {"ending": absent - spent["starting"]}


def loads_with_workers(trace: Trace) -> bool:
    """Return whether the loop got its batches from worker processes."""
    return bool(trace.index.matching(WITH_WORKERS).any())


def slow_function(record: Record) -> SlowFunction | None:
    """Return the user's function that costs the workers most per item, if one stands out."""
    calls, items = by_worker(record), Counter[int]()
    # The items behind each worker's calls: those of its whole life, window or not.
    for process in record.metadata.get("workers", ()):
        items[int(process["worker"])] += int(process["items_in_calls"])
    known = [worker for worker in calls if items[worker] > 0]
    if not known:
        return None
    spent = {worker: users_time(added_up(calls[worker])) for worker in known}
    total: Counter[Function] = Counter()
    for of_worker in spent.values():
        total.update(of_worker)
    if not total:
        return None
    top, cost = total.most_common(1)[0]
    per_item = cost / sum(items[worker] for worker in known)
    if per_item < LEAST_SHARE * per_item_ns(record) or cost <= 0:
        return None
    each = {worker: spent[worker].get(top, 0.0) / items[worker] for worker in known}
    return SlowFunction(top[2], per_item, each)


def users_time(calls: Calls) -> dict[Function, float]:
    """Return per function of the user's the ns in it and in libraries that it called.

    The self time of a library's function goes up to its callers, by their shares of its total time,
    until it reaches functions of the user's.
    """
    functions, edges = calls.functions, calls.edges
    library = np.array([bool(NOT_THE_USERS.fullmatch(file)) for file in functions["file"]], bool)
    caller, callee = edges["caller"].to_numpy(), edges["callee"].to_numpy()
    weight = np.where(caller == callee, 0, edges["total_ns"].to_numpy()).astype(float)
    share = weight / np.maximum(np.bincount(callee, weight, len(functions)), 1.0)[callee]
    passing = functions["self_ns"].to_numpy(float)
    kept = np.zeros(len(functions))
    for _ in range(_ROUNDS):
        kept += np.where(library, 0.0, passing)
        passing = np.where(library, passing, 0.0)
        if passing.sum() < 1.0:
            break
        passing = np.bincount(caller, passing[callee] * share, len(functions))
    names = zip(functions["file"], functions["line"].tolist(), functions["name"], strict=True)
    held = zip(names, kept.tolist(), library.tolist(), strict=True)
    return {name: ns for name, ns, is_library in held if not is_library}


def per_batch_ns(record: Record, column: str) -> float:
    """Return the mean of a column of `workers` per batch."""
    table = workers(record)
    return float(table[column].sum()) / max(int(table["batches"].sum()), 1)


def per_item_ns(record: Record) -> float:
    """Return the mean time in which a worker gets an item."""
    table = workers(record)
    return float(table["item_ns"].sum()) / max(int(table["items"].sum()), 1)


def item_name(trace: Trace) -> str:
    """Return the name of the costliest kind of item slice: ``ImageFolder.__getitem__``."""
    items = trace.slices[are_items(trace)]
    spent = items.groupby("name", observed=True)["dur"].sum()
    return str(spent.idxmax()) if len(spent) else ""


QUEUE_COLUMNS = (
    *("name", "source", "taken", "put", "empty_ns", "empty_share", "least", "average", "most"),
)

PUTTING = re.compile(r"QueueEnqueue(V2)?|(Ordered)?(Map)?Stage")
SEVERAL = re.compile(r"Queue(Enqueue|Dequeue)(Many|UpTo)(V2)?")
"""Ops that move several items at once; traces do not tell how many."""
FIRST_INPUT = "input0"
OF_QUEUE = re.compile(
    r"(queue|prefetch|dataloader|buffer|iterator)\W*(size|length|depth|elements|items|batches|full)"
    r"|fraction_of_\d+_full",
    re.IGNORECASE,
)
"""Names of counters of the items in a queue of inputs."""


def input_queues(record: Record) -> pd.DataFrame:
    """One row per queue or iterator from which the run took its input, the emptiest first.

    The items of a queue are known from ops only if the trace has both sides, moving one item each.
    The items there at the start are unknown and counted as few as possible.

    Columns:

    - ``name``: its node in the graph, or the counter's name.
    - ``source``: "ops" (TensorFlow's, that take from it and put into it) or "counter".
    - ``taken``, ``put``: number of such ops; -1 for a counter.
    - ``empty_ns``: how long ops waited to take, or the counter was 0.
    - ``empty_share``: ``empty_ns`` divided by the trace's time.
    - ``least``, ``average``, ``most``: items in it, over the time; NaN: unknown.

    Source: defined here.
    """
    trace = record.trace
    rows = [*_queues_by_counters(trace), *_queues_by_ops(trace)]
    if not rows:
        why = "the trace has no op that takes from a queue or an iterator, and no counter of one"
        return empty_table(QUEUE_COLUMNS, why)
    table = pd.DataFrame(rows, columns=list(QUEUE_COLUMNS))
    return table.sort_values("empty_ns", ascending=False, kind="stable", ignore_index=True)


def _queues_by_ops(trace: Trace) -> list[tuple[object, ...]]:
    takes = is_taking(trace)
    if not takes.any():
        return []
    puts = trace.index.matching(PUTTING) & on_executor(trace)
    several = trace.index.matching(SEVERAL) & on_executor(trace)
    moving = np.flatnonzero(takes | puts | several)
    # An op's queue is its first input, else its own node, else its name.
    node, first = (
        trace.args.get(key, pd.Series(dtype=object)).reindex(moving).astype(object)
        for key in (NODE, FIRST_INPUT)
    )
    names = pd.Series(trace.index.names_of(moving), index=moving)
    queue = first.fillna(node).fillna(names).astype(str).str.replace(r":\d+$", "", regex=True)
    ts, end = trace.index.ts, trace.index.end
    rows: list[tuple[object, ...]] = []
    for name, group in queue.groupby(queue, sort=False):
        row = group.index.to_numpy()
        taken, put = row[takes[row]], row[~takes[row]]
        if not len(taken):
            continue
        empty = intervals.length(intervals.union(ts[taken], end[taken]))
        levels: tuple[float, ...] = (np.nan,) * 3
        if len(put) and not several[row].any():
            order = np.lexsort((takes[row], end[row]))  # at the same time, puts come first
            held = np.cumsum(np.where(takes[row], -1, 1)[order])
            held = np.append(0, held) - min(int(held.min()), 0)
            levels = _levels(np.append(trace.start_ns, end[row][order]), held, trace)
        share = empty / max(trace.span_ns, 1)
        rows.append((name, "ops", len(taken), len(put), empty, share, *levels))
    return rows


def _queues_by_counters(trace: Trace) -> list[tuple[object, ...]]:
    rows: list[tuple[object, ...]] = []
    for name, changes in trace.counters.groupby("name", observed=True, sort=False):
        if OF_QUEUE.search(str(name)):
            ts, held = changes["ts"].to_numpy(), changes["value"].to_numpy()
            lasts = np.diff(np.append(ts, trace.end_ns))
            empty = int(lasts[held == 0].sum())
            share = empty / max(trace.span_ns, 1)
            levels = _levels(ts, held, trace)
            rows.append((str(name), "counter", NONE, NONE, empty, share, *levels))
    return rows


def _levels(ts: Ints, held: npt.NDArray[Any], trace: Trace) -> tuple[float, ...]:
    """Return the minimum, the average over time and the maximum of a step function."""
    lasts = np.diff(np.append(ts, trace.end_ns))
    average = float((held * lasts).sum() / lasts.sum()) if lasts.sum() else float(held[-1])
    return float(held.min()), average, float(held.max())
