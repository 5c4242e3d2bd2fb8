"""Read and reduce the files of many ranks: one after another here, or on the workers of Dask."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gpuprof_widgets.analyses.ranks.reduced import ReducedRank, reduced
from gpuprof_widgets.exceptions import OptionError, TraceError
from gpuprof_widgets.many_ranks.progress import Progress
from gpuprof_widgets.trace.readers import load

if TYPE_CHECKING:
    from distributed import Client

DASK_RECIPE = (
    'cluster= needs Dask: pip install "gpuprof-widgets[dask]" (without cluster= the ranks are read '
    "here, one after another)"
)


def read(files: Sequence[Path], cluster: Any = None) -> list[ReducedRank]:
    """Every file reduced, in the order of the files; where it lasts over a second, it shows so.

    ``cluster``: as in `ranks`. Raises the `TraceError` of the first file that cannot be read.
    """
    with Progress(len(files), "ranks read") as progress:
        if cluster is None:
            return [progress.counted(read_and_reduce(file)) for file in files]
        with _client(cluster) as client:
            return _on_workers(client, files, progress.counted)


def read_and_reduce(file: Path) -> ReducedRank:
    """The tables of one file; its record is gone when they are there."""
    return reduced(load(file), source=file.name)


def _on_workers(
    client: Client, files: Sequence[Path], counted: Callable[[Any], Any]
) -> list[ReducedRank]:
    from distributed import as_completed

    # Not remembered between calls: a file may have changed.
    futures = client.map(read_and_reduce, list(files), pure=False)
    try:
        for future in as_completed(futures, loop=client.loop):  # type: ignore[no-untyped-call]
            if future.status == "error":
                raise _as_ours(future.exception())
            counted(future)
        return list(client.gather(futures))  # type: ignore[no-untyped-call]
    finally:
        client.cancel(futures)  # type: ignore[no-untyped-call]


def _as_ours(error: BaseException) -> BaseException:
    """What went wrong on a worker; that it lacks the file is the likeliest of all."""
    if isinstance(error, TraceError):
        return TraceError(
            f"on a worker of the cluster: {error} (every worker has to see the files)"
        )
    return error


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
