"""Read the files of many ranks: here, in processes beside one another, or on the workers of Dask.

`read` reduces each file to a few tables; `light_records` reads those files again whose timelines
the page shows. `in_order` decides whether processes pay.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import numpy.typing as npt
import pandas as pd

from gpuprof_widgets.analyses.ranks.reduced import ReducedRank, reduced
from gpuprof_widgets.exceptions import OptionError, TraceError
from gpuprof_widgets.many_ranks.processes import DiedError, cores, python, results
from gpuprof_widgets.progress import Progress
from gpuprof_widgets.trace import remote
from gpuprof_widgets.trace.edit import NewSlice, kept_slices, with_slices
from gpuprof_widgets.trace.model import Record, Trace
from gpuprof_widgets.trace.readers import READERS, load
from gpuprof_widgets.trace.remarks import REMARKS
from gpuprof_widgets.trace.remote import RemotePath
from gpuprof_widgets.trace.schema import NVTX_RANGE

if TYPE_CHECKING:
    from distributed import Client

DASK_RECIPE = (
    'cluster= needs Dask: pip install "gpuprof-widgets[dask]" (without cluster= the ranks are read '
    "by processes of this machine)"
)

MOST_PROCESSES = 4
"""Files that are read at a time: reading one of a million events takes 0.3 GB."""

PAYS_BYTES = 250_000_000
"""Text from which on several processes are faster: read in a second, of which a start takes 0.4."""

PACKED = (".gz", ".zst", ".xz", ".gpuprof", ".zip")
PACKED_TIMES = 12
"""By how much the text of a packed trace is larger than its file, about."""

MOST_SLICES = 20_000
"""Slices that one rank has on the page: its GPU's, annotations, and the longest of the others."""

WAITING = "cuda_sync"
"""Category of the slices that show a collective's waiting: it has a colour of its own."""

ANNOTATIONS = ("user_annotation", "gpu_user_annotation", NVTX_RANGE)

Item = TypeVar("Item")
Result = TypeVar("Result")


def read(files: Sequence[Path], cluster: Any = None) -> list[ReducedRank | TraceError]:
    """Return every file reduced, or the error in reading it, in the order of the files.

    ``cluster``: as in `ranks`. Shows its progress if it takes over a second.
    """
    if cluster is None:
        with closing(in_order(read_and_reduce, files)) as ranks:
            return list(counted(ranks, len(files), "ranks read"))
    with _client(cluster) as client:
        return _on_workers(client, files)


def in_order(
    reads: Callable[..., Result], files: Sequence[Path], *arguments: Sequence[Any]
) -> Generator[Result | TraceError, None, None]:
    """Yield what ``reads`` returns for each file, or the error in reading it, in their order.

    ``arguments``: sequences of its further arguments, as in `map`. The generator has to be closed.
    """
    given = list(zip(files, *arguments, strict=True))
    count = process_count(files)
    if count < 2:
        yield from (or_error(reads, *of_file) for of_file in given)
        return
    settings = remote.configuration()
    jobs = [partial(_with_settings, settings, reads, *of_file) for of_file in given]
    with closing(results(jobs, count)) as done:
        for (file, *others), result in zip(given, done, strict=True):
            if isinstance(result, DiedError):
                yield TraceError(
                    f"{file}: the process that read it died twice ({result}), most likely for lack "
                    "of memory; close other programs, or record a shorter run."
                )
            elif isinstance(result, TraceError) and isinstance(file, RemotePath):
                yield or_error(reads, file, *others)  # only this process may know how to open it
            else:
                yield result


def process_count(files: Sequence[Path]) -> int:
    """Return how many processes read these files fastest; 1 means only this process."""
    pays = sum(map(_text_bytes, files)) >= PAYS_BYTES
    if not pays or not python() or not READERS.is_as_installed:
        return 1
    return min(cores(), len(files), MOST_PROCESSES)


def _text_bytes(file: Path) -> float:
    """Return about how much text is in a file; any is enough at a URL, which takes long to ask."""
    if isinstance(file, RemotePath):
        return PAYS_BYTES
    with suppress(OSError):  # whoever reads it will say so
        return file.stat().st_size * (PACKED_TIMES if file.name.endswith(PACKED) else 1)
    return 0


def or_error(reads: Callable[..., Result], file: Path, *arguments: Any) -> Result | TraceError:
    """Return what is read from one file, or the error in reading it."""
    try:
        return reads(file, *arguments)
    except TraceError as error:
        return TraceError(str(error))


def _with_settings(
    settings: dict[str, Any], reads: Callable[..., Result], file: Path, *arguments: Any
) -> Result | TraceError:
    """Return the same in another process."""
    remote.configure(settings)
    return or_error(reads, file, *arguments)


def counted(items: Iterable[Item], total: int, noun: str) -> Iterator[Item]:
    """Yield the items, with a progress bar: "3 of 8 ranks read"."""
    done = 0
    with Progress() as progress:
        for item in items:
            done += 1
            progress.reached(done / total, f"{done} of {total} {noun}")
            yield item
            del item  # or two records would be in memory


def read_and_reduce(file: Path) -> ReducedRank:
    """Return the tables of one file; the record is dropped."""
    return reduced(load(file), source=file.name)


def _on_workers(client: Client, files: Sequence[Path]) -> list[ReducedRank | TraceError]:
    from distributed import as_completed

    # Not remembered between calls: a file may have changed.
    futures = client.map(partial(or_error, read_and_reduce), list(files), pure=False)
    try:
        done = as_completed(futures, loop=client.loop)  # type: ignore[no-untyped-call]
        for _ in counted(done, len(files), "ranks read"):
            pass
        read = client.gather(futures)  # type: ignore[no-untyped-call]
        hint = "(A worker of the cluster read it: every worker must see the files.)"
        return [
            TraceError(f"{rank} {hint}") if isinstance(rank, TraceError) else rank for rank in read
        ]
    finally:
        client.cancel(futures)  # type: ignore[no-untyped-call]


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
    try:
        connected = Client(cluster, set_as_default=False)  # type: ignore[no-untyped-call]
    except (OSError, ValueError, TypeError) as error:
        raise OptionError(
            f"cluster={cluster!r} cannot be used ({error}): give the address of a scheduler "
            '("tcp://host:8786"), a distributed.Client or a cluster such as LocalCluster()'
        ) from error
    with connected as client:
        yield client


def light_records(
    files: Sequence[Path], waits: Sequence[pd.DataFrame], clocks: Sequence[int]
) -> Generator[Record, None, None]:
    """Yield the record of each file with what the timelines draw, in the order of the files.

    ``waits``: each rank's rows of `waiting`; ``clocks``: the difference of their times to ns since
    the epoch. The generator has to be closed.
    """
    with closing(in_order(read_light, files, waits, clocks)) as records:
        for record in counted(records, len(files), "timelines read"):
            if isinstance(record, TraceError):
                raise record
            yield record
            del record  # or two would be in memory


def read_light(file: Path, waits: pd.DataFrame, clock_ns: int) -> Record:
    """Return what the timelines draw of one file."""
    return light(load(file), waits, clock_ns)


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
