"""Going back and forward again through selections, ranges and zooms, by keys and by buttons."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from playwright.sync_api import Locator, expect

from tests.browser.report_page import Open, Report
from tests.browser.test_navigation import WHOLE, small


def seen(report: Report) -> Any:
    """What is in view, in range and selected, and the path to which the flame graph is zoomed."""
    crumbs = report.page.get_by_label("Zoomed path").get_by_role("button")
    view = "[store.visible.start, store.visible.end, store.window, store.selection?.text ?? null]"
    return [*report.state(view), crumbs.all_inner_texts()]


def select(report: Report, name: str) -> None:
    report.table.locator("tbody tr", has_text=name).first.click()
    expect(report.selection_text).to_contain_text(name)


def zoom_flame_graph(report: Report) -> None:
    report.flame_graph.focus()
    report.flame_graph.press("ArrowDown")
    report.flame_graph.press("Enter")


GESTURES: tuple[Callable[[Report], object], ...] = (
    lambda report: report.brush(0.3, 0.7),
    lambda report: report.timeline.press("+"),
    lambda report: select(report, "aten::mm"),
    zoom_flame_graph,
    lambda report: report.timeline.press("ArrowRight"),
)


def gone_through(report: Report) -> list[Any]:
    """Make every gesture; the states in between."""
    states = [seen(report)]
    for gesture in GESTURES:
        gesture(report)
        states.append(seen(report))
    return states


KEYS = {
    "backspace": ("Backspace", "Shift+Backspace"),
    "control": ("Control+z", "Control+Shift+Z"),
    "command": ("Meta+z", "Meta+Shift+Z"),
}


@pytest.mark.parametrize("keys", KEYS)
@pytest.mark.parametrize("place", ["timeline", "flame graph", "table"])
def test_what_was_gone_back_from_comes_again(open_report: Open, keys: str, place: str) -> None:
    report = open_report(small())
    states = gone_through(report)
    surface = {
        "timeline": report.timeline,
        "flame graph": report.flame_graph,
        "table": report.table.locator("th button").first,
    }[place]
    back, forward = KEYS[keys]
    ways: list[Any] = []
    for key in (back, forward):
        ways.append([seen(report)])
        for _ in range(len(states) + 2):  # the flame graph's gesture is two: a bar, and its zoom
            surface.press(key)
            if seen(report) != ways[-1][-1]:
                ways[-1].append(seen(report))
    backwards, forwards = ways
    assert backwards == forwards[::-1]
    assert [state for state in forwards if state in states] == states


def test_a_new_gesture_drops_what_was_ahead(open_report: Open) -> None:
    report = open_report(small())
    report.timeline.press("+")
    zoomed = seen(report)
    report.timeline.press("ArrowRight")
    report.timeline.press("Backspace")
    assert seen(report) == zoomed
    select(report, "aten::linear")
    selected = seen(report)
    report.page.keyboard.press("Shift+Backspace")
    assert seen(report) == selected
    report.page.keyboard.press("Backspace")
    assert seen(report) == zoomed


def test_a_key_without_effect_keeps_what_is_ahead(open_report: Open) -> None:
    report = open_report(small())
    report.timeline.press("+")
    zoomed = seen(report)
    for key in ("Backspace", "Escape", "0", "Shift", "Shift+Backspace"):
        report.timeline.press(key)
    assert seen(report) == zoomed


def test_what_escape_took_away_comes_and_goes(open_report: Open) -> None:
    report = open_report(small())
    report.brush(0.3, 0.7)
    select(report, "aten::mm")
    before = seen(report)
    for key in ("Escape", "Escape"):
        report.timeline.press(key)
    cleared = seen(report)
    assert cleared[2:4] == [None, None]
    for key in ("Backspace", "Backspace"):
        report.timeline.press(key)
    assert seen(report) == before
    for key in ("Shift+Backspace", "Shift+Backspace"):
        report.timeline.press(key)
    assert seen(report) == cleared


def steps(report: Report) -> tuple[Locator, Locator]:
    names = ("Back", "Forward")
    back, forward = (report.page.get_by_role("button", name=name, exact=True) for name in names)
    return back, forward


def test_buttons_go_back_and_forward_where_there_is_a_step(open_report: Open) -> None:
    report = open_report(small())
    back, forward = steps(report)
    expect(back).to_be_disabled()
    expect(forward).to_be_disabled()
    report.timeline.press("+")
    zoomed = seen(report)
    expect(forward).to_be_disabled()
    back.click()
    assert tuple(seen(report)[:2]) == WHOLE
    expect(back).to_be_disabled()
    forward.click()
    assert seen(report) == zoomed
    expect(forward).to_be_disabled()


def test_text_boxes_undo_their_own_text(open_report: Open) -> None:
    report = open_report(small())
    report.brush(0.3, 0.7)
    search = report.page.get_by_label("Filter rows").first
    search.press_sequentially("mm")
    search.press("Control+z")
    expect(search).not_to_have_value("mm")
    expect(report.range_text).to_contain_text("Range")
