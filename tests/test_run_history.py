"""`gpuprof_widgets.history`: which runs belong together, what is kept, and how it reads."""

from __future__ import annotations

import re
from typing import Any

import pytest

import gpuprof_widgets
from gpuprof_widgets import Profile
from gpuprof_widgets.exceptions import OptionError
from gpuprof_widgets.run_history import MOST_RUNS, RUNS_PER_CELL, History
from tests.shells import loaded
from tests.traces import annotation, op, trace_of

pytestmark = pytest.mark.slow

CODE = "x = torch.rand(9)\nfor _ in range(3):\n    x = x @ x\n"


def profile(
    dur: int = 1_000, *, count: int = 1, source: str = "", steps: int = 0, **about: Any
) -> Profile:
    rows = [
        annotation(f"ProfilerStep#{step}", ts=step * dur, dur=dur - 10) for step in range(steps)
    ]
    record = trace_of(*(rows or [op("aten::mm", ts=0, dur=dur)]))
    metadata = {"label": f"Cell [{count}]", "execution_count": count, "cell_source": source}
    return Profile(record.trace, record.calls, {**record.metadata, **metadata, **about})


def cells(history: History) -> list[int]:
    """The first run of each run's cell."""
    keys = [run.cell for run in history]
    return [keys.index(key) for key in keys]


@pytest.mark.parametrize(
    ("runs", "expected"),
    [
        # Runs of a cell are told by its name, whatever its code,
        ([("a", 0, "1"), ("b", 1, CODE), ("a", 2, CODE), ("a", 3, "2")], [0, 1, 0, 0]),
        # without one by its code,
        ([("", 0, CODE), ("", 1, "1"), ("", 2, CODE), ("", 3, "2")], [0, 1, 0, 3]),
        # and by their turns in a loop; outside of a notebook by their label.
        ([("a", n // 3, CODE) for n in range(6)], [0, 1, 2, 0, 1, 2]),
        ([("a", n // 3, "") for n in range(6)], [0, 1, 2, 0, 1, 2]),
        ([("", None, "")] * 3, [0, 0, 0]),
    ],
)
def test_which_runs_are_of_one_cell(
    runs: list[tuple[str, int | None, str]], expected: list[int]
) -> None:
    history = History()
    for count, (cell, execution, code) in enumerate(runs):
        made = profile(source=code, label=f"Cell [{count}], line 2")
        history.add(made, cell_id=cell, execution=execution)
    assert cells(history) == expected


def test_turns_of_a_loop_are_counted_beyond_the_runs_that_are_kept() -> None:
    history = History()
    for _ in range(MOST_RUNS + 2):
        history.add(profile(), cell_id="a", execution=1)
    assert len({run.cell for run in history}) == MOST_RUNS


def test_a_run_is_compared_with_the_one_before_it() -> None:
    history = History()
    before = profile(1_000, count=1, source=CODE)
    after = profile(500, count=3, source=CODE)
    history.add(before, cell_id="a")
    history.add(profile(9_000, count=2, source="1"), cell_id="b")
    history.add(after, cell_id="a")
    comparison = history.compare()
    assert (comparison.a, comparison.b) == (before, after)
    assert comparison.findings()[0].title == "B's run takes 50 % less time"
    assert history.compare(history[-1]).a is before


def test_a_first_run_warms_up_and_is_no_measure_of_noise() -> None:
    history = History()
    for count, dur in enumerate([9_000, 1_000, 1_020, 1_010], 1):
        history.add(profile(dur, count=count, source=CODE), cell_id="a")
    second = history.compare(history[1])
    assert second.earlier.a_is_first
    assert "A is the first recorded run of this cell" in [each.title for each in second.findings()]
    fourth = history.compare()
    assert fourth.earlier.times_ns == (1_000,)
    assert not fourth.earlier.a_is_first
    assert fourth.findings()[0].text == (
        "No difference beyond the noise: 1.02 µs → 1.01 µs per run "
        "(1 other run of A's code took 1.00 µs)."
    )


def test_only_runs_of_the_same_code_and_recording_are_a_measure_of_noise() -> None:
    history = History()
    for count, (code, options) in enumerate(
        [
            ("0", {}),
            (CODE, {}),
            (CODE, {}),
            (CODE + "1", {}),
            (CODE, {"stack": True}),
            (CODE, {}),
            (CODE, {}),
        ]
    ):
        run = profile(
            1_000 + count, count=count, source=code, options={"quiet": bool(count % 2), **options}
        )
        history.add(run, cell_id="a")
    assert history.compare().earlier.times_ns == (1_002,)  # 1_001 was the first


def test_steps_are_no_measure_of_runs_without_steps() -> None:
    history = History()
    for count in range(4):
        history.add(profile(1_000, count=count, source=CODE, steps=3), cell_id="a")
    assert history.compare().earlier.times_ns == (990,)
    history.add(profile(3_000, count=5, source=CODE), cell_id="a")
    assert history.compare().earlier.times_ns == ()


def test_runs_that_did_not_reach_their_end_are_left_out() -> None:
    history = History()
    history.add(profile(1_000, count=1, source=CODE), cell_id="a")
    history.add(profile(10, count=2, source=CODE, error="ValueError: 3"), cell_id="a")
    history.add(profile(20, count=3, source=CODE, interrupted=True), cell_id="a")
    with pytest.raises(OptionError, match=r"this run \(interrupted\) has nothing to compare"):
        history.compare()
    history.add(profile(900, count=4, source=CODE), cell_id="a")
    assert history.compare().a is history[0].profile
    history.add(Profile(trace_of().trace, None, {"cell_source": CODE}), cell_id="a")
    ended = ["", "raised ValueError", "interrupted", "", "no trace"]
    assert [run.ended for run in history] == ended


def test_what_cannot_be_compared_is_said() -> None:
    history = History()
    with pytest.raises(OptionError, match="the history has no runs"):
        history.compare()
    first = history.add(profile(source=CODE), cell_id="a")
    with pytest.raises(OptionError, match="no earlier run of this cell"):
        history.compare()
    history.add(profile(source=CODE), cell_id="a")
    with pytest.raises(OptionError, match="no earlier run of this cell"):
        history.compare(first)


def test_a_cleared_history_begins_anew() -> None:
    history = History()
    for dur in (500, 600):
        history.add(profile(dur, source=CODE), cell_id="a")
    history.clear()
    assert repr(history) == "<History of no runs>"
    for dur in (9_000, 1_000):
        history.add(profile(dur, source=CODE), cell_id="a")
    # It knows of no run before: whether this one warmed up, it cannot tell.
    titles = [each.title for each in history.compare().findings()]
    assert "A is the first recorded run of this cell" in titles


def test_it_keeps_the_last_runs_of_each_cell(monkeypatch: pytest.MonkeyPatch) -> None:
    history = History()
    history.add(profile(count=0), cell_id="first")
    for count in range(RUNS_PER_CELL + 5):
        history.add(profile(1_000 + count, count=count, source=CODE), cell_id="a")
    assert [run.cell[0] for run in history] == ["first"] + ["a"] * RUNS_PER_CELL
    assert history[1].time_ns == 1_005
    assert not history[1].first
    for count in range(MOST_RUNS):
        history.add(profile(count=count), cell_id=f"cell {count}")
    assert len(history) == MOST_RUNS
    monkeypatch.setattr("gpuprof_widgets.run_history.MOST_SLICES", 2)
    big = trace_of(*(op("aten::mm", ts=10 * at, dur=5) for at in range(9)))
    for label in ("big", "bigger"):
        history.add(Profile(big.trace, None, {"label": label}))
    assert repr(history) == "<Run 'big': 85 ns per run>\n<Run 'bigger': 85 ns per run>"


def test_the_magic_compares_a_cell_with_its_previous_run(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    gpuprof_widgets.history.clear()
    with loaded() as shell:
        shell.run_cell("import time")
        cell = "%%gpuprofile --compare\nfor _ in range(3):\n    time.sleep(0.001)"
        shell.run_cell(cell, store_history=True)
        out, err = capsys.readouterr()
        assert err.startswith("gpuprofile: --compare: there is nothing to compare with yet: ")
        assert err.count("\n") == 1
        assert "Lines by self time" in out  # the report stands in its place
        gpuprof_widgets.history.clear()
        with monkeypatch.context() as front_end:
            request = {"metadata": {"cellId": "a"}}
            front_end.setattr("gpuprof_widgets.magic._request", lambda shell: request)
            shell.run_cell(cell, store_history=True)
            capsys.readouterr()
            shell.run_cell(cell.replace("0.001", "0.02"), store_history=True)
        out, err = capsys.readouterr()
        assert err == ""
        assert "B's run takes" in out
        assert re.search(r"line 3\s`time.sleep\(0.02\)`\sin\sB\sonly\s\(\+", out)
        assert "Changes in the source" in out
        shell.run_cell(cell + "\nraise ValueError", store_history=True)
        out, err = capsys.readouterr()
        assert (
            "--compare: this run (raised ValueError) has nothing to compare: it is shown by itself"
            in err
        )
    assert [run.ended for run in gpuprof_widgets.history] == ["", "", "raised ValueError"]
    gpuprof_widgets.history.clear()


def test_it_cannot_compare_and_explore_in_one_place() -> None:
    with pytest.raises(OptionError, match="compare and explore both replace the report"):
        gpuprof_widgets.options.Options(compare=True, explore="explorer")
