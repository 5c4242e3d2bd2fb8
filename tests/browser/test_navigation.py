"""Ways through the live report: Escape and Backspace, findings."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial
from io import BytesIO
from typing import Any

import numpy as np
import pytest
from PIL import Image
from playwright.sync_api import Locator, expect

from gpuprof_widgets.trace.model import Record
from gpuprof_widgets.views import page as report_data
from tests.browser.report_page import Open, Report, too_faint
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


def visible(report: Report) -> tuple[float, float]:
    start, end = report.state("[store.visible.start, store.visible.end]")
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
    report.state("store.show_path = true")
    report.flame_graph.press("Escape")
    expect(crumbs(report)).to_have_count(1)
    assert visible(report) == WHOLE
    assert report.state("store.show_path") is False


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
    search = report.page.get_by_label("Filter rows").first
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
    search.press_sequentially("mm")
    search.press("Control+z")
    expect(search).not_to_have_value("mm")
    expect(report.range_text).to_contain_text("Range")
    search.fill("")
    search.press("Escape")
    expect(report.selection_text).to_contain_text("Nothing selected")


def test_keys_and_a_button_go_back_where_there_is_a_step(open_report: Open) -> None:
    report = open_report(small())
    back = report.page.get_by_role("button", name="Back", exact=True)
    head = report.table.locator("th button").first
    expect(back).to_be_disabled()
    keys = ("Backspace", "Control+z", "Meta+z")
    for go_back in (*(partial(head.press, key) for key in keys), back.click):
        report.timeline.press("+")
        assert visible(report) != WHOLE
        go_back()
        assert visible(report) == WHOLE
        expect(back).to_be_disabled()


def tooltip(report: Report) -> Locator:
    return report.page.get_by_role("tooltip").filter(visible=True)


def bar(report: Report, row: int) -> tuple[float, float, float, float]:
    """Where the timeline draws an event: left, top, right and bottom on the page."""
    x, y, width, height = report.state(f"store.event_box({row})")
    surface = box_of(report.timeline)
    left, top = surface["x"] + x, surface["y"] + y
    return left, top, left + width, top + height


def box_of(part: Locator) -> Any:
    box = part.bounding_box()
    assert box is not None
    return box


def hover(report: Report, row: int) -> None:
    left, top, right, bottom = bar(report, row)
    report.page.mouse.move((left + right) / 2, (top + bottom) / 2)
    expect(tooltip(report)).to_have_count(1)


CHANGES: dict[str, Callable[[Report], object]] = {
    "moving": lambda report: report.page.keyboard.press("ArrowRight"),
    "zooming": lambda report: report.page.keyboard.press("+"),
    "any key": lambda report: report.page.keyboard.press("Shift"),
    "a range": lambda report: report.state("store.brush([1e6, 2e6])"),
    "a selection": lambda report: report.table.locator("tbody tr").first.press("Enter"),
    "a click": lambda report: report.page.mouse.down() or report.page.mouse.up(),
    "another view": lambda report: report.state("store.visible.setv({start: 5e5})"),
    "the page's scrolling": lambda report: report.page.evaluate("window.scrollBy(0, 40)"),
}


def test_a_tooltip_goes_with_what_it_explains(open_report: Open) -> None:
    report = open_report(small())
    for change in CHANGES.values():
        report.timeline.press("+")
        report.page.mouse.move(0, 0)
        hover(report, 1)
        change(report)
        expect(tooltip(report)).to_have_count(0)
        assert tooltip_stays_hidden(report)
        report.page.get_by_role("button", name="Reset").click()


def tooltip_stays_hidden(report: Report) -> bool:
    """Whether it is hidden after the frames in which a resting pointer is told of what is new."""
    report.page.evaluate(
        "() => new Promise(done => { let left = 8; const frame = () =>"
        " left-- > 0 ? requestAnimationFrame(frame) : done(); frame() })"
    )
    return tooltip(report).count() == 0


@cache
def tracks(count: int) -> Record:
    """As many threads, each with a bar of its own from end to end."""
    return trace_of(*(op(f"aten::op{i}", ts=0, dur=9 * MS, thread=i + 1) for i in range(count)))


def test_a_tooltip_covers_neither_its_bar_nor_the_details(open_report: Open) -> None:
    report = open_report(tracks(12))
    report.page.set_viewport_size({"width": 1280, "height": 1000})
    for row in (0, 5, 11):
        report.page.mouse.move(0, 0)
        hover(report, row)
        box = box_of(tooltip(report))
        _, top, _, bottom = bar(report, row)
        assert box["y"] >= bottom or box["y"] + box["height"] <= top
        assert box["y"] + box["height"] <= box_of(report.range_text)["y"]


def test_a_tooltip_of_the_flame_graph_does_not_cover_its_bar(open_report: Open) -> None:
    report = open_report(small())
    report.flame_graph.scroll_into_view_if_needed()
    box = box_of(report.flame_graph)
    report.page.mouse.move(box["x"] + box["width"] / 3, box["y"] + 19 * 2 + 2)
    expect(tooltip(report)).to_contain_text("aten::linear")
    shown = box_of(tooltip(report))
    assert shown["y"] >= box["y"] + 19 * 3 or shown["y"] + shown["height"] <= box["y"] + 19 * 2


@cache
def deep() -> Record:
    """A call of 24 levels, folded at first, above whose kernels the tracks of 30 threads stand."""
    calls = [op(f"aten::level{i}", ts=i, dur=10 * MS - 2 * i) for i in range(24)]
    threads = [op("aten::wait", ts=0, dur=MS, thread=i + 2) for i in range(30)]
    return trace_of(*calls, *threads, kernel("sgemm", ts=5 * MS, dur=3 * MS))


def finding(rows: list[int], *, events: int, start: int | None = 5 * MS) -> dict[str, Any]:
    end = None if start is None else start + MS
    return {
        "title": "`aten::level20` waits",
        "text": "`aten::level20` waited",
        "remedy": "",
        "cost": 0,
        "share": 0.0,
        "line": -1,
        "look_at": "",
        "function": "",
        "start": start,
        "end": end,
        "rows": rows,
        "events": events,
    }


def is_on_screen(report: Report, row: int) -> bool:
    _, top, _, bottom = bar(report, row)
    surface = box_of(report.timeline)
    in_tracks = surface["y"] <= top and bottom <= surface["y"] + surface["height"]
    return bool(in_tracks and top >= 0 and bottom <= report.page.viewport_size["height"])


@pytest.mark.parametrize("row", [20, 54], ids=["in a folded track", "below all tracks"])
def test_show_brings_the_events_of_a_finding_onto_the_screen(
    open_report: Open, monkeypatch: pytest.MonkeyPatch, row: int
) -> None:
    monkeypatch.setattr(report_data, "finding_lines", lambda *_: [finding([row], events=1)])
    report = open_report(deep())
    report.page.set_viewport_size({"width": 1280, "height": 260})
    before = bar(report, row)
    report.page.emulate_media(reduced_motion="reduce")
    report.page.get_by_role("button", name="show:").click()
    report.page.wait_for_function("window.scrollY > 0")
    assert bar(report, row) != before
    assert is_on_screen(report, row)
    if row == 20:
        fold = report.page.locator("[data-track]").first
        expect(fold).to_have_attribute("aria-expanded", "true")


def test_show_tells_of_events_of_a_moment_and_of_a_range(
    open_report: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A timeline on the screen stays where it is, and a moment, without numbers, is no range."""
    lines = [
        finding([2, 20], events=2) | {"end": 5 * MS + 1, "text": "At a moment"},
        finding([20, 21], events=1_234),
        finding([], events=0) | {"text": "It waited"},
        finding([], events=0, start=None),
    ]
    monkeypatch.setattr(report_data, "finding_lines", lambda *_: lines)
    report = open_report(deep())
    report.page.set_viewport_size({"width": 1280, "height": 1600})
    show = report.page.get_by_role("button", name="show:")
    expect(show).to_have_count(3)  # there is none on nothing
    show.nth(0).click()
    assert tooltip_stays_hidden(report)  # after some frames
    assert is_on_screen(report, 2)
    assert report.page.evaluate("window.scrollY") == 0
    assert report.state("store.window") is None
    expect(report.selection_text).to_contain_text("2 events and 1 time range highlighted")
    show.nth(1).click()
    expect(report.selection_text).to_contain_text("aten::level20 waited 1,234 events, the first 2")
    expect(report.selection_text.locator("code")).to_have_text("aten::level20")
    show.nth(2).click()
    expect(report.selection_text).to_contain_text("It waited in the selected range")
    assert report.brushed() == (5 * MS, 6 * MS)


def test_the_overview_marks_selected_events(open_report: Open) -> None:
    report = open_report(small())
    minimap = report.page.get_by_role("application", name="Overview of the whole trace")
    report.table.locator("tbody tr", has_text="aten::mm").click()
    expect(report.selection_text).to_contain_text("2 events highlighted")
    edge = pixels(minimap)[3]
    marked = (edge != edge[int(len(edge) * 0.9)]).any(axis=1)[5:-5]  # without the frame of the view
    found = np.flatnonzero(np.diff(np.r_[False, marked, False])) * 10 / len(edge)
    assert found == pytest.approx([2, 4, 6, 7], abs=0.1)


def pixels(part: Locator) -> Any:
    return np.asarray(Image.open(BytesIO(part.screenshot())).convert("RGB")).astype(int)


def sheet(report: Report) -> Locator:
    return report.page.get_by_role("dialog", name="Keys", exact=True)


def test_the_sheet_of_keys_opens_from_everywhere_and_is_legible(open_report: Open) -> None:
    report = open_report(small())
    row = report.table.locator("tbody tr").first
    track = report.page.locator("[data-track]").first
    for place in (report.timeline, report.flame_graph, row, track):
        place.press("?")
        expect(sheet(report)).to_be_visible()
        report.page.keyboard.press("Escape")
        expect(sheet(report)).to_be_hidden()
    search = report.page.get_by_role("searchbox", name="Search")
    search.press_sequentially("a?")
    expect(search).to_have_value("a?")
    expect(sheet(report)).to_be_hidden()
    report.page.get_by_role("button", name="Keys", exact=True).click()
    expect(sheet(report)).to_be_visible()
    for scheme in ("light", "dark"):
        report.use_scheme(scheme)
        assert too_faint(report.page) == []
