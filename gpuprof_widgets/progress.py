"""One line on what is being done, once work has taken a second; it is gone at the end.

    with progress.line():
        for number, file in enumerate(files):
            progress.say(f"{number} of {len(files)} files read")

In a notebook the line is an output that is emptied at the end, in a terminal the last line on
stderr. (The bars of tqdm and rich leave a widget, which a reopened notebook cannot show.)
"""

from __future__ import annotations

import builtins
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from time import monotonic
from typing import Any
from uuid import uuid4

PATIENCE_S = 1.0


@contextmanager
def line(*, quiet: bool = False, waited_s: float = 0.0) -> Iterator[None]:
    """Show what `say` is told in this block, unless ``quiet``; a block within it shares its line.

    ``waited_s``: the time that has passed already.
    """
    if _current.get() is not None:
        yield
        return
    shown = _Line(None if quiet else _writer(), monotonic() + PATIENCE_S - waited_s)
    token = _current.set(shown)
    try:
        yield
    finally:
        _current.reset(token)
        shown.erase()


def say(words: str) -> None:
    """Say what is being done, where a `line` shows it."""
    current = _current.get()
    if current is not None and monotonic() > current.due:
        current.write(words)


def erase() -> None:
    """Remove the line before a result is shown."""
    current = _current.get()
    if current is not None:
        current.erase()


class _Line:
    """The line that ``writer`` shows, from the time ``due`` on; its errors cost the line alone."""

    def __init__(self, writer: Callable[[str], None] | None, due: float) -> None:
        self.due = due
        self._writer = writer
        self._is_shown = False

    def write(self, words: str) -> None:
        self._is_shown = bool(words)
        if self._writer is not None:
            try:
                self._writer(words)
            except Exception:  # a closed terminal, a full disk, a front end's own error
                self._writer = None

    def erase(self) -> None:
        if self._is_shown:
            self.write("")


_current: ContextVar[_Line | None] = ContextVar("progress line", default=None)


def cell_display() -> Callable[..., Any] | None:
    """Return IPython's ``display`` while a cell runs, None elsewhere."""
    # A shell leaves `display` in the builtins for good, but `get_ipython` only while a cell runs.
    running = hasattr(builtins, "get_ipython")
    return getattr(builtins, "display", None) if running else None


def _writer() -> Callable[[str], None] | None:
    """Return what shows a line below the running cell or in the terminal; None: it has no place."""
    display = cell_display()
    if display is not None and hasattr(builtins.get_ipython(), "kernel"):  # type: ignore[attr-defined]
        name, is_there = uuid4().hex, False

        def show(words: str) -> None:
            nonlocal is_there
            update, is_there = is_there, True  # a Ctrl-C may come right after the display
            bundle = {"text/plain": words} if words else {}
            display(bundle, raw=True, display_id=name, update=update)

        return show
    try:
        is_terminal = sys.stderr.isatty()
    except Exception:  # what a program put there may be closed, or know only `write`
        return None

    def write(words: str) -> None:
        sys.stderr.write(f"\r\x1b[K{words}")
        sys.stderr.flush()

    return write if is_terminal else None
