"""Regions of lines in generators and coroutines: open only while their frame runs.

Otherwise a line that waits would be charged with what other tasks do meanwhile. `Suspensions` has
the functions that rewritten code calls around ``yield`` and whatever awaits. What they return is
driven by C code alone: no frame of ours stands between the user's code and a coroutine that it
awaits.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Sequence
from functools import partial
from itertools import repeat
from operator import attrgetter, call, itemgetter
from types import CoroutineType, FrameType, GeneratorType
from typing import Any, Self

from gpuprof_widgets.capture.lines.regions import LineMark, LineMarks, NextRegion

OpenRegions = dict[FrameType, list["SuspendedRegion"]]
_COMPREHENSIONS = ("<listcomp>", "<setcomp>", "<dictcomp>")  # frames of their own before 3.12


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
        """Open the first piece, in that frame, which goes on if an exception ended its wait."""
        self._frame = frame
        of_frame = self._regions.setdefault(frame, [])
        _resume(of_frame)
        of_frame.append(self)
        self.resume(self._first)

    def pause(self) -> None:
        """Close the piece that is open, if one is."""
        self._piece = None  # a region ends when it is let go

    def resume(self, mark: LineMark | None = None) -> None:
        """Open the next piece, if none is open."""
        if self._piece is None:
            piece = (mark or self._later).next()
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

    def next(
        self, line: int, *, goes_on: bool, kind: type[SuspendedRegion] = SuspendedRegion
    ) -> NextRegion:
        """Return what code calls for the region of its next execution."""
        first, later = self._marks.mark(line, resumed=goes_on), self._marks.mark(line, resumed=True)
        return NextRegion(kind, self._regions, first, later)

    def suspended(self, value: Any) -> Any:
        """Close the regions; return the value that is about to be yielded."""
        _pause(self._of_caller())
        return value

    def resumed(self, value: Any) -> Any:
        """Open the regions again; return the value that was sent."""
        _resume(self._of_caller())
        return value

    def awaited(self, awaitable: Any) -> Any:
        """Return an awaitable that closes the regions while it waits."""
        __tracebackhide__ = True
        return _observed(self._of_caller(), awaitable)

    def delegated(self, iterable: Any) -> Any:
        """Return the same for `yield from`."""
        __tracebackhide__ = True
        regions, kind = self._of_caller(), type(iterable)
        if not regions or not (hasattr(kind, "__iter__") or hasattr(kind, "__getitem__")):
            return iterable
        return _Observed(iter(iterable), regions)

    def iterated(self, iterable: Any) -> Any:
        """Return the same for `async for`, also in a comprehension."""
        regions, method = self._of_caller(), _special(iterable, "__aiter__")
        return _Iteration(method, partial(_iterator, regions)) if regions and method else iterable

    def entered(self, manager: Any) -> Any:
        """Return the same for `async with`."""
        regions = self._of_caller()
        enter, leave = _special(manager, "__aenter__"), _special(manager, "__aexit__")
        return _Manager(enter, leave, regions) if regions and enter and leave else manager

    def _of_caller(self) -> Sequence[SuspendedRegion]:
        """Return the open regions of the frame of the rewritten code that called our caller."""
        frame: FrameType | None = sys._getframe(2)
        while frame is not None and frame.f_code.co_name in _COMPREHENSIONS:
            frame = frame.f_back
        return self._regions.get(frame, ()) if frame is not None else ()


_SECOND = itemgetter(1)


def _pause(regions: Sequence[SuspendedRegion]) -> None:
    for region in reversed(regions):
        region.pause()


def _resume(regions: Sequence[SuspendedRegion]) -> None:
    for region in regions:
        region.resume()


def _observed(regions: Sequence[SuspendedRegion], awaitable: Any) -> Any:
    """Return an awaitable that closes the regions while it waits.

    What Python refuses to await is returned as it is, for Python to say so.
    """
    __tracebackhide__ = True
    if not regions:
        return awaitable
    if isinstance(awaitable, CoroutineType):
        is_awaited = awaitable.cr_await is not None  # by another task
        return awaitable if is_awaited else _Observed(awaitable.__await__(), regions)
    if _is_coroutine(awaitable):
        return _Observed(awaitable, regions)
    method = _special(awaitable, "__await__")
    inner = method and method()
    refused = _is_coroutine(inner) or not hasattr(type(inner), "__next__")
    return awaitable if refused else _Observed(inner, regions)


def _is_coroutine(value: Any) -> bool:
    """Whether it is a generator that may be awaited (@types.coroutine)."""
    flag = inspect.CO_ITERABLE_COROUTINE
    return isinstance(value, GeneratorType) and bool(value.gi_code.co_flags & flag)


def _special(value: Any, name: str) -> Any:
    """Return a special method as the interpreter finds it, bound; None without."""
    for kind in type(value).__mro__:
        if name in vars(kind):
            method = vars(kind)[name]
            bind = getattr(type(method), "__get__", None)
            return bind(method, value, type(value)) if bind else method
    return None


class _Observed:
    """Does what an iterator does, with the regions closed between its steps.

    In a step `zip` asks three iterators one after the other; an exception passes all of them.
    """

    __slots__ = ("_inner", "_regions", "_step")
    __next__ = property(attrgetter("_step"))

    def __init__(self, inner: Any, regions: Sequence[SuspendedRegion]) -> None:
        self._inner = inner
        self._regions = regions
        before, after = map(_resume, repeat(regions)), map(_pause, repeat(regions))
        steps = map(type(inner).__next__, repeat(inner))
        self._step = map(_SECOND, zip(before, steps, after, strict=False)).__next__

    def __iter__(self) -> Self:
        return self

    __await__ = __iter__

    # Without `send` or `throw` of its own the inner iterator must seem to have none.
    @property
    def send(self) -> Any:
        __tracebackhide__ = True
        return partial(self._passed, self._inner.send)

    @property
    def throw(self) -> Any:
        return partial(self._passed, self._inner.throw)

    @property
    def close(self) -> Any:
        _resume(self._regions)
        return self._inner.close

    def _passed(self, method: Callable[..., Any], *arguments: Any) -> Any:
        __tracebackhide__ = True
        _resume(self._regions)
        value = method(*arguments)
        _pause(self._regions)
        return value


class _Iteration:
    """What `async for` asks for an iterator, and what it asks that for the next item."""

    __slots__ = ("_method",)
    __aiter__ = __anext__ = property(attrgetter("_method"))

    def __init__(self, method: Callable[[], Any], then: Callable[[Any], Any]) -> None:
        # Like `_Observed`: C code alone calls the method, then the function with its result.
        self._method = map(then, map(call, repeat(method))).__next__


def _iterator(regions: Sequence[SuspendedRegion], iterator: Any) -> Any:
    """Return the like of that iterator; what is none is returned as it is."""
    method = _special(iterator, "__anext__")
    return _Iteration(method, partial(_observed, regions)) if method else iterator


class _Manager:
    """What `async with` enters and leaves."""

    def __init__(self, enter: Any, leave: Any, regions: Sequence[SuspendedRegion]) -> None:
        self._enter = enter
        self._leave = leave
        self._regions = regions

    def __aenter__(self) -> Any:
        __tracebackhide__ = True
        return _observed(self._regions, self._enter())

    def __aexit__(self, *raised: Any) -> Any:
        __tracebackhide__ = True
        return _observed(self._regions, self._leave(*raised))
