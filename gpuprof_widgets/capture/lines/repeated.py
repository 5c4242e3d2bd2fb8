"""Loops and functions that take a moment and run again and again: marked at first, then plain.

A region costs most of a microsecond, which would distort a loop of shorter rounds. So a `for`
statement gets a second body without regions, in which it goes on (`Loop`), and a function that is
called as often gets its plain code (`Calls`). The time of their lines then counts for the line
around them, as beyond the limit of recorded runs. A loop over a single statement loses nothing: all
its further rounds are one region of that line.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Collection, Iterator
from itertools import chain, compress, count, islice, repeat
from operator import length_hint
from time import perf_counter_ns
from types import FunctionType
from typing import Any, Self
from weakref import WeakSet

from gpuprof_widgets.capture.lines.regions import LIMIT, UNRECORDED, LineMark, LineMarks

LEAST = 200
"""Rounds and calls that are recorded in full, however short they are."""
MOST_ADDED = 0.04
"""Rounds of a single statement have one region together if a region each would add more."""
PYTHON_ALONE = 0.85
"""What takes less than this part of the fastest op runs none."""
LOOP_RUNS = 5
"""An execution of a loop with two bodies adds as much as the regions of so many runs."""

_KNOW_THEIR_LENGTH = (type(iter(range(0))), type(iter(())))
"""Iterators over what cannot change, which know how many items are left."""
# Not the built-in function itself, whose call cProfile would count as the user's.
_next = functools.partial(next)


class Pace:
    """How long some lines take without their regions, from how often they and loops in them ran."""

    def __init__(self, marks: LineMarks, lines: Collection[int], loops: list[Loop]) -> None:
        self.lines = lines
        self.ns = self._runs = self._executions = 0
        self._marks = marks
        self._loops = loops
        self._of_lines: list[LineMark] | None = None
        self._began = (0, 0, 0)

    def forget(self) -> None:
        """Count anew."""
        self.ns = self._runs = self._executions = 0

    def begin(self) -> None:
        """Count from this moment on."""
        if self._of_lines is None:
            self._of_lines = self._marks.of_lines(self.lines)
        runs = sum(mark.runs for mark in self._of_lines)
        self._began = perf_counter_ns(), runs, sum(loop.executions for loop in self._loops)

    def end(self) -> None:
        """Count until this moment, and on from it."""
        began = self._began
        self.begin()
        ns, runs, executions = (b - a for a, b in zip(began, self._began, strict=True))
        self.ns, self._runs, self._executions = (
            self.ns + ns,
            self._runs + runs,
            self._executions + executions,
        )

    def is_of_python(self) -> bool:
        """Whether the runs took so little that they were Python alone."""
        own_ns = self.ns - (self._runs + LOOP_RUNS * self._executions) * self._marks.run_ns
        return own_ns < self._runs * PYTHON_ALONE * self._marks.op_ns


class Loop:
    """The rounds of one `for` statement, whose body has these lines and loops.

    ``single`` is the only line of a body that is one plain statement, else 0. Rewritten code calls
    the methods from `execution` on.
    """

    def __init__(
        self, marks: LineMarks, lines: Collection[int], inner: list[Loop], single: int
    ) -> None:
        self.executions = 0
        self._marks = marks
        self._lines = lines
        # Rounds of a single statement are compared with the cost of a region: time is enough.
        self._pace = Pace(marks, () if single else lines, [] if single else inner)
        self._single = single
        self._running: dict[int, _Execution] = {}
        self._rounds = 0  # since the last look at how long they take
        self._recorded = 0
        self._regions = 0  # of plain rounds
        self._is_short = False  # its rounds are: they run plain
        self._is_lost = False  # some rounds left no trace

    def __reduce__(self) -> Any:
        return Loop, (LineMarks("", ""), (), [], 0)

    @property
    def lost_lines(self) -> Collection[int]:
        """The lines that ran without a region since `restart`, or may have."""
        return self._lines if self._is_lost or (self._is_short and not self._single) else ()

    def restart(self) -> None:
        """Begin anew, with a window."""
        self.executions = self._rounds = self._recorded = self._regions = 0
        self._is_short = False
        self._is_lost = any(execution.is_plain for execution in list(self._running.values()))
        self._pace.forget()

    def stop(self) -> None:
        """End with a window: rounds after it do not count."""
        for execution in list(self._running.values()):
            execution.settle()

    def execution(self, items: Iterator[Any]) -> _Execution:
        """Return the context manager around one execution of the statement."""
        return _Execution(items, self._marks, self._running, id(sys._getframe(1)))

    def marked(self) -> Iterator[Any]:
        """Return the items of the rounds with regions."""
        execution = self._running[id(sys._getframe(1))]
        self.executions += 1
        if self._is_short:
            return iter(())
        self._pace.begin()
        return chain.from_iterable(map(self._piece, repeat(execution)))

    def rest(self) -> Any:
        """Return the context manager around all plain rounds."""
        execution = self._running[id(sys._getframe(1))]
        if execution.has_ended:
            return UNRECORDED
        execution.is_plain = True
        if not self._single or not self._marks.are_on:
            return UNRECORDED
        self._regions += 1
        if self._regions > LIMIT:
            self._is_lost = True
            return UNRECORDED
        marker, region = self._marks.region_of_rounds(self._single)
        execution.count_plain_rounds(marker)
        return region

    def plain(self) -> Iterator[Any]:
        """Return the items of the plain rounds."""
        return self._running[id(sys._getframe(1))].plain()

    def _piece(self, execution: _Execution) -> Iterator[Any]:
        rounds = execution.end_piece()
        if rounds and self._marks.are_on:
            self._pace.end()
            self._rounds += rounds
            if self._rounds >= LEAST:
                self._look()
        if self._is_short or execution.has_ended:
            raise StopIteration  # ends the `map` that calls this
        return execution.begin_piece()

    def _look(self) -> None:
        """Find out whether the rounds since the last look were short."""
        self._recorded += self._rounds
        if self._single:
            added = self._marks.run_ns * self._rounds / max(self._pace.ns, 1)
            self._is_short |= added > MOST_ADDED or self._recorded >= LIMIT
        else:
            self._is_short |= self._pace.is_of_python()
        self._rounds = 0
        self._pace.forget()


class _Execution:
    """One execution of a `for` statement over these items, known by the number of its frame.

    Not by the frame itself, whose variables would live on with it.
    """

    def __init__(
        self, items: Iterator[Any], marks: LineMarks, known: dict[int, _Execution], frame: int
    ) -> None:
        self.has_ended = False
        """Whether there are no more items."""
        self.is_plain = False
        self._left = items if type(items) in _KNOW_THEIR_LENGTH else None
        # A `for` statement asks an iterator for items alone, never for an iterator again.
        own = type(items).__module__ in ("builtins", "itertools")
        self._items = items if own else map(_next, repeat(items))
        self._marks = marks
        self._known = known
        self._frame = frame
        self._obtained: count[int] | None = None
        self._expected = 0
        self._marker = ""

    def __enter__(self) -> Self:
        self._known[self._frame] = self
        return self

    def __exit__(self, *raised: Any) -> None:
        self._known.pop(self._frame, None)
        self.settle()

    def begin_piece(self) -> Iterator[Any]:
        """Return the items of the next `LEAST` rounds."""
        self._obtained = count(1)
        return islice(self._counted(self._obtained), LEAST)

    def end_piece(self) -> int:
        """Note whether items were missing; return how many there were, 0 before the first piece."""
        if self._obtained is None:
            return 0
        rounds, self._obtained = next(self._obtained) - 1, None
        self.has_ended = rounds < LEAST
        return rounds

    def count_plain_rounds(self, marker: str) -> None:
        """Count the rounds in this region, at no cost where the items know how many they are."""
        self._marker = marker
        if self._left is not None:
            self._expected = length_hint(self._left)
        else:
            self._obtained = count(1)

    def settle(self) -> None:
        """Say how many rounds ran in the region until now, once."""
        marker, self._marker = self._marker, ""
        if not marker:
            return
        if self._left is not None:
            self._marks.rounds[marker] = self._expected - length_hint(self._left)
        else:
            assert self._obtained is not None
            self._marks.rounds[marker] = next(self._obtained) - 1

    def plain(self) -> Iterator[Any]:
        """Return the items of the rounds that follow."""
        if self.has_ended:
            return iter(())
        return self._items if self._obtained is None else self._counted(self._obtained)

    def _counted(self, numbers: Iterator[int]) -> Iterator[Any]:
        # Unlike zip, compress keeps no item alive until the next one.
        return compress(self._items, numbers)


class Calls:
    """The calls of a function with marked code, which gets its plain code where they are short."""

    def __init__(self, marks: LineMarks, lines: Collection[int], inner: list[Loop]) -> None:
        self._marks = marks
        self._pace = Pace(marks, lines, inner)
        self._functions: WeakSet[FunctionType] = WeakSet()
        self._are_short = False

    def __reduce__(self) -> Any:
        return Calls, (LineMarks("", ""), (), [])

    @property
    def lost_lines(self) -> Collection[int]:
        """The lines that may have run without a region."""
        return self._pace.lines if self._are_short else ()

    def restart(self) -> None:
        """Begin anew, with a window; functions with their plain code stay without lines."""
        self._pace.forget()
        self._pace.begin()

    def stop(self) -> None:
        """End with a window: nothing has to be settled."""

    def define(self, function: FunctionType) -> FunctionType:
        """Return the function, new or marked just now; rewritten code decorates with this."""
        self._functions.add(function)
        if self._are_short:
            self._make_plain(function)
        return function

    def count_at(self, mark: LineMark) -> None:
        """Count the calls by the runs of this mark, of the function's first statement."""
        mark.after, mark.every = self._look, LEAST

    def _look(self) -> None:
        """Find out whether the last `LEAST` calls were short."""
        self._pace.end()
        if not self._are_short and self._pace.is_of_python():
            self._are_short = True
            for function in list(self._functions):
                self._make_plain(function)
        self._pace.forget()

    def _make_plain(self, function: FunctionType) -> None:
        plain = self._marks.plain_of(function.__code__)
        if plain is not None:
            function.__code__ = plain
