"""The page of many ranks: linked timelines, findings that lead to a range, tables below."""

from __future__ import annotations

from pathlib import Path

import pytest
from playwright.sync_api import Browser, expect

import gpuprof_widgets
from tests.job import STARTS, in_lockstep, saved

STORES = "Object.values(window.gpuprof.reports)"


@pytest.mark.parametrize(("scheme", "width"), [("light", 1280), ("dark", 1920)])
def test_the_late_rank_is_shown_on_all_timelines(
    browser: Browser, tmp_path: Path, scheme: str, width: int
) -> None:
    saved(tmp_path, in_lockstep(STARTS))
    run = gpuprof_widgets.ranks(tmp_path)
    (tmp_path / "page.html").write_text(run.report(), encoding="utf-8")
    page = browser.new_page(color_scheme=scheme, viewport={"width": width, "height": 900})  # type: ignore[arg-type]
    errors: list[str] = []
    page.on("pageerror", lambda error: errors.append(str(error)))
    page.goto((tmp_path / "page.html").as_uri())
    expect(page.locator("[role=application][aria-label^='Timeline.']")).to_have_count(3)

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
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    assert errors == []
    page.close()
