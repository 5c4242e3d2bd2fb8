"""One event of a Chrome trace as an object, and what stands around the events in the file."""

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
    """One event as the file has it; ``ts`` and ``dur`` stay text, to be read exactly."""

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
    """The keys of a file beside its events; the events come in batches, once.

    ``samples``: the global samples, which have of an event ``name``, ``tid``, ``ts`` and ``sf``.
    As batches are taken, ``mended`` counts the events that were read although they are not as they
    should be, ``left_out`` those that could not be, ``without_args`` those whose args are too much;
    ``notes`` say what is odd beside them.
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
"""Decodes an object without what is under its keys."""


def counted(item: bytes, file: TraceFile) -> Event | None:
    """The event that this is, as it is or mended; the file counts which."""
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
    """An event whose values are not of the types that they should be."""
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
    """The value in this JSON; as text where its numbers are beyond all types."""
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
_NEXT = re.compile(
    rb'\}\s*(?:,\s*)?\{\s*"(?:ph|cat|name|pid|tid|ts|dur|args|id|s|bp|tts|cname)"\s*:'
)
_END = re.compile(rb'\](?=\s*(?:\Z|\}\s*\Z|,\s*"))')
_LAST = re.compile(rb"\}\s*(?:,\s*)?" + _END.pattern)

_IS_JSON = msgspec.json.Decoder(msgspec.Raw).decode
_scan = json.JSONDecoder(strict=False, parse_int=float).raw_decode
"""It only tells where a value ends. With ``float`` no integer is too long for it."""

_WINDOW = 1 << 16
LONGEST_EVENT = 1 << 20
"""Bytes of one event that is not JSON and yet mended: what is longer takes a hundredfold memory."""
_WORK = 16
"""Looking for ends in vain may take so many times the length of the text, and no more."""


def is_list(text: bytes) -> bool:
    """Whether it begins as the bare list of events, the format's other form."""
    return text.lstrip()[:1] == b"["


@dataclass
class Found:
    """Where events are in the text, as pairs of places; ``end`` is where their list ends, if so.

    ``given_up_at`` is from where on the text was not looked at, as so little of it is JSON.
    ``odd_commas`` counts the gaps between events that have none or several, and those before the
    first and behind the last that have any.
    """

    places: list[tuple[int, int]]
    end: int | None = None
    given_up_at: int | None = None
    odd_commas: int = 0


def find_events(text: bytes, start: int) -> Found:
    """The events of a list whose items begin at this place."""
    found = Found([])
    work = _WORK * len(text)
    behind, at = start, _after(text, start)
    while at < len(text):
        ends = text[at : at + 1] == b"]"
        if not found.places or text[found.places[-1][0]] == _BRACE:  # what is no event held commas
            found.odd_commas += text.count(b",", behind, at) != bool(found.places and not ends)
        if ends:
            found.end = at
            break
        if work < 0:
            found.given_up_at = at
            break
        following = _NEXT.search(text, at)
        end = following.start() + 1 if following else None
        if end is None or not _is_json(text[at:end]):
            whole, looked_at = _scanned(text, at)
            end = whole or _resumed(text, at, end)
            work -= 0 if whole else looked_at
        found.places.append((at, end))
        behind, at = end, _after(text, end)
    return found


def _after(text: bytes, at: int) -> int:
    between = _BETWEEN.match(text, at)
    return between.end() if between else at


def _is_json(text: bytes) -> bool:
    with suppress(msgspec.DecodeError, RecursionError):
        _IS_JSON(text)
        return True
    return False


def _scanned(text: bytes, at: int) -> tuple[int | None, int]:
    """Where the value ends that begins here, if it is JSON, and how far that was looked for.

    Ever more is looked at, as an error costs the length of what it is in. A byte is taken for a
    character: what separates values is the same in every encoding.
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
            looked_at = len(window) if ran_out else error.pos
        if not ran_out or at + size >= len(text) or size >= LONGEST_EVENT:
            return None, looked_at
        size = min(size * 8, LONGEST_EVENT)


def _resumed(text: bytes, at: int, following: int | None) -> int:
    """Where what is not JSON ends: before the next event, at the list's end, or at the file's."""
    if text[at : at + 1] != b"{":
        # The next event, and where none follows, the list's end.
        found = _OBJECT.search(text, at) or _END.search(text, at)
        return found.start() if found else len(text)
    last = None if following else _LAST.search(text, at)
    return following or (last.start() + 1 if last else len(text))


def mended(chunk: bytes, decode: Callable[[bytes], Decoded]) -> Decoded | None:
    """What ``decode`` makes of this text, if rules can make it JSON, and it is no longer than any
    event is.
    """
    if len(chunk) > LONGEST_EVENT:
        return None
    for mend in (as_json, lambda text: as_json(_quoted(text))):
        with suppress(msgspec.DecodeError, RecursionError):
            return decode(mend(chunk))
    return None


def mended_header(text: bytes) -> tuple[dict[str, Any], int, bool] | None:
    """The object that this text begins with, how much of the text follows it, and whether the text
    had to be made JSON for that.
    """
    text = text.lstrip()  # a Kineto of 2024 began with a line end
    for mend in (False, True):
        one = as_json(text) if mend else text
        try:
            _, end = _scan(one.decode("latin-1"), 0)
            keys = msgspec.json.decode(one[:end], type=dict[str, Any])
            return keys, len(one[end:].strip()), mend
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
"""Two halves of a character beyond 16 bits, one half, and what has to be escaped."""
_NUMBER = re.compile(rb"-?(?:0|[1-9]\d*)(?:\.\d+)?(?:[eE][+-]?\d+)?")
_WORDS = {word: word for word in (b"true", b"false", b"null")} | {
    b"True": b"true",
    b"False": b"false",
    b"None": b"null",
}
_LONGEST_NUMBER = 300


def as_json(text: bytes) -> bytes:
    """The text with odd strings escaped, odd words and numbers as strings, no comma at an end."""
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
    """What stands between quotation marks, escaped as little as makes it JSON: not, the characters
    that have to be, or all of it, as a backslash that begins no escape was meant as one.
    """
    for one in (value, _ODD.sub(_escaped, value)):
        with suppress(msgspec.DecodeError):
            msgspec.json.decode(b'"' + one + b'"', type=str)
            return one
    return json.dumps(value.decode("utf-8", "replace")).encode()[1:-1]


def _escaped(match: re.Match[bytes]) -> bytes:
    odd = match.group()
    if match.lastgroup == "pair":
        return odd
    return rb"\ufffd" if match.lastgroup == "half" else rb"\u%04x" % ord(odd)


_OPENS = re.compile(rb'"\s*:\s*"')
_CLOSES = re.compile(rb'"(?=\s*(?:,\s*"[^"\n]{0,200}"\s*:|\}))')


def _quoted(text: bytes) -> bytes:
    """The text with string values escaped, where they hold quotation marks as they were given.

    A value ends at a quotation mark after which the object ends, or the next key comes.
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
"""So many bytes of the file each list or object beside the events takes at least on average, and
some are free."""
_FREE_IN_AN_EVENT = 10_000
_BYTES_IN_AN_EVENT = 6
"""The same of the args of one event: shapes of scalars are ``[]``."""

_STRING = re.compile(rb'"(?:[^"\\]|\\.)*+"', re.DOTALL)
_BARE_VALUE = re.compile(rb'"(?:[^"\\]|\\.)*+"|[-+.\w]++', re.DOTALL)
_BARE_VALUES = re.compile(rb'\[(?:\s*+(?:[-+.\w]++|"(?:[^"\\]|\\.)*+")\s*+[,\]])++', re.DOTALL)
_KEYS = msgspec.json.Decoder(dict[str, msgspec.Raw])


def most_containers(size: int) -> int:
    """How many lists and objects may stand beside the events of a file of so many bytes."""
    return _FREE_CONTAINERS + size // _BYTES_OF_A_CONTAINER


def most_in_events(size: int) -> int:
    """How many lists and objects events of so many bytes may have."""
    return _FREE_IN_AN_EVENT + size // _BYTES_IN_AN_EVENT


def containers(text: bytes | msgspec.Raw, most: int) -> int:
    """How many lists and objects JSON has; where brackets in text are too few to matter, these
    as well.
    """
    plain = bytes(text)
    if plain.count(b"{") + plain.count(b"[") > most:
        plain = _STRING.sub(b"", plain)
    return plain.count(b"{") + plain.count(b"[")


def without_vast_args(event: bytes) -> bytes | None:
    """The event without its args, if these are more lists and objects than any profiler writes."""
    most = most_in_events(len(event))
    if containers(event, most) <= most:
        return None
    try:
        keys = _KEYS.decode(event)
    except (msgspec.DecodeError, RecursionError):  # to be mended, or left out
        return None
    return None if keys.pop("args", None) is None else msgspec.json.encode(keys)


def without_bare_values(text: bytes) -> tuple[bytes, int]:
    """A list of events without the numbers and texts that it begins with, and their number."""
    values = _BARE_VALUES.match(text)
    if values is None:
        return text, 0
    count = sum(1 for _ in _BARE_VALUE.finditer(text, 0, values.end()))
    rest = text[values.end() :]
    return b"[" + (rest if rest.strip() else b"]"), count
