"""What the page of a trace costs its reader: to be there, from a brush to new numbers, memory.

    python -m benchmarks.page [TRACE or PAGE.html ...]

Without a trace it makes up trainings of 10,000 and 200,000 events. The pages open in Chromium from
disk, one after the other; PAGE.html may be that of another version. The columns:

- `there`: ms from the start of navigation until the op table has rows;
- `loading`, `brushing`: ms of the longest task, in which the page does not answer;
- `range`: ms from a brush until the range is painted, median of 20 brushes of various lengths;
- `numbers`, `p95`: ms from a brush until all views show its numbers;
- `heap`: bytes per event of the page's and its worker's heaps and buffers, less a one-event page's;
- `process`: the same of the page's process, with what the browser has not yet given back.
"""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
import tempfile
from pathlib import Path
from typing import NamedTuple

import psutil
from playwright.sync_api import Browser, Page, sync_playwright

import gpuprof_widgets
from gpuprof_widgets.trace.model import Record
from gpuprof_widgets.views.report import standalone_html
from tests.traces import kernel, op, runtime, trace_of

EVENTS = (10_000, 200_000)
BRUSHES = 20
TIMEOUT_MS = 300_000
SETTLING_MS = 500
FLAGS = ["--no-sandbox", "--disable-gpu", "--js-flags=--expose-gc"]

NOTE_TASKS = """
window.tasks = []
const note = (list) => list.getEntries().forEach(({duration}) => window.tasks.push(duration))
new PerformanceObserver(note).observe({type: "longtask", buffered: true})
"""
LONGEST_TASK = "() => Math.max(0, ...window.tasks.splice(0))"
ROWS = "() => Object.values(window.gpuprof.reports)[0].data.rows"
BRUSH = """async ([from, to]) => {
    const [store] = Object.values(window.gpuprof.reports)
    const later = (wait) => new Promise((resolve) => wait(resolve))
    const is_idle = () => store.answers?.is_idle !== false
    const painted = async () => {
        await later(requestAnimationFrame)
        const has_numbers = is_idle()
        await later(setTimeout)
        return [performance.now() - began, has_numbers]
    }
    const [low, high] = store.trace_bounds
    const began = performance.now()
    store.brush([from, to].map((share) => low + share * (high - low)))
    const [range, has_numbers] = await painted()
    while (!is_idle()) {
        await later(setTimeout)
    }
    return [range, has_numbers ? range : (await painted())[0]]
}"""


class Costs(NamedTuple):
    """What one page cost: ms, and at the end bytes and events."""

    there: float
    loading: float
    brushing: float
    range: float
    numbers: float
    p95: float
    heap: int
    process: int
    events: int


def training(events: int) -> Record:
    """A made-up training: of each four events an op in an op, its launch, and its kernel."""
    parts = []
    for number in range(max(events // 4, 1)):
        ts = 1_000 * number
        parts += [
            op(f"aten::op{number % 97}", ts=ts, dur=900),
            op(f"aten::op{number % 97}_impl", ts=ts + 50, dur=800),
            runtime("cudaLaunchKernel", ts=ts + 100, dur=300),
            kernel(f"kernel{number % 61}", ts=ts + 500, dur=400, launched_by=4 * number + 2),
        ]
    return trace_of(*parts)


def measured(browser: Browser, path: Path) -> Costs:
    """Open a page, brush it, and close it."""
    page = browser.new_page(viewport={"width": 1280, "height": 900}, bypass_csp=True)
    page.set_default_timeout(TIMEOUT_MS)
    page.add_init_script(NOTE_TASKS)
    page.goto(path.as_uri(), wait_until="commit")
    page.locator("table[aria-label='Op table'] tbody tr").first.wait_for()
    there = page.evaluate("performance.now()")
    page.wait_for_timeout(SETTLING_MS)
    loading = page.evaluate(LONGEST_TASK)
    brushes = []
    for number in range(BRUSHES):
        start = 0.05 + 0.8 * number / BRUSHES
        length = 0.1 if number % 2 else (1 - start) / 2
        brushes.append(page.evaluate(BRUSH, [start, start + length]))
        page.wait_for_timeout(SETTLING_MS / 10)
    ranges, numbers = zip(*brushes, strict=True)
    brushing = page.evaluate(LONGEST_TASK)
    rows, heap, process = page.evaluate(ROWS), heap_of(page), process_of(browser, page)
    page.close()
    median = statistics.median
    p95 = sorted(numbers)[round(0.95 * (BRUSHES - 1))]
    return Costs(
        there, loading, brushing, median(ranges), median(numbers), p95, heap, process, rows
    )


def heap_of(page: Page) -> int:
    """Bytes of the heaps and buffers of a page and its workers, after garbage was collected."""
    collect_garbage(page)
    session = page.context.new_cdp_session(page)
    answers = [session.send("Runtime.getHeapUsage")]
    workers: list[str] = []

    def take(event: dict[str, str]) -> None:
        message = json.loads(event["message"])
        if "result" in message:
            answers.append(message["result"])

    session.on("Target.attachedToTarget", lambda event: workers.append(event["sessionId"]))
    session.on("Target.receivedMessageFromTarget", take)
    session.send(
        "Target.setAutoAttach",
        {"autoAttach": True, "waitForDebuggerOnStart": False, "flatten": False},
    )
    question = json.dumps({"id": 1, "method": "Runtime.getHeapUsage"})
    for worker in workers:
        session.send("Target.sendMessageToTarget", {"sessionId": worker, "message": question})
    while len(answers) <= len(workers):
        page.wait_for_timeout(SETTLING_MS / 10)
    return int(sum(each["usedSize"] + each["backingStorageSize"] for each in answers))


def process_of(browser: Browser, page: Page) -> int:
    """Bytes that the process of a page has to itself, after garbage was collected."""
    collect_garbage(page)
    page.wait_for_timeout(10 * SETTLING_MS)  # the browser gives free memory back in its own time
    processes = browser.new_browser_cdp_session().send("SystemInfo.getProcessInfo")["processInfo"]
    renderers = [psutil.Process(each["id"]) for each in processes if each["type"] == "renderer"]
    return max(int(renderer.memory_full_info().uss) for renderer in renderers)


def collect_garbage(page: Page) -> None:
    """Have a page and its workers let go of what they need no more."""
    for each in (page, *page.workers):
        each.evaluate("() => { gc(); gc() }")


def pages(names: list[str], folder: Path) -> dict[str, Path]:
    """Return the pages by what is measured, those of traces written into the folder."""
    records = {f"training of {events:,}": training(events) for events in (() if names else EVENTS)}
    given = {name: Path(name).resolve() for name in names if name.endswith(".html")}
    records |= {name: gpuprof_widgets.load(name) for name in names if name not in given}
    written = {name: folder / f"{number}.html" for number, name in enumerate(records)}
    for name, path in written.items():
        path.write_text(standalone_html(records[name]), encoding="utf-8")
    return written | given


def main() -> None:
    """Print a line for each page."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("pages", nargs="*", metavar="TRACE or PAGE.html")
    names = parser.parse_args().pages
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=FLAGS)
        empty = Path(folder) / "empty.html"
        empty.write_text(standalone_html(training(1)), encoding="utf-8")
        base = measured(browser, empty)
        columns = Costs._fields[:-1]
        print(f"{'page':<32}{'events':>11}" + "".join(f"{name:>9}" for name in columns))
        for name, path in pages(names, Path(folder)).items():
            costs = measured(browser, path)
            bytes_beyond = (costs.heap - base.heap, costs.process - base.process)
            memory = [each / costs.events for each in bytes_beyond]
            numbers = "".join(f"{value:>9.0f}" for value in [*costs[:6], *memory])
            print(f"{name[-32:]:<32}{costs.events:>11,}{numbers}", flush=True)
        browser.close()


if __name__ == "__main__":
    main()
