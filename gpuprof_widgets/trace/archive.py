"""A profile in one file: a zip of open formats.

``trace.json.gz`` opens in Perfetto, ``cell.prof`` (and ``worker0.pid1234.prof`` of a DataLoader's
worker) in pstats and snakeviz, ``metadata.json`` in any editor. A record loads back equal: tables,
args, links and metadata.
"""

from __future__ import annotations

import gzip
import io
import json
import os
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from gpuprof_widgets.exceptions import TraceError
from gpuprof_widgets.trace.chrome_trace import parse_chrome_trace
from gpuprof_widgets.trace.chrome_writer import chrome_trace, in_blocks
from gpuprof_widgets.trace.event_json import without_garbage_collection
from gpuprof_widgets.trace.files import unpack, write_whole
from gpuprof_widgets.trace.model import Record, Trace
from gpuprof_widgets.trace.pstats import dump_pstats, load_calls

TRACE, CALLS, METADATA = "trace.json.gz", "cell.prof", "metadata.json"
FORMAT_VERSION = 1
_PSTATS = ".prof"

_COMPRESSION = 1
"""gzip level: 5 times faster than the default for a file a third larger."""

_EPOCH = (1980, 1, 1, 0, 0, 0)
"""Time of every member, so that equal records make equal files."""


def save(record: Record, path: str | os.PathLike[str]) -> Path:
    """Write the record to this file, whole or not at all; returns its path."""
    return write_whole(path, lambda file: _write(record, file))


def _write(record: Record, file: Any) -> None:
    about = {"format_version": FORMAT_VERSION, "metadata": dict(record.metadata)}
    with zipfile.ZipFile(file, "w") as archive:
        _add(archive, METADATA, json.dumps(about, indent=1, default=str).encode())
        _add(archive, TRACE, _compressed(record.trace))
        if record.calls is not None:
            _add(archive, CALLS, dump_pstats(record.calls))
        for worker, calls in record.calls_of_workers.items():
            _add(archive, f"{worker}{_PSTATS}", dump_pstats(calls))


def _add(archive: zipfile.ZipFile, name: str, data: bytes) -> None:
    member = zipfile.ZipInfo(name, _EPOCH)
    packed = name.endswith(".gz")
    member.compress_type = zipfile.ZIP_STORED if packed else zipfile.ZIP_DEFLATED
    archive.writestr(member, data)


def _compressed(trace: Trace) -> bytes:
    buffer = io.BytesIO()
    packed = gzip.GzipFile(fileobj=buffer, mode="wb", compresslevel=_COMPRESSION, mtime=0)
    with without_garbage_collection(), packed as file:
        for block in in_blocks(chrome_trace(trace)):
            file.write(block)
    return buffer.getvalue()


def is_archive(data: bytes) -> bool:
    """Whether these bytes start as a zip."""
    return data.startswith(b"PK\x03\x04")


def parse_archive(data: bytes, path: Path) -> Record:
    """The record in a saved profile."""
    members = _members(data, path)
    about = _about(members[METADATA], path)
    trace = parse_chrome_trace(unpack(members[TRACE], path), path).trace
    calls = load_calls(members[CALLS], path) if CALLS in members else None
    workers = {
        name.removesuffix(_PSTATS): load_calls(data, path)
        for name, data in members.items()
        if name.endswith(_PSTATS) and name != CALLS
    }
    return Record(trace, calls, about["metadata"], workers)


def _members(data: bytes, path: Path) -> dict[str, bytes]:
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            members = {name: archive.read(name) for name in archive.namelist()}
    except (zipfile.BadZipFile, OSError, EOFError, RuntimeError) as error:
        raise TraceError(
            f"{path}: starts as a zip but cannot be unpacked ({error}); copy the file again."
        ) from error
    missing = {TRACE, METADATA} - set(members)
    if missing:
        found = ", ".join(sorted(members)[:6]) or "nothing"
        raise TraceError(
            f"{path}: a zip, but not a saved profile: {', '.join(sorted(missing))} is missing "
            f"(it holds: {found}). Give a file that Profile.save wrote, or unpack the zip first."
        )
    return members


def _about(data: bytes, path: Path) -> Mapping[str, Any]:
    try:
        about = json.loads(data)
        version, _ = about["format_version"], about["metadata"]
    except (ValueError, KeyError, TypeError) as error:
        raise TraceError(
            f"{path}: {METADATA} in it cannot be read ({error!r}); copy the file again."
        ) from error
    if version > FORMAT_VERSION:
        raise TraceError(
            f"{path}: saved in format {version}, this version reads up to {FORMAT_VERSION}: "
            "pip install --upgrade gpuprof-widgets"
        )
    return dict(about)
