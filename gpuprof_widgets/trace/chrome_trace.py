"""Read Chrome traces: torch.profiler's JSON, files of our own writer, and those of any others."""

from __future__ import annotations

import math
import re
import zlib
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from copy import copy
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pandas as pd

from gpuprof_widgets.exceptions import TraceError
from gpuprof_widgets.trace.assemble import assemble, counter_table
from gpuprof_widgets.trace.chrome_slices import (
    FORWARD,
    Lanes,
    arrows,
    chrome_slices,
    on_sub_tracks,
    with_objects,
)
from gpuprof_widgets.trace.chrome_writer import KEY, METADATA, restore, written_layout
from gpuprof_widgets.trace.dialects import translated, with_named_regions
from gpuprof_widgets.trace.dialects.dialect import Parts
from gpuprof_widgets.trace.event_json import Event, read_events
from gpuprof_widgets.trace.events import FlowEnd, Names, no_events
from gpuprof_widgets.trace.files import without_garbage_collection
from gpuprof_widgets.trace.gather import KNOWN_PHASES, MORE_ARGS, SAMPLE, Gathered, id_text, times
from gpuprof_widgets.trace.known_args import usable_args, with_plausible_times, with_usable_args
from gpuprof_widgets.trace.model import Record
from gpuprof_widgets.trace.packing import Growth, streamed
from gpuprof_widgets.trace.scanned_events import UnusualError, pieces_of, scanned_file
from gpuprof_widgets.trace.schema import NONE

NOT_QUICK = (UnusualError, UnicodeDecodeError, msgspec.DecodeError, TraceError)
"""What the quick reader raises where the complete one has to read the file, or name its error."""


def is_json(data: bytes) -> bool:
    """Whether these bytes start as a JSON object or list."""
    return re.match(rb"\s*[{\[]", data) is not None


def parse_chrome_trace(data: bytes, path: Path) -> Record:
    """Return the record of JSON text; metadata and errors name ``path``."""
    return quick_record(pieces_of(data), path) or complete_record(data, path)


def quick_record(pieces: Iterable[bytes], path: Path) -> Record | None:
    """Return the record of JSON text in pieces; None if only `complete_record` can read it."""
    with without_garbage_collection(), suppress(*NOT_QUICK):
        file = scanned_file(pieces)
        return _record_of(Gathered(file), path)
    return None


def quick_packed_record(packed: bytes, path: Path, growth: Growth) -> Record | None:
    """Do the same for packed text; ``growth`` counts what was unpacked if there is a record."""
    own = copy(growth)
    record = quick_record(streamed(packed, path, own), path)
    if record is not None:
        growth.left = own.left
    return record


def complete_record(data: bytes, path: Path) -> Record:
    """Return the record of JSON text as `parse_chrome_trace` does, from any JSON, mended or not."""
    with without_garbage_collection():
        file = read_events(data, path, Gathered)
        return _record_of(file, path)


def _record_of(file: Gathered, path: Path) -> Record:
    layout = written_layout(file.header)
    return _record(file, path) if layout is None else _restored(file, layout, path)


def record_of_events(events: Iterable[Mapping[str, Any]], path: Path) -> Record:
    """Return the record of events in the Chrome format, with times in µs.

    Readers of other packages may use it. All events of the format are allowed, such as slices
    (``{"ph": "X", "name": ..., "ts": ..., "dur": ..., "pid": ..., "tid": ...}``), counters and the
    names of threads, in any order. Metadata and errors name ``path``.
    """
    return parse_chrome_trace(b"[%b]" % b",".join(map(msgspec.json.encode, events)), path)


def _record(file: Gathered, path: Path) -> Record:
    plain = _parts(file)
    parts = translated(plain, file)
    is_known = parts is not plain
    parts = on_sub_tracks(with_objects(parts, file))
    parts = with_usable_args(parts if is_known else with_named_regions(parts, file))
    if not len(parts.events):
        raise TraceError(_nothing(file, path, parts.notes))
    base = _base(file.header) or parts.zero_ns
    events = [parts.events]
    parts = replace(parts, events=no_events())
    trace = assemble(
        events.pop(),  # no one else has the events, so it can free what it has copied
        names=parts.names,
        counters=parts.counters,
        forward_flows=parts.forward_flows,
        flows=parts.flows,
        epoch_ns=base,
        rank=_rank(file.header),
    )
    start = trace.epoch_ns - base
    spans = [{"name": n, "ts_ns": ts - start, "dur_ns": dur} for n, ts, dur in file.spans]
    metadata = _metadata(file.header, path)
    metadata |= {"profiler_spans": spans, "notes": list(parts.notes), **parts.metadata}
    return Record(trace, None, metadata)


def _parts(file: Gathered) -> Parts:
    """Return the content of the file as the format defines it, before any dialect changes it."""
    events, lanes, threadless, odd = chrome_slices(file)
    flows, loose = arrows(file, events)
    counters, unread = _counters(file.others["C"])
    parts = Parts(
        events=events,
        names=_names(file.others["M"], lanes),
        counters=counters,
        forward_flows=(_forward_ends(file.others["s"]), _forward_ends(file.others["f"])),
        flows=flows,
        moments=np.array(file.instants, dtype=np.int64),
        threadless=np.arange(len(events) - threadless, len(events)),
        notes=[note for note in (*_notes(file), *odd, loose, unread) if note],
    )
    return with_plausible_times(parts)


def _restored(file: Gathered, layout: Mapping[str, Any], path: Path) -> Record:
    """Return the record of our own writer's file; raise an error if it was changed since."""
    if file.rows != layout.get("rows"):
        raise TraceError(
            f"{path}: {file.rows:,} of {layout.get('rows')} slices are left of a saved trace: "
            "it was changed since. Save it again, or remove its "
            f'"{KEY}" key to have it read as any other trace.'
        )
    counters, _ = _counters(file.others["C"])
    try:
        events = file.events()
        args, odd = usable_args(events.args)
        trace = restore(replace(events, args=args), counters, layout, _base(file.header))
    except (LookupError, ValueError, TypeError, AttributeError, OverflowError, zlib.error) as error:
        reason = f" ({error})" if str(error).startswith("its ") else ""  # raised by `restore`
        raise TraceError(
            f'{path}: its "{KEY}" key was changed since it was saved{reason}. '
            "Save it again, or remove that key to have it read as any other trace."
        ) from error
    saved = layout.get(METADATA)
    metadata = saved if isinstance(saved, dict) else _metadata(file.header, path) | {"notes": []}
    if odd:
        before = metadata.get("notes")
        metadata = metadata | {"notes": [*(before if isinstance(before, list) else ()), *odd]}
    return Record(trace, None, metadata)


def _notes(file: Gathered) -> list[str]:
    """Return a line on each kind of content that could not be read."""
    slices = file.rows + file.untimed
    events = file.total + file.left_out
    counted = [
        (file.left_out, f"of {events:,} events are not well-formed and were left out"),
        (file.mended, f"of {events:,} events are not well-formed and were mended"),
        (file.without_stack, "stacks were not read, because those before them hold too much text"),
        (file.untimed, f"of {slices:,} events have no valid ts or dur and were left out"),
        (file.rare_keys, f"rare keys of args are kept together, as {MORE_ARGS!r}"),
        (file.samples, "events with samples of stacks are not read"),
    ]
    notes = [*file.notes, *(f"{count:,} {text}" for count, text in counted if count)]
    for phase in sorted(set(file.phases) - KNOWN_PHASES - {SAMPLE}):
        noun, verb = ("event", "is") if file.phases[phase] == 1 else ("events", "are")
        notes.append(f"{file.phases[phase]:,} {noun} of kind {phase!r} {verb} not read")
    return notes


def _nothing(file: Gathered, path: Path, notes: Sequence[str]) -> str:
    if file.samples:
        return (
            f"{path}: a trace without a single slice, of {file.samples:,} events with samples of "
            "stacks, which are not read. Instead: open it in the Performance panel of Chrome's "
            "DevTools, or at https://www.speedscope.app."
        )
    kinds = [f"{count} of kind {phase!r}" for phase, count in file.phases.most_common(6)]
    if file.spans:
        kinds.append(f"{len(file.spans)} of the profiler on itself")
    content = "; ".join([", ".join(kinds) or "none", *notes])
    return (
        f"{path}: a trace without a single slice (its events: {content}). "
        "Record again, with the work inside the profiled region."
    )


_NAME_EVENTS = {
    "process_name": "name",
    "process_labels": "labels",
    "process_sort_index": "sort_index",
    "thread_name": "name",
    "thread_sort_index": "sort_index",
}
"""Metadata events that are read, with the arg that holds their value."""


def _names(events: Sequence[Event], lanes: Lanes) -> Names:
    """Return the names and order of processes and threads in metadata events and ``lanes``."""

    def order(index: Any) -> float:  # what is no number comes last
        return float(index) if isinstance(index, int | float) and abs(index) < 2**53 else math.inf

    values: dict[str, dict[Any, Any]] = {kind: {} for kind in _NAME_EVENTS}
    for event in events:
        if event.name in _NAME_EVENTS:
            value = (event.args or {}).get(_NAME_EVENTS[event.name], "")
            values[event.name][id_text(event.pid), id_text(event.tid)] = value
    labels = {pid: str(text) for (pid, _), text in values["process_labels"].items()}
    processes = {pid: str(text) for (pid, _), text in values["process_name"].items()}
    return Names(
        processes={
            pid: f"{text} ({labels[pid]})" if labels.get(pid) else text
            for pid, text in processes.items()
        },
        threads={lane: str(text) for lane, text in values["thread_name"].items()} | dict(lanes),
        process_order={pid: order(at) for (pid, _), at in values["process_sort_index"].items()},
        thread_order={lane: order(at) for lane, at in values["thread_sort_index"].items()},
    )


def _counters(events: Sequence[Event]) -> tuple[pd.DataFrame, str]:
    """Return the counters of the file, one per series, and a line on invalid readings ("" if none).

    As in Chrome, counters of one name differ where their ids or processes differ.
    """
    ts, _, valid = times(events)
    processes: dict[str, set[str]] = {}
    for event in events:
        processes.setdefault(_counter(event), set()).add(id_text(event.pid))
    readings = [
        (at, _labelled(_counter(event), event, series, processes), number)
        for event, at, good in zip(events, ts.tolist(), valid.tolist(), strict=True)
        for series, value in (event.args or {}).items()
        if good and (number := _reading(value)) is not None
    ]
    moments, values = [r[0] for r in readings], [r[2] for r in readings]
    count = sum(len(event.args or {}) for event in events)
    odd = f"{count - len(readings):,} of {count:,} counter readings have no valid ts or number"
    table = counter_table(moments, [r[1] for r in readings], values)
    return table, f"{odd} and were left out" if count > len(readings) else ""


def _reading(value: Any) -> float | None:
    """Return a counter's value, which some programs write as text; None if it is no number."""
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    try:
        number = float(value)
    except (ValueError, OverflowError):
        return None
    return number if math.isfinite(number) else None


def _counter(event: Event) -> str:
    return event.name if event.id is None else f"{event.name} {event.id}"


def _labelled(name: str, event: Event, series: str, processes: Mapping[str, set[str]]) -> str:
    """Return a counter's name with its process, if several have it, and its series' name if new."""
    words = [f"{id_text(event.pid)}:"] if len(processes[name]) > 1 else []
    is_new = series != "value" and (series != event.name or len(event.args or {}) > 1)
    return " ".join([*words, name, *([series] if is_new else [])])


def _forward_ends(written: Sequence[Event]) -> list[FlowEnd]:
    events = [event for event in written if event.cat == FORWARD]
    ts, _, valid = times(events)
    return [
        FlowEnd(event.id, id_text(event.pid), id_text(event.tid), at)
        for event, at, good in zip(events, ts.tolist(), valid.tolist(), strict=True)
        if good
    ]


def _base(header: dict[str, Any]) -> int:
    base = header.get("baseTimeNanoseconds", 0)
    return base if type(base) is int and abs(base) < 2**62 else 0


def _rank(header: dict[str, Any]) -> int:
    information = header.get("distributedInfo")
    rank = information.get("rank") if isinstance(information, dict) else None
    return rank if type(rank) is int and 0 <= rank < 2**31 else NONE


def _metadata(header: dict[str, Any], path: Path) -> dict[str, Any]:
    """Return the other keys of the file: device properties, versions, ranks, the user's keys."""
    properties = header.get("deviceProperties")
    devices = [
        {"index": d.get("id"), "name": d.get("name"), "total_memory_bytes": d.get("totalGlobalMem")}
        for d in (properties if isinstance(properties, list) else [])
        if isinstance(d, dict)
    ]
    renamed = {"schemaVersion": "schema_version", "host_name": "host"}
    others = {renamed.get(key, key): value for key, value in header.items() if key != KEY}
    return others | {"source": str(path), "devices": devices}
