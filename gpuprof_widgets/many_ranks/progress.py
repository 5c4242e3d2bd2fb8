"""One line that says how far it has come, where that takes more than a second and someone looks."""

from __future__ import annotations

import builtins
import sys
from collections.abc import Callable
from time import monotonic
from types import TracebackType
from typing import Self, TextIO, TypeVar

Value = TypeVar("Value")

PATIENCE_S = 1.0
WIDTH = 24


class Progress:
    """Counts up to ``total`` and redraws its line; what is done within a second shows nothing.

    Without a ``stream`` it is drawn in terminals and notebooks alone, not into files.
    """

    def __init__(
        self,
        total: int,
        noun: str,
        *,
        stream: TextIO | None = None,
        clock: Callable[[], float] = monotonic,
    ) -> None:
        self._total, self._noun, self._clock = total, noun, clock
        self._stream = stream or sys.stderr
        self._is_seen = stream is not None or sys.stderr.isatty() or hasattr(builtins, "display")
        self._done, self._shown = 0, 0
        self._began = clock()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Leave no half line behind."""
        if self._shown:
            self._stream.write("\r" + " " * self._shown + "\r")
            self._stream.flush()

    def counted(self, value: Value) -> Value:
        """One more is done; returns what it is given."""
        self._done += 1
        if self._is_seen and self._clock() - self._began > PATIENCE_S:
            self._draw()
        return value

    def _draw(self) -> None:
        filled = WIDTH * self._done // max(self._total, 1)
        bar = "█" * filled + "░" * (WIDTH - filled)
        line = f"{bar} {self._done} of {self._total} {self._noun}"
        self._stream.write(f"\r{line}")
        self._stream.flush()
        self._shown = len(line)
