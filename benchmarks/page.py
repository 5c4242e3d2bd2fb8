"""What the page of a trace costs its reader: until it is there, from a brush to new numbers, memory.

    python -m benchmarks.page [TRACE or PAGE.html ...]

Without a trace it makes up trainings of 10,000 and 200,000 events. The pages open in Chromium from
disk. "Longest task" is the longest time for which a page did not answer, loading or brushing;
memory is that of its process (page and worker) less that of a page of one event.
"""

from __future__ import annotations

import argparse
import shutil
import statistics
import tempfile
from collections.abc import Iterable
from pathlib import Path

import psutil
from playwright.sync_api import Browser, Page, sync_playwright

import gpuprof_widgets
from gpuprof_widgets.views.report import standalone_html
from tests.traces import kernel, op, runtime, trace_of

BRUSHES = 20
FLAGS = ["--no-sandbox", "--disable-gpu", "--js-flags=--expose-gc"]
STORE = "Object.values(window.gpuprof?.reports ?? {})[0]"

NOTE_TASKS = """
window.tasks = []
const note = (list) => list.getEntries().forEach(({duration}) => window.tasks.push(duration))
new PerformanceObserver(note).observe({type: "longtask", buffered: true})
"""

BRUSH = (
    """async ([from, to]) => {
    const store = """
    + STORE
    + """
    const frame = () => new Promise((resolve) => requestAnimationFrame(resolve))
    const painted = async () => {
        await frame()
        await new Promise((resolve) => setTimeout(resolve))
    }
    const [low, high] = store.trace_bounds
    const began = performance.now()
    store.brush([low + from * (high - low), low + to * (high - low)])
    await painted()
    const range = performance.now() - began
    while (store.answers?.is_idle === false) {
        await new Promise((resolve) => setTimeout(resolve))
    }
    await painted()
    return [range, performance.now() - began]
}"""
)


def training(events: int) -> gpuprof_widgets.Profile:
    """A made-up training: of each four events an op in an op, its launch, and its kernel."""
    parts = []
    for number in range(events // 4):
        ts = 1_000 * number
        parts += [
            op(f"aten::op{number % 97}", ts=ts, dur=900),
            op(f"aten::op{number % 97}_impl", ts=ts + 50, dur=800),
            runtime("cudaLaunchKernel", ts=ts + 100, dur=300),
            kernel(f"kernel{number % 61}", ts=ts + 500, dur=400, launched_by=4 * number + 2),
        ]
    return gpuprof_widgets.Profile(trace_of(*parts).trace, None, {"label": "training"})


def memory_of(browser: Browser, page: Page) -> int:
    """Bytes that the process of a page has, after its garbage was collected."""
    page.evaluate("() => { gc(); gc() }")
    session = browser.new_browser_cdp_session()
    processes = session.send("SystemInfo.getProcessInfo")["processInfo"]
    renderers = [psutil.Process(each["id"]) for each in processes if each["type"] == "renderer"]
    return max(process.memory_full_info().uss for process in renderers)


def measure(browser: Browser, path: Path) -> tuple[list[float], int, int]:
    """Return ms to load, of the longest tasks, of brushes; the number of events; bytes."""
    page = browser.new_page(viewport={"width": 1280, "height": 900}, bypass_csp=True)
    page.set_default_timeout(300_000)
    page.add_init_script(NOTE_TASKS)
    page.goto(path.as_uri(), wait_until="commit")
    page.wait_for_function(
        "() => document.querySelector('.gpuprof-report') != null"
        " && document.querySelector('.gpuprof-report').dataset.shown !== undefined"
    ) if False else page.locator("table[aria-label=Operators] tbody tr").first.wait_for()
    there = page.evaluate("performance.now()")
    page.wait_for_timeout(500)
    loading = max(page.evaluate("window.tasks"), default=0)
    page.evaluate("() => { window.tasks = [] }")
    times = []
    for number in range(BRUSHES):
        start = 0.05 + 0.8 * number / BRUSHES
        times.append(page.evaluate(BRUSH, [start, start + (0.1 if number % 2 else 0.5 * (1 - start))]))
        page.wait_for_timeout(50)
    brushing = max(page.evaluate("window.tasks"), default=0)
    rows = page.evaluate(f"{STORE}.data.rows")
    memory = memory_of(browser, page)
    page.close()
    ranges, numbers = zip(*times, strict=True)
    shown = [there, loading, brushing, statistics.median(ranges), statistics.median(numbers), sorted(numbers)[-2]]
    return shown, rows, memory


if __name__ == "__main__":
    import sys
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=FLAGS)
        for name in sys.argv[1:]:
            shown, rows, memory = measure(browser, Path(name).resolve())
            print(name, rows, [round(x) for x in shown], f"{memory/1e6:.0f} MB", flush=True)
        browser.close()
