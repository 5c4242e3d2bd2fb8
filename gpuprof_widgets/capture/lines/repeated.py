"""Loops and functions that take a moment and run again and again: marked at first, then plain.

A region costs most of a microsecond, which would distort a loop of shorter rounds. So a `for`
statement gets a second body without regions, in which it goes on (`Loop`), and a function that is
called as often gets its plain code (`Functions`). The time of their lines then counts for the line
around them, as beyond the limit of recorded runs. A loop over a single statement loses nothing: all
its further rounds are one region of that line.
"""

from __future__ import annotations

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
PYTHON_ALONE = 0.6
"""What takes less than this part of the fastest op runs none."""
LOOP_RUNS = 5
"""An execution of a loop with two bodies adds as much as the regions of so many runs."""


_KNOW_THEIR_LENGTH: tuple[type, ...] = (type(iter(range(0))), type(iter([])), type(iter(())))


class Executions:
    """How often the lines of some code ran, to tell how long they take without their regions."""

    def __init__(self, marks: LineMarks, lines: Collection[int], loops: list[Loop]) -> None:
        self.lines = lines
        self._marks = marks
        self._loops = loops
        self._began = (0, 0, 0)
        self._sum = (0, 0, 0)

    def forget(self) -> None:
        """Count anew."""
        self._sum = (0, 0, 0)

    def begin(self) -> None:
        """Count from this moment on."""
        runs = self._marks.runs(self.lines)
        self._began = perf_counter_ns(), runs, sum(loop.executions for loop in self._loops)

    def end(self) -> None:
        """Count until this moment, and from it on."""
        began = self._began
        self.begin()
        parts = zip(self._sum, began, self._began, strict=True)
        self._sum = tuple(total + end - start for total, start, end in parts)  # type: ignore[assignment]

    @property
    def ns(self) -> int:
        """The time that was counted."""
        return self._sum[0]

    def are_short(self) -> bool:
        """Whether what ran was Python alone, or all beyond the limit of recorded runs."""
        ns, runs, loops = self._sum
        own_ns = ns - (runs + LOOP_RUNS * loops) * self._marks.run_ns
        return own_ns < runs * PYTHON_ALONE * self._marks.op_ns or not runs


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
        self._counted = Executions(marks, lines, inner)
        self._single = single
        self._running: dict[int, _Execution] = {}
        self._rounds = 0  # since the last look at how long they take
        self._recorded = 0
        self._is_short = False  # its rounds are: they run plain

    def __reduce__(self) -> Any:
        return Loop, (LineMarks("", ""), (), [], 0)

    @property
    def lost_lines(self) -> Collection[int]:
        """The lines that ran without a region since `restart`, or may have."""
        return self._counted.lines if self._is_short and not self._single else ()

    def restart(self) -> None:
        """Begin anew, with a window."""
        self.executions, self._recorded, self._is_short = 0, 0, False
        self._rounds = 0
        self._counted.forget()

    def execution(self, items: Iterator[Any]) -> _Execution:
        """Return the context manager around one execution of the statement."""
        return _Execution(items, self._running, id(sys._getframe(1)))

    def marked(self) -> Iterator[Any]:
        """Return the items of the rounds with regions."""
        execution = self._running[id(sys._getframe(1))]
        self.executions += 1
        self._counted.begin()
        return chain.from_iterable(map(self._piece, repeat(execution)))

    def rest(self) -> Any:
        """Return the context manager around all plain rounds."""
        execution = self._running[id(sys._getframe(1))]
        if execution.has_ended or not self._single:
            return UNRECORDED
        execution.counts_plain_rounds()
        return self._marks.rounds(self._single, execution)

    def plain(self) -> Iterator[Any]:
        """Return the items of the plain rounds."""
        return self._running[id(sys._getframe(1))].plain()

    def _piece(self, execution: _Execution) -> Iterator[Any]:
        rounds = execution.end_piece()
        if rounds and self._marks.are_on:
            self._counted.end()
            self._rounds += rounds
            if self._rounds >= LEAST:
                self._look()
        if self._is_short or execution.has_ended:
            raise StopIteration
        return execution.begin_piece()

    def _look(self) -> None:
        """Find out whether the rounds since the last look were short."""
        self._recorded += self._rounds
        if self._single:
            added = self._marks.run_ns * self._rounds / max(self._counted.ns, 1)
            self._is_short |= added > MOST_ADDED or self._recorded >= LIMIT
        else:
            self._is_short |= self._counted.are_short()
        self._rounds = 0
        self._counted.forget()


class _Execution:
    """One execution of a `for` statement over these items, known by the number of its frame.

    Not by the frame itself, whose variables would live on with it.
    """

    def __init__(self, items: Iterator[Any], known: dict[int, _Execution], frame: int) -> None:
        self.has_ended = False
        """Whether there are no more items."""
        self.plain_rounds = 0
        self._items: Iterator[Any] = items
        self._known = known
        self._frame = frame
        self._obtained: Iterator[int] | None = None
        self._expected = 0

    def __enter__(self) -> Self:
        self._known[self._frame] = self
        return self

    def __exit__(self, *raised: Any) -> None:
        self._known.pop(self._frame, None)
        if self._expected:
            self.plain_rounds = self._expected - length_hint(self._items)
        elif self._obtained is not None:
            self.plain_rounds = next(self._obtained) - 1
        self._items = iter(())

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

    def counts_plain_rounds(self) -> None:
        """Count the rounds that follow, at no cost where the items know how many they are."""
        if type(self._items) in _KNOW_THEIR_LENGTH:
            self._expected = length_hint(self._items)
        else:
            self._obtained = count(1)

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
        self._counted = Executions(marks, lines, inner)
        self._functions: WeakSet[FunctionType] = WeakSet()
        self._are_short = False

    def __reduce__(self) -> Any:
        return Calls, (LineMarks("", ""), (), [])

    @property
    def lost_lines(self) -> Collection[int]:
        """The lines that may have run without a region since `restart`."""
        return self._counted.lines if self._are_short else ()

    def restart(self) -> None:
        """Begin anew, with a window; functions that have their plain code keep it."""
        self._counted.forget()
        self._counted.begin()

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
        """Look at the last `LEAST` calls."""
        self._counted.end()
        if not self._are_short and self._counted.are_short():
            self._are_short = True
            for function in self._functions:
                self._make_plain(function)
        self._counted.forget()

    def _make_plain(self, function: FunctionType) -> None:
        plain = self._marks.plain_of(function.__code__)
        if plain is not None:
            function.__code__ = plain
