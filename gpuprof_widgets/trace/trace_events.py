"""Events of a Chrome trace: one event as an object, decoded, or mended where it is not JSON.

Programs write names without escaping them, numbers that JSON does not have, and commas after the
last item; files are cut off. `find_events` finds events one after the other: an event that is not
JSON ends where the next one seems to begin. `mended` makes such text JSON by rules that keep all
of it.

Some JSON takes many times its bytes in memory: ``{},`` is 3 bytes in a file and 100 in memory, and
a number among the events is an object as well. `containers` finds such JSON before it is decoded.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, TypeVar

import msgspec

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

    ``samples``: the global samples; of an event they have ``name``, ``tid``, ``ts`` and ``sf``.
    While batches are taken, ``mended`` counts the malformed events that could be read, ``left_out``
    those that could not, ``without_args`` those whose args are too much; ``notes`` describe other
    errors.
    """

    header: dict[str, Any]
    batches: Iterable[list[Event]] = ()
    samples: Sequence[Event] = ()
    left_out: int = 0
    mended: int = 0
    without_args: int = 0
    notes: list[str] = field(default_factory=list)


_EVENT = msgspec.json.Decoder(Event)
KEYS = msgspec.json.Decoder(dict[str, msgspec.Raw])
"""Decodes an object, but not its values."""
ANY = msgspec.json.Decoder(msgspec.Raw)
"""Checks that text is JSON."""


def decoded_event(item: bytes, file: TraceFile) -> Event | None:
    """Decode one event, mended if need be; None if it cannot be read. The file counts the cases."""
    without = without_vast_args(item)
    file.without_args += without is not None
    item = item if without is None else without
    with suppress(msgspec.DecodeError, RecursionError):
        return _EVENT.decode(item)
    event = mended(item, _coerced) if item[:1] == b"{" else None
    file.mended += event is not None
    file.left_out += event is None
    return event


def _coerced(item: bytes) -> Event:
    """Decode an event whose values have other types than those of `Event`."""
    written = KEYS.decode(item)
    values = {key: any_value(raw) for key, raw in written.items() if key in Event.__struct_fields__}
    if not isinstance(values.get("ph"), str):
        raise msgspec.ValidationError("an event is of some kind")
    args = values.pop("args", None)
    values |= {
        key: _text(values[key]) for key in ("name", "cat", "s") if values.get(key) is not None
    }
    values |= {key: _id(values[key]) for key in ("pid", "tid", "id", "sf") if key in values}
    values |= {key: written[key] for key in ("ts", "dur") if key in written}
    values["name"] = values.get("name") or ""
    values["args"] = args if args is None or isinstance(args, dict) else {"args": args}
    return Event(**values)


def any_value(raw: msgspec.Raw) -> Any:
    """Return the value of this JSON, with numbers beyond all types as text."""
    try:
        return msgspec.json.decode(raw)
    except msgspec.ValidationError:
        return msgspec.json.decode(as_json(bytes(raw)))


def _text(value: Any) -> str:
    return value if isinstance(value, str) else msgspec.json.encode(value).decode()


def _id(value: Any) -> Id:
    known = value is None or (isinstance(value, str | int | float) and not isinstance(value, bool))
    return value if known else _text(value)


Decoded = TypeVar("Decoded")

LIST = re.compile(rb'"traceEvents"\s*:\s*\[|\A\s*\[')

_BETWEEN = re.compile(rb"[\s,]*")
_OBJECT = re.compile(rb'\{\s*"')
_BRACE = ord("{")
_NEXT_EVENT = re.compile(
    rb'\}\s*(?:,\s*)?\{\s*"(?:ph|cat|name|pid|tid|ts|dur|args|id|s|bp|tts|cname)"\s*:'
)
_END_OF_LIST = re.compile(rb'\](?=\s*(?:\Z|\}\s*\Z|,\s*"))')
_LAST_EVENT = re.compile(rb"\}\s*(?:,\s*)?" + _END_OF_LIST.pattern)

_scan = json.JSONDecoder(strict=False, parse_int=float).raw_decode
"""Tells where a value ends. With ``float``, no integer is too long for it."""

_WINDOW = 1 << 16
LONGEST_EVENT = 1 << 20
"""Bytes of a malformed event that is mended at most: mending takes a hundred times the memory."""
_WORK = 16
"""Limit on searching for ends in vain, in lengths of the text."""


def is_list(text: bytes) -> bool:
    """Whether the text begins as a bare list of events, the other form of the format."""
    return text.lstrip()[:1] == b"["


@dataclass
class EventPlaces:
    """Start and end of each event in the text; ``end`` is where their list ends, if it does.

    From ``given_up_at`` on the text was not searched, because so little of it is JSON.
    ``odd_commas`` counts the gaps between events that do not have exactly one comma, and the gaps
    before the first and after the last event that have any.
    """

    places: list[tuple[int, int]]
    end: int | None = None
    given_up_at: int | None = None
    odd_commas: int = 0


def find_events(text: bytes, start: int) -> EventPlaces:
    """Find the events of a list whose items begin at ``start``."""
    events = EventPlaces([])
    work = _WORK * len(text)
    last_end, at = start, _after(text, start)
    while at < len(text):
        ends = text[at : at + 1] == b"]"
        # Text that is no event may hold commas itself, so the gap behind it does not count.
        if not events.places or text[events.places[-1][0]] == _BRACE:
            events.odd_commas += text.count(b",", last_end, at) != bool(events.places and not ends)
        if ends:
            events.end = at
            break
        if work < 0:
            events.given_up_at = at
            break
        following = _NEXT_EVENT.search(text, at)
        end = following.start() + 1 if following else None
        if end is None or not _is_json(text[at:end]):
            whole, searched = _scanned(text, at)
            end = whole or _resumed(text, at, end)
            work -= 0 if whole else searched
        events.places.append((at, end))
        last_end, at = end, _after(text, end)
    return events


def _after(text: bytes, at: int) -> int:
    between = _BETWEEN.match(text, at)
    return between.end() if between else at


def _is_json(text: bytes) -> bool:
    with suppress(msgspec.DecodeError, RecursionError):
        ANY.decode(text)
        return True
    return False


def _scanned(text: bytes, at: int) -> tuple[int | None, int]:
    """Return the end of the JSON value at ``at``, None if it is not JSON, and the bytes searched.

    Windows grow, because an error costs the length of its window. Each byte counts as a character,
    because the separators of values are the same in every encoding.
    """
    size = _WINDOW
    while True:
        window = text[at : at + size].decode("latin-1")
        try:
            return at + _scan(window, 0)[1], size
        except RecursionError:
            return None, len(window)
        except json.JSONDecodeError as error:
            ran_out = error.msg.startswith("Unterminated") or error.pos > size - 16
            searched = len(window) if ran_out else error.pos
        if not ran_out or at + size >= len(text) or size >= LONGEST_EVENT:
            return None, searched
        size = min(size * 8, LONGEST_EVENT)


def _resumed(text: bytes, at: int, following: int | None) -> int:
    """Return the end of text that is not JSON: the next event, or the end of the list or file."""
    if text[at : at + 1] != b"{":
        next_value = _OBJECT.search(text, at) or _END_OF_LIST.search(text, at)
        return next_value.start() if next_value else len(text)
    last = None if following else _LAST_EVENT.search(text, at)
    return following or (last.start() + 1 if last else len(text))


def mended(chunk: bytes, decode: Callable[[bytes], Decoded]) -> Decoded | None:
    """Decode text that rules can make JSON; None if they cannot, or it is longer than any event."""
    if len(chunk) > LONGEST_EVENT:
        return None
    for mend in (as_json, lambda text: as_json(_quoted(text))):
        with suppress(msgspec.DecodeError, RecursionError):
            return decode(mend(chunk))
    return None


def mended_header(text: bytes) -> tuple[dict[str, Any], int, bool] | None:
    """Decode the object with which the text begins; None if rules cannot make it JSON either.

    Also return the length of the text after the object, and whether the object was mended.
    """
    text = text.lstrip()  # a Kineto of 2024 began with a line end
    for mend in (False, True):
        header = as_json(text) if mend else text
        try:
            _, end = _scan(header.decode("latin-1"), 0)
            keys = msgspec.json.decode(header[:end], type=dict[str, Any])
            return keys, len(header[end:].strip()), mend
        except (ValueError, RecursionError, msgspec.DecodeError):
            continue
    return None


_TOKEN = re.compile(
    rb'"(?:[^"\\]++|\\.)*+"'  # a string, whatever is in it
    rb'|[^\s",:{}\[\]]++'  # a number or a word
    rb"|,(?=\s*[}\]])",  # a comma after the last item
    re.DOTALL,
)
_ODD = re.compile(
    rb"(?P<pair>\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2})"
    rb"|(?P<half>\\u[dD][89a-fA-F][0-9a-fA-F]{2})"
    rb"|(?P<control>[\x00-\x1f])"
)
"""A character beyond 16 bits in two halves, one such half alone, and a control character."""
_NUMBER = re.compile(rb"-?(?:0|[1-9]\d*)(?:\.\d+)?(?:[eE][+-]?\d+)?")
_WORDS = {word: word for word in (b"true", b"false", b"null")} | {
    b"True": b"true",
    b"False": b"false",
    b"None": b"null",
}
_LONGEST_NUMBER = 300


def as_json(text: bytes) -> bytes:
    """Escape odd strings, quote odd words and numbers, and drop commas after the last item."""
    return _TOKEN.sub(_token, text)


def _token(match: re.Match[bytes]) -> bytes:
    token = match.group()
    if token[:1] == b'"':
        return b'"' + _as_string(token[1:-1]) + b'"'
    if token == b",":
        return b""
    if token in _WORDS:
        return _WORDS[token]
    return token if _is_number(token) else json.dumps(token.decode("utf-8", "replace")).encode()


def _is_number(token: bytes) -> bool:
    plain = len(token) < _LONGEST_NUMBER and _NUMBER.fullmatch(token) is not None
    return plain and math.isfinite(float(token))


def _as_string(value: bytes) -> bytes:
    """Return the content of a string, escaped as little as JSON needs: nothing, odd parts, or all.

    All of it is escaped where a backslash that begins no escape was meant as a backslash.
    """
    for content in (value, _ODD.sub(_escaped, value)):
        with suppress(msgspec.DecodeError):
            msgspec.json.decode(b'"' + content + b'"', type=str)
            return content
    return json.dumps(value.decode("utf-8", "replace")).encode()[1:-1]


def _escaped(match: re.Match[bytes]) -> bytes:
    odd = match.group()
    if match.lastgroup == "pair":
        return odd
    return rb"\ufffd" if match.lastgroup == "half" else rb"\u%04x" % ord(odd)


_OPENS = re.compile(rb'"\s*:\s*"')
_CLOSES = re.compile(rb'"(?=\s*(?:,\s*"[^"\n]{0,200}"\s*:|\}))')


def _quoted(text: bytes) -> bytes:
    """Escape string values that hold bare quotation marks.

    A value ends at a quotation mark after which the object ends or the next key comes.
    """
    parts = []
    at = 0
    while (opened := _OPENS.search(text, at)) and (closed := _CLOSES.search(text, opened.end())):
        parts += [text[at : opened.end()], _as_string(text[opened.end() : closed.start()])]
        at = closed.start()
        parts.append(b'"')
        at += 1
    return b"".join([*parts, text[at:]])


_FREE_CONTAINERS = 100_000
_BYTES_OF_A_CONTAINER = 25
"""The lists and objects outside the events: so many are free, others need so many bytes each."""
_FREE_IN_AN_EVENT = 10_000
_BYTES_IN_AN_EVENT = 6
"""The same for the args of one event: shapes of scalars are ``[]``."""

_STRING = re.compile(rb'"(?:[^"\\]|\\.)*+"', re.DOTALL)
_BARE_VALUE = re.compile(rb'"(?:[^"\\]|\\.)*+"|[-+.\w]++', re.DOTALL)
_BARE_VALUES = re.compile(rb'\[(?:\s*+(?:[-+.\w]++|"(?:[^"\\]|\\.)*+")\s*+[,\]])++', re.DOTALL)


def most_containers(size: int) -> int:
    """Return how many lists and objects a file of ``size`` bytes may have outside its events."""
    return _FREE_CONTAINERS + size // _BYTES_OF_A_CONTAINER


def most_in_events(size: int) -> int:
    """Return how many lists and objects events of ``size`` bytes may have."""
    return _FREE_IN_AN_EVENT + size // _BYTES_IN_AN_EVENT


def containers(text: bytes | msgspec.Raw, most: int) -> int:
    """Count the lists and objects in JSON; below ``most``, brackets within strings count too."""
    plain = bytes(text)
    if plain.count(b"{") + plain.count(b"[") > most:
        plain = _STRING.sub(b"", plain)
    return plain.count(b"{") + plain.count(b"[")


def without_vast_args(event: bytes) -> bytes | None:
    """Return the event without args if these hold too many lists and objects; else None."""
    most = most_in_events(len(event))
    if containers(event, most) <= most:
        return None
    try:
        keys = KEYS.decode(event)
    except (msgspec.DecodeError, RecursionError):  # it will be mended, or left out
        return None
    return None if keys.pop("args", None) is None else msgspec.json.encode(keys)


def without_bare_values(text: bytes) -> tuple[bytes, int]:
    """Remove the bare numbers and strings at the start of a list of events; return their number."""
    values = _BARE_VALUES.match(text)
    if values is None:
        return text, 0
    count = sum(1 for _ in _BARE_VALUE.finditer(text, 0, values.end()))
    rest = text[values.end() :]
    return b"[" + (rest if rest.strip() else b"]"), count
