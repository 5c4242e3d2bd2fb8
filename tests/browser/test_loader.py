"""How reports start on a page with several cells, with and without the library at hand."""

from __future__ import annotations

from html import escape
from importlib.resources import files
from pathlib import Path

import pytest
from playwright.sync_api import Locator, Page, expect

from gpuprof_widgets.trace.model import Record
from gpuprof_widgets.views.page import page_uid, report_page
from gpuprof_widgets.views.report import Picture, page_script, three_outputs
from tests.browser.report_page import Report, too_faint
from tests.traces import op, trace_of

PIXEL = "data:image/gif;base64,R0lGODlhAQABAAAAACw="


@pytest.fixture
def page(any_page: Page) -> Page:
    return any_page


def record(label: str) -> Record:
    return trace_of(op(f"aten::{label}", ts=0, dur=1000), label=label)


def outputs(label: str, *, runtime: bool, of: Record | None = None) -> tuple[str, str]:
    """The first and the last output of a cell: HTML without script, and the script."""
    static = {"text/html": f'<div class="gpuprof-static">static {label}</div>'}
    page = report_page(of or record(label), sort="cpu_self")
    html, _, script = three_outputs(static, Picture(b"", "", 1), page, embed_runtime=runtime)
    return html["text/html"], script["application/javascript"]


def cell(number: int, label: str, *, runtime: bool) -> str:
    """One cell as nbconvert writes it: two static outputs and the script."""
    return cell_of(number, label, *outputs(label, runtime=runtime))


def cell_of(number: int, label: str, static: str, script: str) -> str:
    return f"""<div class="jp-Cell jp-CodeCell"><div class="jp-OutputArea">
      <div class="jp-OutputArea-child"><p class="stdout">printed by {label}</p></div>
      <div class="jp-OutputArea-child">{static}</div>
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
    tables = page.get_by_role("table", name="Op table")
    expect(tables).to_have_count(2)
    expect(tables.first).to_contain_text("aten::early")
    expect(tables.last).to_contain_text("aten::late")
    assert len(page.evaluate("Object.keys(window.gpuprof.reports)")) == 2
    stores = "Object.values(window.gpuprof.reports)"
    assert page.evaluate(f"{stores}[0].constructor === {stores}[1].constructor")  # started once
    for label in ("early", "late"):
        expect(page.get_by_text(f"static {label}")).to_be_hidden()
        expect(page.get_by_alt_text(f"picture {label}")).to_be_hidden()
        expect(page.get_by_text(f"printed by {label}")).to_be_visible()


SEEN_IN_EVERY_TASK = """
let parts = 0
let has_canvas = false
const create = document.createElement
document.createElement = function(name, ...more) {
    parts += name == "script"
    has_canvas ||= name == "canvas" && document.querySelector(".gpuprof-report") != null
    return create.call(this, name, ...more)
}
window.seen = new Set()
const {port1, port2} = new MessageChannel()
port1.onmessage = () => {
    const has_views = document.querySelector(".gpuprof-report")?.firstElementChild != null
    window.found_too_early ||= !has_views && Object.keys(window.gpuprof?.reports ?? {}).length > 0
    window.seen.add(has_views ? "views" : has_canvas ? "canvas" : `${parts} parts`)
    if (!has_views) {
        port2.postMessage(null)
    }
}
port2.postMessage(null)
"""


def test_the_browser_answers_between_parts_and_between_building_views_and_painting_them(
    page: Page, tmp_path: Path
) -> None:
    page.add_init_script(SEEN_IN_EVERY_TASK)
    show(page, tmp_path, cell(1, "a", runtime=True))
    page.wait_for_function("window.seen.has('views')")
    assert page.evaluate("[...window.seen]") == ["0 parts", "1 parts", "2 parts", "canvas", "views"]
    # An explorer finds a report once it is painted.
    page.wait_for_function("Object.keys(window.gpuprof.reports).length == 1")
    assert not page.evaluate("window.found_too_early")


IN_A_SHADOW = """async ([esm, uid, script]) => {
    const url = URL.createObjectURL(new Blob([esm], {type: "text/javascript"}))
    const {default: {render}} = await import(url)
    const state = {_uid: uid, _is_merged: false, _names: [], _steps: []}, of = new Map()
    const el = document.createElement("div"), host = document.createElement("div")
    document.body.append(host)
    host.attachShadow({mode: "open"}).append(el)
    const send = () => of.get("msg:custom")({report: uid}, [new TextEncoder().encode(script)])
    const on = (name, to) => of.set(name, to)
    render({el, model: {get: (name) => state[name], on, off() {}, send}})
}"""


def test_an_explorer_in_a_shadow_root_as_in_marimo_shows_its_report(
    page: Page, tmp_path: Path
) -> None:
    show(page, tmp_path, "<p>above</p>")
    data = report_page(record("shadow"), sort="cpu_self")
    module = files("gpuprof_widgets.views").joinpath("explorer.js").read_text()
    page.evaluate(IN_A_SHADOW, [module, page_uid(data), page_script(data, embed_runtime=True)])
    table = page.get_by_role("table", name="Op table").first
    expect(table).to_contain_text("aten::shadow")
    assert page.locator(".gpuprof-explorer .gpuprof-report").bounding_box() is not None
    assert page.evaluate("document.querySelector('.gpuprof-report').closest('[slot]') != null")


def test_missing_library_leaves_the_static_part_and_says_what_to_do(
    page: Page, tmp_path: Path
) -> None:
    show(page, tmp_path, cell(1, "alone", runtime=False))
    message = page.get_by_text("Run this cell again, unchanged")
    expect(message).to_be_visible()
    expect(page.get_by_text("static alone")).to_be_visible()
    assert top(message) < top(page.get_by_text("static alone"))
    expect(page.get_by_alt_text("picture alone")).to_be_visible()
    # A library that comes later takes the message back.
    page.evaluate(outputs("late", runtime=True)[1])
    expect(page.get_by_role("table", name="Op table").first).to_contain_text("aten::alone")
    expect(page.locator(".gpuprof-message")).to_have_count(0)


def top(locator: Locator) -> float:
    box = locator.bounding_box()
    assert box is not None
    return box["y"]


RUN_AGAIN = """([html, js]) => {
    const area = document.querySelector(".jp-OutputArea")
    area.innerHTML = `<div>${html}</div><div></div>`
    const element = area.lastElementChild
    eval(js)
}"""
"""JupyterLab takes the elements of the earlier outputs out of the page, and adds new ones."""


def test_reports_that_left_the_page_are_let_go(page: Page, tmp_path: Path) -> None:
    show(page, tmp_path, '<div class="jp-Cell"><div class="jp-OutputArea"></div></div>')
    for number in range(20):
        page.evaluate(RUN_AGAIN, outputs(f"run{number}", runtime=number == 0))
        table = page.get_by_role("table", name="Op table")
        expect(table).to_contain_text(f"aten::run{number}")
    # The last; and the first, while V8 has getters of Bokeh's objects in the shape of later ones.
    wait_for_stores(page, 2)
    assert page.locator(".bk-Notifications").count() == 0  # Bokeh puts it beside the cell
    page.evaluate("document.querySelector('.jp-OutputArea').replaceChildren()")
    wait_for_stores(page, 0)


def wait_for_stores(page: Page, count: int) -> None:
    """Collect garbage until at most so many traces are left; a task of the page may hold one."""
    session = page.context.new_cdp_session(page)
    for _ in range(50):
        session.send("HeapProfiler.collectGarbage")
        left = page.evaluate("Object.keys(window.gpuprof.reports).length")
        if left <= count:
            break
        page.wait_for_timeout(200)
    assert left <= count


def test_a_report_that_comes_back_lives_as_before(page: Page, tmp_path: Path) -> None:
    """JupyterLab may take cells out of the page that are scrolled away."""
    schemes = "<style>:root { color-scheme: light dark }</style>"
    show(page, tmp_path, schemes, '<div class="jp-Cell"><div class="jp-OutputArea"></div></div>')
    page.evaluate(RUN_AGAIN, outputs("kept", runtime=True))
    report = Report.wait(page)
    window = report.brush(0.3, 0.7)
    page.evaluate("() => { window.kept = document.querySelector('.jp-Cell'); kept.remove() }")
    wait_for_stores(page, 1)
    page.evaluate("document.body.append(window.kept)")
    assert report.brushed() == window
    assert report.brush(0.1, 0.5) != window
    report.use_scheme("dark")


def test_a_report_of_an_older_version_on_the_page_is_left_alone(page: Page, tmp_path: Path) -> None:
    older = """<script>
        window.gpuprof = {
            views: {}, reports: {}, runtime: new Promise(() => {}), loading: new Promise(() => {})
        }
    </script>"""
    show(page, tmp_path, older, cell(1, "a", runtime=True), cell(2, "b", runtime=False))
    expect(page.get_by_role("table", name="Op table")).to_have_count(2)
    expect(page.locator(".gpuprof-message")).to_have_count(0)


def test_other_bokeh_of_the_page_is_left_alone(page: Page, tmp_path: Path) -> None:
    theirs = "<script>window.Bokeh = {version: '0.0.1', __bokeh__: true, mine: true}</script>"
    show(page, tmp_path, theirs, cell(1, "a", runtime=True))
    expect(page.get_by_role("table", name="Op table")).to_be_visible()
    assert page.evaluate("window.Bokeh.mine && window.Bokeh.version === '0.0.1'")


def add_vscode(page: Page) -> None:
    page.add_script_tag(path=Path(__file__).with_name("vscode_renderer.js"))


def render_in_vscode(page: Page, script_order: str, *cells: tuple[str, str]) -> None:
    """Render cells as VS Code does, each [summary, picture, script] in an order like "012"."""
    order = [int(number) for number in script_order]
    for html, script in cells:
        contents = [["html", html], ["image", PIXEL], ["javascript", script]]
        page.evaluate("([contents, order]) => renderCell(contents, order)", [contents, order])


@pytest.mark.parametrize("order", ["012", "210"])
def test_modules_find_their_cells(page: Page, tmp_path: Path, order: str) -> None:
    """VS Code runs scripts as modules, which are not told where they stand."""
    show(page, tmp_path, "")
    add_vscode(page)
    cells = [outputs("first", runtime=True), outputs("second", runtime=False)]
    render_in_vscode(page, order, *cells)
    for number, label in enumerate(("first", "second")):
        cell = page.locator(".cell_container").nth(number)
        expect(cell.get_by_role("table", name="Op table")).to_contain_text(f"aten::{label}")
        expect(cell.get_by_text(f"static {label}")).to_be_hidden()
        expect(cell.locator(".display img")).to_be_hidden()
    expect(page.locator(".gpuprof-report")).to_have_count(2)


VSCODE_THEMES = {
    "vscode-dark": ("notebook-editorBackground", "#1f1f1f", "#cccccc"),
    "vscode-light": ("notebook-editorBackground", "#ffffff", "#3b3b3b"),
    "vscode-high-contrast": ("editor-background", "#000000", "#ffffff"),
    "vscode-high-contrast-light": ("editor-background", "#ffffff", "#292929"),
}
"""The variable that names what lies behind VS Code's page, its colour, and that of the text.

Themes of high contrast do not set the variable of notebooks.
"""


def test_a_report_is_legible_in_every_theme_of_vscode(page: Page, tmp_path: Path) -> None:
    """The first is there when the report starts, the others are chosen while it is open."""
    show(page, tmp_path, "")
    add_vscode(page)
    use_vscode_theme(page, "vscode-dark")
    render_in_vscode(page, "012", outputs("themed", runtime=True))
    Report.wait(page)
    for kind in VSCODE_THEMES:
        under = use_vscode_theme(page, kind)
        shown = f"{BACKGROUND} == '{','.join(map(str, under))}'"
        page.wait_for_function(shown, timeout=10_000)
        assert too_faint(page, under) == []


BACKGROUND = "Object.values(window.gpuprof.reports)[0].theme.palette.background"


def use_vscode_theme(page: Page, kind: str) -> list[int]:
    """Choose a theme and return the colour that is seen through the page then."""
    variable, background, text = VSCODE_THEMES[kind]
    variables = {variable: background, "editor-foreground": text}
    page.evaluate("([kind, variables]) => useTheme(kind, variables)", [kind, variables])
    return list(bytes.fromhex(background[1:]))


def test_a_copied_cell_has_a_report_of_its_own(page: Page, tmp_path: Path) -> None:
    show(page, tmp_path, "")
    add_vscode(page)
    copied = outputs("copied", runtime=True)
    render_in_vscode(page, "012", copied, copied)
    for number in range(2):
        cell = page.locator(".cell_container").nth(number)
        expect(cell.get_by_role("table", name="Op table")).to_have_count(1)


def test_a_copied_cell_of_scripts_that_know_their_place(page: Page, tmp_path: Path) -> None:
    copied = outputs("copied", runtime=True)
    show(page, tmp_path, cell_of(1, "a", *copied), cell_of(2, "b", *copied))
    for number in range(2):
        cell = page.locator(".jp-Cell").nth(number)
        expect(cell.get_by_role("table", name="Op table")).to_have_count(1)
        expect(cell.get_by_text("static copied")).to_be_hidden()


def test_a_module_alone_in_its_frame_shows_its_report(page: Page, tmp_path: Path) -> None:
    _, script = outputs("framed", runtime=True)
    framed = f'<!doctype html><body><script type="module">{script}</script>'
    show(page, tmp_path, f'<iframe width=1000 height=800 srcdoc="{escape(framed)}"></iframe>')
    table = page.frame_locator("iframe").get_by_role("table", name="Op table")
    expect(table).to_contain_text("aten::framed")
