"""Read the files of many ranks: here, in processes beside one another, or on the workers of Dask.

`read` reduces each file to a few tables; `light_records` reads those files again whose timelines
the page shows. `process_count` decides whether processes pay.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import replace
from functools import partial
from multiprocessing import resource_tracker
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import numpy.typing as npt
import pandas as pd

from gpuprof_widgets import progress
from gpuprof_widgets.analyses.ranks.reduced import ReducedRank, reduced
from gpuprof_widgets.exceptions import OptionError, TraceError
from gpuprof_widgets.trace import remote
from gpuprof_widgets.trace.edit import NewSlice, kept_slices, with_slices
from gpuprof_widgets.trace.model import Record, Trace
from gpuprof_widgets.trace.readers import READERS, load
from gpuprof_widgets.trace.remarks import REMARKS
from gpuprof_widgets.trace.remote import RemotePath
from gpuprof_widgets.trace.schema import NVTX_RANGE

if TYPE_CHECKING:
    from distributed import Client
    from loky import ProcessPoolExecutor

DASK_RECIPE = (
    'cluster= needs Dask: pip install "gpuprof-widgets[dask]" (without cluster= the ranks are read '
    "by processes of this machine)"
)

MOST_PROCESSES = 4
"""Files that are read at a time: reading one of a million events takes 0.3 GB."""

PAYS_BYTES = 250_000_000
"""Text from which on several processes are faster: read in a second, of which a start takes 0.4."""

IDLE_S = 10.0
"""Time after which a process without work ends: the one that started it may have been killed."""

WORKER_ENVIRONMENT = {
    "PYTHONSAFEPATH": "1",  # or they would import from the working directory before all else
    "LOKY_MAX_MEMORY_LEAK_SIZE": "1e15",  # one large file after a small one is no leak
}

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
        return read_all(read_and_reduce, files, noun="ranks read")
    with _client(cluster) as client:
        return _on_workers(client, files)


def read_all(
    reads: Callable[..., Result], files: Sequence[Path], *arguments: Sequence[Any], noun: str
) -> list[Result | TraceError]:
    """Return what ``reads`` returns for each file, or the error in reading it, in their order.

    ``arguments``: sequences of its further arguments, as in `map`. Progress is "3 of 8 ``noun``".
    """
    given = list(zip(files, *arguments, strict=True))
    count = process_count(files)
    results = _here(reads, given) if count < 2 else _in_processes(reads, given, count)
    with closing(results):
        return counted(results, len(given), noun)


def process_count(files: Sequence[Path]) -> int:
    """Return how many processes read these files fastest; 1 means only this process."""
    if sum(map(_text_bytes, files)) < PAYS_BYTES or not READERS.is_as_installed:
        return 1
    from loky import cpu_count

    return min(int(cpu_count()), len(files), MOST_PROCESSES)


def _text_bytes(file: Path) -> float:
    """Return about how much text is in a file; any is enough at a URL, which takes long to ask."""
    if isinstance(file, RemotePath):
        return PAYS_BYTES
    with suppress(OSError):  # whoever reads it will say so
        return file.stat().st_size * (PACKED_TIMES if file.name.endswith(PACKED) else 1)
    return 0


def _here(
    reads: Callable[..., Result], given: Sequence[tuple[Any, ...]]
) -> Generator[Result | TraceError, None, None]:
    """Yield the results of this process."""
    for of_file in given:
        yield or_error(reads, *of_file)


def _in_processes(
    reads: Callable[..., Result], given: Sequence[tuple[Any, ...]], count: int
) -> Generator[Result | TraceError, None, None]:
    """Yield the results of so many processes, which end when the generator is closed.

    If one of them dies, all do; then the files that are left are read one by one.
    """
    from loky.process_executor import TerminatedWorkerError

    with ExitStack() as stack:
        try:
            pool = stack.enter_context(_pool(count))
            futures = [pool.submit(or_error, reads, *of_file) for of_file in given]
        except OSError:  # too many processes, or too little memory to start one
            yield from _here(reads, given)
            return
        for (file, *others), future in zip(given, futures, strict=True):
            try:
                result = future.result()
            except TerminatedWorkerError:
                result = _read_alone(reads, file, *others)
            if isinstance(result, TraceError) and isinstance(file, RemotePath):
                yield or_error(reads, file, *others)  # only this process may know how to open it
            else:
                yield result


def _read_alone(reads: Callable[..., Result], file: Path, *arguments: Any) -> Result | TraceError:
    """Return the result of a process that reads only this file, as memory may have run out."""
    from loky.process_executor import TerminatedWorkerError

    with _pool(1) as pool:
        try:
            result: Result | TraceError = pool.submit(or_error, reads, file, *arguments).result()
            return result
        except TerminatedWorkerError:
            return TraceError(
                f"{file}: the process that read it died twice, the second time without others "
                "beside it, as where memory runs out; close other programs, or record a shorter "
                "run."
            )


@contextmanager
def _pool(count: int) -> Iterator[ProcessPoolExecutor]:
    """Yield so many processes, which do not run the user's script again and end with the block."""
    from loky import ProcessPoolExecutor

    with ExitStack() as stack:
        with _for_workers():
            pool = ProcessPoolExecutor(
                count, timeout=IDLE_S, initializer=_begin_worker, initargs=(remote.configuration(),)
            )
            stack.callback(pool.shutdown, kill_workers=True)
            pool.submit(os.getpid)  # the first job starts all of them
        yield pool


@contextmanager
def _for_workers() -> Iterator[None]:
    """Have processes that start here get the `WORKER_ENVIRONMENT`, and no Ctrl-C of a terminal."""
    before = {name: os.environ.get(name) for name in WORKER_ENVIRONMENT}
    os.environ.update(WORKER_ENVIRONMENT)
    resource_tracker.ensure_running()  # would undo the mask, were it started with the workers
    has_mask = hasattr(signal, "pthread_sigmask")  # not on Windows
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT]) if has_mask else set()
    try:
        yield
    finally:
        if has_mask:
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        for name, value in before.items():
            del os.environ[name]
            if value is not None:
                os.environ[name] = value


def _begin_worker(settings: dict[str, Any]) -> None:
    """Have this process open URLs as the user's does, and be killed before that one."""
    remote.configure(settings)
    with suppress(OSError):  # Linux ends such a process first where memory runs out
        Path("/proc/self/oom_score_adj").write_text("1000")


def or_error(reads: Callable[..., Result], file: Path, *arguments: Any) -> Result | TraceError:
    """Return what is read from one file, or the error in reading it."""
    try:
        return reads(file, *arguments)
    except TraceError as error:
        return TraceError(str(error))


def counted(items: Iterable[Item], total: int, noun: str) -> list[Item]:
    """Return the items, and show how many there are so far: "3 of 8 ranks read"."""
    result = []
    with progress.line():
        for item in items:
            result.append(item)
            progress.say(f"{len(result)} of {total} {noun}")
    return result


def read_and_reduce(file: Path) -> ReducedRank:
    """Return the tables of one file; the record is dropped."""
    return reduced(load(file), source=file.name)


def _on_workers(client: Client, files: Sequence[Path]) -> list[ReducedRank | TraceError]:
    from distributed import as_completed

    # Not remembered between calls: a file may have changed.
    futures = client.map(partial(or_error, read_and_reduce), list(files), pure=False)
    try:
        done = as_completed(futures, loop=client.loop)  # type: ignore[no-untyped-call]
        counted(done, len(files), "ranks read")
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
) -> list[Record]:
    """Return the record of each file with what the timelines draw, in the order of the files.

    ``waits``: each rank's rows of `waiting`; ``clocks``: the difference of their times to ns since
    the epoch.
    """
    records = []
    for record in read_all(read_light, files, waits, clocks, noun="timelines read"):
        if isinstance(record, TraceError):
            raise record
        records.append(record)
    return records


def read_light(file: Path, waits: pd.DataFrame, clock_ns: int) -> Record:
    """Return what the timelines draw: slices and tracks alone, at most `MOST_SLICES` of them.

    A collective's wait for the last rank becomes a slice of its own, before it.
    """
    record = load(file)
    trace = record.trace
    drawn = _drawn(trace)
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
    slices = trace.slices.assign(ts=ts, dur=dur)
    trace = replace(trace, slices=slices, args={}, counters=trace.counters.iloc[:0])
    kept = ("source", "label", REMARKS)
    metadata = {key: record.metadata[key] for key in kept if key in record.metadata}
    return Record(with_slices(kept_slices(trace, drawn), wait_slices), None, metadata)


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
