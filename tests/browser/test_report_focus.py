"""Whose the keys are: a report's in a notebook once it is pressed, the notebook's after Escape."""

from __future__ import annotations

import json
import string
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import nbformat
import pytest
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook, new_output
from playwright.sync_api import Locator, Page, expect

from gpuprof_widgets import load
from gpuprof_widgets.views.report import outputs
from tests.browser.conftest import Lab, Screenshot
from tests.browser.report_page import Report

RECORDED = Path(__file__).parents[1] / "data" / "recorded"
SCHEMAS = Path(sys.prefix) / "share" / "jupyter" / "lab" / "schemas"
OTHERS = {"", "Escape", "Tab", "Shift+Tab"}
COLUMNS, ROWS = 2, 7
IN_REPORT = "document.activeElement?.closest('.gpuprof-report') != null"


@pytest.fixture
def page(any_page: Page) -> Page:
    """Notebook 7 has an error of its own when it opens: errors are not looked at."""
    return any_page


@pytest.fixture(params=["lab", "notebook7"])
def front_end(request: pytest.FixtureRequest) -> Lab:
    found: Lab = request.getfixturevalue(request.param)
    return found


@pytest.fixture
def notebook(page: Page, front_end: Lab) -> Iterator[Path]:
    """A notebook with a report between other cells, open, with a kernel, its report live."""
    record = load(RECORDED / "activation_checkpointing_simulated_gpu.gpuprof")
    shown = [
        new_output("display_data", data=data)
        for data in outputs(record, sort="cpu_self", top=5, embed_runtime=False)
    ]
    cells = [
        new_code_cell("before = 1", execution_count=1),
        new_code_cell("%%gpuprofile\ntrain()", execution_count=2, outputs=shown),
        new_markdown_cell("after"),
    ]
    kernel = {"name": "python3", "display_name": "Python 3 (ipykernel)", "language": "python"}
    path = front_end.root / "keys.ipynb"
    nbformat.write(new_notebook(cells=cells, metadata={"kernelspec": kernel}), path)
    front_end.open(page, path.name)
    Report.wait(page)
    yield path
    front_end.end_kernels()


def command_keys() -> list[str]:
    """The keys without Ctrl, Cmd or Alt that JupyterLab's notebooks know, and all letters.

    Tab is the way out of a report, in Notebook 7 to a button beside it: those after it go there.
    """
    found = set()
    for file in SCHEMAS.rglob("*.json"):
        for shortcut in json.loads(file.read_text()).get("jupyter.lab.shortcuts", []):
            if shortcut["selector"].startswith((".jp-Notebook", "[data-jp-")):
                found |= {key.replace(" ", "+") for key in shortcut.get("keys", [])}
    plain = {key for key in found if not {"Accel", "Ctrl", "Alt", "Cmd"} & set(key.split("+"))}
    letters = [*string.ascii_uppercase, *string.digits, "Space"]
    keys = [key.lower() if len(key) == 1 else key for key in {*plain, *letters} - OTHERS]
    return sorted(keys)


def press_at(page: Page, report: Locator, right: float, down: float) -> None:
    """Press a place of a report, given as shares of its width and height."""
    x, y = report.evaluate(PLACE, [right, down])
    page.mouse.click(x, y)


PLACE = """(report, [right, down]) => {
    const box = () => report.getBoundingClientRect()
    const y = () => box().top + down * box().height
    for (let at = report.parentElement; at != null; at = at.parentElement) {
        if (/auto|scroll/.test(getComputedStyle(at).overflowY)) {
            at.scrollTop += y() - at.getBoundingClientRect().top - at.clientHeight / 2
        }
    }
    return [box().left + right * box().width, y()]
}"""
"""Notebook 7 has long outputs scroll inside the notebook."""


def saved(page: Page, path: Path) -> list[Any]:
    """The cells, saved by the key for that wherever the focus is."""
    is_file = lambda answer: answer.request.method == "PUT" and "/api/contents/" in answer.url  # noqa: E731
    with page.expect_response(is_file):
        page.keyboard.press("Control+s")
    return list(nbformat.read(path, as_version=4).cells)


def test_no_key_of_a_pressed_report_reaches_the_notebook(page: Page, notebook: Path) -> None:
    cells = nbformat.read(notebook, as_version=4).cells
    keys = [key for key in command_keys() for _ in range(2)]
    assert {"d", "m", "0", "Shift+M", "Enter", "ArrowDown"} <= set(keys)
    report = page.locator(".gpuprof-report")
    astray = []
    for place in range(COLUMNS * ROWS):
        right = (place % COLUMNS + 0.5) / COLUMNS
        down = (place // COLUMNS + 0.5) / ROWS
        press_at(page, report, right, down)
        if page.evaluate(IN_REPORT):
            for key in keys:
                page.keyboard.press(key)
        if not page.evaluate(IN_REPORT):
            astray.append((right, down))
        page.keyboard.press("Escape")
        page.keyboard.press("Escape")
    assert astray == []
    expect(page.locator(".jp-Dialog")).to_have_count(0)  # a restart asks first
    assert saved(page, notebook) == cells


def test_keys_with_control_and_those_after_escape_are_the_notebooks(
    page: Page, notebook: Path, screenshot: Screenshot
) -> None:
    report = page.locator(".gpuprof-report")
    ring = "report => getComputedStyle(report.firstElementChild).outlineStyle"
    assert report.evaluate(ring) == "none"
    report.get_by_label("Selection", exact=True).first.click()
    assert report.evaluate(ring) == "solid"
    screenshot(page, f"focused-{notebook.parent.parent.name}")
    page.keyboard.press("Escape")
    assert report.evaluate(ring) == "none"
    expect(page.locator(".jp-CodeCell").nth(1)).to_be_focused()
    page.keyboard.press("b")
    expect(page.locator(".jp-Cell")).to_have_count(4)
    # JupyterLab selects all cells by the same key that a text box has.
    box = report.get_by_role("searchbox", name="Search").first
    box.fill("aten")
    box.press("Control+a")
    box.press("x")
    expect(box).to_have_value("x")
    expect(page.locator(".jp-Cell.jp-mod-selected")).to_have_count(1)
    errors: list[str] = []
    page.on("pageerror", lambda error: errors.append(str(error)))
    page.evaluate(SENT)
    assert errors == []
    assert page.evaluate("heard") == 2
    Report(page).timeline.click()
    before = notebook.stat().st_mtime_ns
    saved(page, notebook)
    assert notebook.stat().st_mtime_ns > before
    page.keyboard.press("Control+Shift+C")
    expect(page.locator(".lm-CommandPalette-input")).to_be_focused()


SENT = """() => {
    window.heard = 0
    window.addEventListener('keydown', () => window.heard++)
    for (const target of [window, document]) {
        target.dispatchEvent(new KeyboardEvent('keydown', {key: 'c', ctrlKey: true, bubbles: true}))
    }
}"""


def test_reports_start_near_the_screen(page: Page, lab: Lab) -> None:
    record = load(RECORDED / "activation_checkpointing_simulated_gpu.gpuprof")
    shown = [
        new_output("display_data", data=data)
        for data in outputs(record, sort="cpu_self", top=5, embed_runtime=False)
    ]
    cells = [new_code_cell(f"run{number}", outputs=shown) for number in range(12)]
    nbformat.write(new_notebook(cells=cells), lab.root / "many.ipynb")
    page.goto(lab.url("many.ipynb"))
    cells_shown = page.locator(".jp-CodeCell")
    live = [cells_shown.nth(at).locator(".gpuprof-report[data-complete]") for at in range(12)]
    expect(live[0]).to_have_count(1)
    page.wait_for_timeout(2_000)  # time for those that must not start
    assert [report.count() for report in live[3:]] == [0] * 9
    expect(cells_shown.nth(11).locator(".gpuprof-static")).to_have_count(1)
    last = cells_shown.nth(11)
    top = last.evaluate(TOP_WHEN_SHOWN)
    for report in live[10:]:
        expect(report).to_have_count(1)
    page.wait_for_timeout(1_000)
    assert live[6].count() == 0
    assert abs(last.evaluate("cell => cell.getBoundingClientRect().top") - top) < 5


TOP_WHEN_SHOWN = """async (cell) => {
    for (let frame = 0; frame < 5; frame++) {
        cell.scrollIntoView()
        await new Promise(requestAnimationFrame)
    }
    cell.scrollIntoView()
    return cell.getBoundingClientRect().top
}"""
"""JupyterLab lays cells out once they come near, and what is on the screen moves."""
