"""The stacks of a snapshot, each once: its entries repeat few of them many times."""

from __future__ import annotations

from typing import Any

from gpuprof_widgets.trace.memory_snapshot.content import Entry, number, text
from gpuprof_widgets.trace.schema import NONE


class Stacks:
    """Distinct stacks by number, as lists of numbers of frames, innermost first.

    ``frames``: as torch.profiler writes them, ``train.py(12): step``; a C++ frame without a file by
    its name alone.
    """

    def __init__(self) -> None:
        self.frames: list[str] = []
        self.stacks: list[list[int]] = []
        self._frame_of_object: dict[int, int] = {}
        self._frame_of_text: dict[str, int] = {}
        self._stack_of_object: dict[int, int] = {}
        self._stack_of_frames: dict[tuple[int, ...], int] = {}

    def number(self, entry: Entry) -> int:
        """The number of the stack under an entry's ``frames``; `NONE` where it has none."""
        frames = entry.get("frames")
        if type(frames) is not list or not frames:
            return NONE
        known = self._stack_of_object.get(id(frames))  # the snapshot keeps every object alive
        if known is None:
            known = self._stack_of_object[id(frames)] = self._numbered(frames)
        return known

    def _numbered(self, frames: list[Any]) -> int:
        key = tuple(self._frame(frame) for frame in frames if type(frame) is dict)
        if not key:
            return NONE
        found = self._stack_of_frames.setdefault(key, len(self.stacks))
        if found == len(self.stacks):
            self.stacks.append(list(key))
        return found

    def _frame(self, frame: Entry) -> int:
        known = self._frame_of_object.get(id(frame))
        if known is None:
            words = _words(frame)
            known = self._frame_of_text.setdefault(words, len(self.frames))
            if known == len(self.frames):
                self.frames.append(words)
            self._frame_of_object[id(frame)] = known
        return known


def _words(frame: Entry) -> str:
    file, name = text(frame, "filename"), text(frame, "name")
    if file in ("", "??", "none"):
        return name
    return f"{file}({number(frame, 'line') or 0}): {name}"
