"""Read the files of many ranks, one after another here, or on the workers of Dask.

`read` reduces each file to a few tables; `light_records` reads those files again whose timelines
the page shows. `Progress` shows a line meanwhile.
"""

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
from gpuprof_widgets.trace.remarks import REMARKS
from gpuprof_widgets.trace.schema import NVTX_RANGE

if TYPE_CHECKING:
    from distributed import Client

DASK_RECIPE = (
    'cluster= needs Dask: pip install "gpuprof-widgets[dask]" (without cluster= the ranks are read '
    "here, one after another)"
)

PATIENCE_S = 1.0
WIDTH = 24

MOST_SLICES = 20_000
"""Slices that one rank has on the page: its GPU's, annotations, and the longest of the others."""

WAITING = "cuda_sync"
"""Category of the slices that show a collective's waiting: it has a colour of its own."""

ANNOTATIONS = ("user_annotation", "gpu_user_annotation", NVTX_RANGE)

Value = TypeVar("Value")
Show = Callable[[str], None]
"""Shows a line in place of the one before; "" removes it."""


def read(files: Sequence[Path], cluster: Any = None) -> list[ReducedRank | TraceError]:
    """Return every file reduced, or the error in reading it, in the order of the files.

    ``cluster``: as in `ranks`. Shows its progress if it takes over a second.
    """
    with Progress(len(files), "ranks read") as progress:
        if cluster is None:
            return [progress.counted(read_and_reduce(file)) for file in files]
        with _client(cluster) as client:
            return _on_workers(client, files, progress.counted)


def read_and_reduce(file: Path) -> ReducedRank | TraceError:
    """Return the tables of one file, or the error in reading it; the record is dropped."""
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


class Progress:
    """A counter up to ``total`` that shows a progress bar once a second has passed.

    It shows below a notebook's cell or in a terminal, and elsewhere nowhere.
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
        """Remove the line."""
        if self._shown:
            self._show("")

    def counted(self, value: Value) -> Value:
        """Count one more and return ``value``."""
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
    """Show nothing."""


def light_records(
    files: Sequence[Path], waits: Sequence[pd.DataFrame], clocks: Sequence[int]
) -> Iterator[Record]:
    """Yield the record of each file with what the timelines draw; one is read at a time.

    ``waits``: each rank's rows of `waiting`; ``clocks``: the difference of their times to ns since
    the epoch.
    """
    with Progress(len(files), "timelines read") as progress:
        for file, table, clock in zip(files, waits, clocks, strict=True):
            yield progress.counted(light(load(file), table, clock))


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
