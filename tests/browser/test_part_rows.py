"""Findings that are part of another one: where their rows stand, and what shows that they are."""

from __future__ import annotations

from functools import cache
from io import BytesIO
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from playwright.sync_api import Locator, expect

from gpuprof_widgets import Profile, load
from gpuprof_widgets.analyses.findings import Finding
from gpuprof_widgets.views import page as report_data
from tests.browser.report_page import Open, Report

DATA = Path(__file__).parents[1] / "data" / "gpu"
WITH_PARTS = "a_step_of_many_small_kernels"
WITHOUT_PARTS = "matrix_products_in_32_bits"
BECAUSE = "This is one part of why GPU 0 is idle"
MARKS = "titles => titles.map(title => getComputedStyle(title, '::before').content)"
ARROW = """title => {
    const style = getComputedStyle(title, "::before")
    const context = document.createElement("canvas").getContext("2d")
    context.font = style.font
    const words = document.createRange()
    words.selectNodeContents(title)
    const [word] = words.getClientRects()
    const box = title.getBoundingClientRect()
    const x = box.x + parseFloat(getComputedStyle(title).paddingLeft) + parseFloat(style.textIndent)
    const {width} = context.measureText("↳")
    return [{x, y: word.y, width, height: word.height}, word.toJSON()]
}"""
"""Boxes of the arrow, which is no element and starts its line, and of the title's first words."""


@cache
def of(name: str) -> Profile:
    return load(DATA / f"{name}.gpuprof")


def rows_of(report: Report, label: str = "Findings") -> Locator:
    """The rows of a list that a reader sees."""
    return report.page.get_by_label(label, exact=True).get_by_role("listitem")


def test_parts_stand_below_the_finding_they_are_part_of_and_say_so(open_report: Open) -> None:
    found = of(WITH_PARTS).findings()
    assert [finding.part_of for finding in found] == ["", *["device_idle"] * 3, "", ""]
    assert [BECAUSE in finding.text for finding in found[:5]] == [False, True, True, True, False]
    rows = rows_of(open_report(of(WITH_PARTS)))
    titles = rows.locator(".title")
    expect(titles).to_have_text([one.title.replace("`", "") for one in found])
    expect(rows).to_have_class(["", "part", "part", "part", "", ""])
    marks = titles.evaluate_all(MARKS)
    assert marks == ["none", '"↳ "', '"↳ "', '"↳ "', "none", "none"]
    for number in range(1, 4):
        sentence = rows.nth(number).get_by_text(BECAUSE)
        expect(sentence).to_be_hidden()
        rows.nth(number).locator(".head").click()
        expect(sentence).to_be_visible()
        expect(sentence).to_have_text(found[number].text.replace("`", ""))
    expect(rows.first.get_by_text(BECAUSE)).to_have_count(0)


@pytest.mark.parametrize(
    ("name", "added", "first"),
    [(WITHOUT_PARTS, 0, 5), (WITH_PARTS, 4, 7)],
)
def test_other_rows_are_hidden_until_asked_for(
    open_report: Open, monkeypatch: pytest.MonkeyPatch, name: str, added: int, first: int
) -> None:
    found = [*of(name).findings(), *(Finding(f"Another, {i}.") for i in range(added))]
    monkeypatch.setattr(report_data, "findings", lambda _: found)
    report = open_report(of(name))
    others, summary = rows_of(report, "Lower cost"), report.page.locator(".folded > summary")
    expect(rows_of(report)).to_have_count(first)
    if name == WITHOUT_PARTS:
        expect(report.page.locator(".findings:not(.remarks) > li.part")).to_have_count(0)
    expect(others).to_have_count(0)
    summary.click()
    expect(others).to_have_count(len(found) - first)
    summary.click()
    expect(others).to_have_count(0)
    rows_of(report).get_by_role("button").last.focus()
    report.page.keyboard.press("Tab")
    expect(summary).to_be_focused()
    for key, shown in (("Enter", len(found) - first), ("Space", 0)):
        report.page.keyboard.press(key)
        expect(others).to_have_count(shown)


def test_the_arrow_is_seen_beside_the_title(open_report: Open) -> None:
    report = open_report(of(WITH_PARTS))
    report.page.mouse.move(5, 5)
    for width, scheme in ((900, "light"), (1280, "dark")):
        report.use_scheme(scheme)
        report.page.set_viewport_size({"width": width, "height": 800})
        for row in rows_of(report).all()[1:4]:
            arrow, word = row.locator(".title").evaluate(ARROW)
            cost = row.locator(".cost").bounding_box()
            assert cost is not None
            assert cost["x"] + cost["width"] <= arrow["x"]
            assert arrow["x"] + arrow["width"] <= word["x"]
            shown = Image.open(BytesIO(report.page.screenshot(clip=arrow))).convert("L")
            assert np.ptp(np.asarray(shown)) >= 100  # grey levels
