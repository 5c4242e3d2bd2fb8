"""A trace whose every text is an attack, in a notebook: live, not trusted, and exported."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import nbformat
import pytest
from nbconvert import HTMLExporter
from nbformat.v4 import new_notebook
from playwright.sync_api import BrowserContext, expect

from tests import hostile
from tests.browser.conftest import Lab
from tests.browser.watched import Watched
from tests.job import STARTS, in_lockstep
from tests.job import saved as saved_ranks

NOTEBOOK = "hostile.ipynb"
CELLS = [
    "import gpuprof_widgets\nsent = gpuprof_widgets.load('sent.gpuprof')",
    "sent",
    "sent.compare(sent.window(0, sent.trace.span_ns // 2))",
    "gpuprof_widgets.ranks('ranks')",
    # The part that needs no script stays visible where it is shown alone.
    "display(sent._repr_mimebundle_(), raw=True)",
    "sent.operators(), repr(sent)",
    f"gpuprof_widgets.load({hostile.PAYLOADS['event handler']!r} + '\\x1b[31m.json')",
]
TYPESET = ".jp-OutputArea mjx-container, .jp-OutputArea .MathJax"


@pytest.fixture(scope="module")
def saved(context: BrowserContext, lab: Lab) -> Path:
    """The notebook as it is saved after it has run; while it ran, nothing of the trace did."""
    path = lab.root / NOTEBOOK
    hostile.saved(lab.root / "sent.gpuprof")
    name = hostile.PAYLOADS["event handler"]
    (lab.root / "ranks").mkdir()
    saved_ranks(lab.root / "ranks", in_lockstep(STARTS, label=name, host=name, notes=[name]))
    live = Watched.of(context)
    run(live, lab, path)
    live.page.close()
    lab.end_kernels()
    return path


def run(live: Watched, lab: Lab, path: Path) -> None:
    """Run all cells in JupyterLab, look at what they show, and save."""
    page = live.page
    lab.run(page, path.name, CELLS)
    last = page.locator(".jp-CodeCell").nth(len(CELLS) - 1)
    expect(page.locator(".gpuprof-report")).to_have_count(3, timeout=60_000)
    expect(last.locator(".jp-OutputArea-output").first).to_contain_text("there is no such file")
    page.wait_for_timeout(1_000)  # what JupyterLab typesets, it typesets later
    live.assert_nothing_ran(errors=False)
    own = (f"http://127.0.0.1:{lab.port}/", f"ws://127.0.0.1:{lab.port}/", "data:", "blob:")
    assert [url for url in live.asked if not url.startswith(own)] == []
    assert page.locator(TYPESET).count() == 0
    page.locator(".jp-CodeCell .jp-InputPrompt").first.click()
    with page.expect_response(lambda answer: answer.request.method == "PUT"):
        page.keyboard.press("Control+s")


def test_a_notebook_that_is_not_trusted_shows_views_that_run_nothing(
    saved: Path, watched: Watched, other_lab: Lab
) -> None:
    shutil.copy(saved, other_lab.root / "received.ipynb")
    watched.page.goto(other_lab.url("received.ipynb"))
    watched.start_reports(3)
    watched.page.wait_for_timeout(1_000)
    watched.assert_nothing_ran(errors=False)
    assert watched.page.locator(TYPESET).count() == 0


def test_a_notebook_that_is_not_trusted_shows_text_without_the_extension(
    saved: Path, watched: Watched, plain_lab: Lab
) -> None:
    shutil.copy(saved, plain_lab.root / "received.ipynb")
    watched.page.goto(plain_lab.url("received.ipynb"))
    static = watched.page.locator(".gpuprof-static")
    expect(static.first).to_contain_text(hostile.PAYLOADS["script"])
    watched.page.wait_for_timeout(1_000)
    watched.assert_nothing_ran(errors=False)
    assert watched.page.locator(".gpuprof-report").count() == 0
    assert watched.page.locator(TYPESET).count() == 0
    foreign = ".gpuprof-static :is(img, script, style, iframe, form, a, svg, input, button)"
    assert watched.page.locator(foreign).count() == 0


@pytest.mark.parametrize("sanitised", [False, True])
def test_an_exported_notebook_shows_text(
    saved: Path, watched: Watched, tmp_path: Path, sanitised: bool
) -> None:
    asked = requests_of(watched, new_notebook(), tmp_path / "empty.html", sanitised)
    notebook = nbformat.read(saved, as_version=4)
    assert requests_of(watched, notebook, tmp_path / "hostile.html", sanitised) == asked
    watched.assert_nothing_ran(errors=False)
    if sanitised:
        expect(watched.page.locator(".gpuprof-report")).to_have_count(0)
    else:
        watched.start_reports(3)


def requests_of(
    watched: Watched, notebook: nbformat.NotebookNode, path: Path, sanitised: bool
) -> list[str]:
    """Open the export with the network cut; what it asked for: nbconvert's page wants MathJax."""
    html = HTMLExporter(sanitize_html=sanitised).from_notebook_node(notebook)[0]
    path.write_text(html, encoding="utf-8")
    watched.page.unroute_all()
    watched.page.route(re.compile("^https?:"), lambda route: route.abort())
    watched.asked.clear()
    watched.page.goto(path.as_uri())
    watched.page.wait_for_load_state("networkidle")
    watched.page.wait_for_timeout(2_000)
    return [url for url in watched.asked if url.startswith("http")]
