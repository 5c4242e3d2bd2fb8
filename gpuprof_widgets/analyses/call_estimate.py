"""A call tree estimated from cProfile's caller-callee edges, which have no paths and no times.

A function's time on behalf of a caller is known; that its callees divide alike under each of its
callers is assumed. So the tree is an estimate, and exact where every function has one caller.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pandas as pd

from gpuprof_widgets.analyses.python_calls import function_labels
from gpuprof_widgets.analyses.whole_run import NO_TIMES, of_the_whole_run
from gpuprof_widgets.trace.model import Calls
from gpuprof_widgets.trace.schema import NONE

SMALLEST_SHARE = 0.001  # of all time; nodes below it stay in their parent's self time
DEEPEST = 100


def estimated_tree(calls: Calls | None) -> pd.DataFrame:
    """The columns of `call_tree`, category "cprofile"; the root's total is that of all functions.

    A function that is already on the path is not entered again: its time there stays in the self
    time of the last one entered. Nodes of less than a thousandth of the time are left out alike.
    """
    growth = _Growth()
    growth.add(NONE, "all calls", 0, 0.0)
    if calls is not None and len(calls.functions):
        _grow_all(calls, growth)
    return growth.table()


@dataclass
class _Growth:
    """The nodes found so far, parents before children."""

    parent: list[int] = field(default_factory=list)
    name: list[str] = field(default_factory=list)
    calls: list[int] = field(default_factory=list)
    total: list[float] = field(default_factory=list)

    def add(self, parent: int, name: str, calls: int, total: float) -> int:
        self.parent.append(parent)
        self.name.append(name)
        self.calls.append(calls)
        self.total.append(total)
        return len(self.parent) - 1

    def table(self) -> pd.DataFrame:
        """Self time is what the children leave of the total, so that widths add up exactly."""
        own = np.rint(np.array(self.total)).astype(np.int64)
        depth = np.zeros(len(own), np.int32)
        for node, parent in enumerate(self.parent):
            if parent >= 0:
                depth[node] = depth[parent] + 1
        total, rest = own.copy(), own.copy()
        for node in range(len(own) - 1, 0, -1):
            rest[self.parent[node]] -= own[node]
        rest = np.maximum(rest, 0)
        total = rest.copy()
        for node in range(len(own) - 1, 0, -1):
            total[self.parent[node]] += total[node]
        columns: dict[str, Any] = {
            "node": np.arange(len(own)),
            "parent": np.array(self.parent, np.int32),
            "depth": depth,
            "name": pd.Series(self.name, dtype=object),
            "category": pd.Series(["cprofile"] * len(own), dtype=object),
            "calls": np.array(self.calls, np.int64),
            "total_ns": total,
            "self_ns": rest,
            "device_ns": np.zeros(len(own), np.int64),
            "device_self_ns": np.zeros(len(own), np.int64),
        }
        return of_the_whole_run(pd.DataFrame(columns), NO_TIMES)


def _grow_all(calls: Calls, growth: _Growth) -> None:
    functions = calls.functions
    labels = function_labels(functions)
    total = functions["total_ns"].to_numpy(dtype=np.float64)
    floor = SMALLEST_SHARE * float(functions["self_ns"].sum())
    by_caller = calls.edges.groupby("caller", sort=False)
    callees = {int(str(caller)): group for caller, group in by_caller}
    stack: list[tuple[int, int, float, frozenset[int]]] = []
    for root, time, count in _roots(calls):
        if time >= floor:
            node = growth.add(0, labels[root], count, time)
            stack.append((root, node, time, frozenset([root])))
    while stack:
        function, node, time, path = stack.pop()
        if function not in callees or len(path) >= DEEPEST or total[function] <= 0:
            continue
        share, left = min(time / total[function], 1.0), time
        for callee, count, total_ns in _edges(callees[function]):
            part = min(total_ns * share, left)
            if callee not in path and part >= floor and part > 0:
                left -= part
                child = growth.add(node, labels[callee], round(count * share), part)
                stack.append((callee, child, part, path | {callee}))


def _edges(group: pd.DataFrame) -> list[tuple[int, int, float]]:
    """Callee, calls and total time of the edges of one caller, the longest first.

    Times of a cycle overlap, and the longest one holds the others: it is served first, until the
    caller's time is used up.
    """
    group = group.sort_values("total_ns", ascending=False, kind="stable")
    columns = (group["callee"].tolist(), group["calls"].tolist(), group["total_ns"].tolist())
    return list(zip(*columns, strict=True))


def _roots(calls: Calls) -> list[tuple[int, float, int]]:
    """Functions that were called from outside of the profile: their time and calls from there.

    Of a function that is called from inside too, that is what its edges leave of its total; of
    a recursive one, whose edges overlap, its total by the share of such calls.
    """
    functions, edges = calls.functions, calls.edges
    rows = range(len(functions))
    inside = edges.groupby("callee")[["calls", "total_ns"]].sum().reindex(rows, fill_value=0)
    outside = (functions["calls"] - inside["calls"]).to_numpy()
    total, primitive = functions["total_ns"].to_numpy(), functions["primitive_calls"].to_numpy()
    left = np.maximum(total - inside["total_ns"].to_numpy(), 0)
    by_share = total * np.minimum(outside / np.maximum(primitive, 1), 1)
    time = np.where(functions["calls"].to_numpy() > primitive, by_share, left)
    roots = np.flatnonzero(outside > 0).tolist()
    if not roots:  # nobody called from outside: begin with the longest
        longest = int(total.argmax())
        return [(longest, float(total[longest]), int(functions["calls"].iloc[longest]))]
    return [(row, float(time[row]), int(outside[row])) for row in roots]
