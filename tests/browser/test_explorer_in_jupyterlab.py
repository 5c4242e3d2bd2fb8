"""`profile.explore()` in JupyterLab and Notebook 7: page and Python in step, and reopened."""

from __future__ import annotations

import re
import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
from playwright.sync_api import Locator, Page, expect

from gpuprof_widgets import Profile, load
from tests.browser.conftest import RUN_MS, Lab
from tests.browser.report_page import Report, expected_rows
from tests.browser.test_jupyterlab import open_without_kernel, save
from tests.browser.test_views import by_gpu_time

RECORDED = Path(__file__).parents[1] / "data" / "recorded"
NOTEBOOK = "explored.ipynb"
QUERY = "name in ('aten::addmm', 'aten::relu')"  # no row of the op table has the slices of both
CELLS = [
    f"%load_ext gpuprof_widgets\nimport ipywidgets, torch\nQUERY = {QUERY!r}",
    "%%gpuprofile --quiet -o run\n"
    "model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU())\n"
    "for _ in range(20):\n"
    "    model(torch.rand(8, 64)).square().mean().backward()",
    "explorer = run.explore()\nexplorer",
    "label = ipywidgets.Label()\n"
    "def tell(explorer):\n"
    "    names = set(explorer.selection['name'])\n"
    "    calls = explorer.operators().calls.sum()\n"
    "    label.value = f'{explorer.range} {len(explorer.selection)} {names} {calls}'\n"
    "explorer.on_change(tell)\n"
    "label",
    "end = run.trace.end_ns\nexplorer.range = (end // 4, end // 2)\nexplorer.selection = QUERY",
    "slider = ipywidgets.IntRangeSlider(min=0, max=end)\n"
    "ipywidgets.link((explorer, 'range'), (slider, 'value'))\n"
    "ipywidgets.VBox([slider, explorer])",
]
MERGED = "merged.ipynb"
CHOSEN = "chosen.ipynb"
CHOOSING_CELLS = [
    CELLS[0],
    "%%gpuprofile --explore -o run --steps 3 --warmup 1\n"
    "model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU())\n"
    "for _ in range(9):\n"
    "    model(torch.rand(8, 64)).square().mean().backward()",
    "label = ipywidgets.Label()\n"
    "def tell(_=None):\n"
    "    e = explorer\n"
    "    label.value = f'{e.step} {e.search!r} {e.sort} {e.group_by} {e.metric}'\n"
    "explorer.observe(tell)\n"
    "tell()\n"
    "label",
    "explorer.search, explorer.group_by, explorer.sort = '/addmm|relu/', 'name', 'cpu_total'",
    "%gpuprofile -q -o other torch.rand(8, 8).cosh()",
    "import gpuprof_widgets\nboth = gpuprof_widgets.explore(run, other)\nboth",
    "label_of_both = ipywidgets.Label()\n"
    "def tell_of_both(both):\n"
    "    label_of_both.value = f'{both.profile_name} {both.range} {len(both.operators())}'\n"
    "both.on_change(tell_of_both)\n"
    "label_of_both",
]
RANKS = "ranks.ipynb"
RANK_CELLS = [
    "import gpuprof_widgets, ipywidgets\n"
    "explorer = gpuprof_widgets.ranks('two_ranks').explore()\n"
    "explorer",
    "label = ipywidgets.Label()\n"
    "def tell(_=None):\n"
    "    label.value = f'{explorer.profile_name} {len(explorer.operators())}'\n"
    "explorer.on_change(tell)\n"
    "label",
    "explorer.profile_name = 'rank 0'",
]
GPU = "gpu.ipynb"
GPU_CELLS = [
    "import gpuprof_widgets, ipywidgets\n"
    "explorer = gpuprof_widgets.load('gpu.gpuprof').explore()\n"
    "explorer",
    "label = ipywidgets.Label()\n"
    "ipywidgets.dlink((explorer, 'metric'), (label, 'value'), str)\n"
    "label",
    "explorer.metric = 'cpu'",
    "explorer.show(explorer.findings()[2])",
]
REPORT_SENT = re.compile(rb'"report": ?"')
"""What a message with a report's script names, and no other message to the page."""
SMALL_BUDGET = (
    "import functools, gpuprof_widgets.explorer as home\n"
    "home.report_page = functools.partial(home.report_page, budget_bytes=3_000)"
)
WIDGET_ERRORS = re.compile("Loading widget|Error displaying widget|model not found")
STATE = """() => {
    const store = Object.values(window.gpuprof.reports)[0]
    const {window: range, selection} = store
    const names = Array.from(selection?.rows ?? [], row => store.data.name(row))
    return {range, source: selection?.source, names: [...new Set(names)]}
}"""


@dataclass(frozen=True)
class Notebook:
    """The notebook in JupyterLab, whose cells run one after the other."""

    page: Page

    def run(self, number: int) -> Locator:
        """Run a cell (from 1 on) and return it."""
        cell = self.page.locator(".jp-CodeCell").nth(number - 1)
        cell.locator(".cm-content").click()
        self.page.keyboard.press("Shift+Enter")
        prompt = cell.locator(".jp-InputPrompt")
        expect(prompt).to_have_text(re.compile(r"\[\d+\]:"), timeout=RUN_MS)
        return cell


@pytest.fixture
def page(any_page: Page) -> Page:
    return any_page


@pytest.mark.parametrize("front_end", ["lab", "notebook7"])
def test_page_and_python_are_in_step_and_a_reopened_notebook_has_the_plain_report(
    page: Page, front_end: str, request: pytest.FixtureRequest
) -> None:
    lab: Lab = request.getfixturevalue(front_end)
    path = lab.root / NOTEBOOK
    lab.write(NOTEBOOK, CELLS)
    lab.open(page, NOTEBOOK)
    notebook = Notebook(page)
    for number in (1, 2):
        notebook.run(number)
    cell = notebook.run(3)
    report = Report.wait(page)
    expect(page.locator(".gpuprof-report")).to_have_count(1)
    check_page_tells_python(notebook, report)
    check_python_tells_page(notebook)
    check_beside_a_slider(notebook)
    expect(cell.locator(".gpuprof-report")).to_have_count(1)
    save(page, path)
    lab.end_kernels()
    check_without_kernel(page, lab)


def test_a_report_with_merged_events_is_replaced_by_one_that_has_all(page: Page, lab: Lab) -> None:
    """It is sent once, as bytes; brushing sends what is brushed and no more of the trace."""
    received: list[bytes] = []
    page.on("websocket", lambda socket: socket.on("framereceived", note_bytes(received)))
    lab.write(MERGED, [f"{CELLS[0]}\n{SMALL_BUDGET}", *CELLS[1:4]])
    lab.open(page, MERGED)
    notebook = Notebook(page)
    for number in (1, 2):
        notebook.run(number)
    cell = notebook.run(3)
    expect(cell.locator(".gpuprof-explorer .gpuprof-report")).to_have_count(1)
    expect(cell.locator(".gpuprof-report")).to_have_count(1)
    report = Report.wait(page)
    assert report.state("store.rows_kept")
    sent = len(received)
    check_page_tells_python(notebook, report)
    [script] = [frame for frame in received if REPORT_SENT.search(frame)]
    assert len(script) > 100_000
    assert len(received) > sent
    assert max(map(len, received[sent:])) < 10_000


def note_bytes(received: list[bytes]) -> Callable[[bytes | str], None]:
    def note(frame: bytes | str) -> None:
        received.append(frame if isinstance(frame, bytes) else frame.encode())

    return note


def test_a_rank_is_chosen_in_page_and_in_python(page: Page, lab: Lab) -> None:
    folder = lab.root / "two_ranks"
    folder.mkdir()
    profiles = []
    for rank in (0, 1):
        name = f"training.rank{rank}.gpuprof"
        shutil.copy(RECORDED / name, folder)
        profiles.append(load(folder / name))
    lab.write(RANKS, RANK_CELLS)
    lab.open(page, RANKS)
    notebook = Notebook(page)
    cell = notebook.run(1)
    label = notebook.run(2).locator(".widget-label")
    report = Report.wait(page)
    assert report.op_rows() == expected_rows(profiles[0])
    choice = cell.get_by_role("combobox", name="Rank")
    choice.select_option("rank 1")
    expect(label).to_have_text(f"rank 1 {len(profiles[1].operators())}")
    choice.press("m")  # JupyterLab's key for a cell of Markdown
    expect(cell.locator(".gpuprof-report")).to_have_count(1)
    expect_rows(report, expected_rows(profiles[1]))
    notebook.run(3)
    expect(choice).to_have_value("rank 0")
    expect(label).to_have_text(f"rank 0 {len(profiles[0].operators())}")
    expect_rows(report, expected_rows(profiles[0]))
    expect(cell.locator(".gpuprof-report")).to_have_count(1)


def expect_rows(report: Report, rows: dict[str, tuple[int, ...]]) -> None:
    """Wait until another report with these rows has come."""
    end = time.monotonic() + 60
    while report.op_rows() != rows and time.monotonic() < end:
        report.page.wait_for_timeout(200)
    assert report.op_rows() == rows


def test_the_choices_of_page_and_python_are_the_same(page: Page, lab: Lab) -> None:
    lab.write(CHOSEN, CHOOSING_CELLS)
    lab.open(page, CHOSEN)
    notebook = Notebook(page)
    notebook.run(1)
    cell = notebook.run(2)
    Report.wait(page)
    label = notebook.run(3).locator(".widget-label")
    expect(label).to_have_text("None '' cpu_self name cpu")
    check_steps(notebook, cell, label)
    check_choices(notebook, cell, label)
    check_profiles(notebook)


def test_time_and_finding_are_chosen_in_page_and_in_python(page: Page, lab: Lab) -> None:
    record = by_gpu_time()
    Profile(record.trace, record.calls, record.metadata).save(str(lab.root / "gpu.gpuprof"))
    lab.write(GPU, GPU_CELLS)
    lab.open(page, GPU)
    notebook = Notebook(page)
    cell = notebook.run(1)
    label = notebook.run(2).locator(".widget-label")
    expect(label).to_have_text("cpu")
    width = cell.get_by_role("group", name="Width")
    width.get_by_role("button", name="GPU time").click()
    expect(label).to_have_text("device")
    notebook.run(3)
    expect(width.get_by_role("button", pressed=True)).to_have_text("CPU time")
    expect(label).to_have_text("cpu")
    notebook.run(4)
    said = Report(page).selection_text
    expect(said.locator("code").first).to_have_text("sgemm")
    expect(said).not_to_contain_text("`")


def check_steps(notebook: Notebook, cell: Locator, label: Locator) -> None:
    steps = cell.get_by_role("combobox", name="Step")
    expect(steps).to_be_visible()
    names = steps.locator("option").all_inner_texts()
    assert names[0] == "any"
    assert len(names) == 4
    steps.select_option(names[2])
    expect(label).to_have_text(re.compile(rf"^{names[2].removeprefix('step ')} ''"))
    report = Report(notebook.page)
    expect(report.range_text).to_contain_text("Range")
    report.brush(0.3, 0.7)
    expect(label).to_have_text(re.compile("^None ''"))
    expect(steps).to_have_value("")


def check_choices(notebook: Notebook, cell: Locator, label: Locator) -> None:
    box = cell.get_by_role("searchbox", name="Search", exact=True)
    box.fill("addmm")
    expect(label).to_have_text("None 'addmm' cpu_self name cpu")
    cell.get_by_role("combobox", name="Group by").select_option("name and shape")
    table = cell.locator("table[aria-label='Op table']")
    table.get_by_role("button", name="Calls", exact=True).click()
    expect(label).to_have_text("None 'addmm' calls name_shape cpu")
    notebook.run(4)
    expect(box).to_have_value("addmm|relu")
    expect(cell.get_by_role("combobox", name="Group by")).to_have_value("name")
    expect(table.locator("th[aria-sort=descending]")).to_contain_text("CPU total")
    expect(label).to_have_text("None '/addmm|relu/' cpu_total name cpu")


def check_profiles(notebook: Notebook) -> None:
    notebook.run(5)
    cell = notebook.run(6)
    label = notebook.run(7).locator(".widget-label")
    expect(cell.locator(".gpuprof-report")).to_have_count(1)
    expect(cell.get_by_role("combobox", name="Step")).to_have_count(1)
    profiles = cell.get_by_role("combobox", name="Profile")
    first, second = profiles.locator("option").all_inner_texts()
    profiles.select_option(second)
    expect(cell.locator("table[aria-label='Op table']")).to_contain_text("aten::cosh")
    expect(cell.locator(".gpuprof-report")).to_have_count(1)
    expect(cell.get_by_role("combobox", name="Step")).to_have_count(0)
    expect(label).to_contain_text(f"{second} (")
    profiles.select_option(first)
    expect(cell.locator("table[aria-label='Op table']")).to_contain_text("aten::addmm")
    expect(cell.locator(".gpuprof-report")).to_have_count(1)
    expect(label).to_contain_text(f"{first} (")


def check_page_tells_python(notebook: Notebook, report: Report) -> None:
    """What Python computes of each change comes back to the page."""
    label = notebook.run(4).locator(".widget-label")
    brushed = report.brush(0.3, 0.7)
    calls = sum(count for count, *_ in report.op_rows().values())
    expect(label).to_have_text(f"{brushed} 0 set() {calls}")
    row = report.table.locator("tbody tr").first
    title = row.locator("td").first.get_attribute("title") or ""
    row.click()
    rows = report.state("store.selection.rows.length")
    name = title.rpartition(" (")[0]
    expect(label).to_have_text(f"{brushed} {rows} {{{name!r}}} {calls}")


def check_python_tells_page(notebook: Notebook) -> None:
    notebook.run(5)
    notebook.page.wait_for_function(f"({STATE})().source === 'explorer'")
    state = notebook.page.evaluate(STATE)
    assert sorted(state["names"]) == ["aten::addmm", "aten::relu"]
    bounds = notebook.page.evaluate("Object.values(window.gpuprof.reports)[0].trace_bounds")
    assert state["range"] == [bounds[1] // 4, bounds[1] // 2]


def check_beside_a_slider(notebook: Notebook) -> None:
    """Among other widgets the explorer has a report of its own, in the state that Python has."""
    cell = notebook.run(6)
    expect(cell.locator(".gpuprof-explorer .gpuprof-report")).to_have_count(1)
    readout = cell.locator(".widget-readout")
    expect(cell.get_by_label("Selection", exact=True).first).to_contain_text(QUERY)
    before = readout.inner_text()
    cell.get_by_role("button", name="Clear").first.click()
    expect(readout).not_to_have_text(before)
    expect(readout).to_have_text(re.compile(r"^0\D"))


def check_without_kernel(page: Page, lab: Lab) -> None:
    open_without_kernel(page, lab, NOTEBOOK)
    report = Report.wait(page)
    cell = page.locator(".jp-CodeCell").nth(2)
    expect(cell.locator(".gpuprof-report")).to_have_count(1)
    shown = cell.locator(".jp-OutputArea-child").filter(has_text=WIDGET_ERRORS)
    for output in shown.all():
        expect(output).not_to_be_visible()
    assert WIDGET_ERRORS.search(cell.inner_text()) is None
    report.brush(0.2, 0.4)
