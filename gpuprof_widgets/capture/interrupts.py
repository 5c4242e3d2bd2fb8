"""Ctrl-C while we start, stop or show: it never leaves half of a recording running.

A front end's own handler is put back at once, and does then what it does: raise KeyboardInterrupt
in a plain cell, cancel the task of one that awaits. In a thread, or a subinterpreter, there is
nothing to do: Python handles signals in the main thread alone.
"""

from __future__ import annotations

# signal's own functions are Python, which a cProfile at work would count.
import _signal  # type: ignore[import-not-found]
from collections.abc import Callable
from types import FrameType, TracebackType
from typing import Any, Self

Handler = Callable[[int, FrameType | None], Any]


class Held:
    """Within the block a Ctrl-C only sets ``pressed``; a second one does what it always does.

    `pass_on`, behind the block, lets it happen after all.
    """

    def __init__(self) -> None:
        self.pressed = False
        self._handler: Handler | None = None

    def __enter__(self) -> Self:
        self._handler = _replace(self._press)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._handler is not None:
            _signal.signal(_signal.SIGINT, self._handler)

    def pass_on(self) -> None:
        """Let the Ctrl-C that came within the block happen now."""
        if self.pressed and self._handler is not None:
            self.pressed = False
            self._handler(_signal.SIGINT, None)

    def _press(self, number: int, frame: FrameType | None) -> None:
        if self.pressed and self._handler is not None:
            self._handler(number, frame)
        self.pressed = True


class Raised:
    """Within the block a Ctrl-C raises KeyboardInterrupt, also where it would cancel a task."""

    def __init__(self) -> None:
        self._handler: Handler | None = None

    def __enter__(self) -> Self:
        self._handler = _replace(_signal.default_int_handler)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._handler is not None:
            _signal.signal(_signal.SIGINT, self._handler)


def _replace(handler: Handler) -> Handler | None:
    """The handler of Ctrl-C until now; None where that is no function, or not ours to replace."""
    before: Handler | int | None = _signal.getsignal(_signal.SIGINT)
    if not callable(before):
        return None
    try:
        _signal.signal(_signal.SIGINT, handler)
    except ValueError:  # not in the main thread of the main interpreter
        return None
    return before
