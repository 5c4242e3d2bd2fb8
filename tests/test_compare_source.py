"""What changed in the source of two runs, and what it is said to have made of the time."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuprof_widgets.comparisons import Comparison
from gpuprof_widgets.trace.model import Record
from gpuprof_widgets.trace.redact import redacted
from gpuprof_widgets.views.comparison import delta_tables, static_html, static_text
from tests.traces import Row, cell_line, op, trace_of

pytestmark = pytest.mark.slow

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


def run(text: list[str], times: dict[int, int], *, cell: str = "Cell [3]", **about: Any) -> Record:
    """A run of a cell whose lines (by number) took these times, one after another."""
    rows: list[Row] = []
    at = 0
    for line, dur in times.items():
        rows.append(cell_line(line, text[line - 1].strip(), ts=at, dur=dur, cell=cell))
        at += dur
    source = {"label": cell, "source": "\n".join(text), "first_line": 1}
    lines = {"limit": 10_000, "cells": [{**source, "statements": [], "beyond_limit": []}]}
    return trace_of(*rows, lines=lines, **about)


A = run(BEFORE, {2: 100, 3: 10, 4: 500, 5: 200, 7: 50})
B = run(AFTER, {2: 20, 3: 100, 4: 10, 5: 150, 7: 50}, cell="Cell [9]")


def test_lines_of_equal_text_are_one_line_and_others_of_one_run() -> None:
    table = Comparison(A, B).source()
    shown = list(zip(table["line_a"], table["line_b"], table["source"], strict=True))
    assert shown == [
        (-1, 2, "added"),
        (2, 3, "same"),
        (3, 4, "same"),
        (4, -1, "gone"),
        (5, -1, "gone"),
        (-1, 5, "added"),
        (7, 7, "same"),
    ]
    assert set(table["cell"]) == {"Cell [3]", "Cell [9]"}
    times = table[["a_ns", "b_ns", "delta_ns"]].to_numpy()
    np.testing.assert_equal(times[3], [500, np.nan, -500])
    np.testing.assert_equal(times[5], [np.nan, 150, 150])
    assert table["code"].tolist()[3] == "    y = model(x.cpu())"


def test_the_table_of_lines_has_an_edited_line_twice() -> None:
    table = Comparison(A, B).lines().set_index("code")
    columns = ["line_a", "line_b", "change", "a_ns", "b_ns"]
    assert table.loc["y = model(x.cpu())", columns].tolist() == [4, -1, "gone", 500, 0]
    assert table.loc["y = model(x)", columns].tolist() == [-1, 5, "added", 0, 150]
    assert table.loc["for x in loader:", columns].tolist() == [3, 4, "same", 10, 10]
    assert table["delta_ns"].sum() == 330 - 860


@given(a=st.lists(st.sampled_from("abcd")), b=st.lists(st.sampled_from("abcd")))
def test_as_many_lines_match_as_have_equal_texts(a: list[str], b: list[str]) -> None:
    """Wherever they stand, and each once."""
    runs = [
        trace_of(*(cell_line(at, text, ts=9 * at, dur=5) for at, text in enumerate(lines, 1)))
        for lines in (a, b)
    ]
    table = Comparison(*runs).lines()
    matched = table[(table["line_a"] > 0) & (table["line_b"] > 0)]
    assert Counter(matched["code"]) == Counter(a) & Counter(b)
    assert sorted(table.loc[table["line_a"] > 0, "line_a"]) == list(range(1, len(a) + 1))
    assert sorted(table.loc[table["line_b"] > 0, "line_b"]) == list(range(1, len(b) + 1))


def test_what_changed_is_said_with_its_effect() -> None:
    found = {each.rule: each for each in Comparison(A, B).findings()}
    assert found["source"].title == "The source differs in 4 lines"
    assert found["source"].text == (
        "Changed in the source: line 4 `y = model(x.cpu())` in A only (−500 ns), line 5 `print(y)` "
        "in A only (−200 ns), line 5 `y = model(x)` in B only (+150 ns), line 2 `import torch` in "
        "B only (+20 ns) (wall self time of the run)."
    )


def test_where_the_code_is_the_same_the_reader_is_told() -> None:
    slower = run(BEFORE, {2: 900, 3: 10, 4: 500, 5: 200, 7: 50})
    titles = [each.title for each in Comparison(A, slower).findings()]
    assert "The recorded code is the same in A and B" in titles
    # Nothing differs, or not all of the code is known: then there is nothing to say of it.
    for a, b in ((A, A), (A, trace_of(op("aten::mm", ts=0, dur=9)))):
        assert "source" not in [each.rule for each in Comparison(a, b).findings()]


def test_a_swap_of_lines_is_another_code() -> None:
    a, b = run(["f(x)", "g(x)"], {1: 5, 2: 5}), run(["g(x)", "f(x)"], {1: 5, 2: 90})
    assert "source" not in [each.rule for each in Comparison(a, b).findings()]


def test_an_indentation_changes_the_program() -> None:
    inside = ["for x in loader:", "    y = model(x)", "    z = y.std()"]
    outside = [*inside[:2], "z = y.std()"]
    found = Comparison(run(inside, {2: 50, 3: 90}), run(outside, {2: 50, 3: 9}))
    assert found.source()["source"].tolist() == ["same", "same", "gone", "added"]
    # A trace without the source of its cells knows of no indentation.
    bare = trace_of(*(cell_line(at + 1, inside[at].strip(), ts=9 * at, dur=5) for at in range(3)))
    assert set(Comparison(run(inside, {1: 5, 2: 5, 3: 5}), bare).lines()["change"]) == {"same"}


def test_functions_that_only_one_run_called_are_no_change_of_the_source() -> None:
    other = {"label": "eval.py", "source": "return 1", "first_line": 7}
    cells = [*A.metadata["lines"]["cells"], {**other, "statements": [], "beyond_limit": []}]
    more = trace_of(op("aten::mm", ts=0, dur=9), lines={"limit": 9, "cells": cells})
    assert set(Comparison(A, more).source()["cell"]) == {"Cell [3]"}


def test_the_page_shows_the_source_first_if_it_changed() -> None:
    changed, same = (delta_tables(Comparison(A, other)._runs) for other in (B, A))
    assert [changed[0]["key"], same[-1]["key"]] == ["source", "source"]
    columns = [column[0] for column in changed[0]["columns"]]
    rows = dict(zip(columns, changed[0]["values"], strict=True))
    assert rows["name"] == ["+ 2", "3", "4", "− 4", "− 5", "+ 5", "7"]
    assert rows["code"][5] == "\N{NO-BREAK SPACE}" * 4 + "y = model(x)"
    assert changed[0]["names"][3] == [["4: y = model(x.cpu())"], []]
    assert all(same[-1]["changed"])
    text = static_text(Comparison(A, B)._runs)
    assert "Changes in the source" in text
    assert "\n−   4      y = model(x.cpu())" in text.replace("\N{NO-BREAK SPACE}", " ")
    assert text.replace("\n", "").replace("\N{NO-BREAK SPACE}", " ").isprintable()
    assert max(map(len, text.splitlines())) < 80
    assert "Changes in the source" not in static_text(Comparison(A, A)._runs)
    assert "Changes in the source" in static_html(Comparison(A, B)._runs)


def test_a_line_that_moved_is_one_path_of_the_call_tree_an_edited_one_is_two() -> None:
    def with_ops(number: int, text: str, dur: int) -> Record:
        line = cell_line(number, "y = model(x)", ts=0, dur=dur)
        return trace_of(line, op("aten::mm", ts=1, dur=dur - 9), cell_line(9, text, ts=dur, dur=5))

    table = Comparison(with_ops(2, "z = 1", 50), with_ops(1, "z = 2", 30)).call_tree()
    assert table[["name", "depth", "a_ns", "b_ns"]].to_numpy().tolist() == [
        ["all threads", 0, 55, 35],
        ["1: y = model(x)", 1, 50, 30],
        ["aten::mm", 2, 41, 21],
        ["9: z = 1", 1, 5, 0],
        ["9: z = 2", 1, 0, 5],
    ]


SLOWER = run(BEFORE, {2: 100, 3: 10, 4: 900, 7: 200}, cell="Cell [4]", execution_count=4)
REDACTED = redacted(run(BEFORE, {2: 100, 3: 10, 4: 500, 5: 200}, execution_count=3))


def test_lines_without_text_are_matched_by_number() -> None:
    comparison = Comparison(REDACTED, redacted(SLOWER))
    table = comparison.lines().set_index("line_a")
    assert table.loc[[2, 3, 4, 5], "line_b"].tolist() == [2, 3, 4, -1]
    assert table.loc[4, ["code", "a_ns", "b_ns"]].tolist() == ["", 500, 900]
    assert comparison.source().empty
    found = {each.title: each.text for each in comparison.findings()}
    assert found["Lines are matched by their number"] == (
        "The text of lines is not known in A and B, as in a redacted profile: such lines are "
        "matched by their number, and only with one another."
    )
    # Line 5 may have moved to 7: it is not said to have changed.
    lines = "Lines: `4 of Cell [4]` +400 ns (wall self time of the run)."
    assert [text for text in found.values() if text.startswith("Lines: ")] == [lines]
    assert [each.rule for each in Comparison(REDACTED, REDACTED).findings()] == ["whole"]


def test_lines_without_text_are_no_lines_of_the_other_run() -> None:
    comparison = Comparison(REDACTED, SLOWER)
    assert set(comparison.lines()["change"]) == {"added", "gone"}
    texts = [each.text for each in comparison.findings()]
    assert any("not known in A, as in a redacted profile" in text for text in texts)
    assert not any(text.startswith("Lines: ") for text in texts)
    (page,) = (table for table in delta_tables(comparison._runs) if table["noun"] == "Line")
    # The names are those of the events, which the page lights up.
    for side, record in enumerate((REDACTED, SLOWER)):
        of_events = set(map(str, record.trace.slices["name"].unique()))
        assert {name for names in page["names"] for name in names[side]} == of_events


@pytest.mark.parametrize("numbers", [(1, 1), (1, 4)])
def test_lines_without_text_are_told_apart_by_their_cells(numbers: tuple[int, int]) -> None:
    """The cell that was run is one, under whatever number; files have the same name."""

    def two_cells(number: int, *lines: int) -> Record:
        cells = (f"Cell [{number}]", "f.py")
        rows = [
            cell_line(line, "f(x)", ts=100 * at + 9 * line, dur=5, cell=cell)
            for at, cell in enumerate(cells)
            for line in lines
        ]
        return redacted(trace_of(*rows, execution_count=number))

    table = Comparison(two_cells(numbers[0], 1, 2, 3), two_cells(numbers[1], 2, 3)).lines()
    assert (table["line_b"] == table["line_a"].where(table["line_a"] > 1, -1)).all()
    assert table["cell"].value_counts().to_dict() == {f"Cell [{numbers[1]}]": 2, "f.py": 3} | (
        {"Cell [1]": 3} if numbers[1] == 1 else {"Cell [1]": 1}
    )


def test_hostile_lines_are_text() -> None:
    evil = run(["x = '<script>alert(1)</script>'"], {1: 5})
    html = static_html(Comparison(evil, run(["x = '<script>alert(2)</script>'"], {1: 9}))._runs)
    assert "<script" not in html
    assert "&lt;script&gt;alert(2)" in html
