"""Notebook 07 in JupyterLab: its controls and its chart follow the page, and the page them."""

from __future__ import annotations

import re
import shutil
from pathlib import Path
from typing import Any

import nbformat
from playwright.sync_api import Locator, Page, expect

from tests.browser.conftest import Lab
from tests.browser.report_page import Report
from tests.browser.test_explorer_in_jupyterlab import WIDGET_ERRORS, Notebook

NAME = "07_explore_in_python.ipynb"
COMMITTED = Path(__file__).parents[2] / "notebooks" / NAME
CHART = """chart => {
    const views = Object.values(window.gpuprof).map(shared => shared.views?.get?.(chart))
    const [plot] = views.find(found => found != null).roots[0].model.children
    const {data} = plot.renderers[0].data_source
    const [names, ...times] = ["name", "forward", "backward"].map(key => data[key])
    const rows = Array.from(names, (name, i) => [name, ...times.map(of => of[i])])
    return {title: plot.title.text, factors: plot.y_range.factors, rows: rows.reverse()}
}"""


def test_the_controls_of_the_users_own_follow_the_page(page: Page, lab: Lab) -> None:
    cleared = nbformat.read(COMMITTED, as_version=4)
    cells = cleared.cells
    for cell in cells:
        if cell.cell_type == "code":
            cell.outputs = []
    nbformat.write(cleared, lab.root / NAME)
    lab.open(page, NAME)
    notebook = Notebook(page)
    sources = [cell.source for cell in cells if cell.cell_type == "code"]
    by_source = {source: notebook.run(n) for n, source in enumerate(sources, 1)}

    def cell_with(text: str) -> Locator:
        [found] = [cell for source, cell in by_source.items() if text in source]
        return found

    report = Report.wait(page)
    # The one that is drawn next waits unseen behind the one that is there.
    chart = cell_with("draw()").locator(".gpuprof-report:visible")
    printed = cell_with("Output()").locator(".jp-OutputArea-output pre")
    check_chart_has_the_table(chart, cell_with('costliest("module"'))
    start, end = report.brush(0.2, 0.4)
    expect(printed).to_have_text(f"{(end - start) / 1e6:.3f} ms are brushed, 3 slices selected")
    expect(cell_with("IntRangeSlider").locator(".widget-readout")).to_have_text(
        f"{start:,} – {end:,}"
    )
    chart.scroll_into_view_if_needed()
    title = f"Self time in {(end - start) / 1e6:.1f} ms, by "
    wait_for_title(page, chart, title + "module")
    cell_with("draw()").locator("select").select_option("op")
    wait_for_title(page, chart, title + "op")
    expect(chart).to_have_count(1)
    assert any(name.startswith("aten::") for name in drawn(chart)["factors"])
    cell_with("interact(").locator(".noUi-handle").press("ArrowRight")
    expect(printed).to_have_text(re.compile(r"\b4 slices selected"))
    # Jupyter shows what a kernel prints and what it selects one after the other, in either order.
    report.wait_for("store.selection.rows.length == 4")


def drawn(chart: Locator) -> dict[str, Any]:
    shown: dict[str, Any] = chart.evaluate(CHART)
    return shown


def wait_for_title(page: Page, chart: Locator, title: str) -> None:
    for _ in range(600):
        if drawn(chart)["title"] == title:
            return
        page.wait_for_timeout(100)
    assert drawn(chart)["title"] == title


def check_chart_has_the_table(chart: Locator, cell: Locator) -> None:
    """What the last cell computes of the range that it brushes is what the chart shows of it."""
    table = cell.locator(".jp-OutputArea-output table tbody")
    rows = table.evaluate(
        "body => Array.from(body.rows, row => Array.from(row.cells, c => c.innerText))"
    )
    shown = [
        [name, f"{forward:.2f}", f"{backward:.2f}"]
        for name, forward, backward in drawn(chart)["rows"]
    ]
    assert shown[:3] == rows[::-1]


def test_as_it_is_committed_it_is_live_without_missing_widgets(page: Page, other_lab: Lab) -> None:
    shutil.copy(COMMITTED, other_lab.root / NAME)
    page.goto(other_lab.url(NAME))
    Report.wait(page)
    expect(page.locator(".gpuprof-static").first).to_be_hidden()
    assert WIDGET_ERRORS.search(page.locator(".jp-Notebook").inner_text()) is None
