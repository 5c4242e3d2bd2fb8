"""A progress bar for work of more than a second, below the cell or in the terminal.

In a notebook it is an output that is emptied at the end. (The bars of tqdm and rich leave a widget,
which a reopened notebook cannot show.) The result is an output of its own: some front ends do not
update outputs.

    with Progress() as progress:
        for number, file in enumerate(files):
            progress.reached(number / len(files), f"{number} of {len(files)} files read")

What comes after a profiled cell tells `stage` instead, which is silent outside of `AfterTheCell`.
"""

from __future__ import annotations

import builtins
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from contextvars import ContextVar
from time import monotonic
from types import TracebackType
from typing import Any, Protocol, Self
from uuid import uuid4

PATIENCE_S = 1.0
PAUSE_S = 0.1
"""Time between two changes of the bar: a notebook draws no more of them."""
WIDTH = 24

MimeBundle = dict[str, Any]

STAGES = {
    "PyTorch writes what it recorded": 0.21,
    "reading what PyTorch wrote": 0.34,
    "joining ops, lines and modules": 0.68,
    "looking for findings": 0.76,
    "making the tables": 0.86,
}
"""What is done once a cell has ended, and the part of the time that is over when it begins.

Measured with 500,000 slices of a training step. Before the first, PyTorch stops recording.
"""


class Place(Protocol):
    """Where a bar is seen."""

    def show(self, line: str, above: MimeBundle) -> None:
        """Show the bar in place of the last one, below what was found; "" removes it."""


class Progress:
    """Shows how far some work is, once a second has passed; removes the bar at its end.

    An error of the bar costs the bar alone. ``waited_s``: what has passed already.
    """

    def __init__(
        self,
        *,
        place: Place | None = None,
        clock: Callable[[], float] = monotonic,
        waited_s: float = 0.0,
    ) -> None:
        self._place, self._clock = place or place_of_bars(), clock
        self._began = self._changed = clock() - waited_s
        self._words = ""
        self._above: MimeBundle = {}
        self._shown = self._ended = False

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._shown:
            self._show("")

    def reached(self, share: float, words: str) -> None:
        """Say how far the work is: the share of it that is done, and what is done now."""
        now = self._clock()
        drawn = self._shown and words == self._words and now - self._changed < PAUSE_S
        if self._ended or drawn or now - self._began <= PATIENCE_S:
            return
        self._changed, self._words, self._shown = now, words, True
        filled = round(WIDTH * min(max(share, 0.0), 1.0))
        bar = "█" * filled + "░" * (WIDTH - filled)
        self._show(f"{bar} {words}")

    def _show(self, line: str) -> None:
        try:
            self._place.show(line, self._above)
        except Exception:
            self._place = _Nowhere()


class AfterTheCell(Progress):
    """Shows how far the `STAGES` are, as `stage` tells the innermost one of this thread or task."""

    _first: float | None = None
    """The share at which the first stage began that was told."""

    def __enter__(self) -> Self:
        self._token = _current.set(self)
        return self

    def __exit__(self, *raised: Any) -> None:
        _current.reset(self._token)
        super().__exit__(*raised)

    def stage(self, words: str, done: float = 0.0) -> None:
        """Say which of the `STAGES` is being done, and the part of it that is."""
        begins = [*STAGES.values(), 1.0]
        at = list(STAGES).index(words)
        share = begins[at] + done * (begins[at + 1] - begins[at])
        if self._first is None:  # a profile that is shown again is not read before
            self._first = share if at else 0.0
        self.reached((share - self._first) / (1 - self._first), words)

    def found(self, bundle: Callable[[], MimeBundle]) -> None:
        """Show a part of the result above the bar, if there is one; it stays after a Ctrl-C."""
        if self._clock() - self._began > PATIENCE_S:
            self._above = bundle()

    def end(self) -> None:
        """Remove the bar and what is above it, as the result comes now; no bar comes after that."""
        was_shown, self._shown, self._ended, self._above = self._shown, False, True, {}
        if was_shown:
            self._show("")


_current: ContextVar[AfterTheCell | None] = ContextVar("after the cell", default=None)


def after_the_cell() -> AbstractContextManager[AfterTheCell]:
    """Return the current `AfterTheCell` if there is one, else one that lasts for the block."""
    current = _current.get()
    return AfterTheCell() if current is None else nullcontext(current)


def stage(words: str, done: float = 0.0) -> None:
    """Say which of the `STAGES` is being done, where an `AfterTheCell` shows it."""
    current = _current.get()
    if current is not None:
        current.stage(words, done)


def found(bundle: Callable[[], MimeBundle]) -> None:
    """Show a part of the result where an `AfterTheCell` is shown."""
    current = _current.get()
    if current is not None:
        current.found(bundle)


def _below(above: MimeBundle, line: str) -> MimeBundle:
    """Return the bar below what was found, or one of them alone."""
    if not above or not line:
        return above or ({"text/plain": line} if line else {})
    return {
        "text/html": f"{above['text/html']}<pre>{line}</pre>",
        "text/plain": f"{above['text/plain']}\n{line}",
    }


def cell_display() -> Callable[..., Any] | None:
    """Return IPython's ``display`` while a cell runs, None elsewhere."""
    # A shell leaves `display` in the builtins for good, but `get_ipython` only while a cell runs.
    running = hasattr(builtins, "get_ipython")
    return getattr(builtins, "display", None) if running else None


def place_of_bars(*, quiet: bool = False) -> Place:
    """Return where a bar is seen: below the running cell, in a terminal, or nowhere."""
    if quiet:
        return _Nowhere()
    display = cell_display()
    shell = getattr(builtins, "get_ipython", lambda: None)()
    if display is not None and hasattr(shell, "kernel"):
        return _Cell(display)
    return _Terminal() if _has_terminal() else _Nowhere()


def _has_terminal() -> bool:
    try:
        return sys.stderr.isatty()
    except Exception:  # what a program put there may be closed, or know only `write`
        return False


class _Cell:
    """An output of the running cell."""

    def __init__(self, display: Callable[..., Any]) -> None:
        self._display = display
        self._id = uuid4().hex
        self._is_there = False

    def show(self, line: str, above: MimeBundle) -> None:
        update, self._is_there = self._is_there, True  # a Ctrl-C may come right after the display
        self._display(_below(above, line), raw=True, display_id=self._id, update=update)


class _Terminal:
    """The last line of the terminal, on stderr."""

    def show(self, line: str, above: MimeBundle) -> None:
        erase = "\r\x1b[K"
        sys.stderr.write(f"{erase}{line}")
        sys.stderr.flush()


class _Nowhere:
    """No place: a log file, or a test."""

    def show(self, line: str, above: MimeBundle) -> None:
        """Show nothing."""
