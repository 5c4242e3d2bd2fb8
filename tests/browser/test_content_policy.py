"""Reports under a Content-Security-Policy: their own, and those of pages that hold them."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect

from gpuprof_widgets.views.page import page_uid, report_page
from gpuprof_widgets.views.report import page_script, standalone_html
from tests.traces import op, trace_of

ADDRESS = "https://reports.invalid/"
RECORD = trace_of(op("aten::mm", ts=0, dur=1000), label="matmul")


@pytest.fixture
def page(any_page: Page) -> Page:
    return any_page


def serve(page: Page, html: str, policy: str) -> None:
    """Open the page as a server would send it that has this policy."""
    headers = {"Content-Type": "text/html; charset=utf-8", "Content-Security-Policy": policy}
    page.route(ADDRESS, lambda route: route.fulfill(body=html, headers=headers))
    page.goto(ADDRESS)


def notebook(attributes: str = "") -> str:
    """A report as an exported notebook holds it, without a policy of its own."""
    page = report_page(RECORD, sort="cpu_self")
    script = page_script(page, embed_runtime=True)
    return f"""<!doctype html><meta charset=utf-8><div>
      <div class="gpuprof-{page_uid(page)}"><div>the summary</div></div><div>picture</div>
      <div><script {attributes}>{script}</script></div></div>"""


@pytest.mark.parametrize(
    ("policy", "attributes"),
    [
        ("script-src 'unsafe-inline'", ""),
        ("script-src 'nonce-c2VjcmV0'", "nonce=c2VjcmV0"),
        ("script-src 'unsafe-inline' 'unsafe-eval'; connect-src 'none'; img-src data:", ""),
    ],
)
def test_a_report_runs_where_a_policy_lets_scripts_run(
    page: Page, policy: str, attributes: str
) -> None:
    serve(page, notebook(attributes), policy)
    expect(page.get_by_role("table", name="Op table")).to_contain_text("aten::mm")
    expect(page.get_by_text("the summary", exact=True)).to_be_hidden()


@pytest.mark.parametrize(
    "policy", ["script-src 'none'", "default-src 'none'; style-src 'self'", "sandbox"]
)
def test_a_page_without_scripts_shows_the_summary_and_says_so(page: Page, policy: str) -> None:
    serve(page, standalone_html(RECORD), policy)
    expect(page.locator(".gpuprof-static table").first).to_be_visible()
    expect(page.locator(".gpuprof-message")).to_have_count(1)
    expect(page.get_by_role("status")).to_contain_text("need scripts")


def test_a_policy_that_knows_no_further_script_leaves_the_summary(page: Page) -> None:
    serve(page, notebook(), "require-trusted-types-for 'script'")
    expect(page.get_by_text("The interactive views could not start")).to_be_visible()
    expect(page.get_by_text("the summary", exact=True)).to_be_visible()


@dataclass(frozen=True)
class Server:
    """A server of this machine that writes down what it is asked for."""

    host: str
    asked: list[str]

    @property
    def paths(self) -> set[str]:
        """What it was asked for so far; a form adds an empty question."""
        return {path.rstrip("?") for path in self.asked}


@pytest.fixture
def server() -> Iterator[Server]:
    asked: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append(self.path)
            self.send_response(204)
            self.end_headers()

        do_POST = do_GET  # noqa: N815

        def log_message(self, *words: object) -> None:
            """Say nothing."""

    listening = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=listening.serve_forever)
    thread.start()
    yield Server(f"127.0.0.1:{listening.server_port}", asked)
    listening.shutdown()
    thread.join()
    listening.server_close()


ASKING = """(host) => {
    fetch(`http://${host}/fetch`).catch(() => {})
    navigator.sendBeacon(`http://${host}/beacon`)
    new Image().src = `http://${host}/image`
    document.body.insertAdjacentHTML("beforeend", `
      <img src="http://${host}/html" onerror="window.broken=1">
      <style>@import "http://${host}/css"; body {background: url(http://${host}/url)}</style>
      <iframe name=frame src="http://${host}/frame"></iframe>
      <form action="http://${host}/form" target=frame></form>`)
    const script = document.createElement("script")
    script.textContent = "window.broken=1"
    document.body.append(script)
    return new Promise((resolve) => setTimeout(() => {
        document.querySelector("form").submit()
        setTimeout(resolve, 500)
    }, 500))
}"""
EVERYTHING = {"/fetch", "/beacon", "/image", "/html", "/css", "/url", "/frame", "/form"}


def test_a_page_of_ours_cannot_ask_for_anything(page: Page, tmp_path: Path, server: Server) -> None:
    """Not even where somebody else's script came to run on it; on another page, that would."""
    ours, other = tmp_path / "ours.html", tmp_path / "other.html"
    ours.write_text(standalone_html(RECORD), encoding="utf-8")
    other.write_text("<!doctype html><body>", encoding="utf-8")
    for path, expected in ((ours, set()), (other, EVERYTHING)):
        page.goto(path.as_uri())
        if path == ours:
            expect(page.get_by_role("table", name="Op table")).to_contain_text("aten::mm")
            expect(page.locator(".gpuprof-message")).to_have_count(0)
        page.evaluate(ASKING, server.host)
        end = time.monotonic() + 60  # a slow browser asks late
        while server.paths != expected and time.monotonic() < end:
            page.wait_for_timeout(100)
        assert server.paths == expected
        assert page.evaluate("window.broken") == (1 if expected else None)
