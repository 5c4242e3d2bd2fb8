"""A line that only calls: what holds most of its time is named, with the line as caller."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import pytest

from gpuprof_widgets.analyses.findings import FINDINGS
from gpuprof_widgets.analyses.findings.finding import Finding
from gpuprof_widgets.analyses.lines import lines
from gpuprof_widgets.trace.model import Calls, Record
from tests.cells import recorded
from tests.traces import (
    Row,
    annotation,
    backward_op,
    calls_of,
    cell_line,
    module,
    op,
    python,
    runtime,
    trace_of,
)

pytestmark = pytest.mark.slow

MS = 1_000_000


def only(record: Record) -> Finding:
    (finding,) = FINDINGS["lines"](record)
    return finding


def calling(*rows: Row, other: int = 50, code: str = "trainer.run()", **given: Any) -> Record:
    """Line 4 of a cell takes the first 800 of 1000 ms, line 5 so many after it."""
    lines = [
        annotation("Cell [3]", ts=0, dur=1000 * MS),
        cell_line(4, code, ts=0, dur=800 * MS),
        cell_line(5, "report()", ts=800 * MS, dur=other * MS),
    ]
    return trace_of(*lines, *rows, label="Cell [3]", **given)


def counted(*edges: tuple[str | None, str, int, int]) -> Calls:
    """What cProfile counted, `<module>` being the cell."""
    calls = calls_of(*edges)
    body = calls.functions["name"] == "<module>"
    file = calls.functions["file"].mask(body, "Cell [3]")
    library = calls.functions["name"].str.startswith("lib_")
    file = file.mask(library, "/opt/py/lib/python3.11/site-packages/lib/__init__.py")
    return Calls(calls.functions.assign(file=file.astype(object)), calls.edges)


TRAINER = (
    (None, "<module>", 1, 10 * MS),
    ("<module>", "run", 1, 20 * MS),
    ("run", "lib_loop", 1, 30 * MS),
    ("lib_loop", "step", 9, 500 * MS),
    ("step", "lib_backward", 9, 200 * MS),
    ("run", "log", 9, 40 * MS),
)


def test_the_deepest_function_that_cprofile_counted_is_named() -> None:
    finding = only(calling(calls=counted(*TRAINER)))
    assert finding.text == (
        "`cell.py:4(step)` took 70 % of the time (700 ms), called by line 4 `trainer.run()`."
    )
    assert (finding.cost_ns, finding.share) == (700 * MS, 0.7)
    assert (finding.start_ns, finding.end_ns) == (0, 800 * MS)


def test_a_function_on_two_lines_counts_for_what_the_other_has_no_room_for() -> None:
    finding = only(calling(code="run(a)", other=100, calls=counted(*TRAINER)))
    assert "`cell.py:4(step)` took 70 %" in finding.text
    rows = [cell_line(6, "run(b)", ts=900 * MS, dur=100 * MS)]
    finding = only(calling(*rows, code="run(a)", other=100, calls=counted(*TRAINER)))
    assert finding.text.startswith("`cell.py:4(step)` took at least 50 % of the time (500 ms)")
    rows = [cell_line(6, "run(b)", ts=800 * MS, dur=200 * MS)]
    rows += [cell_line(7, "run(c)", ts=1000 * MS, dur=600 * MS)]
    finding = only(calling(*rows, code="run(a)", calls=counted(*TRAINER)))
    assert finding.text.startswith("Line 4 `run(a)` took")


def test_time_in_lines_within_the_line_is_not_what_it_calls() -> None:
    """As where a function of a library calls one of the cell: its lines have their own time."""
    inner = [cell_line(2, "return f(x)", ts=100 * MS, dur=390 * MS)]
    calls = counted((None, "<module>", 1, MS), ("<module>", "run", 1, 600 * MS))
    finding = only(calling(*inner, calls=calls))
    assert finding.text.startswith("`cell.py:2(run)` took at least 21 % of the time (210 ms)")


def test_functions_of_libraries_are_not_named() -> None:
    calls = counted((None, "<module>", 1, MS), ("<module>", "lib_fit", 1, 790 * MS))
    assert only(calling(code="fit()", calls=calls)).text.startswith("Line 4 `fit()` took 80 %")


def test_recorded_frames_and_modules_tell_exactly() -> None:
    frames = [
        python("/home/me/trainer.py(3): run", ts=MS, dur=790 * MS),
        python("/home/me/trainer.py(40): step", ts=10 * MS, dur=300 * MS),
        python("torch/_tensor.py(600): backward", ts=20 * MS, dur=280 * MS),
        python("/home/me/trainer.py(40): step", ts=400 * MS, dur=350 * MS),
        python("/home/me/trainer.py(60): report", ts=800 * MS, dur=40 * MS),
    ]
    assert only(calling(*frames)).text.startswith("`trainer.py:40(step)` took 65 % of the time")
    inner = [module("model.encoder", ts=20 * MS, dur=250 * MS)]
    inner += [module("model.encoder", ts=410 * MS, dur=200 * MS)]
    assert only(calling(*frames, *inner)).text == (
        "Module `model.encoder` took 45 % of the time (450 ms), called by line 4 `trainer.run()`."
    )


def test_a_module_counts_with_its_backward_pass_and_not_where_the_line_names_it() -> None:
    parts = [
        module("model", ts=0, dur=390 * MS), module("model.head", ts=MS, dur=200 * MS),
        module("model.head", ts=400 * MS, dur=300 * MS, category="module_backward"),
        *backward_op("MmBackward0", ts=400 * MS, dur=300 * MS, sequence=1),
    ]  # fmt: skip
    text = only(calling(*parts, code="model(x).sum().backward()")).text
    assert text.startswith("Module `model.head` took 50 % of the time (500 ms), called by line 4")
    alone = [module("model", ts=0, dur=790 * MS)]
    assert only(calling(*alone, code="model(x)")).text.startswith("Line 4 `model(x)` took 80 %")
    assert only(calling(*alone, code="run()")).text.startswith("Module `model` took 79 %")


def test_a_line_that_goes_back_stays_the_subject() -> None:
    parts = [
        module("model.head", ts=400 * MS, dur=300 * MS, category="module_backward"),
        module("model.head", ts=700 * MS, dur=100 * MS, category="module_backward"),
        *backward_op("MmBackward0", ts=400 * MS, dur=300 * MS, sequence=1),
    ]
    text = only(calling(*parts, code="loss.backward()")).text
    assert text.startswith("Line 4 `loss.backward()` took 80 % of the time (800 ms")
    assert ", mostly in the backward pass of `model.head`" in text


def test_a_line_that_runs_its_ops_itself_is_the_one_to_name() -> None:
    rows = [op("aten::mm", ts=0, dur=790 * MS)]
    finding = only(calling(*rows, code="y = x @ x", calls=counted((None, "<module>", 1, 999 * MS))))
    assert finding.text == (
        "Line 4 `y = x @ x` took 80 % of the time (800 ms), 99 % of it in `aten::mm`."
    )


def ops(*durations: int) -> list[Row]:
    """Ops one after another, of these lengths (ms)."""
    names = ["aten::mm", "aten::copy_", "aten::add", "aten::sum"]
    begins = [sum(durations[:at]) for at in range(len(durations))]
    return [
        op(name, ts=ts * MS, dur=dur * MS)
        for name, ts, dur in zip(names, begins, durations, strict=False)
    ]


@pytest.mark.parametrize(
    ("rows", "says"),
    [
        (ops(400, 200, 100, 90), ", 50 % of it in `aten::mm`, 25 % in `aten::copy_`, 12 % in "
         "`aten::add`."),
        (ops(400, 79), ", 50 % of it in `aten::mm`."),
        # An op's time is without that of the ops within it.
        ([op("aten::linear", ts=0, dur=500 * MS), *ops(450)], ", 56 % of it in `aten::mm`."),
        (ops(300, 90), "."),  # mostly Python
        (ops(79, 79, 79, 79), "."),
        ([], "."),
        ([*ops(700), runtime("cudaStreamSynchronize", ts=0, dur=700 * MS)],
         ", 700 ms of it waiting for the GPU."),
    ],
)  # fmt: skip
def test_a_line_says_which_ops_take_most_of_its_time(rows: list[Row], says: str) -> None:
    text = only(calling(*rows, code="y = (x @ x).float() + 1")).text
    assert text == f"Line 4 `y = (x @ x).float() + 1` took 80 % of the time (800 ms){says}"


def test_of_it_is_said_of_one_time_alone() -> None:
    """Of a line whose first run took most of its time, and not of the ops as well."""
    rows = []
    for ts, dur in ((0, 500), (500, 100), (600, 100)):
        rows.append(cell_line(4, "y = x @ x", ts=ts * MS, dur=dur * MS))
        rows.append(op("aten::mm", ts=ts * MS, dur=dur * MS))
    rows.append(cell_line(5, "rest()", ts=800 * MS, dur=200 * MS))
    text = only(trace_of(*rows)).text
    assert text.endswith("took 70 % of the time (700 ms in 3 runs), 500 ms of it in the first.")


def test_ops_in_lines_within_a_line_are_not_its_own() -> None:
    rows = [*ops(500), cell_line(8, "y * 2", ts=550 * MS, dur=100 * MS)]
    rows.append(op("aten::mul", ts=550 * MS, dur=100 * MS))
    text = only(calling(*rows, code="f(x)")).text
    assert text.endswith("took 70 % of the time (700 ms), 71 % of it in `aten::mm`.")


def test_ops_on_several_threads_at_once_have_no_share_of_the_line() -> None:
    """The backward pass on two threads of autograd takes twice the line's time."""
    rows = [
        *backward_op("MmBackward0", ts=0, dur=790 * MS, sequence=1, thread=201),
        *backward_op("MulBackward0", ts=0, dur=790 * MS, sequence=2, thread=202),
    ]
    record = calling(*rows, code="loss.backward()")
    assert lines(record).set_index("line").loc[4, "cpu_self_ns"] == 2 * 790 * MS
    assert only(record).text == "Line 4 `loss.backward()` took 80 % of the time (800 ms)."


def test_a_function_that_is_named_leaves_the_ops_to_the_line_that_calls_it() -> None:
    text = only(calling(*ops(450, 200), module("head", ts=0, dur=790 * MS))).text
    assert text == (
        "Module `head` took 79 % of the time (790 ms), called by line 4 `trainer.run()`. The "
        "line spent 56 % of its time in `aten::mm`, 25 % in `aten::copy_`."
    )


@pytest.mark.parametrize(
    ("head", "beyond", "says"),
    [
        ("for j in range(150):", [5], "line 5 `n += j`"),
        ("for j in range(len(x) - 1):", [5], "line 5 `n += j`"),
        ("for j in range(150):", [5, 6], "lines 5 and 6"),
        ("for j in range(150):", [], "line 4 `for j in range(150):`"),
        # The head may take long itself.
        ("for row in file:", [5], "lines 4 and 5"),
        ("for j in range(f(x)):", [5], "lines 4 and 5"),
    ],
)
def test_the_time_of_lines_beyond_their_limit_is_not_blamed_on_the_head_of_the_loop(
    head: str, beyond: list[int], says: str
) -> None:
    cell = {"label": "Cell [3]", "source": "", "beyond_limit": beyond}
    rows = [
        cell_line(4, head, ts=0, dur=800 * MS),
        cell_line(5, "n += j", ts=0, dur=90 * MS),
        cell_line(6, "m += j", ts=90 * MS, dur=90 * MS),
    ]
    calls = counted((None, "<module>", 1, 790 * MS))
    (finding,) = FINDINGS["python_time"](
        trace_of(*rows, calls=calls, lines={"limit": 10_000, "cells": [cell]})
    )
    assert finding.text == (
        "The Python of the cell itself took 99 % of the time (790 ms in 1 call, mostly from "
        f"{says})."
    )


SOURCE = """
import time

class Trainer:
    def __init__(self):
        self.passes = 0

    def run(self, steps):
        for _ in range(steps):
            self.step()
            self.note()

    def step(self):
        until = time.perf_counter() + 0.01
        while time.perf_counter() < until:
            for _ in range(500):
                self.passes += 1

    def note(self):
        pass
"""


@pytest.fixture(scope="module")
def trainer(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ModuleType]:
    """A module of the user's with a class that trains."""
    folder = tmp_path_factory.mktemp("code")
    (folder / "my_trainer.py").write_text(SOURCE)
    sys.path.insert(0, str(folder))
    yield __import__("my_trainer")
    sys.path.remove(str(folder))
    del sys.modules["my_trainer"]


@pytest.mark.parametrize("stack", [False, True])
def test_a_recorded_trainer_is_named_by_its_step(trainer: ModuleType, stack: bool) -> None:
    body = "trainer = Trainer()\ntrainer.run(20)\nx = 1"
    outcome, record = recorded(body, {"Trainer": trainer.Trainer}, stack=stack)
    assert not outcome.error
    text = only(record).text
    assert text.startswith("`my_trainer.py:13(step)` took ")
    assert text.endswith("called by line 3 `trainer.run(20)`.")
