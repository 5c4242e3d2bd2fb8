"""Sampled stacks of a thread as slices, joined with the ops, lines and modules of exact times.

A function lasts from halfway before the first to halfway behind the last of the samples in a row
that found it, with these exceptions, for which exact times are known:

- An op, a line or a module that ran at only one of two samples bounds the change between them.
- What a line of a cell or a module called is another call in each run of these, and lies inside of
  them. But where they are too short to be found each time, a sample stands for others too.
- A signal that comes during a call of C is handled when that ends, and still finds it: so this
  stack lasted from the one to the other. A thread's next look comes when the call lets it, so that
  time without looks is that of the later one.
"""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import pandas as pd

from gpuprof_widgets.capture.stack_samplers import INTERVAL_NS
from gpuprof_widgets.trace.edit import NewSlice
from gpuprof_widgets.trace.model import Trace
from gpuprof_widgets.trace.schema import NONE, SAMPLED_LINES
from gpuprof_widgets.trace.stack_lanes import CATEGORY

_HALF = INTERVAL_NS // 2
LONGEST_GAP_NS = 2 * INTERVAL_NS
_MODULE_CALL = re.compile(r"torch[/\\]nn[/\\]modules[/\\]module\.py\(\d+\): _call_impl$")
_AROUND_MODULE_CALL = re.compile(r"torch[/\\]nn[/\\]modules[/\\]module\.py\(\d+\): _wrapped_call")


class Frame(NamedTuple):
    """A function as torch.profiler names it, and the line in it; 0 where that is a library's."""

    name: str
    line: int
    is_cells: bool = False


class Sample(NamedTuple):
    """A stack, outermost frame first, from a moment to another (ns of the trace).

    ``look``: the number of the look at all threads.
    """

    at: int
    until: int
    look: int
    stack: tuple[Frame, ...]


def slices_of_samples(
    samples: Sequence[Sample], track: int, exact: ExactSlices, run: tuple[int, int] | None
) -> list[NewSlice]:
    """Return a thread's functions as slices of that track.

    ``run``: start and end of the region of the run, on whose thread the outermost function lasts as
    long; None for other threads.
    """
    calls = _Calls(track, exact)
    first, last = samples[0], samples[-1]
    if run is not None:
        # It began and ended in the outermost function, and inside of the region.
        began, ended = run[0], run[1] - 1
        calls.enter(Sample(began, began, first.look, first.stack[:1]), began + 1)
        samples = [*samples, Sample(ended, ended, last.look, last.stack[:1])]
    else:
        calls.enter(first, first.at - _HALF)
        samples = samples[1:]
    for sample in samples:
        calls.go_on(sample)
    calls.end(run[1] if run is not None else last.until + _HALF)
    return calls.found


class ExactSlices:
    """The ops, lines and modules of a thread, by the moments at which they are open."""

    def __init__(self, trace: Trace, lane: int | None) -> None:
        tracks = trace.tracks
        of_thread = ((tracks["kind"] == "cpu") & (tracks["lane"] == lane)).to_numpy()
        self._rows = np.flatnonzero(of_thread[trace.slices["track"].to_numpy()])
        self._ts = trace.slices["ts"].to_numpy()
        self._ends = self._ts + trace.slices["dur"].to_numpy()
        self._parent = trace.slices["parent"].to_numpy()
        self._category = trace.slices["category"].to_numpy(object)
        self._line = trace.args.get("line", pd.Series(dtype=np.int64)).to_dict()
        self._starts = self._ts[self._rows].tolist()

    def open(self, at: int) -> list[int]:
        """Return the rows of the slices that are open at a moment, the outermost first."""
        place = bisect_right(self._starts, at) - 1
        row = int(self._rows[place]) if place >= 0 else NONE
        rows = []
        while row >= 0:
            if self._ends[row] > at:
                rows.append(row)
            row = int(self._parent[row])
        return rows[::-1]

    def start(self, row: int) -> int:
        return int(self._ts[row])

    def end(self, row: int) -> int:
        return int(self._ends[row])

    def line(self, row: int) -> int:
        """Return the number of a cell's line."""
        return int(self._line.get(row, NONE))

    def nothing_begins(self, t0: int, t1: int) -> bool:
        """Whether no slice begins from ``t0`` on until ``t1``, or there is no such time."""
        return bisect_left(self._starts, t0) >= bisect_left(self._starts, t1)

    def of_category(self, rows: Sequence[int], category: str) -> list[int]:
        """Return those of the rows that are of a category."""
        return [row for row in rows if self._category[row] == category]


class _Call:
    """A function that is open.

    ``within``: the row of the line or module inside of which it was called; ``around``: that of the
    module of whose call it is a part; -1 where there is none or that is not known. ``lines``: how
    long after its start each of its lines began, and which.
    """

    def __init__(self, frame: Frame, within: int, around: int) -> None:
        self.frame, self.within, self.around = frame, within, around
        self.start = 0
        self.lines: list[list[int]] = []

    def begin(self, start: int) -> None:
        self.start = start
        self.lines = [[0, self.frame.line]] if self.frame.line else []

    def is_same(self, other: _Call) -> bool:
        """Whether another sample may have found the same call."""
        pairs = (self.within, other.within), (self.around, other.around)
        known = all(one == another or NONE in (one, another) for one, another in pairs)
        return known and self.frame.name == other.frame.name

    def go_on(self, other: _Call, now: int) -> bool:
        """Go on as another sample found it; return whether it is in another line now."""
        self.within, self.around = max(self.within, other.within), max(self.around, other.around)
        line = other.frame.line
        if not self.lines or self.lines[-1][1] == line:
            return False
        self.lines.append([now - self.start, line])
        return True


class _Calls:
    """The open functions of a thread from sample to sample, and those that are ``found``."""

    def __init__(self, track: int, exact: ExactSlices) -> None:
        self.found: list[NewSlice] = []
        self._track, self._exact = track, exact
        self._open: list[_Call] = []
        self._before = Sample(0, 0, 0, ())
        self._rows: list[int] = []

    def enter(self, sample: Sample, start: int) -> None:
        """Begin with a sample, whose functions have been open from ``start`` on."""
        self._before, self._rows = sample, self._exact.open(sample.at)
        for call in _placed(sample.stack, self._rows, self._exact):
            call.begin(start)
            self._open.append(call)

    def go_on(self, sample: Sample) -> None:
        """Go on with the next sample."""
        before, at = self._before, sample.at
        if sample.look - before.look > 1:  # meanwhile the thread did not exist, or ran no Python
            self.end(before.until + _HALF)
            self.enter(sample, at - _HALF)
            return
        rows = self._exact.open(at)
        ended = next((self._exact.end(row) for row in self._rows if row not in rows), before.until)
        begun = next((self._exact.start(row) for row in rows if row not in self._rows), at)
        gap = at - before.until
        change = before.until + (gap // 2 if gap <= LONGEST_GAP_NS else _HALF)
        change = min(max(change, ended), max(begun, before.until))
        calls = _placed(sample.stack, rows, self._exact)
        same = 0
        for call, other in zip(self._open, calls, strict=False):
            if not call.is_same(other):
                break
            same += 1
            if call.go_on(other, change):
                break
        self._close(same, change)
        start = change
        for call in calls[same:]:
            if call.within >= 0 and self._is_known(call.within, start, before=True):
                start = max(start, self._exact.start(call.within) + 1)
            call.begin(start)
            self._open.append(call)
        self._before, self._rows = sample, rows

    def end(self, now: int) -> None:
        """End all functions."""
        self._close(0, now)

    def _close(self, down_to: int, now: int) -> None:
        end = now
        for call in self._open[down_to:]:
            if call.within >= 0 and self._is_known(call.within, end, before=False):
                end = min(end, self._exact.end(call.within))
            args = {SAMPLED_LINES: call.lines} if call.lines else {}
            dur = max(end - call.start, 0)
            self.found.append(
                NewSlice(call.start, dur, call.frame.name, CATEGORY, self._track, args)
            )
        del self._open[down_to:]

    def _is_known(self, within: int, change: int, *, before: bool) -> bool:
        """Whether what a line or a module called lies inside of it, and not at the change.

        Of those that are shorter than the time between samples only some are found, and each stands
        for others too, unless nothing else began in between.
        """
        start, end = self._exact.start(within), self._exact.end(within)
        between = (change, start) if before else (end, change)
        return end - start >= INTERVAL_NS or self._exact.nothing_begins(*between)


def _placed(stack: Sequence[Frame], rows: Sequence[int], exact: ExactSlices) -> list[_Call]:
    """Return the functions of a stack with the open lines and modules that they belong to.

    Every call of a module is one function of torch and one slice, if all modules are recorded.
    """
    modules = exact.of_category(rows, "module")
    calls = [depth for depth, frame in enumerate(stack) if _MODULE_CALL.search(frame.name)]
    if not len(modules) <= len(calls) <= len(modules) + 1:  # the slice may be about to begin
        modules = []
    around = {}
    for depth, row in zip(calls, modules, strict=False):
        around[depth] = row
        if depth and _AROUND_MODULE_CALL.search(stack[depth - 1].name):
            around[depth - 1] = row
    lines = exact.of_category(rows, "cell_line")
    placed, inside, first = list[_Call](), NONE, 0
    for depth, frame in enumerate(stack):
        placed.append(_Call(frame, inside, around.get(depth, NONE)))
        numbers = [exact.line(row) if frame.is_cells else NONE for row in lines[first:]]
        at = max((line for line in numbers if 0 <= line <= frame.line), default=NONE)
        if at >= 0:  # its own statement, behind the heads of loops around that
            first += numbers.index(at) + 1
            inside = max(inside, lines[first - 1])
        if depth in around and depth in calls:
            inside = max(inside, around[depth])
    return placed
