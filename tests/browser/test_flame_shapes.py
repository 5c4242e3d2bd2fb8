"""Shapes of the flame graph: upside down, and without libraries."""

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
    .sort((a, b) => a.depth - b.depth || a.x0 - b.x0)
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
    """Name, depth and width (in percent) of what is drawn, from the root down."""
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


def test_the_source_is_a_step_with_the_zoom_and_shape_that_were_there(open_report: Open) -> None:
    report = open_report(small())
    page = report.page
    source = page.get_by_role("combobox", name="Source")
    sources = source.locator("option").evaluate_all("options => options.map(({value}) => value)")
    first, second = sources
    expect(source).to_have_value(first)
    shape_button(report, "Bottom up").click()
    upside_down = bars(report)
    page.keyboard.press("Shift")  # a gesture, to which the next change belongs
    source.select_option(second)
    plain = bars(report)
    assert plain != upside_down
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
    assert bars(report) == upside_down
    expect(shape_button(report, "Bottom up")).to_have_attribute("aria-pressed", "true")


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
    report.timeline.press("Backspace")
    assert len(bars(report)[1:]) == 3
    expect(shape_button(report, "Hide libraries")).to_have_attribute("aria-pressed", "false")


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
