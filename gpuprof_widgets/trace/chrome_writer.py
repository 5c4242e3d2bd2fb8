"""Writer of traces: Kineto's JSON, which Perfetto opens, with every nanosecond kept.

Times are microseconds with three decimals beside ``baseTimeNanoseconds``. What JSON events cannot
say (the rows' order, their owners, the bounds of a window) stands beside them under ``KEY``, so
that a trace reads back equal; other readers ignore it. So does the record's metadata, where it is
given: its GPUs and ranks also stand where Kineto has them, for other readers.
"""

from __future__ import annotations

import base64
import json
import zlib
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import msgspec
import numpy as np
import pandas as pd

from gpuprof_widgets.trace.assemble import split_ids
from gpuprof_widgets.trace.events import Events, column, text_codes
from gpuprof_widgets.trace.model import Trace
from gpuprof_widgets.trace.schema import (
    FLOW_COLUMNS,
    NONE,
    PROCESS_NAMES,
    SLICE_COLUMNS,
    WRITTEN_CATEGORY,
)
from gpuprof_widgets.trace.tracks import WrittenLanes, with_types, written_lanes

WRITTEN_IDS = {
    "correlation": "correlation",
    "external_id": "External id",
    "sequence": "Sequence number",
    "forward_thread": "Fwd thread id",
}
FLOW_CATEGORIES = {"launch": "ac2g"}

COMPRESSION = 1
"""gzip level: 5 times faster than the default for a file a third larger."""

BLOCK = 1 << 13
"""Slices whose values are Python objects at a time."""

KINETO_KEYS = ("deviceProperties", "distributedInfo")
"""What other readers know of the metadata: both analyses of ours and theirs use them."""

_LONGEST_NUMBER = 20
"""Characters of any int64; Python refuses to turn thousands of digits into a number."""

_encode = msgspec.json.Encoder().encode


def chrome_trace(trace: Trace, metadata: Mapping[str, Any] | None = None) -> Iterator[bytes]:
    """The file, piece by piece."""
    told = _as_json(metadata or {})
    header = {
        "schemaVersion": 1,
        "displayTimeUnit": "ms",
        "baseTimeNanoseconds": trace.epoch_ns,
        **_kineto_header(told),
        KEY: beside(trace) | ({} if metadata is None else {METADATA: told}),
    }
    yield _encode(header)[:-1] + b',\n"traceEvents": ['
    separator = b"\n"
    for line in _lines(trace, _process_names(told)):
        yield separator + line
        separator = b",\n"
    yield b"\n]}\n"


def _as_json(metadata: Mapping[str, Any]) -> dict[str, Any]:
    """The metadata as a saved profile has it; what JSON has no number for is null.

    Half of a surrogate pair, as in names of files that are no UTF-8, becomes a question mark.
    """
    written = json.dumps(dict(metadata), default=str, ensure_ascii=False)
    text = written.encode("utf-8", "replace").decode()
    told: dict[str, Any] = json.loads(text, parse_constant=lambda _: None)
    return told


def _kineto_header(metadata: Mapping[str, Any]) -> dict[str, Any]:
    """The GPUs and the rank under the names by which readers of Kineto's files know them."""
    found = {key: metadata[key] for key in KINETO_KEYS if key in metadata}
    devices = [one for one in metadata.get("devices") or () if isinstance(one, dict)]
    if devices:
        found.setdefault("deviceProperties", [_properties(one) for one in devices])
    if "rank" in metadata:
        about = {key: metadata[key] for key in ("rank", "world_size") if key in metadata}
        found.setdefault("distributedInfo", about)
    return found


def _properties(device: Mapping[str, Any]) -> dict[str, Any]:
    """A GPU of ``devices`` as Kineto writes it."""
    major, _, minor = str(device.get("compute_capability") or "").partition(".")
    given = {
        "id": device.get("index"),
        "name": device.get("name"),
        "totalGlobalMem": device.get("total_memory_bytes"),
        "numSms": device.get("multiprocessors"),
        "computeMajor": int(major) if major.isdecimal() else None,
        "computeMinor": int(minor) if minor.isdecimal() else None,
    }
    return {key: value for key, value in given.items() if value is not None}


def _process_names(metadata: Mapping[str, Any]) -> dict[str, str]:
    """What the file that was read calls its processes, by their ids."""
    names = metadata.get(PROCESS_NAMES)
    known = names.items() if isinstance(names, dict) else ()
    return {process: name for process, name in known if isinstance(name, str) and name.strip()}


def _lines(trace: Trace, named: Mapping[str, str]) -> Iterator[bytes]:
    """The slices in the order of their rows, then names, counters and arrows."""
    lanes = written_lanes(trace)
    yield from _slices(trace, lanes)
    yield from map(_encode, _names(trace.tracks, lanes.table, named))
    yield from map(_encode, _counters(trace.counters))
    yield from map(_encode, _arrows(trace, lanes))


def _categories(trace: Trace) -> pd.Categorical:
    """The categories to write: of what another program wrote, its own."""
    ours, written = trace.slices["category"], trace.args.get(WRITTEN_CATEGORY)
    if written is None:
        return pd.Categorical(ours)
    texts = ours.to_numpy(dtype=object, copy=True)
    texts[written.index.to_numpy()] = [str(text) for text in written]
    return text_codes(texts.tolist())


def _slices(trace: Trace, lanes: WrittenLanes) -> Iterator[bytes]:
    slices = trace.slices
    category = _categories(trace)
    names = [_encode(name) for name in slices["name"].cat.categories]
    categories = [_encode(name) for name in category.categories]
    heads = [
        f', "pid": {_id(process)}, "tid": {_id(thread)}, "ts": '.encode()
        for process, thread in zip(lanes.table["process"], lanes.table["thread"], strict=True)
    ]
    instant = (slices["category"] == "cpu_instant_event").to_numpy() & (slices["dur"] == 0)
    columns = (
        instant,
        category.codes,
        slices["name"].cat.codes.to_numpy(),
        lanes.of_slice,
        slices["ts"].to_numpy(),
        slices["dur"].to_numpy(),
    )
    given = _written_args(trace)
    for first in range(0, len(slices), BLOCK):
        block = slice(first, first + BLOCK)
        values = (*(column[block].tolist() for column in columns), _args(given, first, len(slices)))
        for is_instant, category, name, lane, ts, dur, args in zip(*values, strict=True):
            kind = b'{"ph": "i", "s": "t"' if is_instant else b'{"ph": "X"'
            length = b"" if is_instant else b', "dur": ' + _microseconds(dur)
            more = b', "args": ' + _encode(args) if args else b""
            yield b"".join(
                (kind, b', "cat": ', categories[category], b', "name": ', names[name], heads[lane],
                 _microseconds(ts), length, more, b"}")
            )  # fmt: skip


def _written_args(trace: Trace) -> list[tuple[str, pd.Series]]:
    """The args with their keys, ids first; each by rows in their order."""
    ids = [(key, trace.slices[column]) for column, key in WRITTEN_IDS.items()]
    known = [(key, values[values != NONE]) for key, values in ids]
    return known + [(key, values.sort_index()) for key, values in trace.args.items()]


def _args(given: list[tuple[str, pd.Series]], first: int, rows: int) -> list[dict[str, Any]]:
    """The args of a block of rows: a dict for each row of a big trace would fill the memory."""
    args: list[dict[str, Any]] = [{} for _ in range(min(BLOCK, rows - first))]
    for key, values in given:
        index = values.index.to_numpy()
        inside = slice(*np.searchsorted(index, (first, first + BLOCK)).tolist())
        found = zip(index[inside].tolist(), values.iloc[inside].tolist(), strict=True)
        for row, value in found:
            args[row - first][key] = value
    return args


def _microseconds(ns: int) -> bytes:
    return b"%d.%03d" % divmod(ns, 1000)


def _id(text: str) -> str:
    """An id as a number where its text is one, as Kineto writes it."""
    short = len(text) <= _LONGEST_NUMBER and text.lstrip("-").isdecimal() and text.isascii()
    number = short and str(int(text)) == text
    return text if number else _encode(text).decode()


def _names(
    tracks: pd.DataFrame, lanes: pd.DataFrame, given: Mapping[str, str]
) -> Iterator[dict[str, Any]]:
    """What processes and threads are called, and their order, which is that of our tracks."""
    for number, process in enumerate(lanes["process"].unique()):
        on_gpu = (tracks["device"][tracks["process"] == process] >= 0).any()
        named = f"GPU {process}" if on_gpu else f"process {process}"
        name = given.get(process, named if process.isdecimal() else process)
        yield _about("process_name", process, "0", {"name": name})
        yield _about("process_sort_index", process, "0", {"sort_index": number})
    columns = (lanes["process"], lanes["thread"], lanes["label"])
    for number, (process, thread, label) in enumerate(zip(*columns, strict=True)):
        of = f"{given.get(process, '').strip()} · "
        yield _about("thread_name", process, thread, {"name": label.removeprefix(of)})
        yield _about("thread_sort_index", process, thread, {"sort_index": number})


def _about(kind: str, process: str, thread: str, args: dict[str, Any]) -> dict[str, Any]:
    ids = {"pid": msgspec.Raw(_id(process).encode()), "tid": msgspec.Raw(_id(thread).encode())}
    return {"ph": "M", "name": kind, "ts": 0, **ids, "args": args}


def _counters(counters: pd.DataFrame) -> Iterator[dict[str, Any]]:
    for ts, name, value in zip(
        counters["ts"].tolist(), counters["name"], counters["value"].tolist(), strict=True
    ):
        at = msgspec.Raw(_microseconds(ts))
        yield {"ph": "C", "name": name, "pid": 0, "ts": at, "args": {"value": value}}


def _arrows(trace: Trace, lanes: WrittenLanes) -> Iterator[dict[str, Any]]:
    flows = trace.flows
    sides = (_places(trace, lanes, flows[side]) for side in ("source", "target"))
    ends = zip(*sides, strict=True)
    for number, (kind, (source, target)) in enumerate(zip(flows["kind"], ends, strict=True), 1):
        category = FLOW_CATEGORIES.get(kind, kind)
        about = {"id": number, "cat": category, "name": category}
        yield {"ph": "s", **about, **source}
        yield {"ph": "f", "bp": "e", **about, **target}


def _places(trace: Trace, lanes: WrittenLanes, rows: pd.Series) -> Iterator[dict[str, Any]]:
    """Where an arrow meets each of these slices: their thread and start."""
    ids = [
        {"pid": msgspec.Raw(_id(process).encode()), "tid": msgspec.Raw(_id(thread).encode())}
        for process, thread in zip(lanes.table["process"], lanes.table["thread"], strict=True)
    ]
    at = rows.to_numpy()
    starts = trace.slices["ts"].to_numpy()[at]
    for lane, ts in zip(lanes.of_slice[at].tolist(), starts.tolist(), strict=True):
        yield {**ids[lane], "ts": msgspec.Raw(_microseconds(ts))}


def in_blocks(pieces: Iterable[bytes], size: int = 1 << 20) -> Iterator[bytes]:
    """The pieces joined to larger ones, so that compressing them costs no call for each."""
    held: list[bytes] = []
    length = 0
    for piece in pieces:
        held.append(piece)
        length += len(piece)
        if length >= size:
            yield b"".join(held)
            held, length = [], 0
    yield b"".join(held)


KEY = "gpuprof_widgets"
METADATA = "metadata"
VERSION = 1

PACKED_COLUMNS = ("track", "depth", "parent", "count", "launch", "op", "forward")
RELATIVE_COLUMNS = ("parent", "launch", "op", "forward")
"""Row links, stored as distances: near ones repeat, and pack to a few bytes."""


def beside(trace: Trace) -> dict[str, Any]:
    """The rows' order and owners, the tracks and arrows, and the bounds of a window."""
    columns = {name: trace.slices[name].to_numpy() for name in PACKED_COLUMNS}
    columns |= {name: distances(columns[name]) for name in RELATIVE_COLUMNS}
    flows = trace.flows
    kinds = {"categories": _own_categories(trace)} if WRITTEN_CATEGORY in trace.args else {}
    return {
        **kinds,
        "version": VERSION,
        "rows": len(trace.slices),
        "start_ns": trace.start_ns,
        "end_ns": trace.end_ns,
        "tracks": trace.tracks.astype(object).to_dict("list"),
        "columns": {name: pack(values) for name, values in columns.items()},
        "flows": {
            "kinds": list(flows["kind"].cat.categories),
            "kind": pack(flows["kind"].cat.codes),
            "source": pack(flows["source"]),
            "target": pack(flows["target"]),
        },
    }


def _own_categories(trace: Trace) -> dict[str, Any]:
    """Our categories, where the events have those of the program that wrote them first."""
    category = trace.slices["category"].cat
    return {"names": list(category.categories), "of": pack(category.codes)}


def pack(values: Any) -> str:
    """Integers as base64 of zlib of little-endian int32."""
    return base64.b64encode(zlib.compress(np.asarray(values, dtype="<i4").tobytes(), 1)).decode()


def unpack(text: str, most: int) -> np.ndarray[Any, np.dtype[np.int32]]:
    """The integers that `pack` packed, which a file that was made to can hold no more of."""
    unpacked = zlib.decompressobj().decompress(base64.b64decode(text), 4 * most + 1)
    return np.frombuffer(unpacked, dtype="<i4").astype(np.int32)


def distances(rows: Any) -> Any:
    """Row links as distances to the own row (always positive or negative, never 0); 0 is none."""
    own = np.arange(len(rows))
    return np.where(rows == NONE, 0, own - rows)


def rows_at(distance: Any) -> Any:
    """The row links that `distances` turned."""
    own = np.arange(len(distance), dtype=np.int32)
    return np.where(distance == 0, NONE, own - distance).astype(np.int32)


def written_by_us(header: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """What our writer put beside the events, if it wrote this file."""
    beside = header.get(KEY)
    known = isinstance(beside, dict) and beside.get("version") == VERSION
    return beside if known else None


def restore(
    events: Events, counters: pd.DataFrame, beside: Mapping[str, Any], epoch_ns: int
) -> Trace:
    """The trace as it was written; ``events`` are its rows in order.

    Raises `ValueError`, or what looking up a wrong value raises, where it is no such trace.
    """
    rows = len(events)
    packed = {name: unpack(beside["columns"][name], rows) for name in PACKED_COLUMNS}
    packed |= {name: rows_at(packed[name]) for name in RELATIVE_COLUMNS}
    ids, args = split_ids(events, np.arange(rows))
    category = _restore_categories(events, beside.get("categories"))
    plain = {"ts": events.ts, "dur": events.dur, "name": events.name, "category": category}
    values: dict[str, Any] = plain | packed | ids
    trace = Trace(
        slices=pd.DataFrame({name: values[name] for name in SLICE_COLUMNS}),
        tracks=with_types(beside["tracks"]),
        counters=counters,
        flows=_flows(beside["flows"]),
        args=args,
        start_ns=int(beside["start_ns"]),
        end_ns=int(beside["end_ns"]),
        epoch_ns=epoch_ns,
    )
    _check(trace)
    return trace


def _restore_categories(events: Events, told: Mapping[str, Any] | None) -> pd.Categorical:
    """Our categories, where the events themselves have those of another program."""
    if told is None:
        return events.category
    names = np.array([str(name) for name in told["names"]], dtype=object)
    codes = unpack(told["of"], len(events))
    if len(codes) != len(events) or not _within(codes, 0, len(names)):
        raise ValueError("its categories are not those of its slices")
    return column(names[codes].tolist(), "category")  # type: ignore[no-any-return]


def _check(trace: Trace) -> None:
    """Rows and tracks exist, and no slice is above itself: else analyses would fail, or not end."""
    slices, rows = trace.slices, len(trace.slices)
    track, ts = slices["track"].to_numpy(), slices["ts"].to_numpy()
    inside = slices["count"].to_numpy() > 0  # what stands for something inside a window may not be
    start, end = ts[inside], ts[inside] + slices["dur"].to_numpy()[inside]
    later = (np.diff(track) > 0) | ((np.diff(track) == 0) & (np.diff(ts) >= 0))
    sound = [
        later.all(),
        not trace.tracks.isna().any(axis=None),
        ((start >= trace.start_ns) & (end <= trace.end_ns)).all(),
        _within(track, 0, len(trace.tracks)),
        _within(slices["parent"].to_numpy() - np.arange(rows), -rows - 1, 0),
        *(_within(slices[name].to_numpy(), NONE, rows) for name in RELATIVE_COLUMNS),
        *(_within(trace.flows[name].to_numpy(), 0, rows) for name in ("source", "target")),
    ]
    if not all(sound):
        raise ValueError("its rows do not belong together")


def _within(values: Any, low: int, end: int) -> bool:
    return bool(((values >= low) & (values < end)).all())


_MOST_FLOWS = 1 << 24


def _flows(packed: Mapping[str, Any]) -> pd.DataFrame:
    kinds = np.array([*packed["kinds"], ""], dtype=object)
    values = {
        "source": unpack(packed["source"], _MOST_FLOWS),
        "target": unpack(packed["target"], _MOST_FLOWS),
        "kind": kinds[unpack(packed["kind"], _MOST_FLOWS)].tolist(),
    }
    return pd.DataFrame({name: column(values[name], FLOW_COLUMNS[name]) for name in FLOW_COLUMNS})
