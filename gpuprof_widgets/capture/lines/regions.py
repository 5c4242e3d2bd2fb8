"""Regions around the executions of a line, made and entered by C code alone.

Nothing here is a built-in that a profiler counts, and no Python frame, but for one in hundreds of
runs, which `frame_filter` takes out: neither cProfile nor torch's stacks show them. Rewritten code
has them as ``with <LineMark.next>(): statement``. For that reason endless iterators of `map`,
`chain` and `repeat` make the regions below, not generators.
"""

from __future__ import annotations

import contextlib
import functools
import gc
from collections import namedtuple
from collections.abc import Callable, Collection, Iterable, Iterator
from itertools import chain, compress, count, islice, repeat, takewhile
from operator import attrgetter, length_hint
from types import CodeType
from typing import Any

from torch._C._profiler import _RecordFunctionFast

LIMIT = 10_000
"""Executions of one line that are recorded; further ones cost a tenth of a microsecond."""

_PIECE = 64
_serial = count(1)

# The attributes of a namedtuple are C descriptors of tuple items.
_Entered = namedtuple("_Entered", ["enter", "kind"])


class _Recorded(tuple[Any, Any]):
    """One execution: ``__enter__`` of one of torch's regions, which ends when it is let go.

    Not by its own ``__exit__``, which raises where a profiler started after it was entered. Ours
    does nothing (a tuple's ``__init__`` takes any arguments), but as long as the ``with`` statement
    has it, that holds the tuple and so the region. Both are method wrappers, which the
    interpreter's profile hook does not take for built-ins.
    """

    __slots__ = ()
    __enter__: Any = _Entered.enter
    __exit__: Any = object.__init__


class _Unrecorded:
    """An execution that leaves no trace: both methods are C functions that do nothing."""

    __slots__ = ()
    __enter__ = repeat(None).__next__
    __exit__ = staticmethod(functools.partial("".format))


UNRECORDED = _Unrecorded()
# The second name is for a tuple; `zip`, which also makes one, would hold it until the next.
_items = attrgetter("__enter__.__call__", "__class__")


class NextRegion(functools.partial[Any]):
    """What rewritten code calls for the region of its next execution.

    Code may be pickled with its function while the cell runs; in another process it does nothing.
    """

    __slots__ = ()

    def __reduce__(self) -> Any:
        return functools.partial, (contextlib.nullcontext,)


class LineMark:
    """The regions of one line, of the first `LIMIT` executions after each `switch_on`.

    ``after`` is called after each ``every`` of them.
    """

    def __init__(self, marker: str, switched_on: set[str]) -> None:
        self.marker = marker
        self.after: Callable[[], None] | None = None
        self.every = LIMIT
        self._left = repeat(marker, LIMIT)
        self._on = switched_on
        self._beyond = count(1)
        # A list of one item: the iterator in the code takes what comes next from here.
        self._pieces: list[Iterator[Iterable[Any]]] = [_nothing()]
        pieces = map(next, map(self._pieces.__getitem__, repeat(0)))
        self.next = NextRegion(chain.from_iterable(pieces).__next__)

    def switch_on(self, name: str = "") -> None:
        """Record from now on, as long as the set ``switched_on`` holds the marker.

        The regions are called like the marker, or ``name`` for another reader.
        """
        self._beyond, self._left = count(1), repeat(self.marker, LIMIT)
        markers = takewhile(self._on.__contains__, self._left)
        names = map({self.marker: name or self.marker}.__getitem__, markers)
        recorded = map(_Recorded, map(_items, map(_RecordFunctionFast, names)))
        first = recorded if self.after is None else islice(recorded, self.every)
        later = map(self._next_piece, repeat(recorded, LIMIT // self.every - 1))
        self._pieces[0] = chain((first,), later, compress(_nothing(), self._beyond))

    def _next_piece(self, recorded: Iterator[Any]) -> Iterator[Any]:
        """Return the regions of the next executions; of Python alone, for several threads."""
        if self.after is not None and self.marker in self._on:
            self.after()
        return islice(recorded, self.every)

    @property
    def runs(self) -> int:
        """How many executions were recorded since `switch_on`."""
        return LIMIT - length_hint(self._left)

    def ran_beyond(self) -> bool:
        """Whether the line ran more often than is recorded; call once, before switching off."""
        return next(self._beyond) > 1


def end_open_regions() -> None:
    """End the regions of all lines that are being executed, while their profiler still runs.

    A region that ends under a later profiler writes into memory that torch has freed.
    """
    for execution in gc.get_referrers(_Recorded):  # its instances are known to nobody else
        if type(execution) is _Recorded:
            region = execution[0].__self__.__self__
            with contextlib.suppress(RuntimeError):  # entered where no profiler ran
                region.__exit__(None, None, None)


def _nothing() -> Iterator[Iterable[Any]]:
    """Return unrecorded executions, first one by one, so that a switch acts at once, then more."""
    return chain(repeat((UNRECORDED,), LIMIT), repeat((UNRECORDED,) * _PIECE))


def no_plain_code(code: CodeType) -> CodeType | None:
    """Return the plain code of this one: none is known."""


class LineMarks:
    """The marks of the lines of one text: a cell, or the functions of a file."""

    def __init__(self, label: str, source: str, first_line: int = 1) -> None:
        self.label = label
        self.source = source
        self.first_line = first_line
        self._prefix = f"gpuprof:line:{next(_serial)}"
        self._on: set[str] = set()
        self._marks: dict[tuple[int, bool], LineMark] = {}
        self._beyond: set[int] = set()
        self._short: set[int] = set()
        self._lines_of_rounds: dict[str, int] = {}
        self.rounds: dict[str, int] = {}
        """How many rounds ran in each region of several, by its marker."""
        self.repeated: list[Any] = []
        """The `Loop` and `Calls` (see `repeated`) that go on without regions from some time on."""
        self.run_ns, self.op_ns = 0.0, 0.0
        """What recording a run of a line adds, and how long the fastest op takes."""
        self.plain_of: Callable[[CodeType], CodeType | None] = no_plain_code

    def mark(self, line: int, *, resumed: bool = False) -> LineMark:
        """Return the mark of a line, or that of its ``resumed`` executions."""
        key = (line, resumed)
        if key not in self._marks:
            marker = f"{self._prefix}:{line}{':resumed' * resumed}"
            self._marks[key] = LineMark(marker, self._on)
        return self._marks[key]

    def __reduce__(self) -> Any:
        return LineMarks, ("", "")

    def switch_on(self, name_of: Callable[[int], str] | None = None) -> None:
        """Record every line up to its limit, named by ``name_of`` for another reader."""
        self._on.update(mark.marker for mark in self._marks.values())
        for (line, _), mark in self._marks.items():
            mark.switch_on(name_of(line) if name_of else "")
        for repeated in self.repeated:
            repeated.restart()

    def switch_off(self) -> None:
        """Record nothing from now on, whoever still runs the code."""
        if self._on:
            for repeated in self.repeated:
                repeated.stop()
            ran = self._marks.items()
            self._beyond |= {line for (line, _), mark in ran if mark.ran_beyond()}
            self._short.update(*(repeated.lost_lines for repeated in self.repeated))
        self._on.clear()

    @property
    def are_on(self) -> bool:
        """Whether lines are being recorded."""
        return bool(self._on)

    def of_lines(self, lines: Collection[int]) -> list[LineMark]:
        """Return the marks of these lines."""
        return [mark for (line, _), mark in self._marks.items() if line in lines]

    def region_of_rounds(self, line: int) -> tuple[str, Any]:
        """Return one region for many rounds of a loop over this line, and its marker."""
        marker = f"{self._prefix}:{line}:rounds:{len(self.rounds)}"
        self._lines_of_rounds[marker], self.rounds[marker] = line, 0
        return marker, _Recorded(_items(_RecordFunctionFast(marker)))

    def lines(self) -> list[int]:
        """Return the lines on which statements begin, in order."""
        return sorted({line for line, _ in self._marks})

    def lines_beyond(self) -> list[int]:
        """Return the lines that ran more often than is recorded, `short_lines` included."""
        return sorted(self._beyond | self._short)

    def short_lines(self) -> list[int]:
        """Return the lines of which fewer runs than `LIMIT` are recorded, as these are short."""
        return sorted(self._short)

    def markers(self) -> Iterator[tuple[str, int, bool]]:
        """Yield each marker, its line, and whether it is of resumed executions."""
        for (line, resumed), mark in self._marks.items():
            yield mark.marker, line, resumed
        yield from ((marker, line, False) for marker, line in self._lines_of_rounds.items())

    def text(self, line: int) -> str:
        """Return the source of a line, without its indentation."""
        lines = self.source.splitlines()
        index = line - self.first_line
        return lines[index].strip() if 0 <= index < len(lines) else ""
