"""Ctrl and the wheel zoom what is under the pointer, never the whole page."""

from __future__ import annotations

import pytest

from gpuprof_widgets.trace.model import Record
from gpuprof_widgets.views import page_panels
from tests.browser.report_page import Open, ctrl_wheel
from tests.browser.test_analyses_view import busy
from tests.browser.test_memory_view import allocating
from tests.panel_examples import EXAMPLES
from tests.traces import op, trace_of

MS = 1_000_000
VISIBLE = "Object.values(window.gpuprof.reports)[0].visible"


def three_ops() -> Record:
    return trace_of(*(op(f"aten::op{i}", ts=i * MS, dur=MS) for i in range(3)), label="ops")


def test_the_plain_wheel_scrolls_the_page(open_report: Open) -> None:
    report = open_report(three_ops())
    report.page.set_viewport_size({"width": 1280, "height": 300})
    report.flame_graph.hover(position={"x": 200, "y": 20})
    before = report.page.evaluate("window.scrollY")
    report.page.mouse.wheel(0, 100)
    report.page.wait_for_function("before => window.scrollY > before", arg=before)


@pytest.mark.parametrize("name", ["Overview", "Timeline.", "Memory", "Curves."])
def test_time_axes_zoom_and_the_browser_does_not(
    open_report: Open, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(page_panels, "all_panels", lambda: EXAMPLES)
    report = open_report(allocating() if name == "Memory" else busy())
    page = report.page
    if name == "Curves.":
        page.get_by_role("tab", name="Queue").click()
    surface = page.locator(f"[role=application][aria-label^='{name}']").first
    assert not ctrl_wheel(page, surface, 0.5, -300)
    start, end = page.evaluate(f"[{VISIBLE}.start, {VISIBLE}.end]")
    low, high = page.evaluate("Object.values(window.gpuprof.reports)[0].bounds")
    assert low < start < end < high
    # At its end there is nothing to zoom into: the browser stays as it is all the same.
    for _ in range(2):
        assert not ctrl_wheel(page, surface, 0.5, 3000)
