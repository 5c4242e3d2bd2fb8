"""A training step with ``--memory`` in JupyterLab: the view is there and says what Python says."""

from __future__ import annotations

from playwright.sync_api import Page, expect

import gpuprof_widgets
from gpuprof_widgets.analyses.columns import format_bytes
from tests.browser.conftest import Lab, Screenshot
from tests.browser.report_page import Report

NOTEBOOK = "memory.ipynb"
CELLS = [
    "%load_ext gpuprof_widgets\nimport torch",
    "model = torch.nn.Sequential(torch.nn.Linear(512, 1024), torch.nn.Linear(1024, 512))\n"
    "optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)",
    "%%gpuprofile --memory --save memory.zip\n"
    "for _ in range(2):\n"
    "    out = model(torch.rand(64, 512))\n"
    "    loss = out.square().mean()\n"
    "    loss.backward()\n"
    "    optimizer.step()\n"
    "    optimizer.zero_grad()\n",
]
PARAMETERS = 4 * (512 * 1024 + 1024 + 1024 * 512 + 512)


def test_a_training_step_shows_its_memory(any_page: Page, lab: Lab, screenshot: Screenshot) -> None:
    page = any_page
    lab.run(page, NOTEBOOK, CELLS)
    report = Report.wait(page)
    profile = gpuprof_widgets.load(lab.root / "memory.zip")
    table = profile.allocations()
    sizes = table.groupby("category")["bytes"].sum()
    assert sizes["optimizer state"] == PARAMETERS
    assert sizes["gradients"] == 2 * PARAMETERS  # of two steps
    gradient = table[table["tensor"] == "model.0.weight.grad"].iloc[0]
    assert gradient["module_name"] == "model.0"
    assert gradient["line_name"] == "3: out = model(torch.rand(64, 512))"
    peak = profile.memory_peak().iloc[0]
    expect(report.page.get_by_label("Peak memory", exact=True)).to_contain_text(
        f"CPU: peak {format_bytes(peak['allocated_bytes'])}"
    )
    biggest = report.page.locator("table[aria-label='Biggest allocations'] tbody tr")
    biggest.first.click()
    expect(report.selection_text).to_contain_text(table.nlargest(1, "bytes")["op_name"].iloc[0])
    biggest.first.scroll_into_view_if_needed()
    screenshot(page, "memory")
    lab.end_kernels()
