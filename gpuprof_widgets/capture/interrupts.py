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


class _Handling:
    """Within the block ``_handle`` is the handler of Ctrl-C, instead of ``_before``."""

    _handle: Handler
    _before: Handler | None = None

    def __enter__(self) -> Self:
        self._before = _replace(self._handle)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._before is not None:
            _signal.signal(_signal.SIGINT, self._before)


class Raised(_Handling):
    """Within the block a Ctrl-C raises KeyboardInterrupt, also where it would cancel a task."""

    _handle = staticmethod(_signal.default_int_handler)


class Held(_Handling):
    """Within the block a Ctrl-C only sets ``pressed``; a second one does what it always does.

    `pass_on`, behind the block, lets it happen after all.
    """

    pressed = False

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if self.pressed and self._before is not None:
            self._before(number, frame)
        self.pressed = True

    def pass_on(self) -> None:
        """Let the Ctrl-C that came within the block happen now."""
        if self.pressed and self._before is not None:
            self.pressed = False
            self._before(_signal.SIGINT, None)


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
