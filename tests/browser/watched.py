"""A page on which nothing of a trace may run: what it did and asked for, and what it is made of."""

from __future__ import annotations

from dataclasses import dataclass, field
from urllib.parse import urlsplit

from playwright.sync_api import BrowserContext, Page, expect

from tests import hostile

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

    def start_reports(self, count: int) -> None:
        """Scroll through the page: a report starts when it comes near the screen."""
        summaries = self.page.locator(".gpuprof-static")
        live = self.page.locator(".gpuprof-report[data-complete]")
        expect(summaries.nth(count - 1)).to_be_attached()
        for number in range(count):
            summaries.nth(number).evaluate(
                "summary => summary.closest('.jp-Cell').scrollIntoView()"
            )
            expect(live.nth(number)).to_be_attached()
        expect(live).to_have_count(count)

    def assert_nothing_ran(self, *, errors: bool = True) -> None:
        """No dialog, no changed global, no request to the attacker."""
        self.page.wait_for_timeout(300)
        assert self.dialogs == []
        assert self.page.evaluate("window.broken") is None
        assert [url for url in self.asked if urlsplit(url).hostname == hostile.ATTACKER] == []
        if errors:
            assert self.errors == []
