"""Events of a Chrome trace: one event as an object, decoded, or mended where it is not JSON.

Programs write names without escaping them (torch writes quotes in the names of Python functions,
and paths of Windows), control characters, numbers and words that JSON does not have (NaN,
Infinity, N/A), and commas after the last item. `mended` makes such text JSON.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

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
