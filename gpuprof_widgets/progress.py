"""A progress bar for work of more than a second, below the cell or in the terminal.

In a notebook it is one output, which the result replaces: nothing of it stays in the file. (tqdm's
bars leave a widget that a reopened notebook cannot show.)

    with Progress() as progress:
        for number, file in enumerate(files):
            progress.reached(number / len(files), f"{number} of {len(files)} files read")

What comes after a profiled cell reports to `stage` instead, which is silent without a `Progress`.
"""

from __future__ import annotations

import builtins
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from time import monotonic
from types import TracebackType
from typing import Any, Protocol, Self

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

    def show(self, bundle: MimeBundle) -> None:
        """Show this instead of what was shown before; an empty text removes it."""

    def hand_over(self, bundle: MimeBundle) -> bool:
        """Show the result in the bar's place; False where that is not possible."""


class Progress:
    """Shows how far some work is, once a second has passed; removes the bar at its end."""

    def __init__(
        self, *, place: Place | None = None, clock: Callable[[], float] = monotonic
    ) -> None:
        self._place, self._clock = place or place_of_bars(), clock
        self._began = self._changed = clock()
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
            self._place.show(self._above or {"text/plain": ""})

    def reached(self, share: float, words: str) -> None:
        """Say how far the work is: the share of it that is done, and what is done now."""
        now = self._clock()
        too_soon = now - self._began <= PATIENCE_S
        if self._ended or too_soon or (self._shown and now - self._changed < PAUSE_S):
            return
        self._changed, self._shown = now, True
        filled = round(WIDTH * min(max(share, 0.0), 1.0))
        bar = "█" * filled + "░" * (WIDTH - filled)
        self._place.show(_below(self._above, f"{bar} {words}"))


class AfterTheCell(Progress):
    """Shows how far the `STAGES` are, as `stage` says to the ``current`` one."""

    current: AfterTheCell | None = None

    def __init__(
        self, *, place: Place | None = None, clock: Callable[[], float] = monotonic
    ) -> None:
        super().__init__(place=place, clock=clock)
        self._first: float | None = None
        self._outer: AfterTheCell | None = None

    def __enter__(self) -> Self:
        self._outer, AfterTheCell.current = AfterTheCell.current, self
        return self

    def __exit__(self, *raised: Any) -> None:
        AfterTheCell.current = self._outer
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

    def replaced_by(self, bundle: MimeBundle) -> bool:
        """Show a result in place of the bar; False where it has to be displayed by itself.

        No bar is shown after the first result.
        """
        was_shown, self._shown, self._ended = self._shown, False, True
        return was_shown and self._place.hand_over(bundle)


def after_the_cell() -> AbstractContextManager[AfterTheCell]:
    """Return the current `AfterTheCell` if there is one, else one that lasts for the block."""
    current = AfterTheCell.current
    return AfterTheCell() if current is None else nullcontext(current)


def stage(words: str, done: float = 0.0) -> None:
    """Say which of the `STAGES` is being done, where an `AfterTheCell` shows it."""
    if AfterTheCell.current is not None:
        AfterTheCell.current.stage(words, done)


def found(bundle: Callable[[], MimeBundle]) -> None:
    """Show a part of the result where an `AfterTheCell` is shown."""
    if AfterTheCell.current is not None:
        AfterTheCell.current.found(bundle)


def _below(above: MimeBundle, line: str) -> MimeBundle:
    """Return the bar below what was found, or alone."""
    if not above:
        return {"text/plain": line}
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
    return _Terminal() if sys.stderr.isatty() else _Nowhere()


class _Cell:
    """An output of the running cell."""

    def __init__(self, display: Callable[..., Any]) -> None:
        self._display = display
        self._handle: Any = None

    def show(self, bundle: MimeBundle) -> None:
        if self._handle is None:
            self._handle = self._display(bundle, raw=True, display_id=True)
        else:
            self._handle.update(bundle, raw=True)

    def hand_over(self, bundle: MimeBundle) -> bool:
        self.show(bundle)
        return True


class _Terminal:
    """The last line of the terminal, on stderr."""

    def show(self, bundle: MimeBundle) -> None:
        erase = "\r\x1b[K"
        sys.stderr.write(f"{erase}{bundle['text/plain'].rpartition(chr(10))[2]}")
        sys.stderr.flush()

    def hand_over(self, bundle: MimeBundle) -> bool:
        self.show({"text/plain": ""})
        return False


class _Nowhere:
    """No place: a log file, or a test."""

    def show(self, bundle: MimeBundle) -> None:
        """Show nothing."""

    def hand_over(self, bundle: MimeBundle) -> bool:
        return False
