"""The sheet of all keys opens from anywhere in the report."""

from __future__ import annotations

from functools import cache
from pathlib import Path

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
    return report.page.get_by_role("dialog", name="Keys", exact=True)


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
    expect(page.get_by_role("dialog", name="Keys", exact=True)).to_have_count(1)
    page.close()
