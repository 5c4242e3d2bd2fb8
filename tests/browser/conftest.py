"""Chromium and real JupyterLab servers for the browser tests, one of each per session."""

from __future__ import annotations

import json
import os
import secrets
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.error import URLError
from urllib.request import Request, urlopen

import nbformat
import pytest
from nbformat.v4 import new_code_cell, new_notebook
from playwright.sync_api import Browser, BrowserContext, Page, expect, sync_playwright

import gpuprof_widgets
from gpuprof_widgets.trace.model import Record
from gpuprof_widgets.views.report import standalone_html
from tests.browser.report_page import BOOT_MS, Open, OpenHtml, Report
from tests.browser.watched import Watched

SCREENSHOTS = Path(__file__).parents[2] / "build" / "screenshots"
EXTENSION = Path(gpuprof_widgets.__file__).parent / "labextension"
CHROMIUM_FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-quic",
    "--no-first-run",
]


expect.set_options(timeout=60_000)  # a busy machine takes that long to open JupyterLab
RUN_MS = 300_000
"""A bound against hanging: a busy machine takes a minute to start a kernel and import torch."""


def pytest_itemcollected(item: pytest.Item) -> None:
    """Mark the tests before pytest deselects any; `-k screenshots` means those that write one."""
    item.add_marker(pytest.mark.browser)
    if isinstance(item, pytest.Function) and "screenshot" in item.fixturenames:
        item.extra_keyword_matches.add("screenshots")


@pytest.hookimpl(trylast=True)  # after pytest has grouped the tests by the traces that they share
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Run the browser tests last: Playwright leaves an event loop running."""
    items.sort(key=lambda item: item.get_closest_marker("browser") is not None)


def chromium_path() -> str:
    names = (os.environ.get("CHROMIUM", "chromium"), "chromium-browser", "google-chrome")
    found = next(filter(None, map(shutil.which, names)), None)
    if found is None:
        pytest.fail(
            "No Chromium: install it (apt-get install chromium) or set CHROMIUM to its path."
        )
    return found


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """One per file: while Playwright is open, this thread runs an event loop."""
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium_path(), args=CHROMIUM_FLAGS)
        yield browser
        browser.close()


@pytest.fixture(scope="module")
def offline_page(browser: Browser) -> Iterator[Page]:
    """The page for the reports of a file: where one was shown, the next costs a third."""
    # Playwright's wait_for_function evaluates text in the page, which a page's policy forbids.
    context = browser.new_context(offline=True, bypass_csp=True)
    yield context.new_page()
    context.close()


@contextmanager
def as_new(page: Page) -> Iterator[list[str]]:
    """Make a used page look like a new one; collect what it asks for, in which nothing may fail."""
    page.goto("about:blank")
    page.mouse.move(0, 0)
    page.set_viewport_size({"width": 1280, "height": 900})
    page.emulate_media(media="screen", color_scheme="light", reduced_motion="no-preference")
    asked: list[str] = []
    errors: list[str] = []
    listeners: dict[Any, Callable[[Any], None]] = {
        "request": lambda request: asked.append(request.url),
        "pageerror": lambda error: errors.append(str(error)),
    }
    for event, listener in listeners.items():
        page.on(event, listener)
    yield asked
    for event, listener in listeners.items():
        page.remove_listener(event, listener)
    assert errors == []


@pytest.fixture
def open_html(offline_page: Page, tmp_path: Path) -> Iterator[OpenHtml]:
    """Opens HTML from disk with the network cut; nothing may go wrong."""

    def opened(html: str) -> Page:
        path = tmp_path / "report.html"
        path.write_text(html, encoding="utf-8")
        offline_page.goto(path.as_uri())
        offline_page.get_by_label("Findings").wait_for(state="attached", timeout=BOOT_MS)
        return offline_page

    with as_new(offline_page) as asked:
        yield opened
    assert [url for url in asked if not url.startswith(("file:", "data:", "blob:", "about:"))] == []


@pytest.fixture
def open_report(open_html: OpenHtml) -> Open:
    """Opens records as pages from disk."""

    def opened(record: Record, *, without_table: bool = False, **options: Any) -> Report:
        page = open_html(standalone_html(record, **options))
        return Report(page) if without_table else Report.wait(page)

    return opened


Screenshot = Callable[[Page, str], None]
"""What the fixture `screenshot` is: it writes what a page shows, under a name."""


@pytest.fixture(scope="session")
def screenshot() -> Screenshot:
    """For people to look at: `make screenshots` runs every test that takes it."""
    SCREENSHOTS.mkdir(parents=True, exist_ok=True)

    def write(page: Page, name: str) -> None:
        page.mouse.move(5, 5)
        page.wait_for_timeout(300)
        page.screenshot(path=SCREENSHOTS / f"{name}.png")

    return write


@dataclass(frozen=True)
class Lab:
    """A running JupyterLab, or Notebook 7: where it listens, and the folder that it serves."""

    root: Path
    home: Path
    port: int
    token: str
    program: str = "jupyterlab"
    has_extension: bool = True

    def url(self, notebook: str) -> str:
        """Address of one notebook; in JupyterLab in its single-document mode."""
        folder = "doc/tree" if self.program == "jupyterlab" else "notebooks"
        return f"http://127.0.0.1:{self.port}/{folder}/{notebook}?token={self.token}"

    def api(self, path: str, method: str = "GET") -> bytes:
        request = Request(f"http://127.0.0.1:{self.port}/api/{path}", method=method)
        request.add_header("Authorization", f"token {self.token}")
        with urlopen(request, timeout=30) as answer:
            return bytes(answer.read())

    def end_kernels(self) -> None:
        """End every session, so that whatever a page shows now needs no kernel."""
        for session in json.loads(self.api("sessions")):
            self.api(f"sessions/{session['id']}", "DELETE")

    def open(self, page: Page, notebook: str) -> None:
        """Open a notebook and wait until its cells stand and its kernel takes requests."""
        page.set_default_timeout(RUN_MS)
        is_kernel = lambda socket: "/api/kernels/" in socket.url  # noqa: E731
        with page.expect_websocket(is_kernel, timeout=RUN_MS):
            page.goto(self.url(notebook))
        page.wait_for_selector(".jp-CodeCell .cm-content")
        page.wait_for_selector(".jp-Notebook-ExecutionIndicator[data-status='idle']")
        if self.program == "jupyterlab":
            page.locator(".jp-StatusBar-TextItem", has_text="| Idle").wait_for()

    def write(self, notebook: str, sources: Sequence[str], kernel: str = "python3") -> None:
        """Write a notebook that nobody has run."""
        cells = [new_code_cell(source) for source in sources]
        spec = {"name": kernel, "display_name": kernel, "language": "python"}
        written = new_notebook(cells=cells, metadata={"kernelspec": spec})
        nbformat.write(written, self.root / notebook)

    def run(
        self, page: Page, notebook: str, sources: Sequence[str], kernel: str = "python3"
    ) -> None:
        """Write a notebook and run its cells by hand, each once the one before it has run."""
        self.write(notebook, sources, kernel)
        self.open(page, notebook)
        code = page.locator(".jp-CodeCell")
        code.first.locator(".cm-content").click()
        for number in range(1, len(sources) + 1):
            page.keyboard.press("Shift+Enter")
            prompt = code.nth(number - 1).locator(".jp-InputPrompt")
            expect(prompt).to_have_text(f"[{number}]:", timeout=RUN_MS)

    def trust(self, notebook: str) -> None:
        """Do what Trust Notebook does."""
        command = [sys.executable, "-m", "jupyter", "trust", notebook]
        environment = os.environ | self._environment()
        subprocess.run(command, cwd=self.root, env=environment, check=True, capture_output=True)

    def use_theme(self, theme: str) -> None:
        """Choose the theme that pages opened from now on have."""
        self._set("@jupyterlab/apputils-extension/themes", {"theme": theme})

    def _set(self, plugin: str, settings: dict[str, object]) -> None:
        file = self.home / "settings" / f"{plugin}.jupyterlab-settings"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(json.dumps(settings))

    def start(self) -> subprocess.Popen[bytes]:
        self.root.mkdir(parents=True)
        news = {"fetchNews": "false", "checkForUpdates": False}
        self._set("@jupyterlab/apputils-extension/notification", news)
        extensions = self.home / "share" / "labextensions"
        extensions.mkdir(parents=True)
        (extensions / "gpuprof_widgets").symlink_to(EXTENSION)
        if not self.has_extension:
            file = self.home / "config" / "labconfig" / "page_config.json"
            file.parent.mkdir(parents=True)
            file.write_text(json.dumps({"disabledExtensions": {"gpuprof_widgets": True}}))
        with (self.home / "lab.log").open("wb") as log:
            return subprocess.Popen(
                [sys.executable, "-m", self.program, *self._arguments()],
                env=os.environ | self._environment(),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )

    def _arguments(self) -> list[str]:
        return [
            "--no-browser",
            "--allow-root",
            "--ServerApp.ip=127.0.0.1",
            f"--ServerApp.port={self.port}",
            "--ServerApp.port_retries=0",
            f"--ServerApp.root_dir={self.root}",
            f"--IdentityProvider.token={self.token}",
        ]

    def _environment(self) -> dict[str, str]:
        """Everything personal apart: settings, trust (the data folder), running servers."""
        folders = {"HOME": "", "JUPYTER_CONFIG_DIR": "config", "JUPYTER_DATA_DIR": "data"}
        folders |= {"JUPYTER_RUNTIME_DIR": "runtime", "IPYTHONDIR": "ipython"}
        folders |= {"JUPYTER_PATH": "share"}  # our extension as it is built, installed or not
        folders |= {"JUPYTERLAB_SETTINGS_DIR": "settings", "JUPYTERLAB_WORKSPACES_DIR": "work"}
        return {name: str(self.home / folder) for name, folder in folders.items()}

    def await_answer(self, server: subprocess.Popen[bytes], seconds: float = 120) -> None:
        end = time.monotonic() + seconds
        while time.monotonic() < end and server.poll() is None:
            try:
                self.api("status")
            except (URLError, OSError):
                time.sleep(0.2)
            else:
                return
        pytest.fail(
            f"{self.program} did not start:\n" + (self.home / "lab.log").read_text()[-3000:]
        )


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def serve_lab(
    home: Path, program: str = "jupyterlab", *, has_extension: bool = True
) -> Iterator[Lab]:
    token = secrets.token_hex(16)
    lab = Lab(home / "notebooks", home, free_port(), token, program, has_extension)
    server = lab.start()
    try:
        lab.await_answer(server)
        yield lab
        lab.end_kernels()
    finally:
        server.terminate()
        try:
            server.wait(20)
        except subprocess.TimeoutExpired:
            server.kill()
            server.wait()


@pytest.fixture(scope="session")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    """The author's JupyterLab: it trusts what was run in it."""
    yield from serve_lab(tmp_path_factory.mktemp("author"))


@pytest.fixture(scope="session")
def other_lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    """A reader's JupyterLab: another signature database, so it trusts nothing of the author's."""
    yield from serve_lab(tmp_path_factory.mktemp("reader"))


@pytest.fixture(scope="session")
def plain_lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    """The JupyterLab of a reader who has not installed our package, and trusts nothing either."""
    yield from serve_lab(tmp_path_factory.mktemp("plain"), has_extension=False)


@pytest.fixture(scope="session")
def notebook7(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    """Notebook 7 of somebody who has our extension."""
    yield from serve_lab(tmp_path_factory.mktemp("notebook7"), "notebook")


@pytest.fixture(scope="module")
def context(browser: Browser) -> Iterator[BrowserContext]:
    """One per file: it keeps what JupyterLab has loaded."""
    context = browser.new_context(viewport={"width": 1280, "height": 900})
    yield context
    context.close()


@pytest.fixture
def any_page(context: BrowserContext) -> Iterator[Page]:
    """A new page, of whose errors none is looked at."""
    page = context.new_page()
    yield page
    page.close()


@pytest.fixture
def page(any_page: Page) -> Iterator[Page]:
    """A page in which no script may fail."""
    errors: list[str] = []
    any_page.on("pageerror", lambda error: errors.append(str(error)))
    yield any_page
    assert errors == []


@pytest.fixture
def watched(context: BrowserContext) -> Iterator[Watched]:
    """A page on which nothing of a trace may run."""
    watched = Watched.of(context)
    yield watched
    watched.page.close()
