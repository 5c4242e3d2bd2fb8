"""cProfile's callers and callees as a graph: what a function's own time means for those above."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from gpuprof_widgets.trace.model import Calls

Amounts = npt.NDArray[np.float64]
Graph = list[list[int]]


def carried_up(calls: Calls, own: Amounts) -> Amounts:
    """Per function its own amounts and those of everything below it, an estimate.

    ``own`` has a row per function and any number of columns. What a function has is its callers'
    by the share of each edge's total time. Functions that call each other in a circle are one
    function to the outside; inside, each has what it got itself, or of all that the circle has
    the share of its total time.
    """
    below = own.astype(np.float64)
    total = calls.functions["total_ns"].to_numpy(np.float64)
    graph = _Graph(calls)
    for circle in circles(graph.callees):
        whole = below[circle].sum(axis=0)
        for caller, share in graph.shares(circle):
            below[caller] += share * whole
        if len(circle) > 1:
            part = total[circle] / max(total[circle].max(), 1.0)
            shared = part[:, None] * whole
            larger = shared.sum(axis=1) > below[circle].sum(axis=1)
            below[circle] = np.where(larger[:, None], shared, below[circle])
    return below


class _Graph:
    """The edges of cProfile between different functions, and the calls from outside of them."""

    def __init__(self, calls: Calls) -> None:
        functions, edges = calls.functions, calls.edges
        size = len(functions)
        caller, callee = edges["caller"].to_numpy(), edges["callee"].to_numpy()
        inside = np.bincount(callee, edges["calls"].to_numpy(), size)
        self._calls = functions["calls"].to_numpy(np.float64)
        self._from_outside = self._calls - inside
        self._primitive = functions["primitive_calls"].to_numpy(np.float64)
        self._total = functions["total_ns"].to_numpy(np.float64)
        self.callees: Graph = [[] for _ in range(size)]
        self._callers: list[list[tuple[int, float, int]]] = [[] for _ in range(size)]
        times, counts = edges["total_ns"].tolist(), edges["calls"].tolist()
        ends = zip(caller.tolist(), callee.tolist(), times, counts, strict=True)
        for above, below, time, count in ends:
            if above != below:
                self.callees[above].append(below)
                self._callers[below].append((above, float(time), count))

    def shares(self, circle: list[int]) -> list[tuple[int, float]]:
        """The callers of these functions that are none of them, and the share of each."""
        members = set(circle)
        entering = [
            edge
            for function in circle
            for edge in self._callers[function]
            if edge[0] not in members
        ]
        time = sum(edge[1] for edge in entering)
        whole = time + self._outside_ns(circle, time)
        if whole > 0:
            return [(caller, own / whole) for caller, own, _ in entering]
        count = sum(edge[2] for edge in entering)
        return [(caller, number / count) for caller, _, number in entering if count]

    def _outside_ns(self, circle: list[int], entered_ns: float) -> float:
        """Time on behalf of nobody in the table: of calls that no edge has.

        That is what the edges leave of a function's total; of functions that call themselves,
        whose edges overlap, their total by the share of such calls.
        """
        outside = [function for function in circle if self._from_outside[function] > 0]
        if len(circle) == 1 and self._calls[circle[0]] == self._primitive[circle[0]]:
            return sum(max(float(self._total[f]) - entered_ns, 0.0) for f in outside)
        shares = [self._from_outside[f] / max(self._primitive[f], 1) for f in outside]
        return float(
            sum(self._total[f] * min(s, 1.0) for f, s in zip(outside, shares, strict=True))
        )


def circles(callees: Graph) -> Graph:
    """The functions in groups that call each other in a circle, callees before their callers.

    Most groups are one function. (Strongly connected components, after Kosaraju.)
    """
    callers: Graph = [[] for _ in callees]
    for function, called in enumerate(callees):
        for callee in called:
            callers[callee].append(function)
    seen = [False] * len(callees)
    order = [function for root in range(len(callees)) for function in _walk(root, callees, seen)]
    seen = [False] * len(callees)
    return [group for root in reversed(order) if (group := _walk(root, callers, seen))][::-1]


def _walk(root: int, graph: Graph, seen: list[bool]) -> list[int]:
    """What can be reached and was not seen yet, each after everything found through it."""
    found: list[int] = []
    path = [] if seen[root] else [(root, iter(graph[root]))]
    seen[root] = True
    while path:
        function, rest = path[-1]
        new = next((other for other in rest if not seen[other]), None)
        if new is None:
            found.append(function)
            path.pop()
        else:
            seen[new] = True
            path.append((new, iter(graph[new])))
    return found
