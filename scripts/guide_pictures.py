"""Write the pictures of the tutorial and of the guide on an idle GPU to docs/images.

    python -m scripts.guide_pictures

The tutorial's cells run in JupyterLab, as its reader runs them. The idle GPU is a recording of an
H200 in notebooks/data.
"""

from __future__ import annotations

import io
import os
import shutil
import tempfile
from pathlib import Path

from PIL import Image
from playwright.sync_api import Browser, FloatRect, Locator, sync_playwright
from playwright.sync_api import Page as Tab

import gpuprof_widgets
from scripts.large_trace_in_lab import jupyterlab, timeline_of, write_notebook
from tests.reader import Page

ROOT = Path(__file__).parents[1]
IMAGES = ROOT / "docs" / "images"
TUTORIAL = ROOT / "docs" / "tutorial.md"
IDLE_GPU = ROOT / "notebooks" / "data" / "idle_gpu_before.gpuprof"
WIDTH, HEIGHT = 1280, 2600
"""Of the window; so high that JupyterLab leaves no part of the notebook out."""
WAIT_MS = 120_000
STEP = 5
"""Of the recorded steps, the one whose training is brushed."""
MARGIN = 8
COLOURS = 200


def main() -> None:
    chromium = shutil.which(os.environ.get("CHROMIUM", "chromium"))
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        with tempfile.TemporaryDirectory() as name:
            tutorial(browser, Path(name))
            idle_gpu(browser, Path(name))
        browser.close()


def tutorial(browser: Browser, folder: Path) -> None:
    """Do what the tutorial says, and take a picture wherever it shows one."""
    text = TUTORIAL.read_text(encoding="utf-8")
    code = [block.code.rstrip() for block in Page("", text).blocks if block.language == "python"]
    profiled, compared = (cell for cell in code if cell.startswith("%%gpuprofile"))
    fix = next(cell for cell in code if cell.startswith("def draw"))
    write_notebook(folder / "tutorial.ipynb", *code[:2], profiled, fix)
    with jupyterlab(folder) as url:
        tab = browser.new_page(viewport={"width": WIDTH, "height": HEIGHT})
        tab.goto(f"{url}lab/tree/tutorial.ipynb?reset")
        cells = tab.locator(".jp-CodeCell")
        cells.first.locator(".cm-content").click()
        tab.keyboard.press("Control+b")  # without the file browser
        tab.wait_for_timeout(3000)  # the kernel starts
        for _ in range(3):
            tab.keyboard.press("Shift+Enter")
        cell = cells.nth(2)
        report = report_in(cell)
        picture("tutorial_report", cell.locator(".cm-content"), timeline_of(report))
        look_closer(tab, report)
        brush(tab, report)
        cells.nth(3).locator(".cm-content").click()
        tab.keyboard.press("Shift+Enter")
        cell.locator(".cm-content").click()
        tab.keyboard.press("Control+a")
        tab.keyboard.insert_text(compared)
        tab.keyboard.press("Shift+Enter")
        cell.get_by_text("Two runs compared").first.wait_for(timeout=WAIT_MS)
        both = report_in(cell)
        picture("tutorial_compare", cell.locator(".cm-content"), timelines(both).last)


def report_in(cell: Locator) -> Locator:
    report = cell.locator(".gpuprof-report[data-complete]")
    report.wait_for(timeout=WAIT_MS)
    cell.evaluate("cell => { cell.style.scrollMarginTop = '20px'; cell.scrollIntoView() }")
    cell.page.wait_for_timeout(2000)
    return report


def timelines(report: Locator) -> Locator:
    return report.locator("[role=application][aria-label^='Timeline']")


def look_closer(tab: Tab, report: Locator) -> None:
    """Show the flame graph of cProfile below the lines."""
    source = report.get_by_label("Source").first
    ops = source.input_value()
    source.select_option(label="Python by cProfile (estimate)")
    tab.wait_for_timeout(1000)
    flame = report.locator("[role=application][aria-label^='Flame graph']").first
    picture("tutorial_lines", report.get_by_text("Lines", exact=True).first, flame)
    source.select_option(ops)


def brush(tab: Tab, report: Locator) -> None:
    """Make the training of a step, from its first line to its last, the range."""
    timeline = timeline_of(report)
    search = report.get_by_placeholder("Search all names")
    for line, times, key in (("4: ", STEP, "m"), ("8: ", 1, "Shift+M")):
        search.fill(line)
        tab.wait_for_timeout(2000)
        for _ in range(times):
            report.get_by_role("button", name="Next event").first.click()
            tab.wait_for_timeout(500)
        timeline.focus()
        tab.keyboard.press(key)
    tab.keyboard.press("r")
    search.fill("")  # which clears the selection too
    tab.wait_for_timeout(1000)
    timeline.focus()
    for key in ("f", "-", "-"):
        tab.keyboard.press(key)
    tab.wait_for_timeout(1000)
    lines = report.locator("table").filter(has_text="losses.append").first
    picture("tutorial_range", report.get_by_text("Timeline", exact=True).first, lines)


def idle_gpu(browser: Browser, folder: Path) -> None:
    """Write the top of the report of the run that waits for its DataLoader."""
    page = folder / "idle_gpu.html"
    page.write_text(gpuprof_widgets.load(IDLE_GPU).report(), encoding="utf-8")
    tab = browser.new_page(viewport={"width": 1180, "height": 1600}, offline=True)
    tab.goto(page.as_uri())
    report = tab.locator(".gpuprof-report[data-complete]")
    report.wait_for(timeout=WAIT_MS)
    picture("gpu_is_idle", report, timeline_of(report))


def picture(name: str, first: Locator, last: Locator) -> None:
    """Write what lies from the top of the first to the bottom of the last element."""
    tab = first.page
    tab.mouse.move(5, 5)
    tab.wait_for_timeout(500)
    top, bottom = first.bounding_box(), last.bounding_box()
    assert top is not None
    assert bottom is not None
    report = tab.locator(".gpuprof-report[data-complete]").bounding_box()
    assert report is not None
    height = bottom["y"] + bottom["height"] - top["y"]
    clip: FloatRect = {
        "x": report["x"] - MARGIN,
        "y": top["y"] - MARGIN,
        "width": report["width"] + 2 * MARGIN,
        "height": height + 2 * MARGIN,
    }
    image = Image.open(io.BytesIO(tab.screenshot(clip=clip))).convert("RGB")
    file = IMAGES / f"{name}.png"
    image.quantize(COLOURS, dither=Image.Dither.NONE).save(file, optimize=True)
    print(f"{file}: {image.size}, {file.stat().st_size:,} bytes")


if __name__ == "__main__":
    main()
