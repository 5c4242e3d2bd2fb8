"""Signals while we start, stop or show: none leaves half of a recording running.

Above all Ctrl-C; and the end of a DataLoader's worker, at which torch's handler raises an error in
whatever runs then. A front end's own handler is put back at once, and does then what it does: raise
KeyboardInterrupt in a plain cell, cancel the task of one that awaits. In a thread, or a
subinterpreter, there is nothing to do: Python handles signals in the main thread alone.

Nor does a callback of ours swallow one.
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

# signal's own functions are Python, which a cProfile at work would count.

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


class RaisedAfterwards:
    """Raises what a signal raised in a callback in what runs after it: Python would drop it there.

    Python handles a signal as the next function begins. After a long garbage collection that is
    the collector's callback, which cannot catch what comes before its first line: Python tells it
    to `sys.unraisablehook` and goes on. Not by the signal's handler: `asyncio.run`, for one, takes
    another than Python's own for the user's. ``again`` takes the names of the callback's ``code``.
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
        self._passed = error  # a collection's end may get what its beginning passed on
        _raise_afterwards(error.with_traceback(None))

    def _is_signal(self, error: BaseException | None, traceback: TracebackType | None) -> bool:
        """Whether it is of the callback, but not an error that its own file made."""
        if error is None or traceback is None or traceback.tb_frame.f_code is not self._code:
            return False
        if error is self._passed or not isinstance(error, Exception):
            return True
        while traceback.tb_next is not None:
            traceback = traceback.tb_next
        return traceback.tb_frame.f_code.co_filename != self._code.co_filename


def _raise_afterwards(error: BaseException) -> None:
    """Have this thread raise the error where Python next looks for signals: behind this function.

    It looks after calls. A key that a dictionary lacks calls as well, and there it does not look.
    """
    # `PyThreadState_SetAsyncExc` takes a class to make the error of: of this one it makes ours.
    errors = [error]  # popped, as a class lives until the collector comes
    made = type("Made", (BaseException,), {"__new__": lambda _: errors.pop()})
    set_error = ctypes.pythonapi.PyThreadState_SetAsyncExc
    thread = ctypes.c_ulong(get_ident())
    defaultdict[str, int](partial(set_error, thread, ctypes.py_object(made)))["lacking"]


_within: Path | None = None


def temporary_folder() -> Path:
    """A new folder; a `RecordingError` where there is none to be had."""
    try:
        return Path(tempfile.mkdtemp(prefix="gpuprof-", dir=_within))
    except OSError as error:
        raise RecordingError(
            f"there is no folder for temporary files ({error.strerror}: {error.filename}); "
            "set TMPDIR to one that can be written and restart"
        ) from error


def keep_folders_within(folder: Path) -> None:
    """Let all folders of this process, and of those that it forks, lie in this one."""
    global _within
    _within = folder
