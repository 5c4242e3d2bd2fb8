"""Why the loop waits for its workers: what they did meanwhile, and which function is slow."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from gpuprof_widgets.analyses.open_times import open_times
from gpuprof_widgets.analyses.waits import waits
from gpuprof_widgets.analyses.workers import COLLATE, PUT, are_items, by_worker, processes, workers
from gpuprof_widgets.trace import intervals
from gpuprof_widgets.trace.intervals import Intervals
from gpuprof_widgets.trace.model import Calls, Record, Trace
from gpuprof_widgets.trace.several_calls import added_up

WITH_WORKERS = re.compile(r"enumerate\(DataLoader\)#_MultiProcessing.*")
"""The region in which the loop waits for a batch from a worker."""

NOT_THE_USERS = re.compile(
    r"~|<frozen .*|.*[/\\](site|dist)-packages[/\\].*|.*[/\\]lib[/\\]python3[.\d]*[/\\].*"
    r"|.*[/\\]Lib[/\\](?!.*[/\\]).*"
)
"""Files of the interpreter and of installed packages: what they cost is their caller's."""

Function = tuple[str, int, str]
"""File, line and name, as cProfile tells functions apart."""

MOST = 0.3  # of the time for items: a function with less of it is not their cause
OUTLIER = 1.5  # times as slow as the others: then it is that worker
_ROUNDS = 100  # of handing time to callers; the calls of one item are not deeper


@dataclass(frozen=True)
class SlowFunction:
    """A function of the user's, and how long it takes per item: over all workers, and per worker.

    ``per_item_ns`` counts what it has library and built-in functions do as well.
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
    """What the workers did while the loop waited for them, in ns; empty where none is recorded.

    ``items``: some worker was getting items; ``collate``, ``put`` likewise (they may overlap);
    ``idle``: there were workers, but none did any of it; ``starting``: there was none yet;
    ``ending``: there was none any more.
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
    did = {
        "items": open_times(trace, are_items(trace)),
        "collate": open_times(trace, of_workers & trace.index.named(frozenset({COLLATE}))),
        "put": open_times(trace, of_workers & trace.index.named(frozenset({PUT}))),
    }
    spent = {name: _during(when, span) for name, span in did.items()}
    there = open_times(trace, of_workers)
    spent["idle"] = _during(when, there) - _during(when, _any(did.values()))
    spent["starting"] = _before_the_first(when, there)
    absent = intervals.length(when) - _during(when, there)
    return spent | {"ending": absent - spent["starting"]}


def _before_the_first(when: Intervals, there: Intervals) -> int:
    """How much of each wait passed until there was a worker, where one came in it."""
    start, end = when
    place = np.searchsorted(there[1], start, side="right")
    first = np.append(there[0], np.iinfo(np.int64).max)[place]
    return int((first - start)[(first > start) & (first < end)].sum())


def _during(when: Intervals, what: Intervals) -> int:
    return int(intervals.overlap(when, what).sum())


def _any(several: Iterable[Intervals]) -> Intervals:
    spans = list(several)
    return intervals.union(
        np.concatenate([start for start, _ in spans]), np.concatenate([end for _, end in spans])
    )


def loads_with_workers(trace: Trace) -> bool:
    """Whether the loop got its batches from worker processes."""
    return bool(trace.index.matching(WITH_WORKERS).any())


def slow_function(record: Record) -> SlowFunction | None:
    """The user's function that costs the workers most per item, if one stands out."""
    calls, items = by_worker(record), _items_by_worker(record)
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
    if per_item < MOST * per_item_ns(record) or cost <= 0:
        return None
    each = {worker: spent[worker].get(top, 0.0) / items[worker] for worker in known}
    return SlowFunction(top[2], per_item, each)


def _items_by_worker(record: Record) -> Counter[int]:
    """How many items each worker's calls are for: those of its whole life, window or not."""
    items: Counter[int] = Counter()
    for process in record.metadata.get("workers", ()):
        items[int(process["worker"])] += int(process["items_in_calls"])
    return items


def users_time(calls: Calls) -> dict[Function, float]:
    """Per function of the user's: ns in it and in what libraries did for it.

    The self time of a library's function goes to its callers, by their share of its total time,
    until it meets functions of the user's.
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
    """That column of `workers`, per batch."""
    table = workers(record)
    return float(table[column].sum()) / max(int(table["batches"].sum()), 1)


def per_item_ns(record: Record) -> float:
    """How long getting an item takes a worker."""
    table = workers(record)
    return float(table["item_ns"].sum()) / max(int(table["items"].sum()), 1)


def item_name(trace: Trace) -> str:
    """The name of the costliest kind of item slice: ``ImageFolder.__getitem__``."""
    items = trace.slices[are_items(trace)]
    spent = items.groupby("name", observed=True)["dur"].sum()
    return str(spent.idxmax()) if len(spent) else ""
