"""cProfile's functions have no timestamps: how much of their time must have been in a line."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuprof_widgets.analyses.findings import FINDINGS, findings
from gpuprof_widgets.analyses.findings.finding import Finding
from gpuprof_widgets.analyses.line_holders import _least_in_line
from gpuprof_widgets.trace.model import Record
from tests.counted import CELL, MODULE_CALL, TREES, Tree, record_of

MS = 1_000_000


def least_ns(record: Record, line: int) -> dict[str, int]:
    assert record.calls is not None
    least = _least_in_line(record, record.calls, line)
    return dict(zip(record.calls.functions["name"], least.astype(int), strict=True))


@given(st.lists(st.lists(TREES, min_size=1, max_size=3), min_size=1, max_size=3))
def test_no_function_is_said_to_have_been_longer_in_a_line_than_it_was(lines: Any) -> None:
    record, truth = record_of(*lines)
    for line, spent in enumerate(truth):
        for name, ns in least_ns(record, line).items():
            assert 0 <= ns <= spent.get(name, 0) or name == CELL, name


def modules(*inner: Tree) -> Tree:
    return (MODULE_CALL, 1, [("forward", 1, [*inner])])


def test_a_function_in_modules_of_one_line_was_in_it_with_all_its_time() -> None:
    block = modules(("f", 400, []), modules(("g", 100, [])))
    record, truth = record_of([modules(block, block)], [("h", 2000, [])])
    assert (truth[0]["f"], truth[0]["g"]) == (800, 200)
    least = least_ns(record, 0)
    assert (least["f"], least["g"]) == (800, 200)
    least = least_ns(record, 1)
    assert (least["f"], least["g"], least["h"]) == (0, 0, 2000)


def test_modules_of_two_lines_leave_room_for_the_function_in_the_other() -> None:
    record, _ = record_of([modules(("f", 400, []))], [modules(("g", 150, []))])
    assert least_ns(record, 0)["f"] == 400 - 152


def only(record: Record) -> Finding:
    (finding,) = FINDINGS["lines"](record)
    return finding


def masked(inner: str, share: int, *, others: int = 0) -> Record:
    """Line 4 calls a model of a forward that called ``inner`` for so many of 90 ms; line 5 waits.

    ``others``: ms in another function.
    """
    made = [("<built-in method torch.full>", MS, []), ("<built-in method torch.arange>", MS, [])]
    calls: list[Tree] = [(inner, (share - 6) * MS // 3, made) for _ in range(3)]
    calls.append(("other", others * MS, []))
    rest = 90 * MS - sum(call[1] for call in calls) - 6 * MS - 2
    trees = [
        (MODULE_CALL, 1, [("forward", 1, [*calls, ("<built-in method torch.relu>", rest, [])])])
    ]
    record, _ = record_of(trees, [("step", 60 * MS, [])], code={4: "out = net(x)"})
    return record


def test_a_function_with_a_quarter_of_a_line_of_modules_is_named_with_what_it_makes_anew() -> None:
    finding = only(masked("window_mask", 36))
    assert finding.title == "Line 4 takes the most time, much in `net.py:3(window_mask)`"
    assert finding.text == (
        "Line 4 `out = net(x)` took 60 % of the time (90.0 ms), 40 % of it in "
        "`net.py:3(window_mask)`."
    )
    assert finding.remedy == (
        "`net.py:3(window_mask)` makes tensors anew with `torch.arange` and `torch.full` in each "
        "call: where they are always the same, make them once (in `__init__`, with "
        "`register_buffer`)."
    )
    assert finding.function == "net.py:3(window_mask)"
    assert (finding.cost_ns, finding.share) == (90 * MS, 0.6)


def test_of_two_functions_with_a_quarter_the_larger_is_named() -> None:
    assert (
        "40 % of it in `net.py:3(window_mask)`" in only(masked("window_mask", 36, others=24)).text
    )


@pytest.mark.parametrize(("inner", "share"), [("forward", 40), ("window_mask", 21)])
def test_forward_and_smaller_functions_are_not_named(inner: str, share: int) -> None:
    finding = only(masked(inner, share))
    assert finding.text == "Line 4 `out = net(x)` took 60 % of the time (90.0 ms)."
    assert finding.title == "Line 4 takes the most time: `out = net(x)`"
    assert not finding.remedy


def test_most_of_a_line_is_still_said_of_the_function_itself() -> None:
    finding = only(masked("window_mask", 60))
    assert finding.title == "`net.py:3(window_mask)`, called by line 4, takes the most time"
    assert "makes tensors anew" in finding.remedy
    assert finding.function == "net.py:3(window_mask)"


def test_the_library_function_that_has_most_of_a_function_is_named_with_advice() -> None:
    copying = ("deepcopy", 80 * MS, [])
    record, _ = record_of([("keep", 10 * MS, [copying])], [("step", 30 * MS, [])])
    finding = only(record)
    assert finding.text == (
        "`net.py:2(keep)` took 75 % of the time (90.0 ms), called by line 4 `keep()`; "
        "`copy.py:1(deepcopy)` has 89 % of that."
    )
    assert finding.remedy.startswith("`copy.deepcopy` copies every object that it reaches")


def test_a_function_with_less_than_half_of_another_is_not_named() -> None:
    copying = ("deepcopy", 40 * MS, [])
    record, _ = record_of([("keep", 50 * MS, [copying])], [("step", 30 * MS, [])])
    assert only(record).text.endswith("called by line 4 `keep()`.")


def test_the_costliest_function_is_not_told_twice() -> None:
    """Its remedy goes to the finding on the line, where that has none."""
    record, _ = record_of([("keep", 90 * MS, [])], [("step", 30 * MS, [])])
    (alone,) = FINDINGS["python_time"](record)
    told = {finding.rule: finding for finding in findings(record)}
    assert "python_time" not in told
    assert told["lines"].remedy.startswith(alone.remedy)
    assert "`net.py:1(keep)`" in told["lines"].text
