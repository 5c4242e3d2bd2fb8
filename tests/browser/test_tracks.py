"""The names of the timeline's tracks: they fold their track, by mouse and by keyboard."""

from __future__ import annotations

from functools import cache

from playwright.sync_api import Locator, expect

from gpuprof_widgets.trace.model import Record
from tests.browser.report_page import Open, Report, too_faint
from tests.traces import op, trace_of

MS = 1_000_000


@cache
def many() -> Record:
    """Two threads of four levels, and more of one level than have room."""
    nested = [
        op(f"aten::level{i}", ts=i, dur=9 * MS - 2 * i, thread=thread)
        for thread in (1, 2)
        for i in range(4)
    ]
    others = [op(f"aten::op{i}", ts=0, dur=9 * MS, thread=i) for i in range(3, 30)]
    return trace_of(*nested, *others)


def thread(report: Report, number: int) -> Locator:
    name = f"thread {number}"
    return report.page.locator(f"[data-track][title='{name}'], [data-track][title^='{name}:']")


def height(report: Report, name: str) -> float:
    row = report.state(
        f"Array.from(store.data.ts, (_, row) => store.data.name(row)).indexOf('{name}')"
    )
    return float(report.state(f"store.event_box({row})[3]"))


def test_a_name_folds_its_track_by_a_click_and_unfolds_it_by_a_key(open_report: Open) -> None:
    report = open_report(many())
    before = report.op_rows()
    tall = height(report, "aten::level3")
    for is_open in ("false", "true"):
        thread(report, 1).click() if is_open == "false" else thread(report, 1).press("Enter")
        expect(thread(report, 1)).to_have_attribute("aria-expanded", is_open)
        assert (height(report, "aten::level3") == tall) == (is_open == "true")
    assert report.op_rows() == before


def test_keys_lead_from_name_to_name(open_report: Open) -> None:
    report = open_report(many())
    thread(report, 1).focus()
    for key, number in (("ArrowDown", 2), ("ArrowDown", 2), ("ArrowUp", 1), ("End", 2)):
        report.page.keyboard.press(key)
        expect(thread(report, number)).to_be_focused()
    assert thread(report, 1).get_attribute("tabindex") == "-1"


def test_a_name_stays_in_view_as_long_as_its_track_does(open_report: Open) -> None:
    report = open_report(many())
    report.timeline.hover()
    report.page.mouse.wheel(0, 50)
    expect(thread(report, 1)).to_be_in_viewport()
    name, surface = thread(report, 1).bounding_box(), report.timeline.bounding_box()
    assert name
    assert surface
    assert name["y"] >= surface["y"] - 1


def test_names_are_legible(open_report: Open) -> None:
    report = open_report(many())
    for scheme in ("light", "dark"):
        report.use_scheme(scheme)
        thread(report, 2).focus()
        assert too_faint(report.page) == []
