"""The search box of the report: what lights up, what it says, and where its keys lead."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from pathlib import Path

from playwright.sync_api import Locator, expect

from gpuprof_widgets.comparisons import Comparison
from gpuprof_widgets.trace.model import Record
from tests.browser.report_page import Open, Report
from tests.traces import (
    annotation,
    calls_of,
    copy,
    kernel,
    op,
    runtime,
    trace_of,
)

MS = 1_000_000


@cache
def step() -> Record:
    """Two products, each with a kernel, one of which runs on beside the other's stream."""
    return trace_of(
        annotation("ProfilerStep#1", ts=0, dur=20 * MS),
        op("aten::linear", ts=1 * MS, dur=4 * MS),
        op("aten::mm", ts=2 * MS, dur=2 * MS),
        runtime("cudaLaunchKernel", ts=3 * MS, dur=MS // 2),
        kernel("ampere_sgemm_128x64", ts=5 * MS, dur=3 * MS, launched_by=3),
        op("aten::mm", ts=6 * MS, dur=1 * MS),
        runtime("cudaLaunchKernel", ts=6 * MS + MS // 4, dur=MS // 4),
        kernel("cutlass_GEMM", ts=7 * MS, dur=2 * MS, launched_by=6, stream=8),
        copy("Memcpy DtoH", ts=12 * MS, dur=MS),
        op("aten::relu", ts=14 * MS, dur=MS),
    )


def box(report: Report) -> Locator:
    return report.page.get_by_role("searchbox", name="Search", exact=True)


def result(report: Report) -> Locator:
    return report.page.get_by_role("group", name="Search and its result").get_by_role("status")


def lit(report: Report) -> list[str]:
    names: list[str] = report.state(
        "Array.from(store.selection?.rows ?? [], row => store.data.name(row))"
    )
    return names


def view(report: Report) -> list[float]:
    shown: list[float] = report.state("[store.visible.start, store.visible.end]")
    return shown


def test_the_box_shows_the_search_that_the_reader_goes_back_to(open_report: Open) -> None:
    report = open_report(step())
    box(report).press_sequentially("mm")
    expect(result(report)).to_contain_text("4 events")
    report.table.locator("tbody tr", has_text="aten::relu").click()
    box(report).focus()
    assert lit(report) == ["aten::relu"]
    report.timeline.focus()
    report.timeline.press("Backspace")
    assert len(lit(report)) == 4
    report.timeline.press("Backspace")
    expect(box(report)).to_have_value("m")
    assert len(lit(report)) > 4
    expect(result(report)).to_contain_text(f"{len(lit(report))} events")


def test_kernels_are_found_in_every_view(open_report: Open) -> None:
    report = open_report(step())
    before = view(report)
    box(report).fill("gemm")
    assert lit(report) == ["ampere_sgemm_128x64", "cutlass_GEMM"]
    assert view(report) == before
    expect(result(report)).to_have_text("2 events of 2 names · GPU 5.00 ms")
    selected = report.table.locator("tr[aria-selected=true]")
    expect(selected).to_have_count(2)
    expect(selected).to_contain_text(["gemm", "GEMM"])
    expect(report.page.get_by_text("2 bars launched a match")).to_be_visible()
    expect(report.selection_text).to_contain_text("2 events highlighted")


def test_ops_light_up_in_the_flame_graph_with_their_share(open_report: Open) -> None:
    report = open_report(step())
    box(report).fill("MM")
    # aten::mm in aten::linear is 2 ms and the one beside it 1 ms, of 20 ms; and the kernels' own
    expect(report.page.get_by_text("2 bars found, 15 % of the time")).to_be_visible()
    expect(result(report)).to_have_text("4 events of 3 names · CPU 3.00 ms · GPU 5.00 ms")
    report.page.get_by_role("group", name="Width").get_by_role("button", name="GPU time").click()
    expect(report.page.get_by_text("2 bars found, 83 % of the GPU time")).to_be_visible()
    box(report).fill("linear")
    expect(report.page.get_by_text("1 bar found, 50 % of the GPU time")).to_be_visible()
    box(report).fill("")
    expect(report.page.get_by_text("bar found")).to_have_count(0)
    assert report.state("store.selection") is None


def test_a_pattern_is_a_regular_expression_on_request(open_report: Open) -> None:
    report = open_report(step())
    box(report).fill("^aten::(mm|relu)$")
    expect(result(report)).to_have_text("No name matches")
    regex = report.page.get_by_role("group", name="Search and its result").get_by_role(
        "button", name="Regular expression"
    )
    regex.click()
    expect(result(report)).to_have_text("3 events of 2 names · CPU 4.00 ms")
    box(report).fill("aten::(")
    expect(result(report)).to_contain_text("Not a regular expression")
    assert report.state("store.selection") is None


def test_result_follows_the_range(open_report: Open) -> None:
    report = open_report(step())
    box(report).fill("gemm")
    report.state("store.brush([4000000, 6000000])")
    expect(result(report)).to_have_text("1 of 2 events in the range · GPU 1.00 ms")
    assert len(lit(report)) == 2
    report.state("store.brush(null)")
    expect(result(report)).to_have_text("2 events of 2 names · GPU 5.00 ms")


def test_slash_focuses_the_box_from_everywhere(open_report: Open) -> None:
    report = open_report(step())
    row = report.table.locator("tr[tabindex='0']")
    for place in (report.timeline, report.flame_graph, row):
        place.focus()
        report.page.keyboard.press("/")
        expect(box(report)).to_be_focused()
    report.page.keyboard.type("a/b,c.")
    expect(box(report)).to_have_value("a/b,c.")
    filter_rows = report.page.get_by_label("Filter rows").last
    filter_rows.focus()
    report.page.keyboard.type("/,.")
    expect(filter_rows).to_have_value("/,.")


def test_enter_walks_the_matches_and_escape_clears(open_report: Open) -> None:
    report = open_report(step())
    box(report).fill("gemm")
    steps = report.page.get_by_role("group", name="Search and its result").get_by_role(
        "group", name="Selected events"
    )
    expect(steps).to_contain_text("2 events")
    names = ["ampere_sgemm_128x64", "cutlass_GEMM"]
    presses = [("Enter", 0), ("Enter", 1), ("Enter", 0), ("Shift+Enter", 1), ("Shift+Enter", 0)]
    for key, match in presses:
        box(report).press(key)
        expect(steps).to_contain_text(f"{match + 1} of 2")
        expect(report.selection_text).to_contain_text(names[match])
        assert lit(report) == names
        expect(box(report)).to_be_focused()
    shown = view(report)
    box(report).press("Escape")
    expect(box(report)).to_have_value("")
    expect(result(report)).to_have_text("")
    assert report.state("store.selection") is None
    assert view(report) == shown


def test_a_search_lights_up_again_after_another_selection(open_report: Open) -> None:
    report = open_report(step())
    box(report).fill("gemm")
    row = report.table.locator("tbody tr", has_text="aten::relu")
    row.click()
    assert lit(report) == ["aten::relu"]
    expect(report.table.locator("tr[aria-selected=true]")).to_have_count(1)
    expect(report.page.get_by_text("launched a match")).to_have_count(0)
    expect(box(report)).to_have_value("gemm")
    box(report).press("Enter")
    assert lit(report) == ["ampere_sgemm_128x64", "cutlass_GEMM"]
    report.page.get_by_role("button", name="Reset").click()
    expect(box(report)).to_have_value("")
    expect(result(report)).to_have_text("")
    assert report.state("store.selection") is None


def test_enter_shows_functions_that_cprofile_alone_knows_in_their_table(open_report: Open) -> None:
    """Those found are listed though 39 others take longer, and one of them comes into view."""
    calls = calls_of(*((None, f"work{at}", 1, 1000 - at) for at in range(39)), (None, "rare", 1, 1))
    report = open_report(replace(step(), calls=calls))
    tab = report.page.get_by_role("tab", name="Python functions", exact=True)
    expect(tab).to_have_attribute("aria-selected", "false")
    box(report).fill("rare")
    row = report.page.locator("table[aria-label='Python functions'] tr[aria-selected=true]")
    expect(row).to_have_count(0)
    box(report).press("Enter")
    expect(tab).to_have_attribute("aria-selected", "true")
    expect(row).to_have_count(1)
    expect(row).to_contain_text("cell.py:40(rare)")
    expect(row).to_be_in_viewport()
    expect(box(report)).to_be_focused()
    box(report).fill("mm")
    expect(row).to_have_count(0)
    box(report).fill("work1")
    expect(row).to_have_count(11)
    # A click selects one of them, and Enter releases it.
    row.nth(3).click()
    expect(row).to_have_count(1)
    expect(report.selection_text).to_contain_text("is not on the timeline")
    row.press("f")  # there is no event to zoom to
    row.press("Enter")
    expect(row).to_have_count(0)
    assert report.state("store.selection") is None


def test_enter_shows_functions_of_compared_runs_in_their_table(
    open_report: Open, tmp_path: Path
) -> None:
    a, b = (
        replace(step(), calls=calls_of((None, "load", 1, 30), (None, "augment", 2, dur)))
        for dur in (70, 700)
    )
    report = open_report(step())
    path = tmp_path / "comparison.html"
    path.write_text(Comparison(a, b).report(), encoding="utf-8")
    page = report.page
    page.goto(path.as_uri())
    search = box(report)
    row = page.get_by_role("table", name="What differs").locator("tr[aria-selected=true]")
    # By the name of the table, the function is in line 2 of its file; "load" takes as long in both.
    for text, name in (("cell.py:2", "augment"), ("load", "load")):
        search.fill(text)
        search.press("Enter")
        expect(row).to_have_count(1)
        expect(row).to_contain_text(name)
        expect(row).to_be_in_viewport()
    shown = page.get_by_role("combobox", name="Show").locator("option:checked")
    expect(shown).to_have_text("Python functions by self time, of the run")


def test_functions_that_cprofile_alone_knows_are_found_beside_events(open_report: Open) -> None:
    calls = calls_of((None, "mm_all", 1, 30), ("mm_all", "augment", 2, 70))
    report = open_report(replace(step(), calls=calls))
    source = report.page.get_by_role("combobox", name="Source")
    source.select_option(label="Python by cProfile (estimate)")
    before = report.timeline.screenshot()
    box(report).fill("augment")
    expect(result(report)).to_have_text("1 function, not on the timeline")
    expect(report.page.get_by_text("1 bar found, 70 % of the time")).to_be_visible()
    assert report.timeline.screenshot() == before
    assert "cProfile" in (result(report).get_attribute("title") or "")
    box(report).fill("mm")
    expect(result(report)).to_have_text(
        "4 events of 3 names · CPU 3.00 ms · GPU 5.00 ms · 1 function, not on the timeline"
    )
    expect(report.page.get_by_text("1 bar found, 100 % of the time")).to_be_visible()


def test_a_search_without_a_match_lights_nothing_and_dims_nothing(open_report: Open) -> None:
    report = open_report(step())
    box(report).fill("gemm")
    assert len(lit(report)) == 2
    box(report).fill("gemmx")
    expect(result(report)).to_have_text("No name matches")
    assert report.state("store.selection") is None
    box(report).press("Enter")
    assert report.state("store.selection") is None
    box(report).fill("gemm")
    assert len(lit(report)) == 2


def test_one_box_searches_all_traces_of_a_page(open_report: Open, tmp_path: Path) -> None:
    a = trace_of(op("aten::mm", ts=0, dur=400), op("aten::old", ts=1_000, dur=100))
    b = trace_of(op("aten::mm", ts=500, dur=100), op("aten::mm", ts=2_000, dur=100))
    report = open_report(step())
    page = report.page
    (tmp_path / "two.html").write_text(Comparison(a, b).report(), encoding="utf-8")
    page.goto((tmp_path / "two.html").as_uri())
    box(report).fill("mm")
    expect(result(report)).to_have_text("3 events of 1 name · CPU 600 ns")
    stores = "Object.values(window.gpuprof.reports)"
    counts = page.evaluate(f"{stores}.map(s => s.selection.rows.length)")
    assert counts == [1, 2]
    shown = page.get_by_role("combobox", name="Show")
    shown.select_option(label="Ops by CPU self time of the run")
    row = page.get_by_role("table", name="What differs").locator("tbody tr", has_text="aten::mm")
    expect(row.first).to_have_attribute("aria-selected", "true")
    steps = page.get_by_role("group", name="Search and its result").get_by_role(
        "group", name="Selected events"
    )
    seen = []
    for place in (1, 2, 3, 1):
        box(report).press("Enter")
        expect(steps).to_contain_text(f"{place} of 3")
        seen.append(page.evaluate(f"{stores}.map(s => s.selection.row >= 0)"))
    expect(page.get_by_role("group", name="A", exact=True)).to_contain_text("aten::mm: 400 ns")
    assert seen == [[True, False], [False, True], [False, True], [True, False]]
    page.keyboard.press("Escape")
    assert page.evaluate(f"{stores}.map(s => s.selection)") == [None, None]
