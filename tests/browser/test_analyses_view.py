"""The analyses in Chromium: tabs, tables and plots, linked to the timeline both ways."""

from __future__ import annotations

from itertools import combinations, pairwise

import pandas as pd
import pytest
from playwright.sync_api import Browser, Locator, expect

from gpuprof_widgets.analyses.kernels import kernels
from gpuprof_widgets.trace.model import Record
from gpuprof_widgets.trace.readers import load
from gpuprof_widgets.trace.window import window
from gpuprof_widgets.views import page_panels
from gpuprof_widgets.views.page_panels import panels
from gpuprof_widgets.views.panels import all_panels
from gpuprof_widgets.views.table import Column, Panel, Points
from tests.browser.engine import start_engine
from tests.browser.report_page import Open, Report, ctrl_wheel, too_faint
from tests.browser.test_memory_view import allocating
from tests.panel_examples import EXAMPLES, column_values
from tests.traces import Shared, calls_of, kernel, op, runtime, trace_of

MS = 1_000_000

TWO_CLICKS_MS = 1_000  # after it a second click is none of a double click

SCROLLED = "new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))"
"""Waits until the page has told of the last scrolling."""


def busy() -> Record:
    """Two gemms of one op, the second beside a relu."""
    return trace_of(
        op("aten::mm", ts=0, dur=3 * MS),
        runtime("cudaLaunchKernel", ts=MS // 2, dur=MS // 4),
        kernel("gemm", ts=1 * MS, dur=2 * MS, launched_by=1),
        kernel("relu", ts=4 * MS + MS // 2, dur=2 * MS, stream=8),
        kernel("gemm", ts=4 * MS, dur=1 * MS),
        op("aten::add", ts=9 * MS, dur=1 * MS),
        label="busy",
    )


@pytest.fixture(autouse=True)
def example_panels(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(page_panels, "all_panels", lambda: EXAMPLES)


@pytest.fixture
def real_panels(example_panels: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(page_panels, "all_panels", all_panels)


def tab(report: Report, name: str) -> Locator:
    return report.page.get_by_role("tab", name=name, exact=True)


def rows(report: Report, title: str) -> Locator:
    return report.page.locator(f"table[aria-label='{title}'] tbody tr")


def numbers(report: Report, title: str) -> dict[str, dict[str, float]]:
    """Every number of a table, by the text that the row begins with and the column."""
    read = """(rows) => rows.map((row) => [row.querySelector("td").title, Object.fromEntries(
        Array.from(row.querySelectorAll("[data-column]"),
            (cell) => [cell.dataset.column, Number(cell.dataset.value)]))])"""
    return dict(rows(report, title).evaluate_all(read))


def test_tabs_are_chosen_by_keys_and_only_one_is_shown(open_report: Open) -> None:
    report = open_report(busy())
    tabs = report.page.get_by_role("tablist", name="Analyses").get_by_role("tab")
    assert tabs.all_inner_texts() == ["Kernels", "Gaps", "Queue"]
    expect(tabs.first).to_have_attribute("aria-selected", "true")
    expect(rows(report, "Kernels")).to_have_count(2)
    tabs.first.focus()
    report.page.keyboard.press("ArrowRight")
    expect(tab(report, "Gaps")).to_be_focused()
    expect(tab(report, "Gaps")).to_have_attribute("aria-selected", "true")
    expect(rows(report, "Gaps")).to_have_count(2)
    expect(rows(report, "Kernels")).to_have_count(0)
    report.page.keyboard.press("ArrowLeft")
    report.page.keyboard.press("ArrowLeft")
    expect(tab(report, "Queue")).to_be_focused()
    expect(rows(report, "Queue")).to_have_count(1)


def test_a_row_lights_up_its_slices_and_lets_them_go(open_report: Open) -> None:
    report = open_report(busy())
    row = rows(report, "Kernels").filter(has_text="gemm")
    row.click()
    expect(row).to_have_attribute("aria-selected", "true")
    names = report.state("Array.from(store.selection.rows, row => store.data.name(row))")
    assert names == ["gemm", "gemm"]
    expect(report.selection_text).to_contain_text("2 events highlighted")
    report.page.wait_for_timeout(TWO_CLICKS_MS)
    row.click()
    assert report.state("store.selection") is None


def test_a_row_without_slices_lights_up_its_ranges(open_report: Open) -> None:
    report = open_report(busy())
    tab(report, "Gaps").click()
    rows(report, "Gaps").first.click()
    expect(report.selection_text).to_contain_text("2 time ranges highlighted")
    assert report.state("store.selection.ranges") == [[0, 3 * MS, -1], [8 * MS, 10 * MS, -1]]


def test_a_double_click_zooms_to_the_longest_event_and_the_button_to_the_next(
    open_report: Open,
) -> None:
    report = open_report(busy())
    rows(report, "Kernels").filter(has_text="gemm").dblclick()
    visible = "[store.visible.start, store.visible.end]"
    assert report.state(visible) == [0, 4 * MS]  # the gemm of 2 ms, and as much around it
    report.page.get_by_role("button", name="Zoom to event").click()
    assert report.state(visible) == [3.5 * MS, 5.5 * MS]
    expect(report.page.get_by_text("gemm: event 2 of 2, longest first")).to_be_visible()


def test_what_is_selected_elsewhere_lights_up_the_rows_that_hold_it(open_report: Open) -> None:
    report = open_report(busy())
    chosen = rows(report, "Kernels").and_(report.page.locator("[aria-selected=true]"))
    report.table.locator("tbody tr", has_text="aten::mm").click()  # launched one of the gemms
    expect(chosen).to_have_count(1)
    expect(chosen).to_contain_text("gemm")
    report.page.get_by_role("combobox", name="Show").select_option("all categories")
    report.table.locator("tbody tr", has_text="relu").click()
    expect(chosen).to_contain_text("relu")


def test_a_brush_computes_the_columns_of_python_anew(open_report: Open) -> None:
    record = busy()
    report = open_report(record)
    start, end = report.brush(0.15, 0.47)
    cut = kernels(record.__class__(window(record.trace, start, end), None, {}))
    shown = numbers(report, "Kernels")
    keys = ["calls", "total_ns", "average_ns", "min_ns", "max_ns", "covered_ns"]
    assert {name: [values[key] for key in keys] for name, values in shown.items()} == {
        row["name"]: [row[key] for key in keys] for row in cut.to_dict("records")
    }
    whole = kernels(record).set_index("name")["share"]
    assert shown["gemm"]["share"] == pytest.approx(whole["gemm"], rel=1e-8)
    head = report.page.locator("table[aria-label=Kernels] th", has_text="Share of busy")
    expect(head).to_have_class("number whole")
    expect(report.page.get_by_text("underlined columns cover the whole trace")).to_be_visible()


def test_rows_that_are_not_in_the_range_leave(open_report: Open) -> None:
    report = open_report(busy())
    report.brush(0.05, 0.25)
    assert list(numbers(report, "Kernels")) == ["gemm"]
    report.brush(0.8, 0.95)
    expect(report.page.get_by_text("Nothing in this range.")).to_be_visible()


def test_points_are_selected_by_mouse_and_keys(open_report: Open) -> None:
    report = open_report(busy())
    plot = report.page.locator("svg.points")
    expect(plot.locator("circle")).to_have_count(2)
    expect(plot.get_by_text("a roof")).to_be_visible()
    plot.scroll_into_view_if_needed()
    report.page.evaluate(SCROLLED)  # scrolling hides tooltips
    plot.locator("circle").first.hover()
    expect(report.page.get_by_role("tooltip").filter(has_text="Covered")).to_be_visible()
    plot.locator("circle").first.click()
    expect(rows(report, "Kernels").and_(report.page.locator("[aria-selected=true]"))).to_have_count(
        1
    )
    report.page.keyboard.press("Escape")
    plot.focus()
    report.page.keyboard.press("ArrowRight")  # the fewest calls: relu
    report.page.keyboard.press("Enter")
    expect(rows(report, "Kernels").filter(has_text="relu")).to_have_attribute(
        "aria-selected", "true"
    )


def test_a_plot_without_points_says_so_and_has_no_axes(open_report: Open) -> None:
    report = open_report(busy())
    plot = report.page.locator("svg.points")
    expect(plot.locator("line.grid").first).to_be_attached()
    report.state(f"store.brush([{9 * MS}, {10 * MS}])")  # aten::add alone
    expect(plot).to_have_text("No row has both values here.")
    expect(plot.locator("line, circle")).to_have_count(0)


def test_bars_follow_the_range_and_select_their_rows(open_report: Open) -> None:
    report = open_report(busy())
    tab(report, "Gaps").click()
    parts = report.page.get_by_label("Gaps as bars").locator(".part")
    expect(parts).to_have_text(["host 62 %", "input 38 %"])
    parts.nth(1).click()
    expect(rows(report, "Gaps").filter(has_text="input")).to_have_attribute("aria-selected", "true")
    report.page.keyboard.press("Escape")
    start, end = report.brush(0.02, 0.15)
    assert (start, end) < (3 * MS, 3 * MS)
    expect(parts).to_have_text(["host 100 %"])


def test_curves_stand_below_the_same_pixels_as_the_timeline(open_report: Open) -> None:
    report = open_report(busy())
    curves = report.page.locator("[role=application][aria-label^='Curves.']")
    expect(curves).not_to_be_visible()
    tab(report, "Queue").click()
    expect(curves).to_be_visible()
    left, right = report.timeline.bounding_box(), curves.bounding_box()
    assert left is not None
    assert right is not None
    assert (left["x"], left["width"]) == (pytest.approx(right["x"]), pytest.approx(right["width"]))
    curves.scroll_into_view_if_needed()
    right = curves.bounding_box()
    assert right is not None
    y = right["y"] + right["height"] / 2
    report.page.mouse.move(right["x"] + 0.47 * right["width"], y)
    tooltip = report.page.get_by_role("tooltip").filter(has_text="Running on GPU 0")
    expect(tooltip).to_contain_text("2")
    report.page.mouse.down()
    report.page.mouse.move(right["x"] + 0.6 * right["width"], y, steps=4)
    report.page.mouse.up()
    start, end = report.brushed()
    assert (start, end) == (pytest.approx(4.7 * MS, abs=MS / 9), pytest.approx(6 * MS, abs=MS / 9))
    curves.press("+")
    assert report.state("store.visible.end - store.visible.start") == pytest.approx(10 * MS / 1.5)
    tab(report, "Gaps").click()
    expect(curves).not_to_be_visible()


@pytest.mark.parametrize("name", ["Overview", "Timeline.", "Memory", "Curves."])
def test_ctrl_and_the_wheel_zoom_time_axes_and_the_browser_does_not(
    open_report: Open, name: str
) -> None:
    report = open_report(allocating() if name == "Memory" else busy())
    page = report.page
    if name == "Curves.":
        tab(report, "Queue").click()
    surface = page.locator(f"[role=application][aria-label^='{name}']").first
    assert not ctrl_wheel(page, surface, 0.5, -300)
    start, end = report.state("[store.visible.start, store.visible.end]")
    low, high = report.state("store.bounds")
    assert low < start < end < high
    # At its end there is nothing to zoom into: the browser stays as it is all the same.
    for _ in range(2):
        assert not ctrl_wheel(page, surface, 0.5, 3000)


@pytest.mark.parametrize(("scheme", "width"), [("light", 1280), ("dark", 1920)])
def test_text_is_legible_and_nothing_overlaps(open_report: Open, scheme: str, width: int) -> None:
    report = open_report(busy())
    report.page.set_viewport_size({"width": width, "height": 900})
    report.use_scheme(scheme)
    for name in ("Kernels", "Gaps", "Queue"):
        tab(report, name).click()
        rows(report, name).first.click()
        assert too_faint(report.page) == []
        plot = {
            "Kernels": report.page.locator("svg.points"),
            "Gaps": report.page.get_by_label("Gaps as bars"),
            "Queue": report.page.locator("[role=application][aria-label^='Curves.']"),
        }[name]
        parts = [report.page.get_by_role("tablist"), plot, rows(report, name).first]
        boxes = [box for part in parts if (box := part.bounding_box()) is not None]
        assert len(boxes) == len(parts)
        assert all(a["y"] + a["height"] <= b["y"] + 1 for a, b in pairwise(boxes))
        assert all(box["x"] + box["width"] <= width for box in boxes)


@pytest.mark.usefixtures("real_panels")
def test_the_critical_path_is_switched_by_button_key_and_tab(open_report: Open) -> None:
    report = open_report(busy())
    switch = report.page.get_by_role("button", name="Critical path", exact=True)
    expect(switch).to_have_attribute("aria-pressed", "false")
    switch.click()
    expect(switch).to_have_attribute("aria-pressed", "true")
    report.timeline.press("c")
    expect(switch).to_have_attribute("aria-pressed", "false")
    tab(report, "Critical path").click()
    expect(switch).to_have_attribute("aria-pressed", "true")
    tab(report, "Breakdown").click()
    expect(switch).to_have_attribute("aria-pressed", "false")
    switch.click()
    report.timeline.press("Escape")
    expect(switch).to_have_attribute("aria-pressed", "false")


@pytest.mark.usefixtures("real_panels")
@pytest.mark.parametrize("name", ["megatron-tp8/rank0", "hta/critical_path_alexnet_a100"])
def test_any_range_of_a_real_trace_gives_the_numbers_of_plain_loops(
    browser: Browser, name: str, shared: Shared
) -> None:
    record = load(shared(f"{name}.json.gz"))
    engine = start_engine(browser)
    engine.load(record)
    trace = record.trace
    start, end = (trace.start_ns + trace.span_ns * part // 100 for part in (31, 57))
    for key, panel in panels(record).items():
        if panel.events is None:
            continue
        found = engine.run(
            """([name, start, end]) => {
                const panel = engine.panel(store, name)
                const values = panel.values({start, end})
                return Object.fromEntries(panel.columns.flatMap((column, at) =>
                    panel.follows(column) ? [[column.key, values[at]]] : []))
            }""",
            [key, start, end],
        )
        expected = column_values(panel, start, end, trace.end_ns)
        assert found == {each: pytest.approx(expected[each]) for each in found}, key
    engine.page.close()


def test_names_in_a_plot_of_points_do_not_lie_over_one_another(
    open_report: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Points of almost one place, and two roofs whose names would have one place as well."""
    names = [f"aten::op_with_a_long_name_{number}" for number in range(4)]
    table = pd.DataFrame({"op": names, "x": [1.0, 1.1, 1.2, 100.0], "y": [1.0, 1.02, 1.04, 50.0]})
    roofs = tuple(
        ((0.1, 10.0, 1e3), (1.0, top, top), name) for top, name in [(99, "a"), (100, "b")]
    )
    columns = (Column("op", "Op", "text"), Column("x", "X", "number"), Column("y", "Y", "number"))
    panel = Panel("Roof", columns, table, points=Points("x", "y", lines=roofs))
    monkeypatch.setattr(page_panels, "all_panels", lambda: {"roof": lambda _: panel})
    report = open_report(busy())
    labels = report.page.locator(".points text.label")
    boxes = [each.bounding_box() for each in labels.all()]
    assert labels.all_text_contents()[0] == "b"
    assert names[3] in labels.all_text_contents()
    for one, other in combinations(boxes, 2):
        assert one is not None
        assert other is not None
        beside = one["x"] + one["width"] <= other["x"] or other["x"] + other["width"] <= one["x"]
        above = one["y"] + one["height"] <= other["y"] or other["y"] + other["height"] <= one["y"]
        assert beside or above


def test_nothing_moves_as_something_is_selected(open_report: Open) -> None:
    report = open_report(busy())
    heights = "(box) => [box.offsetHeight, document.documentElement.scrollHeight]"
    before = report.selection_text.evaluate(heights)
    assert before[0] < 90  # a title and two rows of causes
    rows(report, "Kernels").filter(has_text="gemm").click()
    expect(report.selection_text).to_contain_text("2 events highlighted")
    assert report.selection_text.evaluate(heights) == before


def test_a_key_of_pstats_opens_the_python_functions_in_that_order(
    open_report: Open, real_panels: None
) -> None:
    calls = calls_of((None, "main", 1, MS), ("main", "step", 3, 3 * MS))
    record = trace_of(op("aten::mm", ts=0, dur=MS), op("aten::add", ts=2 * MS, dur=MS), calls=calls)
    for key, first in ("cumtime", "main"), ("ncalls", "step"), ("name", "main"):
        report = open_report(record, sort=key)
        expect(tab(report, "Python functions")).to_have_attribute("aria-selected", "true")
        expect(rows(report, "Python functions").first).to_contain_text(f"({first})")
        expect(report.table.locator("th[aria-sort=descending]")).to_contain_text("CPU self")
    report = open_report(record)
    expect(rows(report, "Python functions").first).not_to_be_visible()


def test_show_of_a_finding_on_a_function_selects_its_row(
    open_report: Open, real_panels: None
) -> None:
    """Calls of cProfile have no moments: the table of functions has them, the timeline has not."""
    calls = calls_of((None, "main", 1, 20 * MS), ("main", "step", 3, 60 * MS))
    ops = [op("aten::mm", ts=0, dur=MS), op("aten::add", ts=98 * MS, dur=MS)]
    report = open_report(trace_of(*ops, calls=calls))
    report.page.get_by_role("button", name="show: The Python function").click()
    expect(tab(report, "Python functions")).to_have_attribute("aria-selected", "true")
    chosen = report.page.locator("tr[aria-selected=true]")
    expect(chosen).to_contain_text("(step)")
    expect(chosen).to_be_in_viewport()
    expect(report.selection_text).to_contain_text("is not on the timeline")
