"""How reports start on a page with several cells, with and without the library at hand."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import bokeh
import pytest
from playwright.sync_api import Browser, Page, expect

from gpuprof_widgets.trace.model import Record
from gpuprof_widgets.views import models
from gpuprof_widgets.views.report import live_script
from tests.traces import op, trace_of

PIXEL = "data:image/gif;base64,R0lGODlhAQABAAAAACw="


@pytest.fixture
def page(browser: Browser) -> Iterator[Page]:
    page = browser.new_page(viewport={"width": 1200, "height": 900})
    yield page
    page.close()


def record(label: str) -> Record:
    return trace_of(op(f"aten::{label}", ts=0, dur=1000), label=label)


def cell(number: int, label: str, *, runtime: bool) -> str:
    """One cell as nbconvert writes it: two static outputs and the script."""
    script = live_script(record(label), sort="cpu_self", embed_runtime=runtime)
    return f"""<div class="jp-Cell jp-CodeCell"><div class="jp-OutputArea">
      <div class="jp-OutputArea-child"><p class="stdout">printed by {label}</p></div>
      <div class="jp-OutputArea-child"><div class="gpuprof-static">static {label}</div></div>
      <div class="jp-OutputArea-child"><img alt="picture {label}" src="{PIXEL}"></div>
      <div class="jp-OutputArea-child"><div id="out{number}"><script>
        var element = document.getElementById("out{number}");
        {script}
      </script></div></div>
    </div></div>"""


def show(page: Page, folder: Path, *cells: str) -> None:
    path = folder / "notebook.html"
    path.write_text("<!doctype html><meta charset=utf-8>" + "".join(cells), encoding="utf-8")
    page.goto(path.as_uri())


def test_library_of_a_later_cell_serves_an_earlier_one(page: Page, tmp_path: Path) -> None:
    show(page, tmp_path, cell(1, "early", runtime=False), cell(2, "late", runtime=True))
    tables = page.get_by_role("table", name="Operators")
    expect(tables).to_have_count(2)
    expect(tables.first).to_contain_text("aten::early")
    expect(tables.last).to_contain_text("aten::late")
    assert len(page.evaluate("Object.keys(window.gpuprof.reports)")) == 2


def test_library_is_started_once(page: Page, tmp_path: Path) -> None:
    show(page, tmp_path, cell(1, "a", runtime=True), cell(2, "b", runtime=True))
    expect(page.get_by_role("table", name="Operators")).to_have_count(2)
    stores = "Object.values(window.gpuprof.reports)"
    assert page.evaluate(f"{stores}[0].constructor === {stores}[1].constructor")


def test_report_hides_the_static_outputs_of_its_own_cell_alone(page: Page, tmp_path: Path) -> None:
    show(page, tmp_path, cell(1, "live", runtime=True), cell(2, "broken", runtime=False))
    expect(page.get_by_role("table", name="Operators").first).to_be_visible()
    expect(page.get_by_text("static live")).to_be_hidden()
    expect(page.get_by_alt_text("picture live")).to_be_hidden()
    expect(page.get_by_text("printed by live")).to_be_visible()
    expect(page.get_by_text("printed by broken")).to_be_visible()


def test_missing_library_leaves_the_static_part_and_says_what_to_do(
    page: Page, tmp_path: Path
) -> None:
    show(page, tmp_path, cell(1, "alone", runtime=False))
    expect(page.get_by_text("run this cell again")).to_be_visible()
    expect(page.get_by_text("static alone")).to_be_visible()
    expect(page.get_by_alt_text("picture alone")).to_be_visible()


def test_other_bokeh_of_the_page_is_left_alone(page: Page, tmp_path: Path) -> None:
    theirs = "<script>window.Bokeh = {version: '0.0.1', __bokeh__: true, mine: true}</script>"
    show(page, tmp_path, theirs, cell(1, "a", runtime=True))
    expect(page.get_by_role("table", name="Operators")).to_be_visible()
    assert page.evaluate("window.Bokeh.mine && window.Bokeh.version === '0.0.1'")


def test_models_have_the_same_properties_in_both_languages(page: Page) -> None:
    package = Path(models.__file__).parents[1]
    library = Path(bokeh.__file__).parent / "server" / "static" / "js" / "bokeh.min.js"
    page.add_script_tag(path=library)
    page.add_script_tag(path=package / "dist" / "gpuprof_widgets.min.js")
    for name in ("TraceStore", "Timeline", "Minimap", "FlameGraph", "ReportHeader", "TimelineBar",
                 "Details", "FlameBar", "OpTable", "EngineeringTimeFormatter", "StoreGroup",
                 "GroupHeader", "StaticPart", "TimelineTitle", "DiffGraph", "DiffBar",
                 "DeltaTable"):  # fmt: skip
        ours = getattr(models, name)
        script = f'Object.keys(Bokeh.Models.get("{ours.__qualified_model__}").prototype._props)'
        assert set(page.evaluate(script)) == set(ours.properties()), name
