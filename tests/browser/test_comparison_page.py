"""Two and more runs on one page: linked timelines, the differential flame graph, the tables."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from typing import Any

import pandas as pd
import pytest
from playwright.sync_api import Browser, Page, expect

from gpuprof_widgets.analyses.compare.lines import TREE_COLUMNS, paired_tree
from gpuprof_widgets.comparisons import Comparison
from gpuprof_widgets.trace.model import Record
from gpuprof_widgets.trace.window import window
from gpuprof_widgets.views.encoding import encode
from gpuprof_widgets.views.side_by_side import Heading, Row, standalone_html
from tests.browser.engine import Engine, start_engine
from tests.browser.report_page import OpenHtml
from tests.traces import annotation, cell_line, kernel, op, python, runtime, trace_of

STEP = 1_000


def run_of(mm: int, extra: str, steps: int = 3) -> Record:
    rows = []
    for step in range(steps):
        start, first = step * STEP, len(rows)
        rows += [
            annotation(f"ProfilerStep#{step}", ts=start, dur=900),
            cell_line(3 + mm % 2, "y = model(x)", ts=start + 10, dur=mm + 60),
            python(f"train.py({mm}): step", ts=start + 12, dur=mm + 50),
            op("aten::mm", ts=start + 20, dur=mm),
            runtime("cudaLaunchKernel", ts=start + 22, dur=5),
            kernel("gemm", ts=start + 40, dur=mm, launched_by=first + 4),
            op(extra, ts=start + 700, dur=50),
            op("aten::add", ts=start + 100, dur=40, thread=7 + mm),
        ]
    return trace_of(*rows, label=f"mm {mm}")


A, B = run_of(300, "aten::old"), run_of(101, "aten::new")
ALONE = trace_of(op("aten::mm", ts=0, dur=9), op("aten::add", ts=2, dur=3))

TREE = """([source, windows]) => {
  const stores = [window.a, window.b]
  const trees = stores.map((store, side) => {
    const [start, end] = windows[side] ?? [store.whole.start, store.whole.end]
    return engine.flame(store, {start, end}, source)
  })
  return engine.paired_tree(...trees).map(({parent, depth, name, category, ...node}) => [
    parent, depth, name, category, ...node.calls, ...node.total, node.total[1] - node.total[0],
    ...node.self, ...node.device, node.width,
  ])
}"""


@pytest.fixture(scope="module")
def engine(browser: Browser) -> Iterator[Engine]:
    engine = start_engine(browser)
    yield engine
    engine.page.close()


def load(engine: Engine, name: str, record: Record) -> None:
    text = encode(record).text
    code = f"async (text) => {{ window.{name} = await engine.Store.decode(text) }}"
    engine.run(code, text)


def paths_of(rows: list[list[Any]]) -> dict[tuple[str, ...], list[Any]]:
    """Per path from the root its category and numbers."""
    paths: list[tuple[str, ...]] = []
    for parent, _, name, *_ in rows:
        paths.append((*(paths[parent] if parent >= 0 else ()), name))
    return {path: row[3:] for path, row in zip(paths, rows, strict=True)}


def rows_of(table: pd.DataFrame) -> list[list[Any]]:
    return [list(row) for row in table[list(TREE_COLUMNS[1:])].itertuples(index=False, name=None)]


@pytest.mark.parametrize("source", ["ops", "merged"])
@pytest.mark.parametrize("other", [B, ALONE, A], ids=["two threads", "one thread", "itself"])
def test_the_paired_tree_is_pythons(engine: Engine, source: str, other: Record) -> None:
    load(engine, "a", A)
    load(engine, "b", other)
    found = paths_of(engine.run(TREE, [source, [None, None]]))
    assert found == paths_of(rows_of(paired_tree(A, other, source=source)))


def test_the_paired_tree_of_ranges_is_that_of_their_windows(engine: Engine) -> None:
    load(engine, "a", A)
    load(engine, "b", B)
    found = paths_of(engine.run(TREE, ["ops", [[100, 1_250], [20, 130]]]))
    expected = paired_tree(window(A, 100, 1_250), window(B, 20, 130))
    assert found == paths_of(rows_of(expected))


@cache
def both() -> str:
    return Comparison(A, B).report()


GRAPH = "[...store.document.all_models].find(({type}) => type.endsWith('.DiffGraph'))"

STORES = "Object.values(window.gpuprof.reports)"


def selected(page: Page) -> list[list[str]]:
    """Names of the events that are highlighted in each timeline."""
    names: list[list[str]] = page.evaluate(
        f"{STORES}.map(s => [...new Set(Array.from(s.selection?.rows ?? [], r => s.data.name(r)))])"
    )
    return names


def test_a_row_of_the_differences_lights_up_in_both_timelines(
    open_html: OpenHtml,
) -> None:
    page = open_html(both())
    table = page.get_by_role("table", name="What differs")
    page.get_by_role("combobox", name="Show").select_option(label="Ops by CPU self time per step")
    row = table.locator("tbody tr", has_text="aten::mm")
    expect(row).to_contain_text("−199 ns")
    row.click()
    assert selected(page) == [["aten::mm"], ["aten::mm"]]
    expect(row).to_have_attribute("aria-selected", "true")
    new = table.locator("tbody tr", has_text="aten::new")
    expect(new).to_contain_text("in B only")
    new.focus()
    page.keyboard.press("Enter")
    assert selected(page) == [[], ["aten::new"]]
    page.keyboard.press("Escape")
    assert selected(page) == [[], []]


CHANGES = f"""() => {{
    const [store] = {STORES}
    const graph = {GRAPH}
    return Object.fromEntries(graph.tree.nodes.map((node) => [node.name, graph.change_text(node)]))
}}"""


def changes(page: Page) -> dict[str, str]:
    """What the bars of the differential flame graph say, by their names."""
    said: dict[str, str] = page.evaluate(CHANGES)
    return {name: words.replace("\u00a0", " ") for name, words in said.items()}


def test_bars_say_the_change_of_their_path(open_html: OpenHtml) -> None:
    def run(code: str, dur: int) -> Record:
        return trace_of(
            cell_line(1, "x = load()", ts=0, dur=20),
            cell_line(2, code, ts=20, dur=dur),
            op("aten::mm", ts=21, dur=9),
        )

    page = open_html(Comparison(run("y = f(x)", 90), run("y = g(x)", 40)).report())
    assert {name: words for name, words in changes(page).items() if name != "all threads"} == {
        "1: x = load()": "=",
        "2: y = f(x)": "−90 ns in A only",
        "2: y = g(x)": "+40 ns in B only",
        "aten::mm": "+9 ns in B only",
    }


def test_a_tree_that_cannot_be_counted_says_why(open_html: OpenHtml) -> None:
    page = open_html(both())
    crumbs = page.get_by_label("Zoomed path").first
    expect(crumbs).to_contain_text("all threads")
    page.evaluate(
        f"""() => {{
            const [store] = {STORES}
            const {{answers}} = store
            const ask = answers.ask.bind(answers)
            answers.ask = (question, ...rest) =>
                question == "flame" ? Promise.reject(new Error("too deep")) : ask(question, ...rest)
            store.brush([0, 500])
            answers.ask = ask
        }}"""
    )
    expect(crumbs.get_by_role("button")).to_have_count(1)
    expect(crumbs).to_have_text("This range could not be counted: Error: too deep ")
    page.evaluate(f"{STORES}[0].brush([0, 700])")
    expect(crumbs).to_contain_text("all threads")


def test_the_source_of_the_differences_is_a_step(open_html: OpenHtml) -> None:
    page = open_html(both())
    source = page.get_by_role("combobox", name="Source")
    first = source.input_value()
    names = list(changes(page))
    page.keyboard.press("Shift")  # a gesture, to which the next change belongs
    source.select_option("ops" if first == "merged" else "merged")
    other = list(changes(page))
    assert other != names
    graph = page.locator("[role=application][aria-label^='Differential']")
    graph.press("Backspace")
    expect(source).to_have_value(first)
    assert list(changes(page)) == names


def test_the_flame_graph_follows_ranges_and_steps(open_html: OpenHtml) -> None:
    page = open_html(both())
    expect(page.get_by_text("CPU time per step, 3 steps of each")).to_be_visible()
    graph = page.locator("[role=application][aria-label^='Differential']")
    graph.focus()
    page.keyboard.press("ArrowDown")
    page.keyboard.press("ArrowDown")
    page.keyboard.press("Enter")
    crumbs = page.get_by_label("Zoomed path").first
    expect(crumbs).to_contain_text("ProfilerStep*")
    page.get_by_role("combobox", name="Step").select_option(label="2.")
    assert page.evaluate(f"{STORES}.map(s => s.window)") == [[1_000, 1_900], [1_000, 1_900]]
    expect(page.get_by_text("CPU time per step, 1 step of each, selected")).to_be_visible()
    page.evaluate(f"{STORES}[0].brush([0, 500])")
    assert page.evaluate(f"{STORES}[1].window") == [1_000, 1_900]
    expect(page.get_by_text("CPU time of the selected ranges")).to_be_visible()
    page.get_by_role("button", name="Same range in both").click()
    page.evaluate(f"{STORES}[0].brush([0, 700])")
    assert page.evaluate(f"{STORES}[1].window") == [0, 700]


def test_timelines_side_by_side_are_brushed_moved_and_reset_together(
    open_html: OpenHtml,
) -> None:
    rows = [Row(run_of(100 + number, "aten::x"), f"rank {number}") for number in range(4)]
    page = open_html(
        standalone_html(rows, Heading("job"), html='<div class="gpuprof-static"></div>')
    )
    timelines = page.locator("[role=application][aria-label^='Timeline.']")
    expect(timelines).to_have_count(4)
    box = timelines.nth(2).bounding_box()
    y = box["y"] + box["height"] / 2
    page.mouse.move(box["x"] + 100, y)
    page.mouse.down()
    page.mouse.move(box["x"] + 300, y, steps=4)
    page.mouse.up()
    windows = page.evaluate(f"{STORES}.map(s => s.window)")
    assert windows[0] is not None
    assert windows == [windows[0]] * 4
    expect(page.get_by_role("group", name="rank 3")).to_contain_text("range of")
    timelines.nth(1).focus()
    page.keyboard.press("+")
    starts = page.evaluate(f"{STORES}.map(s => s.visible.start)")
    assert starts[0] > 0
    assert starts == [starts[0]] * 4
    timelines.nth(3).focus()
    page.keyboard.press("Escape")
    assert page.evaluate(f"{STORES}.map(s => s.window)") == [None] * 4


def test_runs_that_are_compared_go_back_together(open_html: OpenHtml) -> None:
    page = open_html(both())
    selected = f"{STORES}.map(store => store.selection?.rows.length ?? 0)"
    windows = f"{STORES}.map(store => store.window)"
    graph = page.locator("[role=application][aria-label^='Differential']")
    graph.focus()
    for key in ("ArrowDown", "ArrowDown", "Enter"):
        page.keyboard.press(key)
    rows = page.evaluate(selected)
    assert all(rows)
    page.get_by_role("combobox", name="Step").select_option(label="2.")
    timeline = page.locator("[role=application][aria-label^='Timeline.']").first
    timeline.press("+")
    timeline.press("Escape")
    assert page.evaluate(selected) == [0, 0]
    timeline.press("Escape")
    assert page.evaluate(windows) == [None, None]
    timeline.press("Escape")
    assert page.evaluate(f"{STORES}.every(s => s.visible.start == s.bounds[0])")
    expect(page.get_by_label("Zoomed path").get_by_role("button")).to_have_count(1)
    for _ in range(3):
        timeline.press("Backspace")
    assert page.evaluate(selected) == rows
    assert page.evaluate(windows) == [[1_000, 1_900]] * 2
    assert page.evaluate(f"{STORES}[0].visible.start") > 0
