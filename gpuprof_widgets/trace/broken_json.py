"""Chrome traces that are not JSON: read event by event, and mended as far as it goes.

torch does not escape quotes in the names it is given, and files are cut off.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from gpuprof_widgets.exceptions import TraceError
from gpuprof_widgets.trace.json_sizes import containers, most_containers
from gpuprof_widgets.trace.mending import LIST, Found, find_events, is_list, mended_header
from gpuprof_widgets.trace.trace_events import Event, TraceFile, counted

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
