"""Pages as axe-core judges them: it knows the rules of WCAG that a program can check."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser

import gpuprof_widgets
from gpuprof_widgets.trace.readers import load
from gpuprof_widgets.views.report import standalone_html
from tests.browser.report_page import Report
from tests.job import STARTS, in_lockstep, saved
from tests.test_compare_source import A, B

EXTENSION = Path(gpuprof_widgets.__file__).parent / "views" / "extension"
AXE = EXTENSION / "node_modules" / "axe-core" / "axe.min.js"
RECORDED = Path(__file__).parent.parent / "data" / "recorded"

pytestmark = pytest.mark.skipif(not AXE.exists(), reason="npm has not installed axe-core")

VIOLATIONS = """async () => (await axe.run(document, {resultTypes: ["violations"]})).violations
    .flatMap(({id, help, nodes}) => nodes.map(({target}) => `${id}: ${help}: ${target.flat()}`))"""


def report(folder: Path) -> str:
    return standalone_html(load(RECORDED / "activation_checkpointing_simulated_gpu.gpuprof"))


def comparison(folder: Path) -> str:
    runs = [RECORDED / f"training.rank{rank}.gpuprof" for rank in (0, 1)]
    return gpuprof_widgets.compare(*runs).report()


def edited(folder: Path) -> str:
    return gpuprof_widgets.compare(A, B).report()


def ranks(folder: Path) -> str:
    saved(folder, in_lockstep(STARTS))
    return gpuprof_widgets.ranks(folder).report()


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("page_of", [report, comparison, edited, ranks])
def test_axe_finds_nothing(
    browser: Browser, tmp_path: Path, page_of: Callable[[Path], str], scheme: Any
) -> None:
    path = tmp_path / "page.html"
    path.write_text(page_of(tmp_path), encoding="utf-8")
    page = browser.new_page(color_scheme=scheme, bypass_csp=True)
    page.goto(path.as_uri())
    if page_of is report:
        shown = Report.wait(page)
        shown.brush(0.2, 0.6)
        shown.table.locator("tbody tr").nth(1).click()
        shown.settle()
    else:
        page.get_by_role("application").nth(2).wait_for()
    page.add_script_tag(path=AXE)
    assert page.evaluate(VIOLATIONS) == []
    page.close()


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_nothing_without_scripts(browser: Browser, tmp_path: Path, scheme: Any) -> None:
    """What an untrusted notebook shows of a report, and a mail program."""
    path = tmp_path / "page.html"
    path.write_text(report(tmp_path).split("<script>")[0], encoding="utf-8")
    page = browser.new_page(color_scheme=scheme, bypass_csp=True)
    page.goto(path.as_uri())
    page.add_script_tag(path=AXE)
    assert page.evaluate(VIOLATIONS) == []
    page.close()
