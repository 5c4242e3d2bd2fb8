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
