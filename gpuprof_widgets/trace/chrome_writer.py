"""Write a trace as Kineto's JSON, which Perfetto opens, without losing a nanosecond; restore it.

Times are microseconds with three decimals, relative to ``baseTimeNanoseconds``. JSON events cannot
express the order of rows, their owners, and the bounds of a window: these stand under ``KEY`` as
the trace's layout, and other readers ignore them. Integers of all rows are packed, and links
between rows are distances. With the layout, `restore` returns an equal trace. The record's
metadata, if given, stand there too; its GPUs and ranks also stand where Kineto has them.
"""

from __future__ import annotations

import base64
import json
import zlib
from collections.abc import Iterable, Iterator, Mapping
from itertools import chain
from typing import Any

import msgspec
import numpy as np
import pandas as pd

from gpuprof_widgets.trace.assemble import split_ids
from gpuprof_widgets.trace.events import Events, flow_table, text_codes
from gpuprof_widgets.trace.model import Trace
from gpuprof_widgets.trace.schema import NONE, PROCESS_NAMES, SLICE_COLUMNS, WRITTEN_CATEGORY
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
"""Number of slices whose values are Python objects at the same time."""

KEY = "gpuprof_widgets"
METADATA = "metadata"
VERSION = 1

PACKED_COLUMNS = ("track", "depth", "parent", "count", "launch", "op", "forward")
RELATIVE_COLUMNS = ("parent", "launch", "op", "forward")
"""Links between rows, written as distances: near ones repeat, and pack to a few bytes."""

_LONGEST_NUMBER = 20
"""Characters of any int64; Python refuses to turn thousands of digits into a number."""
_MOST_FLOWS = 1 << 24

_encode = msgspec.json.Encoder().encode


def chrome_trace(trace: Trace, metadata: Mapping[str, Any] | None = None) -> Iterator[bytes]:
    """Yield the file, piece by piece."""
    plain = _as_json(metadata or {})
    header = {
        "schemaVersion": 1,
        "displayTimeUnit": "ms",
        "baseTimeNanoseconds": trace.epoch_ns,
        **_kineto_header(plain),
        KEY: layout_of(trace) | ({} if metadata is None else {METADATA: plain}),
    }
    yield _encode(header)[:-1] + b',\n"traceEvents": ['
    lanes = written_lanes(trace)
    names = _names(trace.tracks, lanes.table, _process_names(plain))
    others = chain(names, _counters(trace.counters), _arrows(trace, lanes))
    separator = b"\n"
    for line in chain(_slices(trace, lanes), map(_encode, others)):
        yield separator + line
        separator = b",\n"
    yield b"\n]}\n"


def _as_json(metadata: Mapping[str, Any]) -> dict[str, Any]:
    """Return the metadata as in a saved profile, with null for numbers that JSON does not have.

    Half of a surrogate pair, as in file names that are not UTF-8, becomes a question mark.
    """
    written = json.dumps(dict(metadata), default=str, ensure_ascii=False)
    text = written.encode("utf-8", "replace").decode()
    plain: dict[str, Any] = json.loads(text, parse_constant=lambda _: None)
    return plain


def _kineto_header(metadata: Mapping[str, Any]) -> dict[str, Any]:
    """Return the GPUs and the rank under Kineto's keys, which other readers use as well."""
    kineto_keys = ("deviceProperties", "distributedInfo")
    header = {key: metadata[key] for key in kineto_keys if key in metadata}
    devices = [device for device in metadata.get("devices") or () if isinstance(device, dict)]
    if devices:
        header.setdefault("deviceProperties", [_properties(device) for device in devices])
    if "rank" in metadata:
        ranks = {key: metadata[key] for key in ("rank", "world_size") if key in metadata}
        header.setdefault("distributedInfo", ranks)
    return header


def _properties(device: Mapping[str, Any]) -> dict[str, Any]:
    """Return a GPU of ``devices`` as Kineto writes it."""
    major, _, minor = str(device.get("compute_capability") or "").partition(".")
    properties = {
        "id": device.get("index"),
        "name": device.get("name"),
        "totalGlobalMem": device.get("total_memory_bytes"),
        "numSms": device.get("multiprocessors"),
        "computeMajor": int(major) if major.isdecimal() else None,
        "computeMinor": int(minor) if minor.isdecimal() else None,
    }
    return {key: value for key, value in properties.items() if value is not None}


def _process_names(metadata: Mapping[str, Any]) -> dict[str, str]:
    """Return the original file's names of its processes, by id."""
    names = metadata.get(PROCESS_NAMES)
    known = names.items() if isinstance(names, dict) else ()
    return {process: name for process, name in known if isinstance(name, str) and name.strip()}


def _categories(trace: Trace) -> pd.Categorical:
    """Return the categories to write: those of the program that wrote the slices first."""
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
    ids = [(key, slices[column]) for column, key in WRITTEN_IDS.items()]
    args_columns = [(key, values[values != NONE]) for key, values in ids]
    args_columns += [(key, values.sort_index()) for key, values in trace.args.items()]
    for first in range(0, len(slices), BLOCK):
        block = slice(first, first + BLOCK)
        block_args = _args(args_columns, first, len(slices))
        values = (*(column[block].tolist() for column in columns), block_args)
        for is_instant, category, name, lane, ts, dur, args in zip(*values, strict=True):
            kind = b'{"ph": "i", "s": "t"' if is_instant else b'{"ph": "X"'
            length = b"" if is_instant else b', "dur": ' + _microseconds(dur)
            more = b', "args": ' + _encode(args) if args else b""
            yield b"".join(
                (kind, b', "cat": ', categories[category], b', "name": ', names[name], heads[lane],
                 _microseconds(ts), length, more, b"}")
            )  # fmt: skip


def _args(columns: list[tuple[str, pd.Series]], first: int, rows: int) -> list[dict[str, Any]]:
    """Return the args of a block of rows, of columns that are sorted by row.

    A dict per row of a big trace would fill the memory.
    """
    args: list[dict[str, Any]] = [{} for _ in range(min(BLOCK, rows - first))]
    for key, values in columns:
        index = values.index.to_numpy()
        inside = slice(*np.searchsorted(index, (first, first + BLOCK)).tolist())
        for row, value in zip(index[inside].tolist(), values.iloc[inside].tolist(), strict=True):
            args[row - first][key] = value
    return args


def _microseconds(ns: int) -> bytes:
    return b"%d.%03d" % divmod(ns, 1000)


def _id(text: str) -> str:
    """Return an id as JSON: a number where its text is one, as Kineto writes it."""
    short = len(text) <= _LONGEST_NUMBER and text.lstrip("-").isdecimal() and text.isascii()
    number = short and str(int(text)) == text
    return text if number else _encode(text).decode()


def _names(
    tracks: pd.DataFrame, lanes: pd.DataFrame, given: Mapping[str, str]
) -> Iterator[dict[str, Any]]:
    """Yield the names of processes and threads, and their order, which is that of our tracks."""
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
    return {"ph": "M", "name": kind, "ts": 0, **_ids(process, thread), "args": args}


def _ids(process: str, thread: str) -> dict[str, Any]:
    return {"pid": msgspec.Raw(_id(process).encode()), "tid": msgspec.Raw(_id(thread).encode())}


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
    """Yield the thread and start of these slices, where arrows meet them."""
    ids = [
        _ids(process, thread)
        for process, thread in zip(lanes.table["process"], lanes.table["thread"], strict=True)
    ]
    at = rows.to_numpy()
    starts = trace.slices["ts"].to_numpy()[at]
    for lane, ts in zip(lanes.of_slice[at].tolist(), starts.tolist(), strict=True):
        yield {**ids[lane], "ts": msgspec.Raw(_microseconds(ts))}


def in_blocks(pieces: Iterable[bytes], size: int = 1 << 20) -> Iterator[bytes]:
    """Join the pieces to larger ones, because compressing each piece alone is slow."""
    block: list[bytes] = []
    length = 0
    for piece in pieces:
        block.append(piece)
        length += len(piece)
        if length >= size:
            yield b"".join(block)
            block, length = [], 0
    yield b"".join(block)


def layout_of(trace: Trace) -> dict[str, Any]:
    """Return the order and owners of rows, the tracks and arrows, and the bounds of a window."""
    columns = {name: trace.slices[name].to_numpy() for name in PACKED_COLUMNS}
    columns |= {name: distances(columns[name]) for name in RELATIVE_COLUMNS}
    flows = trace.flows
    kinds: dict[str, Any] = {}
    if WRITTEN_CATEGORY in trace.args:  # the events are written with another program's
        ours = trace.slices["category"].cat
        kinds["categories"] = {"names": list(ours.categories), "of": pack(ours.codes)}
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


def pack(values: Any) -> str:
    """Encode integers as base64 of zlib of little-endian int32."""
    return base64.b64encode(zlib.compress(np.asarray(values, dtype="<i4").tobytes(), 1)).decode()


def unpack(text: str, most: int) -> np.ndarray[Any, np.dtype[np.int32]]:
    """Decode the integers of `pack`; more than ``most`` of them raise `ValueError`."""
    # One byte more shows that there are too many, and keeps a hostile file from filling the memory.
    unpacked = zlib.decompressobj().decompress(base64.b64decode(text), 4 * most + 1)
    return np.frombuffer(unpacked, dtype="<i4").astype(np.int32)


def distances(rows: Any) -> Any:
    """Turn row links into distances from the linking row; 0 is no link, as no row links itself."""
    return np.where(rows == NONE, 0, np.arange(len(rows)) - rows)


def rows_at(distance: Any) -> Any:
    """Turn `distances` into row links again."""
    rows = np.arange(len(distance), dtype=np.int32)
    return np.where(distance == 0, NONE, rows - distance).astype(np.int32)


def written_layout(header: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """Return the layout in a file's header; None if our writer did not write the file."""
    layout = header.get(KEY)
    known = isinstance(layout, dict) and layout.get("version") == VERSION
    return layout if known else None


def restore(
    events: Events, counters: pd.DataFrame, layout: Mapping[str, Any], epoch_ns: int
) -> Trace:
    """Return the trace as it was written; ``events`` are its rows in order.

    A layout that is not that of a trace raises `ValueError`, or any error of a failed lookup.
    """
    rows = len(events)
    packed = {name: unpack(layout["columns"][name], rows) for name in PACKED_COLUMNS}
    packed |= {name: rows_at(packed[name]) for name in RELATIVE_COLUMNS}
    ids, args = split_ids(events, np.arange(rows))
    category = _restore_categories(events, layout.get("categories"))
    plain = {"ts": events.ts, "dur": events.dur, "name": events.name, "category": category}
    values: dict[str, Any] = plain | packed | ids
    trace = Trace(
        slices=pd.DataFrame({name: values[name] for name in SLICE_COLUMNS}),
        tracks=with_types(layout["tracks"]),
        counters=counters,
        flows=_flows(layout["flows"]),
        args=args,
        start_ns=int(layout["start_ns"]),
        end_ns=int(layout["end_ns"]),
        epoch_ns=epoch_ns,
    )
    check_rows(trace)
    return trace


def _restore_categories(events: Events, packed: Mapping[str, Any] | None) -> pd.Categorical:
    """Return our categories, from the layout if the events have those of another program."""
    if packed is None:
        return events.category
    names = np.array([str(name) for name in packed["names"]], dtype=object)
    codes = unpack(packed["of"], len(events))
    if len(codes) != len(events) or not _within(codes, 0, len(names)):
        raise ValueError("its categories are not those of its slices")
    return text_codes(names[codes].tolist())


def check_rows(trace: Trace) -> None:
    """Raise `ValueError` unless rows and tracks exist and no slice is its own ancestor.

    Analyses rely on it.
    """
    slices, rows = trace.slices, len(trace.slices)
    track, ts = slices["track"].to_numpy(), slices["ts"].to_numpy()
    inside = slices["count"].to_numpy() > 0  # owners may lie outside of the window
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


def _flows(packed: Mapping[str, Any]) -> pd.DataFrame:
    kinds = np.array([*packed["kinds"], ""], dtype=object)
    return flow_table(
        unpack(packed["source"], _MOST_FLOWS),
        unpack(packed["target"], _MOST_FLOWS),
        kinds[unpack(packed["kind"], _MOST_FLOWS)].tolist(),
    )
