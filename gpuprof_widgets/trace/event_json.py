"""The events of a Chrome trace, and the keys beside them, read from JSON in batches.

What turns out not to be JSON is given to `broken_json`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from gpuprof_widgets.exceptions import TraceError
from gpuprof_widgets.trace.broken_json import mended_file
from gpuprof_widgets.trace.documents import as_list_of_lines, check_one_document
from gpuprof_widgets.trace.json_sizes import (
    containers,
    most_containers,
    most_in_events,
    without_bare_values,
)
from gpuprof_widgets.trace.mending import is_list
from gpuprof_widgets.trace.text_encodings import valid_utf8
from gpuprof_widgets.trace.trace_events import KEYS, Event, TraceFile, any_value, counted

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
