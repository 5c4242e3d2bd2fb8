"""Save and load a profile in one file: a zip of open formats.

``trace.json.gz`` opens in Perfetto, ``cell.prof`` (and ``worker0.pid1234.prof`` of a DataLoader's
worker) in pstats and snakeviz, ``metadata.json`` in any editor. A record loads back equal: tables,
args, links and metadata. ``trace.columns.zst`` of a large trace is the content of its JSON again,
to be read faster; a file without it loads as well.
"""

from __future__ import annotations

import gzip
import json
import os
import zipfile
from collections.abc import Mapping
from copy import copy
from pathlib import Path
from typing import IO, Any

from gpuprof_widgets.exceptions import TraceError
from gpuprof_widgets.trace.chrome_trace import complete_record, quick_record
from gpuprof_widgets.trace.chrome_writer import COMPRESSION, chrome_trace, in_blocks
from gpuprof_widgets.trace.containers import members
from gpuprof_widgets.trace.files import without_garbage_collection, write_whole
from gpuprof_widgets.trace.model import Record, Trace
from gpuprof_widgets.trace.packing import Growth, quick_zlib, streamed, unpacked
from gpuprof_widgets.trace.pstats import dump_pstats, load_calls
from gpuprof_widgets.trace.saved_columns import LEAST_SLICES, trace_of_columns, write_columns

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
        _add_trace(archive, record.trace)
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


def _add_trace(archive: zipfile.ZipFile, trace: Trace) -> None:
    """Add the trace packed as gzip, which Perfetto opens, and stored in the zip as it is."""
    # The size is not known in advance: without 64 bits for it, 2 GB would be the limit.
    with (
        without_garbage_collection(),
        archive.open(zipfile.ZipInfo(TRACE, _EPOCH), "w", force_zip64=True) as member,
        gzip.GzipFile("", "wb", COMPRESSION, member, mtime=0) as packed,
    ):
        packed.writelines(in_blocks(chrome_trace(trace)))


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
    own = copy(growth)
    record = quick_record(streamed(packed, path, own), path)
    if record is not None:
        growth.left = own.left
        return record.trace
    return complete_record(unpacked(packed, path, growth), path).trace


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
