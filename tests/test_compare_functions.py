"""Two files of cProfile: which functions changed, wherever in the file they stand now."""

from __future__ import annotations

import marshal
from pathlib import Path
from typing import Any

import pytest

from gpuprof_widgets.comparisons import Comparison
from gpuprof_widgets.profiles import compare
from gpuprof_widgets.trace.model import Record
from tests.traces import calls_of, op, python, trace_of

pytestmark = pytest.mark.slow

LEN = ("~", 0, "<built-in method builtins.len>")


def prof(path: Path, functions: dict[tuple[str, int, str], tuple[int, float]]) -> Path:
    """A file of cProfile of these calls and seconds."""
    stats: dict[Any, Any] = {
        name: (calls, calls, seconds, seconds, {}) for name, (calls, seconds) in functions.items()
    }
    path.write_bytes(marshal.dumps(stats))
    return path


@pytest.fixture
def both(tmp_path: Path) -> Comparison:
    before = {
        ("/home/me/train.py", 10, "step"): (5, 1.0),
        ("/home/me/train.py", 30, "load"): (5, 0.5),
        ("/home/me/train.py", 50, "old"): (1, 0.2),
        LEN: (9, 0.1),
    }
    after = {
        ("/home/you/train.py", 12, "step"): (5, 1.5),
        ("/home/you/train.py", 30, "load"): (6, 0.3),
        ("/home/you/other.py", 50, "old"): (1, 0.2),
        LEN: (9, 0.1),
    }
    return compare(prof(tmp_path / "a.prof", before), prof(tmp_path / "b.prof", after))


def test_functions_are_the_same_in_another_line_and_folder(both: Comparison) -> None:
    table = both.functions()
    columns = ["name", "change", "calls_a", "calls_b", "delta_ns"]
    assert table[columns].to_numpy().tolist() == [
        ["train.py(12): step", "more", 5, 5, 500_000_000],
        ["train.py(30): load", "less", 5, 6, -200_000_000],
        ["other.py(50): old", "added", 0, 1, 200_000_000],
        ["train.py(50): old", "gone", 1, 0, -200_000_000],
        ["<built-in method builtins.len>", "same", 9, 9, 0],
    ]
    assert table["name_a"].iloc[0] == "/home/me/train.py(10): step"
    numbers = ["calls_delta", "a_ns", "b_ns", "total_a_ns", "total_b_ns"]
    assert table[numbers].to_numpy().tolist() == [
        [0, 1_000_000_000, 1_500_000_000, 1_000_000_000, 1_500_000_000],
        [1, 500_000_000, 300_000_000, 500_000_000, 300_000_000],
        [1, 0, 200_000_000, 0, 200_000_000],
        [-1, 200_000_000, 0, 200_000_000, 0],
        [0, 100_000_000, 100_000_000, 100_000_000, 100_000_000],
    ]
    shares = [500 / 1800, -200 / 1800, 200 / 1800, -200 / 1800, 0]
    assert table["share"].tolist() == pytest.approx(shares)
    assert table[["median_a_ns", "median_b_ns", "spread_ns"]].isna().all(axis=None)
    assert table["delta_ns"].sum() == both.b.calls.functions["self_ns"].sum() - (  # type: ignore[union-attr]
        both.a.calls.functions["self_ns"].sum()  # type: ignore[union-attr]
    )


def test_it_is_said_in_words_on_the_page_and_in_the_terminal(both: Comparison) -> None:
    whole, moved = (finding.text for finding in both.findings())
    assert whole == (
        "B's Python functions take 17 % more time: 1.80 s → 2.10 s (by cProfile, which has no "
        "steps: noise and change cannot be distinguished)."
    )
    assert moved.startswith(
        "Functions: `train.py(12): step` +500 ms, `train.py(30): load` −200 ms, "
    )
    assert "Python functions by self time" in both.report()
    assert "train.py(12): step" in both._repr_mimebundle_()["text/plain"]


def test_functions_of_one_line_are_paired_before_those_of_one_name(tmp_path: Path) -> None:
    """Two methods of one name: each is itself, until one of them moves."""
    one, other = ("m.py", 1, "forward"), ("m.py", 9, "forward")
    a = prof(tmp_path / "a", {one: (1, 1.0), other: (1, 2.0)})
    table = compare(a, prof(tmp_path / "b", {one: (1, 1.0), other: (1, 5.0)})).functions()
    assert table[["name", "delta_ns"]].to_numpy().tolist() == [
        ["m.py(9): forward", 3_000_000_000],
        ["m.py(1): forward", 0],
    ]
    moved = compare(a, prof(tmp_path / "c", {one: (1, 1.0), ("m.py", 8, "forward"): (1, 2.0)}))
    assert set(moved.functions()["change"]) == {"same"}


def test_the_same_file_twice_is_no_difference(both: Comparison) -> None:
    (finding,) = Comparison(both.a, both.a).findings()
    assert finding.text == "No difference: the Python functions of both take 1.80 s."


def test_runs_of_which_one_has_no_calls_say_so() -> None:
    one = trace_of(op("aten::mm", ts=0, dur=9), calls=calls_of((None, "main", 1, 5)))
    table = Comparison(one, trace_of(op("aten::mm", ts=0, dur=9))).functions()
    assert len(table) == 0
    assert "neither cProfile nor frames were recorded" in table.attrs["lacks"]


def sampled(main_s: int, step_s: int = 0) -> Record:
    """A run of samples: so long in `main` itself, then in `step` within it."""
    frames = [python("train.py(1): main", ts=0, dur=(main_s + step_s) * 10**9)]
    if step_s:
        frames.append(python("train.py(9): step", ts=main_s * 10**9, dur=step_s * 10**9))
    return trace_of(*frames, sampled=True, python_samples={"interval_ns": 10**6})


def test_functions_of_samples_are_compared_too() -> None:
    """They are no calls of cProfile, but frames."""
    comparison = Comparison(sampled(1, 2), sampled(1, 5))
    table = comparison.functions()
    assert table[["name", "a_ns", "b_ns", "change"]].to_numpy().tolist() == [
        ["train.py(9): step", 2_000_000_000, 5_000_000_000, "more"],
        ["train.py(1): main", 1_000_000_000, 1_000_000_000, "same"],
    ]
    assert not [column for column in table if column.startswith("calls_")]  # samples count none
    assert "calls A" not in comparison._repr_mimebundle_()["text/plain"]
    texts = [finding.text for finding in comparison.findings()]
    assert not any("sampled" in text for text in texts)  # nothing is new or gone
    assert texts[0].startswith("B's run takes 2.0 times as long: 3.00 s → 6.00 s")
    assert "Functions: `train.py(9): step` +3.00 s (self time of the run)." in texts


def test_what_a_sampler_may_have_missed_is_said() -> None:
    comparison = Comparison(sampled(3), sampled(1, 5))
    assert (
        "A and B were sampled: a function that only one run has may have run in both, between "
        "the samples of one."
    ) in [finding.text for finding in comparison.findings()]


def test_functions_that_two_recorders_saw_are_not_compared() -> None:
    """Each slows them down in its own way, and has its own names of built-in functions."""
    counted = trace_of(
        op("aten::mm", ts=0, dur=9), calls=calls_of((None, "train.py(1): main", 1, 10**9))
    )
    table = Comparison(sampled(1), counted).functions()
    assert len(table) == 0
    assert table.attrs["lacks"] == (
        "gpuprof's sampler recorded A's Python functions, cProfile B's: each slows them down in "
        "its own way, so they cannot be compared"
    )
