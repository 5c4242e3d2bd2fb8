"""How long an explorer takes from a brush in the page to Python's answer in the page.

A notebook in JupyterLab explores a trace. The page brushes ranges; Python, which observes the
range, selects an event in answer. The page's own clock runs from the brush until the selection has
come, and until a frame with it has been painted. Once Python answers at once, once with an analysis
of the range first. Needs the test dependencies and Chromium. Prints a Markdown table.

    python benchmarks/grow.py SOURCE.json.gz TIMES large.json.gz
    python -m benchmarks.round_trip large.json.gz
    python -m benchmarks.round_trip large.json.gz --output benchmarks/results/round_trip.md
"""

from __future__ import annotations

import argparse
import os
import platform
import statistics
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from tempfile import TemporaryDirectory

from playwright.sync_api import Browser, Page, WebSocket, sync_playwright

import gpuprof_widgets
from tests.browser.conftest import CHROMIUM_FLAGS, chromium_path, serve_lab

NOTEBOOK = "round_trip.ipynb"
PAUSE_MS = 500
"""Between two brushes: in it the page ends what it computes of the one before."""

EXPLORE = """\
import gpuprof_widgets
from itertools import count

explorer = gpuprof_widgets.load({trace!r}).explore()
rows = count()


def answer(change):
    explorer.selection = [next(rows) % 1000]


def analyse_and_answer(change):
    explorer.operators()
    answer(change)


explorer"""

ANSWERS = {
    "at once": "explorer.observe(answer, 'range')",
    "after `explorer.operators()`": (
        "explorer.unobserve(answer, 'range')\nexplorer.observe(analyse_and_answer, 'range')"
    ),
}
BRUSH = """async ([left, right]) => {
    const store = Object.values(window.gpuprof.reports)[0]
    const [start, end] = store.trace_bounds
    const at = (share) => Math.round(start + share * (end - start))
    const began = performance.now()
    const answered = new Promise((resolve) => {
        const note = () => {
            store.disconnect(store.selection_changed, note)
            resolve()
        }
        store.connect(store.selection_changed, note)
    })
    store.brush([at(left), at(right)])
    await answered
    const come = performance.now() - began
    await new Promise((resolve) => requestAnimationFrame(() => setTimeout(resolve)))
    return [come, performance.now() - began]
}"""


@dataclass
class Traffic:
    """Bytes that page and kernel have sent each other."""

    to_kernel: list[int] = field(default_factory=list)
    to_page: list[int] = field(default_factory=list)

    def count(self, socket: WebSocket) -> None:
        if "/api/kernels/" in socket.url:
            socket.on("framesent", lambda payload: self.to_kernel.append(len(payload)))
            socket.on("framereceived", lambda payload: self.to_page.append(len(payload)))

    def reset(self) -> None:
        self.to_kernel.clear()
        self.to_page.clear()


@dataclass(frozen=True)
class Trips:
    """Some round trips: milliseconds until the answer had come and was painted, and bytes."""

    come: list[float]
    painted: list[float]
    to_kernel: float
    to_page: float


def measure(trace: Path, rounds: int) -> dict[str, Trips]:
    """Return the round trips by what Python does before it answers."""
    with (
        browser() as chromium,
        TemporaryDirectory() as home,
        contextmanager(serve_lab)(Path(home)) as lab,
    ):
        lab.write(NOTEBOOK, [EXPLORE.format(trace=str(trace.resolve())), *ANSWERS.values()])
        page = chromium.new_page(viewport={"width": 1280, "height": 900})
        traffic = Traffic()
        page.on("websocket", traffic.count)
        lab.open(page, NOTEBOOK)
        run(page, 0)
        page.wait_for_function("Object.values(window.gpuprof?.reports ?? {})[0]?.rows_kept")
        page.wait_for_timeout(5_000)  # the page computes its tables
        return {name: trips(page, cell, traffic, rounds) for cell, name in enumerate(ANSWERS, 1)}


@contextmanager
def browser() -> Iterator[Browser]:
    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=chromium_path(), args=CHROMIUM_FLAGS)
        yield chromium
        chromium.close()


def run(page: Page, cell: int) -> None:
    code = page.locator(".jp-CodeCell").nth(cell)
    code.locator(".cm-content").click()
    page.keyboard.press("Shift+Enter")
    code.locator(".jp-InputPrompt", has_text=f"[{cell + 1}]:").wait_for()


def trips(page: Page, cell: int, traffic: Traffic, rounds: int) -> Trips:
    run(page, cell)
    times: list[tuple[float, float]] = []
    for number in range(-3, rounds):  # what happens only at first is not to be measured
        page.wait_for_timeout(PAUSE_MS)
        if number == 0:
            traffic.reset()
        left = 0.1 + 0.6 * (number % 10) / 10
        trip = page.evaluate(BRUSH, [left, left + 0.1 + 0.02 * (number % 7)])
        if number >= 0:
            times.append(tuple(trip))
    page.wait_for_timeout(PAUSE_MS)
    come, painted = map(list, zip(*times, strict=True))
    return Trips(come, painted, sum(traffic.to_kernel) / rounds, sum(traffic.to_page) / rounds)


def table(measured: dict[str, Trips]) -> str:
    """The median and the 95th percentile of each, in Markdown."""
    lines = [
        "| Python answers | answer in the page, median | 95 % below | painted, median | "
        "95 % below | to the kernel, each | to the page, each |",
        "| --- | ---: | ---: | ---: | ---: | ---: | ---: |",
    ]
    for name, found in measured.items():
        times = [
            f"{value:.0f} ms"
            for all_times in (found.come, found.painted)
            for value in (statistics.median(all_times), p95(all_times))
        ]
        sent = [f"{size / 1000:.1f} kB" for size in (found.to_kernel, found.to_page)]
        lines.append(f"| {name} | {' | '.join((*times, *sent))} |")
    return "\n".join(lines)


def p95(times: list[float]) -> float:
    return statistics.quantiles(times, n=20)[-1]


def header(slices: int, rounds: int) -> str:
    """What was measured, where and how."""
    return (
        f"{datetime.now(UTC):%Y-%m-%d}, {platform.machine()}, {os.cpu_count()} CPU cores "
        f"(load average {os.getloadavg()[0]:.1f}), Python {platform.python_version()}, "
        f"JupyterLab and headless Chromium without a GPU.\n"
        f"{slices:,} slices, {rounds} round trips each."
    )


def main() -> None:
    """Measure, print the table, and keep it where that is asked for."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("trace", type=Path, help="what gpuprof_widgets.load opens")
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--output", type=Path, help="file that receives the table as well")
    arguments = parser.parse_args()
    slices = len(gpuprof_widgets.load(arguments.trace).trace)
    measured = measure(arguments.trace, arguments.rounds)
    text = f"{header(slices, arguments.rounds)}\n\n{table(measured)}\n"
    print(text)
    if arguments.output is not None:
        arguments.output.write_text(f"# From the page to Python and back\n\n{text}")


if __name__ == "__main__":
    main()
