"""cProfile's functions have no timestamps: how much of their time must have been in a line."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuprof_widgets.analyses.call_tree import call_tree
from gpuprof_widgets.analyses.findings import FINDINGS, findings
from gpuprof_widgets.analyses.findings.finding import Finding
from gpuprof_widgets.analyses.line_holders import _least_in_line
from gpuprof_widgets.trace.model import Record
from tests.counted import CELL, MODULE_CALL, TREES, Tree, record_of

pytestmark = pytest.mark.slow

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


def masked(inner: str, share: int) -> Record:
    """Line 4 calls a forward that called ``inner`` for so many of 90 ms; line 5 waits."""
    made = [("<built-in method torch.full>", MS, []), ("<built-in method torch.arange>", MS, [])]
    calls: list[Tree] = [(inner, (share - 6) * MS // 3, made) for _ in range(3)]
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
        "Line 4 `out = net(x)` took 60 % of the time (90.0 ms), 40 % of it (36.0 ms) in "
        "`net.py:3(window_mask)`."
    )
    assert finding.remedy == (
        "`net.py:3(window_mask)` makes new tensors with `torch.arange` and `torch.full` in each "
        "call. If they are always the same, make them once (in `__init__`, with "
        "`register_buffer`)."
    )
    assert finding.function == "net.py:3(window_mask)"
    assert (finding.cost_ns, finding.share) == (90 * MS, 0.6)


@pytest.mark.parametrize(("inner", "share"), [("forward", 40), ("window_mask", 21)])
def test_forward_and_smaller_functions_are_not_named(inner: str, share: int) -> None:
    finding = only(masked(inner, share))
    assert finding.text == "Line 4 `out = net(x)` took 60 % of the time (90.0 ms)."
    assert finding.title == "Line 4 takes the most time: `out = net(x)`"
    assert not finding.remedy


def test_most_of_a_line_is_still_said_of_the_function_itself() -> None:
    finding = only(masked("window_mask", 60))
    assert finding.title == "`net.py:3(window_mask)`, called by line 4, takes the most time"
    assert "makes new tensors" in finding.remedy
    assert finding.function == "net.py:3(window_mask)"


def test_the_library_function_that_has_most_of_a_function_is_named_with_advice() -> None:
    copying = ("deepcopy", 20 * MS, [])
    record, _ = record_of([("keep", 10 * MS, 4 * [copying])], [("step", 30 * MS, [])])
    finding = only(record)
    assert finding.text == (
        "`net.py:2(keep)` took 75 % of the time (90.0 ms), called by line 4 `keep()`. "
        "`copy.deepcopy` took 89 % of that time."
    )
    assert finding.remedy.startswith("`copy.deepcopy` copies every object that it reaches")


def test_the_costliest_function_is_not_told_twice() -> None:
    """Its remedy goes to the finding on the line, where that has none."""
    record, _ = record_of([("keep", 90 * MS, [])], [("step", 30 * MS, [])])
    (alone,) = FINDINGS["python_time"](record)
    told = {finding.rule: finding for finding in findings(record)}
    assert "python_time" not in told
    assert told["lines"].remedy.startswith("`net.py:1(keep)`: look in it for loops")
    assert alone.remedy.startswith("Look in it for loops")
    assert "`net.py:1(keep)`" in told["lines"].text


def test_a_function_of_several_lines_keeps_the_finding_on_all_of_it() -> None:
    lines = [[("f", 25 * MS, [])] for _ in range(4)]
    told = {finding.rule: finding for finding in findings(record_of(*lines)[0])}
    assert told["python_time"].share == 1.0


def test_a_function_of_which_the_line_does_not_tell_keeps_its_finding() -> None:
    """A line beyond the recorder's limit is told of alone; a module's line names one function."""
    record, _ = record_of([("keep", 90 * MS, [])], [("step", 30 * MS, [])])
    cells = [{"label": "Cell [3]", "source": "", "beyond_limit": [4]}]
    metadata = {**record.metadata, "lines": {"limit": 10, "cells": cells}}
    told = {finding.rule: finding for finding in findings(replace(record, metadata=metadata))}
    assert "took at least" in told["lines"].text
    assert told["python_time"].function == "net.py:1(keep)"
    counting = ("<built-in method builtins.sum>", 60 * MS, [])
    inner = modules(("f", MS, [counting]), ("<built-in method torch.relu>", 90 * MS, []))
    record, _ = record_of([inner], [("step", 60 * MS, [])], code={4: "trainer.run()"})
    told = {finding.rule: finding for finding in findings(record)}
    assert "sum" not in told["lines"].text
    assert told["python_time"].function == "<built-in method builtins.sum>"


def test_what_is_made_once_is_not_made_anew() -> None:
    record = masked("window_mask", 36)
    assert record.calls is not None
    names = record.calls.functions["name"]
    once = names.iloc[record.calls.edges["callee"]].str.contains("arange|full").to_numpy()
    edges = record.calls.edges
    edges = edges.assign(calls=edges["calls"].where(~once, 1))
    assert not only(replace(record, calls=replace(record.calls, edges=edges))).remedy


def test_a_product_is_not_what_to_make_once() -> None:
    made = [("<built-in method torch.arange>", 1, []), ("<built-in method torch.bmm>", 9 * MS, [])]
    attention: list[Tree] = [("attend", MS, [*made]) for _ in range(3)]
    net = modules(*attention, ("<built-in method torch.relu>", 60 * MS, []))
    record, _ = record_of([net], [("step", 60 * MS, [])], code={4: "out = net(x)"})
    finding = only(record)
    assert "in `net.py:3(attend)` (mostly `torch.bmm`)" in finding.text
    assert not finding.remedy


def test_a_line_that_mentions_a_function_may_call_it() -> None:
    record, _ = record_of(
        [("f", 10 * MS, []), ("g", 40 * MS, [])],
        [("f", 90 * MS, [])],
        code={4: "y = g(f(x))", 5: "list(map(f, xs))"},
    )
    assert least_ns(record, 0)["f"] == 10 * MS  # for which line 5 has no room
    record, _ = record_of(
        [("f", 10 * MS, [])], [("f", 90 * MS, [])], code={4: "y = f(x)", 5: "loss = mean("}
    )
    assert least_ns(record, 0)["f"] == 10 * MS


def test_the_module_with_most_of_a_line_stays_the_subject() -> None:
    inner = modules(("f", 30 * MS, []), ("<built-in method torch.relu>", 60 * MS, []))
    record, _ = record_of([inner], [("step", 60 * MS, [])], code={4: "trainer.run()"})
    assert only(record).text == (
        "Module `net` took 60 % of the time (90.0 ms), called by line 4 `trainer.run()`. "
        "`net.py:1(f)` took 33 % of the line's time."
    )


def test_counts_that_cannot_be_end_the_search() -> None:
    """Files of cProfile may come from anywhere: an edge may have more time than its functions."""
    record, _ = record_of([("f", 10 * MS, [("g", 40 * MS, [])])], [("step", 20 * MS, [])])
    assert record.calls is not None
    row = record.calls.functions["name"].tolist().index("g")
    edge = {"caller": row, "callee": row, "calls": 1, "primitive_calls": 1, "self_ns": 1}
    edges = pd.concat(
        [record.calls.edges, pd.DataFrame([edge | {"total_ns": 2**62}])], ignore_index=True
    )
    changed = replace(record, calls=replace(record.calls, edges=edges))
    assert least_ns(changed, 0)["g"] <= 40 * MS
    assert len(call_tree(changed, source="cprofile")) < 10
