"""The live report in Chromium, on pages from disk: drags, clicks, keys and what they show."""

from __future__ import annotations

import re
from dataclasses import replace
from functools import cache
from io import BytesIO
from pathlib import Path
from time import monotonic

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


def visible(report: Report) -> tuple[float, float]:
    start, end = report.state("[store.visible.start, store.visible.end]")
    return start, end


def selected_names(report: Report) -> list[str]:
    names: list[str] = report.state("Array.from(store.selection.rows, row => store.data.name(row))")
    return names


def place_of(report: Report, row: int) -> tuple[float, float]:
    """Where an event is on the page, as the timeline itself draws it."""
    box = report.state(f"store.event_box({row})")
    surface = report.timeline.bounding_box()
    assert surface is not None
    x, y, width, height = box
    return surface["x"] + x + width / 2, surface["y"] + y + height / 2


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


def test_kernel_shows_its_chain_and_selects_its_row(open_report: Open) -> None:
    report = open_report(small())
    report.page.mouse.click(*place_of(report, report.state("store.data.rows - 1")))
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
    assert report.state("store.data.name(store.selection.row)") == "ProfilerStep#1"
    timeline.press("Shift+ArrowDown")
    assert report.state("store.data.name(store.selection.row)") == "aten::linear"
    timeline.press("Shift+ArrowRight")
    assert report.state("store.data.name(store.selection.row)") == "aten::mm"
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


def test_flame_graph_is_as_tall_as_the_tree_of_the_range(open_report: Open) -> None:
    """Five levels: threads, step, linear, mm, launch; three in the range, with room for four."""
    report = open_report(small())
    has_levels = "([graph, levels]) => Math.round(graph.clientHeight / 19) == levels"
    graph = report.flame_graph.element_handle()
    for change, levels in (("brush([6e6, 7e6])", 4), ("reset()", 5)):
        report.state(f"store.{change}")
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
    report.state(f"store.brush([{4 * MS}, {6 * MS}])")
    expect(below).to_have_text("Self CPU time total: 2.00 ms · Self GPU time total: 1.00 ms")
    assert cells_of(report, "aten::linear")["cpu_total_ns"] == "1.00 ms 50 %"
    report.page.get_by_label("Group by").select_option("category")
    expect(below).to_have_text("Self CPU time total: 2.00 ms · Self GPU time total: 1.00 ms")


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


def test_flame_graph_is_as_wide_as_gpu_time_of_the_brushed_range(open_report: Open) -> None:
    report = open_report(by_gpu_time())
    by = report.page.get_by_role("group", name="Width").get_by_role("button")
    expect(by).to_have_text(["CPU time", "GPU time"])
    expect(by.first).to_have_attribute("aria-pressed", "true")
    assert widths(report)["aten::linear"] == pytest.approx(0.8)
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
    flame = report.flame_graph
    flame.focus()
    flame.press("ArrowDown")  # the widest one is the copy
    expect(report.selection_text).to_contain_text("aten::copy_")
    expect(report.selection_text).to_contain_text("GPU total 5.00 ms (62 %)")
    expect(report.selection_text).to_contain_text("CPU total 1.00 ms")
    assert selected_names(report) == ["aten::copy_"]
    report.state("store.brush([6e6, 8e6])")
    expect(report.page.get_by_text("GPU time, selected range of 2.00 ms")).to_be_visible()
    assert widths(report) == {"all threads": 1, "aten::copy_": 1}
    expect(report.selection_text).to_contain_text("GPU total 2.00 ms (100 %)")
    report.state("store.brush(null)")
    expect(report.selection_text).to_contain_text("GPU total 5.00 ms (62 %)")
    flame.press("ArrowRight")
    flame.press("ArrowRight")
    expect(report.selection_text).to_contain_text("GPU work without a launch in the trace")
    expect(report.selection_text).to_contain_text("GPU total 1.00 ms (12 %)GPU events 1")
    assert selected_names(report) == ["of_before"]


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


def test_table_filters_by_category_and_groups(open_report: Open) -> None:
    report = open_report(small())
    report.page.get_by_label("Filter rows").first.fill("MM")
    shown = report.page.get_by_role("combobox", name="Show")
    for category, rows in {
        "ops and runtime calls": ["aten::mm"],
        "all categories": ["aten::mm", "sgemm"],
        "kernel": ["sgemm"],
    }.items():
        shown.select_option(category)
        assert sorted(first_cells(report)) == rows
    shown.select_option("ops and runtime calls")
    report.page.get_by_label("Filter rows").first.fill("")
    report.page.get_by_label("Group by").select_option("name_shape")
    assert first_cells(report).count("aten::mm") == 2
    report.page.get_by_label("Group by").select_option("category")
    assert set(first_cells(report)) == {"cpu_op", "user_annotation", "cuda_runtime", "kernel"}


def first_cells(report: Report) -> list[str]:
    return [text.strip() for text in report.table.locator("tbody td:first-child").all_inner_texts()]


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
    assert lines[0] == (
        "name,category,input_shapes,calls,cpu_self_ns,cpu_total_ns,cpu_average_ns,"
        "cpu_self_memory_bytes,device_self_memory_bytes,flops"
    )
    assert lines[1] == f"aten::mm,cpu_op,,1,{2 * MS},{2 * MS},{2 * MS},1024,4096,6553600"


def test_table_opens_in_the_order_that_was_asked_for(open_report: Open) -> None:
    assert first_cells(open_report(allocating())) == ["aten::t", "aten::mm"]
    for sort in ("flops", "cpu_self_memory", "cpu_memory"):
        assert first_cells(open_report(allocating(), sort=sort)) == ["aten::mm", "aten::t"]


def test_no_calls_beside_gpu_time_are_explained(open_report: Open) -> None:
    report = open_report(small())
    report.state(f"store.brush([{7 * MS}, {8 * MS}])")
    line = report.table.locator("tbody tr", has_text="aten::mm")
    calls = line.locator("[data-column=calls]")
    expect(calls).to_have_text("0 ·")
    expect(calls).to_have_attribute("data-value", "0")
    expect(calls).to_have_attribute("title", "launched before the range; its GPU work runs in it")
    expect(line.locator("[data-column=device_self_ns]")).to_contain_text("1.00 ms")
    report.state("store.brush(null)")
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
    assert report.state("store.window") is None


def test_strips_of_the_overview_have_names_and_no_colour_of_a_family(open_report: Open) -> None:
    report = open_report(trace_of(op("aten::mm", ts=0, dur=100), kernel("sgemm", ts=0, dur=100)))
    expect(report.page.locator(".strips > span").filter(visible=True)).to_have_text(["CPU", "GPU"])
    minimap = report.page.get_by_role("application", name="Overview of the whole trace")
    picture = np.asarray(Image.open(BytesIO(minimap.screenshot())).convert("RGB")).astype(int)
    red, green, blue = picture[picture.shape[0] * 3 // 4, picture.shape[1] // 2]
    assert max(red, green, blue) - min(red, green, blue) < 12


def test_event_is_marked_in_the_flame_graph(open_report: Open) -> None:
    report = open_report(small())
    report.page.mouse.click(*place_of(report, report.state("store.data.rows - 1")))
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
        report.state(f"{GRAPH}.setv({{source: '{source}'}})")
        report.settle()
        marked = report.state(f"[...{GRAPH}.marked].map((id) => {GRAPH}.tree.nodes[id].name)")
        assert marked == ["aten::mm"], source


GRAPH = "[...store.document.all_models].find(({type}) => type.endsWith('.FlameGraph'))"


def row_named(report: Report, name: str) -> int:
    names = report.state("Array.from(store.data.label, (_, row) => store.data.name(row))")
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


def test_what_a_trace_does_not_hold_has_no_view_and_no_choice(open_report: Open) -> None:
    report = open_report(trace_of(op("aten::mm", ts=0, dur=2 * MS)))
    expect(report.flame_graph).to_have_count(1)
    expect(operators_of(report).locator(".below")).to_have_text("Self CPU time total: 2.00 ms")
    expect(report.page.get_by_role("group", name="Width")).to_have_count(0)
    expect(report.page.get_by_role("table", name="Lines")).to_have_count(0)
    expect(report.page.get_by_role("heading", name="Memory", exact=True)).to_have_count(0)
    report.timeline.press("?")
    keys = report.page.get_by_role("dialog", name="Keys", exact=True)
    expect(keys.get_by_role("heading", name="Timeline")).to_be_visible()
    expect(keys.get_by_role("heading", name="Memory")).to_have_count(0)
    report = open_report(trace_of(kernel("gemm", ts=0, dur=5)))
    expect(report.table).to_contain_text("No ops in this trace.")
    expect(report.page.get_by_role("combobox", name="Source")).to_have_count(0)
    assert list(report.op_rows()) == ["gemm (kernel)"]


def test_borders_and_fills_are_seen_in_both_themes(open_report: Open) -> None:
    report = open_report(small())
    report.page.mouse.click(*place_of(report, report.state("store.data.rows - 1")))
    report.page.get_by_role("button", name="Keys").click()
    for scheme in ("light", "dark"):
        report.use_scheme(scheme)
        seen = [what for _, needed, what in contrasts(report.page) if needed < 4.5]
        for kind in ("border of BUTTON Reset", "border of INPUT", "border of SELECT", "fill of"):
            assert any(what.startswith(kind) for what in seen), kind
        for kind in ("border of DIALOG", "border of KBD", "fill of swatch"):
            assert any(what.startswith(kind) for what in seen), kind
        assert too_faint(report.page) == []


def test_text_inside_bars_is_legible_and_pale_bars_have_an_outline(open_report: Open) -> None:
    report = open_report(small())
    for background in ([255, 255, 255], [17, 17, 17]):
        ratios = report.page.evaluate(BAR_CONTRASTS, background)
        assert len(ratios) > 100
        assert min(ratios) >= 4.5
        fills, outlines = report.page.evaluate(FILL_CONTRASTS, background)
        assert all(max(pair) >= 3 for pair in zip(fills, outlines, strict=True))
        assert 0 < sum(outline > 0 for outline in outlines) < len(fills)  # strong fills need none


BAR_CONTRASTS = """(background) => {
    const store = Object.values(window.gpuprof.reports)[0]
    const {paint_of, contrast, parse_colour, KINDS} = store.constructor.colours
    const names = Array.from({length: 40}, (_, i) => `op ${i}`)
    const paints = KINDS.flatMap(({categories}) =>
        names.map((name) => paint_of(name, categories[0] ?? "other", background)))
    const ratio = (a, b) => contrast(parse_colour(a).rgb, parse_colour(b).rgb)
    return paints.flatMap((p) => [ratio(p.fill, p.ink), ratio(p.dim_fill, p.dim_ink)])
}"""


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
    outline = report.state(
        """store.constructor.colours.parse_colour(store.constructor.colours.paint_of(
            "aten::linear", "cpu_op", [255, 255, 255]).outline).rgb""",
    )
    for view in (report.flame_graph, report.timeline):
        view.scroll_into_view_if_needed()
        picture = np.asarray(Image.open(BytesIO(view.screenshot())).convert("RGB")).astype(int)
        assert (abs(picture - outline).max(axis=2) <= 1).sum() > 100


def test_finding_highlights_its_events(open_report: Open) -> None:
    report = open_report(small())
    report.page.get_by_role("button", name="show: GPU 0 is idle").click()
    names = selected_names(report)
    assert names == ["aten::linear", "sgemm"]
    expect(report.selection_text).to_contain_text("2 events highlighted")
    report.page.get_by_role("button", name="show: `aten::mm` causes").click()
    names = selected_names(report)
    assert names == ["sgemm"]
    report.timeline.press("Escape")
    assert report.state("store.selection") is None


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
