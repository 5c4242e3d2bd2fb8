"""`gpuprof_widgets.history`: which runs belong together, what is kept, and how it reads."""

from __future__ import annotations

import re
from typing import Any

import pytest

import gpuprof_widgets
from gpuprof_widgets import Profile
from gpuprof_widgets.exceptions import OptionError
from gpuprof_widgets.run_history import MOST_PROFILES, MOST_RUNS, SPARKS, History, Run, sparkline
from tests.shells import loaded
from tests.traces import annotation, kernel, op, trace_of

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


def numbers(runs: list[Run]) -> list[int]:
    return [run.number for run in runs]


def test_runs_of_one_cell_are_told_by_its_name_whatever_its_code() -> None:
    history = History()
    for number, cell in enumerate(["a", "b", "a", "a"]):
        history.add(profile(count=number, source=CODE * number or "1"), cell_id=cell)
    assert [run.cell for run in history] == [1, 2, 1, 1]
    assert numbers(history.of_cell(history[-1])) == [1, 3, 4]


def test_without_names_of_cells_the_likest_code_is_the_same_cell() -> None:
    history = History()
    for number, code in enumerate([CODE, "print(model)", CODE.replace("9", "90"), "y = 1"]):
        history.add(profile(count=number, source=code))
    assert [run.cell for run in history] == [1, 2, 1, 4]


def test_statements_of_one_cell_are_told_apart_by_their_code() -> None:
    history = History()
    for count in (1, 2):
        for source in ("model(x)", "torch.save(model, f)"):
            history.add(profile(count=count, source=source), cell_id="a", execution=count)
    assert [run.cell for run in history] == [1, 2, 1, 2]


@pytest.mark.parametrize("source", ["x @ x", ""])
def test_turns_of_a_loop_in_one_cell_are_told_apart(source: str) -> None:
    history = History()
    for execution in (1, 2):
        for dur in (10, 20, 30):
            made = profile(dur * execution, count=execution, source=source)
            history.add(made, cell_id="a", execution=execution)
    assert [run.cell for run in history] == [1, 2, 3, 1, 2, 3]
    assert [history.table()["change"].tolist()[at] for at in (3, 4, 5)] == [1.0, 1.0, 1.0]


def test_without_a_notebook_calls_of_one_function_are_one_row() -> None:
    history = History()
    for _ in range(3):
        history.add(profile(label="train_step", cell_source=None))
    assert [run.cell for run in history] == [1, 1, 1]


def test_blocks_are_told_apart_by_their_place() -> None:
    history = History()
    for number, label in enumerate(["Cell [1], line 2", "Cell [1], line 5", "Cell [2], line 2"]):
        history.add(profile(label=label, cell_source=None, count=number), cell_id="a")
    assert [run.cell for run in history] == [1, 2, 1]


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
    assert [run.ended for run in history] == ["", "raised ValueError", "interrupted", ""]


def test_what_cannot_be_compared_is_said() -> None:
    history = History()
    with pytest.raises(OptionError, match="the history has no runs"):
        history.compare()
    history.add(profile(source=CODE), cell_id="a")
    with pytest.raises(OptionError, match="no earlier run of this cell"):
        history.compare()


def test_a_cleared_history_begins_anew() -> None:
    history = History()
    for count in (1, 2):
        history.add(profile(count=count, source=CODE), cell_id="a")
    history.clear()
    with pytest.raises(OptionError, match="the history has no runs"):
        history.compare()
    history.add(profile(9_000, count=3, source=CODE), cell_id="a")
    with pytest.raises(OptionError) as refused:
        history.compare()
    assert str(refused.value) == (
        "there is nothing to compare with yet: the history has no earlier run of this cell that "
        "reached its end; the next one is compared with this one"
    )
    history.add(profile(1_000, count=4, source=CODE), cell_id="a")
    assert [(run.number, run.cell) for run in history] == [(3, 3), (4, 3)]
    # It knows of no run before: whether this one warmed up, it cannot tell.
    titles = [each.title for each in history.compare().findings()]
    assert "A is the first recorded run of this cell" in titles


def test_it_is_bounded_and_keeps_figures_for_longer(monkeypatch: pytest.MonkeyPatch) -> None:
    history = History()
    for count in range(MOST_RUNS + 5):
        history.add(profile(1_000 + count, count=count, source=CODE), cell_id="a")
    assert len(history) == MOST_RUNS
    assert history[0].number == 6
    kept = [run for run in history if run.profile is not None]
    assert numbers(kept) == numbers(history[-MOST_PROFILES:])
    assert history[0].figures.time_ns == 1_005
    with pytest.raises(OptionError, match="no longer kept"):
        history.compare(history[3])
    monkeypatch.setattr("gpuprof_widgets.run_history.MOST_SLICES", 2)
    history.add(profile(count=200, source="1"), cell_id="b")
    history.add(profile(count=201, source=CODE), cell_id="a")
    # The last run of each cell is kept for longer than a run before it.
    assert numbers([run for run in history if run.profile is not None]) == [106, 107]
    big = trace_of(*(op("aten::mm", ts=10 * at, dur=5) for at in range(9)))
    history.add(Profile(big.trace, None, {"label": "big"}))
    assert [run.label for run in history if run.profile is not None] == ["big"]
    history.clear()
    assert list(history) == []


def test_figures_are_of_steps_where_there_are_any() -> None:
    history = History()
    stepped = history.add(profile(1_000, steps=3)).figures
    assert (stepped.time_ns, stepped.per, stepped.steps, stepped.gpu_busy_ns) == (
        990,
        "step",
        3,
        -1,
    )
    record = trace_of(op("aten::mm", ts=0, dur=100), kernel("gemm", ts=50, dur=100, launched_by=0))
    busy = history.add(Profile(record.trace, None, {})).figures
    assert (busy.time_ns, busy.per, busy.gpu_busy_ns) == (150, "run", 100)


def test_it_displays_as_a_table_with_sparklines() -> None:
    history = History()
    assert repr(history) == "<History of no runs>"
    assert history._repr_html_() == "<div>The history has no runs.</div>"
    for count, dur in enumerate([8_000, 4_000, 1, 1_000], 1):
        error = {"error": "ValueError"} if dur == 1 else {}
        history.add(profile(dur, count=count, source="# note\n" + CODE, **error), cell_id="a")
    history.add(profile(count=9, source="<b>$x$</b>"), cell_id="b")
    lines = repr(history).splitlines()
    assert re.split(r" {2,}", lines[1]) == ["Cell", "Runs", "Time of each", "Last", "Change"]
    assert lines[2].startswith("Cell [9]: <b>")
    assert re.split(r" {2,}", lines[3].rstrip())[-4:] == ["4", "█▄×▁", "1.00 µs", "−75 %"]
    html = history._repr_html_()
    assert "█▄×▁" in html
    assert "<b>" not in html
    assert "GPU busy" not in html  # no run had a GPU
    assert "$x$" not in html
    table = history.table()
    assert table["time_ns"].tolist() == [8_000, 4_000, 1, 1_000, 1_000]
    assert table["change"].tolist()[1:4] == pytest.approx([-0.5, float("nan"), -0.75], nan_ok=True)
    assert table["cell"].tolist() == [1, 1, 1, 1, 5]


def test_a_run_without_a_trace_has_no_time() -> None:
    history = History()
    history.add(profile(source=CODE), cell_id="a")
    history.add(Profile(trace_of().trace, None, {"cell_source": CODE}), cell_id="a")
    assert [run.ended for run in history] == ["", "no trace"]
    assert "no trace" in repr(history)
    with pytest.raises(OptionError, match=r"this run \(no trace\) has nothing to compare"):
        history.compare()


def test_bars_begin_at_zero() -> None:
    history = History()
    for dur in (8_000, 7_900, 1_000, 1):
        history.add(profile(dur, source=CODE), cell_id="a")
    assert sparkline(list(history)) == "██▁▁"
    assert len(SPARKS) == 8


def test_the_magic_compares_a_cell_with_its_previous_run(
    capsys: pytest.CaptureFixture[str],
) -> None:
    gpuprof_widgets.history.clear()
    with loaded() as shell:
        shell.run_cell("import time")
        cell = "%%gpuprofile --compare\nfor _ in range(3):\n    time.sleep(0.001)"
        shell.run_cell(cell, store_history=True)
        out, err = capsys.readouterr()
        assert "gpuprofile: --compare: there is nothing to compare with yet" in err
        assert "Lines by self time" in out  # the report stands in its place
        shell.run_cell(cell.replace("0.001", "0.02"), store_history=True)
        out, err = capsys.readouterr()
        assert err == ""
        assert "B's run takes" in out
        assert re.search(r"line 3\s`time.sleep\(0.001\)`\s→\s`time.sleep\(0.02\)`\s\(\+", out)
        assert "Changes in the source" in out
        gpuprof_widgets.history.clear()
        shell.run_cell(cell, store_history=True)
        out, err = capsys.readouterr()
        assert err.count("\n") == 1
        assert "--compare: there is nothing to compare with yet: the history has no earlier" in err
        assert "Lines by self time" in out
        shell.run_cell(cell + "\nraise ValueError", store_history=True)
        out, err = capsys.readouterr()
        assert (
            "--compare: this run (raised ValueError) has nothing to compare: it is shown by itself"
            in err
        )
    assert gpuprof_widgets.history[-2].profile is not None
    assert [run.ended for run in gpuprof_widgets.history] == ["", "raised ValueError"]
    gpuprof_widgets.history.clear()


def test_it_cannot_compare_and_explore_in_one_place() -> None:
    with pytest.raises(OptionError, match="compare and explore both replace the report"):
        gpuprof_widgets.options.Options(compare=True, explore="explorer")
