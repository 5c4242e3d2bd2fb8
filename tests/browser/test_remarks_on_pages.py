"""Notes and the place at which a report opens, as its reader meets them."""

from __future__ import annotations

from playwright.sync_api import Browser, expect

from gpuprof_widgets.trace.model import Record
from gpuprof_widgets.trace.remarks import with_focus, with_remark
from gpuprof_widgets.views.side_by_side import Heading, Row, standalone_html
from tests.browser.report_page import Open, too_faint
from tests.traces import annotation, kernel, op, trace_of

MS = 1_000_000


def small() -> Record:
    return trace_of(
        annotation("step", ts=0, dur=100 * MS),
        op("aten::mm", ts=10 * MS, dur=40 * MS),
        op("aten::add", ts=60 * MS, dur=20 * MS),
        kernel("gemm", ts=20 * MS, dur=30 * MS, launched_by=1),
    )


def noted() -> Record:
    record = with_remark(small(), "the `gemm` waits for its launch", (20 * MS, 50 * MS))
    return with_remark(record, "from here on nothing runs", 80 * MS)


def test_notes_stand_above_the_findings_and_lead_to_their_time(open_report: Open) -> None:
    report = open_report(noted())
    rows = report.page.get_by_label("Notes", exact=True).get_by_role("listitem")
    expect(rows).to_have_text(
        [
            "from 20 ms to 50 msthe gemm waits for its launchshow",
            "at 80 msfrom here on nothing runsshow",
        ]
    )
    rows.first.get_by_role("button", name="show").click()
    assert report.brushed() == (20 * MS, 50 * MS)
    expect(report.selection_text).to_contain_text("the gemm waits for its launch")
    report.timeline.press("0")
    for _ in range(3):
        report.timeline.press("+")
    rows.nth(1).get_by_role("button", name="show").click()
    start, end = report.state("[store.visible.start, store.visible.end]")
    assert round((start + end) / 2) == 80 * MS
    expect(report.selection_text).to_contain_text("from here on nothing runs")


def test_notes_of_several_runs_are_listed_together(browser: Browser) -> None:
    rows = [Row(noted(), "first"), Row(with_remark(small(), "only here", 50 * MS), "second")]
    page = browser.new_page(viewport={"width": 1280, "height": 900})
    try:
        page.set_content(standalone_html(rows, Heading("Two runs"), html=""))
        notes = page.get_by_label("Notes", exact=True).get_by_role("listitem")
        expect(notes).to_have_count(3)
        expect(notes.nth(2)).to_contain_text("only here")
        notes.first.get_by_role("button", name="show").click()
        stores = "Object.values(window.gpuprof.reports)"
        brushed = page.evaluate(f"{stores}.map((store) => store.window)")
        assert brushed == [[20 * MS, 50 * MS]] * 2
    finally:
        page.close()


def test_a_report_opens_at_its_place(open_report: Open) -> None:
    names = [str(name) for name in small().trace.slices["name"]]
    rows = [names.index("aten::mm"), names.index("gemm")]
    report = open_report(with_focus(small(), (20 * MS, 60 * MS), rows, "what waits"))
    assert report.brushed() == (20 * MS, 60 * MS)
    assert report.state("[store.visible.start, store.visible.end]") == [10 * MS, 70 * MS]
    expect(report.selection_text).to_contain_text("what waits")
    expect(report.selection_text).to_contain_text("2 events")
    expect(report.table.locator("tr[aria-selected=true]").first).to_contain_text("aten::mm")
    assert report.op_rows()["aten::mm (cpu_op)"][1:] == (30 * MS, 30 * MS)
    expect(report.page.get_by_role("button", name="Back")).to_be_disabled()
    for press, left in (("Escape", "window"), ("Escape", "visible"), ("Escape", "nothing")):
        report.timeline.press(press)
        shown = {
            "window": "store.selection == null && store.window != null",
            "visible": "store.window == null && store.visible.end == 70e6",
            "nothing": "store.visible.start == 0 && store.visible.end == 100e6",
        }
        assert report.state(shown[left]), left


def test_a_place_of_events_alone_leaves_the_whole_trace_in_view(open_report: Open) -> None:
    names = [str(name) for name in small().trace.slices["name"]]
    report = open_report(with_focus(small(), None, [names.index("gemm")], "the kernel"))
    assert report.state("store.window") is None
    expect(report.selection_text).to_contain_text("the kernel")


def test_hostile_notes_are_text(open_report: Open) -> None:
    attack = "</script><img src=x onerror=alert(1)> `<b>` $\\href{javascript:1}{x}$ \u202e"
    attack += "x" * 9_000
    record = with_remark(small(), attack, (1, 5 * MS))
    report = open_report(with_focus(record, (1, 5 * MS), [0], attack))
    expect(report.page.get_by_label("Notes", exact=True)).to_contain_text("<img src=x")
    assert report.page.locator("img[src=x]").count() == 0
    assert report.page.evaluate("document.documentElement.scrollWidth") <= 1280


def test_notes_can_be_read_on_light_and_dark(open_report: Open) -> None:
    report = open_report(noted())
    for scheme in ("light", "dark"):
        report.use_scheme(scheme)
        assert too_faint(report.page) == []
