"""What changed in the source of two runs, and what it is said to have made of the time."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import cache
from math import comb
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from gpuprof_widgets.analyses.compare.labels import run_names
from gpuprof_widgets.analyses.compare.tables import Earlier
from gpuprof_widgets.analyses.compare.whole import Change, differ, ratio_interval
from gpuprof_widgets.comparisons import Comparison
from gpuprof_widgets.trace.model import Record
from gpuprof_widgets.trace.redact import redacted
from gpuprof_widgets.views.comparison import delta_tables, static_html, static_text
from tests.traces import Row, annotation, cell_line, kernel, op, trace_of

BEFORE = [
    "%%gpuprofile",
    "model = build()",
    "for x in loader:",
    "    y = model(x.cpu())",
    "    print(y)",
    "",
    "done()",
]
AFTER = [
    "%%gpuprofile --compare",
    "import torch",
    "model = build()",
    "for x in loader:",
    "    y = model(x)",
    "",
    "done()",
]


def run(text: list[str], times: dict[int, int], **about: Any) -> Record:
    """A run of a cell whose lines (by number) took these times, one after another."""
    rows: list[Row] = []
    at = 0
    for line, dur in times.items():
        rows.append(cell_line(line, text[line - 1].strip(), ts=at, dur=dur))
        at += dur
    return traced(text, *rows, **about)


def traced(text: list[str], *rows: Row, **about: Any) -> Record:
    """A run of a cell with these events."""
    cell = {
        "label": "Cell [3]",
        "source": "\n".join(text),
        "first_line": 1,
        "statements": [],
        "beyond_limit": [],
    }
    return trace_of(*rows, **{"lines": {"limit": 10_000, "cells": [cell]}, **about})


A = run(BEFORE, {2: 100, 3: 10, 4: 500, 5: 200, 7: 50})
B = run(AFTER, {2: 20, 3: 100, 4: 10, 5: 150, 7: 50})


def test_lines_stand_side_by_side_as_in_diff_and_edited_ones_are_one_line() -> None:
    table = Comparison(A, B).source()
    shown = list(zip(table["line_a"], table["line_b"], table["source"], strict=True))
    assert shown == [
        (-1, 2, "added"),
        (2, 3, "same"),
        (3, 4, "same"),
        (4, 5, "changed"),
        (5, -1, "gone"),
        (6, 6, "same"),
        (7, 7, "same"),
    ]
    times = table[["a_ns", "b_ns", "delta_ns"]].to_numpy()
    np.testing.assert_equal(times[3], [500, 150, -350])
    np.testing.assert_equal(times[4], [200, np.nan, -200])
    np.testing.assert_equal(times[5], [np.nan] * 3)
    assert table["code_a"].tolist()[3] == "    y = model(x.cpu())"


def test_the_table_of_lines_has_an_edited_line_once() -> None:
    table = Comparison(A, B).lines().set_index("code")
    edited = table.loc["y = model(x)"]
    assert (edited["code_a"], edited["matched"], edited["change"]) == (
        "y = model(x.cpu())",
        "similar",
        "less",
    )
    assert (edited["a_ns"], edited["b_ns"]) == (500, 150)
    assert table["delta_ns"].sum() == 330 - 860


def test_a_line_that_is_another_is_no_edit() -> None:
    a, b = ["x = 1", "for batch in loader:"], ["x = 1", "torch.cuda.synchronize()"]
    table = Comparison(run(a, {1: 5, 2: 5}), run(b, {1: 5, 2: 5})).source()
    assert table["source"].tolist() == ["same", "gone", "added"]


def test_a_cell_of_one_edited_line_is_the_same_cell() -> None:
    table = Comparison(run(["model(x)"], {1: 5}), run(["model(x.half())"], {1: 3})).source()
    assert table["source"].tolist() == ["changed"]


def test_what_changed_is_said_with_its_effect() -> None:
    found = {each.rule: each for each in Comparison(A, B).findings()}
    assert found["source"].title == "The source differs in 3 lines"
    assert found["source"].text == (
        "Changed in the source: line 5 `y = model(x.cpu())` → `y = model(x)` (−350 ns), "
        "A's line 5 `print(y)` is gone (−200 ns), line 2 `import torch` is new (+20 ns) "
        "(wall self time of the run)."
    )


def test_where_the_code_is_the_same_the_reader_is_told() -> None:
    slower = run(BEFORE, {2: 900, 3: 10, 4: 500, 5: 200, 7: 50})
    titles = [each.title for each in Comparison(A, slower).findings()]
    assert "The recorded code is the same in A and B" in titles
    # Nothing differs, or not all of the code is known: then there is nothing to say of it.
    for a, b in ((A, A), (A, trace_of(op("aten::mm", ts=0, dur=9)))):
        assert "source" not in [each.rule for each in Comparison(a, b).findings()]


def test_the_page_shows_the_source_first_if_it_changed() -> None:
    changed, same = (delta_tables(Comparison(A, other)._runs) for other in (B, A))
    assert [changed[0]["key"], same[-1]["key"]] == ["source", "source"]
    columns = [column[0] for column in changed[0]["columns"]]
    rows = dict(zip(columns, changed[0]["values"], strict=True))
    assert rows["name"] == ["+ 2", "3", "4", "~ 5", "− 5", "6", "7"]
    assert rows["text_b"][3] == "\N{NO-BREAK SPACE}" * 4 + "y = model(x)"
    assert changed[0]["names"][3] == [["4: y = model(x.cpu())"], ["5: y = model(x)"]]
    assert all(same[-1]["changed"])
    text = static_text(Comparison(A, B)._runs)
    assert "Changes in the source" in text
    assert "\n− " in text
    assert "\n+   5      y = model(x)" in text
    assert text.replace("\n", "").isprintable()
    assert max(map(len, text.splitlines())) < 80
    assert "Changes in the source" not in static_text(Comparison(A, A)._runs)
    assert "Source side by side" in static_html(Comparison(A, B)._runs)


def test_an_edited_line_is_one_path_of_the_call_tree() -> None:
    a, b = ["x = 1", "y = model(x.cpu())", "z = 1"], ["y = model(x)", "z = 1"]

    def with_ops(text: list[str], number: int, dur: int) -> Record:
        line = cell_line(number, text[number - 1], ts=0, dur=dur)
        rest = cell_line(number + 1, text[number], ts=dur, dur=5)
        return traced(text, line, op("aten::mm", ts=1, dur=dur - 9), rest)

    table = Comparison(with_ops(a, 2, 50), with_ops(b, 1, 30)).call_tree()
    assert table[["name", "depth", "a_ns", "b_ns"]].to_numpy().tolist() == [
        ["all threads", 0, 55, 35],
        ["1: y = model(x)", 1, 50, 30],
        ["aten::mm", 2, 41, 21],
        ["2: z = 1", 1, 5, 5],
    ]


def test_a_line_of_a_name_that_two_cells_have_is_no_pair_in_the_call_tree() -> None:
    """In one cell it was edited, in the other not: the trees hold both as one path."""

    def two_cells(text: str) -> Record:
        rows = [
            cell_line(1, code, ts=at, dur=5, cell=cell)
            for at, cell, code in ((0, "Cell [1]", "y = model(x)"), (9, "Cell [2]", text))
        ]
        return trace_of(*rows)

    table = Comparison(two_cells("y = model(x)"), two_cells("y = model(x) + 1")).call_tree()
    assert table[["name", "a_ns", "b_ns"]].to_numpy().tolist() == [
        ["all threads", 10, 10],
        ["1: y = model(x)", 10, 5],
        ["1: y = model(x) + 1", 0, 5],
    ]


def numbered(record: Record, number: int) -> Record:
    """The run as that of another cell, of that number."""
    name = f"Cell [{number}]"
    cells = [{**cell, "label": name} for cell in record.metadata["lines"]["cells"]]
    args = {**record.trace.args, "cell": record.trace.args["cell"].map(lambda _: name)}
    lines = {**record.metadata["lines"], "cells": cells}
    trace = replace(record.trace, args=args)
    return replace(record, trace=trace, metadata={**record.metadata, "lines": lines})


SLOWER = numbered(run(BEFORE, {1: 9, 2: 100, 3: 10, 4: 900, 5: 200}), 4)


@pytest.mark.parametrize(
    ("a", "b", "lacking"),
    [
        (redacted(A), redacted(SLOWER), "A and B"),
        (redacted(A), SLOWER, "A"),
        (A, redacted(SLOWER), "B"),
    ],
)
def test_redacted_lines_are_matched_by_number(a: Record, b: Record, lacking: str) -> None:
    comparison = Comparison(a, b)
    table = comparison.lines().set_index("line_a")
    assert table.loc[[2, 3, 4, 5], "line_b"].tolist() == [2, 3, 4, 5]
    assert table.loc[[2, 3, 4, 5], "matched"].tolist() == ["number"] * 4
    assert table.loc[4, ["a_ns", "b_ns"]].tolist() == [500, 900]
    assert comparison.source().empty
    tree = comparison.call_tree().set_index(["a_ns", "b_ns"])
    assert {(100, 100), (10, 10), (500, 900), (200, 200)} < set(tree.index)


@pytest.mark.parametrize(
    ("a", "b", "lacking"),
    [
        (redacted(A), redacted(SLOWER), "A and B"),
        (redacted(A), SLOWER, "A"),
        (A, redacted(SLOWER), "B"),
    ],
)
def test_redacted_lines_are_not_said_to_have_changed(a: Record, b: Record, lacking: str) -> None:
    runs = Comparison(a, b)._runs
    found = {each.title: each.text for each in Comparison(a, b).findings()}
    assert (
        f"not known in {lacking}, as in a redacted profile"
        in (found["Lines are matched by their number"])
    )
    (moved,) = (text for text in found.values() if text.startswith("Lines: "))
    assert "+400 ns" in moved
    (page,) = (table for table in delta_tables(runs) if table["noun"] == "Line")
    keys = [column[0] for column in page["columns"]]
    values = dict(zip(keys, page["values"], strict=True))
    assert {"in A only", "in B only"} < set(values["change"])
    # The names are those of the events, which the page lights up.
    of_events = [set(map(str, run.trace.slices["name"].unique())) for run in (a, b)]
    for side in (0, 1):
        assert {name for names in page["names"] for name in names[side]} == of_events[side]
    for text in (*found.values(), static_text(runs), static_html(runs)):
        assert "gone" not in text
        assert "new" not in text
        assert "source" not in text.lower()
    same = [each.rule for each in Comparison(a, a).findings()]
    assert same == ["whole"]


def test_cells_without_text_are_those_of_one_name_before_those_of_like_numbers() -> None:
    def two_cells(names: tuple[str, str], *lines: tuple[int, ...]) -> Record:
        rows = [
            cell_line(line, f"{name} {line}", ts=100 * at + 10 * line, dur=5, cell=name)
            for at, (name, numbers) in enumerate(zip(names, lines, strict=True))
            for line in numbers
        ]
        return redacted(trace_of(*rows))

    a = two_cells(("Cell [1]", "Cell [3]"), (1, 2, 3, 4, 5, 6), (2, 3))
    b = two_cells(("Cell [4]", "Cell [1]"), (2, 3, 4), (1, 2))
    table = Comparison(a, b).lines()
    paired = table[(table["line_a"] >= 0) & (table["line_b"] >= 0)]
    cells = set(zip(paired["cell_a"], paired["cell"], strict=True))
    assert cells == {("Cell [1]", "Cell [1]"), ("Cell [3]", "Cell [4]")}


def without_text(record: Record, cell: str) -> Record:
    """The run without the text of one of its cells: its lines have their numbers for names."""
    slices, args = record.trace.slices, record.trace.args
    lacks = args["cell"].reindex(slices.index) == cell
    numbers = args["line"].reindex(slices.index).astype("Int64").astype(str)
    names = slices["name"].astype(object).where(~lacks, numbers).astype("category")
    return replace(record, trace=replace(record.trace, slices=slices.assign(name=names)))


def two_files(cell: dict[int, tuple[str, int]], file: dict[int, tuple[str, int]]) -> Record:
    """A run of lines (text and time by number) of a cell, and of a file."""
    rows: list[Row] = []
    at = 0
    for name, lines in (("Cell [3]", cell), ("train.py", file)):
        for number, (code, dur) in lines.items():
            rows.append(cell_line(number, code, ts=at, dur=dur, cell=name))
            at += dur
    return trace_of(*rows)


KNOWN_CELL = two_files(
    {2: ("x = load()", 100), 3: ("y = model(x)", 500), 4: ("print(y)", 400)},
    {8: ("a = mm(x, x)", 700), 9: ("b = relu(a)", 300), 12: ("return b", 90)},
)
KNOWN_CELL_LATER = two_files(
    {2: ("x = load()", 100), 3: ("z = seed()", 350), 4: ("y = model(x)", 500)},
    {8: ("a = mm(x, x)", 900), 9: ("b = relu(a)", 300), 10: ("c = 1", 80)},
)


@pytest.mark.parametrize("lacking", ["A", "B", "A and B"])
def test_only_lines_of_cells_without_text_are_matched_by_number(lacking: str) -> None:
    """The cell's lines moved, one is new, one is gone; the file's are the same lines or others."""
    a, b = (
        without_text(run, "train.py") if name in lacking else run
        for name, run in (("A", KNOWN_CELL), ("B", KNOWN_CELL_LATER))
    )
    table = Comparison(a, b).lines()
    columns = ["cell", "line_a", "line_b", "matched", "change", "delta_ns"]
    assert sorted(table[columns].to_numpy().tolist()) == [
        ["Cell [3]", -1, 3, "", "added", 350],
        ["Cell [3]", 2, 2, "name", "same", 0],
        ["Cell [3]", 3, 4, "name", "same", 0],
        ["Cell [3]", 4, -1, "", "gone", -400],
        ["train.py", -1, 10, "number", "added", 80],
        ["train.py", 8, 8, "number", "more", 200],
        ["train.py", 9, 9, "number", "same", 0],
        ["train.py", 12, -1, "number", "gone", -90],
    ]
    found = {each.title: each.text for each in Comparison(a, b).findings()}
    where = " and ".join(f"of `train.py` in {name}" for name in lacking.split(" and "))
    assert found["Some lines are matched by their number"] == (
        f"The text of the lines {where} is not known, as in a redacted profile: they are matched "
        "by their number, and what changed in them is not known."
    )
    (moved,) = (text for text in found.values() if text.startswith("Lines: "))
    mm = "a = mm(x, x)" if lacking == "A" else "8 of train.py"
    assert moved == (
        "Lines: `print(y)` −400 ns (gone), `z = seed()` +350 ns (new in B), "
        f"`{mm}` +200 ns (wall self time of the run)."
    )
    runs = Comparison(a, b)._runs
    (page,) = (table for table in delta_tables(runs) if table["noun"] == "Line")
    values = dict(zip([column[0] for column in page["columns"]], page["values"], strict=True))
    words = dict(zip(values["delta_ns"], values["change"], strict=True))
    assert {ns: words[ns] for ns in (350, -400, 80, -90)} == {
        350: "new in B",
        -400: "gone",
        80: "in B only",
        -90: "in A only",
    }
    assert "z = seed() (new in B)" in static_text(runs)
    assert "(in A only)" in static_text(runs)


def test_a_line_without_text_has_its_cell_where_there_are_several() -> None:
    """A cell that was run again is one, under whatever number."""

    def run(*cells: str, dur: int) -> Record:
        rows = [
            cell_line(2, "f(x)", ts=dur * at, dur=dur, cell=cell) for at, cell in enumerate(cells)
        ]
        return redacted(trace_of(*rows))

    def most(a: Record, b: Record) -> list[str]:
        found = [each.title for each in Comparison(a, b).findings()]
        return [title for title in found if title.startswith("The line ")]

    one = most(run("Cell [1]", dur=100), run("Cell [4]", dur=300))
    assert one == ["The line `2` changed most in wall self time"]
    both = run("Cell [1]", "f.py", dur=100), run("Cell [1]", "f.py", dur=300)
    assert most(*both) == ["The line `2 of Cell [1]` changed most in wall self time"]


def test_a_cell_of_one_run_is_new_unless_one_without_text_may_be_it() -> None:
    cell = {2: ("x = load()", 100)}
    first, second = {8: ("a = mm(x, x)", 700)}, {30: ("optimizer.step()", 800)}
    redacted_there = without_text(two_files(cell, first), "train.py")

    def beside(other: str, *, with_train: bool) -> Record:
        rows = [cell_line(2, "x = load()", ts=0, dur=100)]
        if with_train:
            rows.append(cell_line(8, "a = mm(x, x)", ts=200, dur=700, cell="train.py"))
        for line, (code, dur) in second.items():
            rows.append(cell_line(line, code, ts=1000, dur=dur, cell=other))
        return trace_of(*rows)

    for with_train, how in ((True, ""), (False, "number")):
        other = beside("other.py", with_train=with_train)
        for a, b in ((redacted_there, other), (other, redacted_there)):
            table = Comparison(a, b).lines()
            assert table.set_index("cell").loc["other.py", "matched"] == how


def test_many_cells_without_text_are_counted() -> None:
    def run(dur: int) -> Record:
        rows = [cell_line(1, "x = 1", ts=at * 100, dur=dur, cell=f"f{at}.py") for at in range(7)]
        record = trace_of(*rows)
        for at in range(1, 7):
            record = without_text(record, f"f{at}.py")
        return record

    texts = [each.text for each in Comparison(run(20), run(90)).findings()]
    named = "`f1.py`, `f2.py`, `f3.py`, `f4.py` and 2 more"
    assert any(f"lines of {named} in A and of {named} in B is" in text for text in texts)


def test_hostile_lines_are_text() -> None:
    evil = run(["x = '<script>alert(1)</script>'"], {1: 5})
    html = static_html(Comparison(evil, run(["x = '<script>alert(2)</script>'"], {1: 9}))._runs)
    assert "<script" not in html
    assert "&lt;script&gt;alert(2)" in html


@cache
def arrangements(n: int, m: int, u: int) -> int:
    """In how many orders of n and m values u pairs have the second one larger."""
    if u < 0 or n * m == 0:
        return int(u == 0)
    return arrangements(n - 1, m, u - m) + arrangements(n, m - 1, u)


def rank_sum_p(a: npt.NDArray[np.float64], b: npt.NDArray[np.float64]) -> float:
    """The two-sided p value of Mann and Whitney's test, exactly."""
    n, m = len(a), len(b)
    u = int((b[:, None] > a[None, :]).sum())
    least = min(u, n * m - u)
    return min(1.0, 2 * sum(arrangements(n, m, k) for k in range(least + 1)) / comb(n + m, n))


@pytest.mark.parametrize(("n", "m"), [(4, 4), (5, 8), (12, 9)])
def test_what_lies_outside_of_the_interval_the_rank_sum_test_rejects(n: int, m: int) -> None:
    random = np.random.default_rng(n)
    a, b = random.lognormal(0, 0.2, n), random.lognormal(0.1, 0.2, m)
    low, high = ratio_interval(a, b)
    assert rank_sum_p(a * low * 0.999, b) < 0.05
    assert rank_sum_p(a * high * 1.001, b) < 0.05
    assert rank_sum_p(a * (low + high) / 2, b) > 0.3


def test_the_interval_covers_the_truth() -> None:
    random = np.random.default_rng(7)
    held = 0
    for _ in range(400):
        a, b = 10 + random.standard_t(3, 8) / 5, 12 + random.standard_t(3, 8) / 5
        low, high = ratio_interval(a, b)
        held += low <= 1.2 <= high
    assert 0.92 < held / 400 < 0.99


def test_three_steps_have_no_interval() -> None:
    assert all(np.isnan(ratio_interval(np.array([1.0, 2, 3]), np.array([1.0, 2, 3, 4]))))


def stepped(*durations: int, extra: dict[str, int] | None = None, device: bool = False) -> Record:
    """Steps of these lengths (ns), each a product of matrices with what is ``extra`` after it."""
    rows: list[Row] = []
    at = 0
    for number, dur in enumerate(durations):
        rows.append(annotation(f"ProfilerStep#{number}", ts=at, dur=dur))
        start = at
        for name, length in {"aten::mm": 300, **(extra or {})}.items():
            rows.append(op(name, ts=start, dur=length))
            if device:
                rows.append(kernel(f"k_{name}", ts=start, dur=length, launched_by=len(rows) - 1))
            start += length
        at += dur
    return trace_of(*rows)


NOISY = (1_000, 1_010, 990, 1_005, 995, 1_000, 1_002, 998)


def first(a: Record, b: Record, **about: Any) -> str:
    return Comparison(a, b, **about).findings()[0].text


def test_a_difference_has_its_uncertainty_and_the_op_that_made_it() -> None:
    slower = tuple(dur + 250 for dur in NOISY)
    text = first(stepped(*NOISY), stepped(*slower, extra={"aten::copy_": 250}))
    assert text.startswith("B's step takes 25 % ± ")
    assert (
        "more time, all of it in `aten::copy_`: 1.00 µs → 1.25 µs (medians of 8 and 8 steps, "
        in text
    )
    assert "± is their 95 % interval; " in text


def test_most_of_it_is_not_all_of_it() -> None:
    slower = tuple(dur + 250 for dur in NOISY)
    text = first(stepped(*NOISY), stepped(*slower, extra={"aten::copy_": 200}))
    assert "more time, most of it in `aten::copy_`: " in text


def test_no_op_is_named_where_others_work_against_it_or_it_takes_several() -> None:
    slower = tuple(dur + 250 for dur in NOISY)
    opposed = first(
        stepped(*NOISY, extra={"aten::sort": 400}), stepped(*slower, extra={"aten::copy_": 650})
    )
    shared = first(stepped(*NOISY), stepped(*slower, extra={"aten::copy_": 125, "aten::add": 125}))
    for text in (opposed, shared):
        assert "more time: 1.00 µs" in text


def test_gpu_time_made_the_difference_only_where_the_gpu_was_busy_for_as_much_longer() -> None:
    slower = tuple(dur + 250 for dur in NOISY)
    a = stepped(*NOISY, device=True)
    assert "all of it in `aten::copy_`" in first(
        a, stepped(*slower, extra={"aten::copy_": 250}, device=True)
    )
    hidden = stepped(*(dur + 20 for dur in NOISY), extra={"aten::copy_": 250}, device=True)
    assert "it in" not in first(a, hidden)


def test_time_outside_of_ops_is_pythons() -> None:
    text = first(stepped(*NOISY), stepped(*(dur + 500 for dur in NOISY)))
    assert ", all of it in Python, outside of ops: " in text


def test_an_interval_that_holds_one_is_noise() -> None:
    a, b = (1_000, 1_000, 1_000, 2_000), (1_100, 1_100, 1_100, 900)
    assert first(stepped(*a), stepped(*b)).startswith("No difference beyond the noise")


def test_runs_without_steps_are_told_from_noise_by_other_runs() -> None:
    a, b = run(BEFORE, {2: 100, 4: 500}), run(AFTER, {3: 100, 5: 550})
    assert "cannot be distinguished" in first(a, b)
    assert first(a, b, earlier=Earlier(times_ns=(640, 660))) == (
        "No difference beyond the noise: 600 ns → 650 ns per run "
        "(2 other runs of A's code took 640 ns to 660 ns)."
    )
    few = first(a, b, earlier=Earlier(times_ns=(605,)))
    assert few.endswith("cannot be distinguished; 1 other run of A's code took 605 ns).")
    near = first(a, b, earlier=Earlier(times_ns=(590, 610, 620)))
    assert near.startswith("No difference beyond the noise")
    far = first(a, b, earlier=Earlier(times_ns=(600, 610, 605)))
    assert far.endswith("600 ns → 650 ns (3 other runs of A's code took 600 ns to 610 ns).")


def test_three_other_runs_seldom_take_noise_for_a_difference() -> None:
    random = np.random.default_rng(3)
    found = 0
    for _ in range(200):
        a, b, *others = (int(time) for time in random.normal(10_000, 300, 5))
        runs = Comparison(
            run(["x"], {1: a}), run(["x"], {1: b}), earlier=Earlier(tuple(others))
        )._runs
        found += differ(runs)
    assert found < 0.12 * 200


def test_an_indentation_changes_the_program() -> None:
    inside = ["for x in loader:", "    y = model(x)", "    z = y.std()"]
    outside = [*inside[:2], "z = y.std()"]
    found = Comparison(run(inside, {2: 50, 3: 90}), run(outside, {2: 50, 3: 9}))
    assert found.source()["source"].tolist() == ["same", "same", "changed"]
    assert "The recorded code is the same in A and B" not in [f.title for f in found.findings()]


def test_single_slow_steps_are_named_where_they_make_the_averages() -> None:
    slow = (*NOISY[:-1], 9_000)
    faster = tuple(dur - 200 for dur in NOISY)
    findings = Comparison(stepped(*slow), stepped(*(dur + 200 for dur in NOISY))).findings()
    assert "it in" not in findings[0].text
    assert "Single slow steps dominate the averages" in [each.title for each in findings]
    plain = Comparison(stepped(*NOISY), stepped(*faster)).findings()
    assert "Single slow steps dominate the averages" not in [each.title for each in plain]


@pytest.mark.parametrize(
    ("interval", "words"),
    [
        ((0.77, 0.83), "20 % ± 3 % less time"),
        ((0.6, 0.82), "18 % to 40 % less time"),
        ((0.77, 0.81), "20 % ± 3 % less time"),
        ((0.72, 0.83), "17 % to 28 % less time"),
        ((math.nan, math.nan), "20 % less time"),
        ((0.8, 0.8), "20 % less time"),
    ],
)
def test_a_lopsided_interval_is_written_out(interval: tuple[float, float], words: str) -> None:
    assert Change(1_000, 800, interval).words() == words


def test_an_interval_never_reaches_beyond_all_of_the_time() -> None:
    assert Change(1_000, 100, (0.06, 0.27)).words() == "73 % to 94 % less time"
    assert Change(1_000, 100, (0.06, 0.14)).words() == "90 % ± 4 % less time"
    assert Change(10_000, 945, (0.0001, 0.1889)).words() == "81 % to 100 % less time"


def test_noise_that_the_medians_do_not_show_is_explained_by_its_interval() -> None:
    a, b = (1564, 1943, 917, 1406, 1818, 1733), (1170, 1296, 1188, 1341, 922, 1700)
    low, high = ratio_interval(np.array(a, float), np.array(b, float))
    least, most = f"{1 - low:.0%}".replace("%", " %"), f"{high - 1:.0%}".replace("%", " %")
    assert first(stepped(*a), stepped(*b)) == (
        "No difference beyond the noise: 1.65 µs → 1.24 µs per step (medians of 6 and 6 steps; the "
        "steps of one run vary by 351 ns; the 95 % interval of the difference reaches from "
        f"{least} less to {most} more time)."
    )
    assert "reaches" not in first(stepped(*NOISY), stepped(*NOISY[::-1][:7], 1_001))


def test_a_step_that_waits_less_for_its_loader_says_so() -> None:
    def run(waits: int) -> Record:
        name = "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__"
        rows: list[Row] = []
        for number in range(6):
            at, dur = 10_000 * number, waits + 400
            rows.append(annotation(f"ProfilerStep#{number}", ts=at, dur=dur))
            rows.append(annotation(name, ts=at, dur=waits))
            rows.append(op("aten::mm", ts=at + waits, dur=400))
        return trace_of(*rows)

    assert "less time, all of it waiting for the DataLoader: 4.40" in first(run(4_000), run(1_000))


def test_intervals_are_explained_only_where_they_are_said() -> None:
    twice = first(stepped(*NOISY), stepped(*(3 * dur for dur in NOISY)))
    assert "3.0 times as long" in twice
    noise = first(stepped(*NOISY), stepped(*NOISY[::-1][:7], 1_001))
    for text in (twice, noise):
        assert "95 %" not in text


def test_an_interval_of_many_steps_is_that_of_all() -> None:
    random = np.random.default_rng(5)
    a, b = random.lognormal(0, 0.2, 1_500), random.lognormal(0.1, 0.2, 900)
    ratios = np.sort((b[:, None] / a[None, :]).ravel())
    k = int(len(ratios) / 2 - 1.96 * (len(ratios) * (1_500 + 900 + 1) / 12) ** 0.5)
    assert ratio_interval(a, b) == pytest.approx((ratios[k - 1], ratios[-k]), rel=2e-3)


def test_long_lines_take_no_longer_than_short_ones() -> None:
    long = [f"x = [{', '.join(map(str, range(at, at + 9_000)))}]" for at in (0, 1)]
    edited = Comparison(run([long[0]], {1: 5}), run([long[1]], {1: 5})).source()
    assert edited["source"].tolist() == ["changed"]
    many = [[f"value_{at}_{number} = {number}" for number in range(400)] for at in (1, 2)]
    apart = Comparison(run(many[0], {1: 5}), run([*many[1], many[0][0]], {1: 5})).source()
    assert set(apart["source"]) == {"same", "gone", "added"}


def test_a_run_that_did_not_reach_its_end_is_named() -> None:
    failed = run(AFTER, {3: 100}, error="ValueError: 3")
    texts = [each.text for each in Comparison(A, failed).findings()]
    assert "B raised `ValueError`: it has not done all that the other run did." in texts


@pytest.mark.parametrize(
    ("a", "b", "names"),
    [
        ({"label": "old"}, {"label": "new"}, ("old", "new")),
        (
            {"label": "x", "source": "a/x.zip"},
            {"label": "x", "source": "b/x.zip"},
            ("x, a/x.zip", "x, b/x.zip"),
        ),
        ({"source": "/r/a/x.zip"}, {"source": "/r/b/x.zip"}, ("a/x.zip", "b/x.zip")),
        ({"label": "x", "rank": 0}, {"label": "x", "rank": 1}, ("x, rank 0", "x, rank 1")),
        (
            {"label": "x", "devices": [{"name": "A100"}]},
            {"label": "x", "devices": [{"name": "H100"}] * 2},
            ("x, 1 × A100", "x, 2 × H100"),
        ),
        (
            {"label": "x", "created": "2026-01-31T10:00:00+00:00"},
            {"label": "x", "created": "2026-01-31T10:00:07+00:00"},
            ("x, 10:00:00", "x, 10:00:07"),
        ),
        ({"label": "x"}, {"label": "x"}, ("x", "x")),
        ({}, {}, ("", "")),
    ],
)
def test_runs_of_one_name_are_called_by_what_differs(
    a: dict[str, Any], b: dict[str, Any], names: tuple[str, str]
) -> None:
    records = [trace_of(op("aten::mm", ts=0, dur=9), **about) for about in (a, b)]
    assert run_names(*records) == names
