"""Ways through the live report: Escape and Backspace, findings, what follows along the page."""

from __future__ import annotations

from functools import cache
from typing import Any

from playwright.sync_api import Locator, expect

from gpuprof_widgets.trace.model import Record
from tests.browser.report_page import Open, Report
from tests.traces import annotation, kernel, op, runtime, trace_of

MS = 1_000_000
WHOLE = (0, 10 * MS)


@cache
def small() -> Record:
    """One step: a matmul that launches a kernel, and one that launches nothing."""
    return trace_of(
        annotation("ProfilerStep#1", ts=0, dur=10 * MS),
        op("aten::linear", ts=1 * MS, dur=4 * MS),
        op("aten::mm", ts=2 * MS, dur=2 * MS),
        runtime("cudaLaunchKernel", ts=3 * MS, dur=MS // 2),
        op("aten::mm", ts=6 * MS, dur=1 * MS),
        kernel("sgemm", ts=5 * MS, dur=3 * MS, launched_by=3),
    )


def state(report: Report, expression: str) -> Any:
    """A JavaScript expression about the store, named ``store``."""
    store = "const store = Object.values(window.gpuprof.reports)[0]"
    return report.page.evaluate(f"(() => {{ {store}; return {expression} }})()")


def visible(report: Report) -> tuple[float, float]:
    start, end = state(report, "[store.visible.start, store.visible.end]")
    return start, end


def crumbs(report: Report) -> Locator:
    return report.page.get_by_label("Zoomed path").get_by_role("button")


def zoomed_and_selected(report: Report) -> tuple[tuple[int, int], tuple[float, float]]:
    """Brush a range, zoom both views and select an event; what is brushed and in view."""
    window = report.brush(0.3, 0.7)
    report.timeline.press("+")
    report.flame_graph.focus()
    report.flame_graph.press("ArrowDown")
    report.flame_graph.press("Enter")
    expect(crumbs(report)).to_have_count(2)
    report.table.locator("tbody tr", has_text="aten::mm").click()
    return window, visible(report)


def test_escape_clears_selection_then_range_then_zoom(open_report: Open) -> None:
    report = open_report(small())
    window, seen = zoomed_and_selected(report)
    page = report.page
    page.keyboard.press("Escape")  # on the row of the table
    expect(report.selection_text).to_contain_text("Nothing selected")
    assert (report.brushed(), visible(report)) == (window, seen)
    report.timeline.press("Escape")
    expect(report.range_text).to_contain_text("Whole trace")
    assert visible(report) == seen
    expect(crumbs(report)).to_have_count(2)
    state(report, "store.show_path = true")
    report.flame_graph.press("Escape")
    expect(crumbs(report)).to_have_count(1)
    assert visible(report) == WHOLE
    assert state(report, "store.show_path") is False


def test_reset_clears_everything_at_once_and_can_be_undone(open_report: Open) -> None:
    report = open_report(small())
    window, seen = zoomed_and_selected(report)
    report.page.get_by_label("Filter rows").first.fill("mm")
    report.page.get_by_role("button", name="Reset").click()
    expect(report.selection_text).to_contain_text("Nothing selected")
    expect(report.range_text).to_contain_text("Whole trace")
    expect(report.page.get_by_label("Filter rows").first).to_have_value("")
    assert visible(report) == WHOLE
    report.page.keyboard.press("Backspace")  # on the button
    expect(report.selection_text).to_contain_text("aten::mm")
    assert (report.brushed(), visible(report)) == (window, seen)


def test_backspace_goes_back_gesture_by_gesture(open_report: Open) -> None:
    report = open_report(small())
    window, seen = zoomed_and_selected(report)
    flame = report.flame_graph
    report.table.locator("tbody tr", has_text="aten::linear").click()
    report.page.keyboard.press("Backspace")
    expect(report.selection_text).to_contain_text("aten::mm")
    flame.press("Backspace")
    expect(report.selection_text).to_contain_text("ProfilerStep*")
    expect(report.selection_text).to_contain_text("CPU total")
    flame.press("Backspace")
    expect(crumbs(report)).to_have_count(1)
    flame.press("Backspace")
    expect(report.selection_text).to_contain_text("Nothing selected")
    assert (report.brushed(), visible(report)) == (window, seen)
    flame.press("Backspace")
    assert (report.brushed(), visible(report)) == (window, WHOLE)
    report.timeline.press("Backspace")
    expect(report.range_text).to_contain_text("Whole trace")
    report.timeline.press("Backspace")  # there is nothing before
    expect(report.range_text).to_contain_text("Whole trace")


def test_a_held_key_is_one_step_back(open_report: Open) -> None:
    report = open_report(small())
    keyboard = report.page.keyboard
    report.timeline.focus()
    keyboard.press("+")
    start = visible(report)
    for _ in range(4):  # pressed again without a release, a key repeats
        keyboard.down("ArrowRight")
    keyboard.up("ArrowRight")
    assert visible(report)[0] > start[0]
    keyboard.press("Backspace")
    assert visible(report) == start
    keyboard.press("Backspace")
    assert visible(report) == WHOLE


def test_a_drag_of_the_view_is_one_step_back(open_report: Open) -> None:
    report = open_report(small())
    for _ in range(3):
        report.timeline.press("+")
    start = visible(report)
    box = report.timeline.bounding_box()
    assert box is not None
    mouse, y = report.page.mouse, box["y"] + box["height"] - 4
    report.page.keyboard.down("Shift")
    mouse.move(box["x"] + 500, y)
    mouse.down()
    for x in (460, 420, 380, 340):
        before = visible(report)[0]
        mouse.move(box["x"] + x, y)
        moved = "start => Object.values(window.gpuprof.reports)[0].visible.start > start"
        report.page.wait_for_function(moved, arg=before)
    mouse.up()
    report.page.keyboard.up("Shift")
    report.page.keyboard.press("Backspace")
    assert visible(report) == start


def test_a_deep_bar_of_another_range_is_zoomed_again(open_report: Open) -> None:
    report = open_report(small())
    flame = report.flame_graph
    flame.focus()
    for key in ("ArrowDown", "ArrowDown", "Enter"):
        flame.press(key)
    shown = ["all threads", "ProfilerStep*", "aten::linear"]
    expect(crumbs(report)).to_have_text(shown)
    report.brush(0.6, 0.7)  # without it
    expect(crumbs(report)).to_have_text(shown[:2])
    report.timeline.press("Backspace")
    expect(crumbs(report)).to_have_text(shown)


def test_text_boxes_keep_their_keys(open_report: Open) -> None:
    report = open_report(small())
    report.table.locator("tbody tr", has_text="aten::mm").click()
    report.brush(0.3, 0.7)
    search = report.page.get_by_label("Search the flame graph")
    search.fill("mm")
    search.press("Backspace")
    expect(search).to_have_value("m")
    search.press("Escape")
    expect(search).to_have_value("")
    expect(report.selection_text).to_contain_text("aten::mm")
    search.press("Backspace")
    expect(report.range_text).to_contain_text("Range")
    report.page.get_by_role("combobox", name="Show").press("Backspace")
    expect(report.range_text).to_contain_text("Range")
    search.press("Escape")
    expect(report.selection_text).to_contain_text("Nothing selected")
