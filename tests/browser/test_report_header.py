"""The top of the live report: cards, findings as rows, and the timeline on the first screen."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from playwright.sync_api import Locator, Page, expect

from gpuprof_widgets.analyses.findings import Finding, findings
from gpuprof_widgets.trace.model import Record
from gpuprof_widgets.trace.readers import load
from gpuprof_widgets.views import page as report_data
from gpuprof_widgets.views import report as static_report
from gpuprof_widgets.views.cards import cards
from tests.browser.conftest import Screenshot
from tests.browser.report_page import Open, Report, too_faint
from tests.traces import Shared, annotation, block, cell_line, copy, kernel, op, runtime, trace_of

MS = 1_000_000
LOADING = "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__"
REAL = "kineto/resnet50_v100_num_workers_0.json.gz"
ABOVE_THE_TIMELINE = 330
"""Pixels that title, cards, folded findings and search box may take."""


def slow() -> Record:
    """A cell with many findings: it waits for data and for the GPU, and its GPU is idle."""
    return trace_of(
        cell_line(2, "for x, y in loader:", ts=0, dur=1000 * MS),
        annotation(LOADING, ts=0, dur=250 * MS),
        cell_line(3, "loss = model(x)", ts=250 * MS, dur=150 * MS),
        op("aten::mm", ts=260 * MS, dur=100 * MS),
        runtime("cudaLaunchKernel", ts=300 * MS, dur=MS),
        cell_line(4, "print(loss.item())", ts=400 * MS, dur=400 * MS),
        op("aten::item", ts=410 * MS, dur=380 * MS),
        runtime("cudaStreamSynchronize", ts=420 * MS, dur=360 * MS),
        kernel("gemm", ts=320 * MS, dur=440 * MS, launched_by=4),
        copy("DtoH", ts=765 * MS, dur=5 * MS),
        block(3 * 2**20, at=1, ts=300 * MS, device=0, allocated=5 * 2**20, reserved=8 * 2**20),
        op("end", ts=990 * MS, dur=10 * MS),
        overhead={"events": 7, "estimate_ns": 100 * MS},
        wall_ns=1000 * MS,
        notes=["The cell was recorded twice."],
        label="Cell [3]",
    )  # fmt: skip


@contextmanager
def sized(report: Report, width: int, height: int) -> Iterator[Page]:
    """The report, opened anew in a window of that size: what is unfolded goes by its height."""
    page = report.page
    page.set_viewport_size({"width": width, "height": height})
    page.reload()
    Report.wait(page)
    yield page


def rows_of(report: Report) -> Locator:
    return report.page.get_by_label("Findings", exact=True).get_by_role("listitem")


def head(report: Report, title: str) -> Locator:
    """The part of a finding's row that unfolds it."""
    return rows_of(report).locator(".head", has_text=title)


def test_a_finding_is_a_row_with_its_cost_that_unfolds(open_report: Open) -> None:
    record = slow()
    found = findings(record)
    report = open_report(record)
    titles = [title.replace("`", "") for title in (each.title for each in found[:5])]
    shown = rows_of(report).locator(".title").all_inner_texts()
    assert [title.replace("\N{NO-BREAK SPACE}", " ") for title in shown] == titles
    first = found[0]
    assert f"{first.cost_ns / MS:.0f}" in rows_of(report).first.locator(".time").inner_text()
    width = rows_of(report).first.locator(".bar").evaluate("bar => bar.style.width")
    assert float(width.removesuffix("%")) == round(100 * first.share, 1)
    row = head(report, "aten::item waits for a busy GPU")
    sentence = report.page.get_by_text("waited 360 ms for the GPU").locator("visible=true")
    expect(row).to_have_attribute("aria-expanded", "false")
    expect(sentence).to_have_count(0)
    row.click()
    expect(row).to_have_attribute("aria-expanded", "true")
    expect(sentence).to_have_count(1)
    row.press("Enter")
    expect(sentence).to_have_count(0)
    row.press("Space")
    expect(sentence).to_have_count(1)
    words = report.page.locator(f"#{row.get_attribute('aria-controls')}")
    expect(words).to_contain_text(
        "This call waits for the final results: no GPU work came after it"
    )


def test_what_costs_nothing_has_no_bar(open_report: Open) -> None:
    report = open_report(slow())
    report.page.locator("summary", has_text="more finding").click()
    others = report.page.get_by_label("Lower cost").get_by_role("listitem")
    peak = others.filter(has_text="Peak memory of GPU 0 is 5.00 MiB")
    expect(peak).to_be_visible()
    expect(peak.locator(".bar")).to_have_count(0)
    report = open_report(trace_of(op("aten::mm", ts=0, dur=9 * MS), interrupted=True, wall_ns=1))
    expect(report.page.locator(".findings .bar").first).to_be_attached()
    report = open_report(trace_of(runtime("cudaLaunchKernel", ts=0, dur=9)))
    expect(report.page.locator(".findings li").first).to_be_visible()
    expect(report.page.locator(".findings .cost")).to_have_count(0)


def test_the_least_share_stands_beside_the_title_and_is_read_in_words(
    open_report: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    shares = [1.0, 0.57, 0.0004, 0.0003]
    found = [
        Finding("It costs time.", round(share * 900 * MS), share, remedy=remedy, title="`f` costs")
        for share, remedy in zip(shares, ["Do less.", "", "Do less.", ""], strict=True)
    ]
    monkeypatch.setattr(report_data, "findings", lambda _: found)
    report = open_report(slow())
    report.page.set_viewport_size({"width": 600, "height": 900})
    shown = rows_of(report).locator(".share")
    texts = [text.replace("\N{NO-BREAK SPACE}", " ") for text in shown.all_inner_texts()]
    assert texts == ["100 %", "57 %", "< 0.1 %", "< 0.1 %"]
    assert shown.evaluate_all(FITS) == [True] * 4
    ends = shown.evaluate_all("all => all.map(each => each.getBoundingClientRect().right)")
    assert len(set(ends)) == 1
    expect(head(report, "f costs").nth(2)).to_have_accessible_name(
        re.compile(r"less than 0\.1\s%\s*f costs")
    )


FITS = """all => all.map(share => {
  const range = document.createRange()
  range.selectNodeContents(share)
  const [text, box] = [range.getBoundingClientRect(), share.getBoundingClientRect()]
  return text.left >= box.left - 0.5 && text.right <= box.right + 0.5
})"""


def test_a_finding_without_a_title_is_its_sentence_and_unfolds_what_else_there_is(
    open_report: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = [Finding("`f` is slow.", remedy="Do less."), Finding("`g` is slow.")]
    monkeypatch.setattr(report_data, "findings", lambda _: found)
    report = open_report(slow())
    expect(head(report, "f is slow.")).to_have_attribute("aria-expanded", "true")
    expect(rows_of(report).first.locator(".words")).to_have_text("Do less.")
    expect(head(report, "g is slow.")).to_be_visible()
    expect(rows_of(report).last.get_by_role("button")).to_have_count(0)


def test_the_line_to_look_at_is_a_link_that_lights_it_up(open_report: Open) -> None:
    report = open_report(slow())
    head(report, "aten::item waits").click()
    link = report.page.get_by_role("button", name="Look at line 4: print(loss.item())", exact=True)
    expect(link).to_have_count(1)
    report.page.emulate_media(reduced_motion="reduce")
    report.page.set_viewport_size({"width": 1280, "height": 500})
    line = report.page.get_by_role("table", name="Lines").get_by_role("row", name="print(loss")
    for _ in range(2):  # once more, it stays lit
        link.press("Enter")
        expect(line).to_have_attribute("aria-selected", "true")
        expect(line).to_be_in_viewport()
        expect(line).to_be_focused()
    assert report.state("store.selection.source") == "lines"
    assert report.state("Array.from(store.selection.rows, row => store.data.name(row))") == [
        "4: print(loss.item())"
    ]
    remedies = [finding["remedy"] for finding in report.state("store.finding_lines")]
    assert any(remedies)
    assert [remedy for remedy in remedies if "Look at line" in remedy] == []  # the link says it


def test_cards_show_the_figures_of_python(open_report: Open) -> None:
    record = slow()
    known = cards(record)
    report = open_report(record)
    group = report.page.get_by_role("group", name="Summary").get_by_role("button")
    shown = [" ".join(text.split()) for text in group.all_inner_texts()]
    expected = [f"{card.label} {card.value} {card.detail}" for card in known.values()]
    assert shown == [" ".join(text.replace("`", "").split()) for text in expected]
    assert [card.label for card in known.values()] == [
        *("Recorded time", "GPU busy", "Input wait", "Top op", "Peak memory"),
    ]


def card(report: Report, label: str) -> Locator:
    return report.page.get_by_role("group", name="Summary").get_by_role("button", name=label)


def on_a_low_screen(report: Report) -> Report:
    """It scrolls at once."""
    report.page.emulate_media(reduced_motion="reduce")
    report.page.set_viewport_size({"width": 1280, "height": 500})
    return report


def test_cards_lead_to_what_they_tell_of(open_report: Open) -> None:
    still = on_a_low_screen(open_report(slow()))
    still.table.get_by_role("button", name="Name").click()  # it is no longer the first row
    card(still, "Top op").click()
    row = still.table.get_by_role("row", name="aten::mm")
    expect(row).to_have_attribute("aria-selected", "true")
    expect(row).to_be_in_viewport()
    expect(row).to_be_focused()
    card(still, "GPU busy").press("Enter")
    tab = still.page.get_by_role("tab", selected=True)
    expect(tab).to_have_text("Breakdown")
    expect(tab).to_be_in_viewport()
    expect(tab).to_be_focused()
    expect(still.page.get_by_role("table", name="Breakdown")).to_be_in_viewport()
    card(still, "Input wait").click()
    assert still.brushed() == (0, 250 * MS)
    names = still.state("Array.from(store.selection.rows, row => store.data.name(row))")
    assert [name.split("#")[0] for name in names] == ["enumerate(DataLoader)"]
    expect(still.timeline).to_be_in_viewport()
    card(still, "Peak memory").click()
    expect(still.page.get_by_label("Peak memory", exact=True)).to_be_in_viewport()
    assert still.state("store.selection.source") == "memory"
    still.timeline.press("+")
    card(still, "Recorded time").click()
    assert still.state("[store.visible.start, store.visible.end]") == [0, 1000 * MS]
    expect(still.timeline).to_be_in_viewport()


def test_the_card_of_the_communication_leads_to_the_collectives(open_report: Open) -> None:
    record = trace_of(
        op("c10d::allreduce_", ts=0, dur=10 * MS),
        runtime("cudaLaunchKernel", ts=MS, dur=MS),
        kernel("ncclDevKernel_AllReduce", ts=20 * MS, dur=50 * MS, stream=20, launched_by=1),
    )
    report = on_a_low_screen(open_report(record))
    card(report, "Exposed communication").click()
    tab = report.page.get_by_role("tab", selected=True)
    expect(tab).to_have_text("Collectives")
    expect(tab).to_be_in_viewport()
    expect(tab).to_be_focused()
    expect(report.page.get_by_role("table", name="Collectives")).to_be_in_viewport()


def top_part(page: Page) -> float:
    """Pixels from the title to the end of the search box."""
    first = page.get_by_role("heading", level=2).first.bounding_box()
    last = page.get_by_role("group", name="Search and its result").first.bounding_box()
    assert first is not None
    assert last is not None
    return last["y"] + last["height"] - first["y"]


@pytest.mark.parametrize("name", ["slow", REAL])
def test_the_timeline_is_on_the_first_screen(open_report: Open, shared: Shared, name: str) -> None:
    record = slow() if name == "slow" else load(shared(name))
    assert len(findings(record)) > static_report.FINDINGS_SHOWN
    report = open_report(record)
    with sized(report, 1280, 800) as page:
        expect(page.locator("[aria-expanded=true].head")).to_have_count(0)
        assert top_part(page) <= ABOVE_THE_TIMELINE
        tracks = report.timeline.bounding_box()
        assert tracks is not None
        assert tracks["y"] + 300 <= 800
        assert page.evaluate("window.scrollY") == 0
    with sized(report, 900, 800) as page:
        assert top_part(page) <= ABOVE_THE_TIMELINE
        assert page.evaluate("document.documentElement.scrollWidth") <= 900


def test_a_high_screen_has_the_first_finding_unfolded(open_report: Open) -> None:
    report = open_report(slow())
    with sized(report, 1920, 1080) as page:
        unfolded = page.locator("[aria-expanded=true].head")
        expect(unfolded).to_have_count(1)
        expect(unfolded).to_contain_text(findings(slow())[0].title.replace("`", ""))
        tracks = report.timeline.bounding_box()
        assert tracks is not None
        assert tracks["y"] + 300 <= 1080


def test_the_header_is_legible_and_nothing_moves_under_the_pointer(
    open_report: Open, screenshot: Screenshot
) -> None:
    report = open_report(slow())
    rows_of(report).locator(".head[aria-expanded=false]").evaluate_all(
        "heads => heads.forEach(head => head.click())"
    )
    for scheme in ("light", "dark"):
        report.use_scheme(scheme)
        assert too_faint(report.page) == []
        screenshot(report.page, f"header_{scheme}")
    before = report.timeline.bounding_box()
    for each in [card(report, "GPU busy"), rows_of(report).first.get_by_role("button").first]:
        each.hover()
        assert report.timeline.bounding_box() == before
