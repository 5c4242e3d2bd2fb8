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
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from gpuprof_widgets.capture.stack_samplers import INTERVAL_NS
from gpuprof_widgets.trace import links
from gpuprof_widgets.trace.edit import NewSlice
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
    """A stack, outermost frame first, at a moment (ns of the trace) and up to another.

    ``look`` and ``last_look``: the numbers of the first and the last look at all threads.
    """

    at: int
    until: int
    look: int
    last_look: int
    stack: tuple[Frame, ...]


class Place(NamedTuple):
    """Rows of the innermost long slice at a moment, and of the innermost line in it; -1: none."""

    long: int
    line: int


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


def slices_of_samples(
    samples: Sequence[Sample],
    track: int,
    exact: ExactSlices,
    region: tuple[int, int],
    *,
    is_run: bool,
) -> list[NewSlice]:
    """Return a thread's functions as slices of that track, within the region of the run.

    The thread of the run (``is_run``) had functions from its start to its end, others from their
    first to their last look.
    """
    first_ns, last_ns = region[0] + 1, region[1]  # functions begin inside of the region
    if is_run:
        return _slices(_pieces(samples, exact, first_ns, last_ns), track, exact)
    slices = []
    ends = [
        n for n, (one, other) in enumerate(pairwise(samples), 1) if other.look - one.last_look > 1
    ]
    for first, last in pairwise([0, *ends, len(samples)]):  # of each time it was at every look
        of_spell = samples[first:last]
        begin = max(of_spell[0].at - INTERVAL_NS // 2, first_ns)
        end = min(of_spell[-1].until + INTERVAL_NS // 2, last_ns)
        slices += _slices(_pieces(of_spell, exact, begin, end), track, exact)
    return slices


class ExactSlices:
    """The ops, lines and modules of a thread, by the moments at which they are open."""

    def __init__(self, trace: Trace) -> None:
        slices, tracks = trace.slices, trace.tracks
        lane_of_ops = tracks["lane"].where(tracks["kind"] == "cpu", NONE).to_numpy()
        self._lane = lane_of_ops[slices["track"].to_numpy()]
        self._rows = self._starts = np.array([], dtype=np.int64)
        self._ts = slices["ts"].to_numpy()
        self._ends = self._ts + slices["dur"].to_numpy()
        self._parent = slices["parent"].to_numpy()
        self._category = slices["category"].to_numpy(object)
        self._name = slices["name"].to_numpy(object)
        self._line = trace.args.get("line", pd.Series(dtype=np.int64)).to_dict()
        is_long = self._ends - self._ts >= LONG_NS
        is_line = self._category == "cell_line"
        self._is_op, self._changes = self._category == "cpu_op", is_long | is_line
        self._long = np.append(links.itself_or_ancestor(self._parent, is_long), NONE)
        line = np.append(links.itself_or_ancestor(self._parent, is_line), NONE)
        self._short_line = np.where(line > self._long, line, NONE)  # what is inside comes later

    def of_lane(self, lane: int | None) -> ExactSlices:
        """Return those of the thread of a lane; none for None."""
        one = copy(self)
        one._rows = self._rows if lane is None else np.flatnonzero(self._lane == lane)
        one._starts = self._ts[one._rows]
        return one

    def ops(self, at: int) -> list[int]:
        """Return the rows of the ops that are open at a moment, the innermost first."""
        return [row for row in self.open(at)[::-1] if self._is_op[row]]

    def name(self, row: int) -> str:
        return str(self._name[row])

    def open(self, at: int) -> list[int]:
        """Return the rows of the slices that are open at a moment, the outermost first."""
        place = int(np.searchsorted(self._starts, at, side="right")) - 1
        row = int(self._rows[place]) if place >= 0 else NONE
        rows = []
        while row >= 0:
            if self._ends[row] > at:
                rows.append(row)
            row = int(self._parent[row])
        return rows[::-1]

    def places(self, moments: Sequence[int]) -> list[Place]:
        """Return where these moments are."""
        times = np.array(moments, np.int64)
        open_at = links.innermost_open(self._starts, self._ends[self._rows], times)
        rows = np.append(self._rows, NONE)[open_at]
        pairs = zip(self._long[rows].tolist(), self._short_line[rows].tolist(), strict=True)
        return [Place(long, line) for long, line in pairs]

    def changes(self, begin: int, end: int) -> list[int]:
        """Return both moments, and all moments between them at which the place may change."""
        rows = self._rows[self._changes[self._rows]]
        edges = distinct(self._ts[rows], self._ends[rows], [begin, end])
        inside: list[int] = edges[(edges >= begin) & (edges <= end)].tolist()
        return inside

    def start(self, row: int) -> int:
        return int(self._ts[row])

    def end(self, row: int) -> int:
        return int(self._ends[row])

    def around(self, row: int) -> set[int]:
        """Return the rows of a slice and of all around it."""
        rows = set()
        while row >= 0:
            rows.add(row)
            row = int(self._parent[row])
        return rows

    def of_category(self, rows: Sequence[int], category: str) -> list[int]:
        """Return those of the rows that are of a category."""
        return [row for row in rows if self._category[row] == category]

    def line(self, row: int) -> int:
        """Return the number of a cell's line."""
        return int(self._line.get(row, NONE))


def _pieces(samples: Sequence[Sample], exact: ExactSlices, begin: int, end: int) -> list[Piece]:
    """Return for all of the time which functions were open, by the rule at the top."""

    def key(place: Place) -> tuple[int, int]:
        return place.long, exact.line(place.line)

    moments: defaultdict[Any, list[_Moment]] = defaultdict(list)
    at = sorted({(at, number) for number, one in enumerate(samples) for at in one[:2]})
    placed = [_placed(sample.stack, exact.open(sample.at), exact) for sample in samples]
    for (moment, number), place in zip(at, exact.places([one for one, _ in at]), strict=True):
        moments[key(place)].append(_Moment(moment, placed[number], place.line))
    own: defaultdict[Any, list[_Stretch]] = defaultdict(list)
    changes = exact.changes(begin, end)
    for (start, stop), place in zip(pairwise(changes), exact.places(changes[:-1]), strict=True):
        own[key(place)].append(_Stretch(start, stop, place.line))
    pieces: list[Piece] = []
    for (long, line), stretches in own.items():
        if found := moments.get((long, line)):
            pieces += _shared(stretches, found)
        else:
            pieces += [
                Piece(start, stop, _around(long, start, samples, placed, exact))
                for start, stop, _ in stretches
            ]
    return sorted(pieces, key=lambda piece: piece.start)


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
    is_next = place < len(samples) and (row < 0 or samples[place].at < exact.end(row))
    calls = placed[place if is_next or not place else place - 1]
    rows = exact.around(row)
    return list(takewhile(lambda call: call.within < 0 or call.within in rows, calls))


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
            if call.within >= 0 and exact.start(call.within) == start:
                start += 1  # inside of the line or module, whose times are exact
            lines = [[0, call.frame.line]] if call.frame.line else []
            opened.append((call, start, lines))
    close(0, pieces[-1].end if pieces else 0)
    return found


def _placed(stack: Sequence[Frame], rows: Sequence[int], exact: ExactSlices) -> list[Call]:
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
    before, after = (
        [exact.line(row) for row in exact.of_category(exact.open(moment), "cell_line")]
        for moment in (at, read)
    )
    if before == after:
        return tuple(stack)
    pairs = zip(before, after, strict=False)
    same = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))
    owners = _owners(stack, after)
    if same < len(owners):
        return tuple(stack[: owners[same] + 1])
    # No other statement has begun; the one that has ended may be of the next function.
    around = owners[-1] if owners else -1
    inner = (depth for depth, one in enumerate(stack) if one.is_cells and depth > around)
    depth = next(inner, around)
    return tuple(stack[: depth + 1]) if depth >= 0 else tuple(stack)
