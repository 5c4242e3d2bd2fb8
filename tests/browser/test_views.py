"""The live report in Chromium, on pages from disk: drags, clicks, keys and what they show."""

from __future__ import annotations

import re
from dataclasses import replace
from functools import cache
from io import BytesIO
from pathlib import Path
from time import monotonic
from typing import Any

import numpy as np
import pytest
from PIL import Image
from playwright.sync_api import Browser, Locator, Page, expect

from gpuprof_widgets.trace.model import Record
from gpuprof_widgets.trace.readers import load
from gpuprof_widgets.trace.window import window
from gpuprof_widgets.views.report import standalone_html
from tests.browser.report_page import Open, Report, contrasts, expected_rows, too_faint
from tests.traces import (
    Shared,
    annotation,
    calls_of,
    copy,
    kernel,
    memory,
    op,
    python,
    runtime,
    trace_of,
)

MS = 1_000_000
REAL = ("hta/nccl_a100_rank0_of_2", "kineto/resnet50_v100_num_workers_0")
HOSTILE = "<img src=x onerror=\"document.title='broken'\"><script>document.title='broken'</script>"


@cache
def small() -> Record:
    """One step: a matmul that launches a kernel, and a copy of a tensor that waits."""
    return trace_of(
        annotation("ProfilerStep#1", ts=0, dur=10 * MS),
        op("aten::linear", ts=1 * MS, dur=4 * MS, shapes=[[8, 16], [16, 4]]),
        op("aten::mm", ts=2 * MS, dur=2 * MS, shapes=[[8, 16], [16, 4]]),
        runtime("cudaLaunchKernel", ts=3 * MS, dur=MS // 2),
        op("aten::mm", ts=6 * MS, dur=1 * MS, shapes=[[8, 8], [8, 8]]),
        kernel("sgemm", ts=5 * MS, dur=3 * MS, launched_by=3),
        label="small step",
    )


def state(report: Report, expression: str) -> Any:
    """A JavaScript expression about the store, named ``store``."""
    store = "const store = Object.values(window.gpuprof.reports)[0]"
    return report.page.evaluate(f"(() => {{ {store}; return {expression} }})()")


def visible(report: Report) -> tuple[float, float]:
    start, end = state(report, "[store.visible.start, store.visible.end]")
    return start, end


def place_of(report: Report, row: int) -> tuple[float, float]:
    """Where an event is on the page, as the timeline itself draws it."""
    box = state(report, f"store.event_box({row})")
    surface = report.timeline.bounding_box()
    assert surface is not None
    x, y, width, height = box
    return surface["x"] + x + width / 2, surface["y"] + y + height / 2


def test_static_part_gives_way_to_the_live_views(open_report: Open) -> None:
    report = open_report(small())
    expect(report.page.locator(".gpuprof-static")).to_be_hidden()
    expect(report.page.get_by_role("heading", name="small step", level=2)).to_be_visible()
    assert report.op_rows() == expected_rows(small())


@pytest.mark.parametrize("name", REAL)
def test_brushed_range_gives_the_numbers_of_python(
    open_report: Open, name: str, shared: Shared
) -> None:
    record = load(shared(f"{name}.json.gz"))
    report = open_report(record)
    assert report.op_rows() == expected_rows(record)
    start, end = report.brush(0.31, 0.57)
    cut = replace(record, trace=window(record.trace, start, end))
    assert report.op_rows() == expected_rows(cut)
    start, end = report.brush(0.05, 0.08)
    cut = replace(record, trace=window(record.trace, start, end))
    assert report.op_rows() == expected_rows(cut)


def test_escape_pressed_three_times_and_reset_restore_everything(open_report: Open) -> None:
    report = open_report(small())
    whole = report.op_rows()
    for by_key in (True, False):
        report.brush(0.3, 0.5)
        report.timeline.press("+")
        report.table.locator("tbody tr").first.click()
        assert report.op_rows() != whole
        if by_key:
            for _ in ("selection", "range", "zoom"):
                report.timeline.press("Escape")
        else:
            report.page.get_by_role("button", name="Reset").click()
        assert state(report, "store.window") is None
        assert state(report, "store.selection") is None
        assert visible(report) == (0, 10 * MS)
        assert report.op_rows() == whole


def test_row_of_the_table_lights_up_its_events(open_report: Open) -> None:
    report = open_report(small())
    row = report.table.locator("tbody tr", has_text="aten::mm")
    row.click()
    expect(row).to_have_attribute("aria-selected", "true")
    expect(report.selection_text).to_contain_text("2 events highlighted")
    names = state(report, "Array.from(store.selection.rows, row => store.data.name(row))")
    assert names == ["aten::mm", "aten::mm"]
    row.click()
    assert state(report, "store.selection") is None


def test_kernel_shows_its_chain_and_selects_its_row(open_report: Open) -> None:
    report = open_report(small())
    report.page.mouse.click(*place_of(report, state(report, "store.data.rows - 1")))
    expect(report.selection_text).to_contain_text("sgemm")
    chain = report.selection_text.get_by_role("listitem").all_inner_texts()
    words = " ".join(chain)
    for owner in ("aten::linear", "aten::mm", "cudaLaunchKernel"):
        assert owner in words
    selected = report.table.locator("tr[aria-selected=true]")
    expect(selected).to_have_count(1)
    expect(selected).to_contain_text("sgemm")
    report.selection_text.get_by_role("button", name="aten::mm").click()
    expect(report.table.locator("tr[aria-selected=true]")).to_contain_text("aten::mm")


def test_hover_tells_times_and_moves_nothing(open_report: Open) -> None:
    report = open_report(small())
    before = report.table.bounding_box()
    report.page.mouse.move(*place_of(report, 1))
    tooltip = report.page.get_by_role("tooltip").filter(has_text="aten::linear")
    expect(tooltip).to_be_visible()
    expect(tooltip).to_contain_text("4.00 ms")
    expect(tooltip).to_contain_text("2.00 ms")  # self time: without aten::mm
    expect(tooltip).to_contain_text("[8, 16]")
    assert report.table.bounding_box() == before


def test_wheel_zooms_only_with_a_modifier(open_report: Open) -> None:
    report = open_report(small())
    report.page.set_viewport_size({"width": 1280, "height": 640})
    box = report.timeline.bounding_box()
    assert box is not None
    report.page.mouse.move(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
    report.page.mouse.wheel(0, 300)
    report.page.wait_for_function("window.scrollY > 0")
    assert visible(report) == (0, 10 * MS)
    report.page.evaluate("window.scrollTo(0, 0)")
    report.page.keyboard.down("Control")
    report.page.mouse.wheel(0, -300)
    report.page.keyboard.up("Control")
    report.page.wait_for_function("Object.values(window.gpuprof.reports)[0].visible.start > 0")
    start, end = visible(report)
    assert 0 < start < 5 * MS < end < 10 * MS
    report.page.keyboard.down("Shift")
    report.page.mouse.wheel(0, 200)
    report.page.keyboard.up("Shift")
    report.page.wait_for_function(
        f"Object.values(window.gpuprof.reports)[0].visible.start > {start}"
    )
    assert visible(report)[1] - visible(report)[0] == pytest.approx(end - start)


def test_keys_move_zoom_and_select(open_report: Open) -> None:
    report = open_report(small())
    timeline = report.timeline
    timeline.focus()
    timeline.press("+")
    start, end = visible(report)
    assert end - start == pytest.approx(10 * MS / 1.5)
    timeline.press("ArrowRight")
    assert visible(report)[0] > start
    timeline.press("0")
    assert visible(report) == (0, 10 * MS)
    timeline.press("Enter")
    assert state(report, "store.data.name(store.selection.row)") == "ProfilerStep#1"
    timeline.press("Shift+ArrowDown")
    assert state(report, "store.data.name(store.selection.row)") == "aten::linear"
    timeline.press("Shift+ArrowRight")
    assert state(report, "store.data.name(store.selection.row)") == "aten::mm"
    timeline.press("r")
    assert report.brushed() == (6 * MS, 7 * MS)


def test_flame_graph_zooms_and_returns(open_report: Open) -> None:
    report = open_report(small())
    flame = report.flame_graph
    flame.focus()
    crumbs = report.page.get_by_label("Zoomed path").get_by_role("button")
    for key in ("ArrowDown", "ArrowDown"):
        flame.press(key)
    expect(report.selection_text).to_contain_text("aten::linear")
    expect(report.table.locator("tr[aria-selected=true]")).to_contain_text("aten::linear")
    flame.press("Enter")
    assert crumbs.all_inner_texts()[1:] == ["ProfilerStep*", "aten::linear"]
    flame.press("Backspace")
    expect(crumbs).to_have_count(1)
    expect(report.selection_text).to_contain_text("aten::linear")
    flame.press("Enter")
    crumbs.nth(1).click()
    assert crumbs.all_inner_texts()[1:] == ["ProfilerStep*"]
    crumbs.first.click()
    expect(crumbs).to_have_count(1)


def test_flame_graph_is_cut_to_the_brushed_range(open_report: Open) -> None:
    report = open_report(small())
    report.brush(0.25, 0.45)
    start, end = report.brushed()
    expect(report.page.get_by_text("CPU time, selected range of")).to_be_visible()
    flame = report.flame_graph
    box = flame.bounding_box()
    assert box is not None
    report.page.mouse.move(box["x"] + box["width"] / 2, box["y"] + 28)
    tooltip = report.page.get_by_role("tooltip").filter(has_text="ProfilerStep*")
    expect(tooltip).to_contain_text(f"{(end - start) / MS:.2f} ms (100 %)")


def test_flame_graph_is_as_tall_as_the_tree_of_the_range(open_report: Open) -> None:
    """Five levels: threads, step, linear, mm, launch; three in the range, with room for four."""
    report = open_report(small())
    has_levels = "([graph, levels]) => Math.round(graph.clientHeight / 19) == levels"
    graph = report.flame_graph.element_handle()
    for change, levels in (("brush([6e6, 7e6])", 4), ("reset()", 5)):
        state(report, f"store.{change}")
        report.page.wait_for_function(has_levels, arg=[graph, levels])


def operators_of(report: Report) -> Locator:
    return report.page.get_by_role("group", name="Op table")


def cells_of(report: Report, name: str) -> dict[str, str]:
    """The texts of one row of the op table by the key of their column."""
    line = report.table.locator("tbody tr").filter(
        has=report.page.locator("td:first-child", has_text=re.compile(f"^{re.escape(name)}$"))
    )
    cells = line.locator("[data-column]")
    return dict(
        zip(
            cells.evaluate_all("cells => cells.map(cell => cell.dataset.column)"),
            [" ".join(text.split()) for text in cells.all_inner_texts()],
            strict=True,
        )
    )


def test_shares_and_totals_are_those_of_torchs_table_and_of_the_range(open_report: Open) -> None:
    report = open_report(small())
    below = operators_of(report).locator(".below")
    expect(below).to_have_text("Self CPU time total: 10.0 ms · Self GPU time total: 3.00 ms")
    assert cells_of(report, "aten::linear")["cpu_total_ns"] == "4.00 ms 40 %"
    assert cells_of(report, "aten::linear")["cpu_self_ns"] == "2.00 ms 20 %"
    assert cells_of(report, "ProfilerStep*")["cpu_total_ns"] == "10.0 ms 100 %"
    report.page.get_by_label("Filter rows").first.fill("linear")
    assert cells_of(report, "aten::linear")["cpu_total_ns"] == "4.00 ms 40 %"
    state(report, f"store.brush([{4 * MS}, {6 * MS}])")
    expect(below).to_have_text("Self CPU time total: 2.00 ms · Self GPU time total: 1.00 ms")
    assert cells_of(report, "aten::linear")["cpu_total_ns"] == "1.00 ms 50 %"
    report.page.get_by_label("Group by").select_option("category")
    expect(below).to_have_text("Self CPU time total: 2.00 ms · Self GPU time total: 1.00 ms")


def test_without_a_gpu_there_is_no_total_of_one(open_report: Open) -> None:
    report = open_report(trace_of(op("aten::mm", ts=0, dur=2 * MS)))
    expect(operators_of(report).locator(".below")).to_have_text("Self CPU time total: 2.00 ms")


@pytest.mark.parametrize("width", [1280, 1000, 900])
def test_a_table_of_all_columns_leaves_room_for_the_names(open_report: Open, width: int) -> None:
    long = op("autograd::engine::evaluate_function: AddmmBackward0", ts=2 * MS, dur=MS)
    mm = op("aten::mm", ts=0, dur=MS, shapes=[[512, 64], [64, 100]])
    rows = [mm, memory(512, ts=MS // 2)]
    more = [memory(4096, ts=MS // 2, device=0), kernel("sgemm", ts=MS, dur=MS, launched_by=0)]
    report = open_report(trace_of(*rows, *more, long))
    report.page.set_viewport_size({"width": width, "height": 900})
    assert len(report.table.locator("thead th").all()) == 10
    # The views follow the window's width a little later.
    fits = "width => document.documentElement.scrollWidth <= width"
    report.page.wait_for_function(fits, arg=width)
    box = report.table.locator("tbody td:first-child").first.bounding_box()
    assert box is not None
    assert box["width"] >= 150


def test_the_least_share_is_not_cut_off(open_report: Open) -> None:
    little = op("aten::view", ts=0, dur=22_222_222)
    report = open_report(trace_of(little, op("aten::mm", ts=30 * MS, dur=90_000 * MS)))
    cells = report.table.locator("td.number", has_text="22.2 ms <0.1 %")
    expect(cells).to_have_count(2)
    cut = cells.evaluate_all("cells => cells.map(cell => cell.scrollWidth > cell.clientWidth)")
    assert cut == [False, False]


@cache
def by_gpu_time() -> Record:
    """Most GPU time is of a copy that takes no CPU time; two streams overlap; one has no launch."""
    return trace_of(
        op("aten::linear", ts=1 * MS, dur=8 * MS),
        op("aten::mm", ts=2 * MS, dur=6 * MS),
        kernel("sgemm", ts=4 * MS, dur=2 * MS, launched_by=1),
        op("aten::copy_", ts=9 * MS, dur=1 * MS),
        copy(ts=5 * MS, dur=5 * MS, launched_by=3, stream=20),
        kernel("of_before", ts=11 * MS, dur=1 * MS),
        op("aten::empty", ts=11 * MS, dur=1 * MS),
    )


def widths(report: Report) -> dict[str, float]:
    """Share of the whole of every bar that is drawn."""
    drawn = """() => {
        const store = Object.values(window.gpuprof.reports)[0]
        const models = [...store.document.all_models]
        const {tree} = models.find(model => model.type.endsWith(".FlameGraph"))
        return tree.nodes.filter(({x0, x1}) => x1 > x0).map(({name, x0, x1}) => [name, x1 - x0])
    }"""
    return dict(report.page.evaluate(drawn))


def settled_box(report: Report) -> Any:
    """Where the flame graph is once the page has come to rest."""
    before, box = None, report.flame_graph.bounding_box()
    while box != before:
        report.page.wait_for_timeout(200)
        before, box = box, report.flame_graph.bounding_box()
    return box


def test_flame_graph_is_as_wide_as_gpu_time(open_report: Open) -> None:
    report = open_report(by_gpu_time())
    by = report.page.get_by_role("group", name="Width").get_by_role("button")
    expect(by).to_have_text(["CPU time", "GPU time"])
    expect(by.first).to_have_attribute("aria-pressed", "true")
    assert widths(report)["aten::linear"] == pytest.approx(0.8)
    box = settled_box(report)
    by.last.press("Enter")
    expect(by.last).to_have_attribute("aria-pressed", "true")
    expect(report.page.get_by_text("GPU time summed over streams that overlap")).to_be_visible()
    assert widths(report) == pytest.approx(
        {
            "all threads": 1,
            "aten::copy_": 5 / 8,
            "aten::linear": 2 / 8,
            "aten::mm": 2 / 8,
            "GPU work without a launch in the trace": 1 / 8,
        }
    )
    assert settled_box(report) == box


def test_a_bar_of_gpu_time_has_both_times_and_lights_up(open_report: Open) -> None:
    report = open_report(by_gpu_time())
    report.page.get_by_role("button", name="GPU time", exact=True).click()
    flame = report.flame_graph
    flame.focus()
    flame.press("ArrowDown")  # the widest one is the copy
    expect(report.selection_text).to_contain_text("aten::copy_")
    expect(report.selection_text).to_contain_text("GPU total 5.00 ms (62 %)")
    expect(report.selection_text).to_contain_text("CPU total 1.00 ms")
    assert state(report, "[...store.selection.rows].map(row => store.data.name(row))") == [
        "aten::copy_"
    ]
    flame.press("ArrowRight")
    flame.press("ArrowRight")
    expect(report.selection_text).to_contain_text("GPU work without a launch in the trace")
    expect(report.selection_text).to_contain_text("GPU total 1.00 ms (12 %)GPU events 1")
    assert state(report, "[...store.selection.rows].map(row => store.data.name(row))") == [
        "of_before"
    ]


def test_gpu_time_is_that_of_the_brushed_range(open_report: Open) -> None:
    report = open_report(by_gpu_time())
    report.page.get_by_role("button", name="GPU time", exact=True).click()
    report.flame_graph.press("ArrowDown")
    state(report, "store.brush([6e6, 8e6])")
    expect(report.page.get_by_text("GPU time, selected range of 2.00 ms")).to_be_visible()
    assert widths(report) == {"all threads": 1, "aten::copy_": 1}
    expect(report.selection_text).to_contain_text("GPU total 2.00 ms (100 %)")
    state(report, "store.brush([4e6, 5e6])")
    expect(report.page.get_by_text("streams that overlap, selected range of 1.00")).to_be_visible()
    assert widths(report)["aten::linear"] == pytest.approx(0.5)


def test_a_zoomed_bar_without_gpu_time_gives_way_to_what_is_around_it(open_report: Open) -> None:
    report = open_report(by_gpu_time())
    flame = report.flame_graph
    flame.focus()
    flame.press("ArrowDown")
    flame.press("ArrowRight")
    flame.press("ArrowRight")
    flame.press("Enter")
    shown = report.page.get_by_label("Zoomed path").get_by_role("button")
    expect(shown).to_have_text(["all threads", "aten::empty"])
    report.page.get_by_role("button", name="GPU time", exact=True).click()
    expect(shown).to_have_text(["all threads"])
    expect(report.selection_text).to_contain_text("GPU total 0 ns (0 %)")


def test_without_gpu_work_there_is_no_choice_of_widths(open_report: Open) -> None:
    report = open_report(trace_of(op("aten::mm", ts=0, dur=9)))
    expect(report.flame_graph).to_have_count(1)
    expect(report.page.get_by_role("group", name="Width")).to_have_count(0)


def test_zooming_leaves_nothing_of_the_bars_before(open_report: Open) -> None:
    deep = [op(f"level {n}", ts=0, dur=90) for n in range(4)]
    report = open_report(trace_of(*deep, op("aten::add", ts=100, dur=5)))
    report.flame_graph.focus()
    for key in ("ArrowDown", "ArrowRight", "Enter"):
        report.flame_graph.press(key)
    expect(report.selection_text).to_contain_text("aten::add")
    report.flame_graph.blur()  # the ring of the focus is drawn around it
    until = monotonic() + 10  # a frame may be drawn a little later
    while not (clean := is_of_one_colour_below(report)) and monotonic() < until:
        report.page.wait_for_timeout(200)
    assert clean


def is_of_one_colour_below(report: Report) -> bool:
    """Whether the lower half of the flame graph is empty."""
    picture = np.asarray(Image.open(BytesIO(report.flame_graph.screenshot())).convert("RGB"))
    below = picture[picture.shape[0] // 2 : -5]
    return bool((below == below[0, 50]).all())


def test_table_sorts_filters_and_groups(open_report: Open) -> None:
    report = open_report(small())
    head = report.table.get_by_role("button", name="CPU total")
    head.click()
    expect(report.table.locator("th", has_text="CPU total")).to_have_attribute(
        "aria-sort", "descending"
    )
    assert first_cells(report)[0] == "ProfilerStep*"
    head.click()
    expect(report.table.locator("th", has_text="CPU total")).to_have_attribute(
        "aria-sort", "ascending"
    )
    names = report.page.get_by_label("Filter rows").first
    names.fill("MM")
    assert first_cells(report) == ["aten::mm"]
    shown = report.page.get_by_role("combobox", name="Show")
    shown.select_option("all categories")
    assert first_cells(report) == ["sgemm", "aten::mm"]
    shown.select_option("kernel")
    assert first_cells(report) == ["sgemm"]
    shown.select_option("ops and runtime calls")
    operators_of(report).get_by_role("button", name="Regular expression").click()
    names.fill("^aten::(mm|bmm)$")
    assert first_cells(report) == ["aten::mm"]
    names.fill("(")
    expect(report.page.get_by_text("Not a regular expression")).to_be_visible()
    names.fill("")
    report.page.get_by_label("Group by").select_option("name_shape")
    assert first_cells(report).count("aten::mm") == 2
    report.page.get_by_label("Group by").select_option("category")
    assert set(first_cells(report)) == {"cpu_op", "user_annotation", "cuda_runtime", "kernel"}


def first_cells(report: Report) -> list[str]:
    return [text.strip() for text in report.table.locator("tbody td:first-child").all_inner_texts()]


def test_rows_of_the_table_are_chosen_by_keys(open_report: Open) -> None:
    report = open_report(small())
    rows = report.table.locator("tbody tr")
    rows.first.focus()
    report.page.keyboard.press("ArrowDown")
    expect(rows.nth(1)).to_be_focused()
    report.page.keyboard.press("Enter")
    expect(rows.nth(1)).to_have_attribute("aria-selected", "true")
    expect(rows.nth(1)).to_be_focused()


def test_copied_csv_is_the_table_with_times_in_ns(open_report: Open) -> None:
    report = open_report(small())
    report.page.evaluate("navigator.clipboard.writeText = async (text) => { window.copied = text }")
    report.page.get_by_label("Filter rows").first.fill("aten::mm")
    report.page.get_by_role("button", name="Copy CSV").first.click()
    expect(report.page.get_by_text("Copied 1 row")).to_be_visible()
    lines = report.page.evaluate("window.copied").splitlines()
    assert lines == [
        "name,category,input_shapes,calls,device_self_ns,device_total_ns,"
        "cpu_self_ns,cpu_total_ns,cpu_average_ns,flops",
        f"aten::mm,cpu_op,,2,{3 * MS},{3 * MS},{5 * MS // 2},{3 * MS},{3 * MS // 2},2048",
    ]


@cache
def allocating() -> Record:
    """A matmul that allocates on the CPU and on the GPU, and an op that does neither."""
    return trace_of(
        op("aten::mm", ts=0, dur=2 * MS, shapes=[[512, 64], [64, 100]]),
        op("aten::t", ts=3 * MS, dur=5 * MS),
        memory(3 * 512, ts=MS),
        memory(-512, ts=MS + 1),
        memory(4096, ts=MS + 2, device=0),
    )


def test_memory_and_flops_have_columns_where_they_are_recorded(open_report: Open) -> None:
    report = open_report(allocating(), sort="self_cuda_memory_usage")
    heads = report.table.locator("thead th")
    assert [head.rstrip("\xa0▾") for head in heads.all_inner_texts()][-3:] == [
        "CPU mem",
        "GPU mem",
        "FLOPs",
    ]
    expect(heads.filter(has_text="GPU mem")).to_have_attribute("aria-sort", "descending")
    cells = report.table.locator("tbody tr").first.locator("td")
    expect(cells.first).to_have_text("aten::mm")
    assert " ".join(" ".join(cells.all_inner_texts()).split()).endswith(
        "1.00 KiB 4.00 KiB 6.55 MFLOP"
    )
    report.page.evaluate("navigator.clipboard.writeText = async (text) => { window.copied = text }")
    report.page.get_by_role("button", name="Copy CSV").first.click()
    expect(report.page.get_by_text("Copied 2 rows")).to_be_visible()
    lines = report.page.evaluate("window.copied").splitlines()
    assert lines[0].endswith(",cpu_self_memory_bytes,device_self_memory_bytes,flops")
    assert lines[1].endswith(",1024,4096,6553600")


@pytest.mark.parametrize("sort", ["flops", "cpu_self_memory", "cpu_memory"])
def test_table_opens_in_the_order_that_was_asked_for(open_report: Open, sort: str) -> None:
    assert first_cells(open_report(allocating(), sort=sort)) == ["aten::mm", "aten::t"]
    assert first_cells(open_report(allocating())) == ["aten::t", "aten::mm"]


def test_no_calls_beside_gpu_time_are_explained(open_report: Open) -> None:
    report = open_report(small())
    state(report, f"store.brush([{7 * MS}, {8 * MS}])")
    line = report.table.locator("tbody tr", has_text="aten::mm")
    calls = line.locator("[data-column=calls]")
    expect(calls).to_have_text("0 ·")
    expect(calls).to_have_attribute("data-value", "0")
    expect(calls).to_have_attribute("title", "launched before the range; its GPU work runs in it")
    expect(line.locator("[data-column=device_self_ns]")).to_contain_text("1.00 ms")
    state(report, "store.brush(null)")
    expect(calls).to_have_text("2")
    assert calls.get_attribute("title") is None


def test_minimap_chooses_what_is_in_view(open_report: Open) -> None:
    report = open_report(small())
    minimap = report.page.get_by_role("application", name="Overview of the whole trace")
    box = minimap.bounding_box()
    assert box is not None
    mouse, y = report.page.mouse, box["y"] + 20
    mouse.move(box["x"] + 0.2 * box["width"], y)
    mouse.down()
    mouse.move(box["x"] + 0.5 * box["width"], y, steps=5)
    mouse.up()
    assert visible(report) == pytest.approx((2 * MS, 5 * MS), rel=0.02)
    mouse.move(box["x"] + 0.3 * box["width"], y)
    mouse.down()
    mouse.move(box["x"] + 0.5 * box["width"], y, steps=5)
    mouse.up()
    assert visible(report) == pytest.approx((3 * MS, 5 * MS), rel=0.02)
    minimap.press("0")
    assert visible(report) == (0, 10 * MS)
    assert state(report, "store.window") is None


def test_strips_of_the_overview_have_names_and_no_colour_of_a_family(open_report: Open) -> None:
    report = open_report(trace_of(op("aten::mm", ts=0, dur=100), kernel("sgemm", ts=0, dur=100)))
    expect(report.page.locator(".strips > span").filter(visible=True)).to_have_text(["CPU", "GPU"])
    minimap = report.page.get_by_role("application", name="Overview of the whole trace")
    picture = np.asarray(Image.open(BytesIO(minimap.screenshot())).convert("RGB")).astype(int)
    red, green, blue = picture[picture.shape[0] * 3 // 4, picture.shape[1] // 2]
    assert max(red, green, blue) - min(red, green, blue) < 12


def test_minimap_of_python_alone_shows_how_deep_its_calls_are(open_report: Open) -> None:
    """One function is around all others, so that something runs all the time."""
    deep = [python(f"level {i}", ts=4 * MS, dur=2 * MS) for i in range(12)]
    report = open_report(trace_of(python("main", ts=0, dur=10 * MS), *deep), without_table=True)
    minimap = report.page.get_by_role("application", name="Overview of the whole trace")
    picture = np.asarray(Image.open(BytesIO(minimap.screenshot())).convert("RGB")).astype(int)
    height, width, _ = picture.shape
    background = picture[height // 4, width // 20]
    drawn = (picture[height // 4] != background).any(axis=1)  # far above a depth of one in 13
    inside = drawn[width // 50 : -width // 50]  # without the frame of what is in view
    first, last = np.flatnonzero(inside)[[0, -1]] + width // 50
    assert (first / width, last / width) == pytest.approx((0.4, 0.6), abs=0.02)


def test_event_is_marked_in_the_flame_graph(open_report: Open) -> None:
    report = open_report(small())
    report.page.mouse.click(*place_of(report, state(report, "store.data.rows - 1")))
    marked = """() => {
        const store = Object.values(window.gpuprof.reports)[0]
        const models = [...store.document.all_models]
        const graph = models.find(model => model.type.endsWith(".FlameGraph"))
        return [...graph.marked].map(id => graph.tree.path(id).map(node => node.name))
    }"""
    # the kernel's op is the aten::mm inside aten::linear, not the one beside it
    assert report.page.evaluate(marked) == [
        ["all threads", "ProfilerStep*", "aten::linear", "aten::mm"]
    ]


def test_an_event_is_marked_in_another_source_of_the_flame_graph_too(open_report: Open) -> None:
    """Each source numbers its call paths by itself."""
    frames = [python(f"a.py({n}): f{n}", ts=n, dur=200 - 2 * n) for n in range(5)]
    record = trace_of(*frames, op("aten::add", ts=10, dur=20), op("aten::mm", ts=50, dur=20))
    report = open_report(record)
    report.page.mouse.click(*place_of(report, row_named(report, "aten::mm")))
    for source in ("ops", "merged"):
        state(report, f"{GRAPH}.setv({{source: '{source}'}})")
        report.settle()
        marked = state(report, f"[...{GRAPH}.marked].map((id) => {GRAPH}.tree.nodes[id].name)")
        assert marked == ["aten::mm"], source


GRAPH = "[...store.document.all_models].find(({type}) => type.endsWith('.FlameGraph'))"


def row_named(report: Report, name: str) -> int:
    names = state(report, "Array.from(store.data.label, (_, row) => store.data.name(row))")
    return int(names.index(name))


def test_deep_node_of_an_event_comes_into_view(open_report: Open) -> None:
    """A deep track that is alone is not folded at first: it pushes no other out of sight."""
    record = trace_of(*(op(f"level{i}", ts=i, dur=1000 - 2 * i) for i in range(60)))
    report = open_report(record)
    shown = report.page.get_by_label("Zoomed path").get_by_role("button")
    fold = report.page.locator("[data-track]")
    expect(fold).to_have_attribute("aria-expanded", "true")
    report.timeline.focus()
    report.timeline.press("Enter")
    for _ in range(50):
        report.timeline.press("Shift+ArrowDown")
    expect(report.selection_text).to_contain_text("level50")
    assert shown.count() > 50 - 22
    for expanded in ("false", "true"):
        fold.click()
        expect(fold).to_have_attribute("aria-expanded", expanded)


def test_report_of_an_instant(open_report: Open) -> None:
    record = trace_of(op("aten::add", ts=0, dur=10), op("only", ts=0, dur=0))
    cut = replace(record, trace=window(record.trace, 5, 6))
    report = open_report(cut)
    report.timeline.press("+")
    report.timeline.press("Enter")
    report.timeline.press("Escape")


def test_report_of_nothing_says_so(open_report: Open) -> None:
    record = trace_of(op("aten::add", ts=0, dur=10))
    report = open_report(replace(record, trace=window(record.trace, 5, 5)))
    expect(report.table).to_contain_text("No ops in this trace.")
    expect(report.timeline).to_have_count(0)
    expect(report.flame_graph).to_have_count(0)


def test_cprofiles_flame_graph_stands_alone(open_report: Open) -> None:
    calls = calls_of((None, "main", 1, 10), ("main", "load", 4, 300))
    report = open_report(trace_of(calls=calls), without_table=True)
    expect(report.flame_graph).to_have_count(1)
    expect(report.page.get_by_text("Python by cProfile (estimate)")).to_have_count(0)
    expect(report.page.get_by_text("An estimate: cProfile records")).to_be_visible()
    expect(report.timeline).to_have_count(0)
    expect(report.table).to_have_count(0)
    expect(report.page.get_by_label("Time range")).to_have_count(0)
    report.flame_graph.press("ArrowDown")
    report.flame_graph.press("Escape")


def test_a_run_of_python_alone_shows_its_functions(open_report: Open) -> None:
    record = trace_of(
        python("train.py(3): step", ts=0, dur=100),
        python("data.py(7): load", ts=10, dur=40),
    )
    report = open_report(record, without_table=True)
    expect(report.table).to_have_count(0)
    rows = report.page.get_by_role("table", name="Python functions").locator("tbody tr")
    expect(rows).to_have_count(2)
    expect(rows.first).to_contain_text("train.py:3(step)")
    start, end = report.brush(0.2, 0.6)
    shown = rows.filter(has_text="load").locator("[data-column=self_ns]")
    expect(shown).to_have_attribute("data-value", str(min(end, 50) - max(start, 10)))


def test_trace_without_cpu_work_has_no_empty_choice(open_report: Open) -> None:
    report = open_report(trace_of(kernel("gemm", ts=0, dur=5)))
    expect(report.table).to_contain_text("No ops in this trace.")
    expect(report.page.get_by_role("combobox", name="Source")).to_have_count(0)
    assert list(report.op_rows()) == ["gemm (kernel)"]


def test_every_event_of_a_long_trace_can_be_reached(open_report: Open) -> None:
    """200,000 events: together the views of all ranges show each of them once, by itself."""
    count = 200_000
    rng = np.random.default_rng(7)
    gaps = rng.integers(1, 9, count)
    starts = np.cumsum(gaps + 3) - gaps[0] - 3
    record = trace_of(*(op(f"op{i % 50}", ts=int(ts), dur=3) for i, ts in enumerate(starts)))
    report = open_report(record)
    merged_or_alone = """(share) => {
        const store = Object.values(window.gpuprof.reports)[0]
        const {engine} = store.constructor
        const pixels = 1000, whole = store.data.whole, seen = new Set(); let merged = 0
        for (let at = whole.start; at < whole.end; at += share) {
            const marks = engine.level_of_detail(store.data, 0, 0, at, at + share, pixels)
            marks.row.forEach((row, i) => { seen.add(row); merged += marks.merged[i] > 1 })
        }
        return [seen.size, merged]
    }"""
    seen, merged = report.page.evaluate(merged_or_alone, 2000)
    assert (seen, merged) == (count, 0)
    report.page.evaluate(
        "([a, b]) => Object.values(window.gpuprof.reports)[0].visible.setv({start: a, end: b})",
        [int(starts[100_000]) - 1, int(starts[100_009]) + 4],
    )
    for i in (100_000, 100_004, 100_009):
        report.page.mouse.move(*place_of(report, i))
        tooltip = report.page.get_by_role("tooltip").filter(has_text=f"op{i % 50}")
        expect(tooltip).to_be_visible()


def test_names_of_a_trace_are_never_markup(open_report: Open) -> None:
    record = trace_of(
        op(HOSTILE, ts=0, dur=9 * MS, shapes=[[1]]),
        runtime(HOSTILE, ts=1 * MS, dur=MS),
        kernel(HOSTILE, ts=3 * MS, dur=5 * MS, launched_by=1),
        python(HOSTILE, ts=0, dur=9 * MS),
        label=f"</script>{HOSTILE}",
        notes=[HOSTILE],
    )
    report = open_report(record)
    report.page.mouse.move(*place_of(report, 0))
    report.page.mouse.click(*place_of(report, state(report, "store.data.rows - 1")))
    report.table.locator("tbody tr").first.click()
    report.flame_graph.press("ArrowDown")
    report.page.get_by_role("searchbox", name="Search", exact=True).fill(HOSTILE)
    report.page.locator("summary").last.click()
    assert report.page.title() != "broken"
    assert report.page.locator(".gpuprof-report img, .gpuprof-report script").count() == 0


def test_page_has_no_text_of_low_contrast(open_report: Open) -> None:
    report = open_report(small())
    report.page.mouse.click(*place_of(report, state(report, "store.data.rows - 1")))
    for scheme in ("light", "dark"):
        report.use_scheme(scheme)
        assert too_faint(report.page) == []


def test_borders_and_fills_are_seen_in_both_themes(open_report: Open) -> None:
    report = open_report(small())
    report.page.get_by_role("button", name="Keys").click()
    for scheme in ("light", "dark"):
        report.use_scheme(scheme)
        seen = [what for _, needed, what in contrasts(report.page) if needed < 4.5]
        for kind in ("border of BUTTON Reset", "border of INPUT", "border of SELECT", "fill of"):
            assert any(what.startswith(kind) for what in seen), kind
        for kind in ("border of DIALOG", "border of KBD", "fill of swatch"):
            assert any(what.startswith(kind) for what in seen), kind
        assert too_faint(report.page) == []


def test_text_inside_bars_is_legible_in_both_themes(open_report: Open) -> None:
    report = open_report(small())
    for background in ([255, 255, 255], [17, 17, 17]):
        ratios = report.page.evaluate(BAR_CONTRASTS, background)
        assert len(ratios) > 100
        assert min(ratios) >= 4.5


BAR_CONTRASTS = """(background) => {
    const store = Object.values(window.gpuprof.reports)[0]
    const {paint_of, contrast, parse_colour, KINDS} = store.constructor.colours
    const names = Array.from({length: 40}, (_, i) => `op ${i}`)
    const paints = KINDS.flatMap(({categories}) =>
        names.map((name) => paint_of(name, categories[0] ?? "other", background)))
    const ratio = (a, b) => contrast(parse_colour(a).rgb, parse_colour(b).rgb)
    return paints.flatMap((p) => [ratio(p.fill, p.ink), ratio(p.dim_fill, p.dim_ink)])
}"""


def test_pale_bars_have_an_outline_that_is_seen(open_report: Open) -> None:
    report = open_report(small())
    outlined = []
    for background in ([255, 255, 255], [17, 17, 17]):
        fills, outlines = report.page.evaluate(FILL_CONTRASTS, background)
        assert all(max(pair) >= 3 for pair in zip(fills, outlines, strict=True))
        outlined.append(sum(outline > 0 for outline in outlines))
    assert all(0 < count < len(fills) for count in outlined)  # strong fills need none


FILL_CONTRASTS = """(background) => {
    const store = Object.values(window.gpuprof.reports)[0]
    const {paint_of, contrast, parse_colour, KINDS} = store.constructor.colours
    const paints = KINDS.flatMap(({categories}) => [0, 1, 2, 3, 4].map((i) =>
        paint_of(`op ${i}`, categories[0] ?? "other", background)))
    const ratio = (colour) => colour == null ? 0 : contrast(parse_colour(colour).rgb, background)
    return [paints.map(({fill}) => ratio(fill)), paints.map(({outline}) => ratio(outline))]
}"""


def test_bars_are_drawn_with_their_outlines(open_report: Open) -> None:
    report = open_report(small())
    outline = state(
        report,
        """store.constructor.colours.parse_colour(store.constructor.colours.paint_of(
            "aten::linear", "cpu_op", [255, 255, 255]).outline).rgb""",
    )
    for view in (report.flame_graph, report.timeline):
        view.scroll_into_view_if_needed()
        picture = np.asarray(Image.open(BytesIO(view.screenshot())).convert("RGB")).astype(int)
        assert (abs(picture - outline).max(axis=2) <= 1).sum() > 100


def test_finding_shows_its_range(open_report: Open) -> None:
    report = open_report(small())
    show = report.page.get_by_role("button", name="show:").first
    start, end = state(
        report, "store.finding_lines.map(f => [f.start, f.end]).find(([a]) => a != null)"
    )
    show.click()
    assert report.brushed() == (start, end)
    seen = visible(report)
    assert seen[0] <= start < end <= seen[1]


def test_finding_highlights_its_events(open_report: Open) -> None:
    report = open_report(small())
    report.page.get_by_role("button", name="show: GPU 0 is idle").click()
    names = state(report, "Array.from(store.selection.rows, row => store.data.name(row))")
    assert names == ["aten::linear", "sgemm"]
    expect(report.selection_text).to_contain_text("2 events highlighted")
    report.page.get_by_role("button", name="show: `aten::mm` causes").click()
    names = state(report, "Array.from(store.selection.rows, row => store.data.name(row))")
    assert names == ["sgemm"]
    report.timeline.press("Escape")
    assert state(report, "store.selection") is None


@pytest.mark.parametrize("width", [700, 1920])
def test_page_fits_its_width(open_report: Open, width: int) -> None:
    report = open_report(small())
    report.page.set_viewport_size({"width": width, "height": 900})
    # It is laid out anew a moment later.
    report.page.wait_for_function(f"document.documentElement.scrollWidth <= {width}")
    bounds = report.timeline.bounding_box()
    assert bounds is not None
    assert bounds["x"] + bounds["width"] <= width


def test_broken_data_leaves_the_static_part_and_says_why(browser: Browser, tmp_path: Path) -> None:
    page: Page = browser.new_page(bypass_csp=True)  # the page's policy lets no changed script run
    html = standalone_html(small())
    data = html.split('"page": "')[1].split('"')[0]
    path = tmp_path / "broken.html"
    path.write_text(html.replace(data, data[:400]), encoding="utf-8")
    page.goto(path.as_uri())
    expect(page.get_by_text("The interactive views could not start")).to_be_visible()
    expect(page.locator(".gpuprof-static table").first).to_be_visible()
    page.close()
