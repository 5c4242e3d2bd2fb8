"""A trace whose every text is an attack, in a browser: nothing of it runs, nothing is asked for.

The same in all that shows a page: the exported report, two runs side by side, and several ranks.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from playwright.sync_api import Browser, Page, expect

import gpuprof_widgets
from gpuprof_widgets.trace.writers.tables import csv_bytes
from tests import hostile
from tests.browser.engine import start_engine
from tests.browser.report_page import Report
from tests.browser.watched import ELEMENTS, GLOBALS, Watched
from tests.job import STARTS, in_lockstep
from tests.job import saved as saved_ranks
from tests.traces import op, trace_of

LOCAL = ("file:", "data:", "blob:", "about:")


@pytest.fixture(scope="module")
def profile(tmp_path_factory: pytest.TempPathFactory) -> gpuprof_widgets.Profile:
    """The hostile trace, as it comes from a file that somebody has sent."""
    return gpuprof_widgets.load(hostile.saved(tmp_path_factory.mktemp("mail") / "sent.gpuprof"))


def of_profile(profile: gpuprof_widgets.Profile, folder: Path) -> str:
    return profile.report(top=1_000)


def of_comparison(profile: gpuprof_widgets.Profile, folder: Path) -> str:
    return profile.compare(profile.window(0, profile.trace.span_ns // 2)).report()


def of_ranks(profile: gpuprof_widgets.Profile, folder: Path) -> str:
    name = hostile.PAYLOADS["event handler"]
    records = in_lockstep(STARTS, label=name, host=name, notes=[name])
    names = [f"<img src=x onerror=window.broken=1>\x1b[31m.rank{n}.gpuprof" for n in range(3)]
    saved_ranks(folder, records, names)
    return gpuprof_widgets.ranks(folder).report()


PAGES: dict[str, Callable[[gpuprof_widgets.Profile, Path], str]] = {
    "profile": of_profile,
    "comparison": of_comparison,
    "ranks": of_ranks,
}


@pytest.mark.parametrize("kind", PAGES)
def test_nothing_of_an_exported_page_runs(
    kind: str, watched: Watched, profile: gpuprof_widgets.Profile, tmp_path: Path
) -> None:
    path = tmp_path / "report.html"
    path.write_text(PAGES[kind](profile, tmp_path), encoding="utf-8")
    watched.page.goto(path.as_uri())
    timeline = watched.page.locator("[role=application][aria-label^='Timeline.']")
    expect(timeline.first).to_be_visible()
    use(watched.page)
    watched.assert_nothing_ran()
    assert [url for url in watched.asked if not url.startswith(LOCAL)] == []
    assert watched.page.evaluate(ELEMENTS) == []
    assert globals_after(watched.page) == globals_after(harmless(watched.page, tmp_path))


def use(page: Page) -> None:
    """Everything that shows more names: folds, tabs, rows, searches, tooltips, keys."""
    for summary in page.locator("summary:visible").all():
        summary.click()
    for tab in page.get_by_role("tab").all():
        tab.click()
    for row in page.locator("tbody tr:visible").all()[:8]:
        row.click()
    for drawn in page.locator("[role=application]:visible").all():
        drawn.scroll_into_view_if_needed()
        box = drawn.bounding_box()
        assert box is not None
        for share in (0.01, 0.3, 0.5, 0.7, 0.99):
            page.mouse.move(box["x"] + share * box["width"], box["y"] + 0.3 * box["height"])
        page.mouse.click(box["x"] + 0.5 * box["width"], box["y"] + 0.3 * box["height"])
        for key in ("ArrowDown", "ArrowRight", "Enter"):
            drawn.press(key)
    for search in page.locator("input[type=search]:visible, input[type=text]:visible").all():
        search.fill(hostile.PAYLOADS["event handler"])
        search.press("Enter")


def harmless(page: Page, folder: Path) -> Page:
    """The same page with a trace of good names."""
    path = folder / "harmless.html"
    profile: Any = trace_of(op("aten::mm", ts=0, dur=1000))
    good = gpuprof_widgets.Profile(profile.trace, None, {})
    path.write_text(good.report(), encoding="utf-8")
    page.goto(path.as_uri())
    Report.wait(page)
    return page


def globals_after(page: Page) -> list[str]:
    """The names that a page has among its globals, and what all objects have."""
    names: list[str] = page.evaluate(GLOBALS)
    return names


def test_a_table_that_is_copied_has_no_formula(browser: Browser) -> None:
    """The page's CSV holds the very cells that Python's has."""
    names = [*hostile.PAYLOADS.values(), "＝1+1", "'=1+1", "plain"]
    engine = start_engine(browser)
    copied = engine.run("(names) => engine.to_csv(['name'], names.map((name) => [name]))", names)
    engine.page.close()
    ours = csv_bytes(pd.DataFrame({"name": names})).decode()
    assert cells(copied) == cells(ours)


def cells(text: str) -> list[list[str]]:
    return list(csv.reader(io.StringIO(text, newline="")))
