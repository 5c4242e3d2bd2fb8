"""Regions of lines in generators and coroutines: open only while their frame runs.

Otherwise a line that waits would be charged with what other tasks do meanwhile. `Suspensions` has
the functions that rewritten code calls around ``yield`` and ``await``.
"""

from __future__ import annotations

import inspect
import sys
import types
from collections.abc import Generator, Iterator
from types import FrameType
from typing import Any, Self

from gpuprof_widgets.capture.lines.regions import LineMark, LineMarks, NextRegion

OpenRegions = dict[FrameType, list["SuspendedRegion"]]


class SuspendedRegion:
    """One execution of a statement that may be suspended: one region for each piece."""

    def __init__(self, regions: OpenRegions, first: LineMark, later: LineMark) -> None:
        self._regions = regions
        self._first = first
        self._later = later
        self._frame: FrameType | None = None
        self._piece: Any = None

    def __enter__(self) -> Self:
        self.begin(sys._getframe(1))
        return self

    def __exit__(self, *raised: Any) -> None:
        self.pause()
        if self._frame is None:
            return
        of_frame = self._regions[self._frame]
        of_frame.remove(self)
        if not of_frame:
            del self._regions[self._frame]
        self._frame = None

    def begin(self, frame: FrameType) -> None:
        """Open the first piece, in that frame."""
        self._frame = frame
        self._regions.setdefault(frame, []).append(self)
        self._open(self._first)

    def pause(self) -> None:
        """Close the piece that is open, if one is."""
        self._piece = None  # a region ends when it is let go

    def resume(self) -> None:
        """Open the next piece."""
        self._open(self._later)

    def _open(self, mark: LineMark) -> None:
        if self._piece is None:
            piece = mark.next()
            piece.__enter__()
            self._piece = piece


class LastExpression(SuspendedRegion):
    """The region of a cell's last expression, whose code opens it: the `with` is in our frame."""

    def __enter__(self) -> Self:
        return self

    def begin_here(self) -> None:
        """Open the region; the expression's code calls this first."""
        self.begin(sys._getframe(1))


class Suspensions:
    """The open regions of all frames that may be suspended, and what their code calls."""

    def __init__(self, marks: LineMarks) -> None:
        self._marks = marks
        self._regions: OpenRegions = {}

    def __reduce__(self) -> Any:
        return Suspensions, (LineMarks("", ""),)

    def next(self, line: int, *, goes_on: bool) -> NextRegion:
        """Return what code calls for the region of its next execution."""
        return NextRegion(SuspendedRegion, self._regions, *self._pieces(line, goes_on))

    def last(self, line: int, *, goes_on: bool) -> LastExpression:
        """Return the region of a cell's last expression, for its one execution."""
        return LastExpression(self._regions, *self._pieces(line, goes_on))

    def _pieces(self, line: int, goes_on: bool) -> tuple[LineMark, LineMark]:
        """Return the marks of the first piece of an execution, and of the later ones."""
        marks = self._marks
        return marks.mark(line, resumed=goes_on), marks.mark(line, resumed=True)

    def suspended(self, value: Any) -> Any:
        """Close the regions; return the value that is about to be yielded."""
        self._pause(sys._getframe(1))
        return value

    def resumed(self, value: Any) -> Any:
        """Open the regions again; return the value that was sent."""
        self._resume(sys._getframe(1))
        return value

    def awaited(self, awaitable: Any) -> Any:
        """Return an awaitable that closes the regions while it waits; other values unchanged."""
        frame = sys._getframe(1)
        if inspect.isgenerator(awaitable):  # @types.coroutine
            return self._driven(frame, awaitable)
        if hasattr(type(awaitable), "__await__"):
            return self._driven(frame, awaitable.__await__())
        return awaitable

    def delegated(self, iterable: Any) -> Any:
        """Return the same for `yield from`."""
        kind = type(iterable)
        if not hasattr(kind, "__iter__") and not hasattr(kind, "__getitem__"):
            return iterable
        return self._driven(sys._getframe(1), iter(iterable))

    def _pause(self, frame: FrameType) -> None:
        for region in reversed(self._regions.get(frame, [])):
            region.pause()

    def _resume(self, frame: FrameType) -> None:
        for region in self._regions.get(frame, []):
            region.resume()

    @types.coroutine
    def _driven(self, frame: FrameType, inner: Iterator[Any]) -> Generator[Any, Any, Any]:
        """Do what `yield from inner` does (PEP 380), with the frame's regions closed meanwhile."""
        __tracebackhide__ = True
        sent: Any = None
        thrown: BaseException | None = None
        while True:
            try:
                if thrown is not None:
                    value = _throw(inner, thrown)
                else:
                    value = next(inner) if sent is None else inner.send(sent)  # type: ignore[attr-defined]
            except StopIteration as stop:
                return stop.value
            finally:
                thrown = None
            self._pause(frame)
            try:
                sent = yield value
            except BaseException as error:
                # Without our frame, in which it was caught: it goes on to the inner iterator.
                caught = error.__traceback__
                thrown = error.with_traceback(caught.tb_next if caught else None)
            self._resume(frame)


def _throw(inner: Any, error: BaseException) -> Any:
    """Throw an exception into the inner iterator, or raise it where that has no `throw`."""
    __tracebackhide__ = True
    if isinstance(error, GeneratorExit):
        close = getattr(inner, "close", None)
        if close is not None:
            close()
        raise error
    throw = getattr(inner, "throw", None)
    if throw is None:
        raise error
    return throw(error)
