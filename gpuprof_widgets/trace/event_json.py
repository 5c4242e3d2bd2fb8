"""The events of a Chrome trace, and the keys beside them, read from JSON in batches.

What turns out not to be JSON is given to `broken_json`.
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
    KEYS,
    LIST,
    Event,
    Found,
    TraceFile,
    any_value,
    containers,
    counted,
    find_events,
    is_list,
    mended_header,
    most_containers,
    most_in_events,
    without_bare_values,
)

Gathered = TypeVar("Gathered")

BATCH_BYTES = 2 << 20
"""Of this size the objects of a batch fit the processor's cache, and memory is used again."""

_EVENTS = msgspec.json.Decoder(list[Event])
_ITEMS = msgspec.json.Decoder(list[msgspec.Raw])

_NON_FINITE = re.compile(
    rb"([:\[,]\s*)([-+]?(?:nan|inf(?:inity)?)|n/a)(?=\s*[,}\]])", re.IGNORECASE
)
_CUT = re.compile(rb"\n  (\},)\n")
_ANY_CUT = re.compile(rb"(\}\s*,)\s*\{")


def read_events(data: bytes, path: Path, gather: Callable[[TraceFile], Gathered]) -> Gathered:
    """What ``gather`` makes of the trace, which is in object form or a bare list.

    It is called again where the file turns out to be broken and could be mended.
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
    likely, more = _with_likely_repairs(text)
    try:
        return gather(_decoded(likely, path, [*notes, *more]))
    except (msgspec.DecodeError, RecursionError):
        return gather(mended_file(text, path, broken, notes))


def _with_likely_repairs(text: bytes) -> tuple[bytes, list[str]]:
    """With numbers that JSON does not have as text, and a list closed that the format lets open."""
    text, count = _NON_FINITE.subn(rb'\1"\2"', text)
    told = f"{count:,} numbers that are none (NaN, Infinity, N/A) were read as text"
    notes = [told] if count else []
    open_list = is_list(text) and not text.rstrip().endswith(b"]")
    return (text.rstrip().rstrip(b",") + b"]" if open_list else text), notes


class NoTraceError(TraceError):
    """JSON that is no trace."""


_OBJECTS = re.compile(rb"\[\s*\{")
SAMPLES = "samples"
"""The key of the global samples, of a sampling profiler of the operating system."""


def _decoded(data: bytes, path: Path, notes: Sequence[str] = ()) -> TraceFile:
    if is_list(data):
        file = TraceFile({}, notes=[*notes])
        file.batches = _batches(memoryview(data.lstrip()), file)
        return file
    keys = KEYS.decode(data)
    if "traceEvents" not in keys:
        found = ", ".join(list(keys)[:8]) or "nothing"
        raise NoTraceError(
            f'{path}: JSON, but not a trace: there is no "traceEvents" key (found: {found}).'
        )
    events = memoryview(keys.pop("traceEvents"))
    if bytes(events[:1]) != b"[":
        raise NoTraceError(
            f'{path}: JSON, but not a trace: "traceEvents" is {_shown(events)}, not a list.'
        )
    file = TraceFile({}, notes=[*notes])
    if SAMPLES in keys and _OBJECTS.match(keys[SAMPLES]):  # else a key of the user's
        file.samples = _events(bytes(keys.pop(SAMPLES)), file)
    file.header = _header(keys, len(data), file)
    file.batches = _batches(events, file)
    return file


def _shown(value: memoryview) -> str:
    return bytes(value[:20]).decode("utf-8", "replace")


def _batches(text: memoryview, file: TraceFile) -> Iterator[list[Event]]:
    """The events of a JSON list, cut where Kineto ends an event and its line, else between objects.

    A batch that is cut within an event or a string is not JSON: then it is made longer.
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
    """A place to cut the list after about this size; its group is what ends an event.

    Sooner where events are not laid out as Kineto's are: they may be of three bytes each.
    """
    at = start + size
    return _CUT.search(text, at, at + size) or _ANY_CUT.search(text, start + size // 8)


def _header(keys: dict[str, msgspec.Raw], size: int, file: TraceFile) -> dict[str, Any]:
    """The values beside the events, in a file of that size; not, those of too many parts."""
    left = most_containers(size)
    header = {}
    for key, raw in keys.items():
        held = containers(raw, left)
        if held > left:
            file.notes.append(
                f'what the file has under "{key[:100]}" ({len(raw):,} bytes) was not read: it is '
                f"{held:,} lists and objects, more than any profiler writes"
            )
            continue
        left -= held
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
    return [event for item in items if (event := counted(bytes(item), file)) is not None]


_BATCH_EVENTS = 4096


def mended_file(text: bytes, path: Path, error: Exception, notes: Sequence[str]) -> TraceFile:
    """What of a file that is not JSON can be read, or the error that says where it breaks."""
    opened = LIST.search(text)
    found = find_events(text, opened.end()) if opened else None
    if opened is None or found is None or not found.places:
        raise TraceError(_broken(text, path, error)) from error
    file = TraceFile({}, notes=[*notes])
    if not is_list(text):
        file.header = _mended_header(text, opened.end(), found, file)
    if found.odd_commas:
        file.notes.append(
            "commas too many or missing between events, or at their ends, were mended: "
            f"{found.odd_commas:,}"
        )
    file.notes += _cut_off(text, found)
    file.batches = _mended_batches(text, found, file, TraceError(_broken(text, path, error)))
    return file


def _mended_header(text: bytes, start: int, found: Found, file: TraceFile) -> dict[str, Any]:
    """The keys beside the events, as far as they can be read."""
    beside = text[:start] + (b"]}" if found.end is None else text[found.end :])
    most = most_containers(len(text))
    if containers(beside, most) > most:
        file.notes.append(
            f"what stands beside the events ({len(beside):,} bytes) was not read: it is more lists "
            "and objects than any profiler writes"
        )
        return {}
    header = mended_header(beside)
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


def _cut_off(text: bytes, found: Found) -> list[str]:
    if found.end is not None:
        return []
    if found.given_up_at is not None:
        at = f"{found.given_up_at:,}"
        return [f"so much of the file is not JSON that nothing from byte {at} on was read"]
    return [
        f"the file ends at byte {len(text):,}, in or after event {len(found.places):,}, before it "
        "is complete: it was cut off while it was written or copied, and what follows is lost"
    ]


def _mended_batches(
    text: bytes, found: Found, file: TraceFile, nothing: TraceError
) -> Iterator[list[Event]]:
    any_event = False
    for first in range(0, len(found.places), _BATCH_EVENTS):
        places = found.places[first : first + _BATCH_EVENTS]
        chunks = (text[start:end] for start, end in places)
        events = [event for chunk in chunks if (event := counted(chunk, file)) is not None]
        any_event = any_event or bool(events)
        yield events
    if not any_event:
        raise nothing


def _broken(data: bytes, path: Path, error: Exception) -> str:
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
