"""Read and reduce the files of many ranks: one after another here, or on the workers of Dask."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from time import monotonic
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TypeVar

import numpy as np
import numpy.typing as npt
import pandas as pd

from gpuprof_widgets.analyses.ranks.reduced import ReducedRank, reduced
from gpuprof_widgets.exceptions import OptionError, TraceError
from gpuprof_widgets.runtime_carrier import cell_display
from gpuprof_widgets.trace.edit import NewSlice, kept_slices, with_slices
from gpuprof_widgets.trace.model import Record, Trace
from gpuprof_widgets.trace.readers import load
from gpuprof_widgets.trace.schema import NVTX_RANGE

if TYPE_CHECKING:
    from distributed import Client

DASK_RECIPE = (
    'cluster= needs Dask: pip install "gpuprof-widgets[dask]" (without cluster= the ranks are read '
    "here, one after another)"
)


def read(files: Sequence[Path], cluster: Any = None) -> list[ReducedRank | TraceError]:
    """Every file reduced, or why it cannot be read, in the order of the files.

    ``cluster``: as in `ranks`. Where it lasts over a second, it shows how far it is.
    """
    with Progress(len(files), "ranks read") as progress:
        if cluster is None:
            return [progress.counted(read_and_reduce(file)) for file in files]
        with _client(cluster) as client:
            return _on_workers(client, files, progress.counted)


def read_and_reduce(file: Path) -> ReducedRank | TraceError:
    """The tables of one file, whose record is gone when they are there; or why there are none."""
    try:
        return reduced(load(file), source=file.name)
    except TraceError as error:
        return TraceError(str(error))


def _on_workers(
    client: Client, files: Sequence[Path], counted: Callable[[Any], Any]
) -> list[ReducedRank | TraceError]:
    from distributed import as_completed

    # Not remembered between calls: a file may have changed.
    futures = client.map(read_and_reduce, list(files), pure=False)
    try:
        for future in as_completed(futures, loop=client.loop):  # type: ignore[no-untyped-call]
            counted(future)
        results = client.gather(futures)  # type: ignore[no-untyped-call]
        return [_told(one) if isinstance(one, TraceError) else one for one in results]
    finally:
        client.cancel(futures)  # type: ignore[no-untyped-call]


def _told(error: TraceError) -> TraceError:
    """Most likely a worker on another machine does not see the file."""
    return TraceError(f"{error} (A worker of the cluster read it: all have to see the files.)")


@contextmanager
def _client(cluster: Any) -> Iterator[Client]:
    """A client of that cluster; one that we made ourselves is closed, the user's is not."""
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


Value = TypeVar("Value")
Show = Callable[[str], None]
"""Shows a line in the place of the one before; "" takes it away."""

PATIENCE_S = 1.0
WIDTH = 24


class Progress:
    """Counts up to ``total`` and shows how far it is; within a second it shows nothing.

    Below a notebook's cell and in a terminal; where neither is, nobody would see it.
    """

    def __init__(
        self,
        total: int,
        noun: str,
        *,
        show: Show | None = None,
        clock: Callable[[], float] = monotonic,
    ) -> None:
        self._total, self._noun, self._clock = total, noun, clock
        self._show = show or _place()
        self._done, self._shown = 0, False
        self._began = clock()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Leave no line behind."""
        if self._shown:
            self._show("")

    def counted(self, value: Value) -> Value:
        """One more is done; returns what it is given."""
        self._done += 1
        if self._clock() - self._began > PATIENCE_S:
            filled = WIDTH * self._done // max(self._total, 1)
            bar = "█" * filled + "░" * (WIDTH - filled)
            self._show(f"{bar} {self._done} of {self._total} {self._noun}")
            self._shown = True
        return value


def _place() -> Show:
    display = cell_display()
    if display is not None:
        return _below_the_cell(display)
    return _in_the_terminal if sys.stderr.isatty() else _nowhere


def _below_the_cell(display: Any) -> Show:
    handle: list[Any] = []

    def show(line: str) -> None:
        if handle:
            handle[0].update({"text/plain": line}, raw=True)
        else:
            handle.append(display({"text/plain": line}, raw=True, display_id=True))

    return show


def _in_the_terminal(line: str) -> None:
    erase = "\r\x1b[K"
    sys.stderr.write(f"{erase}{line}")
    sys.stderr.flush()


def _nowhere(line: str) -> None:
    """Nobody looks."""


MOST_SLICES = 20_000
"""Slices that one rank has on the page: its GPU's, annotations, and the longest of the others."""

WAITING = "cuda_sync"
"""Category of the slices that say for whom a collective waited: it has a colour of its own."""

ANNOTATIONS = ("user_annotation", "gpu_user_annotation", NVTX_RANGE)


def light_records(
    files: Sequence[Path], waits: Sequence[pd.DataFrame], clocks: Sequence[int]
) -> Iterator[Record]:
    """The record of each file without what the timelines do not draw; one is read at a time.

    ``waits``: of each rank the rows of `waiting`; ``clocks``: what their times are less the ns
    since the epoch.
    """
    with Progress(len(files), "timelines read") as progress:
        for file, table, clock in zip(files, waits, clocks, strict=True):
            yield progress.counted(light(load(file), table, clock))


def light(record: Record, waits: pd.DataFrame, clock_ns: int = 0) -> Record:
    """The slices and tracks alone: no args, no counters, no Python calls, and not too many.

    What a collective waited for the last rank becomes a slice of its own, before it.
    """
    trace = record.trace
    drawn = _drawn(trace)
    trace = replace(trace, args={}, counters=trace.counters.iloc[:0])
    trace, told = _shortened(trace, waits, clock_ns)
    metadata = {key: record.metadata[key] for key in ("source", "label") if key in record.metadata}
    return Record(with_slices(kept_slices(trace, drawn), told), None, metadata)


def _shortened(trace: Trace, waits: pd.DataFrame, clock_ns: int) -> tuple[Trace, list[NewSlice]]:
    """The trace whose collectives begin when the last rank came, and slices for what was before."""
    row = waits["row"].to_numpy(np.int64)
    start = waits["start_ns"].to_numpy(np.int64) - clock_ns - trace.epoch_ns
    ts, dur = trace.slices["ts"].to_numpy().copy(), trace.slices["dur"].to_numpy().copy()
    track = trace.slices["track"].to_numpy()
    wait = waits["wait_ns"].to_numpy(np.int64)
    here = (row < len(ts)) & (wait > 0)
    here[here] = ts[row[here]] == start[here]  # not those of another file of this rank
    told = [
        NewSlice(int(ts[at]), int(ns), f"rank {last} awaited", WAITING, int(track[at]))
        for at, ns, last in zip(row[here], wait[here], waits["last_rank"][here], strict=True)
    ]
    ts[row[here]] += wait[here]
    dur[row[here]] -= wait[here]
    return replace(trace, slices=trace.slices.assign(ts=ts, dur=dur)), told


def _drawn(trace: Trace) -> npt.NDArray[np.bool_]:
    """The GPU's slices and annotations first, then the longest of all others."""
    if len(trace) <= MOST_SLICES:
        return np.ones(len(trace), bool)
    first = trace.index.in_category(*ANNOTATIONS).copy()
    first[trace.index.gpu] = True
    dur = trace.slices["dur"].to_numpy()
    order = np.lexsort((-dur, ~first))
    drawn = np.zeros(len(trace), bool)
    drawn[order[:MOST_SLICES]] = True
    return drawn
