"""A report on paper: findings, picture and tables, whatever the screen shows."""

from __future__ import annotations

from playwright.sync_api import expect

from tests.browser.conftest import Screenshot
from tests.browser.report_page import Open
from tests.traces import kernel, op, runtime, trace_of


def test_paper_has_the_static_outputs_and_the_screen_the_live_ones(
    open_report: Open, screenshot: Screenshot
) -> None:
    record = trace_of(
        op("aten::" + 40 * "matmul_of", ts=0, dur=9_000),
        runtime("cudaLaunchKernel", ts=1_000, dur=500),
        kernel("gemm_" + 40 * "tile128x128", ts=3_000, dur=4_000, launched_by=1),
    )
    page = open_report(record).page
    static = [page.locator(".gpuprof-static"), page.get_by_role("img", name="Timeline of")]
    live = page.locator(".gpuprof-report")
    expect(live).to_be_visible()
    for part in static:
        expect(part).to_be_hidden()
    page.set_viewport_size({"width": 794, "height": 1123})  # A4
    page.emulate_media(media="print", color_scheme="dark")
    expect(live).to_be_hidden()
    for part in static:
        expect(part).to_be_visible()
    ink = "getComputedStyle(document.querySelector('.gpuprof-static td')).color"
    assert page.evaluate(ink) == "rgb(0, 0, 0)"
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    screenshot(page, "printed")
    assert page.pdf().startswith(b"%PDF")
    page.emulate_media(media="screen")
    expect(live).to_be_visible()
    for part in static:
        expect(part).to_be_hidden()
