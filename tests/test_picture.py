"""The picture of the views: colours of kernels by family, and the notes of the reader."""

from __future__ import annotations

import re
from itertools import pairwise

import pytest
from matplotlib.colors import to_hex, to_rgb

from gpuprof_widgets.analyses.compare.tables import Runs
from gpuprof_widgets.analyses.gpu_work import FAMILIES
from gpuprof_widgets.trace.model import Record
from gpuprof_widgets.trace.remarks import with_remark
from gpuprof_widgets.views.canvas import FAMILY_COLOURS, INK, Canvas, _label_width, luminance
from gpuprof_widgets.views.comparison import static_html, static_text
from gpuprof_widgets.views.picture import TIMELINE, VIEWS, drawn, picture_svg
from gpuprof_widgets.views.side_by_side import Row, page_group, placed, timelines_picture
from tests.traces import kernel, op, trace_of

pytestmark = pytest.mark.slow

MS = 1_000_000


def small() -> Record:
    return trace_of(
        op("aten::mm", ts=0, dur=100 * MS),
        kernel("sgemm_64x64", ts=0, dur=50 * MS),
        kernel("void at::native::vectorized_elementwise_kernel", ts=50 * MS, dur=50 * MS),
    )


def words_of(canvas: Canvas) -> list[str]:
    return [str(words["s"]) for words in canvas.words]


def test_kernels_have_the_colour_of_their_family_and_the_legend_names_it() -> None:
    svg = picture_svg(small(), "timeline").decode()
    fills = set(re.findall(r"fill: (#\w+)", svg))
    shown = ("matrix product", "elementwise")
    assert {to_hex(FAMILY_COLOURS[family]) for family in shown} <= fills
    assert to_hex(FAMILY_COLOURS["reduction"]) not in fills
    words = words_of(drawn(small(), "all"))
    assert [word for word in words if word in FAMILIES] == list(shown)
    assert "kernel" not in words


def test_every_family_has_a_colour_on_which_its_names_can_be_read() -> None:
    assert tuple(FAMILY_COLOURS) == FAMILIES
    assert len(set(FAMILY_COLOURS.values())) == len(FAMILIES)
    for fill in FAMILY_COLOURS.values():
        contrast = [
            (max(pair) + 0.05) / (min(pair) + 0.05)
            for ink in ("black", "white")
            for pair in [(luminance(fill), luminance(to_rgb(ink)))]
        ]
        assert max(contrast) >= 4.5


def test_a_note_is_a_band_or_a_line_with_its_text_above_the_tracks() -> None:
    record = with_remark(small(), "the `gemm` runs", (20 * MS, 40 * MS))
    record = with_remark(record, "and ends", 50 * MS)
    canvas = drawn(record, "all")
    width = TIMELINE.right - TIMELINE.left
    left, right, moment = (TIMELINE.left + round(width * part) for part in (0.2, 0.4, 0.5))
    (band, line) = canvas.boxes[to_rgb(INK), 0.1]
    assert (band.left, band.right) == (left, right)
    assert (line.left, line.right) == (moment, moment)
    assert {box.left for box in canvas.boxes[INK]} == {left, right, moment}
    texts = {str(words["s"]): words for words in canvas.words}
    for text, x in {"the gemm runs": left, "and ends": moment}.items():
        assert 0 <= texts[text]["x"] - x < 8
        assert TIMELINE.top <= texts[text]["y"] <= band.top
    assert not drawn(small(), "all").boxes[INK]


def test_texts_of_notes_end_where_the_next_begins() -> None:
    record = small()
    for number in range(8):
        record = with_remark(record, f"note {number} says a good deal more", 10 * number * MS)
    canvas = drawn(record, "all")
    notes = [(float(words["x"]), str(words["s"])) for words in canvas.words]
    notes = sorted(note for note in notes if note[1].startswith("note "))
    assert len(notes) == 8
    for (x, words), (following, _) in pairwise(notes):
        assert words.endswith("…")
        assert x + sum(map(_label_width, words)) <= following


def placed_words(canvas: Canvas) -> dict[str, tuple[float, float]]:
    """Where each text begins, and where it ends if it begins there."""
    return {
        (words := str(text["s"])): (float(text["x"]), text["x"] + sum(map(_label_width, words)))
        for text in canvas.words
    }


def test_a_note_near_the_right_edge_has_its_text_on_the_left_of_its_line() -> None:
    moment = TIMELINE.left + round(0.99 * (TIMELINE.right - TIMELINE.left))
    for record in (small(), with_remark(small(), "an earlier note", 30 * MS)):
        canvas = drawn(with_remark(record, "the end of the run", 99 * MS), "all")
        left, right = placed_words(canvas)["the end of the run"]
        assert moment - 8 < right <= moment
        assert moment in {box.left for box in canvas.boxes[INK]}
        assert TIMELINE.left < left
        before = placed_words(canvas).get("an earlier note", (0, 0))
        assert before[1] <= left


def test_a_long_note_leaves_half_to_the_one_near_the_right_edge() -> None:
    record = with_remark(small(), "a note that says a good deal more than fits here", 80 * MS)
    record = with_remark(record, "another one that says a good deal as well", 99 * MS)
    notes = {words: at for words, at in placed_words(drawn(record, "all")).items() if "…" in words}
    (_, middle), (begins, end) = sorted(notes.values())
    assert middle <= begins
    assert end <= TIMELINE.left + round(0.99 * (TIMELINE.right - TIMELINE.left))


def test_a_note_that_fits_on_the_right_or_has_less_room_on_the_left_begins_at_its_line() -> None:
    width = TIMELINE.right - TIMELINE.left
    fits = drawn(with_remark(small(), "it fits", 90 * MS), "all")
    assert placed_words(fits)["it fits"][0] > TIMELINE.left + round(0.9 * width)
    text = "a very long note " * 20
    long = placed_words(drawn(with_remark(small(), text, 0), "all"))
    (begins,) = [x for words, (x, _) in long.items() if words.startswith("a very long note")]
    assert TIMELINE.left < begins < TIMELINE.left + 8


def test_of_two_notes_at_the_right_edge_the_first_has_its_text_on_the_left() -> None:
    record = with_remark(with_remark(small(), "nearly at the end", 98 * MS), "the end", 99 * MS)
    words = placed_words(drawn(record, "all"))
    assert words["nearly at the end"][1] <= TIMELINE.left + round(
        0.98 * (TIMELINE.right - TIMELINE.left)
    )


@pytest.mark.parametrize("view", VIEWS)
def test_the_picture_is_as_high_as_what_it_holds(view: str) -> None:
    calls = [op("aten::mm", ts=100 * n, dur=90) for n in range(3)]
    nested = [op(f"aten::op{n}", ts=n, dur=1000 - 2 * n) for n in range(40)]
    kernels = [kernel(f"sgemm_{n}", ts=100 * n, dur=50, stream=n) for n in range(40)]
    few, many = drawn(trace_of(*calls), view), drawn(trace_of(*nested, *kernels), view)
    assert few.part.bottom < many.part.bottom <= 660
    for canvas in (few, many):
        boxes = [box for boxes in canvas.boxes.values() for box in boxes]
        texts = [float(words["y"]) for words in canvas.words]
        lowest = max(*texts, *(box.bottom for box in boxes))
        assert 5 <= canvas.part.bottom - lowest <= 20
        assert all(box.top >= canvas.part.top for box in boxes)


def test_what_is_not_drawn_is_told_above_the_flame_graph() -> None:
    nested = [op(f"aten::op{n}", ts=n, dur=1000 - 2 * n) for n in range(40)]
    height = {str(words["s"]): words["y"] for words in drawn(trace_of(*nested), "all").words}
    axis, heading = height["0 ns"], height["Flame graph: time by call path"]
    assert axis < height["not drawn here: nesting below level 6"] < heading
    assert not any(word.startswith("not drawn") for word in words_of(drawn(small(), "all")))


def test_of_notes_at_one_place_the_first_is_told() -> None:
    record = with_remark(with_remark(small(), "first", 20 * MS), "second", (20 * MS, 40 * MS))
    words = words_of(drawn(record, "all"))
    assert "first" in words
    assert "second" not in words


@pytest.mark.parametrize("ends", [(0, 0), (100, 100), (0, 100)])
def test_notes_at_the_ends_stay_inside(ends: tuple[int, int]) -> None:
    start, end = (ns * MS for ns in ends)
    canvas = drawn(with_remark(small(), "here", (start, end)), "all")
    for box in canvas.boxes[INK]:
        assert TIMELINE.left <= box.left <= TIMELINE.right


def test_notes_of_several_runs_stand_on_the_common_clock() -> None:
    a = with_remark(small(), "of a", 20 * MS)
    rows = [Row(a, "A"), Row(small(), "B", 5 * MS)]
    on_page = [store["remarks"] for store in page_group(rows)["stores"]]
    assert on_page == [[{"text": "of a", "start": 20 * MS, "end": 20 * MS}], []]
    later = [Row(a, "A", 7 * MS), Row(small(), "B", 0)]
    assert page_group(later)["stores"][0]["remarks"][0]["start"] == 27 * MS
    with_notes, without = (timelines_picture(placed(each), "").png for each in (rows, rows[1:] * 2))
    assert height(with_notes) > height(without)


def height(png: bytes) -> int:
    return int.from_bytes(png[20:24], "big")


def test_a_comparison_says_which_run_a_note_is_about() -> None:
    noted = with_remark(small(), "the second half is new", (50 * MS, 100 * MS))
    runs = Runs.of(small(), noted, None)
    line = "Note in B, from 50.000 ms to 100.000 ms: the second half is new"
    assert line in static_html(runs).replace("\u00a0", " ")
    assert line in " ".join(static_text(runs).split())
