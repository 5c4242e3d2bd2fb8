"""JSON trace events, decoded one typed object each, and what stands around them in the file.

torch does not escape quotes in the names it is given, so a trace may not be JSON at all: then the
file is taken apart at Kineto's line ends and mended event by event.
"""

from __future__ import annotations

import gc
import json
import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from gpuprof_widgets.exceptions import TraceError

Gathered = TypeVar("Gathered")
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


@dataclass
class TraceFile:
    """The keys of a file beside its events; the events come in batches, once.

    ``left_out`` counts the events that are not well-formed, as batches are taken.
    """

    header: dict[str, Any]
    batches: Iterable[list[Event]] = ()
    left_out: int = 0


BATCH_BYTES = 2 << 20
"""Of this size the objects of a batch fit the processor's cache, and memory is used again."""

_EVENTS = msgspec.json.Decoder(list[Event])
_EVENT = msgspec.json.Decoder(Event)
_KEYS = msgspec.json.Decoder(dict[str, msgspec.Raw])
_ITEMS = msgspec.json.Decoder(list[msgspec.Raw])

_NON_FINITE = re.compile(rb"([:\[,]\s*)(-?(?:nan|inf|NaN|Infinity))(?=\s*[,}\]])")
_CUT = re.compile(rb"\n  \},\n")
_EVENT_END = re.compile(rb"\n  \},?(?=\s*?\n)")
_STRING_VALUE = re.compile(rb'(": ")(.*?)("(?=\s*(?:,\s*"[^"\n]*": |\})))', re.DOTALL)


def read_events(data: bytes, path: Path, gather: Callable[[TraceFile], Gathered]) -> Gathered:
    """What ``gather`` makes of the trace, which is in object form or a bare list.

    It is called again where the file turns out to be broken and could be mended.
    """
    try:
        return gather(_decoded(data, path))
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        broken = error
    text = data.decode("utf-8", errors="replace").encode()
    text = _NON_FINITE.sub(rb'\1"\2"', text)  # JSON has no such numbers: they are kept as text
    try:
        return gather(_decoded(text, path))
    except msgspec.DecodeError:
        return gather(_mended(text, path, broken))


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


def _decoded(data: bytes, path: Path) -> TraceFile:
    if data[:64].lstrip().startswith(b"["):
        file = TraceFile({})
        file.batches = _batches(memoryview(data.lstrip()), file)
        return file
    keys = _KEYS.decode(data)
    if "traceEvents" not in keys:
        found = ", ".join(list(keys)[:8]) or "nothing"
        raise TraceError(
            f'{path}: JSON, but not a trace: there is no "traceEvents" key (found: {found}). '
            "Give the file that torch.profiler's export_chrome_trace wrote."
        )
    events = memoryview(keys.pop("traceEvents"))
    if bytes(events[:1]) != b"[":
        raise TraceError(
            f'{path}: JSON, but not a trace: "traceEvents" is {bytes(events[:20])!r}, not a list. '
            "Give the file that torch.profiler's export_chrome_trace wrote."
        )
    file = TraceFile({key: msgspec.json.decode(raw) for key, raw in keys.items()})
    file.batches = _batches(events, file)
    return file


def _batches(text: memoryview, file: TraceFile) -> Iterator[list[Event]]:
    """The events of a JSON list, cut where Kineto ends an event and its line.

    JSON strings hold no line ends, so only a file that is laid out otherwise can be cut wrongly:
    its first batch is not JSON, and the rest of it is decoded as one.
    """
    start = 1
    while start:
        cut = _CUT.search(text, start + BATCH_BYTES)
        end = (text[start : cut.start()], b"\n  }]") if cut else (text[start:],)
        try:
            yield _events(b"".join((b"[", *end)), file)
        except msgspec.DecodeError:
            yield _events(b"".join((b"[", text[start:])), file)
            return
        start = cut.end() if cut else 0


def _events(text: bytes, file: TraceFile) -> list[Event]:
    try:
        return _EVENTS.decode(text)
    except msgspec.ValidationError:  # JSON, but some event has a wrong type in it
        items = _ITEMS.decode(text)
    events = []
    for item in items:
        with suppress(msgspec.ValidationError):
            events.append(_EVENT.decode(item))
    file.left_out += len(items) - len(events)
    return events


def _mended(text: bytes, path: Path, error: Exception) -> TraceFile:
    """What of a file that is not JSON can be read, or the error that says where it breaks."""
    head, *chunks = _split_kineto(text)
    try:
        header = msgspec.json.decode(head, type=dict[str, Any])
    except msgspec.DecodeError:
        raise TraceError(_broken(text, path, error)) from error
    header.pop("traceEvents")
    events = [event for event in map(_mended_event, chunks) if event is not None]
    return TraceFile(header, [events], len(chunks) - len(events))


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
