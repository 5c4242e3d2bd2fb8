"""JupyterLab without our extension: where the output with BokehJS was cleared, views live again."""

from __future__ import annotations

from pathlib import Path

import nbformat
from nbformat.v4 import new_code_cell, new_notebook
from playwright.sync_api import Browser, Locator, Page, expect

from tests.browser.conftest import RUN_MS, Lab

NOTEBOOK = "cleared.ipynb"
CELLS = [
    "%load_ext gpuprof_widgets\nimport torch",
    *(f"%%gpuprofile\ntorch.rand({size}, {size}).sum()" for size in (10, 20, 30)),
]


def write_notebook(path: Path) -> None:
    kernel = {"name": "python3", "display_name": "Python 3 (ipykernel)", "language": "python"}
    cells = [new_code_cell(source) for source in CELLS]
    nbformat.write(new_notebook(cells=cells, metadata={"kernelspec": kernel}), path)


def operators(cell: Locator) -> Locator:
    return cell.get_by_role("table", name="Operators").locator("tbody tr").first


def run_again(page: Page, cell: Locator, number: int) -> None:
    cell.locator(".cm-content").click()
    page.keyboard.press("Shift+Enter")
    expect(cell.locator(".jp-InputPrompt")).to_have_text(f"[{number}]:", timeout=RUN_MS)


def test_views_live_again_when_the_output_with_the_library_was_cleared(
    browser: Browser, plain_lab: Lab
) -> None:
    path = plain_lab.root / NOTEBOOK
    write_notebook(path)
    context = browser.new_context(viewport={"width": 1280, "height": 900})
    page = context.new_page()
    plain_lab.run(page, NOTEBOOK, cells=3)
    cells = page.locator(".jp-CodeCell")
    expect(operators(cells.nth(1))).to_be_attached()
    expect(operators(cells.nth(2))).to_be_attached()
    cells.nth(1).locator(".jp-InputPrompt").click()
    page.get_by_role("menuitem", name="Edit", exact=True).click()
    page.get_by_role("menuitem", name="Clear Cell Output", exact=True).click()
    expect(cells.nth(1).locator(".gpuprof-report")).to_have_count(0)
    with page.expect_response(lambda answer: answer.request.method == "PUT"):
        page.keyboard.press("Control+s")
    page.reload()
    page.locator(".jp-StatusBar-TextItem", has_text="| Idle").wait_for()
    message = cells.nth(2).get_by_text("Run this cell again, unchanged")
    expect(message).to_be_attached()
    run_again(page, cells.nth(2), 4)
    expect(operators(cells.nth(2))).to_be_attached()
    expect(message).to_have_count(0)
    context.close()
