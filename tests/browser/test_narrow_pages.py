"""Pages in a narrow window: nothing is cut, overlaps or makes the page scroll sideways."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Literal

import pytest
from playwright.sync_api import Browser, Page, expect

import gpuprof_widgets
from gpuprof_widgets import Profile
from gpuprof_widgets.trace.model import Record
from gpuprof_widgets.trace.readers import load
from gpuprof_widgets.views.report import standalone_html
from tests.browser.conftest import Screenshot
from tests.browser.report_page import BOOT_MS, SETTLED, OpenHtml
from tests.browser.test_memory_view import allocating
from tests.job import STARTS, in_lockstep, saved
from tests.test_compare_source import A, B
from tests.traces import annotation, block, cell_line, kernel, op, runtime, trace_of

MS = 1_000_000
RECORDED = Path(__file__).parent.parent / "data" / "recorded"
LONG = "void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<float>>"
WINDOWS: list[tuple[int, Literal["light", "dark"]]] = [(900, "light"), (640, "dark")]

FAULTS = """() => {
    const width = document.scrollingElement.clientWidth
    const all = (root) => [...root.querySelectorAll("*")]
        .flatMap((el) => [el, ...el.shadowRoot == null ? [] : all(el.shadowRoot)])
    const above = (el) => {
        const next = el.parentElement ?? el.getRootNode().host
        return next == null ? [] : [next, ...above(next)]
    }
    const css = (el) => getComputedStyle(el)
    const is_shown = (el) => el.getClientRects().length > 0 && el.checkVisibility()
        && [el, ...above(el)].every((each) => css(each).clipPath == "none")
    const shown = all(document.body).filter(is_shown)
    const faults = []
    const say = (fault, ...els) => faults.push(`${fault}: ${els.map((el) =>
        `${el.localName}.${el.className} '${el.textContent.trim().slice(0, 50)}'`).join(" and ")}`)

    // Where an element has to lie: in all that cut off what is outside, unless one of them scrolls.
    const room = (el) => {
        const edges = [0, width]
        for (const each of above(el).filter((each) => css(each).overflowX != "visible")) {
            if (/auto|scroll/.test(css(each).overflowX) && each.scrollWidth > each.clientWidth) {
                return [-Infinity, Infinity]
            }
            const {left, right} = each.getBoundingClientRect()
            edges[0] = Math.max(edges[0], left)
            edges[1] = Math.min(edges[1], right)
        }
        return edges
    }
    const is_clipped = (el) => css(el).overflowX != "visible"
    const is_spilled = (el) => el.scrollWidth > el.clientWidth + 1 && css(el).display != "inline"
    // The sentence in a table without rows may be longer than that.
    const is_free = (el) => el.matches(`select, input${is_clipped(el) ? "" : ", td.nothing"}`)
    // What ends with dots tells the whole text to those who point at it.
    const is_told = (el) => css(el).textOverflow == "ellipsis" && is_clipped(el)
        && [el, ...el.querySelectorAll("*"), ...above(el)].some(({title}) => title)
    const controls = "button, select, input, summary, label"
    const parts = `${controls}, h2, h3, p, li, figure, th, td, .clip`
    for (const el of shown.filter((el) => el.matches(parts))) {
        const [least, most] = room(el)
        const {left, right} = el.getBoundingClientRect()
        if (left < least - 1 || right > most + 1) {
            say("outside", el)
        }
        if (is_spilled(el) && !is_free(el) && !is_told(el)) {
            say("cut", el)
        }
    }

    // What floats may cover other things: the reader can scroll them from below it.
    const is_floating = (el) => /fixed|sticky/.test(css(el).position)
    const standing = shown.filter((el) => el.matches(controls))
        .map((el) => [el, el.getBoundingClientRect(), above(el)])
        .filter(([el,, of]) => ![el, ...of].some(is_floating))
    standing.forEach(([el, a, of], i) => standing.slice(i + 1).forEach(([other, b, of_other]) => {
        const wide = Math.min(a.right, b.right) - Math.max(a.left, b.left)
        const high = Math.min(a.bottom, b.bottom) - Math.max(a.top, b.top)
        if (wide > 1 && high > 1 && !of.includes(other) && !of_other.includes(el)) {
            say("overlap", el, other)
        }
    }))

    const is_number = "td.number, td[style*='text-align:right']:not([role])"
    for (const el of shown.filter((el) => el.matches(is_number))) {
        const text = document.createRange()
        text.selectNodeContents(el)
        const tops = [...text.getClientRects()].map(({top}) => top)
        if (Math.max(...tops) - Math.min(...tops) > 8) {
            say("on two lines", el)
        }
    }
    const {scrollWidth} = document.scrollingElement
    return scrollWidth > width ? [`the page is ${scrollWidth} wide`, ...faults] : faults
}"""
"""What is wrong with the layout of the page as it is now; shadow roots are part of it."""

FRAMES = """async () => {
    for (let i = 0; i < 3; i++) { await new Promise(requestAnimationFrame) }
}"""


def named() -> Record:
    """A run of which every name is long: the cell, its lines, its ops and kernels."""
    line = f"y = {6 * 'model_with_a_long_name.'}(x)"
    rows = [
        annotation("ProfilerStep#1", ts=0, dur=900 * MS),
        cell_line(2, line, ts=0, dur=800 * MS),
        op("aten::" + 40 * "matmul_of", ts=MS, dur=90 * MS, shapes=[[8, 16], [16, 4]]),
    ]
    for n in (1, 2, 3):
        rows.append(runtime("cudaLaunchKernel", ts=(1 + n) * MS, dur=MS // 2))
        at = 100 * n * MS
        rows.append(kernel(f"{LONG}::{n}", ts=at, dur=90 * MS, launched_by=len(rows) - 1))
    size = {"allocated": 5 * 2**20, "reserved": 8 * 2**20}
    rows.append(block(3 * 2**20, at=1, ts=30 * MS, device=0, **size))
    note = f"It was read from {12 * 'a_long_folder'}."
    return trace_of(*rows, label=f"of {12 * 'long_names_'}", wall_ns=1000 * MS, notes=[note])


@cache
def report() -> str:
    return standalone_html(load(RECORDED / "activation_checkpointing_simulated_gpu.gpuprof"))


@cache
def long_names() -> str:
    return standalone_html(named())


@cache
def memory() -> str:
    return standalone_html(allocating())


@cache
def comparison() -> str:
    runs = [RECORDED / f"training.rank{rank}.gpuprof" for rank in (0, 1)]
    return gpuprof_widgets.compare(*runs).report()


@cache
def edited() -> str:
    return gpuprof_widgets.compare(A, B).report()


@cache
def no_difference() -> str:
    record = named()
    profile = Profile(record.trace, record.calls, record.metadata)
    return gpuprof_widgets.compare(profile, profile).report()


@cache
def ranks() -> str:
    with TemporaryDirectory() as folder:
        saved(Path(folder), in_lockstep(STARTS))
        return gpuprof_widgets.ranks(folder).report()


PAGES = [report, long_names, memory, comparison, edited, no_difference, ranks]


def faults(page: Page) -> list[str]:
    """What is wrong with the page once its views show their numbers and have their sizes."""
    page.evaluate(SETTLED)
    page.evaluate(FRAMES)
    return list(page.evaluate(FAULTS))


def opened(page: Page) -> Iterator[str]:
    """Open one after the other all that can be opened; yield what is open now."""
    yield "as it opens"
    for folded in (".head[aria-expanded=false]", "details:not([open]) > summary"):
        page.locator(folded).evaluate_all("parts => parts.forEach(part => part.click())")
    yield "unfolded"
    row = page.locator("tr[data-key]").first
    if row.count():
        row.click()
        yield "with a selected row"
    for tab in page.get_by_role("tab").all():
        tab.click()
        expect(tab).to_have_attribute("aria-selected", "true")
        yield tab.inner_text()
    tables = page.get_by_role("group", name="What differs").get_by_label("Show")
    for choice in tables.locator("option").all_inner_texts() if tables.count() else ():
        tables.select_option(label=choice)
        yield choice


@pytest.mark.parametrize("page_of", PAGES)
def test_nothing_is_cut_or_overlaps_in_a_narrow_window(
    open_html: OpenHtml, offline_page: Page, page_of: Callable[[], str], screenshot: Screenshot
) -> None:
    for width, scheme in WINDOWS:
        offline_page.set_viewport_size({"width": width, "height": 800})
        offline_page.emulate_media(color_scheme=scheme)
        page = open_html(page_of())
        page.locator(".gpuprof-report[data-complete]").wait_for(timeout=BOOT_MS)
        if page_of is report:
            screenshot(page, f"narrow-{width}")
        found = {shown: wrong for shown in opened(page) if (wrong := faults(page))}
        assert found == {}, (width, scheme)


def test_tables_of_ranks_fit_and_scroll_in_their_frame_where_they_do_not(
    open_html: OpenHtml,
) -> None:
    page = open_html(ranks())
    frame = page.locator(".frame", has=page.get_by_role("table", name="Time of each rank"))
    for width, overflow in ((900, False), (640, True)):
        page.set_viewport_size({"width": width, "height": 800})
        follows = "([el, overflow]) => (el.scrollWidth > el.clientWidth) == overflow"
        page.wait_for_function(follows, arg=[frame.element_handle(), overflow])
        shadow = frame.evaluate("el => getComputedStyle(el).backgroundImage")
        assert shadow.startswith("linear-gradient")  # it says that there is more


@pytest.fixture(scope="module")
def scriptless_page(browser: Browser) -> Iterator[Page]:
    page = browser.new_page(java_script_enabled=False)
    yield page
    page.close()


@pytest.mark.parametrize("page_of", PAGES)
def test_nothing_is_cut_without_scripts(
    scriptless_page: Page, tmp_path: Path, page_of: Callable[[], str]
) -> None:
    """What is left of a page where no script may run; a table too wide scrolls in its own box."""
    page, path = scriptless_page, tmp_path / "page.html"
    path.write_text(page_of(), encoding="utf-8")
    page.goto(path.as_uri())
    expect(page.locator(".gpuprof-report")).to_have_count(0)
    static = page.locator(".gpuprof-static")
    for width, _ in WINDOWS:
        page.set_viewport_size({"width": width, "height": 800})
        assert page.evaluate(FAULTS) == []
        assert width < 900 or static.evaluate("el => el.scrollWidth <= el.clientWidth")
