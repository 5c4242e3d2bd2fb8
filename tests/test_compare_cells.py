"""A cell that ran again has another number: the two runs are of the same cell all the same."""

from __future__ import annotations

from dataclasses import replace

import pandas as pd
import pytest

from gpuprof_widgets.comparisons import Comparison
from gpuprof_widgets.trace.model import Calls, Record
from gpuprof_widgets.views.comparison import titles
from tests.traces import Row, annotation, calls_of, op, python, trace_of


def run(number: int, *rows: Row, label: str = "", calls: Calls | None = None) -> Record:
    """A run of cell ``number``; its region is named after it where it has no ``label``."""
    label = label or f"Cell [{number}]"
    region = annotation(label, ts=0, dur=1_000)
    return trace_of(region, *rows, calls=calls, label=label, execution_count=number)


def in_cells(calls: Calls, *files: str) -> Calls:
    """The calls with these files of their functions."""
    return replace(calls, functions=calls.functions.assign(file=pd.Series(files, dtype=object)))


def changes(table: pd.DataFrame) -> dict[str, str]:
    return dict(zip(table["name"], table["change"], strict=True))


def test_the_region_of_the_run_is_one_thing() -> None:
    mm = op("aten::mm", ts=10, dur=400)
    comparison = Comparison(run(3, mm), run(4, replace(mm, dur=500)))
    assert changes(comparison.ops()) == {"Cell [3 → 4]": "less", "aten::mm": "more"}
    tree = comparison.call_tree()
    below = tree[tree["name"] == "Cell [3 → 4]"]
    assert below[["calls_a", "calls_b", "a_ns", "b_ns"]].to_numpy().tolist() == [[1, 1, 1000, 1000]]
    assert "gone" not in comparison._repr_mimebundle_()["text/plain"]


def test_each_run_keeps_its_own_name_in_titles() -> None:
    comparison = Comparison(run(3), run(4))
    assert repr(comparison) == "<Comparison of 'Cell [3]' and 'Cell [4]' per run>"
    assert titles(comparison._runs) == ("A · Cell [3]", "B · Cell [4]")


@pytest.mark.parametrize(
    ("before", "after", "both"),
    [
        ("before", "after", "before → after"),
        ("Cell [3], line 2", "Cell [4], line 9", "Cell [3], line 2 → Cell [4], line 9"),
    ],
)
def test_labels_name_the_region_too(before: str, after: str, both: str) -> None:
    comparison = Comparison(run(3, label=before), run(4, label=after))
    assert changes(comparison.ops()) == {both: "same"}


def test_functions_of_cells_that_ran_again_are_the_same() -> None:
    def rows(own: str, helpers: str) -> list[Row]:
        return [
            python(f"{own}(0): <module>", ts=10, dur=900),
            python(f"{own}(2): step", ts=20, dur=300),
            python(f"{helpers}(7): load", ts=400, dur=300),
            python("Cell [1](5): fixed", ts=800, dur=50),
        ]

    comparison = Comparison(
        run(3, *rows("Cell [3]", "Cell [2]")), run(9, *rows("Cell [9]", "Cell [8]"))
    )
    assert changes(comparison.functions()) == {
        "Cell [3 → 9](0): <module>": "same",
        "Cell [3 → 9](2): step": "same",
        "Cell [8](7): load": "same",
        "Cell [1](5): fixed": "same",
    }


def test_without_ops_the_call_tree_is_that_of_python() -> None:
    """Sampled or traced frames have no ops; cProfile's calls have no frames either."""
    frames = (python("Cell [2](1): step", ts=10, dur=100),)
    sampled = [trace_of(*frames) for _ in "ab"]
    counted = [trace_of(calls=calls_of((None, "step", 1, 100))) for _ in "ab"]
    for both in (sampled, counted):
        tree = Comparison(*both).call_tree()
        assert tree["a_ns"].tolist() == tree["b_ns"].tolist() == [100, 100]


@pytest.mark.parametrize("number", [3, 4])
def test_functions_that_cprofile_counted_are_paired(number: int) -> None:
    calls = calls_of((None, "<module>", 1, 5), ("<module>", "step", 2, 7))
    a = run(3, calls=in_cells(calls, "Cell [3]", "Cell [3]"))
    cell = f"Cell [{number}]"
    b = run(number, calls=in_cells(calls, cell, cell))
    assert set(Comparison(a, b).functions()["change"]) == {"same"}


def test_what_was_given_stays_as_it_was() -> None:
    a, b = run(3, python("Cell [3](2): step", ts=20, dur=300)), run(4)
    Comparison(a, b).report()
    assert a.metadata["label"] == "Cell [3]"
    assert set(a.trace.slices["name"]) == {"Cell [3]", "Cell [3](2): step"}
