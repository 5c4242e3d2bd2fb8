"""The recorder at work in this process, if any: what runs inside it asks here."""

from __future__ import annotations

from collections.abc import Mapping
from contextvars import ContextVar
from typing import Any, Protocol


class Loop(Protocol):
    """A loop whose iterations are counted, and which says when the recorder's windows are."""

    @property
    def explicit(self) -> bool:
        """Whether the code itself asks for it: then it goes before one that an option bounds."""

    @property
    def recorded(self) -> int:
        """How many of its steps were recorded since the windows began."""

    def give_up(self) -> None:
        """Stop counting: another loop has taken the recorder."""

    def close(self) -> None:
        """End with the run, if it has not ended itself: its last step was left in the middle."""

    def left_out(self) -> Mapping[str, int]:
        """The names of steps that turned out to be none, and how often the first ones did."""

    def notes(self) -> list[str]: ...

    def metadata(self) -> dict[str, Any]: ...


class Windows(Protocol):
    """A recorder, as a loop uses it. None of these raises an Exception; what failed is a note."""

    def take(self, loop: Loop) -> bool:
        """Record the windows of this loop from now on, and not what ran before it.

        False, and a note, where another loop has the recorder already.
        """

    @property
    def is_taken(self) -> bool: ...

    @property
    def has_cprofile(self) -> bool: ...

    def begin_window(self, step: int) -> None:
        """Start recording with this step."""

    def end_trace(self) -> int:
        """Stop the window's trace but not its cProfile; how long it waited for the device (ns)."""

    def end_window(self) -> int:
        """Stop the window; how long it waited for the device (ns)."""

    def keep_cycle(self) -> None:
        """Save what the windows recorded until now, for a loop that records again later."""

    def begin_cycle(self) -> None:
        """Drop what the windows recorded: the loop records again."""

    @property
    def has_explicit_loop(self) -> bool:
        """Whether the loop that is recorded is one that the code bounds itself."""

    def has_work(self, *, training: bool) -> bool:
        """Whether an op or a kernel, or a backward pass, ran in the windows, which have ended."""

    def release(self) -> None:
        """Drop what the windows recorded: another loop may take the recorder."""


class Active:
    """The one recorder at work; a second one inside it records nothing."""

    recorder: Windows | None = None
    process = 0  # the one in which it began; a fork of it has a copy of the recorder
    thread = 0  # the one in which it began: of others it records neither ops nor calls
    inside: ContextVar[object] = ContextVar("inside", default=None)
    """The mark of the recording in which a task runs: tasks that it began have it as well."""
    mark: object = None
    told = False  # a decorated function may come by a thousand times: say it once
