"""A report as a reader meets it: what the page shows, and real drags, clicks and keys on it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd
from playwright.sync_api import Error, Frame, Locator, Page, expect

from gpuprof_widgets.analyses.operators import operators
from gpuprof_widgets.trace.model import Record

COLUMNS = ["calls", "cpu_total_ns", "cpu_self_ns"]
"""Columns of the op table."""

BOOT_MS = 120_000
"""A bound against hanging, from the page's script to its first table."""

SETTLED = """async () => {
    while (Object.values(window.gpuprof.reports).some(({answers}) => !answers.is_idle)) {
        await new Promise((resolve) => setTimeout(resolve))
    }
}"""

READ_ROWS = """(table, keys) => Array.from(table.querySelectorAll("tbody tr"), row => [
    row.querySelector("td").title,
    ...keys.map(key => Number(row.querySelector(`[data-column=${key}]`)?.dataset.value ?? 0))
])"""


def about_store(expression: str) -> str:
    store = "const store = Object.values(window.gpuprof.reports)[0]"
    return f"(() => {{ {store}; return {expression} }})()"


@dataclass(frozen=True)
class Report:
    """The first live report of a page."""

    page: Page

    @classmethod
    def wait(cls, page: Page) -> Report:
        report = cls(page)
        try:
            report.table.locator("tbody tr").first.wait_for(timeout=BOOT_MS)
        except Error as error:
            shown = page.locator("body").inner_text()
            raise AssertionError(f"no op table has rows; the page says:\n{shown}") from error
        return report

    @property
    def table(self) -> Locator:
        return self.page.locator("table[aria-label='Op table']").first

    @property
    def timeline(self) -> Locator:
        return self.page.locator("[role=application][aria-label^='Timeline.']").first

    @property
    def flame_graph(self) -> Locator:
        return self.page.locator("[role=application][aria-label^='Flame graph.']").first

    @property
    def range_text(self) -> Locator:
        return self.page.get_by_label("Time range").first

    @property
    def selection_text(self) -> Locator:
        return self.page.get_by_label("Selection", exact=True).first

    def state(self, expression: str) -> Any:
        """A JavaScript expression about the page's first store, named ``store``."""
        return self.page.evaluate(about_store(expression))

    def wait_for(self, expression: str) -> None:
        """Wait until a JavaScript expression about ``store`` is true."""
        self.page.wait_for_function(about_store(expression))

    def settle(self) -> None:
        """Wait until the views show the numbers of the present range, which take a moment."""
        self.page.evaluate(SETTLED)

    def use_scheme(self, scheme: str) -> None:
        """Have the reader's system light or dark; the report follows a moment later."""
        self.page.emulate_media(color_scheme=scheme)  # type: ignore[arg-type]
        dark = "Object.values(window.gpuprof.reports)[0].theme.palette.dark"
        self.page.wait_for_function(f"{dark} === {str(scheme == 'dark').lower()}")

    def op_rows(self) -> dict[str, tuple[int, ...]]:
        """Every row of the op table as the page shows it: "name (category)" to its numbers."""
        self.page.get_by_role("combobox", name="Show").select_option("all categories")
        self.settle()  # the rows of a range may come from the worker
        more = self.page.get_by_role("button", name="Show all").first
        if more.is_visible():
            more.click()
        rows: list[list[Any]] = self.table.evaluate(READ_ROWS, COLUMNS)
        return {name: tuple(round(value) for value in values) for name, *values in rows}

    def brushed(self) -> tuple[int, int]:
        """The range in ns that the page says is brushed."""
        window = self.page.evaluate("Object.values(window.gpuprof.reports)[0].window")
        return round(window[0]), round(window[1])

    def brush(self, left: float, right: float) -> tuple[int, int]:
        """Drag over the timeline between two shares of its width."""
        self.timeline.scroll_into_view_if_needed()
        box = self.timeline.bounding_box()
        assert box is not None
        y = box["y"] + box["height"] / 2
        mouse = self.page.mouse
        mouse.move(box["x"] + left * box["width"], y)
        mouse.down()
        mouse.move(box["x"] + (left + right) / 2 * box["width"], y, steps=4)
        mouse.move(box["x"] + right * box["width"], y, steps=4)
        mouse.up()
        expect(self.range_text).to_contain_text("Range")
        self.settle()
        return self.brushed()


CONTRASTS = (Path(__file__).parent / "contrasts.js").read_text(encoding="utf-8")


def contrasts(
    page: Page | Frame, under: Sequence[int] | None = None
) -> list[tuple[float, float, str]]:
    """Contrast, needed contrast and name of every text, border and fill.

    ``under``: the colour that is seen through a page without a background.
    """
    return [tuple(line) for line in page.evaluate(CONTRASTS, under)]


def too_faint(
    page: Page | Frame, under: Sequence[int] | None = None
) -> list[tuple[float, float, str]]:
    """What of the report is hard to see."""
    return [line for line in contrasts(page, under) if line[0] < line[1]]


def ctrl_wheel(page: Page, surface: Locator, share: float, delta: float) -> bool:
    """Turn the wheel with Ctrl over a surface; return whether the browser zooms the page."""
    surface.scroll_into_view_if_needed()
    box = surface.bounding_box()
    assert box is not None
    page.evaluate(NOTE_WHEEL)
    page.mouse.move(box["x"] + share * box["width"], box["y"] + min(box["height"] / 2, 30))
    page.keyboard.down("Control")
    page.mouse.wheel(0, delta)
    page.keyboard.up("Control")
    page.wait_for_function("window.wheeled != null")
    return page.evaluate("window.wheeled") == "by the browser"


NOTE_WHEEL = """() => {
    window.wheeled = null
    const note = (event) => { window.wheeled = event.defaultPrevented ? "by us" : "by the browser" }
    const later = (event) => setTimeout(() => note(event))
    window.addEventListener("wheel", later, {capture: true, once: true, passive: true})
}"""

Open = Callable[..., Report]
"""What the fixture `open_report` gives: it opens a record as a page."""

OpenHtml = Callable[[str], Page]
"""What the fixture `open_html` gives: it opens a file of this text."""


def expected_rows(record: Record) -> dict[str, tuple[int, ...]]:
    """The same rows, computed in Python."""
    table: pd.DataFrame = operators(record)
    names = table["name"] + " (" + table["category"].astype(str) + ")"
    numbers = table[COLUMNS].astype(int).itertuples(index=False, name=None)
    return dict(zip(names, numbers, strict=True))
