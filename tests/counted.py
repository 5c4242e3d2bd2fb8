"""Calls of known times, counted as cProfile counts them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pandas as pd
from hypothesis import strategies as st

from gpuprof_widgets.trace.model import Calls, Record
from tests.traces import Row, annotation, cell_line, module, trace_of

CELL = "<module>"
MODULE_CALL, WRAPPER = "_call_impl", "_wrapped_call_impl"
CODE = ["f", "g", "h", "forward", MODULE_CALL, WRAPPER]
FILES = {
    CELL: "Cell [3]",
    MODULE_CALL: "/lib/site-packages/torch/nn/modules/module.py",
    WRAPPER: "/lib/site-packages/torch/nn/modules/module.py",
    "deepcopy": "/usr/lib/python3.11/copy.py",
}

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
    """Return a cell whose lines 4, 5 ... make these calls, and what functions took in each line.

    ``code``: the text of lines that do not show what they call.
    """
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
