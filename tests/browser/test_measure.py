"""Measuring between two points of the timeline: on events and between, by mouse and keyboard."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Locator, Page, Position, expect

from gpuprof_widgets.trace.model import Record
from tests.browser.report_page import Open, Report, too_faint
from tests.browser.test_tracks import ranks
from tests.traces import kernel, op, runtime, trace_of

MS = 1_000_000
NBSP, THIN = "\u00a0", "\u202f"
STARTS = {"aten::mm": 2_000_123, "sgemm": 5_000_456, "nccl": 8_000_001}
ENDS = {"aten::mm": 4_000_123, "sgemm": 7_500_789, "nccl": 9_000_002}


@cache
def small() -> Record:
    """An op on a thread, and two kernels on streams of their own, at odd nanoseconds."""
    lengths = {name: ENDS[name] - ts for name, ts in STARTS.items()}
    return trace_of(
        op("aten::linear", ts=0, dur=10 * MS),
        op("aten::mm", ts=STARTS["aten::mm"], dur=lengths["aten::mm"]),
        runtime("cudaLaunchKernel", ts=3 * MS, dur=MS // 2),
        kernel("sgemm", ts=STARTS["sgemm"], dur=lengths["sgemm"], launched_by=2),
        kernel("nccl", ts=STARTS["nccl"], dur=lengths["nccl"], stream=20),
    )


def measured(page: Page) -> Locator:
    return page.get_by_role("status", name="Measured")


def words(report: Report) -> str:
    return measured(report.page).inner_text().replace(NBSP, " ").replace(THIN, " ")


def moment(ns: int) -> str:
    digits = f"{ns / MS:.6f}"
    return f"{digits[:-3]} {digits[-3:]} ms"


def sentence(first: str, second: str, ns: int, short: str) -> str:
    return f"{short} ({ns:,} ns) from {first} to {second}"


def end_of(name: str) -> str:
    return f"the end of {name} at {moment(ENDS[name])}"


def start_of(name: str) -> str:
    return f"the start of {name} at {moment(STARTS[name])}"


def box_of(report: Report, name: str) -> tuple[float, float, float, float]:
    """Where the timeline draws an event: x, y, width and height on its surface."""
    names = "Array.from(store.data.ts, (_, row) => store.data.name(row))"
    x, y, width, height = report.state(f"store.event_box({names}.indexOf('{name}'))")
    return x, y, width, height


def near(report: Report, name: str, side: str, off: float) -> Position:
    """A place some pixels away from the start or end of an event."""
    x, y, width, height = box_of(report, name)
    return {"x": x + (width if side == "end" else 0) + off, "y": y + height / 2}


def select(report: Report, name: str) -> None:
    x, y, width, height = box_of(report, name)
    report.timeline.click(position={"x": x + width / 2, "y": y + height / 2})
    expect(report.selection_text).to_contain_text(name)


def drag(report: Report, start: Position, end: Position) -> None:
    surface = report.timeline.bounding_box()
    assert surface is not None
    mouse = report.page.mouse
    mouse.move(surface["x"] + start["x"], surface["y"] + start["y"])
    mouse.down()
    mouse.move(surface["x"] + end["x"] - 30, surface["y"] + end["y"], steps=3)
    mouse.move(surface["x"] + end["x"], surface["y"] + end["y"], steps=3)
    mouse.up()


GAP = sentence(end_of("sgemm"), start_of("nccl"), 499_212, "499 µs")


def test_two_clicks_near_events_measure_between_them_exactly(open_report: Open) -> None:
    report = open_report(small())
    report.timeline.press("m")
    expect(measured(report.page)).to_contain_text("Measure")
    report.timeline.click(position=near(report, "sgemm", "end", 5))
    expect(measured(report.page)).to_contain_text("From the end of sgemm")
    report.timeline.click(position=near(report, "nccl", "start", -6))
    assert words(report) == GAP
    assert report.state("[store.selection, store.window]") == [None, None]
    select(report, "aten::mm")  # the next click selects again
    assert words(report) == GAP


def test_a_drag_measures_in_either_direction(open_report: Open) -> None:
    report = open_report(small())
    left, right = near(report, "sgemm", "end", 3), near(report, "nccl", "start", 3)
    for first, second in ((left, right), (right, left)):
        report.page.get_by_role("button", name="Measure", exact=True).click()
        drag(report, first, second)
        assert words(report) == GAP
    assert report.state("store.window") is None


def test_points_away_from_events_are_what_was_pointed_at(open_report: Open) -> None:
    report = open_report(small())
    report.timeline.press("m")
    x, y, width, height = box_of(report, "sgemm")
    report.timeline.click(position={"x": x + width / 2, "y": y + height / 2})
    report.timeline.click(position={"x": x + width / 2 + 100, "y": y + height / 2})
    assert " of " not in words(report)
    box = report.timeline.bounding_box()
    assert box is not None
    expected = 100 * 10 * MS / box["width"]
    length = float(words(report).split("(")[1].split(" ns")[0].replace(",", ""))
    assert length == pytest.approx(expected, abs=20_000)


def test_ends_snap_to_the_track_that_is_pointed_at(open_report: Open) -> None:
    report = open_report(small())
    report.timeline.press("m")
    x, *_ = box_of(report, "aten::mm")
    _, y, _, height = box_of(report, "sgemm")
    report.timeline.click(position={"x": x + 2, "y": y + height / 2})  # on the kernel's track
    expect(measured(report.page)).to_contain_text("From")
    assert "aten::mm" not in words(report)
    _, y, _, height = box_of(report, "aten::linear")
    report.timeline.click(position={"x": x + 2, "y": y + height / 2})  # the level above
    assert f"the start of aten::mm at {moment(STARTS['aten::mm'])}" in words(report)


def test_measures_by_keyboard_from_event_to_event(open_report: Open) -> None:
    report = open_report(small())
    select(report, "aten::mm")
    report.timeline.press("m")
    expect(measured(report.page)).to_contain_text("From the start of aten::mm")
    select_by_key(report, "sgemm")
    report.timeline.press("m")
    assert words(report) == sentence(start_of("aten::mm"), start_of("sgemm"), 3_000_333, "3.00 ms")
    report.timeline.press("m")
    report.timeline.press("Shift+M")  # of one event: its own time
    assert words(report) == sentence(start_of("sgemm"), end_of("sgemm"), 2_500_333, "2.50 ms")


def select_by_key(report: Report, name: str) -> None:
    report.page.get_by_role("combobox", name="Show").select_option("all categories")
    report.table.locator("tbody tr", has_text=name).press("Enter")
    report.page.keyboard.press(".")
    report.timeline.focus()
    expect(report.selection_text).to_contain_text(name)


def test_escape_ends_the_measurement_before_the_selection(open_report: Open) -> None:
    report = open_report(small())
    report.brush(0.1, 0.9)
    select(report, "aten::mm")
    for key in ("m", "Shift+M"):
        report.timeline.press(key)
    before = words(report)
    report.timeline.press("Escape")
    expect(measured(report.page)).to_be_hidden()
    expect(report.selection_text).to_contain_text("aten::mm")
    report.timeline.press("Backspace")
    assert words(report) == before
    for key in ("Escape", "Escape"):
        report.timeline.press(key)
    expect(report.selection_text).to_contain_text("Nothing selected")
    report.timeline.press("Escape")
    expect(report.range_text).to_contain_text("Whole trace")


def test_escape_gives_up_a_drag_and_then_the_ruler(open_report: Open) -> None:
    report = open_report(small())
    report.timeline.press("m")
    surface = report.timeline.bounding_box()
    assert surface is not None
    report.page.mouse.move(surface["x"] + 50, surface["y"] + 60)
    report.page.mouse.down()
    report.page.mouse.move(surface["x"] + 250, surface["y"] + 60, steps=4)
    report.page.keyboard.press("Escape")
    report.page.mouse.up()
    expect(measured(report.page)).to_contain_text("Measure:")
    report.page.keyboard.press("Escape")
    expect(measured(report.page)).to_be_hidden()


@pytest.mark.parametrize("way", ["key", "button"])
def test_what_was_measured_becomes_the_range(open_report: Open, way: str) -> None:
    report = open_report(small())
    report.timeline.press("m")
    report.timeline.click(position=near(report, "sgemm", "end", 2))
    report.timeline.click(position=near(report, "nccl", "start", 2))
    if way == "key":
        report.timeline.press("r")
    else:
        report.page.get_by_role("button", name="Make it the range").click()
    expect(measured(report.page)).to_be_hidden()
    assert report.brushed() == (ENDS["sgemm"], STARTS["nccl"])
    report.timeline.press("Backspace")  # one step
    assert words(report) == GAP
    expect(report.range_text).to_contain_text("Whole trace")


def test_the_view_moves_and_zooms_while_measuring(open_report: Open) -> None:
    report = open_report(small())
    report.timeline.press("m")
    report.timeline.click(position=near(report, "aten::mm", "start", 2))
    for key in ("+", "+", "ArrowRight", "0"):
        report.timeline.press(key)
    report.timeline.click(position=near(report, "nccl", "end", -2))
    expected = sentence(start_of("aten::mm"), end_of("nccl"), 6_999_879, "7.00 ms")
    assert words(report) == expected


def test_measuring_moves_nothing_and_reset_ends_it(open_report: Open) -> None:
    report = open_report(small())
    before = report.timeline.bounding_box(), report.range_text.bounding_box()
    report.timeline.press("m")
    report.timeline.click(position=near(report, "sgemm", "end", 2))
    report.timeline.click(position=near(report, "nccl", "start", 2))
    assert (report.timeline.bounding_box(), report.range_text.bounding_box()) == before
    report.page.get_by_role("button", name="Reset").click()
    expect(measured(report.page)).to_be_hidden()


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_measurement_is_legible(open_report: Open, scheme: str) -> None:
    report = open_report(small())
    report.use_scheme(scheme)
    report.timeline.press("m")
    report.timeline.click(position=near(report, "sgemm", "end", 2))
    report.timeline.click(position=near(report, "nccl", "start", 2))
    assert too_faint(report.page) == []


def test_measures_between_two_ranks(browser: Browser, tmp_path: Path) -> None:
    (tmp_path / "ranks.html").write_text(ranks(tmp_path, 3).report(), encoding="utf-8")
    page = browser.new_page(viewport={"width": 1280, "height": 900})
    errors: list[str] = []
    page.on("pageerror", lambda error: errors.append(str(error)))
    page.goto((tmp_path / "ranks.html").as_uri())
    timelines = page.get_by_role("application", name="Timeline.")
    expect(timelines).to_have_count(3)
    timelines.nth(0).press("m")
    for rank, side in ((0, "start"), (2, "end")):
        x, y, width, height = page.evaluate(KERNEL, rank)
        place: Position = {"x": x + 2 + (width if side == "end" else 0), "y": y + height / 2}
        timelines.nth(rank).click(position=place)
    expect(measured(page)).to_contain_text("(1,000,002 ns) from the start of rank 0: sgemm")
    expect(measured(page)).to_contain_text("to the end of rank 2: sgemm")
    timelines.nth(1).press("Escape")
    expect(measured(page)).to_be_hidden()
    assert errors == []
    page.close()


KERNEL = """rank => {
    const store = Object.values(window.gpuprof.reports)[rank]
    const names = Array.from(store.data.ts, (_, row) => store.data.name(row))
    return store.event_box(names.indexOf("sgemm"))
}"""
