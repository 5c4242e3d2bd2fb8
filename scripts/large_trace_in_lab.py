"""Write docs/images/five_million_events.png: one kernel of five million events, in JupyterLab.

A trace is repeated, opened in a notebook, zoomed to a kernel and brushed there, as a user would. It
takes some minutes and 5 GB of memory.

    python scripts/large_trace_in_lab.py TRACE.json.gz [--millions 5] [--kernel layer_norm_kernel]
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import nbformat
from playwright.sync_api import Locator, Page, sync_playwright

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from benchmarks.made_traces import SOURCE, MadeTrace, make_trace  # noqa: E402

PICTURE = ROOT / "docs" / "images" / "five_million_events.png"
WIDTH, HEIGHT = 1280, 1180
WAIT_MS = 600_000


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("trace", type=Path, nargs="?", default=SOURCE, help="repeated so often")
    parser.add_argument("--millions", type=float, default=5, help="of events in the large trace")
    parser.add_argument("--kernel", default="layer_norm_kernel", help="a part of its name")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        notebook(make_trace(arguments.trace, arguments.millions, folder), folder)
        with jupyterlab(folder) as url, sync_playwright() as playwright:
            chromium = shutil.which(os.environ.get("CHROMIUM", "chromium"))
            browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
            page = browser.new_page(viewport={"width": WIDTH, "height": HEIGHT})
            report = shown(page, url)
            zoom_to(arguments.kernel, page, report)
            brush(page, report)
            page.screenshot(path=PICTURE)
            browser.close()
    print(f"{PICTURE}: {PICTURE.stat().st_size:,} bytes")


def notebook(trace: MadeTrace, folder: Path) -> None:
    lines = (
        "import gpuprof_widgets",
        f"# {trace.events:,} events, {trace.text_bytes / 1e9:.1f} GB of text",
        f'gpuprof_widgets.load("{trace.file.name}")',
    )
    write_notebook(folder / "large_trace.ipynb", "\n".join(lines))


def write_notebook(file: Path, *code: str) -> None:
    """Write a notebook with these cells, none of which has run."""
    cells = [nbformat.v4.new_code_cell(cell) for cell in code]  # type: ignore[no-untyped-call]
    kernel = {"kernelspec": {"name": "python3", "display_name": "Python 3"}}
    made = nbformat.v4.new_notebook(cells=cells, metadata=kernel)  # type: ignore[no-untyped-call]
    nbformat.write(made, file)  # type: ignore[no-untyped-call]


@contextmanager
def jupyterlab(folder: Path) -> Iterator[str]:
    """Yield the address of a JupyterLab on this folder."""
    runtime = folder / ".runtime"
    words = [sys.executable, "-m", "jupyterlab", "--no-browser", "--allow-root", "--port=0"]
    words += ["--IdentityProvider.token=", "--LabApp.news_url=", f"--ServerApp.root_dir={folder}"]
    environment = {**os.environ, "JUPYTER_RUNTIME_DIR": str(runtime)}
    with subprocess.Popen(words, env=environment, stderr=subprocess.DEVNULL) as server:
        try:
            while not (files := [*runtime.glob("jpserver-*.json")]):
                if server.poll() is not None:
                    raise SystemExit("JupyterLab did not start")
                time.sleep(0.2)
            yield json.loads(files[0].read_text())["url"]
        finally:
            server.terminate()


def shown(page: Page, url: str) -> Locator:
    """Run the notebook's cell, and return the report below it, at the top of the window."""
    page.goto(f"{url}lab/tree/large_trace.ipynb?reset")
    page.locator(".jp-CodeCell .cm-content").click()
    page.wait_for_timeout(3000)  # the kernel starts
    began = time.monotonic()
    page.keyboard.press("Shift+Enter")
    report = page.locator(".gpuprof-report[data-complete]")
    report.wait_for(timeout=WAIT_MS)
    print(f"shown after {time.monotonic() - began:.0f} s")
    page.keyboard.press("Control+b")  # without the file browser
    page.wait_for_timeout(1000)
    report.evaluate("report => report.closest('.jp-Cell').scrollIntoView()")
    return report


def zoom_to(kernel: str, page: Page, report: Locator) -> None:
    """Search for the kernel, zoom to its first instance, and select that without the search."""
    search = report.get_by_placeholder("Search all names")
    search.fill(kernel)
    page.wait_for_timeout(2000)
    report.get_by_role("button", name="Next event").first.click()
    page.wait_for_timeout(1000)
    timeline = timeline_of(report)
    timeline.focus()
    page.keyboard.press("f")
    page.wait_for_timeout(1000)
    search.fill("")
    report.get_by_text("Timeline", exact=True).first.evaluate(
        "title => { title.style.scrollMarginTop = '9px'; title.scrollIntoView() }"
    )
    page.wait_for_timeout(1000)
    box, stream = timeline.bounding_box(), report.get_by_text("stream 7").first.bounding_box()
    assert box is not None
    assert stream is not None
    page.mouse.click(box["x"] + box["width"] / 2, stream["y"] + stream["height"] / 2)
    page.keyboard.press("f")
    page.wait_for_timeout(1000)


def brush(page: Page, report: Locator) -> None:
    box = timeline_of(report).bounding_box()
    assert box is not None
    y = box["y"] + 40
    page.mouse.move(box["x"] + 0.3 * box["width"], y)
    page.mouse.down()
    page.mouse.move(box["x"] + 0.8 * box["width"], y, steps=8)
    page.mouse.up()
    page.mouse.move(5, 5)
    page.wait_for_timeout(5000)


def timeline_of(report: Locator) -> Locator:
    return report.locator("[role=application][aria-label^='Timeline.']").first


if __name__ == "__main__":
    main()
