"""Reader of Kineto traces: the JSON that torch.profiler exports, gzipped or not."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from itertools import compress
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from gpuprof_widgets.exceptions import TraceError
from gpuprof_widgets.trace.assemble import assemble
from gpuprof_widgets.trace.chrome_writer import KEY
from gpuprof_widgets.trace.counters import counter_table
from gpuprof_widgets.trace.event_json import Event, TraceFile, decode, without_garbage_collection
from gpuprof_widgets.trace.events import Events, FlowEnd, Names, text_codes, typed
from gpuprof_widgets.trace.files import read_bytes
from gpuprof_widgets.trace.microseconds import nanoseconds
from gpuprof_widgets.trace.model import Record
from gpuprof_widgets.trace.restore import restore, written_by_us
from gpuprof_widgets.trace.schema import CATEGORY_ALIASES, NONE

INSTANTS = ("i", "I")
FLOW_ENDS = ("s", "f", "t")
KNOWN_PHASES = ("X", "M", "C", *INSTANTS, *FLOW_ENDS)


def is_json(data: bytes) -> bool:
    """Whether these bytes start as a JSON object or list."""
    return data[:64].lstrip()[:1] in (b"{", b"[")


def read_chrome_trace(path: Path) -> Record:
    """The record of a ``.json`` or ``.json.gz`` file of torch.profiler."""
    return parse_chrome_trace(read_bytes(path), path)


def parse_chrome_trace(data: bytes, path: Path) -> Record:
    """The record of the JSON text; ``path`` is named in metadata and in errors."""
    with without_garbage_collection():
        file = decode(data, path)
        return _record(file, path)


def _record(file: TraceFile, path: Path) -> Record:
    beside = written_by_us(file.header)
    if beside is not None:
        return _restored(file, beside, path)
    rows = [event for event in file.events if event.ph == "X" or event.ph in INSTANTS]
    rows, ts, dur, notes = _timed(rows)
    marker = np.fromiter(map(_is_marker, rows), dtype=bool, count=len(rows))
    if marker.all():
        raise TraceError(_nothing(file, path))
    kept = list(compress(rows, ~marker))
    base = _base(file.header)
    trace = assemble(
        events_of(kept, ts[~marker], dur[~marker]),
        names=_names(file.events),
        counters=_counters(file.events),
        forward_flows=_forward_flows(file.events),
        epoch_ns=base,
        rank=_rank(file.header),
    )
    start = trace.epoch_ns - base
    spans = zip(compress(rows, marker), ts[marker].tolist(), dur[marker].tolist(), strict=True)
    metadata = {
        **_metadata(file.header, path),
        "profiler_spans": [_span(row, at - start, length) for row, at, length in spans],
        "notes": [*file.notes, *notes, *_unread(file.events)],
    }
    return Record(trace, None, metadata)


def _restored(file: TraceFile, beside: Mapping[str, Any], path: Path) -> Record:
    """A trace of our own writer; if rows went missing since, it cannot be put together."""
    rows, ts, dur, _ = _timed(file.events[: beside["rows"]])
    if len(rows) != beside["rows"] or file.notes:
        raise TraceError(
            f"{path}: {len(rows):,} of {beside['rows']:,} slices are left of a saved trace: "
            "it was changed since. Save it again, or remove its "
            f'"{KEY}" key to have it read as any other trace.'
        )
    events = events_of(rows, ts, dur)
    trace = restore(events, _counters(file.events), beside, _base(file.header))
    return Record(trace, None, _metadata(file.header, path) | {"notes": []})


def _span(row: Event, ts: int, dur: int) -> dict[str, Any]:
    return {"name": row.name, "ts_ns": ts, "dur_ns": dur}


def events_of(rows: Sequence[Event], ts: Any, dur: Any) -> Events:
    """The columns of complete events and instants."""
    return Events(
        ts=ts,
        dur=dur,
        name=text_codes([row.name for row in rows]),
        category=text_codes(_mapped([(row.ph, row.cat) for row in rows], _category)),
        process=text_codes(_mapped([row.pid for row in rows], _id_text)),
        thread=text_codes(_mapped([row.tid for row in rows], _id_text)),
        args=arg_columns([row.args for row in rows]),
    )


def arg_columns(args: Sequence[dict[str, Any] | None]) -> dict[str, pd.Series]:
    """One sparse column per key, over the positions of the events that have it.

    Events of one kind have the same keys in the same order: they are turned in one step.
    """
    groups: dict[tuple[str, ...], list[int]] = defaultdict(list)
    for number, given in enumerate(args):
        if given:
            groups[tuple(given)].append(number)
    numbers: dict[str, list[np.ndarray[Any, Any]]] = defaultdict(list)
    values: dict[str, list[Any]] = defaultdict(list)
    for keys, members in groups.items():
        index = np.array(members, dtype=np.int64)
        columns = zip(*[args[member].values() for member in members], strict=True)  # type: ignore[union-attr]
        for key, column in zip(keys, columns, strict=True):
            numbers[key].append(index)
            values[key].extend(column)
    return {key: typed(values[key], np.concatenate(numbers[key])) for key in values}


def _mapped(values: Sequence[Any], text: Any) -> list[str]:
    """The text of each value, made once for each distinct value."""
    texts = {value: text(value) for value in set(values)}
    return [texts[value] for value in values]


def _id_text(value: Any) -> str:
    return "" if value is None else str(value)


def _category(phase_and_category: tuple[str, str | None]) -> str:
    phase, category = phase_and_category
    if not category:
        return "cpu_instant_event" if phase in INSTANTS else "other"
    return CATEGORY_ALIASES.get(category, category)


def _timed(rows: list[Event]) -> tuple[list[Event], Any, Any, list[str]]:
    """The rows that have a time and, where they need one, a duration; both in ns."""
    ts, good_ts = nanoseconds([bytes(row.ts) for row in rows])
    dur, good_dur = nanoseconds([bytes(row.dur) if row.ph == "X" else b"0" for row in rows])
    good = good_ts & good_dur & (dur >= 0)
    if good.all():
        return rows, ts, dur, []
    kept = [row for row, keep in zip(rows, good.tolist(), strict=True) if keep]
    count = len(rows) - len(kept)
    note = f"{count:,} of {len(rows):,} events have no valid ts or dur and were left out"
    return kept, ts[good], dur[good], [note]


def _is_marker(row: Event) -> bool:
    """The profiler's notes on itself: its own span, "Iteration Start", "Record Window End"."""
    return row.cat == "Trace" or row.s == "g"


def _nothing(file: TraceFile, path: Path) -> str:
    phases = Counter(event.ph for event in file.events)
    kinds = [f"{count} of kind {phase!r}" for phase, count in phases.most_common(6)]
    found = "; ".join([", ".join(kinds) or "none", *file.notes])
    return (
        f"{path}: a trace without a single slice (its events: {found}). "
        "Record again, with the work inside the profiled region."
    )


def _names(events: Iterable[Event]) -> Names:
    processes: dict[str, str] = {}
    threads: dict[tuple[str, str], str] = {}
    for event in events:
        if event.ph != "M" or not event.args:
            continue
        name = str(event.args.get("name", ""))
        if event.name == "process_name":
            processes[_id_text(event.pid)] = name
        elif event.name == "thread_name":
            threads[_id_text(event.pid), _id_text(event.tid)] = name
    return Names(processes, threads)


def _counters(events: Iterable[Event]) -> pd.DataFrame:
    """The file's counter events; one with several series becomes one counter for each."""
    rows = [event for event in events if event.ph == "C" and event.args]
    ts, good = nanoseconds([bytes(row.ts) for row in rows])
    readings = [
        (at, row.name if series == "value" else f"{row.name} {series}", float(value))
        for row, at, valid in zip(rows, ts.tolist(), good.tolist(), strict=True)
        for series, value in (row.args or {}).items()
        if valid and isinstance(value, int | float)
    ]
    moments = np.array([reading[0] for reading in readings], dtype=np.int64)
    values = np.array([reading[2] for reading in readings], dtype=np.float64)
    return counter_table(moments, [reading[1] for reading in readings], values)


def _forward_flows(events: Iterable[Event]) -> tuple[list[FlowEnd], list[FlowEnd]]:
    """Both ends of the arrows from forward to backward ops."""
    rows = [event for event in events if event.ph in ("s", "f") and event.cat == "fwdbwd"]
    ts, good = nanoseconds([bytes(row.ts) for row in rows])
    ends: dict[str, list[FlowEnd]] = {"s": [], "f": []}
    for row, at, valid in zip(rows, ts.tolist(), good.tolist(), strict=True):
        if valid:
            ends[row.ph].append(FlowEnd(row.id, _id_text(row.pid), _id_text(row.tid), at))
    return ends["s"], ends["f"]


def _unread(events: Iterable[Event]) -> list[str]:
    phases = Counter(event.ph for event in events)
    return [
        f"{count:,} events of kind {phase!r} are not read"
        for phase, count in sorted(phases.items())
        if phase not in KNOWN_PHASES
    ]


def _base(header: dict[str, Any]) -> int:
    base = header.get("baseTimeNanoseconds", 0)
    return base if isinstance(base, int) else 0


def _rank(header: dict[str, Any]) -> int:
    information = header.get("distributedInfo")
    rank = information.get("rank") if isinstance(information, dict) else None
    return rank if isinstance(rank, int) else NONE


def _metadata(header: dict[str, Any], path: Path) -> dict[str, Any]:
    """What stands beside the events: device properties, versions, ranks, the user's own keys."""
    properties = header.get("deviceProperties")
    devices = [
        {"index": d.get("id"), "name": d.get("name"), "total_memory_bytes": d.get("totalGlobalMem")}
        for d in properties or []
        if isinstance(d, dict)
    ]
    renamed = {"schemaVersion": "schema_version", "host_name": "host"}
    others = {renamed.get(key, key): value for key, value in header.items() if key != KEY}
    return others | {"source": str(path), "devices": devices}
