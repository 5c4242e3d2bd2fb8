"""`%%gpuprofile --compare` in JupyterLab: a cell is edited in place and run again."""

from __future__ import annotations

import re

from playwright.sync_api import Page, expect

from tests.browser.conftest import Lab
from tests.browser.test_explorer_in_jupyterlab import Notebook

NAME = "compared.ipynb"
CELLS = [
    "%load_ext gpuprof_widgets\nimport gpuprof_widgets, time, torch",
    "%%gpuprofile --compare\n"
    "x = torch.rand(64, 64)\n"
    "for _ in range(4):\n"
    "    y = x @ x\n"
    "    time.sleep(0.001)",
    "gpuprof_widgets.history",
]
LIT = """() => Object.values(window.gpuprof.reports).map(
    store => [...new Set(Array.from(store.selection?.rows ?? [], row => store.data.name(row)))]
)"""


def test_an_edited_cell_is_set_against_its_previous_run(page: Page, lab: Lab) -> None:
    lab.write(NAME, CELLS)
    lab.open(page, NAME)
    notebook = Notebook(page)
    notebook.run(1)
    cell = notebook.run(2)
    expect(cell).to_contain_text("--compare: there is nothing to compare with yet")
    expect(cell.locator(".gpuprof-report")).to_have_count(1)
    line = cell.locator(".cm-line", has_text="time.sleep")
    line.click()
    page.keyboard.press("End")
    page.keyboard.press("Backspace")
    page.keyboard.type(" * 20)")
    page.keyboard.press("Shift+Enter")
    expect(cell.locator(".jp-InputPrompt")).to_have_text("[3]:", timeout=60_000)
    report = cell.locator(".gpuprof-report")
    findings = report.get_by_role("list", name="Findings")
    expect(findings).to_contain_text("B's run takes", timeout=60_000)
    expect(findings).to_contain_text("The source differs in 2 lines")
    table = report.get_by_role("table", name="What differs")
    edited = table.locator("tbody tr", has_text="+ 5")
    expect(edited).to_contain_text("time.sleep(0.001 * 20)")
    rows = table.locator("tbody tr td:first-child")
    assert rows.all_text_contents() == ["2", "3", "4", "− 5", "+ 5"]
    edited.click()
    lit = [names for names in page.evaluate(LIT) if names]
    assert lit == [["5: time.sleep(0.001 * 20)"]]
    history = notebook.run(3)
    expect(history).to_contain_text(re.compile(r"<Run 'Cell \[2\]': .*\s*<Run 'Cell \[3\]': "))
