"""The memory view in Chromium: what it draws, says and selects, with the mouse and the keyboard."""

from __future__ import annotations

from functools import cache
from itertools import pairwise

import pytest
from playwright.sync_api import Locator, expect

from gpuprof_widgets.analyses.columns import format_bytes
from gpuprof_widgets.analyses.memory import memory_curve, memory_peak
from gpuprof_widgets.trace.model import Record
from gpuprof_widgets.trace.readers import load
from tests.browser.report_page import Open, Report, too_faint
from tests.traces import Shared, block, op, trace_of

MS = 1_000_000
MIB = 2**20
KIB = 2**10


@cache
def allocating() -> Record:
    """30 MiB and then 10 more on a GPU that held 20 before, and a little on the CPU."""
    node = "autograd::engine::evaluate_function: MmBackward0"
    gpu = {"device": 0, "reserved": 100 * MIB}
    return trace_of(
        op("4: y = model(x)", ts=0, dur=40 * MS, category="cell_line"),
        op("encoder", ts=MS, dur=38 * MS, category="module"),
        op("aten::mm", ts=10 * MS, dur=10 * MS, sequence=1, forward_thread=0),
        block(30 * MIB, at=1, ts=12 * MS, allocated=50 * MIB, **gpu),
        block(4 * KIB, at=1, ts=13 * MS, allocated=4 * KIB),
        op(node, ts=50 * MS, dur=20 * MS),
        op("MmBackward0", ts=51 * MS, dur=18 * MS, sequence=1, forward_thread=1),
        block(10 * MIB, at=2, ts=60 * MS, allocated=60 * MIB, **gpu),
        block(-30 * MIB, at=1, ts=65 * MS, allocated=30 * MIB, **gpu),
        op("aten::add", ts=80 * MS, dur=20 * MS),
        label="allocating",
    )


def surface(report: Report) -> Locator:
    return report.page.locator("[role=application][aria-label^='Memory.']")


def blocks(report: Report) -> Locator:
    return report.page.locator("table[aria-label='Biggest allocations'] tbody tr")


def point(report: Report, share: float, height: float) -> tuple[float, float]:
    """A point of the plot: a share of its width and, from below, of its height."""
    area = surface(report)
    area.scroll_into_view_if_needed()
    box = area.bounding_box()
    assert box is not None
    return box["x"] + share * box["width"], box["y"] + (1 - height) * box["height"]


def selected_names(report: Report) -> list[str]:
    names: list[str] = report.state(
        "Array.from(store.selection?.rows ?? [], (row) => store.data.name(row))"
    )
    return names


def test_the_peak_is_told_with_its_categories(open_report: Open) -> None:
    report = open_report(allocating())
    expect(report.page.get_by_label("Peak memory", exact=True)).to_have_text(
        "GPU 0: peak 60.0 MiB at 60 ms (50 % activations, 33 % before the record, 17 % gradients)"
    )
    expect(report.page.get_by_label("Colours of the memory")).to_contain_text("reserved")


def test_the_biggest_blocks_come_first_with_their_owners(open_report: Open) -> None:
    report = open_report(allocating())
    cells = [
        " ".join(text.split()) for text in blocks(report).first.locator("td").all_inner_texts()
    ]
    assert cells == [
        "activations",
        "30.0 MiB",
        "12.000 000 ms",
        "53.0 ms",
        "4: y = model(x)",
        "encoder",
        "aten::mm",
    ]
    assert blocks(report).count() == 2


def test_a_row_lights_up_its_op_on_the_timeline(open_report: Open) -> None:
    report = open_report(allocating())
    blocks(report).first.click()
    expect(blocks(report).first).to_have_attribute("aria-selected", "true")
    expect(report.selection_text).to_contain_text("aten::mm")
    assert selected_names(report) == ["aten::mm", "[memory]", "[memory]"]
    blocks(report).first.click()
    expect(report.selection_text).to_contain_text("Nothing selected")


def test_an_op_selected_elsewhere_shows_the_block_that_it_allocated(open_report: Open) -> None:
    report = open_report(allocating())
    blocks(report).nth(1).click()
    expect(report.selection_text).to_contain_text("MmBackward0")
    report.selection_text.get_by_role("button", name="aten::mm").click()  # the forward op
    expect(blocks(report).first).to_have_attribute("aria-selected", "true")


def test_hovering_tells_the_stack_and_the_block_under_the_pointer(open_report: Open) -> None:
    report = open_report(allocating())
    report.page.mouse.move(*point(report, 0.3, 0.35))
    tooltip = report.page.get_by_role("tooltip").filter(has_text="GPU 0: 50.0 MiB")
    expect(tooltip).to_contain_text("activations")
    expect(tooltip).to_contain_text("30.0 MiB (60 %)")
    expect(tooltip).to_contain_text("20.0 MiB (40 %)")
    expect(tooltip).to_contain_text("100 MiB")
    expect(tooltip).to_contain_text("encoder")


def test_a_click_selects_the_block_under_the_pointer(open_report: Open) -> None:
    report = open_report(allocating())
    x, y = point(report, 0.3, 0.35)
    report.page.mouse.click(x, y)
    assert selected_names(report)[0] == "aten::mm"
    x, y = point(report, 0.3, 0.05)  # what was there before has no owner
    report.page.mouse.click(x, y)
    expect(report.selection_text).to_contain_text("Nothing selected")


def test_a_drag_brushes_the_range_of_all_views_and_the_list_follows(open_report: Open) -> None:
    report = open_report(allocating())
    mouse = report.page.mouse
    mouse.move(*point(report, 0.7, 0.5))
    mouse.down()
    mouse.move(*point(report, 0.8, 0.5), steps=4)
    mouse.move(*point(report, 0.9, 0.5), steps=4)
    mouse.up()
    expect(report.range_text).to_contain_text("Range")
    start, end = report.brushed()
    assert (start, end) == (pytest.approx(70 * MS, abs=MS), pytest.approx(90 * MS, abs=MS))
    expect(blocks(report)).to_have_count(1)
    expect(blocks(report).first).to_contain_text("10.0 MiB")
    report.page.keyboard.press("Escape")
    expect(blocks(report)).to_have_count(2)


def test_keys_walk_the_blocks_and_go_to_the_peak(open_report: Open) -> None:
    report = open_report(allocating())
    surface(report).focus()
    report.page.keyboard.press("ArrowDown")
    expect(blocks(report).first).to_have_attribute("aria-selected", "true")
    report.page.keyboard.press("ArrowDown")
    expect(blocks(report).nth(1)).to_have_attribute("aria-selected", "true")
    report.page.keyboard.press("p")
    expect(blocks(report).first).to_have_attribute("aria-selected", "true")
    report.page.keyboard.press("Escape")
    expect(report.selection_text).to_contain_text("Nothing selected")


def test_another_device_has_its_own_peak_and_blocks(open_report: Open) -> None:
    report = open_report(allocating())
    report.page.get_by_label("Device").select_option("CPU")
    expect(report.page.get_by_label("Peak memory", exact=True)).to_contain_text(
        "CPU: peak 4.00 KiB"
    )
    expect(blocks(report)).to_have_count(1)


def test_the_axis_can_leave_out_what_never_changes(open_report: Open) -> None:
    report = open_report(allocating())
    from_zero = report.page.get_by_role("button", name="From zero")
    expect(from_zero).to_have_attribute("aria-pressed", "true")
    from_zero.click()
    expect(from_zero).to_have_attribute("aria-pressed", "false")
    report.page.mouse.move(*point(report, 0.3, 0.05))  # at the bottom is the least in view, 20 MiB
    tooltip = report.page.get_by_role("tooltip").filter(has_text="GPU 0: 50.0 MiB")
    expect(tooltip).to_be_visible()


@pytest.mark.parametrize(("scheme", "width"), [("light", 1280), ("dark", 1920)])
def test_its_text_is_legible_and_nothing_overlaps(
    open_report: Open, scheme: str, width: int
) -> None:
    report = open_report(allocating())
    report.page.set_viewport_size({"width": width, "height": 900})
    report.use_scheme(scheme)
    blocks(report).first.click()
    assert too_faint(report.page) == []
    parts = [
        report.page.get_by_label("Colours of the memory"),
        surface(report),
        report.page.get_by_role("heading", name="Biggest allocations"),
        report.page.locator("table[aria-label='Biggest allocations']"),
    ]
    boxes = [part.bounding_box() for part in parts]
    edges = [(box["y"], box["y"] + box["height"]) for box in boxes if box is not None]
    assert len(edges) == len(parts)
    assert all(above[1] <= below[0] + 1 for above, below in pairwise(edges))
    assert all(box["x"] + box["width"] <= width for box in boxes if box is not None)


@pytest.mark.parametrize(
    "name",
    ["kineto/resnet50_v100_num_workers_0", "tracelens/qwen_h100_stacks_memory"],
)
def test_the_page_finds_the_peak_of_python(open_report: Open, name: str, shared: Shared) -> None:
    record = load(shared(f"{name}.json.gz"))
    report = open_report(record)
    peak = memory_peak(record).iloc[0]
    expect(report.page.get_by_label("Peak memory", exact=True)).to_contain_text(
        f"{peak['device']}: peak {format_bytes(peak['allocated_bytes'])}"
    )
    curve = memory_curve(record)
    last = curve[curve["device"] == peak["device"]]["allocated_bytes"].iloc[-1]
    shown = report.state("store.data.lazily('memory').devices[0].total_at(Infinity)")
    assert shown == last
