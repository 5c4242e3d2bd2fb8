"""Read the events of a Chrome trace from JSON in batches, and the other keys of the file.

A file that is not JSON is read event by event, and these are mended where possible: files are cut
off, and programs write names without escaping them (torch writes quotes in the names of Python
functions, and paths of Windows), control characters, numbers and words that JSON does not have
(NaN, Infinity, N/A), and commas after the last item. An event that is not JSON ends where the next
one seems to begin; `mended` makes its text JSON.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from gpuprof_widgets.exceptions import TraceError
from gpuprof_widgets.trace.files import valid_utf8

Id = int | str | float | None


class Event(msgspec.Struct, gc=False):
    """One event as in the file; ``ts`` and ``dur`` stay text, so that they can be read exactly."""

    ph: str = ""
    cat: str | None = None
    name: str = ""
    pid: Id = None
    tid: Id = None
    ts: msgspec.Raw = msgspec.Raw(b"")
    dur: msgspec.Raw = msgspec.Raw(b"")
    args: dict[str, Any] | None = None
    id: Id = None
    s: str | None = None
    bp: Any = None
    id2: Any = None
    bind_id: Any = None
    flow_in: Any = None
    flow_out: Any = None
    sf: Id = None
    stack: Any = None


@dataclass
class TraceFile:
    """The other keys of a file (``header``), and its events in batches, which come only once.

    While batches are taken, ``mended`` counts the malformed events that could be read and
    ``left_out`` those that could not, and ``notes`` describe other errors.
    """

    header: dict[str, Any]
    batches: Iterable[list[Event]] = ()
    left_out: int = 0
    mended: int = 0
    notes: list[str] = field(default_factory=list)


_EVENT = msgspec.json.Decoder(Event)
KEYS = msgspec.json.Decoder(dict[str, msgspec.Raw])
"""Decodes an object, but not its values."""

LONGEST_MENDED = 1 << 20
"""Bytes of text that is mended at most: mending takes a hundred times the memory."""


def decoded_event(item: bytes, file: TraceFile) -> Event | None:
    """Decode one event, mended if need be; None if it cannot be read. The file counts the cases."""
    with suppress(msgspec.DecodeError):
        return _EVENT.decode(item)
    for text in mended(item):
        with suppress(msgspec.DecodeError):
            event = _coerced(text)
            file.mended += 1
            return event
    file.left_out += 1
    return None


def _coerced(item: bytes) -> Event:
    """Decode an event whose values may have other types than those of `Event`."""
    written = KEYS.decode(item)
    values: dict[str, Any] = {
        key: raw if key in ("ts", "dur") else msgspec.json.decode(raw)
        for key, raw in written.items()
        if key in Event.__struct_fields__
    }
    if not isinstance(values.get("ph"), str):
        raise msgspec.ValidationError("an event is of some kind")
    for key in ("name", "cat", "s"):
        if values.get(key) is not None:
            values[key] = _text(values[key])
    for key in ("pid", "tid", "id", "sf"):
        if isinstance(values.get(key), bool | list | dict):
            values[key] = _text(values[key])
    values["name"] = values.get("name") or ""
    if not isinstance(values.get("args"), dict | None):
        values["args"] = {"args": values["args"]}
    return Event(**values)


def _text(value: Any) -> str:
    return value if isinstance(value, str) else msgspec.json.encode(value).decode()


def mended(text: bytes) -> Iterator[bytes]:
    """Yield what text that is not JSON may mean as JSON; nothing if it is longer than any event."""
    if len(text) <= LONGEST_MENDED:
        yield as_json(text)
        yield as_json(_with_escaped_quotes(text))


_TOKEN = re.compile(
    # Most of the text stays as it is, in one step: no comma after the last item,
    rb"(?P<plain>(?:[\s:{}\[\]]|,(?!\s*[}\]])|(?:true|false|null)(?=[\s,}\]])"
    # no backslash or control character in a string, and only digits in a number.
    rb'|"[^"\\\x00-\x1f]*+"|-?(?:0|[1-9]\d{0,15})(?:\.\d{1,15})?(?=[\s,}\]]))++)'
    rb'|"(?:[^"\\]++|\\.?)*+(?:"|\Z)'  # a string, whatever is in it; one without an end, only once
    rb'|[^\s",:{}\[\]]++'  # a number or a word
    rb"|,",
    re.DOTALL,
)
_OF_PYTHON = {b"True": b"true", b"False": b"false", b"None": b"null"}
_lenient = json.JSONDecoder(strict=False)
"""Takes control characters in strings."""


def as_json(text: bytes) -> bytes:
    """Escape odd strings, quote odd words and numbers, and drop commas after the last item."""
    return _TOKEN.sub(_token, text)


def _token(match: re.Match[bytes]) -> bytes:
    token = match.group()
    if match["plain"]:
        return token
    if token == b",":
        return b""
    if token in _OF_PYTHON:
        return _OF_PYTHON[token]
    with suppress(msgspec.DecodeError):
        msgspec.json.decode(token)
        return token
    return _string(token[1:-1] if token[:1] == b'"' else token)


def _string(content: bytes) -> bytes:
    """Return the content of a malformed string as a JSON string.

    A backslash that begins no escape, as in paths of Windows, means that all of them are meant as
    backslashes. Half a surrogate pair becomes U+FFFD.
    """
    text = content.decode("utf-8", "replace")
    with suppress(json.JSONDecodeError):
        text = _lenient.decode(f'"{text}"')
    return json.dumps(text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")).encode()


_OPENS = re.compile(rb'(name)?"\s*:\s*"')
_CLOSES = re.compile(rb'"(?=\s*(?:,\s*"[^"\n]{0,200}"\s*:|\}))')
_CLOSES_NAME = re.compile(
    rb'"(?=\s*(?:,\s*"(?:ph|cat|pid|tid|ts|dur|args|id|s|bp|tts|cname)"\s*:|\}[\s}]*\Z))'
)
"""Names may look like JSON: torch.compile makes ``{"device": "cpu", "dtype": "x"}(1): run``."""


def _with_escaped_quotes(text: bytes) -> bytes:
    """Escape the bare quotation marks in values.

    A value ends at a quotation mark after which the object ends or the next key comes; after a name
    this is a key of events.
    """
    parts = []
    at = 0
    while opened := _OPENS.search(text, at):
        closed = (_CLOSES_NAME if opened[1] else _CLOSES).search(text, opened.end())
        if closed is None:
            break
        parts += [text[at : opened.end() - 1], _string(text[opened.end() : closed.start()])]
        at = closed.end()
    return b"".join([*parts, text[at:]])


Gathered = TypeVar("Gathered")
Place = tuple[int, int]
"""The first byte of an event, and the one after its last."""

BATCH_BYTES = 256 << 10
"""With this size, the objects of a batch fit the cache of a core: 2 MiB take twice as long."""
_BATCH_EVENTS = 4096
"""Size of a batch of events that are read one by one."""

_EVENTS = msgspec.json.Decoder(list[Event])
_ITEMS = msgspec.json.Decoder(list[msgspec.Raw])
_ANY = msgspec.json.Decoder(msgspec.Raw)
"""Checks that text is JSON."""
_OBJECTS = re.compile(rb"\[[\s,]*(?:[{\]]|\Z)")
"""Start of a list of objects, which may be empty or cut off."""

_CUT = re.compile(rb"\n  (\},)\n")
_ANY_CUT = re.compile(rb"(\}\s*,)\s*\{")

FREE_CONTAINERS = 100_000
BYTES_OF_A_CONTAINER = 10
"""A file may have so many lists and objects, and one more per so many bytes. Traces have one per 40
bytes and more. ``[],`` is 3 bytes in a file and 60 in memory."""


class NoTraceError(TraceError):
    """JSON, or text that begins so, without a list of events."""


def read_events(data: bytes, path: Path, gather: Callable[[TraceFile], Gathered]) -> Gathered:
    """Return what ``gather`` makes of the trace, which is an object or a bare list.

    ``gather`` is called again if the file turns out to be broken and can be mended. A `TraceError`
    says what the file is, or where it is broken.
    """
    if containers(data) > most_containers(data):
        raise TraceError(
            f"{path}: its {len(data):,} bytes are {containers(data):,} lists and objects, more "
            "than any profiler writes, and may not fit in memory; record again."
        )
    with suppress(msgspec.DecodeError):
        return gather(_decoded(data, path))
    text, notes = valid_utf8(data)
    text, changes = _single_value(text)
    notes += changes
    is_open = _is_list(text) and not text.rstrip().endswith(b"]")  # which the format allows
    closed = text.rstrip().rstrip(b",") + b"]" if is_open else text
    with suppress(msgspec.DecodeError):
        return gather(_decoded(closed, path, notes))
    return gather(_mended_file(text, path, notes))


def containers(data: bytes) -> int:
    """Return the number of lists and objects in JSON, brackets in its texts included."""
    return data.count(b"{") + data.count(b"[")


def most_containers(data: bytes) -> int:
    """Return how many of them JSON of this size may have: each is many times its text in memory."""
    return FREE_CONTAINERS + len(data) // BYTES_OF_A_CONTAINER


def _single_value(text: bytes) -> tuple[bytes, list[str]]:
    """Turn events of a line each into a list; else remove what follows the first JSON value."""
    end, problem = _value_end(memoryview(text))
    rest = text[end:].rstrip()
    if problem or not rest:
        return text, []
    with suppress(msgspec.DecodeError):
        if "ph" in KEYS.decode(text[:end]):
            # A comma and spaces as long as the line end, so that places stay what they are.
            lines = _BETWEEN_LINES.sub(lambda end: b",".ljust(len(end[0])), text.rstrip())
            end_of_list = b"]" if lines.endswith(b"}") else b""  # else the last event is cut off
            return b"[" + lines + end_of_list, [
                "the file has an event per line: they were read as a list"
            ]
    return text[:end], [
        f"{len(rest):,} bytes after the first JSON value, which ends at byte {end:,} of the text, "
        f"were not read; they begin with {rest[:20]!r}. If they are a trace, save it in a file of "
        "its own"
    ]


_BETWEEN_LINES = re.compile(rb"(?<=\})[ \t\r]*\n\s*(?=\{)")
"""A line end between objects: in JSON, strings hold no line ends."""


def _is_list(text: bytes) -> bool:
    """Whether the text begins as a bare list of events, the other form of the format."""
    return text.lstrip()[:1] == b"["


def _decoded(data: bytes, path: Path, notes: Sequence[str] = ()) -> TraceFile:
    """Return the trace in JSON; raise a `DecodeError` of msgspec where it is malformed."""
    file = TraceFile({}, notes=[*notes])
    keys: dict[str, msgspec.Raw] = {}
    if _is_list(data):
        events = memoryview(data.lstrip())
    else:
        keys = KEYS.decode(data)
        if "traceEvents" not in keys:
            names = ", ".join(list(keys)[:8]) or "nothing"
            raise NoTraceError(
                f'{path}: JSON, but not a trace: there is no "traceEvents" key (found: {names}). '
                f"{'; '.join(notes)}".rstrip()
            )
        events = memoryview(keys.pop("traceEvents"))
    if not _OBJECTS.match(events):
        raise NoTraceError(
            f"{path}: JSON, but not a trace: its events are not a list of objects (they begin with "
            f"{bytes(events[:20])!r})."
        )
    file.header = {key: any_value(raw) for key, raw in keys.items()}
    file.batches = _batches(events, file)
    return file


def any_value(raw: msgspec.Raw) -> Any:
    """Return the value of this JSON, with numbers beyond all types as text."""
    try:
        return msgspec.json.decode(raw)
    except msgspec.ValidationError:
        return msgspec.json.decode(as_json(bytes(raw)))


def _batches(text: memoryview, file: TraceFile) -> Iterator[list[Event]]:
    """Yield the events of a JSON list, cut at Kineto's line ends, else between objects.

    A batch that is cut within an event or a string is not JSON, and becomes longer.
    """
    start, size = 1, BATCH_BYTES
    while start:
        # Lists that are not laid out as Kineto's are cut sooner: an event may have three bytes.
        at = start + size
        cut = _CUT.search(text, at, at + size) or _ANY_CUT.search(text, start + size // 8)
        if cut is None:
            yield decoded_events(b"".join((b"[", text[start:])), file)
            return
        try:
            batch = decoded_events(b"".join((b"[", text[start : cut.start(1) + 1], b"]")), file)
        except msgspec.DecodeError:
            size *= 2
            continue
        yield batch
        start, size = cut.end(1), BATCH_BYTES


def decoded_events(text: bytes, file: TraceFile) -> list[Event]:
    """Decode a list of events, mended where a value has a wrong type; the file counts the cases."""
    with suppress(msgspec.ValidationError):  # JSON, but some event has a wrong type in it
        return _EVENTS.decode(text)
    items = _ITEMS.decode(text)
    return [event for item in items if (event := decoded_event(bytes(item), file)) is not None]


_LIST = re.compile(rb'(?:"traceEvents"\s*:\s*|\A\s*)\[[\s,]*(?=\{)')
_BETWEEN = re.compile(rb"[\s,]*")
_NEXT_EVENT = re.compile(
    rb'\}\s*(?:,\s*)?\{\s*"(?:ph|cat|name|pid|tid|ts|dur|args|id|s|bp|tts|cname)"\s*:'
)
_NEXT_OBJECT = re.compile(rb'\}\s*,?\s*\{\s*"')
"""The next event where none begins with a key of the format: it may be an object in an event."""
_LAST_EVENT = re.compile(rb'\}\s*(?:,\s*)?\](?=\s*(?:\Z|\}\s*\Z|,\s*"))')

_MOST_SEARCHED = 16
"""Limit on the text that is searched again after errors, in lengths of the file."""


def _mended_file(text: bytes, path: Path, notes: Sequence[str]) -> TraceFile:
    """Read as much as possible of a file that is not JSON; else raise an error with the place."""
    opened = _LIST.search(text)
    if opened is None:
        raise NoTraceError(_broken(text, path))
    broken = TraceError(_broken(text, path))
    places, end = _event_places(text, opened.end(), broken)
    file = TraceFile({}, notes=[*notes, _broken_part(text, len(places), end)])
    if not _is_list(text):
        after = b"]}" if end is None else text[end:]
        file.header = _mended_header(text[: opened.end()], after, file)
    file.batches = _mended_batches(text, places, file, broken)
    return file


def _event_places(text: bytes, start: int, broken: TraceError) -> tuple[list[Place], int | None]:
    """Find the events of a list whose items begin at ``start``, and the end of the list.

    None: the list is cut off. If too much of the text is not JSON, it raises ``broken``.
    """
    places = []
    to_search = _MOST_SEARCHED * len(text)
    at, next_event = start, _NEXT_EVENT
    while at < len(text) and text[at : at + 1] != b"]":
        end, problem = _value_end(memoryview(text)[at:])
        end += at
        if problem:
            to_search -= end - at
            following = next_event.search(text, at)
            if following is None:
                next_event = _NEXT_OBJECT
                following = next_event.search(text, at) or _LAST_EVENT.search(text, at)
            end = following.start() + 1 if following else len(text)
        if to_search < 0:
            raise broken
        places.append((at, end))
        between = _BETWEEN.match(text, end)
        at = between.end() if between else end
    return places, at if at < len(text) else None


_PROBLEM = re.compile(r"JSON is malformed: (.*) \(byte (\d+)\)")


def _value_end(text: memoryview) -> tuple[int, str]:
    """Return the end of the JSON value at the start of the text, or its first error.

    Of an error it returns the place and what msgspec says; of a value the second is "".
    """
    try:
        _ANY.decode(text)
    except msgspec.DecodeError as error:
        problem = _PROBLEM.fullmatch(str(error))
        if problem is None:
            return len(text), "it is cut off"
        if problem[1] == "trailing characters":
            return int(problem[2]) - 1, ""  # msgspec also counts the byte that it read last
        return int(problem[2]), problem[1]
    return len(text), ""


def _mended_header(before: bytes, after: bytes, file: TraceFile) -> dict[str, Any]:
    """Return the keys before and after the events, as far as they can be read."""
    lost = f"{len(after):,} bytes after the events are cut off or not JSON: they were not read"
    for outside, notes in ((before + after, []), (before + b"]}", [lost])):
        for text in (outside, *mended(outside)):
            with suppress(msgspec.DecodeError):
                keys = msgspec.json.decode(text, type=dict[str, Any])
                keys.pop("traceEvents", None)
                file.notes += notes
                return keys
    file.notes.append("the text around the events is not JSON, and was not read")
    return {}


def _mended_batches(
    text: bytes, places: Sequence[Place], file: TraceFile, broken: TraceError
) -> Iterator[list[Event]]:
    """Yield the events at these places; raise ``broken`` if none of them can be read."""
    any_event = False
    for first in range(0, len(places), _BATCH_EVENTS):
        chunks = (text[start:end] for start, end in places[first : first + _BATCH_EVENTS])
        batch = [event for chunk in chunks if (event := decoded_event(chunk, file)) is not None]
        any_event = any_event or bool(batch)
        yield batch
    if not any_event:
        raise broken


def _broken_part(text: bytes, events: int, end: int | None) -> str:
    """Return a note on a list of events that is not JSON, or that does not end."""
    if end is None:
        return (
            f"the text ends at byte {len(text):,}, in or after event {events:,}, before it is "
            "complete: it was cut off while it was written or copied, and what follows is lost"
        )
    place, problem = _value_end(memoryview(text))
    return f"the text is not JSON at byte {place:,} ({problem}): its events were read one by one"


def _broken(text: bytes, path: Path) -> str:
    """Return the message for JSON that breaks: where, what is there, and what to do."""
    place, problem = _value_end(memoryview(text))
    events = text.count(b'"ph"', 0, place)
    where = f"at byte {place:,} of {len(text):,} (after event {events:,})"
    if place >= len(text):
        return (
            f"{path}: the JSON ends {where}, before it is complete: the file was cut off while it "
            "was written or copied. Copy it again, or record again."
        )
    around = text[max(place - 30, 0) : place + 30]
    return (
        f"{path}: not valid JSON {where}: {problem}; the text there is {around!r}. "
        "Mend the file at that place, or record again."
    )
