"""Chrome's stack frames: call stacks that a file keeps beside its events, as Kineto writes them.

``stackFrames`` is an object of frames by id, each with a ``name`` and the id of its ``parent``; an
event names its innermost frame as ``sf``, or lists its own frames, outermost first, as ``stack``.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from gpuprof_widgets.trace.trace_events import Event

STACK_FRAMES = "stackFrames"
CALL_STACK = "Call stack"
"""The arg of a slice with its frames, innermost first, and semicolons in between."""

DEEPEST = 200
"""As many frames are followed; parents that stand in a circle end here."""

MOST_TEXT = 48 << 20
"""About as many characters all stacks may have: a small file can mean many times its size."""
_COST_OF_A_FRAME = 8
"""In characters: following it takes time, however short its name is."""
_OTHERS = frozenset("EeFDP")
"""Phases of events that end a slice, as what they have as ``sf`` is the stack at its end; and of
samples, which `sampled_lanes` reads."""


class CallStacks:
    """The stacks of a file's events; each text is made once.

    ``left_out`` counts the events whose stack was not read, as there was too much text before.
    """

    def __init__(self, frames: Any) -> None:
        self._frames: dict[str, Any] = frames if isinstance(frames, dict) else {}
        self._known: dict[str, str] = {}
        self._room = MOST_TEXT
        self.left_out = 0

    def give(self, events: Iterable[Event]) -> None:
        """Put its stack among the args of each event that has one."""
        for event in events:
            if (event.sf is None and event.stack is None) or event.ph in _OTHERS:
                continue
            text = self._of(event)
            self.left_out += text is None
            if text:
                event.args = {**(event.args or {}), CALL_STACK: text}

    def _of(self, event: Event) -> str | None:
        """The event's stack, "" if it has none; None if there is no room for it."""
        if event.sf is None:
            own = event.stack if isinstance(event.stack, list) else []
            return ";".join(name for name in own[: -DEEPEST - 1 : -1] if isinstance(name, str))
        frame = str(event.sf)
        if frame not in self._known and self._room > 0:
            names = list(self._names(frame))
            self._room -= sum(map(len, names)) + _COST_OF_A_FRAME * len(names)
            self._known[frame] = ";".join(names)
        return self._known.get(frame)

    def _names(self, frame: str) -> Iterator[str]:
        """The names of a frame and of those that called it."""
        for _ in range(DEEPEST):
            found = self._frames.get(frame)
            if not isinstance(found, dict):
                return
            yield str(found.get("name", ""))
            if found.get("parent") is None:
                return
            frame = str(found["parent"])
