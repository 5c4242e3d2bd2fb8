"""The text of the cells whose lines were recorded."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from gpuprof_widgets.trace.model import Record


@dataclass(frozen=True)
class LineSource:
    """A cell, or the function of a file: its name as the slices' ``cell``, and its text.

    ``first`` is the number of the text's first line, ``statements`` are those in which recorded
    statements begin, ``beyond_limit`` those that ran more often than is recorded.
    """

    name: str
    first: int
    text: tuple[str, ...]
    statements: tuple[int, ...]
    beyond_limit: tuple[int, ...] = ()

    def code(self, line: int) -> str:
        """A line without its indentation; empty outside of the text."""
        place = line - self.first
        return self.text[place].strip() if 0 <= place < len(self.text) else ""


def line_sources(record: Record) -> list[LineSource]:
    """The sources that the recording left in the metadata; none where lines were not recorded."""
    lines = record.metadata.get("lines") or {}
    return [_source(given) for given in lines.get("cells", ())]


def _source(given: dict[str, Any]) -> LineSource:
    return LineSource(
        str(given["label"]),
        int(given.get("first_line", 1)),
        tuple(str(given["source"]).splitlines()),
        tuple(int(line) for line in given.get("statements", ())),
        tuple(int(line) for line in given.get("beyond_limit", ())),
    )
