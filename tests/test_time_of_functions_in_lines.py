"""cProfile's functions have no timestamps: how much of their time must have been in a line."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuprof_widgets.analyses.findings import FINDINGS
from gpuprof_widgets.analyses.findings.finding import Finding
from gpuprof_widgets.analyses.line_holders import _least_in_line
from gpuprof_widgets.trace.model import Calls, Record
from tests.traces import Row, annotation, cell_line, module, trace_of

MS = 1_000_000
CELL = "<module>"
MODULE_CALL = "_call_impl"
CODE = ["f", "g", "h", "forward", MODULE_CALL]
FILES = {CELL: "Cell [3]", MODULE_CALL: "/lib/site-packages/torch/nn/modules/module.py"}

Tree = tuple[str, int, list["Tree"]]
"""A call: its function, ns in the function itself, and the calls in it."""


@dataclass
class Counted:
    """Counts calls as cProfile does: a recursive call's time counts once, for the outermost."""

    calls: dict[str, int] = field(default_factory=dict)
    total: dict[str, int] = field(default_factory=dict)
    self_ns: dict[str, int] = field(default_factory=dict)
    edges: dict[tuple[str, str], list[int]] = field(default_factory=dict)
    modules: list[tuple[int, int]] = field(default_factory=list)

    def call(self, tree: Tree, ts: int, open_: tuple[str, ...], edges: tuple[Any, ...]) -> int:
        """Count the call that starts at ``ts`` and return when it ends."""
        name, own, inner = tree
        edge = (open_[-1], name)
        end = ts + own
        for part in inner:
            end = self.call(part, end, (*open_, name), (*edges, edge))
        self.calls[name] = self.calls.get(name, 0) + 1
        self.self_ns[name] = self.self_ns.get(name, 0) + own
        self.total[name] = self.total.get(name, 0) + (end - ts) * (name not in open_)
        counted = self.edges.setdefault(edge, [0, 0, 0])
        counted[0] += 1
        counted[1] += own
        counted[2] += (end - ts) * (edge not in edges)
        if name == MODULE_CALL:
            self.modules.append((ts, end - ts))
        return end

    def result(self) -> Calls:
        names = list(self.calls)
        functions = pd.DataFrame(
            {
                "file": [FILES.get(name, "~" if name[0] == "<" else "net.py") for name in names],
                "line": np.arange(1, len(names) + 1),
                "name": names,
                "calls": [self.calls[name] for name in names],
                "primitive_calls": [self.calls[name] for name in names],
                "self_ns": [self.self_ns[name] for name in names],
                "total_ns": [self.total[name] for name in names],
            }
        )
        rows = [
            (names.index(caller), names.index(callee), counted[0], counted[0], *counted[1:])
            for (caller, callee), counted in self.edges.items()
            if caller in names
        ]
        columns = ["caller", "callee", "calls", "primitive_calls", "self_ns", "total_ns"]
        edges = pd.DataFrame(rows, columns=columns).astype(np.int64)
        return Calls(functions, edges.astype({"caller": np.int32, "callee": np.int32}))


def record_of(*lines: list[Tree], code: dict[int, str] | None = None) -> tuple[Record, Any]:
    """Lines 4, 5 ... of a cell that make these calls; and what each function took in each line."""
    counted, rows, truth, ts = Counted(), list[Row](), list[dict[str, int]](), 0
    for number, trees in enumerate(lines, 4):
        start, before, seen = ts, dict(counted.total), len(counted.modules)
        for tree in trees:
            ts = counted.call(tree, ts, (CELL,), ())
        truth.append({name: ns - before.get(name, 0) for name, ns in counted.total.items()})
        named = " + ".join(f"{tree[0]}()" for tree in trees if tree[0] != MODULE_CALL)
        text = (code or {}).get(number, named or "model(x)")
        rows.append(cell_line(number, text, ts=start, dur=ts - start))
        rows += [module("net", ts=at, dur=dur) for at, dur in counted.modules[seen:]]
    counted.calls[CELL], counted.total[CELL], counted.self_ns[CELL] = 1, ts, 0
    rows = [annotation("Cell [3]", ts=0, dur=ts), *rows]
    return trace_of(*rows, label="Cell [3]", calls=counted.result()), truth


def leaves(names: list[str]) -> st.SearchStrategy[Tree]:
    return st.tuples(st.sampled_from(names), st.integers(1, 50), st.just([]))


TREES = st.recursive(
    leaves(CODE),
    lambda inner: st.tuples(
        st.sampled_from(CODE), st.integers(1, 50), st.lists(inner, min_size=1, max_size=3)
    ),
    max_leaves=12,
)


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
