"""Shapes of the flame graph: upside down, around one function, without libraries or recursion."""

from __future__ import annotations

from functools import cache

import pandas as pd
from playwright.sync_api import Locator, expect

from gpuprof_widgets.trace.model import Calls, Record
from tests.browser.report_page import Open, Report
from tests.traces import kernel, op, python, runtime, trace_of

MS = 1_000_000

GRAPH = "[...store.document.all_models].find(({type}) => type.endsWith('.FlameGraph'))"

BARS = f"""{GRAPH}.tree.nodes.filter(({{x0, x1}}) => x1 > x0)
    .sort((a, b) => (a.depth < 0) - (b.depth < 0) || Math.abs(a.depth) - Math.abs(b.depth)
        || a.x0 - b.x0)
    .map(({{name, depth, x0, x1}}) => [name, depth, Math.round(100 * (x1 - x0))])"""


@cache
def small() -> Record:
    """A linear op, called in a module's frame and beside it, and 100 ms in all."""
    return trace_of(
        python("train.py(1): step", ts=0, dur=100 * MS),
        python("torch/nn/modules/module.py(9): _call_impl", ts=10 * MS, dur=60 * MS),
        python("model.py(3): forward", ts=20 * MS, dur=50 * MS),
        op("aten::linear", ts=20 * MS, dur=40 * MS),
        op("aten::mm", ts=30 * MS, dur=30 * MS),
        runtime("cudaLaunchKernel", ts=30 * MS, dur=5 * MS),
        op("aten::linear", ts=80 * MS, dur=20 * MS),
        kernel("sgemm", ts=60 * MS, dur=30 * MS, launched_by=5),
    )


def bars(report: Report) -> list[tuple[str, int, int]]:
    """Name, depth and width (in percent) of what is drawn, outwards; callers come last."""
    report.settle()
    return [(name, depth, width) for name, depth, width in report.state(BARS)]


def shape_button(report: Report, name: str) -> Locator:
    return report.page.get_by_label("Shape of the flame graph").get_by_role("button", name=name)


def test_bottom_up_shows_self_times_with_callers_below(open_report: Open) -> None:
    report = open_report(small())
    shape_button(report, "Bottom up").click()
    expect(report.page.get_by_text("self times of functions, callers below")).to_be_visible()
    shown = bars(report)
    functions = {name: width for name, depth, width in shown if depth == 1}
    assert functions == {
        "aten::linear": 30,
        "aten::mm": 25,
        "train.py(1): step": 20,
        "torch/nn/modules/module.py(9): _call_impl": 10,
        "model.py(3): forward": 10,
        "cudaLaunchKernel": 5,
    }
    assert [bar for bar in shown if bar[1] == 2][:2] == [
        ("train.py(1): step", 2, 20),
        ("model.py(3): forward", 2, 10),
    ]
    report.flame_graph.focus()
    for key in ("ArrowDown", "ArrowDown"):
        report.flame_graph.press(key)
    expect(report.selection_text).to_contain_text("aten::linear, called from train.py(1): step")
    expect(report.selection_text).to_contain_text("CPU self 20.0 ms (20 %)")
    assert report.state("[...store.selection.rows].map((row) => store.data.ts[row])") == [80 * MS]


def test_a_sandwich_has_callers_above_and_callees_below(open_report: Open) -> None:
    report = open_report(small())
    button = shape_button(report, "Sandwich")
    expect(button).to_be_disabled()
    report.table.get_by_text("aten::linear").click()
    expect(button).to_be_enabled()
    button.click()
    assert bars(report) == [
        ("aten::linear", 0, 100),
        ("aten::mm", 1, 50),
        ("cudaLaunchKernel", 2, 8),
        ("model.py(3): forward", -1, 67),
        ("train.py(1): step", -1, 33),
        ("torch/nn/modules/module.py(9): _call_impl", -2, 67),
        ("train.py(1): step", -3, 67),
    ]
    flame = report.flame_graph
    flame.focus()
    flame.press("ArrowUp")
    expect(report.selection_text).to_contain_text("aten::linear, called from model.py(3): forward")
    expect(report.selection_text).to_contain_text("CPU total 40.0 ms (67 %)")
    flame.press("ArrowRight")
    expect(report.selection_text).to_contain_text("aten::linear, called from train.py(1): step")
    flame.press("ArrowDown")
    expect(report.selection_text).not_to_contain_text("called from")
    expect(report.selection_text).to_contain_text("2 events")
    flame.press("ArrowDown")
    expect(report.selection_text).to_contain_text("aten::mm")


def test_a_sandwich_follows_what_is_selected_elsewhere(open_report: Open) -> None:
    report = open_report(small())
    report.table.get_by_text("aten::linear").click()
    shape_button(report, "Sandwich").click()
    report.table.get_by_text("aten::mm").click()
    expect(report.page.get_by_text("callers and callees of aten::mm")).to_be_visible()
    assert bars(report)[0] == ("aten::mm", 0, 100)
    report.timeline.press("Backspace")
    expect(report.page.get_by_text("callers and callees of aten::linear")).to_be_visible()


def test_a_zoomed_caller_stands_below_its_own_callers(open_report: Open) -> None:
    report = open_report(small())
    report.table.get_by_text("aten::linear").click()
    shape_button(report, "Sandwich").click()
    report.settle()
    flame = report.flame_graph
    flame.focus()
    for key in ("ArrowUp", "ArrowUp", "Enter"):
        flame.press(key)
    tree = f"{GRAPH}.tree"
    assert report.state(f"[{tree}.top_depth, {tree}.shows(-2), {tree}.shows(-1)]") == [
        -3,
        True,
        False,
    ]
    crumbs = report.page.get_by_label("Zoomed path")
    expect(crumbs).to_contain_text("‹ called from")
    flame.press("Home")
    assert report.state(f"[{tree}.top_depth, {tree}.shows(2)]") == [-3, True]


def test_the_source_is_a_step_with_the_zoom_and_shape_that_were_there(open_report: Open) -> None:
    report = open_report(small())
    page = report.page
    source = page.get_by_role("combobox", name="Source")
    sources = source.locator("option").evaluate_all("options => options.map(({value}) => value)")
    first, second = sources
    expect(source).to_have_value(first)
    report.table.get_by_text("aten::linear").click()
    shape_button(report, "Sandwich").click()
    sandwich = bars(report)
    page.keyboard.press("Shift")  # a gesture, to which the next change belongs
    source.select_option(second)
    plain = bars(report)
    assert plain != sandwich
    report.flame_graph.focus()
    for key in ("ArrowDown", "ArrowDown", "Enter"):
        report.flame_graph.press(key)
    crumbs = page.get_by_label("Zoomed path")
    zoomed = crumbs.inner_text()
    page.keyboard.press("Shift")
    source.select_option(first)
    report.settle()
    report.flame_graph.press("Backspace")
    expect(source).to_have_value(second)
    assert bars(report) == plain
    expect(crumbs).to_have_text(zoomed, use_inner_text=True)
    for _ in range(4):
        report.flame_graph.press("Backspace")
        if source.input_value() == first:
            break
    assert bars(report) == sandwich
    expect(shape_button(report, "Sandwich")).to_have_attribute("aria-pressed", "true")
    report.flame_graph.press("Shift+Backspace")
    expect(source).to_have_value(second)
    assert bars(report) == plain


def test_hidden_libraries_and_collapsed_recursion(open_report: Open) -> None:
    recursion = trace_of(
        python("tree.py(1): walk", ts=0, dur=100 * MS),
        python("json/decoder.py(7): visit", ts=10 * MS, dur=80 * MS),
        python("tree.py(1): walk", ts=20 * MS, dur=60 * MS),
        op("aten::mm", ts=30 * MS, dur=10 * MS),
    )
    report = open_report(recursion)
    names = [name for name, _, _ in bars(report)]
    assert names[1:] == [
        "tree.py(1): walk",
        "json/decoder.py(7): visit",
        "tree.py(1): walk",
        "aten::mm",
    ]
    shape_button(report, "Hide libraries").click()
    assert bars(report)[1:] == [
        ("tree.py(1): walk", 1, 100),
        ("tree.py(1): walk", 2, 60),
        ("aten::mm", 3, 10),
    ]
    shape_button(report, "Collapse recursion").click()
    assert bars(report)[1:] == [("tree.py(1): walk", 1, 100), ("aten::mm", 2, 10)]
    expect(shape_button(report, "Hide libraries")).to_have_attribute("aria-pressed", "true")
    for before in (3, 4):
        report.timeline.press("Backspace")
        assert len(bars(report)[1:]) == before
    expect(shape_button(report, "Hide libraries")).to_have_attribute("aria-pressed", "false")


def test_keys_turn_the_graph_over_and_put_a_bar_in_the_middle(open_report: Open) -> None:
    report = open_report(small())
    flame = report.flame_graph
    flame.focus()
    flame.press("i")
    expect(shape_button(report, "Bottom up")).to_have_attribute("aria-pressed", "true")
    flame.press("ArrowDown")
    flame.press("s")
    expect(report.page.get_by_text("callers and callees of aten::linear")).to_be_visible()
    assert bars(report)[0] == ("aten::linear", 0, 100)
    flame.press("i")
    flame.press("i")
    expect(shape_button(report, "Top down")).to_have_attribute("aria-pressed", "true")
    assert bars(report)[0][0] == "all threads"


def test_the_selected_call_stays_marked_in_another_shape(open_report: Open) -> None:
    report = open_report(small())
    flame = report.flame_graph
    flame.focus()
    for _ in range(4):
        flame.press("ArrowDown")
    expect(report.selection_text).to_contain_text("aten::linear")
    shape_button(report, "Bottom up").click()
    report.settle()
    marked = f"[...{GRAPH}.marked].map((id) => {GRAPH}.tree.path(id).map(({{name}}) => name))"
    assert report.state(marked) == [["all threads", "aten::linear"]]


def test_libraries_of_cprofile_can_be_hidden(open_report: Open) -> None:
    functions = [
        ("/home/me/train.py", 1, "step", 1, 100 * MS, 20 * MS),
        ("/usr/lib/python3.12/json/decoder.py", 7, "decode", 2, 80 * MS, 30 * MS),
        ("/home/me/hooks.py", 3, "hook", 2, 50 * MS, 50 * MS),
    ]
    names = ["file", "line", "name", "calls", "total_ns", "self_ns"]
    table = pd.DataFrame(functions, columns=names).assign(primitive_calls=lambda t: t["calls"])
    edges = [(0, 1, 2, 2, 30 * MS, 80 * MS), (1, 2, 2, 2, 50 * MS, 50 * MS)]
    edge_names = ["caller", "callee", "calls", "primitive_calls", "self_ns", "total_ns"]
    calls = Calls(table, pd.DataFrame(edges, columns=edge_names))
    report = open_report(trace_of(op("aten::mm", ts=0, dur=MS), calls=calls))
    expect(shape_button(report, "Hide libraries")).to_be_hidden()
    report.page.get_by_role("combobox", name="Source").select_option("cprofile")
    shape_button(report, "Hide libraries").click()
    assert bars(report)[1:] == [("train.py:1(step)", 1, 100), ("hooks.py:3(hook)", 2, 50)]


def test_a_range_changes_every_shape(open_report: Open) -> None:
    report = open_report(small())
    report.table.get_by_text("aten::linear").click()
    shape_button(report, "Sandwich").click()
    report.state(f"store.brush([{70 * MS}, {100 * MS}])")
    assert bars(report) == [("aten::linear", 0, 100), ("train.py(1): step", -1, 100)]
    report.state(f"store.brush([0, {10 * MS}])")
    assert bars(report) == [("aten::linear", 0, 100)]
    assert report.state(f"{GRAPH}.tree.nodes[0].total") == 0


def test_another_source_has_no_function_in_the_middle(open_report: Open) -> None:
    """Calls of cProfile are no slices, and each source numbers its call paths by itself."""
    report = open_report(small())
    report.table.get_by_text("aten::linear").click()
    shape_button(report, "Sandwich").click()
    report.settle()
    report.flame_graph.press("ArrowDown")
    report.page.get_by_role("combobox", name="Source").select_option("ops")
    assert bars(report)[0][0] == "all threads"
    assert report.state(f"[...{GRAPH}.marked]") == []
    report.timeline.press("Backspace")
    report.timeline.press("Backspace")
    assert bars(report)[0][0] == "all threads"


def test_backspace_outlines_the_bar_of_the_selection(open_report: Open) -> None:
    report = open_report(small())
    graph = report.page.locator("[role=application][aria-label^='Flame graph']")
    outlined = f"[...{GRAPH}.marked].map(id => {GRAPH}.tree.nodes[id].name)"
    graph.focus()
    names = []
    for _ in range(4):
        report.page.keyboard.press("ArrowDown")
        report.settle()
        names.append(report.state("store.selection.text"))
        assert report.state(outlined) == names[-1:]
    for name in reversed(names[:-1]):
        report.page.keyboard.press("Backspace")
        report.settle()
        assert report.state("store.selection.text") == name
        assert report.state(outlined) == [name]
    report.page.keyboard.press("Shift+Backspace")
    report.settle()
    assert report.state("store.selection.text") == names[1]
    assert report.state(outlined) == names[1:2]


def test_a_search_leaves_the_function_in_the_middle(open_report: Open) -> None:
    report = open_report(small())
    report.table.locator("tbody tr", has_text="aten::linear").click()
    shape_button(report, "Sandwich").click()
    before = bars(report)
    search = report.page.get_by_role("searchbox", name="Search", exact=True)
    search.fill("step")
    expect(report.page.get_by_text("2 bars found", exact=True)).to_be_visible()
    assert bars(report) == before
    search.fill("aten::linear")
    expect(report.page.get_by_text("1 bar found, 100 % of the time")).to_be_visible()
    search.fill("")
    report.page.keyboard.press("Escape")
    expect(shape_button(report, "Sandwich")).to_be_enabled()
