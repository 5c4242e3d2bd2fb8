"""Read the files of many ranks, one after another here, or on the workers of Dask.

`read` reduces each file to a few tables; `light_records` reads those files again whose timelines
the page shows.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import numpy.typing as npt
import pandas as pd

from gpuprof_widgets.analyses.ranks.reduced import ReducedRank, reduced
from gpuprof_widgets.exceptions import OptionError, TraceError
from gpuprof_widgets.progress import Progress
from gpuprof_widgets.trace.edit import NewSlice, kept_slices, with_slices
from gpuprof_widgets.trace.model import Record, Trace
from gpuprof_widgets.trace.readers import load
from gpuprof_widgets.trace.remarks import REMARKS
from gpuprof_widgets.trace.schema import NVTX_RANGE

if TYPE_CHECKING:
    from distributed import Client

DASK_RECIPE = (
    'cluster= needs Dask: pip install "gpuprof-widgets[dask]" (without cluster= the ranks are read '
    "here, one after another)"
)

MOST_SLICES = 20_000
"""Slices that one rank has on the page: its GPU's, annotations, and the longest of the others."""

WAITING = "cuda_sync"
"""Category of the slices that show a collective's waiting: it has a colour of its own."""

ANNOTATIONS = ("user_annotation", "gpu_user_annotation", NVTX_RANGE)

Item = TypeVar("Item")


def read(files: Sequence[Path], cluster: Any = None) -> list[ReducedRank | TraceError]:
    """Return every file reduced, or the error in reading it, in the order of the files.

    ``cluster``: as in `ranks`. Shows its progress if it takes over a second.
    """
    if cluster is None:
        return list(counted(map(read_and_reduce, files), len(files), "ranks read"))
    with _client(cluster) as client:
        return _on_workers(client, files)


def counted(items: Iterable[Item], total: int, noun: str) -> Iterator[Item]:
    """Yield the items, with a progress bar: "3 of 8 ranks read"."""
    done = 0
    with Progress() as progress:
        for item in items:
            done += 1
            progress.reached(done / total, f"{done} of {total} {noun}")
            yield item
            del item  # or two records would be in memory


def read_and_reduce(file: Path) -> ReducedRank | TraceError:
    """Return the tables of one file, or the error in reading it; the record is dropped."""
    try:
        return reduced(load(file), source=file.name)
    except TraceError as error:
        return TraceError(str(error))


def _on_workers(client: Client, files: Sequence[Path]) -> list[ReducedRank | TraceError]:
    from distributed import as_completed

    # Not remembered between calls: a file may have changed.
    futures = client.map(read_and_reduce, list(files), pure=False)
    try:
        done = as_completed(futures, loop=client.loop)  # type: ignore[no-untyped-call]
        for _ in counted(done, len(files), "ranks read"):
            pass
        results = client.gather(futures)  # type: ignore[no-untyped-call]
        return [_hinted(r) if isinstance(r, TraceError) else r for r in results]
    finally:
        client.cancel(futures)  # type: ignore[no-untyped-call]


def _hinted(error: TraceError) -> TraceError:
    """Return the error with its likely cause: a worker on another machine does not see the file."""
    return TraceError(f"{error} (A worker of the cluster read it: all have to see the files.)")


@contextmanager
def _client(cluster: Any) -> Iterator[Client]:
    """Yield a client of the cluster; one that we made is closed, the user's is not."""
    try:
        from distributed import Client
    except ImportError as error:
        raise OptionError(DASK_RECIPE) from error
    if isinstance(cluster, Client):
        yield cluster
        return
    with _connected(Client, cluster) as client:
        yield client


def _connected(client: type[Client], cluster: Any) -> Client:
    try:
        return client(cluster, set_as_default=False)
    except (OSError, ValueError, TypeError) as error:
        raise OptionError(
            f"cluster={cluster!r} cannot be used ({error}): give the address of a scheduler "
            '("tcp://host:8786"), a distributed.Client or a cluster such as LocalCluster()'
        ) from error


def light_records(
    files: Sequence[Path], waits: Sequence[pd.DataFrame], clocks: Sequence[int]
) -> Iterator[Record]:
    """Yield the record of each file with what the timelines draw; one is read at a time.

    ``waits``: each rank's rows of `waiting`; ``clocks``: the difference of their times to ns since
    the epoch.
    """
    of_ranks = zip(files, waits, clocks, strict=True)
    records = (light(load(file), table, clock) for file, table, clock in of_ranks)
    yield from counted(records, len(files), "timelines read")


def light(record: Record, waits: pd.DataFrame, clock_ns: int = 0) -> Record:
    """Return a record with slices and tracks alone, at most `MOST_SLICES` of them.

    A collective's wait for the last rank becomes a slice of its own, before it.
    """
    trace = record.trace
    drawn = _drawn(trace)
    trace = replace(trace, args={}, counters=trace.counters.iloc[:0])
    trace, wait_slices = _shortened(trace, waits, clock_ns)
    kept = ("source", "label", REMARKS)
    metadata = {key: record.metadata[key] for key in kept if key in record.metadata}
    return Record(with_slices(kept_slices(trace, drawn), wait_slices), None, metadata)


def _shortened(trace: Trace, waits: pd.DataFrame, clock_ns: int) -> tuple[Trace, list[NewSlice]]:
    """Return the trace with collectives from the last rank's arrival on, and the waits."""
    row = waits["row"].to_numpy(np.int64)
    start = waits["start_ns"].to_numpy(np.int64) - clock_ns - trace.epoch_ns
    ts, dur = trace.slices["ts"].to_numpy().copy(), trace.slices["dur"].to_numpy().copy()
    track = trace.slices["track"].to_numpy()
    wait = waits["wait_ns"].to_numpy(np.int64)
    here = (row < len(ts)) & (wait > 0)
    here[here] = ts[row[here]] == start[here]  # not those of another file of this rank
    wait_slices = [
        NewSlice(int(ts[at]), int(ns), f"rank {last} awaited", WAITING, int(track[at]))
        for at, ns, last in zip(row[here], wait[here], waits["last_rank"][here], strict=True)
    ]
    ts[row[here]] += wait[here]
    dur[row[here]] -= wait[here]
    return replace(trace, slices=trace.slices.assign(ts=ts, dur=dur)), wait_slices


def _drawn(trace: Trace) -> npt.NDArray[np.bool_]:
    """Return which slices to keep: the GPU's and annotations first, then the longest others."""
    if len(trace) <= MOST_SLICES:
        return np.ones(len(trace), bool)
    first = trace.index.in_category(*ANNOTATIONS).copy()
    first[trace.index.gpu] = True
    dur = trace.slices["dur"].to_numpy()
    order = np.lexsort((-dur, ~first))
    drawn = np.zeros(len(trace), bool)
    drawn[order[:MOST_SLICES]] = True
    return drawn
