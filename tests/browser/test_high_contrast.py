"""Where the reader's system forces its colours, those that mean something are still there."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Literal

import pytest
from playwright.sync_api import Browser, BrowserContext, expect

from gpuprof_widgets.views.report import standalone_html
from tests.browser.conftest import Screenshot
from tests.browser.report_page import Report
from tests.traces import kernel, op, runtime, trace_of

COLOUR = "el => getComputedStyle(el).backgroundColor"
SYSTEM = """name => {
    const el = document.body.appendChild(document.createElement("div"))
    el.style.background = name
    const colour = getComputedStyle(el).backgroundColor
    el.remove()
    return colour
}"""
MS = 1_000_000

Scheme = Literal["dark", "light"]


@pytest.fixture(params=["light", "dark"])
def context(browser: Browser, request: pytest.FixtureRequest) -> Iterator[BrowserContext]:
    scheme: Scheme = request.param
    context = browser.new_context(
        forced_colors="active",
        color_scheme=scheme,
        bypass_csp=True,
        viewport={"width": 1280, "height": 1250},
    )
    yield context
    context.close()


def test_forced_colours_leave_what_means_something(
    context: BrowserContext,
    tmp_path: Path,
    request: pytest.FixtureRequest,
    screenshot: Screenshot,
) -> None:
    record = trace_of(
        op("aten::mm", ts=0, dur=9 * MS),
        runtime("cudaLaunchKernel", ts=MS, dur=MS),
        kernel("gemm", ts=3 * MS, dur=4 * MS, launched_by=1),
        op("aten::add", ts=12 * MS, dur=20 * MS),
        label="high contrast",
    )
    path = tmp_path / "report.html"
    path.write_text(standalone_html(record, sort="cpu_self"), encoding="utf-8")
    page = context.new_page()
    page.goto(path.as_uri())
    report = Report.wait(page)
    canvas, highlight = (page.evaluate(SYSTEM, name) for name in ("Canvas", "Highlight"))

    swatches = page.locator(".legend").first.locator(".swatch").all()
    colours = [swatch.evaluate(COLOUR) for swatch in swatches]
    assert len(set(colours)) == len(colours) >= 3
    assert canvas not in colours

    assert page.locator(".cost .bar").first.evaluate(COLOUR) != canvas
    width = page.get_by_role("button", name="CPU time", exact=True).first
    expect(width).to_have_attribute("aria-pressed", "true")
    assert width.evaluate(COLOUR) == highlight
    assert page.get_by_role("button", name="Bottom up").evaluate(COLOUR) != highlight
    tab = page.locator("[role=tab][aria-selected=true]")
    assert tab.evaluate(COLOUR) == highlight
    assert tab.evaluate("el => getComputedStyle(el).color") == page.evaluate(
        SYSTEM, "HighlightText"
    )

    report.brush(0.2, 0.6)
    shade = page.locator(".range-band:visible .shade").first
    assert shade.evaluate(COLOUR) != canvas
    row = page.get_by_role("table", name="Op table").locator("tbody tr").first
    row.click()
    outline = row.evaluate("el => getComputedStyle(el).outlineColor")
    assert outline == highlight
    first = row.locator("td").first.evaluate("el => getComputedStyle(el).backgroundImage")
    assert first.count(highlight) >= 3  # the outline goes on around the cell that stands above it
    screenshot(page, f"high-contrast-{request.node.callspec.params['context']}")
