"""Tracks of the timeline: pinned, hidden, moved and found; no number changes."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Locator, Page, expect

import gpuprof_widgets
from gpuprof_widgets.many_ranks.profiles import RankProfiles
from gpuprof_widgets.trace.model import Record
from tests.browser.report_page import Open, Report, too_faint
from tests.job import rank_record, saved
from tests.traces import kernel, op, runtime, trace_of

MS = 1_000_000
THREADS = 30


@cache
def many() -> Record:
    """Threads with one op each, the first of which is nested and launches work on two streams."""
    nested = [op(f"aten::level{i}", ts=i, dur=9 * MS - 2 * i, thread=1) for i in range(4)]
    others = [op(f"aten::op{i}", ts=0, dur=9 * MS, thread=i) for i in range(2, THREADS + 1)]
    return trace_of(
        *nested,
        *others,
        runtime("cudaLaunchKernel", ts=MS, dur=MS, thread=1),
        kernel("sgemm", ts=3 * MS, dur=3 * MS, launched_by=len(nested) + len(others)),
        kernel("nccl", ts=5 * MS, dur=3 * MS, stream=20),
    )


@cache
def few() -> Record:
    return trace_of(*(op(f"aten::op{i}", ts=0, dur=9 * MS, thread=i) for i in range(1, 5)))


def names(page: Page) -> list[str]:
    """The names of the shown tracks from top to bottom."""
    found: list[tuple[float, str]] = page.locator("[data-track]").evaluate_all(
        "els => els.map(el => [el.getBoundingClientRect().top, el.title.split(': ')[0]])"
    )
    return [name for _, name in sorted(found)]


def threads(report: Report) -> list[int]:
    """The numbers of the threads in the order of their tracks."""
    return [int(name.split()[-1]) for name in names(report.page) if "thread" in name]


def label(report: Report, name: str) -> Locator:
    return report.page.locator(f"[data-track][title^='{name}']")


def thread(report: Report, number: int) -> Locator:
    name = f"thread {number}"
    return report.page.locator(f"[data-track][title='{name}'], [data-track][title^='{name}:']")


def choose(report: Report, name: Locator, entry: str) -> None:
    """Choose an entry of a track's menu with the mouse."""
    name.hover()
    name.locator("xpath=..").get_by_role("button", name="Menu of").click()
    report.page.get_by_role("menuitem", name=entry).click()


def hidden(report: Report) -> Locator:
    return report.page.get_by_role("button", name="hidden track")


def top_of(part: Locator) -> float:
    box = part.bounding_box()
    assert box is not None
    return box["y"]


def row_of(report: Report, name: str) -> int:
    return int(
        report.state(
            f"Array.from(store.data.ts, (_, row) => store.data.name(row)).indexOf('{name}')"
        )
    )


def box_of(report: Report, name: str) -> Any:
    """Where the timeline draws an event; None where its track is not shown."""
    return report.state(f"store.event_box({row_of(report, name)})")


def scroll(report: Report, by: float) -> None:
    report.timeline.hover()
    report.page.mouse.wheel(0, by)


def test_a_pinned_track_stands_on_top_and_stays_there(open_report: Open) -> None:
    report = open_report(many())
    before = report.op_rows()
    choose(report, thread(report, 9), "Pin to the top")
    assert threads(report)[:3] == [9, 1, 2]
    place = top_of(thread(report, 9))
    drawn = box_of(report, "aten::op9")
    under = box_of(report, "aten::op12")
    scroll(report, 300)
    report.page.wait_for_function(
        "([row, y]) => Object.values(window.gpuprof.reports)[0].event_box(row)[1] < y",
        arg=[row_of(report, "aten::op12"), under[1] - 250],
    )
    assert top_of(thread(report, 9)) == place
    assert box_of(report, "aten::op9") == drawn
    assert report.op_rows() == before
    choose(report, thread(report, 9), "Unpin")
    assert threads(report) == list(range(1, THREADS + 1))


def test_what_scrolls_under_a_pinned_track_is_not_clicked(open_report: Open) -> None:
    report = open_report(many())
    thread(report, 30).focus()
    report.page.keyboard.press("p")
    for distance in (0, 200, 5_000):
        scroll(report, distance)
        x, y, width, height = box_of(report, "aten::op30")
        report.timeline.click(position={"x": x + width / 2, "y": y + height / 2})
        expect(report.selection_text).to_contain_text("aten::op30")
        report.page.keyboard.press("Escape")


def test_a_tall_track_is_folded_to_stay_on_top(open_report: Open) -> None:
    deep = [op(f"aten::level{i}", ts=i, dur=9 * MS - 2 * i, thread=1) for i in range(20)]
    others = [op(f"aten::op{i}", ts=0, dur=9 * MS, thread=i) for i in range(2, 30)]
    report = open_report(trace_of(*deep, *others))
    expect(thread(report, 1)).to_have_attribute("aria-expanded", "true")
    thread(report, 1).focus()
    report.page.keyboard.press("p")
    expect(thread(report, 1)).to_have_attribute("aria-expanded", "false")
    place = top_of(thread(report, 1))
    scroll(report, 400)
    expect(thread(report, 30 - 1)).to_be_in_viewport()
    assert top_of(thread(report, 1)) == place


def test_hidden_tracks_leave_and_a_button_brings_them_back(open_report: Open) -> None:
    report = open_report(few())
    before = report.op_rows()
    expect(hidden(report)).to_be_hidden()
    choose(report, thread(report, 2), "Hide")
    choose(report, thread(report, 3), "Hide")
    assert threads(report) == [1, 4]
    assert box_of(report, "aten::op2") is None
    expect(hidden(report)).to_have_text("2 hidden tracks: show")
    assert report.op_rows() == before
    hidden(report).click()
    assert threads(report) == [1, 2, 3, 4]
    expect(hidden(report)).to_be_hidden()


def test_all_tracks_can_be_hidden(open_report: Open) -> None:
    report = open_report(few())
    thread(report, 1).focus()
    for _ in range(4):
        report.page.keyboard.press("h")
    assert names(report.page) == []
    report.timeline.press("Enter")
    report.timeline.press("+")
    expect(hidden(report)).to_have_text("4 hidden tracks: show")
    hidden(report).press("Enter")
    assert threads(report) == [1, 2, 3, 4]


def test_going_to_an_event_shows_its_hidden_track(open_report: Open) -> None:
    report = open_report(few())
    choose(report, thread(report, 3), "Hide")
    report.table.locator("tbody tr", has_text="aten::op3").click()
    assert threads(report) == [1, 2, 4]
    report.page.keyboard.press(".")
    assert threads(report) == [1, 2, 3, 4]
    assert box_of(report, "aten::op3") is not None


def test_tracks_are_arranged_by_keyboard(open_report: Open) -> None:
    report = open_report(few())
    keyboard = report.page.keyboard
    report.timeline.focus()
    keyboard.press("Tab")
    expect(thread(report, 1)).to_be_focused()
    keyboard.press("ArrowDown")
    expect(thread(report, 2)).to_be_focused()
    keyboard.press("Alt+ArrowDown")
    assert threads(report) == [1, 3, 2, 4]
    expect(thread(report, 2)).to_be_focused()
    keyboard.press("Alt+ArrowUp")
    keyboard.press("Alt+ArrowUp")
    keyboard.press("Alt+ArrowUp")
    assert threads(report) == [2, 1, 3, 4]
    keyboard.press("End")
    keyboard.press("p")
    assert threads(report) == [4, 2, 1, 3]
    expect(thread(report, 4)).to_be_focused()
    keyboard.press("h")
    assert threads(report) == [2, 1, 3]
    expect(thread(report, 2)).to_be_focused()
    keyboard.press("Backspace")
    assert threads(report) == [4, 2, 1, 3]
    keyboard.press("Tab")  # the tracks are one stop
    assert report.page.locator("[data-track]:focus").count() == 0


def test_the_menu_works_by_keyboard(open_report: Open) -> None:
    report = open_report(many())
    keyboard = report.page.keyboard
    name = thread(report, 1)
    name.focus()
    keyboard.press("ArrowRight")
    entries = report.page.get_by_role("menuitem")
    expect(report.page.get_by_role("menu", name="thread 1")).to_be_visible()
    expect(entries.first).to_be_focused()
    expect(entries.first).to_contain_text("Fold")
    keyboard.press("Enter")
    expect(name).to_have_attribute("aria-expanded", "false")
    expect(name).to_be_focused()
    keyboard.press("ArrowRight")
    for _ in range(3):
        keyboard.press("ArrowDown")
    expect(entries.nth(3)).to_be_focused()
    expect(entries.nth(3)).to_have_attribute("aria-disabled", "true")  # it is the first
    keyboard.press("Enter")
    expect(entries.nth(3)).to_be_focused()
    keyboard.press("Escape")
    expect(entries).to_have_count(0)
    expect(name).to_be_focused()
    second = thread(report, 2)
    second.press("Enter")  # a track that has nothing to fold
    expect(entries.first).to_contain_text("Pin to the top")
    keyboard.press("ArrowUp")
    expect(entries.last).to_be_focused()
    keyboard.press(" ")
    assert threads(report)[:3] == [1, 3, 2]


def drag(report: Report, name: Locator, onto: Locator, *, share: float) -> None:
    """Drag a name to a share of the height of another one, and keep the button down."""
    mouse = report.page.mouse
    start, end = name.bounding_box(), onto.bounding_box()
    assert start is not None
    assert end is not None
    mouse.move(start["x"] + 20, start["y"] + 6)
    mouse.down()
    mouse.move(end["x"] + 20, end["y"] + share * end["height"], steps=5)


def test_a_track_is_dragged_to_its_place(open_report: Open) -> None:
    report = open_report(few())
    drag(report, thread(report, 1), thread(report, 3), share=0.9)
    assert threads(report) == [1, 2, 3, 4]
    report.page.mouse.up()
    assert threads(report) == [2, 3, 1, 4]
    expect(report.page.get_by_role("menu")).to_have_count(0)
    drag(report, thread(report, 4), thread(report, 2), share=0.1)
    report.page.mouse.up()
    assert threads(report) == [4, 2, 3, 1]
    report.page.keyboard.press("Backspace")
    assert threads(report) == [2, 3, 1, 4]


def test_escape_gives_up_a_drag(open_report: Open) -> None:
    report = open_report(few())
    drag(report, thread(report, 1), thread(report, 4), share=0.9)
    report.page.keyboard.press("Escape")
    report.page.mouse.up()
    assert threads(report) == [1, 2, 3, 4]


def test_a_foldable_name_that_is_dragged_does_not_fold(open_report: Open) -> None:
    report = open_report(many())
    drag(report, thread(report, 1), thread(report, 3), share=0.9)
    report.page.mouse.up()
    assert threads(report)[:3] == [2, 3, 1]
    expect(thread(report, 1)).to_have_attribute("aria-expanded", "true")
    thread(report, 1).click()
    expect(thread(report, 1)).to_have_attribute("aria-expanded", "false")


def test_headings_name_the_tracks_below_them_in_any_order(open_report: Open) -> None:
    report = open_report(many())
    last = label(report, "GPU 0 · stream 20")
    last.scroll_into_view_if_needed()
    last.focus()
    for _ in range(40):
        report.page.keyboard.press("Alt+ArrowUp")
    assert names(report.page)[:2] == [
        "GPU 0 · stream 20",
        "thread 1",
    ]
    headings = report.page.locator(".gutter .group")
    expect(headings).to_have_text(["GPU 0", "CPU · process 100", "GPU 0"])
    report.page.keyboard.press("p")
    expect(headings).to_have_text(["Pinned", "CPU · process 100", "GPU 0"])
    expect(last).to_have_text("GPU 0 · stream 20")


def test_reset_restores_the_first_order(open_report: Open) -> None:
    report = open_report(few())
    thread(report, 2).focus()
    for key in ("h", "p", "ArrowDown", "Alt+ArrowDown"):
        report.page.keyboard.press(key)
    assert threads(report) != [1, 2, 3, 4]
    report.page.get_by_role("button", name="Reset").click()
    assert threads(report) == [1, 2, 3, 4]
    expect(hidden(report)).to_be_hidden()


def find_box(report: Report) -> Locator:
    return report.page.get_by_role("searchbox", name="Find a track")


def test_a_track_is_found_by_name(open_report: Open) -> None:
    report = open_report(many())
    report.timeline.press("t")
    expect(find_box(report)).to_be_focused()
    find_box(report).press_sequentially("STREAM")
    found = report.page.get_by_label("Found tracks")
    expect(found).to_have_text("1 of 2")
    assert is_seen(report, "sgemm")
    expect(report.page.locator(".found [data-track]")).to_have_text("stream 7")
    find_box(report).press("Enter")
    expect(found).to_have_text("2 of 2")
    assert is_seen(report, "nccl")
    find_box(report).press("Enter")
    expect(found).to_have_text("1 of 2")
    find_box(report).press("Shift+Enter")
    find_box(report).press("ArrowDown")
    expect(label(report, "GPU 0 · stream 20")).to_be_focused()
    report.page.keyboard.press("h")
    expect(found).to_have_text("1 of 1, 1 hidden")
    find_box(report).fill("no such track")
    expect(found).to_have_text("No track")
    expect(report.page.locator(".found")).to_have_count(0)
    find_box(report).press("Escape")
    expect(find_box(report)).to_have_value("")
    expect(found).to_have_text("")


def is_seen(report: Report, name: str) -> bool:
    """Whether the tracks are scrolled so that an event is in view."""
    _, y, _, height = box_of(report, name)
    surface = report.timeline.bounding_box()
    assert surface is not None
    return bool(y >= 0 and y + height <= surface["height"])


def test_few_tracks_need_no_box(open_report: Open) -> None:
    report = open_report(few())
    expect(find_box(report)).to_have_count(0)
    report.timeline.press("t")
    expect(report.timeline).to_be_focused()


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_names_menus_and_marks_are_legible(open_report: Open, scheme: str) -> None:
    report = open_report(many())
    report.use_scheme(scheme)
    choose(report, thread(report, 3), "Hide")
    thread(report, 2).focus()
    report.page.keyboard.press("p")
    find_box(report).fill("thread 5")
    label(report, "thread 5").focus()
    report.page.keyboard.press("ArrowRight")
    expect(report.page.get_by_role("menu")).to_be_visible()
    assert too_faint(report.page) == []


@pytest.mark.parametrize("count", [2, 5])
def test_each_of_several_timelines_has_its_own_tracks(
    browser: Browser, tmp_path: Path, count: int
) -> None:
    page_of = tmp_path / "ranks.html"
    page_of.write_text(ranks(tmp_path, count).report(), encoding="utf-8")
    context = browser.new_context(
        offline=True, bypass_csp=True, viewport={"width": 1280, "height": 900}
    )
    page = context.new_page()
    errors: list[str] = []
    page.on("pageerror", lambda error: errors.append(str(error)))
    page.goto(page_of.as_uri())
    timelines = page.get_by_role("application", name="Timeline.")
    expect(timelines).to_have_count(count)
    shown = page.locator("[data-track]")
    before = names(page)
    tracks = len(before)
    shown.nth(tracks // count).focus()
    page.keyboard.press("h")
    expect(shown).to_have_count(tracks - 1)
    expect(page.get_by_role("button", name="1 hidden track: show")).to_be_visible()
    shown.last.focus()
    page.keyboard.press("p")
    page.keyboard.press("Alt+ArrowUp")
    expect(shown).to_have_count(tracks - 1)
    page.get_by_role("button", name="Reset").click()
    expect(shown).to_have_count(tracks)
    assert names(page) == before
    for key in ("Backspace", "Backspace", "Backspace"):
        timelines.first.press(key)
    assert names(page) == before
    box = page.get_by_role("searchbox", name="Find a track")
    box.fill("thread 3")
    expect(page.get_by_label("Found tracks")).to_have_text(f"1 of {count}")
    for _ in range(count - 1):
        box.press("Enter")
    expect(page.get_by_label("Found tracks")).to_have_text(f"{count} of {count}")
    expect(page.locator(".found")).to_have_count(1)
    assert errors == []
    context.close()


def ranks(folder: Path, count: int) -> RankProfiles:
    """As many ranks with four threads and a GPU each."""
    threads = [op(f"aten::op{i}", ts=0, dur=9 * MS, thread=i) for i in range(1, 5)]
    records = [
        rank_record(rank, *threads, kernel("sgemm", ts=MS, dur=MS + rank)) for rank in range(count)
    ]
    saved(folder, records)
    return gpuprof_widgets.ranks(folder)
