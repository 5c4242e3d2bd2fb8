"""Signals while we start, stop or show: none leaves half of a recording running.

Above all Ctrl-C; and the end of a DataLoader's worker, at which torch's handler raises an error in
whatever runs then. A front end's own handler is put back at once, and does then what it does: raise
KeyboardInterrupt in a plain cell, cancel the task of one that awaits. In a thread, or a
subinterpreter, there is nothing to do: Python handles signals in the main thread alone.
"""

from __future__ import annotations

# signal's own functions are Python, which a cProfile at work would count.
import _signal  # type: ignore[import-not-found]
from collections.abc import Callable
from types import FrameType, TracebackType
from typing import Any, Self

Handler = Callable[[int, FrameType | None], Any]

_SIGCHLD: int | None = getattr(_signal, "SIGCHLD", None)  # Windows has none


class _Handling:
    """Within the block ``_handle`` is the handler of the signal, instead of ``_before``.

    ``_before`` is None where that is no function, or not ours to replace.
    """

    _handle: Handler
    _before: Handler | None = None

    def __init__(self, number: int | None = _signal.SIGINT) -> None:
        self._number = number

    def __enter__(self) -> Self:
        before = None if self._number is None else _signal.getsignal(self._number)
        if callable(before):
            self._before = before
            try:
                _signal.signal(self._number, self._handle)
            except ValueError:  # not in the main thread of the main interpreter
                self._before = None
            except BaseException:  # of another signal's handler
                self.__exit__(None, None, None)
                raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._before is not None:
            try:
                _signal.signal(self._number, self._before)
            except BaseException:  # of another signal's handler, before this one was put back
                _signal.signal(self._number, self._before)
                raise


class Raised(_Handling):
    """Within the block a Ctrl-C raises KeyboardInterrupt, also where it would cancel a task."""

    _handle = staticmethod(_signal.default_int_handler)


class _HeldSignal(_Handling):
    """Within the block the signal only sets ``came``; a second Ctrl-C does what it always does."""

    came = False

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if self.came and number == _signal.SIGINT and self._before is not None:
            self._before(number, frame)
        self.came = True

    def pass_on(self) -> None:
        if self.came and self._before is not None and self._number is not None:
            self.came = False
            self._before(self._number, None)


class Held:
    """Within the block a Ctrl-C waits, and so does the news that a child process ended.

    `pass_on`, behind the block, lets them happen after all.
    """

    def __init__(self) -> None:
        self._interrupt, self._child = _HeldSignal(), _HeldSignal(_SIGCHLD)

    @property
    def pressed(self) -> bool:
        """Whether a Ctrl-C waits."""
        return self._interrupt.came

    def __enter__(self) -> Self:
        try:
            self._child.__enter__()
            self._interrupt.__enter__()
        except BaseException:  # of a handler, before it was replaced
            self.__exit__(None, None, None)
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        try:
            self._child.__exit__(kind, error, traceback)
        finally:
            self._interrupt.__exit__(kind, error, traceback)

    def pass_on(self) -> None:
        """Let happen now what came within the block."""
        try:
            self._child.pass_on()
        finally:
            self._interrupt.pass_on()
