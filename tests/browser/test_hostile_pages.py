"""A trace whose every text is an attack, in a browser: nothing of it runs, nothing is asked for.

The same in all that shows a page: the exported report, two runs side by side, several ranks, and
a notebook that is live, reopened or not trusted.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, BrowserContext, Page, expect

import gpuprof_widgets
from tests import hostile
from tests.browser.report_page import Report
from tests.job import STARTS, in_lockstep
from tests.job import saved as saved_ranks
from tests.traces import op, trace_of

LOCAL = ("file:", "data:", "blob:", "about:")

ELEMENTS = """() => {
    const foreign = ["iframe", "object", "embed", "form", "base", "meta[http-equiv=refresh]"]
    const links = ["href", "src", "srcset", "action", "formaction", "srcdoc", "xlink:href"]
    const found = []
    const visit = (root) => {
        for (const el of root.querySelectorAll("*")) {
            found.push(el)
            if (el.shadowRoot != null) {
                visit(el.shadowRoot)
            }
        }
    }
    visit(document)
    return found.flatMap((el) => [
        ...el.matches(foreign.join()) ? [el.outerHTML] : [],
        ...[...el.attributes].filter(({name, value}) =>
            name.startsWith("on") || links.includes(name) && !/^(data|blob):/.test(value))
            .map(({name, value}) => `${el.tagName} ${name}=${value}`),
    ])
}"""
"""What no page of ours has, in whatever shadow root it stands: frames, forms, handlers in
attributes, and addresses of any kind."""

GLOBALS = """() => [window, Object.prototype, Function.prototype, Array.prototype]
    .flatMap((of) => Object.getOwnPropertyNames(of)).sort()"""


@dataclass
class Watched:
    """A page, and what may not happen on it: dialogs, requests, errors."""

    page: Page
    dialogs: list[str] = field(default_factory=list)
    asked: list[str] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)

    @classmethod
    def of(cls, context: BrowserContext) -> Watched:
        """A new page that is watched from its first request on."""
        seen = cls(context.new_page())
        page = seen.page
        page.on("dialog", lambda dialog: (seen.dialogs.append(dialog.message), dialog.dismiss()))
        page.on("request", lambda request: seen.asked.append(request.url))
        page.on("pageerror", lambda error: seen.errors.append(str(error)))
        page.on(
            "console",
            lambda said: seen.errors.append(said.text) if said.type == "error" else None,
        )
        page.on("popup", lambda popup: seen.errors.append(f"popup {popup.url}"))
        return seen

    def assert_nothing_ran(self, *, errors: bool = True) -> None:
        """No dialog, no changed global, no request to the attacker."""
        self.page.wait_for_timeout(300)
        assert self.dialogs == []
        assert self.page.evaluate("window.broken") is None
        assert [url for url in self.asked if hostile.ATTACKER in url] == []
        if errors:
            assert self.errors == []


@pytest.fixture
def watched(browser: Browser) -> Iterator[Watched]:
    context = browser.new_context(viewport={"width": 1280, "height": 900})
    yield Watched.of(context)
    context.close()


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
        row.click(timeout=2_000)
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
