"""Steps through the events of a selection: buttons and keys, what moves and what stays."""

from __future__ import annotations

from functools import cache
from io import BytesIO

import pytest
from PIL import Image
from playwright.sync_api import Locator, expect

from gpuprof_widgets.trace.model import Record
from tests.browser.report_page import Open, Report
from tests.traces import kernel, op, python, runtime, trace_of

US = 1_000
MS = 1_000_000
CALLS = 12
TIMES = [5 * MS + 30 * MS * i for i in range(CALLS)]


@cache
def training() -> Record:
    """Ops 30 ms apart, each of which launches a kernel of 40 µs; below them a stack of frames."""
    rows = []
    for ts in TIMES:
        launch = len(rows) + 1
        rows += [
            op("aten::mm", ts=ts, dur=90 * US),
            runtime("cudaLaunchKernel", ts=ts + 10 * US, dur=5 * US),
            kernel("sgemm", ts=ts + 50 * US, dur=40 * US, launched_by=launch),
            kernel("relu", ts=ts + 95 * US, dur=2 * US),
        ]
    frames = (python(f"level{i}", ts=i, dur=400 * MS - 2 * i) for i in range(30))
    return trace_of(*rows, *frames)


def current(report: Report) -> tuple[str, int]:
    """Name and start of the current event."""
    name, ts = report.state(
        "[store.data.name(store.selection.row), store.data.ns(store.data.ts[store.selection.row])]",
    )
    return name, ts


def steps(report: Report) -> Locator:
    """Below the timeline, not in the search bar."""
    return report.page.locator("[aria-label='Selected events']:visible").last


def choose(report: Report, name: str) -> Locator:
    report.page.get_by_role("combobox", name="Show").select_option("all categories")
    row = report.table.locator("tbody tr", has_text=name)
    row.click()
    return row


def test_keys_step_through_the_events_of_a_row_and_keep_them_lit(open_report: Open) -> None:
    report = open_report(training())
    row = choose(report, "sgemm")
    expect(steps(report)).to_contain_text(f"{CALLS} events")
    view = report.state("[store.visible.start, store.visible.end]")
    for place in (1, 2, 3):
        report.page.keyboard.press(".")
        expect(steps(report)).to_contain_text(f"{place} of {CALLS}")
        assert current(report) == ("sgemm", TIMES[place - 1] + 50 * US)
        start, end = report.state("[store.visible.start, store.visible.end]")
        assert start < TIMES[place - 1] + 50 * US
        assert end > TIMES[place - 1] + 90 * US
        assert 1 / 5 <= 40 * US / (end - start) <= 1 / 3
        expect(report.selection_text).to_contain_text("Duration 40.0 µs")
        expect(report.selection_text.get_by_role("listitem")).to_contain_text(
            ["aten::mm", "cudaLaunchKernel", "sgemm"]
        )
        expect(row).to_have_attribute("aria-selected", "true")
        assert report.state("store.selection.rows.length") == CALLS
    report.page.keyboard.press(",")
    assert current(report) == ("sgemm", TIMES[1] + 50 * US)
    report.page.keyboard.press(",")
    report.page.keyboard.press(",")
    assert current(report) == ("sgemm", TIMES[-1] + 50 * US)
    report.page.keyboard.press(".")
    assert current(report) == ("sgemm", TIMES[0] + 50 * US)
    report.page.keyboard.press("Escape")
    assert report.state("store.selection") is None
    report.page.keyboard.press("Escape")
    assert report.state("[store.visible.start, store.visible.end]") == view
    expect(steps(report)).to_have_count(0)


def test_the_first_step_goes_to_what_is_in_view(open_report: Open) -> None:
    report = open_report(training())
    report.state(f"store.visible.setv({{start: {TIMES[4]}, end: {TIMES[7]}}})")
    choose(report, "aten::mm")
    steps(report).get_by_role("button", name="Next event").click()
    assert current(report) == ("aten::mm", TIMES[4])
    expect(steps(report)).to_contain_text(f"5 of {CALLS}")


def test_buttons_keep_the_focus_while_they_step(open_report: Open) -> None:
    report = open_report(training())
    choose(report, "aten::mm")
    forth = steps(report).get_by_role("button", name="Next event")
    forth.focus()
    for place in (1, 2, 3):
        report.page.keyboard.press("Enter")
        expect(steps(report)).to_contain_text(f"{place} of {CALLS}")
        expect(forth).to_be_focused()
    steps(report).get_by_role("button", name="Previous event").click()
    assert current(report) == ("aten::mm", TIMES[1])


def test_the_view_stands_still_while_events_fit(open_report: Open) -> None:
    """Neighbours of similar length are gone to without another zoom."""
    rows = [op("aten::add", ts=100 * US + 30 * US * i, dur=(20 + i % 3) * US) for i in range(40)]
    report = open_report(trace_of(*rows, op("end", ts=90 * MS, dur=US)))
    choose(report, "aten::add")
    report.page.keyboard.press(".")
    width = report.state("store.visible.end - store.visible.start")
    for _ in range(10):
        report.page.keyboard.press(".")
        assert report.state("store.visible.end - store.visible.start") == pytest.approx(width)
        start, end = report.state("[store.visible.start, store.visible.end]")
        _, ts = current(report)
        assert start <= ts
        assert ts + 20 * US <= end


def test_a_folded_track_is_unfolded_and_scrolled_to(open_report: Open) -> None:
    report = open_report(training())
    track = report.page.locator("[data-track][aria-expanded=false]")
    expect(track).to_have_count(1)
    for _ in range(27):
        report.flame_graph.press("ArrowDown")
    expect(report.selection_text).to_contain_text("level")
    expect(track).to_have_count(1)
    report.page.keyboard.press(".")
    expect(report.page.locator("[data-track][aria-expanded=false]")).to_have_count(0)
    row = report.state("store.selection.row")
    frame = report.timeline.bounding_box()
    assert frame is not None
    report.page.wait_for_function(
        """([row, height]) => {
            const store = Object.values(window.gpuprof.reports)[0]
            const [, y, , of] = store.event_box(row)
            return y >= 0 && y + of <= height + 1 && of > 10
        }""",
        arg=[row, frame["height"]],
    )


def test_a_bar_of_the_flame_graph_stays_marked_while_its_calls_are_gone_to(
    open_report: Open,
) -> None:
    report = open_report(training())
    for _ in range(31):
        report.flame_graph.press("ArrowDown")
    expect(report.selection_text).to_contain_text("aten::mm")
    marked = """() => {
        const store = Object.values(window.gpuprof.reports)[0]
        const models = [...store.document.all_models]
        return [...models.find(model => model.type.endsWith(".FlameGraph")).marked]
    }"""
    before = report.page.evaluate(marked)
    assert len(before) == 1
    report.page.keyboard.press(".")
    expect(steps(report)).to_contain_text(f"1 of {CALLS}")
    assert report.page.evaluate(marked) == before


def test_other_selected_events_stay_in_full_colour(open_report: Open) -> None:
    """The same pixels of the second event, while the first is the current one and without it."""
    rows = [op("aten::add", ts=i * MS, dur=800 * US) for i in range(4)]
    report = open_report(trace_of(*rows, op("aten::mul", ts=5 * MS, dur=MS)))
    full = "(store.constructor.colours.paint_of('aten::add', 'cpu_op', [255, 255, 255]).fill)"
    choose(report, "aten::add")
    report.page.keyboard.press(".")
    report.state("store.visible.setv({start: 0, end: 6000000})")
    shown = """(row) => {
        const store = Object.values(window.gpuprof.reports)[0]
        const [x, y, width, height] = store.event_box(row)
        return [x + width - 12, y + height - 4]
    }"""
    expected = [int(part) for part in report.state(full)[4:-1].split(",")[:3]]
    report.timeline.scroll_into_view_if_needed()
    box = report.timeline.bounding_box()
    assert box is not None
    for row in (1, 2):
        x, y = report.page.evaluate(shown, row)
        assert pixel(report, box["x"] + x, box["y"] + y) == pytest.approx(expected, abs=3)
    x, y = report.page.evaluate(shown, 4)
    assert pixel(report, box["x"] + x, box["y"] + y) != pytest.approx(expected, abs=40)


def pixel(report: Report, x: float, y: float) -> list[int]:
    shot = report.page.screenshot(clip={"x": x, "y": y, "width": 1, "height": 1})
    return list(Image.open(BytesIO(shot)).convert("RGB").getpixel((0, 0)))


def test_one_event_is_zoomed_to_by_the_same_key(open_report: Open) -> None:
    report = open_report(training())
    report.page.keyboard.press("Tab")
    choose(report, "aten::mm")
    report.page.keyboard.press(".")
    chain = report.selection_text.get_by_role("button", name="aten::mm")
    chain.click()
    expect(steps(report)).to_have_count(0)
    report.timeline.press("0")
    report.page.keyboard.press(".")
    start, end = report.state("[store.visible.start, store.visible.end]")
    assert 1 / 5 <= 90 * US / (end - start) <= 1 / 3
