"""Several JSON documents in one file: a trace that was written behind another one."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

import msgspec

from gpuprof_widgets.exceptions import TraceError

MOST_DOCUMENTS = 100
"""A file of more is no file of traces: a log with one object per line, for instance."""

_TRAILING = re.compile(r"trailing characters \(byte (\d+)\)")
_NEXT = re.compile(rb"[\s,]*(?=[{\[])")
_BETWEEN_LINES = re.compile(rb"(?<=\})[ \t\r]*\n\s*(?=\{)")
"""In JSON no line ends within text."""
_ANY = msgspec.json.Decoder(msgspec.Raw)
_KEYS = msgspec.json.Decoder(dict[str, msgspec.Raw])


@dataclass(frozen=True)
class Document:
    """One of the documents in a file: the byte at which it starts, and its text."""

    start: int
    text: bytes


class SecondDocumentError(TraceError):
    """A file in which another JSON document follows the first; ``documents`` are all of them."""

    def __init__(self, path: Path, found: list[Document]) -> None:
        self.documents = found
        at = ", ".join(f"{one.start:,}" for one in found[1:7])
        more = " ..." if len(found) > 7 else ""
        super().__init__(
            f"{path}: {len(found):,} JSON documents one after another, where one was expected (the "
            f"next ones start at byte {at}{more}). Cut it there, and open one of the parts."
        )


def check_one_document(text: bytes, path: Path) -> None:
    """Raises a `SecondDocumentError` where a JSON document is followed by another one."""
    start = 0
    found: list[Document] = []
    while len(found) <= MOST_DOCUMENTS:
        end = _end(memoryview(text)[start:])
        following = _NEXT.match(text, start + end) if end else None
        stop = following.start() if following else len(text)
        found.append(Document(start, text[start:stop]))
        if following is None:
            break
        start = following.end()
    if len(found) > MOST_DOCUMENTS:
        raise TraceError(
            f"{path}: more than {MOST_DOCUMENTS} JSON documents one after another, the first of "
            f"which ends before byte {found[1].start:,}, where one trace was expected. Cut out "
            "the one that you want to see."
        )
    if len(found) > 1:
        raise SecondDocumentError(path, found)


def as_list_of_lines(text: bytes) -> bytes | None:
    """The JSON list of the events of which each has a line of its own; None if it is no such text.

    The list is not closed where the last event was cut off.
    """
    try:
        first = _KEYS.decode(memoryview(text)[: _end(memoryview(text))])
    except msgspec.DecodeError:
        return None
    if "ph" not in first:
        return None
    events = _BETWEEN_LINES.sub(b",\n", text.rstrip())
    return b"[" + events + (b"]" if events.endswith(b"}") else b"")


def _end(text: memoryview) -> int:
    """Where the first document ends if something follows it; 0 where nothing does, or it breaks."""
    try:
        _ANY.decode(text)
    except msgspec.DecodeError as error:
        found = _TRAILING.search(str(error))
        return int(found[1]) - 1 if found else 0  # msgspec counts what it took, this one too
    return 0
