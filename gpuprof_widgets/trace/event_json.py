"""JSON trace events, decoded one typed object each, and what stands around them in the file.

torch does not escape quotes in the names it is given, so a trace may not be JSON at all: then the
file is taken apart at Kineto's line ends and mended event by event.
"""

from __future__ import annotations

import gc
import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from gpuprof_widgets.exceptions import TraceError

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


@dataclass(frozen=True)
class TraceFile:
    """The events of a file, the keys beside them, and what could not be read."""

    events: list[Event]
    header: dict[str, Any]
    notes: list[str] = field(default_factory=list)


_EVENTS = msgspec.json.Decoder(list[Event])
_EVENT = msgspec.json.Decoder(Event)
_KEYS = msgspec.json.Decoder(dict[str, msgspec.Raw])
_ITEMS = msgspec.json.Decoder(list[msgspec.Raw])

_NON_FINITE = re.compile(rb"([:\[,]\s*)(-?(?:nan|inf|NaN|Infinity))(?=\s*[,}\]])")
_EVENT_END = re.compile(rb"\n  \},?(?=\s*?\n)")
_STRING_VALUE = re.compile(rb'(": ")(.*?)("(?=\s*(?:,\s*"[^"\n]*": |\})))', re.DOTALL)


def decode(data: bytes, path: Path) -> TraceFile:
    """The events of a trace in object form or as a bare list."""
    try:
        return _decode(data, path)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        return _decode_mended(data, path, error)


@contextmanager
def without_garbage_collection() -> Iterator[None]:
    """Reading makes millions of objects, and the collector would look at them again and again."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def _decode(data: bytes, path: Path) -> TraceFile:
    if data[:64].lstrip().startswith(b"["):
        return _decode_events(msgspec.Raw(data), {})
    keys = _KEYS.decode(data)
    if "traceEvents" not in keys:
        found = ", ".join(list(keys)[:8]) or "nothing"
        raise TraceError(
            f'{path}: JSON, but not a trace: there is no "traceEvents" key (found: {found}). '
            "Give the file that torch.profiler's export_chrome_trace wrote."
        )
    events = keys.pop("traceEvents")
    if not bytes(events).startswith(b"["):
        raise TraceError(
            f'{path}: JSON, but not a trace: "traceEvents" is {bytes(events)[:20]!r}, not a list. '
            "Give the file that torch.profiler's export_chrome_trace wrote."
        )
    return _decode_events(events, {key: msgspec.json.decode(raw) for key, raw in keys.items()})


def _decode_events(events: msgspec.Raw, header: dict[str, Any]) -> TraceFile:
    try:
        return TraceFile(_EVENTS.decode(events), header)
    except msgspec.ValidationError:  # JSON, but some event has a wrong type in it
        return _tolerant(_ITEMS.decode(events), header)


def _tolerant(items: list[msgspec.Raw], header: dict[str, Any]) -> TraceFile:
    events = []
    for item in items:
        try:
            events.append(_EVENT.decode(item))
        except msgspec.ValidationError:
            continue
    left_out = len(items) - len(events)
    return TraceFile(events, header, [_left_out(left_out, len(items))] if left_out else [])


def _left_out(count: int, total: int) -> str:
    return f"{count:,} of {total:,} events are not well-formed and were left out"


def _decode_mended(data: bytes, path: Path, error: Exception) -> TraceFile:
    """What of a file that is not valid JSON can be read, or the error that says where it breaks."""
    text = data.decode("utf-8", errors="replace").encode()
    text = _NON_FINITE.sub(rb'\1"\2"', text)  # JSON has no such numbers: they are kept as text
    try:
        return _decode(text, path)
    except msgspec.DecodeError:
        head, *chunks = _split_kineto(text)
    try:
        header = msgspec.json.decode(head, type=dict[str, Any])
    except msgspec.DecodeError:
        raise TraceError(_broken(data, path, error)) from error
    header.pop("traceEvents")
    events = [event for event in map(_mended_event, chunks) if event is not None]
    left_out = len(chunks) - len(events)
    return TraceFile(events, header, [_left_out(left_out, len(chunks))] if left_out else [])


def _split_kineto(text: bytes) -> list[bytes]:
    """The file without its events, then each event, by the line ends that Kineto writes."""
    start = text.find(b"[", text.find(b'"traceEvents"')) + 1
    *chunks, rest = _EVENT_END.split(text[start:])
    return [text[:start] + rest[rest.find(b"]") :], *(chunk + b"}" for chunk in chunks)]


def _mended_event(chunk: bytes) -> Event | None:
    for text in (chunk, _STRING_VALUE.sub(_escaped, chunk)):
        try:
            return _EVENT.decode(text)
        except msgspec.DecodeError:
            continue
    return None


def _escaped(match: re.Match[bytes]) -> bytes:
    """A string value that the file holds as it was given, as JSON."""
    before, value, after = match.groups()
    try:
        msgspec.json.decode(b'"' + value + b'"')
    except msgspec.DecodeError:
        value = json.dumps(value.decode("utf-8", errors="replace")).encode()[1:-1]
    return before + value + after


def _broken(data: bytes, path: Path, error: Exception) -> str:
    place = re.search(r"byte (\d+)", str(error))
    position = int(place.group(1)) if place else len(data)
    events = data.count(b'"ph"', 0, position)
    where = f"at byte {position:,} of {len(data):,} (after event {events:,})"
    if "truncated" in str(error):
        return (
            f"{path}: the JSON ends {where}, before it is complete: the file was cut off while it "
            "was written or copied. Copy it again, or record again."
        )
    around = data[max(position - 30, 0) : position + 30]
    return (
        f"{path}: not valid JSON {where}: {error}; the text there is {around!r}. "
        "Mend the file at that place, or record again."
    )
