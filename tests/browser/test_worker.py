"""Large records are decoded and added up in a worker, and without one by the page itself."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect

from gpuprof_widgets.analyses.lines import lines
from gpuprof_widgets.trace.model import Record
from gpuprof_widgets.trace.window import window
from gpuprof_widgets.views.report import standalone_html
from tests.browser.report_page import Open, Report, expected_rows
from tests.browser.test_content_policy import serve
from tests.browser.test_loader import RUN_AGAIN, outputs, show, wait_for_stores
from tests.traces import cell_line, kernel, op, runtime, trace_of

STEPS = 6_000
STEP_NS = 10_000
COUNTED = """async (ranges) => {
    const [store] = Object.values(window.gpuprof.reports)
    const {worker} = store.answers
    const post = worker.postMessage.bind(worker)
    let sent = 0
    worker.postMessage = (...message) => {
        sent += 1
        post(...message)
    }
    for (const range of ranges) {
        store.brush(range)
        PAUSE
    }
    const painted = store.window
    while (!store.answers.is_idle) {
        await new Promise((resolve) => setTimeout(resolve))
    }
    return [sent, painted]
}"""
"""Brushes ranges one after the other; returns the number of messages to the worker."""


@cache
def large() -> Record:
    """More rows than the page decodes by itself, with lines, ops and kernels."""
    parts = []
    for number in range(STEPS):
        ts = number * STEP_NS
        at = len(parts)
        parts += [
            cell_line(2 + number % 3, "loss = step(x)", ts=ts, dur=9_000),
            op(f"aten::op{number % 7}", ts=ts + 500, dur=7_000),
            runtime("cudaLaunchKernel", ts=ts + 1_000, dur=1_500),
            kernel(f"gemm{number % 5}", ts=ts + 4_000, dur=5_500, launched_by=at + 2),
        ]
    return trace_of(*parts, label="large")


@pytest.fixture
def page(any_page: Page) -> Page:
    return any_page


@cache
def large_page() -> str:
    return standalone_html(large())


def opened(page: Page, policy: str = "") -> Report:
    serve(page, large_page(), policy)
    return Report.wait(page)


def check_numbers(report: Report) -> None:
    """The numbers of two ranges in the op table and beside the lines are Python's."""
    for left, right in (0.2, 0.7), (0.5, 0.55):
        part = window(large(), *report.brush(left, right))
        assert report.op_rows() == expected_rows(part)
        table = report.page.get_by_role("table", name="Lines")
        shown = table.locator("[data-column=self_ns]").evaluate_all(
            "(cells) => cells.map(({dataset}) => Math.round(Number(dataset.value)))"
        )
        assert shown == lines(part)["self_ns"].tolist()


def test_a_large_record_is_counted_in_a_worker(page: Page) -> None:
    report = opened(page)
    assert len(page.workers) == 1
    check_numbers(report)


def test_a_small_record_needs_none(open_report: Open) -> None:
    report = open_report(trace_of(op("aten::mm", ts=0, dur=1_000)))
    assert report.page.workers == []


def test_a_page_that_may_have_no_worker_counts_by_itself(page: Page) -> None:
    report = opened(page, policy="worker-src 'none'")
    assert page.workers == []
    check_numbers(report)


@pytest.mark.parametrize(
    ("pause", "messages"), [("", 1), ("await null; await null; await null", 2)]
)
def test_of_many_ranges_the_last_one_counts(page: Page, pause: str, messages: int) -> None:
    """At once they are one question; else the first and the last: those between are overtaken."""
    report = opened(page)
    end = large().trace.end_ns
    ranges = [[n * 1_000, end - n * 1_000] for n in range(1, 9)]
    assert page.evaluate(COUNTED.replace("PAUSE", pause), ranges) == [messages, ranges[-1]]
    assert report.op_rows() == expected_rows(window(large(), *ranges[-1]))


def test_a_worker_that_breaks_down_is_replaced_by_the_page(page: Page) -> None:
    report = opened(page)
    page.workers[0].evaluate("() => { setTimeout(() => { throw new Error('out of memory') }) }")
    wait_for_no_worker(page)
    check_numbers(report)


def test_a_report_that_left_the_page_takes_its_worker_along(page: Page, tmp_path: Path) -> None:
    show(page, tmp_path, '<div class="jp-Cell"><div class="jp-OutputArea"></div></div>')
    page.evaluate(RUN_AGAIN, outputs("large", runtime=True, of=large()))
    Report.wait(page)
    assert len(page.workers) == 1
    page.evaluate("document.querySelector('.jp-OutputArea').replaceChildren()")
    wait_for_stores(page, 0)
    wait_for_no_worker(page)


def wait_for_no_worker(page: Page) -> None:
    """Collect garbage until no worker is left."""
    session = page.context.new_cdp_session(page)
    for _ in range(100):
        if not page.workers:
            break
        session.send("HeapProfiler.collectGarbage")
        page.wait_for_timeout(100)
    assert page.workers == []


def test_a_click_on_a_bar_of_a_large_record_lights_up_its_events(page: Page) -> None:
    report = opened(page)
    report.flame_graph.scroll_into_view_if_needed()
    box = report.flame_graph.bounding_box()
    assert box is not None
    page.mouse.click(box["x"] + box["width"] / 8, box["y"] + 30)
    expect(report.selection_text).to_contain_text("loss = step(x)")
    report.settle()
    assert report.state("store.selection.rows.length") == STEPS // 3


def test_a_step_back_is_one_step_though_the_flame_graph_follows_later(page: Page) -> None:
    """A zoomed bar that the range lacks is lost, and comes back, without being a step itself."""
    report = opened(page)
    report.flame_graph.scroll_into_view_if_needed()
    box = report.flame_graph.bounding_box()
    assert box is not None
    page.mouse.click(box["x"] + box["width"] / 8, box["y"] + 30)
    report.settle()
    page.keyboard.press("Shift")  # a gesture, to which the next change belongs
    start = STEP_NS * (report.state("store.data.ts[store.selection.rows[0]]") // STEP_NS + 1)
    report.state(f"store.brush([{start}, {start + 9_000}])")  # another line alone
    report.settle()
    page.keyboard.press("Backspace")
    page.keyboard.press("Shift")
    report.settle()
    assert report.state("store.window") is None
    assert report.state("store.selection") is not None


def test_columns_that_are_due_come_with_the_rows_of_a_later_range(page: Page) -> None:
    report = opened(page)
    end = large().trace.end_ns
    page.evaluate(
        """async ([range]) => {
            const [store] = Object.values(window.gpuprof.reports)
            store.brush([0, range[1]])
            while (!store.answers.is_idle) await new Promise((resolve) => setTimeout(resolve))
            store.group_by = "category"
            await null
            store.brush(range)
            while (!store.answers.is_idle) await new Promise((resolve) => setTimeout(resolve))
        }""",
        [[end // 4, end // 2]],
    )
    heading = report.table.locator("thead th").first
    expect(heading).to_have_text(re.compile("Category"))
    expect(report.table.locator("tbody tr td").first).to_have_text("cpu_op")
