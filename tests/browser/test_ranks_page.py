"""The page of many ranks: linked timelines, findings that lead to a range, tables below."""

from __future__ import annotations

from pathlib import Path

from playwright.sync_api import expect

import gpuprof_widgets
from tests.browser.report_page import OpenHtml
from tests.job import STARTS, in_lockstep, saved

STORES = "Object.values(window.gpuprof.reports)"


def test_the_late_rank_is_shown_on_all_timelines(open_html: OpenHtml, tmp_path: Path) -> None:
    saved(tmp_path, in_lockstep(STARTS))
    run = gpuprof_widgets.ranks(tmp_path)
    page = open_html(run.report())
    timelines = page.get_by_role("application", name="Timeline.")
    expect(timelines).to_have_count(3)
    tracks = page.locator("[data-track]")  # each timeline has its own
    assert tracks.count() == 3 * len(set(tracks.evaluate_all("all => all.map(t => t.title)")))

    named = page.evaluate(
        f"{STORES}.map(s => [...Array(s.data.length).keys()].map(r => s.data.name(r)))"
    )
    assert ["rank 1 awaited" in names for names in named] == [True, False, True]

    findings = run.findings()
    late = next(n for n, finding in enumerate(findings) if finding.rule == "stragglers")
    page.get_by_role("button", name="show").nth(late).click()
    expected = [findings[late].start_ns, findings[late].end_ns]
    assert page.evaluate(f"{STORES}.map(s => s.window)") == [expected] * 3

    titles = page.get_by_role("group", name="rank 0")
    expect(titles).to_contain_text("GPU 0 computing or moving data")
    for caption in ("Time of each rank", "Who waits for whom", "Collectives, on all ranks"):
        expect(page.get_by_text(caption).locator("visible=true")).to_have_count(1)
    timelines.nth(2).press("?")
    expect(page.get_by_role("dialog", name="Keys", exact=True)).to_have_count(1)
