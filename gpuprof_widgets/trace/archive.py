"""Save and load a profile in one file: a zip of open formats.

``trace.json.gz`` opens in Perfetto, ``cell.prof`` (and ``worker0.pid1234.prof`` of a DataLoader's
worker) in pstats and snakeviz, ``metadata.json`` in any editor. A record loads back equal: tables,
args, links and metadata.

``trace.columns.zst`` of a large trace is the content of its JSON again, to be read faster; a file
without it loads as well. The JSON is what counts: columns are used if they name the checksum of the
JSON beside them, so not where somebody changed that, and if they hold what a trace needs. In any
other case, as in files of other versions, the JSON is read.

A zstandard frame holds the length of a header (8 bytes, little-endian), the header, and the arrays
in its order, as numpy has them in memory. The header is JSON: the checksum, the bounds, the tracks,
and per array its table, name, type and length. Text and other objects are numbers of ``values``,
their distinct values. The rows that args belong to come before them, under the table "rows".
"""

from __future__ import annotations

import gzip
import json
import os
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from copy import copy
from pathlib import Path
from typing import IO, Any

import msgspec
import numpy as np
import pandas as pd
import zstandard
from numpy.typing import NDArray

from gpuprof_widgets.exceptions import TraceError
from gpuprof_widgets.trace.chrome_trace import complete_record, quick_packed_record
from gpuprof_widgets.trace.chrome_writer import COMPRESSION, check_rows, chrome_trace, in_blocks
from gpuprof_widgets.trace.event_json import containers, most_containers
from gpuprof_widgets.trace.events import typed
from gpuprof_widgets.trace.files import without_garbage_collection, write_whole
from gpuprof_widgets.trace.gather import MOST_KEYS
from gpuprof_widgets.trace.known_args import usable_args
from gpuprof_widgets.trace.model import Record, Trace
from gpuprof_widgets.trace.packing import Growth, members, quick_zlib, unpacked
from gpuprof_widgets.trace.pstats import dump_pstats, load_calls
from gpuprof_widgets.trace.schema import COUNTER_COLUMNS, FLOW_COLUMNS, SLICE_COLUMNS, TRACK_COLUMNS
from gpuprof_widgets.trace.tracks import with_types

TRACE, CALLS, METADATA = "trace.json.gz", "cell.prof", "metadata.json"
COLUMNS = "trace.columns.zst"
FORMAT_VERSION = 1
_PSTATS = ".prof"

_EPOCH = (1980, 1, 1, 0, 0, 0)
"""Time of every member, so that equal records make equal files."""


def save(record: Record, path: str | os.PathLike[str]) -> Path:
    """Write the record to this file, whole or not at all; return its path."""
    return write_whole(path, lambda file: write(record, file))


def write(record: Record, file: IO[bytes]) -> None:
    """Write the record as a zip, without having a big trace in memory as a whole."""
    about = {"format_version": FORMAT_VERSION, "metadata": dict(record.metadata)}
    with zipfile.ZipFile(file, "w") as archive:
        _add(archive, METADATA, json.dumps(about, indent=1, default=str).encode())
        # The size is not known in advance: without 64 bits for it, 2 GB would be the limit.
        with (
            without_garbage_collection(),
            archive.open(zipfile.ZipInfo(TRACE, _EPOCH), "w", force_zip64=True) as trace,
            gzip.GzipFile("", "wb", COMPRESSION, trace, mtime=0) as packed,
        ):
            packed.writelines(in_blocks(chrome_trace(record.trace)))
        if len(record.trace) >= LEAST_SLICES:
            checksum = archive.getinfo(TRACE).CRC
            with archive.open(zipfile.ZipInfo(COLUMNS, _EPOCH), "w", force_zip64=True) as member:
                write_columns(record.trace, checksum, member)
        if record.calls is not None:
            _add(archive, CALLS, dump_pstats(record.calls))
        for worker, calls in record.calls_of_workers.items():
            _add(archive, f"{worker}{_PSTATS}", dump_pstats(calls))


def _add(archive: zipfile.ZipFile, name: str, data: bytes) -> None:
    member = zipfile.ZipInfo(name, _EPOCH)
    member.compress_type = zipfile.ZIP_DEFLATED
    archive.writestr(member, data)


def is_archive(data: bytes) -> bool:
    """Whether this is a zip with the members of a saved profile, one of which may be missing."""
    try:
        names = {member.name for member in members(data, Path(), Growth(Path(), 0))}
    except TraceError:
        return False
    ours = all(name in (TRACE, COLUMNS, METADATA) or name.endswith(_PSTATS) for name in names)
    return METADATA in names and (TRACE in names or ours)


def _trace(held: Mapping[str, bytes], path: Path, growth: Growth) -> Trace:
    packed = held[TRACE]
    if COLUMNS in held:
        trace = trace_of_columns(held[COLUMNS], quick_zlib.crc32(packed), growth)
        if trace is not None:
            return trace
    record = quick_packed_record(packed, path, growth)
    return (record or complete_record(unpacked(packed, path, growth), path)).trace


def parse_archive(data: bytes, path: Path) -> Record:
    """Return the record in a saved profile."""
    growth = Growth(path, len(data))
    held = _held(data, path, growth)
    metadata = _metadata(held[METADATA], path)
    trace = _trace(held, path, growth)
    calls = load_calls(held[CALLS], path) if CALLS in held else None
    workers = {
        name.removesuffix(_PSTATS): load_calls(data, path)
        for name, data in held.items()
        if name.endswith(_PSTATS) and name != CALLS
    }
    return Record(trace, calls, metadata, workers)


def _held(data: bytes, path: Path, growth: Growth) -> dict[str, bytes]:
    """Return the content of each file in the archive by its name."""
    files = {file.name: file for file in members(data, path, growth)}
    columns = files.pop(COLUMNS, None)
    held = {name: file.read(file.size) for name, file in files.items()}
    if columns is not None:
        left = growth.left
        try:
            held[COLUMNS] = columns.read(columns.size)
        except TraceError:  # the JSON has it all
            growth.left = left
    missing = {TRACE, METADATA} - set(held)
    if missing:
        names = ", ".join(sorted(held)[:6]) or "nothing"
        raise TraceError(
            f"{path}: a zip, but not a saved profile: {', '.join(sorted(missing))} is missing "
            f"(it holds: {names}). Give a file that Profile.save wrote, or unpack the zip first."
        )
    return held


def _metadata(data: bytes, path: Path) -> dict[str, Any]:
    try:
        about = json.loads(data)
    except (ValueError, RecursionError) as error:
        at = f" at byte {error.pos:,}" if isinstance(error, json.JSONDecodeError) else ""
        raise TraceError(_changed(path, f"is not JSON{at}")) from error
    kind = _kind(about)
    if kind != "an object":
        raise TraceError(_changed(path, f"holds {kind}, not an object"))
    for key, expected in (("format_version", "a whole number"), ("metadata", "an object")):
        kind = _kind(about[key]) if key in about else "missing"
        if kind != expected:
            raise TraceError(_changed(path, f'is wrong: "{key}" is {kind}'))
    version = about["format_version"]
    if version < 1:
        raise TraceError(_changed(path, f'is wrong: "format_version" is {version}'))
    if version > FORMAT_VERSION:
        raise TraceError(
            f"{path}: saved in format {version}, this version reads up to {FORMAT_VERSION}: "
            "pip install --upgrade gpuprof-widgets"
        )
    metadata: dict[str, Any] = about["metadata"]
    return metadata


_KINDS = {dict: "an object", list: "a list", str: "a text", int: "a whole number"}


def _kind(value: Any) -> str:
    """Return the name of a JSON value's type, or a constant itself."""
    return _KINDS.get(type(value), f"{json.dumps(value)}")


def _changed(path: Path, problem: str) -> str:
    return (
        f"{path}: {METADATA} in it {problem}: the file was changed or damaged since it was saved. "
        f"Copy or save it again; or unpack it and open {TRACE} alone, which holds the times."
    )


Array = NDArray[Any]

LEAST_SLICES = 50_000
"""Smaller traces have no columns: their JSON is read in a tenth of a second."""

_VERSION = 1
_LEVEL = 1
"""Of zstandard: higher ones make these columns no smaller."""

_TABLES: Mapping[str, Mapping[str, Any]] = {
    "slices": SLICE_COLUMNS,
    "counters": COUNTER_COLUMNS,
    "flows": FLOW_COLUMNS,
}
_ROWS, _ARGS = "rows", "args"
_TYPES = ("<i4", "<i8", "<f8")
_FARTHEST = 2**62

_BROKEN_COLUMNS = (
    *(LookupError, ValueError, TypeError, AttributeError, OverflowError, EOFError, MemoryError),
    *(RecursionError, zstandard.ZstdError, msgspec.MsgspecError),
)
"""Errors on columns that are not as `write_columns` writes them, or do not fit the memory."""


class _Column(msgspec.Struct, forbid_unknown_fields=True):
    """An array in the file; ``rows`` is the place among the "rows" of an arg's own."""

    table: str
    name: str
    type: str
    length: int
    values: list[Any] | None = None
    rows: int = -1


class _Header(msgspec.Struct, forbid_unknown_fields=True):
    """What stands before the arrays."""

    version: int
    checksum: int
    bounds: tuple[int, int, int]
    tracks: dict[str, list[Any]]
    columns: list[_Column]


def write_columns(trace: Trace, checksum: int, file: IO[bytes]) -> None:
    """Write the columns of this trace; ``checksum`` is the CRC-32 of its packed JSON."""
    columns = list(_columns(trace))
    header = msgspec.json.encode(
        _Header(
            version=_VERSION,
            checksum=checksum,
            bounds=(trace.start_ns, trace.end_ns, trace.epoch_ns),
            tracks={name: trace.tracks[name].tolist() for name in TRACK_COLUMNS},
            columns=[column for column, _ in columns],
        )
    )
    compressor = zstandard.ZstdCompressor(level=_LEVEL)
    with compressor.stream_writer(file, closefd=False) as packed:
        packed.write(len(header).to_bytes(8, "little"))
        packed.write(header)
        for _, array in columns:
            packed.write(array.view(np.uint8).data)


def _columns(trace: Trace) -> Iterator[tuple[_Column, Array]]:
    """Yield each column with its array, the rows of args before the args."""
    for table in _TABLES:
        for name, series in getattr(trace, table).items():
            if isinstance(series.dtype, pd.CategoricalDtype):
                codes = series.cat.codes.to_numpy(np.int32)
                yield _column(table, name, codes, list(series.cat.categories))
            else:
                yield _column(table, name, series.to_numpy())
    places: dict[int, int] = {}  # many args have the rows of others, as one index
    for key, series in trace.args.items():
        if id(series.index) not in places:
            places[id(series.index)] = len(places)
            yield _column(_ROWS, "", series.index.to_numpy(np.int64))
        rows = places[id(series.index)]
        if series.dtype not in (np.int64, np.float64, object):  # as the JSON gives it back
            series = typed(series.tolist(), series.index.to_numpy())
        if series.dtype == object:
            listed = series.tolist()
            distinct = dict(zip(map(id, listed), listed, strict=True))
            number = {identity: place for place, identity in enumerate(distinct)}
            numbers = np.fromiter(map(number.__getitem__, map(id, listed)), np.int32, len(listed))
            yield _column(_ARGS, key, numbers, list(distinct.values()), rows)
        else:
            yield _column(_ARGS, key, series.to_numpy(), rows=rows)


def _column(
    table: str, name: str, array: Array, values: list[Any] | None = None, rows: int = -1
) -> tuple[_Column, Array]:
    array = np.ascontiguousarray(array, array.dtype.newbyteorder("<"))
    return _Column(table, name, array.dtype.str, len(array), values, rows), array


def trace_of_columns(packed: bytes, checksum: int, growth: Growth) -> Trace | None:
    """Return the trace of which these are the columns; None if only its JSON can be trusted.

    ``checksum``: the CRC-32 of the packed JSON beside them. ``growth`` counts what was unpacked,
    unless the JSON has to be read.
    """
    own = copy(growth)
    try:
        decompressor = zstandard.ZstdDecompressor()
        with without_garbage_collection(), decompressor.stream_reader(packed) as file:
            header = _header(file, own)
            if (header.version, header.checksum) != (_VERSION, checksum):
                return None
            arrays = [_array(column, file, own) for column in header.columns]
            trace = _trace_of_arrays(header, arrays)
    except _BROKEN_COLUMNS:
        return None
    growth.left = own.left
    return trace


def _header(file: zstandard.ZstdDecompressionReader, growth: Growth) -> _Header:
    size = int.from_bytes(file.read(8), "little")
    growth.count(size)
    text = file.read(size)
    if containers(text) > most_containers(text):
        raise ValueError("more lists than any profiler writes")
    return msgspec.json.decode(text, type=_Header)


def _array(column: _Column, file: zstandard.ZstdDecompressionReader, growth: Growth) -> Array:
    if column.type not in _TYPES or column.length < 0:
        raise ValueError(f"{column.length} of {column.type}")
    growth.count(column.length * np.dtype(column.type).itemsize)
    array = np.empty(column.length, column.type)
    if len(array) and file.readinto(array.view(np.uint8).data) < array.nbytes:
        raise EOFError
    return array.astype(array.dtype.newbyteorder("="), copy=False)


def _trace_of_arrays(header: _Header, arrays: Sequence[Array]) -> Trace:
    columns = list(zip(header.columns, arrays, strict=True))
    start, end, epoch = header.bounds
    trace = Trace(
        slices=_table("slices", columns),
        tracks=with_types(header.tracks),
        counters=_table("counters", columns),
        flows=_table("flows", columns),
        args=_args(columns),
        start_ns=start,
        end_ns=end,
        epoch_ns=epoch,
    )
    check_rows(trace)
    _check_values(trace)
    return trace


def _table(table: str, columns: Sequence[tuple[_Column, Array]]) -> pd.DataFrame:
    """Return a table of the columns that it has to have, which are of one length."""
    found: dict[str, Any] = {}
    for column, array in columns:
        if column.table == table:
            found[column.name] = _content(column, array)
    types = _TABLES[table]
    wrong = [name for name, expected in types.items() if found[name].dtype != expected]
    if wrong:
        raise ValueError(f"{table}: the type of {', '.join(wrong)}")
    return pd.DataFrame({name: found[name] for name in types}, copy=False)


def _content(column: _Column, array: Array) -> Array | pd.Categorical:
    """Return the column of a table: numbers, or text from a dictionary of distinct texts."""
    if column.values is None:
        return array
    if not all(isinstance(text, str) for text in column.values):
        raise ValueError(f"{column.name} is not text")
    _check_numbers(array)
    return pd.Categorical.from_codes(array, categories=pd.Index(column.values, dtype=object))


def _args(columns: Sequence[tuple[_Column, Array]]) -> dict[str, pd.Series]:
    rows = [pd.Index(array) for column, array in columns if column.table == _ROWS]
    args = [each for each in columns if each[0].table == _ARGS]
    if len(args) > MOST_KEYS + 1:  # one more has the rest of those that are read from JSON
        raise ValueError("more args than are read")
    return {
        column.name: _series(_values(column, array), rows[column.rows]) for column, array in args
    }


def _values(column: _Column, array: Array) -> Array:
    """Return the values of an arg, which are of the kind that analyses rely on."""
    values = array
    if column.values is None:
        if array.dtype == np.int32 or not np.isfinite(array).all():
            raise ValueError(f"numbers of {column.name} as no trace has them")
    else:
        _check_numbers(array)
        values = np.empty(len(column.values), object)
        values[:] = column.values
    _, notes = usable_args({column.name: _series(values)})
    if notes:
        raise ValueError(notes[0])
    return array if column.values is None else values[array]


def _series(values: Array, rows: pd.Index | None = None) -> pd.Series:
    """Return a Series of just this array: pandas would turn objects that are text into its own."""
    return pd.Series(values, index=rows, dtype=values.dtype, copy=False)


def _check_numbers(numbers: Array) -> None:
    """Check what pandas and numpy do not: numbers below 0 would count from the last value."""
    if not (numbers >= 0).all():
        raise ValueError("a value of no number")


def _check_values(trace: Trace) -> None:
    """Check what events give a trace by how they are read: times, rows of args, readings."""
    ts, dur = trace.slices["ts"].to_numpy(), trace.slices["dur"].to_numpy()
    start, end = trace.start_ns, trace.end_ns
    sound = [
        max(abs(start), abs(end), abs(trace.epoch_ns)) < _FARTHEST,
        ((ts >= start) & (dur >= 0) & (dur <= end - ts)).all(),
        np.isfinite(trace.counters["value"].to_numpy()).all(),
    ]
    for series in trace.args.values():  # rows of the slices, in order, none of them twice
        rows = series.index.to_numpy()
        inside = not len(rows) or (rows[0] >= 0 and rows[-1] < len(trace))
        sound.append(rows.dtype == np.int64 and inside and (np.diff(rows) > 0).all())
    if not all(sound):
        raise ValueError("these are not columns of a trace")
