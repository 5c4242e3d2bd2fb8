"""What it costs to read and analyse a large trace of PyTorch, here and with the peers.

Every route runs in a process of its own, all of them in every round. Counted are the CPU seconds of
the whole process, less those of a process of the same round that only imports the same packages,
and the peak of its memory, imports included. The table shows medians, in brackets the least and the
most of the rounds, and ratios to `gpuprof_widgets.load`; for several sizes another one shows by
which power of the number of events the CPU seconds grow. HolisticTraceAnalysis and the TensorBoard
plugin have environments of their own below build/bench, which `make bench` makes; where one cannot
be installed, or fails, the table says why.

    make bench                                                   # some minutes
    make bench ROUNDS=3 SIZES='1 5' SOURCE=TRACE.json.gz
    python -m benchmarks.large_traces --keep build/traces        # only prints, keeps the traces
"""

from __future__ import annotations

import argparse
import json
import math
import os
import platform
import resource
import statistics
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from benchmarks.child_process import ChildError
from benchmarks.made_traces import SOURCE, MadeTrace, make_traces
from benchmarks.routes import ENVIRONMENTS, LOAD, ROUTES, Environment, Route

MB = 1e6
CPU_MODEL = Path("/proc/cpuinfo")
SCANNER = Path(__file__).parents[1] / "gpuprof_widgets/trace/_event_scanner.so"
"""Without it gpuprof_widgets reads traces in Python alone."""


@dataclass
class Figures:
    """What a route took in each round on one trace, or why there is nothing.

    ``cpu`` is without the imports, ``peak`` with them; what they took alone is kept as well.
    """

    cpu: list[float] = field(default_factory=list)
    peak: list[int] = field(default_factory=list)
    imports_cpu: list[float] = field(default_factory=list)
    imports_peak: list[int] = field(default_factory=list)
    failure: str = ""


Results = list[tuple[MadeTrace, dict[Route, Figures]]]
"""The figures of all routes on each trace."""


def failures(routes: Sequence[Route], small: Path, seconds: float) -> dict[Route, str]:
    """Run every route on a small trace, and return why some of them cannot be measured.

    It also has Python compile the modules, which no measured run has to do then.
    """
    why = {}
    for route in routes:
        with tempfile.TemporaryDirectory() as folder:
            try:
                route.usage_of_imports(small, Path(folder), seconds)
            except ChildError as error:
                reason = route.environment.why_not_installed(str(error))
                why[route] = f"not installed: {reason}"
                continue
            try:
                route.usage(small, Path(folder), seconds)
            except ChildError as error:
                why[route] = failed(error, small)
    return why


def add_round(figures: Figures, route: Route, trace: Path, seconds: float) -> None:
    """Measure the route once more, or note why it is not to be measured again."""
    with tempfile.TemporaryDirectory() as folder:
        try:
            imports = route.usage_of_imports(trace, Path(folder), seconds)
            usage = route.usage(trace, Path(folder), seconds)
        except ChildError as error:
            figures.failure = failed(error, trace)
            return
    figures.cpu.append(usage.cpu - imports.cpu)
    figures.peak.append(usage.peak)
    figures.imports_cpu.append(imports.cpu)
    figures.imports_peak.append(imports.peak)


def failed(error: ChildError, trace: Path) -> str:
    """Return what the table says, without the folder in which the trace lies."""
    return f"failed: {error}".replace(f"{trace.parent}{os.sep}", "")


def measure(
    traces: Sequence[MadeTrace], why: dict[Route, str], rounds: int, seconds: float
) -> Iterator[Results]:
    """Measure every route once in each round, and yield all results after each."""
    results: Results = [
        (trace, {route: Figures(failure=why.get(route, "")) for route in ROUTES})
        for trace in traces
    ]
    for number in range(1, rounds + 1):
        for trace, by_route in results:
            for route, figures in by_route.items():
                if not figures.failure:
                    print(f"round {number}, {trace.title}, {route.name}", file=sys.stderr)
                    add_round(figures, route, trace.file, seconds)
        yield results


def table(results: Results) -> str:
    """Return the table in Markdown: a row for each route, four columns for each trace."""
    titles = ["route"]
    for trace, _ in results:
        titles += [f"CPU seconds, {trace.title}", "ratio", f"peak MB, {trace.title}", "ratio"]
    lines = [f"| {' | '.join(titles)} |", f"| --- |{' ---: |' * (len(titles) - 1)}"]
    for route in results[0][1]:
        row = [cell for _, by_route in results for cell in cells(by_route[route], by_route[LOAD])]
        lines.append(f"| {' | '.join((route.name, *row))} |")
    return "\n".join(lines)


def growth(results: Results) -> str:
    """Return by which power of the number of events each route's CPU seconds grow, as a table.

    That is the slope of a line through the logarithms (least squares); 1 is linear, and a constant
    part, such as what a command imports, makes it less. "" for traces of one size.
    """
    events = [trace.events for trace, _ in results]
    if len(set(events)) < 2:
        return ""
    lines = ["| route | CPU seconds grow with this power of the events |", "| --- | ---: |"]
    for route in results[0][1]:
        rounds = [by_route[route].cpu for _, by_route in results]
        seconds = [statistics.median(each) for each in rounds if each]
        if len(seconds) == len(rounds) and min(seconds) > 0:
            lines.append(f"| {route.name} | {slope(events, seconds):.2f} |")
    return "\n".join(lines)


def slope(events: Sequence[int], seconds: Sequence[float]) -> float:
    """Return the slope of seconds over events in logarithms."""
    logarithms = ([math.log(value) for value in values] for values in (events, seconds))
    return statistics.linear_regression(*logarithms).slope


def cells(figures: Figures, ours: Figures) -> list[str]:
    """Return CPU seconds, their ratio to ours, the peak of the memory, and its ratio."""
    if figures.failure:
        return [figures.failure.replace("|", r"\|"), "", "", ""]
    peak, our_peak = ([size / MB for size in one.peak] for one in (figures, ours))
    return [
        spread(figures.cpu, ".2f"),
        ratio(figures.cpu, ours.cpu),
        spread(peak, ",.0f"),
        ratio(peak, our_peak),
    ]


def spread(values: Sequence[float], form: str) -> str:
    """Return the median, and in brackets the least and the most."""
    low, middle, high = min(values), statistics.median(values), max(values)
    return f"{middle:{form}} ({low:{form}}–{high:{form}})"


def ratio(values: Sequence[float], ours: Sequence[float]) -> str:
    """Return the ratio of the medians, and nothing where ours failed."""
    return f"{statistics.median(values) / statistics.median(ours):.2f}" if ours else ""


def machine(environments: Sequence[Environment] = ENVIRONMENTS) -> dict[str, Any]:
    """Return when and on what was measured, with the versions of their packages."""
    return {
        "date": f"{datetime.now(UTC):%Y-%m-%d}",
        "cpu": cpu_model(CPU_MODEL.read_text() if CPU_MODEL.exists() else ""),
        "cores": os.cpu_count(),
        "load_average": round(os.getloadavg()[0], 1),
        "python": platform.python_version(),
        "compiled_scanner": SCANNER.exists(),
        "versions": {one.title: one.versions() for one in environments},
    }


def cpu_model(text: str) -> str:
    """Return the name of the first processor, or of the architecture where it has none."""
    names = [line.partition(":")[2].strip() for line in text.splitlines() if "model name" in line]
    return names[0] if names else platform.machine()


def header(on: dict[str, Any], results: Results, rounds: int) -> str:
    """Return what was measured, where and how."""
    versions = "; ".join(
        f"{title}: {', '.join(f'{name} {version}' for name, version in packages.items())}"
        for title, packages in on["versions"].items()
        if packages
    )
    traces = "; ".join(
        f"{trace.events:,} events, {trace.text_bytes / MB:,.0f} MB of text in a file of "
        f"{trace.file_bytes / MB:,.1f} MB ({trace.source}, {trace.times} times)"
        for trace, _ in results
    )
    return (
        f"{on['date']}, {on['cpu']}, {on['cores']} CPU cores (load average {on['load_average']}), "
        f"Python {on['python']}; gpuprof_widgets {'with' if on['compiled_scanner'] else 'without'} "
        f"its compiled scanner. {versions}.\n\n{traces}. Medians of {rounds} interleaved rounds, "
        "in brackets the least and the most; ratios to `load`. CPU seconds (user and system) are "
        "those of a process of its own without those of its imports, the peak of its memory is "
        "with them. Commands of `gpuprof` count as whole processes. No peak is below the "
        f"{own_peak() / MB:.0f} MB of the process that started the others."
    )


def own_peak() -> int:
    """Return the peak of the memory of this process in bytes."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def record(on: dict[str, Any], results: Results) -> dict[str, Any]:
    """Return everything that was measured, for the file of JSON; no path of the machine."""
    return {
        **on,
        "traces": [
            {
                **{key: value for key, value in asdict(trace).items() if key != "file"},
                "routes": {route.name: asdict(figures) for route, figures in by_route.items()},
            }
            for trace, by_route in results
        ],
    }


def options() -> argparse.Namespace:
    """Return what the command line says."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument(
        "--sizes", type=float, nargs="+", default=[1], help="events of the traces, in millions"
    )
    parser.add_argument("--source", type=Path, default=SOURCE, help="a trace of Kineto's to grow")
    parser.add_argument("--keep", type=Path, help="folder that keeps the grown traces for reuse")
    parser.add_argument("--limit", type=float, default=3600, help="seconds that a route may take")
    parser.add_argument("--output", type=Path, help="file of JSON; the table goes beside it, .md")
    arguments = parser.parse_args()
    if arguments.rounds < 1:
        parser.error("--rounds is 1 or more")
    return arguments


def main() -> None:
    """Measure, print the table, and keep it where that is asked for."""
    arguments = options()
    with ExitStack() as stack:
        folder = arguments.keep or Path(stack.enter_context(tempfile.TemporaryDirectory()))
        folder.mkdir(parents=True, exist_ok=True)
        tiny, *traces = make_traces(arguments.source, [0, *arguments.sizes], folder.resolve())
        why = failures(ROUTES, tiny.file, arguments.limit)
        text = ""
        on = machine()
        rounds = measure(traces, why, arguments.rounds, arguments.limit)
        for number, results in enumerate(rounds, 1):
            parts = (header(on, results, number), table(results), growth(results))
            text = "".join(f"{part}\n\n" for part in parts if part)
            if arguments.output is not None:  # after each round, for the next one may be cut off
                write(arguments.output, text, record(on, results))
    print(text)


def write(
    output: Path, text: str, measured: dict[str, Any], title: str = "Reading large traces"
) -> None:
    """Keep the measurements as JSON, and the table beside them."""
    output.write_text(json.dumps(measured, indent=1) + "\n")
    output.with_suffix(".md").write_text(f"# {title}\n\n{text.rstrip()}\n")


if __name__ == "__main__":
    main()
