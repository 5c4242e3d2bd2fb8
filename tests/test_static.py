"""What a reader without scripts gets: findings in words, the op table, the picture."""

from __future__ import annotations

import io
import re
import threading
import warnings
from html import unescape
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st
from matplotlib import rc_context, rcParams
from matplotlib.colors import to_rgb
from nbconvert.filters.strings import clean_html
from PIL import Image

from gpuprof_widgets.analyses.columns import format_ns
from gpuprof_widgets.analyses.findings import Finding, findings
from gpuprof_widgets.analyses.python_calls import python_calls
from gpuprof_widgets.trace.model import Record
from gpuprof_widgets.trace.readers import load
from gpuprof_widgets.views import canvas
from gpuprof_widgets.views.canvas import (
    KINDS,
    RGB,
    ink_on,
    kind_of,
    luminance,
)
from gpuprof_widgets.views.picture import (
    TIMELINE,
    VIEWS,
    Level,
    drawn,
    headline,
    levels,
    picture_png,
    picture_svg,
    pixels,
)
from gpuprof_widgets.views.ranks_page import _heat
from gpuprof_widgets.views.report import (
    html_summary,
    static_html,
    static_text,
    text_summary,
)
from gpuprof_widgets.views.static_tables import op_rows
from gpuprof_widgets.views.table import Colour
from gpuprof_widgets.views.table_renderers import BAR_COLOUR
from tests.traces import (
    Row,
    Shared,
    calls_of,
    cell_line,
    copy,
    kernel,
    memory,
    op,
    python,
    runtime,
    trace_of,
)

pytestmark = pytest.mark.slow

EXTENSION = Path(__file__).parents[1] / "gpuprof_widgets" / "views" / "extension"


@pytest.fixture
def cpu_record() -> Record:
    """30 ms of `aten::conv2d` in three calls, 10 ms of `aten::relu` in one."""
    ms = 1_000_000
    return trace_of(
        op("aten::conv2d", ts=0, dur=10 * ms),
        op("aten::conv2d", ts=10 * ms, dur=10 * ms),
        op("aten::conv2d", ts=20 * ms, dur=10 * ms),
        op("aten::relu", ts=30 * ms, dur=10 * ms),
    )


@pytest.fixture
def gpu_record() -> Record:
    """A kernel that runs in the second half of its op."""
    return trace_of(
        op("aten::mm", ts=0, dur=1000),
        runtime("cudaLaunchKernel", ts=100, dur=50),
        kernel("gemm", ts=500, dur=500, launched_by=1),
    )


class Cells(HTMLParser):
    """Rows of text of the tables in some HTML, and the tags that it uses."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.rows: list[list[str]] = []
        self.tags: set[str] = set()
        self.in_cell = False
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        if tag == "tr":
            self.rows.append([])
        elif tag == "td":
            self.in_cell = True
            self.rows[-1].append("")

    def handle_endtag(self, tag: str) -> None:
        self.in_cell = self.in_cell and tag != "td"

    def handle_data(self, data: str) -> None:
        if self.in_cell:
            self.rows[-1][-1] += data.replace("\u00a0", " ")


def test_op_table_ranks_by_cpu_time_where_there_is_no_gpu(cpu_record: Record) -> None:
    assert Cells(static_html(cpu_record)).rows == [
        ["Op", "Calls", "CPU self", "self %", "CPU total", "total %"],
        ["aten::conv2d", "3", "30.0 ms", "75 %", "30.0 ms", "75 %"],
        ["aten::relu", "1", "10.0 ms", "25 %", "10.0 ms", "25 %"],
    ]


def test_op_table_shows_gpu_time_on_the_op_that_caused_it(gpu_record: Record) -> None:
    rows = Cells(static_html(gpu_record)).rows
    cpu, gpu = ["CPU self", "self %", "CPU total", "total %"], ["GPU self", "self %", "GPU total"]
    assert rows[:2] == [
        ["Op", "Calls", *gpu, *cpu],
        ["aten::mm", "1", "500 ns", "100 %", "500 ns", "950 ns", "95 %", "1.00 µs", "100 %"],
    ]
    assert "gemm" not in [row[0] for row in rows]


def heading_of(text: str) -> list[str]:
    return re.split("  +", next(line for line in text.splitlines() if line.startswith("Op ")))


def test_the_text_has_room_for_both_shares_and_gives_up_those_of_the_cpu_for_a_gpu(
    cpu_record: Record, gpu_record: Record
) -> None:
    cpu = ["CPU self", "self %", "CPU total", "total %"]
    assert heading_of(static_text(cpu_record)) == ["Op", "Calls", *cpu]
    counted = trace_of(op("aten::mm", ts=0, dur=1000, shapes=[[200, 300], [300, 400]]))
    assert heading_of(static_text(counted)) == ["Op", "Calls", *cpu, "FLOPs"]
    gpu = ["GPU self", "self %", "GPU total", "CPU self", "CPU total"]
    assert heading_of(static_text(gpu_record)) == ["Op", "Calls", *gpu]


def test_the_self_times_of_all_ops_stand_below_the_table(
    cpu_record: Record, gpu_record: Record
) -> None:
    assert static_text(cpu_record, top=1).endswith("\nSelf CPU time total: 40.0 ms")
    html = static_html(cpu_record, top=1).replace("\u00a0", " ")
    assert "</table><div>Self CPU time total: 40.0 ms</div>" in html
    assert "Self GPU" not in html
    both = ["Self CPU time total: 1.00 µs", "Self GPU time total: 500 ns"]
    assert static_text(gpu_record).splitlines()[-2:] == both
    assert "".join(f"<div>{line}</div>" for line in both) in static_html(gpu_record).replace(
        "\u00a0", " "
    )


def test_op_table_shows_the_column_that_it_is_sorted_by(cpu_record: Record) -> None:
    rows = Cells(static_html(cpu_record, sort="cpu_time", top=1)).rows
    assert [row[-1] for row in rows] == ["CPU average", "10.0 ms"]


@pytest.fixture
def unlinked_record() -> Record:
    """GPU work of which no event tells who launched it; the longest op has the least self time."""
    return trace_of(
        op("aten::to", ts=0, dur=600),
        op("aten::empty", ts=10, dur=500),
        runtime("cudaMemcpyAsync", ts=1000, dur=5000),
        copy(ts=1500, dur=4000),
    )


def test_gpu_work_of_no_op_leaves_the_ops_in_the_order_of_their_caption(
    unlinked_record: Record,
) -> None:
    table = op_rows(unlinked_record, sort="device_self", top=15)
    assert table.title == "Ops by CPU self: 3 of 3"
    assert table.rows["name"].tolist() == ["cudaMemcpyAsync", "aten::empty", "aten::to"]


def test_the_picture_ranks_ops_by_the_time_that_it_names(unlinked_record: Record) -> None:
    written = [words["s"] for words in drawn(unlinked_record, "ops").words]
    assert written[0] == "Top ops by CPU self time"
    assert written[1::2] == ["cudaMemcpyAsync", "aten::empty", "aten::to"]


@pytest.fixture
def memory_record() -> Record:
    """A matmul of 2 x 3 by 3 x 4 on the GPU that allocates 1 KiB there and 2 KiB on the CPU."""
    return trace_of(
        op("aten::mm", ts=0, dur=1000, shapes=[[2, 3], [3, 4]]),
        memory(1024, ts=10, device=0),
        memory(2048, ts=20),
        runtime("cudaLaunchKernel", ts=100, dur=50),
        kernel("gemm", ts=500, dur=500, launched_by=3),
    )


def test_memory_and_flops_have_columns_where_they_were_recorded(memory_record: Record) -> None:
    heading, first, *rest = Cells(static_html(memory_record)).rows
    shown = dict(zip(heading, first, strict=True))
    assert shown["CPU self mem"] == "2.00 KiB"
    assert shown["GPU self mem"] == "1.00 KiB"
    assert shown["FLOPs"] == "48 FLOP"
    assert rest[0][-1].startswith("–"), "no FLOPs were counted: that is not 0"


@pytest.mark.parametrize("sort", ["device_self", "cpu_self", "device_total", "cpu_memory"])
def test_the_text_gives_up_other_columns_for_memory(memory_record: Record, sort: str) -> None:
    lines = static_text(memory_record, sort=sort).split("\n\n")[1].splitlines()
    caption, heading, *rows = [line for line in lines if not line.startswith("Self ")]
    assert {"CPU self mem", "GPU self mem", "FLOPs"} <= set(re.split("  +", heading))
    assert caption.split(" by ")[1].split(":")[0] in re.split("  +", heading)
    assert rows[0].startswith("aten::mm ")
    assert {len(line) for line in [heading, *rows]} == {79}


def test_a_file_of_cprofile_shows_its_python_functions() -> None:
    ms = 1_000_000
    record = trace_of(calls=calls_of((None, "main", 1, 10 * ms), ("main", "step", 3, 30 * ms)))
    html = static_html(record)
    assert "Python functions by self time: 2 of 2" in html
    assert Cells(html).rows == [
        ["Python function", "Calls", "Self time", "share", "Total time"],
        ["cell.py:2(step)", "3", "30.0 ms", "75 %", "30.0 ms"],
        ["cell.py:1(main)", "1", "10.0 ms", "25 %", "40.0 ms"],
    ]
    assert re.search(r"cell\.py:2\(step\) +3 +30\.0 ms +75 % +30\.0 ms", static_text(record))
    by_total = Cells(static_html(record, sort="cpu_total", top=1)).rows
    assert [row[0] for row in by_total] == ["Python function", "cell.py:1(main)"]


@pytest.mark.parametrize(
    ("key", "by", "first"),
    [
        ("tottime", "self time", "cell.py:2(step)"),
        ("cumulative", "total time", "cell.py:1(main)"),
        ("ncalls", "calls", "cell.py:2(step)"),
        ("pcalls", "primitive calls", "cell.py:2(step)"),
        ("name", "name", "cell.py:1(main)"),
        ("nfl", "name", "cell.py:1(main)"),
    ],
)
def test_a_key_of_pstats_asks_for_the_python_functions_as_prun_does(
    key: str, by: str, first: str
) -> None:
    calls = calls_of((None, "main", 1, 100), ("main", "step", 3, 300))
    ops = (op("aten::mm", ts=0, dur=9), op("aten::add", ts=20, dur=50))
    functions, *others = re.split(r"\n\n", static_text(trace_of(*ops, calls=calls), sort=key))[1:]
    caption, _, row, *_ = functions.splitlines()
    assert caption == f"Python functions by {by}: 2 of 2"
    assert row.startswith(first)
    assert others[0].startswith("Ops by CPU self: 2 of 2")
    alone = Cells(static_html(trace_of(calls=calls), sort=key)).rows
    assert [each[0] for each in alone[:2]] == ["Python function", first]


@pytest.mark.parametrize("name", ["bittensor.pstats", "cprofile-cycle.pstats"])
def test_real_files_of_cprofile_are_readable(name: str, shared: Shared) -> None:
    record = load(shared(f"pstats/{name}"))
    table = python_calls(record)
    text = static_text(record, top=5)
    assert f"Python functions by self time: {min(5, len(table))} of {len(table):,}" in text
    assert format_ns(table["self_ns"].max()) in text
    assert max(map(len, text.splitlines())) < 80
    assert len(Cells(static_html(record, top=5)).rows) == 1 + min(5, len(table))


def test_bars_are_as_long_as_the_shares(cpu_record: Record) -> None:
    edges = re.findall(r"linear-gradient\([^%]*? ([\d.]+)%", static_html(cpu_record))
    assert edges == ["75.0", "75.0", "25.0", "25.0"]


def test_findings_come_first_with_names_as_code(gpu_record: Record) -> None:
    html = static_html(gpu_record)
    first = findings(gpu_record)[0].text
    words = unescape(re.sub("<[^>]+>", "", html.split("</strong>")[0]))
    assert words.replace("\u00a0", " ") == first.replace("`", "")
    assert html.index("</ol>") < html.index("<table")


def test_no_line_of_the_html_ends_between_a_number_and_its_unit() -> None:
    found = [Finding("`f(2 s)` took 12.3 ms (24 %) of 3 steps, 1.50 GiB at 2.71 MFLOP.")]
    record = trace_of(op("aten::mm 3 ms", ts=0, dur=12_300_000), op("b", ts=20_000_000, dur=9))
    html, text = static_html(record), static_text(record)
    assert "<code>f(2 s)</code> took 12.3_ms (24_%) of 3 steps, 1.50_GiB at 2.71_MFLOP." in (
        html_summary(found, [], all_in="").replace("\u00a0", "_")
    )
    assert not re.findall(r"<td style=[^>]*>[^<]* [^<]*</td>", html)
    assert ">12.3\u00a0ms</td>" in html
    assert "<code>aten::mm 3 ms</code></td>" in html
    assert all(line.isprintable() for line in text.splitlines())


def test_where_the_time_went_is_told_without_scripts(gpu_record: Record) -> None:
    rows = Cells(static_html(gpu_record)).rows
    shown = {row[0]: row[1] for row in rows if row[0].startswith("GPU 0 · ")}
    assert shown["GPU 0 · busy · compute"] == "500 ns"
    assert len(rows) < 40


def test_nbconvert_sanitiser_leaves_no_tag_as_visible_text(gpu_record: Record) -> None:
    html = static_html(gpu_record)
    # It adds tbody to every table, and then escapes that.
    cleaned = re.sub("&lt;/?tbody&gt;", "", clean_html(html))
    assert "&lt;" not in cleaned
    assert Cells(cleaned).rows == Cells(html).rows


def test_html_has_no_script_frame_drawing_or_id_and_no_colours_of_its_own(
    gpu_record: Record,
) -> None:
    html = static_html(gpu_record)
    assert Cells(html).tags <= {
        *("div", "ol", "li", "strong", "em", "code"),
        *("table", "tr", "td"),
    }
    assert " id=" not in html
    assert not re.search(r"(?<![-\w])color:", html)
    assert not re.search(r"background(-color)?:\s*(#|white|rgb\()", html)


@pytest.mark.parametrize("fill", [BAR_COLOUR, *(fill[0][0] for fill in _heat([1.0]))])
@pytest.mark.parametrize(
    ("text", "behind"),
    [
        ("#cccccc", "#1f1f1f"),
        ("#bbbebf", "#121314"),
        ("#3b3b3b", "#ffffff"),
        ("#ffffff", "#000000"),
    ],
)
def test_numbers_are_legible_on_the_fills_in_every_theme_of_vscode(
    text: str, behind: str, fill: Colour
) -> None:
    """Also in every other row, which VS Code makes grey."""
    grey = _over(to_rgb(behind), (130, 130, 130, 0.08))
    for row in (to_rgb(behind), grey):
        low, high = sorted(map(luminance, (to_rgb(text), _over(row, fill))))
        assert (high + 0.05) / (low + 0.05) >= 4.5


def _over(behind: RGB, fill: Colour) -> RGB:
    """Return the colour of a fill in front of another colour."""
    *channels, alpha = fill
    red, green, blue = (b + (c / 255 - b) * alpha for b, c in zip(behind, channels, strict=True))
    return red, green, blue


@pytest.mark.parametrize("view", VIEWS)
def test_an_empty_record_still_has_words_and_a_picture(view: str) -> None:
    record = trace_of()
    assert "Ops by CPU self: 0 of 0" in static_text(record)
    width, height = opened(picture_png(record, view)).size
    assert width == VIEWS[view].right - VIEWS[view].left
    assert 30 < height < 200


def test_settings_of_the_user_do_not_change_the_picture(cpu_record: Record) -> None:
    png = picture_png(cpu_record)
    with rc_context({"text.usetex": True, "font.family": "serif", "savefig.dpi": 30}):
        before = dict(rcParams)
        assert picture_png(cpu_record) == png
        assert dict(rcParams) == before


def test_threads_draw_one_after_the_other() -> None:
    """Each would put back settings of matplotlib that are the other's."""
    before, drawing = dict(rcParams), threading.Event()

    def draw() -> None:
        with canvas._drawing():
            drawing.set()

    with canvas._drawing():
        thread = threading.Thread(target=draw)
        thread.start()
        assert not drawing.wait(0.2)
    thread.join()
    assert drawing.is_set()
    assert dict(rcParams) == before


def test_fonts_of_the_user_draw_what_the_first_one_lacks(cpu_record: Record) -> None:
    with rc_context({"font.sans-serif": ["SimHei", "DejaVu Sans"]}):
        assert b"'DejaVu Sans', 'Verdana', 'SimHei', sans-serif" in picture_svg(cpu_record)


def test_characters_that_the_font_lacks_are_no_warning() -> None:
    record = trace_of(op("模型 🔥", ts=0, dur=100))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert picture_png(record)
        assert "模型 🔥" in picture_svg(record).decode()


def opened(png: bytes) -> Image.Image:
    return Image.open(io.BytesIO(png))


def channels(colour: str) -> npt.NDArray[np.float64]:
    return 255 * np.array(to_rgb(colour))


def colours(png: bytes) -> npt.NDArray[np.int64]:
    return np.asarray(opened(png).convert("RGB")).astype(np.int64)


def test_picture_title_is_the_first_finding(gpu_record: Record) -> None:
    title = opened(picture_png(gpu_record)).info["Title"]
    assert title == headline(gpu_record) == findings(gpu_record)[0].text.replace("`", "")


def test_picture_has_a_kernel_where_it_ran_and_nothing_where_the_gpu_was_idle() -> None:
    record = trace_of(op("aten::mm", ts=0, dur=1000), kernel("gemm", ts=500, dur=500))
    red, green, blue = np.moveaxis(colours(picture_png(record)), 2, 0)
    green = (green > red + 60) & (green > blue + 20)
    row = green[TIMELINE.top : TIMELINE.bottom, TIMELINE.left : TIMELINE.right].any(axis=0)
    middle = len(row) // 2
    assert not row[: middle - 2].any()
    assert row[middle + 2 : -2].mean() > 0.9


def test_picture_of_many_events_draws_no_more_text_than_that_of_few() -> None:
    rows = [op(f"aten::op{n % 50}", ts=10 * n, dur=8) for n in range(20_000)]
    canvas = drawn(trace_of(*rows), "all")
    assert len(canvas.words) < 30
    assert sum(map(len, canvas.boxes.values())) < TIMELINE.right - TIMELINE.left + 100


spans = st.lists(st.tuples(st.integers(0, 60), st.integers(1, 40)), min_size=1, max_size=12)


@given(gaps_and_lengths=spans, width=st.integers(1, 50))
def test_pixels_equal_a_plain_count(gaps_and_lengths: list[tuple[int, int]], width: int) -> None:
    level = level_of(gaps_and_lengths)
    end = int(level.end[-1]) + 3
    row, share = pixels(level, 0, end, width)
    for pixel in range(width):
        left, right = pixel * end / width, (pixel + 1) * end / width
        overlaps = [
            max(0.0, min(right, e) - max(left, t)) for t, e in zip(level.ts, level.end, strict=True)
        ]
        assert share[pixel] == pytest.approx(sum(overlaps) / (right - left), abs=1e-6)
        touching = [n for n, overlap in enumerate(overlaps) if overlap > 1e-9]
        assert not touching or row[pixel] == touching[0]


def level_of(gaps_and_lengths: list[tuple[int, int]]) -> Level:
    ts, end, now = [], [], 0
    for gap, length in gaps_and_lengths:
        ts.append(now + gap)
        end.append(now + gap + length)
        now = end[-1]
    return Level(0, 0, np.arange(len(ts)), np.array(ts), np.array(end))


def test_levels_hold_every_slice_once_and_never_overlap(gpu_record: Record) -> None:
    drawn = list(levels(gpu_record.trace, max_depth=6))
    rows = np.concatenate([level.row for level in drawn])
    assert sorted(rows) == list(range(len(gpu_record.trace)))
    assert all((level.ts[1:] >= level.end[:-1]).all() for level in drawn)


def test_colours_are_those_of_the_page() -> None:
    source = (EXTENSION / "categories.ts").read_text()
    named = dict(re.findall(r'(\w+): hex\("(#\w+)"\)', source))
    kinds = re.findall(r'text: "([^"]+)", colour: \w+\.(\w+), categories: \[(.*?)\]', source)
    page = {
        text: (named[colour], tuple(re.findall(r'"(\w+)"', categories)))
        for text, colour, categories in kinds
    }
    assert page == KINDS


@pytest.mark.parametrize("program", ["cuda", "megengine", "hip"])
def test_calls_of_every_runtime_have_one_colour(program: str) -> None:
    assert kind_of(f"{program}_runtime") == kind_of(f"{program}_driver") == "runtime call"


@pytest.mark.parametrize("kind", KINDS)
def test_labels_on_bars_have_enough_contrast(kind: str) -> None:
    fill = to_rgb(KINDS[kind][0])
    low, high = sorted([luminance(fill), luminance(to_rgb(ink_on(fill)))])
    assert (high + 0.05) / (low + 0.05) >= 4.5


def lined(code: str = "loss.backward()", *more: Row) -> Record:
    """A cell of a loop with two statements, one of them with GPU work."""
    return trace_of(
        cell_line(2, "for x in data:", ts=0, dur=100_000),
        cell_line(3, code, ts=1_000, dur=80_000),
        runtime("cudaLaunchKernel", ts=2_000, dur=500),
        runtime("cudaStreamSynchronize", ts=3_000, dur=50_000),
        kernel("gemm", ts=4_000, dur=48_000, launched_by=2),
        *more,
    )


def test_the_text_lists_the_lines_by_their_own_time() -> None:
    text = static_text(lined("loss.backward()", op("end", ts=190_000, dur=10_000))).splitlines()
    start = text.index("Lines by self time: 2 of 2")
    assert [" ".join(line.split()) for line in text[start + 1 : start + 4]] == [
        "Line Self share Wall GPU GPU wait",
        "3: loss.backward() 80.0 µs 40 % 80.0 µs 48.0 µs 50.0 µs",
        "2: for x in data: 20.0 µs 10 % 100 µs 0 ns 0 ns",
    ]


def test_the_code_of_a_line_is_never_markup_and_fits() -> None:
    code = "print('<script>alert(1)</script>', `x`, \"&amp;\")" + " + 1" * 99
    html, text = static_html(lined(code)), static_text(lined(code))
    assert "<script>" not in html
    assert "&lt;script&gt;alert(1)&lt;/script&gt;&#x27;, `x`, &quot;&amp;amp;&quot;" in html
    assert max(map(len, text.splitlines())) < 80


WAITS = [
    op("aten::item", ts=0, dur=90_000),
    runtime("cudaStreamSynchronize", ts=1_000, dur=80_000),
    kernel("sgemm", ts=0, dur=81_000),
]
ITEM = "<method 'item' of 'torch._C.TensorBase' objects>"


def test_python_functions_are_shown_with_what_they_waited_where_that_matters() -> None:
    calls = calls_of((None, "step", 1, 900_000), ("step", ITEM, 9, 100_000))
    text = static_text(trace_of(*WAITS, calls=calls))
    (row,) = [line.split() for line in text.splitlines() if line.startswith("Tensor.item")]
    assert row == ["Tensor.item", "9", "100", "µs", "80.0", "µs", "80", "%", "100", "µs"]
    assert "waited (est.)" in text
    html = static_html(trace_of(*WAITS, calls=calls))
    assert "<code>Tensor.item</code>" in html
    little = calls_of((None, "step", 1, 1_500_000), ("step", ITEM, 9, 100_000))
    assert "Python functions by" not in static_text(trace_of(*WAITS, calls=little))


def test_waits_known_from_frames_are_no_estimate_in_the_table() -> None:
    frames = [python("a.py(1): step", ts=0, dur=100_000)]
    text = static_text(trace_of(*WAITS, *frames))
    assert "Python functions by self time" in text
    assert "est." not in text


def test_the_picture_shows_ops_below_deep_modules() -> None:
    spans = [op(f"m{'.0' * i}", ts=i, dur=1000 - 2 * i, category="module") for i in range(8)]
    image = colours(picture_png(trace_of(*spans, op("aten::mm", ts=10, dur=900))))
    timeline = image[TIMELINE.top : TIMELINE.bottom, TIMELINE.left : TIMELINE.right]
    blue = np.abs(timeline - channels(KINDS["CPU op"][0])).sum(axis=2) < 120
    assert blue.sum() > 5_000


def test_parts_of_a_cause_hide_no_other_finding() -> None:
    """They are shown as well, up to seven findings in all."""
    whole, part = Finding("Whole."), Finding("Part.", part_of="device_idle")
    others = [Finding(f"Finding {i}.") for i in range(6)]
    for summary in (html_summary, text_summary):
        for parts, shown in ((0, 4), (1, 4), (2, 4), (3, 3)):
            words = summary([whole, *[part] * parts, *others], [], all_in="run.findings()")
            assert words.count("Part.") == parts
            assert [i for i in range(6) if f"Finding {i}." in words] == list(range(shown))
            assert f"{6 - shown} more findings: run.findings() has all of them" in words
        assert "more" not in summary(others[:5], [], all_in="run.findings()")
