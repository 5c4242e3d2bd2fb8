"""Pages as axe-core judges them: it knows the rules of WCAG that a program can check."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, expect

import gpuprof_widgets
from gpuprof_widgets.trace.readers import load
from gpuprof_widgets.views.report import standalone_html
from tests.browser.conftest import Lab
from tests.browser.report_page import SETTLED, Report
from tests.browser.test_loader import cell_of, outputs
from tests.job import STARTS, in_lockstep, saved
from tests.snapshots import dumped, snapshot, training
from tests.test_compare_source import A, B

EXTENSION = Path(gpuprof_widgets.__file__).parent / "views" / "extension"
AXE = EXTENSION / "node_modules" / "axe-core" / "axe.min.js"
RECORDED = Path(__file__).parent.parent / "data" / "recorded"

pytestmark = pytest.mark.skipif(not AXE.exists(), reason="npm has not installed axe-core")

VIOLATIONS = """async (part) => (await axe.run(part, {resultTypes: ["violations"]})).violations
    .flatMap(({id, help, nodes}) => nodes.map(({target}) => `${id}: ${help}: ${target.flat()}`))"""


def violations(page: Page, part: str = "html") -> list[str]:
    page.add_script_tag(path=AXE)
    found: list[str] = page.evaluate(VIOLATIONS, part)
    return found


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


def memory_snapshot(folder: Path) -> str:
    return standalone_html(load(dumped(snapshot(training()), folder)))


def two_reports(folder: Path) -> str:
    """As a notebook that is exported has them."""
    record = load(RECORDED / "activation_checkpointing_simulated_gpu.gpuprof")
    cells = "".join(
        cell_of(number, label, *outputs(label, runtime=number == 1, of=record))
        for number, label in enumerate(("first", "second"), start=1)
    )
    head = "<meta charset=utf-8><title>Two reports</title>"
    return f"<!doctype html><html lang=en>{head}<main><h1>Two reports</h1>{cells}</main>"


PAGES = [report, comparison, edited, ranks, memory_snapshot, two_reports]


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("page_of", PAGES)
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
        live = page.locator(".gpuprof-report[data-complete]")
        expect(live).to_have_count(1)
        if page_of is two_reports:
            page.locator(".jp-Cell").last.evaluate("cell => cell.scrollIntoView()")
            expect(live).to_have_count(2)
        page.evaluate(SETTLED)
    assert violations(page) == []
    page.close()


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_nothing_without_scripts(browser: Browser, tmp_path: Path, scheme: Any) -> None:
    """What an untrusted notebook shows of a report, and a mail program."""
    path = tmp_path / "page.html"
    path.write_text(report(tmp_path).split("<script>")[0], encoding="utf-8")
    page = browser.new_page(color_scheme=scheme, bypass_csp=True)
    page.goto(path.as_uri())
    assert violations(page) == []
    page.close()


def test_axe_finds_nothing_in_an_explorer_in_jupyterlab(page: Page, lab: Lab) -> None:
    runs = [str(RECORDED / f"training.rank{rank}.gpuprof") for rank in (0, 1)]
    source = f"import gpuprof_widgets\n\ngpuprof_widgets.explore(*{runs})"
    lab.run(page, "axe.ipynb", [source])
    Report.wait(page).settle()
    expect(page.get_by_role("combobox", name="Profile")).to_be_visible()
    assert violations(page, ".gpuprof-explorer, .gpuprof-report") == []
