"""The sheet of all keys: it opens from anywhere, finds commands and runs them."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Locator, expect

from gpuprof_widgets.trace.model import Record
from tests.browser.report_page import Open, Report, too_faint
from tests.browser.test_tracks import ranks
from tests.traces import kernel, memory, op, runtime, trace_of

MS = 1_000_000


@cache
def small() -> Record:
    """An op with memory, and one inside it that launches a kernel."""
    return trace_of(
        op("aten::linear", ts=0, dur=8 * MS),
        op("aten::mm", ts=2 * MS, dur=2 * MS),
        runtime("cudaLaunchKernel", ts=3 * MS, dur=MS // 2),
        kernel("sgemm", ts=5 * MS, dur=3 * MS, launched_by=2),
        op("aten::relu", ts=9 * MS, dur=MS),
        memory(1024, ts=MS, allocated=1024),
        memory(-1024, ts=9 * MS, allocated=0),
    )


def sheet(report: Report) -> Locator:
    return report.page.get_by_role("dialog", name="Keys and commands")


def box(report: Report) -> Locator:
    return report.page.get_by_role("searchbox", name="Filter commands")


def visible(report: Report) -> Any:
    return report.state("[store.visible.start, store.visible.end]")


def test_the_sheet_opens_from_everywhere_in_the_report(open_report: Open) -> None:
    report = open_report(small())
    row = report.table.locator("tbody tr").first
    for place in (
        report.timeline,
        report.flame_graph,
        row,
        report.page.locator("[data-track]").first,
    ):
        place.press("?")
        expect(sheet(report)).to_be_visible()
        expect(box(report)).to_be_focused()
        report.page.keyboard.press("Escape")
        expect(sheet(report)).to_be_hidden()
    report.page.get_by_role("button", name="Keys", exact=True).click()
    expect(sheet(report)).to_be_visible()


def test_a_question_mark_is_text_in_a_text_box(open_report: Open) -> None:
    report = open_report(small())
    search = report.page.get_by_role("searchbox", name="Search")
    search.press_sequentially("a?")
    expect(search).to_have_value("a?")
    expect(sheet(report)).to_be_hidden()


def test_a_command_is_found_and_run(open_report: Open) -> None:
    report = open_report(small())
    whole = visible(report)
    report.timeline.press("?")
    box(report).press_sequentially("zoom in")
    box(report).press("Enter")
    expect(sheet(report)).to_be_hidden()
    expect(report.timeline).to_be_focused()
    assert visible(report)[1] - visible(report)[0] < whole[1] - whole[0]
    report.page.keyboard.press("?")
    expect(box(report)).to_have_value("")
    sheet(report).get_by_role("button", name="Go back").click()
    assert visible(report) == whole


def test_commands_are_walked_by_arrows(open_report: Open) -> None:
    report = open_report(small())
    report.timeline.press("?")
    box(report).fill("flame graph zoom")
    commands = sheet(report).get_by_role("button").filter(has_not_text="Close")
    box(report).press("ArrowDown")
    expect(commands.first).to_be_focused()
    for _ in range(9):
        report.page.keyboard.press("ArrowDown")
    expect(commands.last).to_be_focused()
    for _ in range(9):
        report.page.keyboard.press("ArrowUp")
    expect(box(report)).to_be_focused()


def test_no_command_is_found(open_report: Open) -> None:
    report = open_report(small())
    report.timeline.press("?")
    box(report).fill("no such command")
    box(report).press("Enter")
    expect(sheet(report)).to_be_visible()
    expect(sheet(report).get_by_role("listitem")).to_have_count(0)


def test_every_command_is_handled_by_its_view(open_report: Open) -> None:
    """No key is listed that a view does not know: what it knows it takes from the browser."""
    report = open_report(small())
    report.page.evaluate(NOTE_KEYS)
    report.timeline.press("?")
    buttons = sheet(report).get_by_role("button").filter(has_not_text="Close")
    names = [text.split("\n")[0] for text in buttons.all_inner_texts()]
    assert len(names) > 30
    report.page.keyboard.press("Escape")
    unknown = []
    for number, name in enumerate(names):
        prepare(report, name)
        report.timeline.press("?")
        report.page.evaluate("window.taken = null")
        buttons.nth(number).click()
        report.page.wait_for_function("window.taken != null")
        if not report.page.evaluate("window.taken"):
            unknown.append(name)
    assert unknown == []


def prepare(report: Report, name: str) -> None:
    """What a command needs to have anything to do."""
    if name.startswith(("End a", "Go back")):
        report.timeline.press("+")
    if name.startswith("Go forward"):
        report.timeline.press("+")
        report.timeline.press("Backspace")


NOTE_KEYS = """() => window.addEventListener("keydown", event => {
    if (!event.isTrusted) setTimeout(() => { window.taken = event.defaultPrevented })
}, true)"""


def test_views_that_are_not_there_are_not_listed(open_report: Open) -> None:
    report = open_report(trace_of(op("aten::mm", ts=0, dur=MS)))
    report.timeline.press("?")
    expect(sheet(report).get_by_role("heading", name="Timeline")).to_be_visible()
    expect(sheet(report).get_by_role("heading", name="Memory")).to_have_count(0)


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_sheet_is_legible(open_report: Open, scheme: str) -> None:
    report = open_report(small())
    report.use_scheme(scheme)
    report.timeline.press("?")
    expect(sheet(report)).to_be_visible()
    assert too_faint(report.page) == []


def test_several_timelines_have_one_sheet(browser: Browser, tmp_path: Path) -> None:
    (tmp_path / "ranks.html").write_text(ranks(tmp_path, 3).report(), encoding="utf-8")
    page = browser.new_page(viewport={"width": 1280, "height": 900})
    page.goto((tmp_path / "ranks.html").as_uri())
    timelines = page.get_by_role("application", name="Timeline.")
    expect(timelines).to_have_count(3)
    timelines.nth(2).press("?")
    found = page.get_by_role("searchbox", name="Filter commands")
    found.fill("zoom in")
    found.press("Enter")
    expect(timelines.first).to_be_focused()
    store = "Object.values(window.gpuprof.reports)[2]"
    assert page.evaluate(f"{store}.visible.end - {store}.visible.start") < 9 * MS
    page.close()
