"""Loops and functions of a moment: they go on without regions, and behave as if nothing were."""

from __future__ import annotations

import gc
import weakref
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuprof_widgets.analyses.lines import lines
from gpuprof_widgets.capture.lines import repeated
from gpuprof_widgets.capture.lines.regions import LIMIT, LineMarks
from gpuprof_widgets.trace.model import Record
from tests.cells import cells_in, marked, plain, recorded

pytestmark = pytest.mark.slow

TRICKY = cells_in("tricky_cells.txt")


@pytest.fixture(params=[1, 2, 3])
def all_short(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    """All rounds and calls are short, after so many of them."""
    monkeypatch.setattr(repeated, "LEAST", request.param)
    monkeypatch.setattr(repeated, "MOST_ADDED", 0)
    monkeypatch.setattr(repeated, "PYTHON_ALONE", 10**9)
    return int(request.param)


@pytest.fixture
def none_short(monkeypatch: pytest.MonkeyPatch) -> None:
    """No rounds and calls are short, however fast the machine is."""
    monkeypatch.setattr(repeated, "MOST_ADDED", 10**9)
    monkeypatch.setattr(repeated, "PYTHON_ALONE", -(10**9))


LOOPS = cells_in("loops_and_functions.txt")


@pytest.mark.parametrize("cell", LOOPS)
def test_loops_and_functions_behave_as_they_do_without_us(cell: str, all_short: int) -> None:
    expected = plain(LOOPS[cell])
    assert marked(LOOPS[cell]) == expected
    assert recorded(LOOPS[cell], python="off")[0] == expected


@pytest.mark.parametrize("cell", TRICKY)
@pytest.mark.usefixtures("all_short")
def test_tricky_cells_behave_as_without_us_where_all_is_short(cell: str) -> None:
    assert recorded(TRICKY[cell], python="off")[0] == plain(TRICKY[cell])


def calls(record: Record) -> dict[int, tuple[int, bool]]:
    """How often each line ran, and whether its numbers are complete."""
    table = lines(record)
    columns = (table[name].tolist() for name in ("line", "calls", "complete"))
    return {line: (number, complete) for line, number, complete in zip(*columns, strict=True)}


def test_rounds_until_an_error_are_counted() -> None:
    outcome, record = recorded("for i in range(900):\n    1 / (800 - i)", python="off")
    assert outcome.error.startswith("ZeroDivisionError")
    assert calls(record) == {2: (1, True), 3: (801, True)}


def test_time_of_further_rounds_of_two_lines_counts_for_the_head(all_short: int) -> None:
    body = "n = m = 0\nfor i in range(50):\n    n += 1\n    m -= 1\nn, m"
    _, record = recorded(body, python="off")
    head, lost = (1, False), (all_short, False)
    assert calls(record) == {2: (1, True), 3: head, 4: lost, 5: lost, 6: (1, True)}
    (note,) = record.metadata["notes"]
    assert note == (
        "Cell [7]: lines 4, 5 are recorded for their first runs only, because marking a run "
        "would take longer than the run itself"
    )
    assert "limit" not in record.metadata["lines"]
    wall_ns = lines(record).set_index("line")["wall_ns"]
    assert wall_ns.sum() <= record.trace.span_ns + wall_ns[[4, 5]].sum()


def test_calls_of_a_function_are_recorded_until_they_are_known_to_be_short(all_short: int) -> None:
    body = "def f(x):\n    y = x + 1\n    return y\nn = 0\nwhile n < 50:\n    n = f(n)\nn"
    outcome, record = recorded(body, python="off")
    assert outcome.result == "50"
    table = calls(record)
    assert table[3] == (all_short + 1, False)  # the call in which it is seen is recorded as well
    assert table[7] == (50, False)


@pytest.mark.usefixtures("none_short")
def test_long_rounds_have_all_regions() -> None:
    body = (
        "n = 0\nfor i in range(2_000):\n    n += 1\n"
        "def f():\n    return 1\nfor i in range(700):\n    f()"
    )
    _, record = recorded(body, python="off")
    assert calls(record)[4] == (2_000, True)
    assert calls(record)[6] == (700, True)
    spans = record.trace.slices[record.trace.slices["category"] == "cell_line"]
    assert set(spans["count"]) == {1}


def test_rounds_with_ops_of_several_lines_keep_their_regions() -> None:
    """Ops cannot be told apart by line without: two of them take longer than Python alone."""
    body = (
        "import torch\nx = torch.ones(100_000)\nfor i in range(300):\n"
        "    y = x.cumsum(0)\n    z = y.cumsum(0)\n"
    )
    _, record = recorded(body, python="off")
    assert {calls(record)[line] for line in (5, 6)} == {(300, True)}


def test_items_live_no_longer_than_without_us(all_short: int) -> None:
    body = (
        "import weakref\nclass Item: pass\ndef items():\n"
        "    for i in range(9):\n        yield Item()\n"
        "alive = []\nfor item in items():\n    alive.append(weakref.ref(item))\n"
        "    del item\n    print([one() is None for one in alive])"
    )
    assert recorded(body, python="off")[0] == plain(body)


def test_an_iterator_dies_with_its_loop(all_short: int) -> None:
    body = (
        "import weakref\nclass Items:\n    def __iter__(self):\n        return self\n    n = 0\n"
        "    def __next__(self):\n        self.n += 1\n        if self.n > 8: raise StopIteration\n"
        "        return self.n\ndef run():\n    items = Items()\n    for i in items:\n        i\n"
        "    return weakref.ref(items)\nprint(run()() is None)"
    )
    assert recorded(body, python="off")[0].stdout == "True\n"


def test_loops_of_several_threads_do_not_mix(all_short: int) -> None:
    body = (
        "import threading\ntotals = []\ndef work():\n    total = 0\n    for i in range(2_000):\n"
        "        total += i\n    totals.append(total)\n"
        "threads = [threading.Thread(target=work) for _ in range(4)]\n"
        "for thread in threads: thread.start()\nfor thread in threads: thread.join()\ntotals"
    )
    outcome, _ = recorded(body, python="off")
    assert outcome.result == repr([1_999_000] * 4)


@pytest.mark.usefixtures("all_short")
def test_python_profilers_count_what_they_count_without_lines(
    request: pytest.FixtureRequest,
) -> None:
    gc.disable()  # Hypothesis measures collections, by a function that the profilers would count
    request.addfinalizer(gc.enable)
    body = (
        "def f(x):\n    return abs(x)\n"
        "class C:\n    def __iter__(self):\n        return iter([1] * 9)\n"
        "for i in range(50):\n    f(i)\nfor i in C():\n    f(i)\n    f(-i)\n"
    )
    with_lines, without = (recorded(body, lines=wanted)[1] for wanted in (True, False))
    assert functions_called(with_lines) == functions_called(without)
    with_lines, without = (recorded(body, lines=wanted, stack=True)[1] for wanted in (True, False))
    assert functions_called(with_lines) == functions_called(without)


def functions_called(record: Record) -> list[tuple[str, int]]:
    assert record.calls is not None
    table = record.calls.functions
    return sorted(zip(table["name"], table["calls"].astype(int), strict=True))


@given(
    rounds=st.lists(st.integers(0, 9), min_size=1, max_size=4),
    stop=st.integers(0, 9),
    lines_in=st.integers(1, 3),
    kind=st.sampled_from(["range({})", "[0] * {}", "iter([0] * {})", "enumerate([0] * {})"]),
)
def test_any_loops_do_what_they_do_without_us(
    rounds: list[int], stop: int, lines_in: int, kind: str
) -> None:
    body = ["seen = []"]
    for depth, number in enumerate(rounds):
        body.append(f"{'    ' * depth}for i{depth} in {kind.format(number)}:")
    indent = "    " * len(rounds)
    body += [f"{indent}seen.append((i0, {n}))" for n in range(lines_in)]
    body += [f"{indent}if len(seen) % 10 == {stop}: break", "seen"]
    expected = plain("\n".join(body))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(repeated, "LEAST", 2)
        patch.setattr(repeated, "MOST_ADDED", 0)
        patch.setattr(repeated, "PYTHON_ALONE", 10**9)
        assert recorded("\n".join(body), python="off")[0] == expected


def test_nothing_holds_what_the_cell_defined(all_short: int) -> None:
    names: dict[str, Any] = {"__name__": "__main__"}
    body = (
        "def f(x):\n    for i in range(9):\n        x += i\n    return x\n[f(i) for i in range(9)]"
    )
    recorded(body, names, python="off")
    function = weakref.ref(names["f"])
    names.clear()
    gc.collect()
    assert function() is None


def test_functions_of_one_name_on_one_line_are_counted_together() -> None:
    """Python's own `create_stats` keeps the last of them alone."""
    _, record = recorded("for f in (lambda: 1), (lambda: 2): f(), f()\n")
    assert functions_called(record).count(("<lambda>", 4)) == 1


@pytest.mark.parametrize("rounds", [0, 1, 2, 3, 4, 6, 7, 50])
@pytest.mark.parametrize("items", ["range({})", "[0] * {}", "tuple([0] * {})", "iter([0] * {})"])
def test_further_rounds_of_a_single_line_are_one_region(
    rounds: int, items: str, all_short: int
) -> None:
    body = f"n = 0\nfor i in {items.format(rounds)}:\n    n += 1\nn"
    _, record = recorded(body, python="off")
    assert calls(record)[4] == (rounds, True)
    count = record.trace.slices["count"]
    assert sorted(count[count > 1]) == [rounds - all_short] * (rounds - all_short > 1)
    assert record.metadata["notes"] == []


def test_rounds_over_a_list_that_grows_are_counted(all_short: int) -> None:
    _, record = recorded(
        "q = [0]\nfor i in q:\n    q.extend([i + 1] * (i < 90))\nlen(q)", python="off"
    )
    assert calls(record)[4] == (91, True)


def test_executions_with_few_rounds_are_recorded_in_full() -> None:
    """They are judged together, once there were enough rounds, and none at all says nothing."""
    body = (
        "import time\ndef step(xs):\n    for x in xs:\n        time.sleep(0.001)\n"
        "        time.sleep(0.001)\nstep([])\nstep([1, 2, 3])\nfor i in range(3):\n"
        "    time.sleep(0.001)\n"
    )
    _, record = recorded(body, python="off")
    table = calls(record)
    assert [table[line] for line in (5, 6, 10)] == [(3, True)] * 3
    assert record.metadata["notes"] == []


STEPS = """import gpuprof_widgets
def f(x):
    y = x + 1
    return y
for i in gpuprof_widgets.steps(range(40), warmup=3, active=3, repeat=2):
    f(i)
"""


@pytest.mark.usefixtures("none_short")
def test_functions_keep_their_lines_in_every_window_of_a_loop() -> None:
    _, record = recorded(STEPS, python="off")
    table = calls(record)
    assert [table[line] for line in (4, 5)] == [(6, True)] * 2


def test_a_function_is_not_judged_while_nothing_is_recorded(all_short: int) -> None:
    marks = LineMarks("Cell [1]", "f()")
    marks.run_ns, marks.op_ns = 500.0, 2_000.0
    calls_of_f = repeated.Calls(marks, [1], [])
    marks.repeated.append(calls_of_f)
    mark = marks.mark(1)
    calls_of_f.count_at(mark)
    marks.switch_on()
    with mark.next():
        pass
    marks.switch_off()
    for _ in range(10 * LIMIT):
        mark.next()
    assert calls_of_f.lost_lines == ()


def test_a_window_that_begins_while_a_loop_runs_plain_says_what_it_lacks(all_short: int) -> None:
    body = (
        "import gpuprof_widgets\nn = 0\n"
        "for i in gpuprof_widgets.steps(range(60), warmup=0, wait=2, active=8, repeat=2):\n"
        "    n += 1\n"
    )
    _, record = recorded(body, python="off")
    number, is_complete = calls(record)[5]
    assert number <= 16
    assert is_complete is (number == 16)


@pytest.mark.parametrize("least", [5, 200])
def test_threads_may_call_one_function(least: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(repeated, "LEAST", least)
    body = (
        "import sys, threading\nbefore = sys.getswitchinterval()\nsys.setswitchinterval(1e-6)\n"
        "def f(x):\n    y = x + 1\n    return y\nerrors = []\ndef work():\n    try:\n"
        "        for i in range(1_200):\n            f(i)\n    except BaseException as error:\n"
        "        errors.append(repr(error))\n"
        "threads = [threading.Thread(target=work) for _ in range(8)]\n"
        "for thread in threads: thread.start()\nfor thread in threads: thread.join()\n"
        "sys.setswitchinterval(before)\nerrors"
    )
    outcome, _ = recorded(body, python="off")
    assert outcome.result == "[]"


def test_regions_of_many_rounds_are_no_more_than_the_limit(
    all_short: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(repeated, "LIMIT", 50)
    body = "n = k = 0\nwhile k < 500:\n    k += 1\n    for j in range(9):\n        n += j\nn"
    outcome, record = recorded(body, python="off")
    assert outcome.result == "18000"
    assert (record.trace.slices["count"] > 1).sum() == 50
    assert calls(record)[6][1] is False


@pytest.mark.usefixtures("all_short")
def test_a_recursion_that_goes_on_plain_is_one_for_cprofile() -> None:
    body = "def fib(n):\n    return n if n < 2 else fib(n - 1) + fib(n - 2)\nfib(15)"
    tables = []
    for wanted in (True, False):
        _, record = recorded(body, lines=wanted)
        assert record.calls is not None
        functions = record.calls.functions
        row = functions[functions["name"] == "fib"].iloc[0]
        tables.append((int(row["calls"]), int(row["primitive_calls"])))
        assert row["self_ns"] <= row["total_ns"] <= record.metadata["wall_ns"]
    assert tables[0] == tables[1] == (1_973, 1)
