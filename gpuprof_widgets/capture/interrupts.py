"""Signals while we start, stop or show: none of them leaves half of a recording running.

The signals are Ctrl-C, and the death of a DataLoader worker, for which torch's handler raises an
error in whatever runs. `DeferredSignals` defers both. The front end's own handler is restored at
the end and then acts as usual: it raises KeyboardInterrupt in a plain cell, and cancels the task of
a cell that awaits. In other threads there is nothing to do: Python handles signals in the main one.

`RaisedAfterwards` keeps our garbage collector callback from swallowing a signal's error.
`temporary_folder` makes the folders of a recording.
"""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]
import ctypes
import sys
import tempfile
from collections import defaultdict
from collections.abc import Callable
from functools import partial
from pathlib import Path
from threading import get_ident
from types import CodeType, FrameType, TracebackType
from typing import Any, Self

from gpuprof_widgets.exceptions import RecordingError

# `_signal`, because signal's own functions are Python, which a running cProfile would count.

Handler = Callable[[int, FrameType | None], Any]

_SIGCHLD: int | None = getattr(_signal, "SIGCHLD", None)  # Windows has none

_within: Path | None = None  # the folder that has all folders of this process


class _Handling:
    """Within the block ``_handle`` handles the signal, instead of ``_before``.

    ``_before`` is None where that is no function, or could not be replaced.
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
            except BaseException:  # raised by another signal's handler
                self.__exit__()
                raise
        return self

    def __exit__(self, *raised: Any) -> None:
        if self._before is not None:
            try:
                _signal.signal(self._number, self._before)
            except BaseException:  # raised by another signal's handler before ours was undone
                _signal.signal(self._number, self._before)
                raise


class Raised(_Handling):
    """Within the block a Ctrl-C raises KeyboardInterrupt, also where it would cancel a task."""

    _handle = staticmethod(_signal.default_int_handler)


class _DeferredSignal(_Handling):
    """Within the block the signal only sets ``came``; a second Ctrl-C acts as usual."""

    came = False

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if self.came and number == _signal.SIGINT and self._before is not None:
            self._before(number, frame)
        self.came = True

    def deliver(self) -> None:
        if self.came and self._before is not None and self._number is not None:
            self.came = False
            self._before(self._number, None)


class DeferredSignals:
    """Within the block a Ctrl-C waits, and so does the signal that a child process ended."""

    def __init__(self) -> None:
        self._interrupt, self._child = _DeferredSignal(), _DeferredSignal(_SIGCHLD)

    def __enter__(self) -> Self:
        try:
            self._child.__enter__()
            self._interrupt.__enter__()
        except BaseException:  # raised by a handler before it was replaced
            self.__exit__()
            raise
        return self

    def __exit__(self, *raised: Any) -> None:
        """Restore the handlers, then let the signals act that came within the block."""
        try:
            self._child.__exit__()
        finally:
            self._interrupt.__exit__()
        try:
            self._child.deliver()
        finally:
            self._interrupt.deliver()


class RaisedAfterwards:
    """Raises a signal's error after the callback that would have swallowed it.

    Python handles a signal as the next function begins. After a long garbage collection that is the
    collector's callback, which cannot catch an error before its first line: Python passes it to
    `sys.unraisablehook` and goes on. The signal's handler is no place to prevent that:
    `asyncio.run`, for one, takes any handler but Python's own for the user's. ``again`` is called
    with the local variables of the callback, whose code is ``code``.
    """

    def __init__(self, code: CodeType, again: Callable[[dict[str, Any]], None]) -> None:
        self._code = code
        self._again = again
        self._before = self._hook = sys.unraisablehook
        self._passed: BaseException | None = None

    def watch(self) -> None:
        self._before, self._hook = sys.unraisablehook, self._dropped
        sys.unraisablehook = self._hook

    def unwatch(self) -> None:
        if sys.unraisablehook is self._hook:
            sys.unraisablehook = self._before
        self._passed = None

    def _dropped(self, dropped: Any) -> None:
        error, traceback = dropped.exc_value, dropped.exc_traceback
        if not self._is_signal(error, traceback):
            self._before(dropped)
            return
        self._again(traceback.tb_frame.f_locals)
        self._passed = error  # the callback for the collection's end may get it again
        _raise_afterwards(error.with_traceback(None))

    def _is_signal(self, error: BaseException | None, traceback: TracebackType | None) -> bool:
        """Whether the error came into the callback from outside, not from its own file."""
        if error is None or traceback is None or traceback.tb_frame.f_code is not self._code:
            return False
        if error is self._passed or not isinstance(error, Exception):
            return True
        while traceback.tb_next is not None:
            traceback = traceback.tb_next
        return traceback.tb_frame.f_code.co_filename != self._code.co_filename


def _raise_afterwards(error: BaseException) -> None:
    """Make this thread raise the error where Python next looks for signals: after this function.

    Python looks after every call but one: the factory of a defaultdict for a lacking key.
    """
    # `PyThreadState_SetAsyncExc` takes a class and makes the error: from this one it gets ours.
    errors = [error]  # popped, because the class lives until the next garbage collection
    error_class = type("Made", (BaseException,), {"__new__": lambda _: errors.pop()})
    set_error = ctypes.pythonapi.PyThreadState_SetAsyncExc
    thread = ctypes.c_ulong(get_ident())
    defaultdict[str, int](partial(set_error, thread, ctypes.py_object(error_class)))["lacking"]


def temporary_folder() -> Path:
    """Make a new folder; raises a `RecordingError` where that is not possible."""
    try:
        return Path(tempfile.mkdtemp(prefix="gpuprof-", dir=_within))
    except OSError as error:
        raise RecordingError(
            f"there is no folder for temporary files ({error.strerror}: {error.filename}); "
            "set TMPDIR to one that can be written and restart"
        ) from error


def keep_folders_within(folder: Path) -> None:
    """Put all folders of this process, and of its forks, into this one."""
    global _within
    _within = folder
