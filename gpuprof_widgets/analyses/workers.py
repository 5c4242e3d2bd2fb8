"""What the worker processes of DataLoaders did, where `--workers` recorded them."""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
import numpy.typing as npt
import pandas as pd

from gpuprof_widgets.analyses.lacking import WORKERS, says_if_empty, unless_recorded
from gpuprof_widgets.analyses.open_times import open_ns
from gpuprof_widgets.analyses.python_calls import python_calls
from gpuprof_widgets.exceptions import OptionError
from gpuprof_widgets.trace.model import Calls, Record, Trace
from gpuprof_widgets.trace.several_calls import added_up

COLUMNS = (
    "worker",
    "pid",
    "batches",
    "items",
    "fetch_ns",
    "item_ns",
    "collate_ns",
    "put_ns",
    "idle_ns",
)

FETCH, COLLATE, PUT, IDLE = "fetch", "collate", "put", "idle"

_NAME = re.compile(r"worker(\d+)\.pid(\d+)")


@says_if_empty(unless_recorded(WORKERS))
def workers(record: Record) -> pd.DataFrame:
    """One row per worker process, in the order in which they started; empty where none is recorded.

    Columns (times in ns): ``worker`` (its number in its loader), ``pid``, ``batches``, ``items``;
    ``fetch_ns`` (making batches, of which ``item_ns`` getting the items and ``collate_ns`` putting
    them together), ``put_ns`` (pickling and sending them, in a thread of its own beside the next
    fetch), ``idle_ns`` (waiting to be told what to load next).
    """
    trace = record.trace
    process = processes(trace)
    rows = [_row(trace, pid, process == pid) for pid in dict.fromkeys(process[process >= 0])]
    return pd.DataFrame(rows, columns=list(COLUMNS)).astype(np.int64)


def processes(trace: Trace) -> npt.NDArray[np.int64]:
    """Per slice the process id of the worker that it is of; -1 for all others."""
    tracks = trace.tracks
    of_track = pd.to_numeric(tracks["process"].where(tracks["kind"] == "worker"), errors="coerce")
    pid = of_track.fillna(-1).to_numpy(np.int64)[trace.slices["track"].to_numpy()]
    counted = trace.index.on_tracks("worker") & (trace.slices["count"].to_numpy() > 0)
    return np.where(counted, pid, -1)


def _row(trace: Trace, pid: int, own: npt.NDArray[np.bool_]) -> dict[str, int]:
    items = arg(trace, "items")
    fetches = own & trace.index.named(frozenset({FETCH})) & (items > 0)
    return {
        "worker": int(arg(trace, "worker")[own][0]),
        "pid": pid,
        "batches": int(fetches.sum()),
        "items": int(items[fetches].sum()),
        "fetch_ns": open_ns(trace, own & trace.index.named(frozenset({FETCH}))),
        "item_ns": open_ns(trace, own & are_items(trace)),
        "collate_ns": open_ns(trace, own & trace.index.named(frozenset({COLLATE}))),
        "put_ns": open_ns(trace, own & trace.index.named(frozenset({PUT}))),
        "idle_ns": open_ns(trace, own & trace.index.named(frozenset({IDLE}))),
    }


def are_items(trace: Trace) -> npt.NDArray[np.bool_]:
    """Which slices are a worker getting an item, or several at once, from its dataset."""
    other = trace.index.named(frozenset({FETCH, COLLATE, PUT, IDLE}))
    return np.asarray((processes(trace) >= 0) & ~other)


def arg(trace: Trace, key: str) -> npt.NDArray[np.int64]:
    """Per slice the number under that key; -1 without one."""
    values = np.full(len(trace), -1, np.int64)
    if key in trace.args:
        known = trace.args[key]
        values[known.index.to_numpy()] = known.to_numpy(np.int64)
    return values


def worker_calls(record: Record, worker: int) -> pd.DataFrame:
    """One row per Python function that cProfile counted in that worker, as in `python_calls`.

    A loader starts its workers anew for every pass unless they are persistent: the processes with
    this number are added up. A window does not cut it.
    """
    found = by_worker(record)
    if worker not in found:
        known = ", ".join(map(str, sorted(found))) or "none"
        raise OptionError(
            f"no Python calls of worker {worker} were recorded; of workers: {known}. "
            "--workers records those that start in the cell."
        )
    return python_calls(replace(record, calls=added_up(found[worker])))


def by_worker(record: Record) -> dict[int, list[Calls]]:
    """The calls of every recorded process, by the number of its worker."""
    found: dict[int, list[Calls]] = {}
    for name, calls in record.calls_of_workers.items():
        if match := _NAME.fullmatch(name):
            found.setdefault(int(match[1]), []).append(calls)
    return found
