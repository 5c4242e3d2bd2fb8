"""The backward pass of each module, from the links between backward and forward ops.

Nothing has to be hooked into the pass for it: autograd runs the backward ops of a module one after
the other, and each knows its forward op, which lies in the module's forward.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpuprof_widgets.trace import links
from gpuprof_widgets.trace.edit import NewSlice
from gpuprof_widgets.trace.model import Trace
from gpuprof_widgets.trace.owners import causes, is_engine
from gpuprof_widgets.trace.schema import NONE, OP_CATEGORIES, REGION_CATEGORIES

Rows = NDArray[np.int32]
Mask = NDArray[np.bool_]


def backward_spans(trace: Trace) -> list[NewSlice]:
    """A ``module_backward`` slice per module and stretch of its backward ops, with its name.

    On a thread, backward ops that follow one another and whose forward ops lie in the same forward
    of a module are in one span, and spans are nested as the forwards are. What the engine runs
    between and after them (`AccumulateGrad`) belongs to the spans that are open then. All end where
    another op comes or another pass begins, so that no span leaves the slice its ops lie in.
    """
    modules = (trace.slices["category"] == "module").to_numpy()
    backward = trace.slices["forward"].to_numpy() >= 0
    if not modules.any() or not backward.any():
        return []
    around = _Around(trace, modules, backward)
    spans = [span for rows in _Passes(trace, backward) for span in _spans(rows, around)]
    return [_as_slice(trace, span) for span in sorted(spans, key=lambda span: span.depth)]


@dataclass
class _Span:
    """A stretch of the backward of the module slice ``module``; its times are ns."""

    module: int
    track: int
    depth: int
    start: int
    end: int


def _spans(rows: list[int], around: _Around) -> Iterator[_Span]:
    """The spans of the backward ops and engine's slices of one pass, in their order."""
    running: list[_Span] = []
    for row in rows:
        path = around.path(row)
        if path is not None:
            same = 0
            while same < min(len(path), len(running)) and running[same].module == path[same]:
                same += 1
            yield from running[same:]
            running[same:] = [
                _Span(module, int(around.track[row]), depth, int(around.ts[row]), NONE)
                for depth, module in enumerate(path[same:], start=same)
            ]
        for span in running:
            span.end = max(span.end, int(around.end[row]))
    yield from running


class _Around:
    """The modules in whose forward a backward op's forward op ran, the outermost first."""

    def __init__(self, trace: Trace, modules: Mask, backward: Mask) -> None:
        slices = trace.slices
        self._modules, self._backward = modules, backward
        self._forward = slices["forward"].to_numpy()
        self._container = links.nearest_ancestor(slices["parent"].to_numpy(), backward)
        self.ts, self.end = slices["ts"].to_numpy(), _ends(trace)
        self.track = slices["track"].to_numpy()
        self._marks = modules | backward
        self._next = links.nearest_ancestor(causes(slices), self._marks)

    def path(self, row: int) -> tuple[int, ...] | None:
        """None for what the engine runs beside the backward ops.

        Within a backward op that runs a forward anew (checkpointing) only the modules that it ran.
        A module that has not ended by then holds the pass itself.
        """
        if not self._backward[row]:
            return None
        container, found = int(self._container[row]), []
        at = int(self._forward[row])
        at = at if self._marks[at] else int(self._next[at])
        while at >= 0 and at != container:
            if self._modules[at] and self.end[at] <= self.ts[row]:
                found.append(at)
            at = int(self._next[at])
        return tuple(reversed(found))


class _Passes:
    """Runs of backward ops and engine's slices that follow one another in the same slice."""

    def __init__(self, trace: Trace, backward: Mask) -> None:
        slices = trace.slices
        parent = slices["parent"].to_numpy()
        forward = slices["forward"].to_numpy()
        above = links.nearest_ancestor(parent, backward)
        # torch marks a backward op and the engine's slice around it with the same forward op.
        self._outer = backward & ((above < 0) | (forward[above] != forward))
        engine = is_engine(slices["name"]) & ~backward
        breaks = slices["category"].isin([*OP_CATEGORIES, *REGION_CATEGORIES]).to_numpy()
        group = np.where(parent >= 0, parent, -2 - slices["track"].to_numpy())
        within = np.isin(group, group[self._outer])
        rows = np.flatnonzero(within & (self._outer | engine | breaks))
        self._rows = rows[np.argsort(group[rows], kind="stable")]
        self._group, self._belongs = group, self._outer | engine
        self._sequence = slices["sequence"].to_numpy()
        self._thread = slices["forward_thread"].to_numpy()
        self._ts, self._end, self._forward = slices["ts"].to_numpy(), _ends(trace), forward

    def __iter__(self) -> Iterator[list[int]]:
        one: list[int] = []
        last = NONE  # the latest backward op of this pass
        for row in self._rows.tolist():
            if one and (
                self._group[row] != self._group[one[-1]]
                or not self._belongs[row]
                or (last >= 0 and self._outer[row] and self._begins_anew(last, row))
            ):
                yield one
                one, last = [], NONE
            if self._belongs[row]:
                one.append(row)
                last = row if self._outer[row] else last
        if one:
            yield one

    def _begins_anew(self, last: int, row: int) -> bool:
        """Within a pass the engine takes the ops of a thread by falling sequence number."""
        same_thread = self._thread[row] == self._thread[last]
        rises = same_thread and self._sequence[row] > self._sequence[last]
        return bool(rises or self._ts[self._forward[row]] >= self._end[last])


def _ends(trace: Trace) -> NDArray[np.int64]:
    ends: NDArray[np.int64] = (trace.slices["ts"] + trace.slices["dur"]).to_numpy()
    return ends


def _as_slice(trace: Trace, span: _Span) -> NewSlice:
    args: dict[str, Any] = {
        key: trace.args[key].get(span.module) for key in ("class", "root") if key in trace.args
    }
    name = str(trace.slices["name"].iloc[span.module])
    return NewSlice(span.start, span.end - span.start, name, "module_backward", span.track, args)
