"""Outputs that are cleared or replaced in JupyterLab: what was there is let go of.

Without our extension views live again where the output with BokehJS was cleared.
"""

from __future__ import annotations

from playwright.sync_api import Locator, Page, expect

from tests.browser.conftest import RUN_MS, Lab
from tests.browser.test_loader import wait_for_stores

NOTEBOOK = "cleared.ipynb"
CELLS = [
    "%load_ext gpuprof_widgets\nimport torch",
    *(f"%%gpuprofile\ntorch.rand({size}, {size}).sum()" for size in (10, 20)),
]


def operators(cell: Locator) -> Locator:
    return cell.get_by_role("table", name="Op table").locator("tbody tr").first


def run_again(page: Page, cell: Locator, number: int) -> None:
    cell.locator(".cm-content").click()
    page.keyboard.press("Shift+Enter")
    expect(cell.locator(".jp-InputPrompt")).to_have_text(f"[{number}]:", timeout=RUN_MS)


def clear(page: Page, cell: Locator) -> None:
    cell.locator(".jp-InputPrompt").click()
    page.get_by_role("menuitem", name="Edit", exact=True).click()
    page.get_by_role("menuitem", name="Clear Cell Output", exact=True).click()
    expect(cell.locator(".gpuprof-report")).to_have_count(0)


def test_views_live_again_when_the_output_with_the_library_was_cleared(
    any_page: Page, plain_lab: Lab
) -> None:
    page = any_page
    plain_lab.run(page, NOTEBOOK, CELLS)
    cells = page.locator(".jp-CodeCell")
    expect(operators(cells.nth(1))).to_be_attached()
    expect(operators(cells.nth(2))).to_be_attached()
    clear(page, cells.nth(1))
    with page.expect_response(lambda answer: answer.request.method == "PUT"):
        page.keyboard.press("Control+s")
    page.reload()
    page.locator(".jp-StatusBar-TextItem", has_text="| Idle").wait_for()
    message = cells.nth(2).get_by_text("Run this cell again, unchanged")
    expect(message).to_be_attached()
    run_again(page, cells.nth(2), 4)
    expect(operators(cells.nth(2))).to_be_attached()
    expect(message).to_have_count(0)


def test_reports_of_a_cell_that_runs_again_and_is_cleared_are_let_go(
    any_page: Page, lab: Lab
) -> None:
    page = any_page
    lab.run(page, NOTEBOOK, CELLS[:2])
    cell = page.locator(".jp-CodeCell").nth(1)
    for number in range(3, 8):
        run_again(page, cell, number)
        expect(cell.locator(".gpuprof-report[data-complete]")).to_contain_text(f"Cell [{number}]")
    # Chromium lists the buttons of a page once, and so may keep a single report that has left.
    wait_for_stores(page, 1 + 1)
    clear(page, cell)
    wait_for_stores(page, 0 + 1)
