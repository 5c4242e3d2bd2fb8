"""Pages as axe-core judges them: it knows the rules of WCAG that a program can check."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Literal

import pytest
from playwright.sync_api import Page, expect

import gpuprof_widgets
from gpuprof_widgets.trace.readers import load
from gpuprof_widgets.views.report import standalone_html
from tests.browser.conftest import Lab, as_new
from tests.browser.report_page import SETTLED, Report
from tests.browser.test_loader import cell_of, outputs
from tests.browser.test_narrow_pages import comparison, edited, ranks, report
from tests.snapshots import dumped, snapshot, training

EXTENSION = Path(gpuprof_widgets.__file__).parent / "views" / "extension"
AXE = EXTENSION / "node_modules" / "axe-core" / "axe.min.js"
RECORDED = Path(__file__).parent.parent / "data" / "recorded"

pytestmark = pytest.mark.skipif(not AXE.exists(), reason="npm has not installed axe-core")

VIOLATIONS = """async (part) => (await axe.run(part, {resultTypes: ["violations"]})).violations
    .flatMap(({id, help, nodes}) => nodes.map(({target}) => `${id}: ${help}: ${target.flat()}`))"""


def violations(page: Page, part: str = "html") -> list[str]:
    found: list[str] = page.evaluate(VIOLATIONS, part)
    return found


def memory_snapshot() -> str:
    with TemporaryDirectory() as folder:
        return standalone_html(load(dumped(snapshot(training()), Path(folder))))


def two_reports() -> str:
    """As a notebook that is exported has them."""
    record = load(RECORDED / "activation_checkpointing_simulated_gpu.gpuprof")
    cells = "".join(
        cell_of(number, label, *outputs(label, runtime=number == 1, of=record))
        for number, label in enumerate(("first", "second"), start=1)
    )
    head = "<meta charset=utf-8><title>Two reports</title>"
    return f"<!doctype html><html lang=en>{head}<main><h1>Two reports</h1>{cells}</main>"


SCHEMES: tuple[Literal["light"], Literal["dark"]] = ("light", "dark")
PAGES = [report, comparison, edited, ranks, memory_snapshot, two_reports]


@pytest.mark.parametrize("page_of", PAGES)
def test_axe_finds_nothing(offline_page: Page, tmp_path: Path, page_of: Callable[[], str]) -> None:
    path = tmp_path / "page.html"
    path.write_text(page_of(), encoding="utf-8")
    with as_new(offline_page):
        page = offline_page
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
        page.add_script_tag(path=AXE)
        for scheme in SCHEMES[: 1 if page_of is two_reports else 2]:  # what is exported is light
            Report(page).use_scheme(scheme)
            assert violations(page) == []


def test_axe_finds_nothing_without_scripts(offline_page: Page, tmp_path: Path) -> None:
    """What an untrusted notebook shows of a report, and a mail program."""
    path = tmp_path / "page.html"
    path.write_text(report().split("<script>")[0], encoding="utf-8")
    with as_new(offline_page):
        offline_page.goto(path.as_uri())
        offline_page.add_script_tag(path=AXE)
        for scheme in SCHEMES:
            offline_page.emulate_media(color_scheme=scheme)
            assert violations(offline_page) == []


def test_axe_finds_nothing_in_an_explorer_in_jupyterlab(page: Page, lab: Lab) -> None:
    runs = [str(RECORDED / f"training.rank{rank}.gpuprof") for rank in (0, 1)]
    source = f"import gpuprof_widgets\n\ngpuprof_widgets.explore(*{runs})"
    lab.run(page, "axe.ipynb", [source])
    Report.wait(page).settle()
    expect(page.get_by_role("combobox", name="Profile")).to_be_visible()
    page.add_script_tag(path=AXE)
    assert violations(page, ".gpuprof-explorer, .gpuprof-report") == []
