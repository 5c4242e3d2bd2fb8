"""One profiled cell through the four states of a notebook, each seen in a real browser.

Live after running; saved and reopened without a kernel; a copy that is not trusted, with our
extension of JupyterLab and without it; HTML export without a network. In each the numbers on the
page are those of the Python profile.
"""

from __future__ import annotations

import json
import re
import shutil
from dataclasses import dataclass
from pathlib import Path

import nbformat
import pytest
from nbconvert import HTMLExporter
from nbformat.v4 import new_markdown_cell, new_notebook
from playwright.sync_api import BrowserContext, Page, Route, expect

import gpuprof_widgets
from gpuprof_widgets.views.report import REPORT_TYPE
from gpuprof_widgets.views.static_tables import op_rows
from gpuprof_widgets.views.table import cell_texts
from gpuprof_widgets.views.table_renderers import NO_BREAK
from tests.browser.conftest import Lab, Screenshot
from tests.browser.report_page import Report, expected_rows

NOTEBOOK = "profiled.ipynb"
TRAINING = """\
%%gpuprofile --name "three steps" --save profile.zip
for _ in range(3):
    loss = model(torch.rand(8, 1, 24, 24)).square().mean()
    loss.backward()
loss.item() >= 0"""
CELLS = [
    "%load_ext gpuprof_widgets",
    "import torch\n"
    "model = torch.nn.Sequential(torch.nn.Conv2d(1, 8, 3), torch.nn.ReLU(), torch.nn.Flatten(),"
    " torch.nn.Linear(8 * 22 * 22, 4))\n"
    "model(torch.rand(8, 1, 24, 24)).sum().backward()",
    TRAINING,
]


@dataclass(frozen=True)
class Profiled:
    """The saved notebook, and the profile that its cell recorded."""

    path: Path
    profile: gpuprof_widgets.Profile


@pytest.fixture
def page(any_page: Page) -> Page:
    return any_page


@pytest.fixture(scope="module")
def profiled(context: BrowserContext, lab: Lab, screenshot: Screenshot) -> Profiled:
    """Run the notebook in JupyterLab by hand, check it while it lives, save it, end its kernel."""
    page = context.new_page()
    lab.run(page, NOTEBOOK, CELLS)
    report = Report.wait(page)
    profile = gpuprof_widgets.load(lab.root / "profile.zip")
    check_report(report, profile)
    show_cell(page)
    screenshot(page, "lab-live")
    save(page, lab.root / NOTEBOOK)
    page.close()
    lab.end_kernels()
    return Profiled(lab.root / NOTEBOOK, profile)


def show_cell(page: Page) -> None:
    page.locator(".jp-CodeCell").nth(2).evaluate("cell => cell.scrollIntoView()")


def save(page: Page, path: Path) -> None:
    page.locator(".jp-CodeCell .jp-InputPrompt").first.click()
    before = path.stat().st_mtime_ns
    is_file = lambda answer: answer.request.method == "PUT" and "/api/contents/" in answer.url  # noqa: E731
    with page.expect_response(is_file):  # JupyterLab saves its layout too
        page.keyboard.press("Control+s")
    assert path.stat().st_mtime_ns > before


def open_without_kernel(page: Page, lab: Lab, notebook: str) -> None:
    """Open a notebook whose kernel cannot be started, as for a reader without the environment."""

    def refuse(route: Route) -> None:
        is_start = route.request.method == "POST"
        route.abort() if is_start else route.continue_()

    page.route(re.compile("/api/(sessions|kernels)"), refuse)
    page.goto(lab.url(notebook))
    dialog = page.locator(".jp-Dialog")
    dialog.locator("button").first.click()  # it says that no kernel could be started
    dialog.get_by_role("button", name="No Kernel").click()
    expect(dialog).to_have_count(0)
    assert json.loads(lab.api("kernels")) == []


def check_report(report: Report, profile: gpuprof_widgets.Profile) -> None:
    """Every link by hand; after each step the numbers on the page are Python's."""
    assert report.op_rows() == expected_rows(profile)
    check_brushing(report, profile)
    check_selecting(report)
    check_flame_graph(report, profile)


def check_brushing(report: Report, profile: gpuprof_widgets.Profile) -> None:
    window = report.brush(0.3, 0.7)
    span = profile.trace.span_ns
    assert 0.25 < window[0] / span < 0.35
    assert 0.65 < window[1] / span < 0.75
    assert report.op_rows() == expected_rows(profile.window(*window))
    report.page.keyboard.press("Escape")
    expect(report.range_text).to_contain_text("Whole trace")
    assert report.op_rows() == expected_rows(profile)


def check_selecting(report: Report) -> None:
    """A row highlights all its calls; the keyboard goes on to the next row; Escape lets go."""
    row = report.table.locator("tbody tr", has_text="aten::conv2d").first
    calls = row.locator("[data-column=calls]").inner_text()
    row.click()
    expect(report.table.locator("[aria-selected=true]")).to_contain_text("aten::conv2d")
    expect(report.selection_text).to_contain_text(f"aten::conv2d{calls} events highlighted")
    report.page.keyboard.press("ArrowDown")
    report.page.keyboard.press("Enter")
    expect(report.table.locator("[aria-selected=true]")).not_to_contain_text("aten::conv2d")
    report.timeline.focus()
    report.page.keyboard.press("Escape")
    expect(report.selection_text).to_contain_text("Nothing selected")


def check_flame_graph(report: Report, profile: gpuprof_widgets.Profile) -> None:
    """The widest bar below the root is the whole profile; clicking it selects it everywhere."""
    report.flame_graph.scroll_into_view_if_needed()
    box = report.flame_graph.bounding_box()
    assert box is not None
    tree = profile.call_tree()
    widest = tree.loc[tree["depth"] == 1].sort_values("total_ns").iloc[-1]
    report.flame_graph.click(position={"x": 5, "y": 28})
    expect(report.selection_text).to_contain_text(str(widest["name"]))
    crumbs = report.page.get_by_label("Zoomed path").get_by_role("button")
    expect(crumbs).to_have_count(2)
    report.page.keyboard.press("Escape")
    expect(report.selection_text).to_contain_text("Nothing selected")
    report.page.keyboard.press("Escape")
    expect(crumbs).to_have_count(1)
    report.page.keyboard.press("Backspace")
    expect(crumbs).to_have_count(2)
    report.page.keyboard.press("Backspace")
    expect(report.selection_text).to_contain_text(str(widest["name"]))
    report.page.keyboard.press("Escape")
    report.page.keyboard.press("Escape")
    expect(crumbs).to_have_count(1)


def test_live_after_running(profiled: Profiled) -> None:
    """The checks ran in the fixture, before the notebook was saved; here: what it left behind."""
    cell = nbformat.read(profiled.path, as_version=4).cells[2]
    # A progress line that was there leaves an output without data.
    assert [sorted(output.data) for output in cell.outputs if output.data] == [
        ["text/html", "text/plain"],
        ["image/png", "text/plain"],
        ["application/javascript", REPORT_TYPE, "text/plain"],
        ["text/plain"],
    ]
    assert cell.outputs[-1].data["text/plain"] == "True"


def test_reopened_without_a_kernel(profiled: Profiled, page: Page, lab: Lab) -> None:
    open_without_kernel(page, lab, NOTEBOOK)
    check_report(Report.wait(page), profiled.profile)


def test_reopened_without_the_extension(profiled: Profiled, page: Page, plain_lab: Lab) -> None:
    """In a notebook that is trusted the script that it carries shows the views."""
    notebook = nbformat.read(profiled.path, as_version=4)
    notebook.cells.append(new_markdown_cell("Another notebook: trust goes by what one holds."))
    nbformat.write(notebook, plain_lab.root / "trusted.ipynb")
    plain_lab.trust("trusted.ipynb")
    page.goto(plain_lab.url("trusted.ipynb"))
    check_report(Report.wait(page), profiled.profile)


def test_untrusted_copy_is_live_where_the_extension_is_installed(
    profiled: Profiled, page: Page, other_lab: Lab, screenshot: Screenshot
) -> None:
    shutil.copy(profiled.path, other_lab.root / "received.ipynb")
    page.goto(other_lab.url("received.ipynb"))
    report = Report.wait(page)
    expect(page.locator(".gpuprof-static")).to_be_hidden()
    expect(page.locator(".jp-OutputArea-output > img")).to_be_hidden()
    check_report(report, profiled.profile)
    assert page.evaluate("Object.keys(window.gpuprof).sort()") == [
        f"jupyterlab-{gpuprof_widgets.__version__}",
        "stores",
    ]
    show_cell(page)
    screenshot(page, "lab-untrusted-live")


def test_untrusted_copy_shows_findings_table_and_picture(
    profiled: Profiled, page: Page, plain_lab: Lab, screenshot: Screenshot
) -> None:
    shutil.copy(profiled.path, plain_lab.root / "received.ipynb")
    plain_lab.use_theme("JupyterLab Dark")
    page.goto(plain_lab.url("received.ipynb"))
    static = page.locator(".gpuprof-static")
    sentence = re.escape(profiled.profile.findings()[0].text.replace("`", ""))
    expect(static.locator("li").first).to_have_text(re.compile(sentence.replace(r"\ ", r"\s")))
    assert shown_table(page) == static_table(profiled.profile)
    picture = page.locator(".jp-OutputArea-output img")
    expect(picture).to_be_visible()
    assert picture.evaluate("image => image.naturalWidth") == 1200
    assert page.locator(".gpuprof-report").count() == 0
    assert page.evaluate("window.gpuprof") is None
    screenshot(page, "lab-untrusted-dark")


def shown_table(page: Page) -> list[list[str]]:
    rows: list[list[str]] = page.locator(
        ".gpuprof-static table", has_text="CPU self"
    ).last.evaluate(
        "table => Array.from(table.rows, row => Array.from(row.cells, cell => cell.innerText))"
    )
    return [[cell.replace(NO_BREAK, " ") for cell in row] for row in rows]


def static_table(profile: gpuprof_widgets.Profile) -> list[list[str]]:
    table = op_rows(profile, sort="device_self", top=15)
    texts = (cell_texts(table, column) for column in table.columns)
    return [[column.label for column in table.columns], *map(list, zip(*texts, strict=True))]


def test_html_export_is_interactive_without_a_network(
    profiled: Profiled, page: Page, tmp_path: Path, screenshot: Screenshot
) -> None:
    notebook = nbformat.read(profiled.path, as_version=4)
    own = requests_of(page, exported(new_notebook(), tmp_path / "empty.html"))
    ours = requests_of(page, exported(notebook, tmp_path / "profiled.html"))
    assert ours == own, "the report asked the network for something"
    check_report(Report.wait(page), profiled.profile)
    show_cell(page)
    screenshot(page, "exported")


def exported(notebook: nbformat.NotebookNode, path: Path) -> Path:
    path.write_text(HTMLExporter().from_notebook_node(notebook)[0], encoding="utf-8")
    return path


def requests_of(page: Page, file: Path) -> list[str]:
    """Open the file with the network cut; what it asked for: nbconvert's page wants MathJax."""
    asked: list[str] = []
    page.unroute_all()
    page.route(
        re.compile("^https?:"), lambda route: (asked.append(route.request.url), route.abort())
    )
    page.goto(file.as_uri())
    page.wait_for_load_state("networkidle")
    return asked
