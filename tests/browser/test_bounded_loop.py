"""A bounded loop in JupyterLab, in a real browser: its steps and its findings are on the page."""

from __future__ import annotations

from playwright.sync_api import Page, expect

import gpuprof_widgets
from tests.browser.conftest import Lab, Screenshot
from tests.browser.report_page import Report, expected_rows

NOTEBOOK = "bounded.ipynb"
CELLS = [
    "%load_ext gpuprof_widgets",
    "import time, torch\n"
    "from tqdm.notebook import tqdm\n"
    "model = torch.nn.Linear(64, 64)\n"
    "def checkpoint(): pass",
    "%%gpuprofile --steps 4 --warmup 3 --expect checkpoint --save bounded.zip\n"
    "for epoch in tqdm(range(5), desc='epochs'):\n"
    "    for step, batch in enumerate(tqdm(torch.rand(100, 8, 64), desc='batches')):\n"
    "        if step == 0: time.sleep(0.3)\n"
    "        model(batch).sum().backward()\n"
    "        time.sleep(0.01)\n"
    "        if step % 500 == 499: checkpoint()\n"
    "    print('the loop ended after', step + 1)",
]


def test_the_steps_and_the_findings_are_on_the_page(
    any_page: Page, lab: Lab, screenshot: Screenshot
) -> None:
    page = any_page
    page.set_viewport_size({"width": 1280, "height": 1400})
    lab.run(page, NOTEBOOK, CELLS)
    cell = page.locator(".jp-CodeCell").nth(len(CELLS) - 1)
    report = Report.wait(page)
    cell.evaluate("cell => cell.scrollIntoView()")
    screenshot(page, "bounded_loop")
    outputs = cell.locator(".jp-OutputArea")
    more = outputs.get_by_text("more finding").locator("visible=true")
    if more.count():  # how many findings there are is up to the machine
        more.first.click()
    folded = outputs.locator(".findings .head[aria-expanded=false]")
    folded.evaluate_all("heads => heads.forEach(head => head.click())")
    for text in (
        "gpuprof: bounding the loop of line 3 (for step, batch in enumerate(",
        "): 3 iterations to warm up, 4 recorded, then it ends",
        "the loop ended after 7",
        "7/7",
        "1/1",
        "did not run in these 4 steps. Line",
        "the first step took",
    ):
        # The static outputs hold them as well, hidden.
        expect(outputs.get_by_text(text).locator("visible=true").first).to_be_visible()
    profile = gpuprof_widgets.load(lab.root / "bounded.zip")
    assert profile.steps()["step"].tolist() == [3, 4, 5, 6]
    rows = report.op_rows()
    assert rows == expected_rows(profile)
    assert rows["ProfilerStep* (user_annotation)"][0] == 4
    lab.end_kernels()
