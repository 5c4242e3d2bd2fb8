"""The lines view in Chromium: numbers, heat, and its links with the timeline, by mouse and keys."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Any

import pytest
from playwright.sync_api import Locator, expect

from gpuprof_widgets.analyses.lines import lines
from gpuprof_widgets.trace.model import Record
from gpuprof_widgets.trace.window import window
from tests.browser.report_page import Open, Report, too_faint
from tests.traces import cell_line, kernel, op, runtime, trace_of

MS = 1_000_000
HOSTILE = "print('<img src=x onerror=\"document.title=1\">')"
SOURCE = f"""%%gpuprofile
for x in data:
    y = model(x)  # forward

    loss.backward()
else:
    {HOSTILE}
"""
LINES = {
    "cells": [
        {"label": "Cell [3]", "first_line": 1, "source": SOURCE, "statements": [2, 3, 5, 7]},
        {
            "label": "helpers.py",
            "first_line": 41,
            "source": "@lines\ndef f(x):\n" + "    # why\n" * 30 + "    return x + 1",
            "statements": [42, 73],
        },
    ]
}
COLUMNS = [
    *("self_ns", "wall_ns", "cpu_self_ns", "device_ns", "backward_device_ns", "wait_ns", "calls"),
]


ENCODER = {"class": "EncoderLayer", "root": "model"}


def backward(sequence: int) -> dict[str, Any]:
    return {"sequence": sequence, "forward_thread": 1}


@cache
def training() -> Record:
    """Two steps; the backward pass has its own thread, and a function's line runs in line 3."""
    rows = [cell_line(2, "for x in data:", ts=0, dur=100 * MS)]
    for start in 0, 50 * MS:
        first = len(rows)
        rows += [
            cell_line(3, "y = model(x)  # forward", ts=start + MS, dur=18 * MS),
            op("encoder.0", ts=start + 2 * MS, dur=9 * MS, category="module", **ENCODER),
            op("aten::mm", ts=start + 3 * MS, dur=6 * MS, sequence=start),
            runtime("cudaLaunchKernel", ts=start + 4 * MS, dur=MS),
            kernel("gemm", ts=start + 6 * MS, dur=9 * MS, launched_by=first + 3),
            cell_line(73, "return x + 1", ts=start + 12 * MS, dur=5 * MS, cell="helpers.py"),
            cell_line(5, "loss.backward()", ts=start + 20 * MS, dur=25 * MS),
            op("MmBackward0", ts=start + 22 * MS, dur=9 * MS, thread=7, **backward(start)),
            runtime("cudaLaunchKernel", ts=start + 24 * MS, dur=MS, thread=7),
            kernel("gemm_backward", ts=start + 28 * MS, dur=14 * MS, launched_by=first + 8),
            runtime("cudaDeviceSynchronize", ts=start + 33 * MS, dur=11 * MS),
        ]
    return trace_of(*rows, label="training", lines=LINES)


def table(report: Report) -> Locator:
    return report.page.locator("table[aria-label=Lines]")


def line(report: Report, code: str) -> Locator:
    return table(report).locator("tr[data-key]", has_text=code)


def shown(report: Report, columns: list[str] = COLUMNS) -> list[list[int]]:
    """The numbers of every line as the view shows them."""
    values: list[list[float]] = table(report).evaluate(
        """(table, columns) => {
            const value = (line, key) => line.querySelector(`[data-column=${key}]`).dataset.value
            const lines = Array.from(table.querySelectorAll("tr[data-key]"))
            return lines.map((line) => columns.map((key) => Number(value(line, key))))
        }""",
        columns,
    )
    return [[round(value) for value in row] for row in values]


def expected(record: Record, columns: list[str] = COLUMNS) -> list[list[int]]:
    numbers: list[list[int]] = lines(record)[columns].to_numpy().tolist()
    return numbers


def rows_named(record: Record, name: str) -> list[int]:
    slices = record.trace.slices
    return slices.index[slices["name"] == name].tolist()


def select_event(report: Report, row: int) -> None:
    """Click an event where the timeline draws it."""
    x, y, width, height = report.state(f"store.event_box({row})")
    report.timeline.click(position={"x": x + width / 2, "y": y + height / 2})


def test_numbers_are_pythons_and_follow_the_brushed_range(open_report: Open) -> None:
    record = training()
    report = open_report(record)
    assert shown(report) == expected(record)
    start, end = report.brush(0.23, 0.61)
    assert shown(report) == expected(replace(record, trace=window(record.trace, start, end)))
    expect(report.page.get_by_text("selected range").first).to_be_visible()
    report.page.keyboard.press("Escape")
    assert shown(report) == expected(record)


def test_the_source_stands_there_whole_but_for_long_silence(open_report: Open) -> None:
    report = open_report(training())
    text = table(report).locator("tbody").first.locator(".text").all_text_contents()
    assert text == SOURCE.splitlines()
    assert table(report).locator("tbody").nth(1).locator("tr.gap").text_content() == (
        "⋯ 24 lines without recorded statements"
    )
    assert report.page.title() != "1"


def test_a_line_lights_up_its_executions_and_gives_them_back(open_report: Open) -> None:
    record = training()
    report = open_report(record)
    line(report, "loss.backward()").click()
    assert report.state("Array.from(store.selection.rows)") == rows_named(
        record, "5: loss.backward()"
    )
    expect(line(report, "loss.backward()")).to_have_attribute("aria-selected", "true")
    expect(report.selection_text).to_contain_text("Line 5: loss.backward()")
    expect(report.selection_text).to_contain_text("2 events highlighted")
    line(report, "loss.backward()").click()
    assert report.state("store.selection") is None
    expect(table(report).locator("[aria-selected=true]")).to_have_count(0)


def test_an_event_of_the_timeline_marks_its_line(open_report: Open) -> None:
    record = training()
    report = open_report(record)
    chosen = table(report).locator("[aria-selected=true] .text")
    for name, code in {
        "gemm": "y = model(x)  # forward",
        "gemm_backward": "loss.backward()",
        "73: return x + 1": "return x + 1",
    }.items():
        select_event(report, rows_named(record, name)[1])
        expect(chosen).to_have_text(code)


def test_a_backward_kernels_chain_names_both_lines_and_leads_there(open_report: Open) -> None:
    record = training()
    report = open_report(record)
    select_event(report, rows_named(record, "gemm_backward")[0])
    links = report.selection_text.locator("li")
    assert [" ".join(text.split()) for text in links.all_text_contents()] == [
        "line5: loss.backward()",
        "forward line3: y = model(x) # forward",
        "forward moduleencoder.0",
        "forward opaten::mm",
        "opMmBackward0",
        "launchcudaLaunchKernel",
        "GPUgemm_backward",
    ]
    links.get_by_role("button", name="3: y = model(x)").click()
    expect(table(report).locator("[aria-selected=true] .text")).to_have_text(
        "y = model(x)  # forward"
    )
    assert (
        report.state("store.selection.row") == rows_named(record, "3: y = model(x)  # forward")[0]
    )


def test_a_heading_chooses_what_the_bars_behind_the_code_show(open_report: Open) -> None:
    record = training()
    report = open_report(record)
    for heading, column in {"Self": "self_ns", "GPU wait": "wait_ns", "Calls": "calls"}.items():
        button = table(report).get_by_role("button", name=heading, exact=True)
        button.click()
        expect(button).to_have_attribute("aria-pressed", "true")
        expect(table(report).locator("[aria-pressed=true]")).to_have_count(1)
        shares = (
            table(report)
            .locator(".heat")
            .evaluate_all("(bars) => bars.map((bar) => parseFloat(bar.style.width))")
        )
        values = lines(record)[column].to_numpy()
        assert shares == pytest.approx(100 * values / values.max(), abs=0.01)


def test_numbers_of_lines_that_ran_too_often_are_bounds_and_say_why(open_report: Open) -> None:
    source = "%%gpuprofile\nfor x in data:\n    f(x)\nh()"
    cell = {"label": "Cell [3]", "source": source, "statements": [2, 3, 4], "beyond_limit": [3]}
    record = trace_of(
        cell_line(2, "for x in data:", ts=0, dur=900 * MS),
        cell_line(3, "f(x)", ts=0, dur=100 * MS),
        cell_line(3, "f(x)", ts=100 * MS, dur=91 * MS),
        cell_line(4, "h()", ts=900 * MS, dur=100 * MS),
        lines={"limit": 10_000, "cells": [cell]},
    )
    report = open_report(record)

    def told(code: str) -> list[list[Any]]:
        script = "(cells) => cells.map((cell) => [cell.textContent, cell.getAttribute('title')])"
        cells: list[list[Any]] = line(report, code).locator("td.number").evaluate_all(script)
        return [[text.replace("\N{NO-BREAK SPACE}", " "), title] for text, title in cells]

    runs = (
        "Runs after the first 10,000 were not recorded one by one; "
        "their time counts for the line around them."
    )
    assert told("f(x)") == [["≥ 191 ms 19 %", runs], ["≥ 191 ms", runs], ["≥ 2", runs]]
    includes = "Includes further runs of line 3."
    assert told("for x") == [["≤ 709 ms 71 %", includes], ["900 ms", None], ["1", None]]
    # Where none of its runs is recorded it may have run all the same.
    report.state(f"store.brush([{300 * MS}, {400 * MS}])")
    expect(line(report, "f(x)")).to_contain_text("≥\N{NO-BREAK SPACE}0")
    assert told("f(x)")[-1] == ["≥ 0", runs]
    assert told("h()")[-1] == ["–", None]


def test_code_is_legible_on_its_heat(open_report: Open) -> None:
    report = open_report(training())
    for scheme in ("light", "dark"):
        report.use_scheme(scheme)
        assert too_faint(report.page) == []
        assert table(report).evaluate(HEAT_CONTRAST) >= 4.5


HEAT_CONTRAST = """(table) => {
    const [store] = Object.values(window.gpuprof.reports)
    const {contrast, parse_colour} = store.constructor.colours
    const style = (selector) => getComputedStyle(table.querySelector(selector))
    const heat = parse_colour(style(".heat").backgroundColor).rgb
    return contrast(heat, parse_colour(style("tr[data-key] .text").color).rgb)
}"""
