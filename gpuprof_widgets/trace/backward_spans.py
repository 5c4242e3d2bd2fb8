"""The backward pass of each module, from the links between backward and forward ops.

This needs no hooks in the pass: autograd runs the backward ops of a module one after the other, and
each is linked to its forward op, which lies in the module's forward.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from gpuprof_widgets.trace import links
from gpuprof_widgets.trace.arrays import Mask
from gpuprof_widgets.trace.edit import NewSlice
from gpuprof_widgets.trace.model import Trace
from gpuprof_widgets.trace.owners import causes, is_engine
from gpuprof_widgets.trace.schema import NONE, OP_CATEGORIES, REGION_CATEGORIES


def backward_spans(trace: Trace) -> list[NewSlice]:
    """Return a ``module_backward`` slice, with the module's name, per run of its backward ops.

    A run is consecutive backward ops on a thread whose forward ops lie in the same forward of the
    module; spans nest as the forwards do. Ops that the engine runs between and after them
    (`AccumulateGrad`) belong to the spans open then. All spans end where another op comes or
    another pass begins, so that no span leaves the slice in which its ops lie.
    """
    modules = (trace.slices["category"] == "module").to_numpy()
    backward = trace.slices["forward"].to_numpy() >= 0
    if not modules.any() or not backward.any():
        return []
    around = _Around(trace, modules, backward)
    spans = [span for rows in _passes(trace, backward) for span in _spans(rows, around)]
    spans.sort(key=lambda span: span.depth)
    args = {key: trace.args[key].to_dict() for key in ("class", "root") if key in trace.args}
    names = trace.index.names_of(np.array([span.module for span in spans], np.int64))
    return [
        NewSlice(
            span.start,
            span.end - span.start,
            str(name),
            "module_backward",
            span.track,
            {key: values.get(span.module) for key, values in args.items()},
        )
        for span, name in zip(spans, names, strict=True)
    ]


@dataclass
class _Span:
    """A run of backward ops of the module slice ``module``; times in ns."""

    module: int
    track: int
    depth: int
    start: int
    end: int


def _spans(rows: list[int], around: _Around) -> Iterator[_Span]:
    """Yield the spans of the backward ops and the engine's slices of one pass, in order."""
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
    """Finds the modules in whose forward a backward op's forward op ran, outermost first."""

    def __init__(self, trace: Trace, modules: Mask, backward: Mask) -> None:
        slices = trace.slices
        self._modules, self._backward = modules, backward
        self._forward = slices["forward"].to_numpy()
        self._container = links.nearest_ancestor(slices["parent"].to_numpy(), backward)
        self.ts, self.end = slices["ts"].to_numpy(), trace.index.end
        self.track = slices["track"].to_numpy()
        self._marks = modules | backward
        self._next = links.nearest_ancestor(causes(slices), self._marks)

    def path(self, row: int) -> tuple[int, ...] | None:
        """Return the modules of a backward op, outermost first; None for the engine's other slices.

        Within a backward op that repeats a forward (checkpointing), only the modules of that count.
        A module that has not ended when the op begins holds the pass itself, and does not count.
        """
        if not self._backward[row]:
            return None
        container, modules = int(self._container[row]), []
        at = int(self._forward[row])
        at = at if self._marks[at] else int(self._next[at])
        while at >= 0 and at != container:
            if self._modules[at] and self.end[at] <= self.ts[row]:
                modules.append(at)
            at = int(self._next[at])
        return tuple(reversed(modules))


def _passes(trace: Trace, backward: Mask) -> Iterator[list[int]]:
    """Yield runs of consecutive backward ops and engine's slices within the same slice."""
    slices, end = trace.slices, trace.index.end
    names = ("ts", "parent", "forward", "sequence", "forward_thread")
    ts, parent, forward, sequence, thread = (slices[name].to_numpy() for name in names)
    above = links.nearest_ancestor(parent, backward)
    # torch marks a backward op and the engine's slice around it with the same forward op.
    outer = backward & ((above < 0) | (forward[above] != forward))
    belongs = outer | (is_engine(slices["name"]) & ~backward)
    breaks = slices["category"].isin([*OP_CATEGORIES, *REGION_CATEGORIES]).to_numpy()
    group = np.where(parent >= 0, parent, -2 - slices["track"].to_numpy())
    rows = np.flatnonzero(np.isin(group, group[outer]) & (belongs | breaks))

    def begins_anew(last: int, row: int) -> bool:  # in a pass, a thread's sequence numbers fall
        rises = thread[row] == thread[last] and sequence[row] > sequence[last]
        return bool(rises or ts[forward[row]] >= end[last])

    run: list[int] = []
    last = NONE  # the latest backward op of this run
    for row in rows[np.argsort(group[rows], kind="stable")].tolist():
        if run and (
            group[row] != group[run[-1]]
            or not belongs[row]
            or (last >= 0 and outer[row] and begins_anew(last, row))
        ):
            yield run
            run, last = [], NONE
        if belongs[row]:
            run.append(row)
            last = row if outer[row] else last
    if run:
        yield run
