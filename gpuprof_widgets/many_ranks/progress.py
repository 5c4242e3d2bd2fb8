"""One line that says how far it has come, where that takes more than a second."""

from __future__ import annotations

import sys
from collections.abc import Callable
from time import monotonic
from types import TracebackType
from typing import Any, Self, TypeVar

from gpuprof_widgets.runtime_carrier import cell_display

Value = TypeVar("Value")
Show = Callable[[str], None]
"""Shows a line in the place of the one before; "" takes it away."""

PATIENCE_S = 1.0
WIDTH = 24


class Progress:
    """Counts up to ``total`` and shows how far it is; within a second it shows nothing.

    Below a notebook's cell and in a terminal; where neither is, nobody would see it.
    """

    def __init__(
        self,
        total: int,
        noun: str,
        *,
        show: Show | None = None,
        clock: Callable[[], float] = monotonic,
    ) -> None:
        self._total, self._noun, self._clock = total, noun, clock
        self._show = show or _place()
        self._done, self._shown = 0, False
        self._began = clock()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Leave no line behind."""
        if self._shown:
            self._show("")

    def counted(self, value: Value) -> Value:
        """One more is done; returns what it is given."""
        self._done += 1
        if self._clock() - self._began > PATIENCE_S:
            filled = WIDTH * self._done // max(self._total, 1)
            bar = "█" * filled + "░" * (WIDTH - filled)
            self._show(f"{bar} {self._done} of {self._total} {self._noun}")
            self._shown = True
        return value


def _place() -> Show:
    display = cell_display()
    if display is not None:
        return _below_the_cell(display)
    return _in_the_terminal if sys.stderr.isatty() else _nowhere


def _below_the_cell(display: Any) -> Show:
    handle: list[Any] = []

    def show(line: str) -> None:
        if handle:
            handle[0].update({"text/plain": line}, raw=True)
        else:
            handle.append(display({"text/plain": line}, raw=True, display_id=True))

    return show


def _in_the_terminal(line: str) -> None:
    erase = "\r\x1b[K"
    sys.stderr.write(f"{erase}{line}")
    sys.stderr.flush()


def _nowhere(line: str) -> None:
    """Nobody looks."""
