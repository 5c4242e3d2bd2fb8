"""Several JSON documents in one file: a trace that was written behind another one."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

import msgspec

from gpuprof_widgets.exceptions import TraceError

MOST_DOCUMENTS = 100
"""A file of more is no file of traces: a log with one event per line, for instance."""

_TRAILING = re.compile(r"trailing characters \(byte (\d+)\)")
_NEXT = re.compile(rb"[\s,]*(?=[{\[])")
_ANY = msgspec.json.Decoder(msgspec.Raw)


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
    if len(found) > 1:
        raise SecondDocumentError(path, found)


def _end(text: memoryview) -> int:
    """Where the first document ends if something follows it; 0 where nothing does, or it breaks."""
    try:
        _ANY.decode(text)
    except msgspec.DecodeError as error:
        found = _TRAILING.search(str(error))
        return int(found[1]) - 1 if found else 0  # msgspec counts what it took, this one too
    return 0
