"""Read the events of a Chrome trace from JSON in batches, and the other keys of the file.

A file that is not JSON is read event by event and mended as far as possible: torch does not escape
quotes in names, and files are cut off. A file may also hold several documents, where one trace was
written after another.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from gpuprof_widgets.exceptions import TraceError
from gpuprof_widgets.trace.files import valid_utf8
from gpuprof_widgets.trace.trace_events import (
    ANY,
    KEYS,
    LIST,
    Event,
    EventPlaces,
    TraceFile,
    any_value,
    containers,
    decoded_event,
    find_events,
    is_list,
    mended_header,
    most_containers,
    most_in_events,
    without_bare_values,
)

Gathered = TypeVar("Gathered")

BATCH_BYTES = 2 << 20
"""With this size, the objects of a batch fit the processor's cache, and memory is reused."""
_BATCH_EVENTS = 4096
"""Size of a batch of events that are read one by one."""

SAMPLES = "samples"
"""The key of the global samples, which a sampling profiler of the operating system takes."""

_EVENTS = msgspec.json.Decoder(list[Event])
_ITEMS = msgspec.json.Decoder(list[msgspec.Raw])
_OBJECTS = re.compile(rb"\[\s*\{")

_NON_FINITE = re.compile(
    rb"([:\[,]\s*)([-+]?(?:nan|inf(?:inity)?)|n/a)(?=\s*[,}\]])", re.IGNORECASE
)
_CUT = re.compile(rb"\n  (\},)\n")
_ANY_CUT = re.compile(rb"(\}\s*,)\s*\{")


class NoTraceError(TraceError):
    """JSON that is no trace."""


def read_events(data: bytes, path: Path, gather: Callable[[TraceFile], Gathered]) -> Gathered:
    """Return what ``gather`` makes of the trace, which is an object or a bare list.

    ``gather`` is called again if the file turns out to be broken and can be mended.
    """
    try:
        return gather(_decoded(data, path))
    except (msgspec.DecodeError, RecursionError) as error:
        broken = error
    text, notes = valid_utf8(data)
    if "trailing characters" in str(broken):
        lines = as_list_of_lines(text)
        if lines is None:
            check_one_document(text, path)
        else:
            text, notes = (
                lines,
                [*notes, "the file has an event per line: they were read as a list"],
            )
    repaired, repairs = _with_likely_repairs(text)
    try:
        return gather(_decoded(repaired, path, [*notes, *repairs]))
    except (msgspec.DecodeError, RecursionError):
        return gather(mended_file(text, path, broken, notes))


def _with_likely_repairs(text: bytes) -> tuple[bytes, list[str]]:
    """Quote numbers that JSON does not have, and close a list that the format lets open."""
    text, count = _NON_FINITE.subn(rb'\1"\2"', text)
    note = f"{count:,} numbers that are none (NaN, Infinity, N/A) were read as text"
    open_list = is_list(text) and not text.rstrip().endswith(b"]")
    return (text.rstrip().rstrip(b",") + b"]" if open_list else text), [note] if count else []


def _decoded(data: bytes, path: Path, notes: Sequence[str] = ()) -> TraceFile:
    if is_list(data):
        file = TraceFile({}, notes=[*notes])
        file.batches = _batches(memoryview(data.lstrip()), file)
        return file
    keys = KEYS.decode(data)
    if "traceEvents" not in keys:
        names = ", ".join(list(keys)[:8]) or "nothing"
        raise NoTraceError(
            f'{path}: JSON, but not a trace: there is no "traceEvents" key (found: {names}).'
        )
    events = memoryview(keys.pop("traceEvents"))
    if bytes(events[:1]) != b"[":
        raise NoTraceError(
            f'{path}: JSON, but not a trace: "traceEvents" is {_shown(events)}, not a list.'
        )
    file = TraceFile({}, notes=[*notes])
    if SAMPLES in keys and _OBJECTS.match(keys[SAMPLES]):  # else it is a key of the user
        file.samples = _events(bytes(keys.pop(SAMPLES)), file)
    file.header = _header(keys, len(data), file)
    file.batches = _batches(events, file)
    return file


def _shown(value: memoryview) -> str:
    return bytes(value[:20]).decode("utf-8", "replace")


def _batches(text: memoryview, file: TraceFile) -> Iterator[list[Event]]:
    """Yield the events of a JSON list, cut at Kineto's line ends, else between objects.

    A batch that is cut within an event or a string is not JSON, and becomes longer.
    """
    start, size = 1, BATCH_BYTES
    while start:
        cut = _cut(text, start, size)
        if cut is None:
            yield _events(b"".join((b"[", text[start:])), file)
            return
        try:
            batch = _events(b"".join((b"[", text[start : cut.start(1) + 1], b"]")), file)
        except msgspec.DecodeError:
            size *= 2
            continue
        yield batch
        start, size = cut.end(1), BATCH_BYTES


def _cut(text: memoryview, start: int, size: int) -> re.Match[bytes] | None:
    """Find a place to cut the list after about ``size`` bytes; its group is the end of an event.

    Lists that are not laid out as Kineto's are cut sooner, because an event may have three bytes.
    """
    at = start + size
    return _CUT.search(text, at, at + size) or _ANY_CUT.search(text, start + size // 8)


def _header(keys: dict[str, msgspec.Raw], size: int, file: TraceFile) -> dict[str, Any]:
    """Decode the keys other than events; skip values of too many parts for ``size`` bytes."""
    left = most_containers(size)
    header = {}
    for key, raw in keys.items():
        count = containers(raw, left)
        if count > left:
            file.notes.append(
                f'what the file has under "{key[:100]}" ({len(raw):,} bytes) was not read: it is '
                f"{count:,} lists and objects, more than any profiler writes"
            )
            continue
        left -= count
        header[key] = any_value(raw)
    return header


def _events(text: bytes, file: TraceFile) -> list[Event]:
    most = most_in_events(len(text))
    if containers(text, most) <= most:
        with suppress(msgspec.ValidationError):  # JSON, but some event has a wrong type in it
            return _EVENTS.decode(text)
    text, bare = without_bare_values(text)
    file.left_out += bare
    items = _ITEMS.decode(text)
    return [event for item in items if (event := decoded_event(bytes(item), file)) is not None]


def mended_file(text: bytes, path: Path, error: Exception, notes: Sequence[str]) -> TraceFile:
    """Read as much as possible of a file that is not JSON; else raise an error with the place."""
    opened = LIST.search(text)
    events = find_events(text, opened.end()) if opened else None
    if opened is None or events is None or not events.places:
        raise TraceError(_broken(text, path, error)) from error
    file = TraceFile({}, notes=[*notes])
    if not is_list(text):
        file.header = _mended_header(text, opened.end(), events, file)
    if events.odd_commas:
        file.notes.append(
            "commas too many or missing between events, or at their ends, were mended: "
            f"{events.odd_commas:,}"
        )
    file.notes += _cut_off(text, events)
    file.batches = _mended_batches(text, events, file, TraceError(_broken(text, path, error)))
    return file


def _mended_header(text: bytes, start: int, events: EventPlaces, file: TraceFile) -> dict[str, Any]:
    """Return the keys other than the events, as far as they can be read."""
    outside = text[:start] + (b"]}" if events.end is None else text[events.end :])
    most = most_containers(len(text))
    if containers(outside, most) > most:
        file.notes.append(
            f"what stands beside the events ({len(outside):,} bytes) was not read: it is more "
            "lists and objects than any profiler writes"
        )
        return {}
    header = mended_header(outside)
    if header is None:
        header = mended_header(text[:start] + b"]}")
        place = "beside" if header is None else "after"
        file.notes.append(f"what stands {place} the events is cut off or not JSON: it was not read")
    if header is None:
        return {}
    keys, left, was_mended = header
    if was_mended:
        file.notes.append("what stands beside the events is not JSON and was mended")
    if left:
        file.notes.append(f"{left:,} bytes after the end of the trace were not read")
    return {key: value for key, value in keys.items() if key != "traceEvents"}


def _cut_off(text: bytes, events: EventPlaces) -> list[str]:
    """Return a note on a list of events that does not end, or was not searched to its end."""
    if events.end is not None:
        return []
    if events.given_up_at is not None:
        at = f"{events.given_up_at:,}"
        return [f"so much of the file is not JSON that nothing from byte {at} on was read"]
    return [
        f"the file ends at byte {len(text):,}, in or after event {len(events.places):,}, before it "
        "is complete: it was cut off while it was written or copied, and what follows is lost"
    ]


def _mended_batches(
    text: bytes, events: EventPlaces, file: TraceFile, nothing: TraceError
) -> Iterator[list[Event]]:
    """Yield the events at these places; raise ``nothing`` if none of them can be read."""
    any_event = False
    for first in range(0, len(events.places), _BATCH_EVENTS):
        places = events.places[first : first + _BATCH_EVENTS]
        chunks = (text[start:end] for start, end in places)
        batch = [event for chunk in chunks if (event := decoded_event(chunk, file)) is not None]
        any_event = any_event or bool(batch)
        yield batch
    if not any_event:
        raise nothing


def _broken(data: bytes, path: Path, error: Exception) -> str:
    """Return the message for JSON that breaks: where, what is there, and what to do."""
    if isinstance(error, RecursionError):
        return f"{path}: something in it is nested deeper than any trace; record again."
    place = re.search(r"byte (\d+)", str(error))
    position = int(place.group(1)) if place else len(data)
    events = data.count(b'"ph"', 0, position)
    where = f"at byte {position:,} of {len(data):,} (after event {events:,})"
    if "truncated" in str(error) or position >= len(data):
        return (
            f"{path}: the JSON ends {where}, before it is complete: the file was cut off while it "
            "was written or copied. Copy it again, or record again."
        )
    around = data[max(position - 30, 0) : position + 30]
    return (
        f"{path}: not valid JSON {where}: {error}; the text there is {around!r}. "
        "Mend the file at that place, or record again."
    )


MOST_DOCUMENTS = 100
"""A file with more documents holds no traces; it may be a log with an object per line."""

_TRAILING = re.compile(r"trailing characters \(byte (\d+)\)")
_NEXT_DOCUMENT = re.compile(rb"[\s,]*(?=[{\[])")
_BETWEEN_LINES = re.compile(rb"(?<=\})[ \t\r]*\n\s*(?=\{)")
"""A line end between objects: in JSON, strings hold no line ends."""


@dataclass(frozen=True)
class Document:
    """One of the documents in a file: the byte at which it starts, and its text."""

    start: int
    text: bytes


class SecondDocumentError(TraceError):
    """Another JSON document follows the first one in a file; ``documents`` are all of them."""

    def __init__(self, path: Path, documents: list[Document]) -> None:
        self.documents = documents
        at = ", ".join(f"{document.start:,}" for document in documents[1:7])
        more = " ..." if len(documents) > 7 else ""
        super().__init__(
            f"{path}: {len(documents):,} JSON documents one after another, where one was expected "
            f"(the next ones start at byte {at}{more}). Cut it there, and open one of the parts."
        )


def check_one_document(text: bytes, path: Path) -> None:
    """Raise a `SecondDocumentError` if another JSON document follows the first one."""
    start = 0
    documents: list[Document] = []
    while len(documents) <= MOST_DOCUMENTS:
        end = _end(memoryview(text)[start:])
        following = _NEXT_DOCUMENT.match(text, start + end) if end else None
        stop = following.start() if following else len(text)
        documents.append(Document(start, text[start:stop]))
        if following is None:
            break
        start = following.end()
    if len(documents) > MOST_DOCUMENTS:
        raise TraceError(
            f"{path}: more than {MOST_DOCUMENTS} JSON documents one after another, the first of "
            f"which ends before byte {documents[1].start:,}, where one trace was expected. Cut out "
            "the one that you want to see."
        )
    if len(documents) > 1:
        raise SecondDocumentError(path, documents)


def as_list_of_lines(text: bytes) -> bytes | None:
    """Turn text with an event per line into a JSON list; None if it is no such text.

    The list stays open if the last event was cut off.
    """
    try:
        first = KEYS.decode(memoryview(text)[: _end(memoryview(text))])
    except msgspec.DecodeError:
        return None
    if "ph" not in first:
        return None
    events = _BETWEEN_LINES.sub(b",\n", text.rstrip())
    return b"[" + events + (b"]" if events.endswith(b"}") else b"")


def _end(text: memoryview) -> int:
    """Return the end of the first document if text follows it; 0 if not, or if it is broken."""
    try:
        ANY.decode(text)
    except msgspec.DecodeError as error:
        trailing = _TRAILING.search(str(error))
        return int(trailing[1]) - 1 if trailing else 0  # msgspec also counts the byte it read last
    return 0
