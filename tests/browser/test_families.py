"""Kernels on the timeline by family: colours, legend and words."""

from __future__ import annotations

from functools import cache
from io import BytesIO
from itertools import combinations

import numpy as np
from PIL import Image
from playwright.sync_api import Position, expect

from gpuprof_widgets.analyses.gpu_work import FAMILIES
from gpuprof_widgets.trace.model import Record
from gpuprof_widgets.views.canvas import FAMILY_COLOURS
from tests.browser.report_page import Open
from tests.traces import copy, kernel, op, trace_of

MS = 1_000_000
PAGES = ([255, 255, 255], [17, 17, 17])

DEFICIENCIES = {
    "none": np.eye(3),
    "deuteranopia": [[0.367, 0.861, -0.228], [0.280, 0.673, 0.047], [-0.012, 0.043, 0.969]],
    "protanopia": [[0.152, 1.053, -0.205], [0.115, 0.786, 0.099], [-0.004, -0.048, 1.052]],
}
"""What of linear red, green and blue is seen (Machado, Oliveira and Fernandes, 2009)."""


@cache
def small() -> Record:
    return trace_of(
        op("aten::mm", ts=0, dur=9 * MS),
        kernel("sgemm", ts=MS, dur=2 * MS),
        kernel("ncclDevKernel_AllReduce", ts=4 * MS, dur=2 * MS),
        kernel("softmax_warp_forward", ts=7 * MS, dur=MS),
        copy(ts=8 * MS, dur=MS, stream=20),
    )


def test_the_legend_and_words_name_the_family(open_report: Open) -> None:
    report = open_report(small())
    legend = report.page.get_by_label("Colours").first.get_by_role("listitem")
    expect(legend).to_have_text(["CPU op", "matrix product", "softmax", "communication", "copy"])
    names = report.state("Array.from(store.data.ts, (_, row) => store.data.name(row))")
    for name, family in (("sgemm", "matrix product"), ("softmax_warp_forward", "softmax")):
        x, y, width, height = report.state(f"store.event_box({names.index(name)})")
        place: Position = {"x": x + width / 2, "y": y + height / 2}
        report.timeline.click(position=place)
        expect(report.selection_text).to_contain_text(f"Family {family}")
        report.page.mouse.move(0, 0)
        report.timeline.hover(position=place)
        expect(report.page.get_by_role("tooltip").filter(visible=True)).to_contain_text(family)


def test_a_bar_has_the_colour_of_its_family(open_report: Open) -> None:
    report = open_report(small())
    report.timeline.scroll_into_view_if_needed()
    picture = np.asarray(Image.open(BytesIO(report.timeline.screenshot())).convert("RGB"))
    names = report.state("Array.from(store.data.ts, (_, row) => store.data.name(row))")
    wanted = {"sgemm": "matrix product", "ncclDevKernel_AllReduce": "communication"}
    for name, family in wanted.items():
        x, y, width, height = report.state(f"store.event_box({names.index(name)})")
        drawn = picture[round(y + height / 2), round(x + width - 6)]
        colours = "store.constructor.colours.FAMILIES.map(({colour}) => colour)"
        colour = report.state(colours)[FAMILIES.index(family)]
        assert abs(drawn.astype(int) - np.round(colour)).max() <= 1


def test_families_are_told_apart_by_everybody_and_have_the_same_colours_in_the_picture(
    open_report: Open,
) -> None:
    report = open_report(small())
    page = report.state(
        "store.constructor.colours.FAMILIES.map(({text, colour}) => [text, colour])"
    )
    assert [name for name, _ in page] == list(FAMILY_COLOURS)
    for name, colour in page:
        assert np.abs(np.array(colour) - 255 * np.array(FAMILY_COLOURS[name])).max() < 1, name
    for background in PAGES:
        ink, dim, fill = report.page.evaluate(CONTRASTS, background)
        assert len(ink) == len(FAMILIES)
        assert min(*ink, *dim) >= 4.5
        assert min(fill) >= 3
    for name, matrix in DEFICIENCIES.items():
        seen = [lab(np.asarray(matrix) @ linear(np.array(colour) / 255)) for _, colour in page]
        least = min(float(np.linalg.norm(a - b)) for a, b in combinations(seen, 2))
        assert least > 8, name


CONTRASTS = """(page) => {
    const store = Object.values(window.gpuprof.reports)[0]
    const {FAMILIES, paint_of, contrast, parse_colour} = store.constructor.colours
    const paints = FAMILIES.map((_, family) => paint_of("k", "kernel", page, family))
    const rgb = (colour) => parse_colour(colour).rgb
    return [
        paints.map(({fill, ink}) => contrast(rgb(fill), rgb(ink))),
        paints.map(({dim_fill, dim_ink}) => contrast(rgb(dim_fill), rgb(dim_ink))),
        paints.map(({fill, outline}) => contrast(rgb(outline ?? fill), page)),
    ]
}"""


def linear(rgb: np.ndarray) -> np.ndarray:
    return np.where(rgb <= 0.04045, rgb / 12.92, ((rgb + 0.055) / 1.055) ** 2.4)


def lab(rgb: np.ndarray) -> np.ndarray:
    """CIE Lab of linear RGB; a distance of 2 is just seen."""
    to_xyz = [[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]]
    xyz = np.asarray(to_xyz) @ np.clip(rgb, 0, 1) / [0.9505, 1, 1.089]
    x, y, z = np.where(xyz > 0.008856, np.cbrt(xyz), 7.787 * xyz + 16 / 116)
    return np.array([116 * y - 16, 500 * (x - y), 200 * (y - z)])
