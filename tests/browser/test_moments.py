"""Moments of the trace are written so that neighbours on the screen are told apart."""

from __future__ import annotations

from playwright.sync_api import expect

from gpuprof_widgets.trace.model import Record
from tests.browser.report_page import Open, Report
from tests.traces import kernel, op, trace_of

S, US = 1_000_000_000, 1_000
START = 12_604_031 * US
STORE = "Object.values(window.gpuprof.reports)[0]"


def late() -> Record:
    """A kernel of 21 µs, 12.6 s after the first op."""
    return trace_of(
        op("aten::zeros", ts=0, dur=2 * S),
        op("aten::add", ts=START - 50 * US, dur=40 * US),
        kernel("short", ts=START, dur=21 * US, launched_by=1),
        label="late",
    )


def select(report: Report, name: str) -> None:
    report.page.evaluate(
        f"""(name) => {{
            const store = {STORE}
            const row = store.data.ts.findIndex((_, row) => store.data.name(row) == name)
            const labels = new Set()
            const rows = Int32Array.of(row)
            store.choose({{source: "timeline", row, rows, key: name, labels, text: name}})
        }}""",
        name,
    )


def test_the_ends_of_a_range_and_its_length_agree(open_report: Open) -> None:
    report = open_report(late())
    report.page.evaluate(f"{STORE}.brush([{START}, {START + 21 * US}])")
    expect(report.range_text).to_contain_text("12.604 031 0 s to 12.604 052 0 s= 21.0 µs")
    report.page.evaluate(f"{STORE}.brush([394249000, 404331000])")
    expect(report.range_text).to_contain_text("394.2 ms to 404.3 ms= 10.1 ms")


def test_a_short_event_has_a_start_as_fine_as_it_is(open_report: Open) -> None:
    report = open_report(late())
    select(report, "short")
    expect(report.selection_text).to_contain_text("Start 12.604 031 s")


def test_a_closer_view_tells_a_long_event_finer(open_report: Open) -> None:
    report = open_report(late())
    select(report, "aten::zeros")
    start = report.selection_text.locator("[data-fact=Start]")
    expect(start).to_have_text("0 ns")
    select(report, "aten::add")
    expect(start).to_have_text("12.603 981 s")
    report.page.evaluate(f"{STORE}.visible.setv({{start: {START}, end: {START + 1000}}})")
    expect(start).to_have_text("12.603 981 0 s")
