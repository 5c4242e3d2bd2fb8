"""What every table of the page does alike: ops, lines, allocations, analyses and differences."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

import pytest
from playwright.sync_api import Locator, Page, expect

from gpuprof_widgets.comparisons import Comparison
from gpuprof_widgets.views.report import standalone_html
from tests.browser import test_comparison_page, test_lines_view, test_memory_view
from tests.browser.report_page import OpenHtml
from tests.traces import kernel, op, trace_of

MS = 1_000_000


@dataclass(frozen=True)
class Shown:
    """A table: its page, title, the column of numbers by which it is sorted here, and a text."""

    html: Callable[[], str]
    title: str
    number: str
    text: str


@cache
def _of_ops() -> str:
    ops = [
        op(f"aten::op{i}", ts=20 * i * MS, dur=(i % 7 + 1) * MS, shapes=[[i, 2]]) for i in range(30)
    ]
    return standalone_html(trace_of(*ops, kernel("gemm", ts=MS, dur=3 * MS, launched_by=0)))


@cache
def _differences() -> str:
    return Comparison(test_comparison_page.A, test_comparison_page.B).report()


@cache
def _of_memory() -> str:
    return standalone_html(test_memory_view.allocating())


@cache
def _of_lines() -> str:
    return standalone_html(test_lines_view.training())


TABLES = [
    Shown(_of_ops, "Op table", "CPU self", "op12"),
    Shown(_of_memory, "Biggest allocations", "Size", "gradients"),
    Shown(_of_ops, "Kernels", "Calls", "gemm"),
    Shown(_differences, "What differs", "B − A", "compute"),
    Shown(_of_lines, "Lines", "", "backward"),
]


@pytest.fixture
def opened(open_html: OpenHtml) -> Callable[[Shown], Locator]:
    """Opens the page of a table and shows the table."""

    def region(shown: Shown) -> Locator:
        page = open_html(shown.html())
        tab = page.get_by_role("tab", name=shown.title, exact=True)
        if tab.count():
            tab.click()
        region = page.get_by_role("group", name=shown.title)
        region.locator("tbody tr").first.wait_for()
        return region

    return region


def first_cells(region: Locator) -> list[str]:
    return region.locator("tbody td:first-child").all_inner_texts()


def copied(region: Locator, page: Page) -> list[list[str]]:
    """The rows that the button copies, the heads first."""
    page.evaluate("navigator.clipboard.writeText = async (text) => { window.copied = text }")
    region.get_by_role("button", name="Copy CSV").click()
    expect(region.get_by_role("status")).to_contain_text("Copied")
    return list(csv.reader(io.StringIO(page.evaluate("window.copied"))))


@pytest.mark.parametrize("shown", TABLES, ids=lambda shown: shown.title)
def test_a_table_is_sorted_filtered_copied_and_walked_by_keys(
    opened: Callable[[Shown], Locator], shown: Shown
) -> None:
    region = opened(shown)
    check_columns(region)
    check_copies(region, shown)
    check_filter(region, shown)
    if shown.number:
        check_heading(region, shown)
    if region.locator("tr[data-key]").count():  # else none of its rows stands for events
        check_keys(region)


def check_columns(region: Locator) -> None:
    """Every column has a value, and headings and numbers are never cut."""
    cells = region.locator("tbody tr:has(td.number)").evaluate_all(
        "rows => rows.map(row => Array.from(row.querySelectorAll('td'), cell => cell.innerText))"
    )
    columns = list(zip(*cells, strict=True))
    assert all(any(cell not in ("", "–") for cell in column) for column in columns[1:])
    table = region.locator("table").first
    for width in (700, 900, 1920, 1280):
        resize(region, width)
        assert table.evaluate(CUT) == []
        high = "t => Array.from(t.querySelectorAll('tbody td'), d => d.offsetHeight)"
        assert max(table.evaluate(high)) < 30  # no value stands apart from its unit


def check_copies(region: Locator, shown: Shown) -> None:
    """What is copied are all rows that pass the filter."""
    heads, *rows = copied(region, region.page)
    assert len(rows) >= region.locator("tr[data-key]").count()
    assert len(set(heads)) == len(heads)
    assert {len(row) for row in rows} == {len(heads)}
    region.get_by_label("Filter rows").fill(shown.text)
    again, only = copied(region, region.page)
    assert again == heads
    assert only in rows
    assert any(shown.text in cell for cell in only)
    region.get_by_label("Filter rows").fill("")


def check_filter(region: Locator, shown: Shown) -> None:
    """It finds texts, and says what is no expression."""
    rows = region.locator("tbody tr:has(td)")
    whole = rows.count()
    search = region.get_by_label("Filter rows")
    search.fill(shown.text)
    expect(rows).to_have_count(1)
    expect(rows).to_contain_text(shown.text)
    region.get_by_role("button", name="Regular expression").click()
    search.fill(f"{shown.text[:-1]}({shown.text[-1]}|x)")
    expect(rows).to_have_count(1)
    search.fill("(")
    expect(region.get_by_role("status")).to_contain_text("Not a regular expression")
    expect(rows).to_have_count(whole)
    search.fill("no row has this")
    expect(region).to_contain_text(re.compile("No row matches the filter|clear the filter"))
    search.fill("")
    expect(rows).to_have_count(whole)


def check_heading(region: Locator, shown: Shown) -> None:
    """It sorts and keeps the focus."""
    head = region.locator("th", has_text=shown.number)
    head.get_by_role("button").click()
    directions = [head.get_attribute("aria-sort")]
    first = first_cells(region)
    expect(head.get_by_role("button")).to_be_focused()
    region.page.keyboard.press("Enter")
    directions.append(head.get_attribute("aria-sort"))
    assert sorted(map(str, directions)) == ["ascending", "descending"]
    assert len(first) == 1 or first_cells(region)[0] != first[0]


def check_keys(region: Locator) -> None:
    """They reach every row, and only one is on the way of Tab."""
    rows = region.locator("tr[data-key]")
    expect(region.locator("tr[tabindex='0']")).to_have_count(1)
    rows.first.focus()
    region.page.keyboard.press("End")
    expect(rows.last).to_be_focused()
    region.page.keyboard.press("Enter")
    expect(rows.last).to_be_focused()
    expect(rows.last).to_have_attribute("aria-selected", "true")
    region.page.keyboard.press("Home")
    expect(rows.first).to_be_focused()
    expect(region.locator("tr[tabindex='0']")).to_have_count(1)
    region.page.keyboard.press("Escape")
    expect(region.locator("[aria-selected=true]")).to_have_count(0)


STORE = "Object.values(window.gpuprof.reports)[0]"


def test_columns_stay_where_they_are_while_a_range_is_brushed(
    opened: Callable[[Shown], Locator],
) -> None:
    region = opened(TABLES[0])
    heads = "table => Array.from(table.querySelectorAll('th'), head => head.offsetLeft)"
    table = region.locator("table")
    region.page.evaluate(f"{STORE}.brush([0, 3e6])")
    region.get_by_label("Group by").select_option("name_shape")
    brushed = table.evaluate(heads)
    region.page.evaluate(f"{STORE}.brush([1e8, 5e8])")
    assert table.evaluate(heads) == brushed
    region.page.evaluate(f"{STORE}.brush(null)")
    assert table.evaluate(heads) == brushed


def test_a_column_that_leaves_takes_its_order_with_it(opened: Callable[[Shown], Locator]) -> None:
    region = opened(TABLES[0])
    region.get_by_label("Group by").select_option("name_shape")
    region.get_by_role("button", name="Input shapes").click()
    expect(region.locator("th[aria-sort=ascending]")).to_contain_text("Input shapes")
    region.get_by_label("Group by").select_option("name")
    expect(region.locator("th[aria-sort=descending]")).to_contain_text("GPU self")


def test_a_selected_line_stays_in_its_place_though_the_filter_hides_others(
    opened: Callable[[Shown], Locator],
) -> None:
    region = opened(TABLES[-1])
    region.get_by_label("Filter rows").fill("backward")
    select = """name => {
        const store = Object.values(window.gpuprof.reports)[0]
        const row = store.data.ts.findIndex((_, row) => store.data.name(row) == name)
        store.choose({source: "timeline", row, rows: Int32Array.of(row), key: name,
            labels: new Set(), text: name})
    }"""
    region.page.evaluate(select, "3: y = model(x)  # forward")
    assert region.locator(".text").all_inner_texts() == [
        "    y = model(x)  # forward",
        "    loss.backward()",
    ]
    region.page.evaluate(f"{STORE}.choose(null)")
    expect(region.locator(".text")).to_have_count(1)


def test_selecting_draws_no_row_anew_that_is_listed(opened: Callable[[Shown], Locator]) -> None:
    region = opened(TABLES[0])
    row = region.locator("tr[data-key]").nth(3)
    row.evaluate("row => { row.is_the_same = true }")
    row.click()
    expect(row).to_have_attribute("aria-selected", "true")
    assert row.evaluate("row => row.is_the_same")


def test_differences_of_one_name_are_told_apart_where_they_are_copied(
    opened: Callable[[Shown], Locator],
) -> None:
    region = opened(TABLES[3])
    region.get_by_label("Show").select_option(label="Ops by CPU self time per step")
    heads, *rows = copied(region, region.page)
    assert heads[-1] == "category"
    assert {row[0]: row[-1] for row in rows}["aten::mm"] == "cpu_op"


LONG = "void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<float>>"
CUT = """table => Array.from(table.querySelectorAll("th button, th > span, td.number"))
    .filter(cell => cell.scrollWidth > cell.clientWidth + 1 && cell.getClientRects().length > 0)
    .map(cell => cell.textContent)"""


def resize(region: Locator, width: int) -> int:
    """Make the window this wide; return how wide the table may be once it is laid out anew."""
    region.page.set_viewport_size({"width": width, "height": 900})
    frame = region.locator(".frame").first
    handle = frame.element_handle()
    follows = "([el, width]) => el.clientWidth <= width && el.clientWidth > width - 120"
    region.page.wait_for_function(follows, arg=[handle, width])
    # Columns follow in the frame in which the size is observed.
    frame.evaluate("() => new Promise(done => requestAnimationFrame(() => setTimeout(done)))")
    return int(frame.evaluate("el => el.clientWidth"))


@cache
def _long_names() -> str:
    ops = [op("aten::add", ts=0, dur=5 * MS)]
    kernels = [kernel(f"{LONG}::{i}", ts=i * MS, dur=MS, launched_by=0) for i in range(3)]
    return standalone_html(trace_of(*ops, *kernels))


NAMES = Shown(_long_names, "Op table", "CPU self", "add")
LETTERS = """(cell) => {
    const ctx = document.createElement("canvas").getContext("2d")
    ctx.font = `${getComputedStyle(cell).fontSize} ${getComputedStyle(cell).fontFamily}`
    return cell.clientWidth / ctx.measureText("0").width
}"""


def test_long_names_keep_thirty_letters_and_get_the_room_that_is_there(
    opened: Callable[[Shown], Locator],
) -> None:
    region = opened(NAMES)
    region.get_by_label("Show").select_option("all categories")
    name = region.locator("tbody td", has_text="vectorized").first
    letters = {}
    for width in (640, 1280, 1920):
        room = resize(region, width)
        letters[width] = name.evaluate(LETTERS)
        assert region.locator("table").evaluate("el => el.offsetWidth") >= min(room, 1100)
    assert letters[640] >= 30
    assert letters[1280] > letters[640] + 20
    assert name.evaluate("cell => cell.scrollWidth <= cell.clientWidth")  # where there is room
    assert name.get_attribute("title", timeout=1000) == f"{LONG}::0 (kernel)"


def test_a_column_that_is_empty_in_the_whole_trace_is_copied_but_not_shown(
    opened: Callable[[Shown], Locator],
) -> None:
    region = opened(NAMES)
    region.get_by_label("Group by").select_option("name_shape")
    expect(region.get_by_role("button", name="Input shapes")).to_have_count(0)
    heads, *rows = copied(region, region.page)
    assert {row[heads.index("input_shapes")] for row in rows} == {""}


def drag_over(cell: Locator) -> None:
    """Drag from the beginning to the end of a cell's text."""
    cell.evaluate("cell => cell.scrollIntoView({block: 'center'})")  # a drag at the edge scrolls
    box = cell.bounding_box()
    assert box is not None
    mouse, y = cell.page.mouse, box["y"] + box["height"] / 2
    mouse.move(box["x"] + 2, y)
    mouse.down()
    mouse.move(box["x"] + box["width"] / 2, y, steps=5)
    mouse.move(box["x"] + box["width"] - 2, y, steps=5)
    mouse.up()


def copied_by_key(page: Page) -> str:
    """What Ctrl+C puts into the clipboard."""
    page.evaluate(
        """() => {
            window.pasted = null
            const take = (event) => { window.pasted = event.clipboardData.getData("text/plain")
                || (event.composedPath()[0].getRootNode().getSelection?.() ?? "").toString() }
            window.addEventListener("copy", take, {once: true})
        }"""
    )
    page.keyboard.press("Control+c")
    page.wait_for_function("window.pasted != null")
    return str(page.evaluate("window.pasted"))


@pytest.mark.parametrize("shown", TABLES[:4], ids=lambda shown: shown.title)
def test_text_of_a_row_is_selected_by_a_drag_and_copied(
    opened: Callable[[Shown], Locator], shown: Shown
) -> None:
    region = opened(shown)
    row = region.locator("tbody tr:has(td.number)").first
    cell = row.locator("td.number:not(:empty)").first
    text = cell.inner_text()
    drag_over(cell)
    assert row.get_attribute("aria-selected") in (None, "false")
    assert copied_by_key(region.page).strip() == " ".join(text.replace("\u202f", "").split())
    cell.click()
    if row.get_attribute("data-key") is not None:
        expect(row).to_have_attribute("aria-selected", "true")


def test_numbers_are_copied_with_ordinary_digits(opened: Callable[[Shown], Locator]) -> None:
    region = opened(TABLES[1])
    moment = region.locator("tbody td[data-column=start_ns]").first
    assert moment.inner_text() == "12.000\u202f000\u00a0ms"
    drag_over(moment)
    assert copied_by_key(region.page).strip() == "12.000000 ms"


def test_a_double_click_selects_a_word_and_the_row_stays_selected(
    opened: Callable[[Shown], Locator],
) -> None:
    region = opened(TABLES[0])
    row = region.locator("tr[data-key]").first
    row.locator("td").first.dblclick(position={"x": 40, "y": 12})
    expect(row).to_have_attribute("aria-selected", "true")
    assert re.fullmatch(r"\w+", copied_by_key(region.page).strip())


def test_bars_behind_shares_are_as_long_as_these_and_begin_at_one_edge(
    opened: Callable[[Shown], Locator],
) -> None:
    region = opened(TABLES[0])
    bars = region.locator("td.bar[data-column=cpu_self_ns]").evaluate_all(
        """cells => cells.map(cell => {
            const {backgroundPosition, backgroundSize} = getComputedStyle(cell)
            return [cell.querySelector(".share").innerText, backgroundPosition, backgroundSize]
        })"""
    )
    assert len(bars) == 20
    for share, position, size in bars:
        assert position.startswith("0%")
        length, height = re.fullmatch(r"(?:max\(1px, )?([\d.]+)%\)? (.*)", size).groups()  # type: ignore[union-attr]
        assert float(length) == pytest.approx(float(share.rstrip("\u00a0%")), abs=0.51)
        assert height == "calc(100% - 4px)"


def test_bars_beside_changes_leave_the_middle_for_less_and_more(
    opened: Callable[[Shown], Locator],
) -> None:
    region = opened(TABLES[3])
    region.get_by_label("Include noise and unchanged").check()
    changes = region.locator("td.change[style]").evaluate_all(
        """cells => cells.map(cell => [cell.innerText,
            ...["--from", "--to"].map(name => parseFloat(cell.style.getPropertyValue(name)))])"""
    )
    assert len(changes) > 1
    for text, start, end in changes:
        assert (start, end) == (50, pytest.approx(end)) if text[0] == "+" else end == 50
        assert 0 <= start < end <= 100
    assert max(end - start for _, start, end in changes) == 50
