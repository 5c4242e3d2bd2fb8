"""How long the ranks of a distributed run take to read: one, all of them here, and all on Dask.

Every route runs in a process of its own, all of them in every round. Counted is the wall time of
`gpuprof_widgets.ranks`, without the imports of that process and without the start of the cluster,
whose workers have imported the package as well. The peak of the memory is that of the process and,
for each of those that it started, the largest one's: they cannot have taken more together. The
ranks are made of small ones by repeating their events.

    make bench-ranks                                        # of two ranks recorded for the tests
    make bench-ranks ROUNDS=3 RANKS=FOLDER
    python -m benchmarks.many_ranks --keep build/ranks      # only prints, keeps the traces
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import statistics
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from functools import partial
from importlib import import_module
from multiprocessing import get_context
from pathlib import Path
from time import perf_counter
from typing import Any

from benchmarks.child_process import ROOT, ChildError, run
from benchmarks.large_traces import MB, machine, spread, write
from benchmarks.made_traces import MadeTrace, make_trace
from benchmarks.routes import Environment

SOURCE = ROOT / "tests" / "data" / "recorded"
TITLE = "Reading the ranks of a run"
PACKAGES = Environment(
    "gpuprof_widgets",
    ("gpuprof-widgets", "msgspec", "numpy", "pandas", "isal", "dask", "distributed"),
)


@dataclass(frozen=True)
class Route:
    """A way to read ranks: in its process this function is called, with this number of workers."""

    title: str
    measure: str
    workers: int = 0
    reads_one: bool = False


ONE = Route("one rank", "measured_here", reads_one=True)
HERE = Route("all ranks", "measured_here")
DASK = tuple(
    Route(f"all ranks, `cluster=` with {count}", "measured_on_dask", number)
    for number, count in ((1, "one worker"), (2, "two workers"))
)
ROUTES = (ONE, HERE, *DASK)


@dataclass(frozen=True)
class Measured:
    """The seconds of one call, and the most memory in bytes of all of its processes together."""

    seconds: float
    peak: int = 0
    processes: int = 1


@dataclass
class Figures:
    """What a route took in each round, or why there is nothing."""

    seconds: list[float] = field(default_factory=list)
    peak: list[int] = field(default_factory=list)
    processes: int = 1
    failure: str = ""

    def add(self, measured: Measured) -> None:
        """Keep what was measured in one more round."""
        self.seconds.append(measured.seconds)
        self.peak.append(measured.peak)
        self.processes = measured.processes


Results = dict[Route, Figures]


def measured_here(files: Sequence[Path], _: int) -> Measured:
    """Read the ranks in this process, or in those that it starts."""
    from gpuprof_widgets.many_ranks.profiles import ranks
    from gpuprof_widgets.many_ranks.reading import process_count

    seconds = timed(lambda: ranks(files))
    count = process_count(files)
    alone, largest = (
        resource.getrusage(whose).ru_maxrss * 1024
        for whose in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)
    )
    return Measured(seconds, alone + (largest * count if count > 1 else 0), count)


def measured_on_dask(files: Sequence[Path], workers: int) -> Measured:
    """Read the ranks on a cluster of this machine that has started before."""
    from distributed import Client, LocalCluster

    from gpuprof_widgets.many_ranks.profiles import ranks

    with (
        LocalCluster(
            n_workers=workers, threads_per_worker=1, processes=True, dashboard_address=None
        ) as cluster,
        Client(cluster, set_as_default=False) as client,
    ):
        client.wait_for_workers(workers)
        client.run(import_module, "gpuprof_widgets.many_ranks.reading")
        return Measured(timed(lambda: ranks(files, cluster=client)), processes=workers)


def timed(call: Callable[[], object]) -> float:
    """Return the seconds that a call takes."""
    start = perf_counter()
    call()
    return perf_counter() - start


def measure(route: Route, files: Sequence[Path], seconds: float) -> Measured:
    """Measure a route once, in a process of its own; a `ChildError` says why it failed."""
    code = (
        "import sys; from pathlib import Path; from benchmarks import many_ranks\n"
        "target, name, workers, *files = sys.argv[1:]\n"
        "measured = getattr(many_ranks, name)([*map(Path, files)], int(workers))\n"
        "many_ranks.keep(measured, Path(target))"
    )
    with tempfile.TemporaryDirectory() as folder:
        target = Path(folder) / "measured.json"
        read = files[:1] if route.reads_one else files
        words = (str(target), route.measure, str(route.workers), *map(str, read))
        run(Path(sys.executable), code, *words, seconds=seconds)
        return Measured(**json.loads(target.read_text()))


def keep(measured: Measured, target: Path) -> None:
    """Write what was measured for the process that asked."""
    target.write_text(json.dumps(asdict(measured)))


def rounds(files: Sequence[Path], number: int, seconds: float) -> Iterator[Results]:
    """Measure every route once in each round, and yield all results after each."""
    results: Results = {route: Figures() for route in ROUTES}
    for route in ROUTES:  # has Python compile the modules, which no measured run has to do then
        try:
            measure(route, files[:1], seconds)
        except ChildError as error:
            results[route].failure = str(error)
    for at in range(1, number + 1):
        for route, figures in results.items():
            if not figures.failure:
                print(f"round {at}, {route.title}", file=sys.stderr)
                figures.add(measure(route, files, seconds))
        yield results


def table(results: Results) -> str:
    """Return the table in Markdown: a row for each route."""
    lines = [
        "| route | processes that read | seconds | ratio | peak MB, all processes |",
        "| --- | ---: | ---: | ---: | ---: |",
    ]
    for route, figures in results.items():
        if figures.failure:
            cells = ("", figures.failure.replace("|", r"\|"), "", "")
        else:
            peak = [size / MB for size in figures.peak]
            ratio = quotient(figures, results[ONE])
            memory = spread(peak, ",.0f") if any(peak) else ""
            cells = (str(figures.processes), spread(figures.seconds, ".2f"), ratio, memory)
        lines.append(f"| {' | '.join((route.title, *cells))} |")
    return "\n".join(lines)


def quotient(figures: Figures, other: Figures) -> str:
    """Return how many times as long as the other it takes, by the medians."""
    if not figures.seconds or not other.seconds:
        return ""
    return f"{statistics.median(figures.seconds) / statistics.median(other.seconds):.2f}"


def header(on: dict[str, Any], traces: Sequence[MadeTrace], results: Results, number: int) -> str:
    """Return what was measured, where and how."""
    versions = ", ".join(f"{name} {v}" for name, v in on["versions"][PACKAGES.title].items())
    events, text, packed = (
        sum(getattr(trace, what) for trace in traces)
        for what in ("events", "text_bytes", "file_bytes")
    )
    times = sorted({trace.times for trace in traces})
    faster = quotient(results[DASK[0]], results[DASK[1]])
    of_dask = f" Two workers of Dask are {faster} times as fast as one." if faster else ""
    return (
        f"{on['date']}, {on['cpu']}, {on['cores']} CPU cores (load average {on['load_average']}), "
        f"Python {on['python']}; gpuprof_widgets {'with' if on['compiled_scanner'] else 'without'} "
        f"its compiled scanner. {versions}.\n\n"
        f"{len(traces)} ranks, {events:,} events, {text / MB:,.0f} MB of text in files of "
        f"{packed / MB:,.1f} MB (small ones {times[0]} to {times[-1]} times). "
        f"Medians of {number} interleaved rounds, in brackets the least and the most; "
        "ratios to one rank. Wall time of `gpuprof_widgets.ranks` without the imports of its "
        "process and the start of a cluster; the processes of its own start within it. Peaks are "
        f"at most what all processes took together.{of_dask}"
    )


def record(on: dict[str, Any], traces: Sequence[MadeTrace], results: Results) -> dict[str, Any]:
    """Return everything that was measured, for the file of JSON; no path of the machine."""
    return {
        **on,
        "traces": [
            {key: value for key, value in asdict(trace).items() if key != "file"}
            for trace in traces
        ],
        "routes": {route.title: asdict(figures) for route, figures in results.items()},
    }


def make_ranks(sources: Sequence[Path], millions: float, folder: Path) -> list[MadeTrace]:
    """Make a trace of about so many million events of each, in other processes."""
    with ProcessPoolExecutor(mp_context=get_context("spawn")) as pool:
        return list(pool.map(partial(make_trace, millions=millions, folder=folder), sources))


def sources_in(folder: Path) -> list[Path]:
    """Return the files of ranks in a folder: those that have "rank" in their names."""
    return sorted(file for file in folder.iterdir() if "rank" in file.name)


def options() -> argparse.Namespace:
    """Return what the command line says."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--millions", type=float, default=1, help="events of a rank")
    parser.add_argument("--source", type=Path, default=SOURCE, help="a folder of ranks to grow")
    parser.add_argument("--keep", type=Path, help="folder that keeps the grown traces for reuse")
    parser.add_argument("--limit", type=float, default=3600, help="seconds that a route may take")
    parser.add_argument("--output", type=Path, help="file of JSON; the table goes beside it, .md")
    arguments = parser.parse_args()
    if arguments.rounds < 1:
        parser.error("--rounds is 1 or more")
    if len(sources_in(arguments.source)) < 2:
        parser.error("--source is a folder with the traces of several ranks (rank0.json.gz, ...)")
    return arguments


def main() -> None:
    """Measure, print the table, and keep it where that is asked for."""
    arguments = options()
    with ExitStack() as stack:
        folder = arguments.keep or Path(stack.enter_context(tempfile.TemporaryDirectory()))
        folder.mkdir(parents=True, exist_ok=True)
        traces = make_ranks(sources_in(arguments.source), arguments.millions, folder.resolve())
        compiled = stack.enter_context(tempfile.TemporaryDirectory())
        os.environ["PYTHONPYCACHEPREFIX"] = compiled  # as where it is installed
        os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
        on = machine([PACKAGES])
        text = ""
        files = [trace.file for trace in traces]
        for number, results in enumerate(rounds(files, arguments.rounds, arguments.limit), 1):
            text = f"{header(on, traces, results, number)}\n\n{table(results)}\n"
            if arguments.output is not None:  # after each round, for the next one may be cut off
                write(arguments.output, text, record(on, traces, results), TITLE)
    print(text)


if __name__ == "__main__":
    main()
