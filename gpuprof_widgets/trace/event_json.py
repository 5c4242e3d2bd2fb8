"""JSON trace events, decoded one typed object each, and what stands around them in the file.

torch does not escape quotes in the names it is given, and files are cut off, so a trace may not be
JSON at all: then it is read event by event, and mended.
"""

from __future__ import annotations

import gc
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from gpuprof_widgets.exceptions import TraceError
from gpuprof_widgets.trace.documents import as_list_of_lines, check_one_document
from gpuprof_widgets.trace.json_sizes import (
    containers,
    most_containers,
    most_in_events,
    without_bare_values,
    without_vast_args,
)
from gpuprof_widgets.trace.mending import (
    LIST,
    Found,
    as_json,
    find_events,
    mended,
    mended_header,
)
from gpuprof_widgets.trace.text_encodings import valid_utf8

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
    sf: Id = None
    stack: Any = None


@dataclass
class TraceFile:
    """The keys of a file beside its events; the events come in batches, once.

    As batches are taken, ``mended`` counts the events that were read although they are not as they
    should be, ``left_out`` those that could not be, ``without_args`` those whose args are too much;
    ``notes`` say what is odd beside them.
    """

    header: dict[str, Any]
    batches: Iterable[list[Event]] = ()
    left_out: int = 0
    mended: int = 0
    without_args: int = 0
    notes: list[str] = field(default_factory=list)


BATCH_BYTES = 2 << 20
"""Of this size the objects of a batch fit the processor's cache, and memory is used again."""

_EVENTS = msgspec.json.Decoder(list[Event])
_EVENT = msgspec.json.Decoder(Event)
_KEYS = msgspec.json.Decoder(dict[str, msgspec.Raw])
_ITEMS = msgspec.json.Decoder(list[msgspec.Raw])

_NON_FINITE = re.compile(
    rb"([:\[,]\s*)([-+]?(?:nan|inf(?:inity)?)|n/a)(?=\s*[,}\]])", re.IGNORECASE
)
_CUT = re.compile(rb"\n  (\},)\n")
_ANY_CUT = re.compile(rb"(\}\s*,)\s*\{")
_BATCH_EVENTS = 4096


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
        return gather(_mended(text, path, broken, notes))


def _with_likely_repairs(text: bytes) -> tuple[bytes, list[str]]:
    """With numbers that JSON does not have as text, and a list closed that the format lets open."""
    text, count = _NON_FINITE.subn(rb'\1"\2"', text)
    told = f"{count:,} numbers that are none (NaN, Infinity, N/A) were read as text"
    notes = [told] if count else []
    open_list = _is_list(text) and not text.rstrip().endswith(b"]")
    return (text.rstrip().rstrip(b",") + b"]" if open_list else text), notes


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


def _is_list(data: bytes) -> bool:
    return re.match(rb"\s*\[", data) is not None


_GIVE = (
    "Give a Chrome trace (of torch.profiler, TensorFlow, VizTracer, MegEngine or another program), "
    "or what speedscope, pyinstrument or MegEngine's graph profiler wrote."
)


def _decoded(data: bytes, path: Path, notes: Sequence[str] = ()) -> TraceFile:
    if _is_list(data):
        file = TraceFile({}, notes=[*notes])
        file.batches = _batches(memoryview(data.lstrip()), file)
        return file
    keys = _KEYS.decode(data)
    if "traceEvents" not in keys:
        found = ", ".join(list(keys)[:8]) or "nothing"
        raise TraceError(
            f'{path}: JSON, but not a trace: there is no "traceEvents" key (found: {found}). '
            f"{_GIVE}"
        )
    events = memoryview(keys.pop("traceEvents"))
    if bytes(events[:1]) != b"[":
        raise TraceError(
            f'{path}: JSON, but not a trace: "traceEvents" is {bytes(events[:20])!r}, not a list. '
            f"{_GIVE}"
        )
    file = TraceFile({}, notes=[*notes])
    file.header = _header(keys, len(data), file)
    file.batches = _batches(events, file)
    return file


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
        header[key] = _any(raw)
    return header


def _events(text: bytes, file: TraceFile) -> list[Event]:
    most = most_in_events(len(text))
    if containers(text, most) <= most:
        with suppress(msgspec.ValidationError):  # JSON, but some event has a wrong type in it
            return _EVENTS.decode(text)
    text, bare = without_bare_values(text)
    file.left_out += bare
    items = _ITEMS.decode(text)
    return [event for item in items if (event := _counted(bytes(item), file)) is not None]


def _counted(item: bytes, file: TraceFile) -> Event | None:
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
    written = _KEYS.decode(item)
    values = {key: _any(raw) for key, raw in written.items() if key in Event.__struct_fields__}
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


def _any(raw: msgspec.Raw) -> Any:
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


def _mended(text: bytes, path: Path, error: Exception, notes: Sequence[str]) -> TraceFile:
    """What of a file that is not JSON can be read, or the error that says where it breaks."""
    opened = LIST.search(text)
    found = find_events(text, opened.end()) if opened else None
    if opened is None or found is None or not found.places:
        raise TraceError(_broken(text, path, error)) from error
    file = TraceFile({}, notes=[*notes])
    if not _is_list(text):
        file.header = _mended_header(text, opened.end(), found, file)
    if found.odd_commas:
        file.notes.append(
            f"at {found.odd_commas:,} places between events, or at their ends, there "
            "is a comma too many or none: they were mended"
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
        events = [event for chunk in chunks if (event := _counted(chunk, file)) is not None]
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
