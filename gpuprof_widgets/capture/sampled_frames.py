"""Sampled stacks of a thread as slices, joined with the ops, lines and modules of exact times.

A sample stands for the time around it, to the middle between it and its neighbours. Ops, lines and
modules that last longer than the time between two samples are found each time, and their times are
exact. So each of these has its own samples: what was found inside of it stands for the time that is
its own, without long ones within it, and for no other. Of shorter lines those of one number have
their samples together. (To move each end of a function to that of the op beside it would give too
much time to what has long ops: what runs between them is found now and then, and has to stand for
the times when it is not.)
"""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Iterator, Sequence
from copy import copy
from itertools import accumulate, pairwise, takewhile
from typing import NamedTuple

import numpy as np
import pandas as pd

from gpuprof_widgets.capture.stack_samplers import INTERVAL_NS
from gpuprof_widgets.trace import links
from gpuprof_widgets.trace.edit import NewSlice
from gpuprof_widgets.trace.index import take
from gpuprof_widgets.trace.intervals import distinct
from gpuprof_widgets.trace.model import Trace
from gpuprof_widgets.trace.schema import NONE, SAMPLED_LINES

LONG_NS = 2 * INTERVAL_NS
"""Duration from which on an op, a line or a module is long: no two samples are further apart."""
_MODULE_CALL = re.compile(r"torch[/\\]nn[/\\]modules[/\\]module\.py\(\d+\): _call_impl$")
_AROUND_MODULE_CALL = re.compile(r"torch[/\\]nn[/\\]modules[/\\]module\.py\(\d+\): _wrapped_call")


class Frame(NamedTuple):
    """A function as torch.profiler names it, and the line in it; 0 where that is a library's."""

    name: str
    line: int
    is_cells: bool = False


class Sample(NamedTuple):
    """A stack, outermost frame first, at a moment (ns of the trace) and up to another."""

    at: int
    until: int
    stack: tuple[Frame, ...]


Place = tuple[int, int]
"""The row of the innermost long slice at a moment, and the number of the innermost line in it."""


class Piece(NamedTuple):
    """A stretch of time (ns) and the functions that were open in it, outermost first."""

    start: int
    end: int
    calls: Sequence[Call]


class Call(NamedTuple):
    """A function in a sample.

    ``within``: the row of the line or module inside of which it was called; ``around``: that of the
    module of whose call it is a part; -1 where there is none or that is not known.
    """

    frame: Frame
    within: int
    around: int

    def is_same(self, other: Call) -> bool:
        """Whether another sample may have found the same call."""
        pairs = (self.within, other.within), (self.around, other.around)
        known = all(one == another or NONE in (one, another) for one, another in pairs)
        return known and self.frame.name == other.frame.name


class ExactSlices:
    """The ops, lines and modules of a thread, by the moments at which they are open."""

    def __init__(self, trace: Trace) -> None:
        slices, tracks, index = trace.slices, trace.tracks, trace.index
        lane_of_ops = tracks["lane"].where(tracks["kind"] == "cpu", NONE).to_numpy()
        self._lane = lane_of_ops[index.track]
        self._rows = self._starts = np.array([], dtype=np.int64)
        self.ts, self.ends, self.parent = index.ts, index.end, index.parent
        self.names = slices["name"].to_numpy(object)
        self._category = slices["category"].to_numpy(object)
        self._number = trace.args.get("line", pd.Series(dtype=np.int64)).to_dict()
        is_long, is_line = index.dur >= LONG_NS, index.in_category("cell_line")
        self._changes = is_long | is_line
        self._long = links.itself_or_ancestor(self.parent, is_long)
        line = links.itself_or_ancestor(self.parent, is_line)
        self._short_line = np.where(line > self._long, line, NONE)  # what is inside comes later

    def of_lane(self, lane: int | None) -> ExactSlices:
        """Return those of the thread of a lane; none for None."""
        one = copy(self)
        one._rows = self._rows if lane is None else np.flatnonzero(self._lane == lane)
        one._starts = self.ts[one._rows]
        return one

    def open(self, at: int, category: str) -> list[int]:
        """Return the rows of a category that are open at a moment, the outermost first."""
        place = int(np.searchsorted(self._starts, at, side="right")) - 1
        row = int(self._rows[place]) if place >= 0 else NONE
        rows = []
        while row >= 0:
            if self.ends[row] > at and self._category[row] == category:
                rows.append(row)
            row = int(self.parent[row])
        return rows[::-1]

    def open_lines(self, at: int) -> list[int]:
        """Return the numbers of the lines that are open at a moment, the outermost first."""
        return [self.line(row) for row in self.open(at, "cell_line")]

    def places(self, moments: Sequence[int]) -> list[tuple[Place, int]]:
        """Return the place of each moment, and the row of the innermost line in it; -1: none."""
        times = np.array(moments, np.int64)
        rows = take(self._rows, links.innermost_open(self._starts, self.ends[self._rows], times))
        longs, lines = take(self._long, rows).tolist(), take(self._short_line, rows).tolist()
        return [((long, self.line(line)), line) for long, line in zip(longs, lines, strict=True)]

    def changes(self, begin: int, end: int) -> list[int]:
        """Return both moments, and all moments between them at which the place may change."""
        rows = self._rows[self._changes[self._rows]]
        edges = distinct(self.ts[rows], self.ends[rows], [begin, end])
        inside: list[int] = edges[(edges >= begin) & (edges <= end)].tolist()
        return inside

    def line(self, row: int) -> int:
        """Return the number of a cell's line."""
        return int(self._number.get(row, NONE))


def slices_of_samples(
    samples: Sequence[Sample], track: int, exact: ExactSlices, begin: int, end: int
) -> list[NewSlice]:
    """Return a thread's functions from one moment to another as slices of that track."""
    moments: defaultdict[Place, list[_Moment]] = defaultdict(list)
    at = sorted({(at, number) for number, one in enumerate(samples) for at in one[:2]})
    placed = [_placed(sample, exact) for sample in samples]
    places = exact.places([moment for moment, _ in at])
    for (moment, number), (place, line) in zip(at, places, strict=True):
        moments[place].append(_Moment(moment, placed[number], line))
    own: defaultdict[Place, list[_Stretch]] = defaultdict(list)
    changes = exact.changes(begin, end)
    places = exact.places(changes[:-1])
    for (start, stop), (place, line) in zip(pairwise(changes), places, strict=True):
        own[place].append(_Stretch(start, stop, line))
    pieces: list[Piece] = []
    for place, stretches in own.items():
        if place in moments:
            pieces += _shared(stretches, moments[place])
        else:
            pieces += [
                Piece(start, stop, _around(place[0], start, samples, placed, exact))
                for start, stop, _ in stretches
            ]
    return _slices(sorted(pieces, key=lambda piece: piece.start), track, exact)


class _Moment(NamedTuple):
    """A moment of a sample, and the row of the short line in which it was (-1: none)."""

    at: int
    calls: Sequence[Call]
    line: int


class _Stretch(NamedTuple):
    """A stretch of a place's time, and the row of the short line that it is of (-1: none)."""

    start: int
    stop: int
    line: int


def _around(
    row: int,
    at: int,
    samples: Sequence[Sample],
    placed: Sequence[Sequence[Call]],
    exact: ExactSlices,
) -> list[Call]:
    """Return the functions around a long slice, or in it, where no sample came at its own time.

    Another sample of the slice shows them, except for functions that were called further inside.
    """
    place = bisect_left(samples, at, key=lambda sample: sample.at)
    is_next = place < len(samples) and (row < 0 or samples[place].at < exact.ends[row])
    calls = placed[place if is_next or not place else place - 1]
    rows = {NONE}
    while row >= 0:
        rows.add(row)
        row = int(exact.parent[row])
    return list(takewhile(lambda call: call.within in rows, calls))


def _shared(stretches: Sequence[_Stretch], found: Sequence[_Moment]) -> Iterator[Piece]:
    """Divide the time of a place among its samples, each to the middle to its neighbours.

    The middle is by the time of this place that is between them.
    """
    starts = [stretch.start for stretch in stretches]
    before = list(accumulate((stop - start for start, stop, _ in stretches), initial=0))

    def own_time(at: int) -> int:
        place = max(bisect_right(starts, at) - 1, 0)
        return min(before[place] + max(at - starts[place], 0), before[place + 1])

    at = [own_time(moment.at) for moment in found]
    changes = [0, *((one + other) // 2 for one, other in pairwise(at)), before[-1]]
    place = 0
    for (start, stop), moment in zip(pairwise(changes), found, strict=True):
        while start < stop:
            while before[place + 1] <= start:
                place += 1
            stretch, until = stretches[place], min(stop, before[place + 1])
            shift = stretch.start - before[place]
            yield Piece(start + shift, until + shift, _in_line(moment, stretch.line))
            start = until


def _in_line(moment: _Moment, line: int) -> Sequence[Call]:
    """Return the functions of a sample as those of another run of its line."""
    if NONE in (line, moment.line):
        return moment.calls
    return [
        call._replace(within=line) if call.within == moment.line else call for call in moment.calls
    ]


def _slices(pieces: Sequence[Piece], track: int, exact: ExactSlices) -> list[NewSlice]:
    """Turn pieces in order of time into slices; a function that goes on is one."""
    found: list[NewSlice] = []
    opened: list[tuple[Call, int, list[list[int]]]] = []

    def close(down_to: int, now: int) -> None:
        for call, start, lines in opened[down_to:]:
            args = {SAMPLED_LINES: lines} if lines else {}
            dur = max(now - start, 0)
            found.append(NewSlice(start, dur, call.frame.name, "python_function", track, args))
        del opened[down_to:]

    for piece in pieces:
        same = 0
        for (call, start, lines), other in zip(opened, piece.calls, strict=False):
            if not call.is_same(other):
                break
            same += 1
            line = other.frame.line
            if lines and lines[-1][1] != line:
                lines.append([piece.start - start, line])
                break
        close(same, piece.start)
        start = piece.start
        for call in piece.calls[same:]:
            if call.within >= 0 and exact.ts[call.within] == start:
                start += 1  # inside of the line or module, whose times are exact
            lines = [[0, call.frame.line]] if call.frame.line else []
            opened.append((call, start, lines))
    close(0, pieces[-1].end if pieces else 0)
    return found


def _placed(sample: Sample, exact: ExactSlices) -> list[Call]:
    """Return the functions of a sample with the open lines and modules that they belong to.

    Every call of a module is one function of torch and one slice, if all modules are recorded.
    """
    stack, modules = sample.stack, exact.open(sample.at, "module")
    calls = [depth for depth, frame in enumerate(stack) if _MODULE_CALL.search(frame.name)]
    if not len(modules) <= len(calls) <= len(modules) + 1:  # the slice may be about to begin
        modules = []
    around = {}
    for depth, row in zip(calls, modules, strict=False):
        around[depth] = row
        if depth and _AROUND_MODULE_CALL.search(stack[depth - 1].name):
            around[depth - 1] = row
    lines = exact.open(sample.at, "cell_line")
    owners = _owners(stack, [exact.line(row) for row in lines])
    placed, inside = list[Call](), NONE
    for depth, frame in enumerate(stack):
        placed.append(Call(frame, inside, around.get(depth, NONE)))
        own = [row for row, owner in zip(lines, owners, strict=False) if owner == depth]
        inside = max([inside, *own])
        if depth in around and depth in calls:
            inside = max(inside, around[depth])
    return placed


def _owners(stack: Sequence[Frame], lines: Sequence[int]) -> list[int]:
    """Return the depths of the frames that open lines are of, as far as they fit the stack."""
    owners: list[int] = []
    for depth, frame in enumerate(stack):
        number = 0  # its own statement is behind the heads of the loops around that
        while frame.is_cells and len(owners) < len(lines):
            line = lines[len(owners)]
            if not number < line <= frame.line:
                break
            number = line
            owners.append(depth)
    return owners


def without_later_calls(
    stack: Sequence[Frame], at: int, read: int, exact: ExactSlices
) -> tuple[Frame, ...]:
    """Return a stack that was ``read`` after a moment without what a later statement called."""
    before, after = exact.open_lines(at), exact.open_lines(read)
    if before == after:
        return tuple(stack)
    pairs = zip(before, after, strict=False)
    same = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))
    owners = _owners(stack, after)
    if same < len(owners):
        return tuple(stack[: owners[same] + 1])
    # No other statement has begun; the one that has ended may be of the next function.
    around = owners[-1] if owners else NONE
    inner = (depth for depth, one in enumerate(stack) if one.is_cells and depth > around)
    depth = next(inner, around)
    return tuple(stack[: depth + 1]) if depth >= 0 else tuple(stack)
