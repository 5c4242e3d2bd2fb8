"""The files in zip and tar archives, and in folders, one by one.

Files of an archive are read in memory, and never written to disk. So it does not matter what path
such a file claims to have, or where a link points: links are no files. The total that all files may
unpack to is bounded as for any packed file (`Growth`).
"""

from __future__ import annotations

import io
import re
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TypeVar

from gpuprof_widgets.exceptions import TraceError
from gpuprof_widgets.trace.files import beginning_of, cannot
from gpuprof_widgets.trace.packing import Growth, TooLargeError
from gpuprof_widgets.trace.remote import RemotePath, content, files_in, size_of

MOST_FILES = 10_000
"""Limit on the files of an archive or folder, because each of them is looked at for a trace."""

ZIP_MAGIC = b"PK\x03\x04"
_EMPTY_ZIP = b"PK\x05\x06"
_ZIP_ENTRY = b"PK\x01\x02"
_ZIP_ENCRYPTED = 1
_TAR_MAGIC, _TAR_MAGIC_AT = b"ustar", 257
_TAR_BLOCK = 512
_HEADERS_PER_FILE = 3
"""Headers of a file in a tar: those of pax, of its long name, and its own."""
_TAR_WITHOUT_DATA = b"123456"
"""Types of links, devices, folders and pipes; they may have a size, but no data."""
_PAX_PATH = re.compile(rb"(?:^|\n)\d{1,5} path=([^\n]+)\n")

_HIDDEN = re.compile(r"__MACOSX/|(?:.*/)?\.[^/]*\Z", re.DOTALL)

_BROKEN = (
    *(zipfile.BadZipFile, tarfile.TarError, zlib.error, EOFError, OSError),
    *(RuntimeError, NotImplementedError, ValueError),
)
"""Errors that zipfile and tarfile raise on broken and encrypted files."""


@dataclass(frozen=True)
class Member:
    """A file in an archive or folder: its name there, its stated size unpacked, its bytes.

    ``read`` takes the largest number of bytes to return.
    """

    name: str
    size: int
    read: Callable[[int], bytes]


Named = TypeVar("Named", Member, RemotePath)


@dataclass(frozen=True)
class Container:
    """A kind of archive: its name, its test, a command that unpacks one file, its files."""

    name: str
    recognises: Callable[[bytes], bool]
    unpack_one: str
    files: Callable[[bytes, Growth], Iterator[Member]]


class _TooManyFilesError(Exception):
    """There are more than `MOST_FILES`."""


def _zip_files(data: bytes, growth: Growth) -> Iterator[Member]:
    if data.count(_ZIP_ENTRY) > MOST_FILES:  # `zipfile` would make an object of each
        raise _TooManyFilesError
    source = io.BytesIO(data)
    if not zipfile.is_zipfile(source):
        raise zipfile.BadZipFile("the list of files at its end is missing: it was cut off")
    archive = zipfile.ZipFile(source)
    for info in archive.infolist():
        if not info.is_dir():
            read = partial(_unzipped, archive, info, growth)
            yield Member(info.filename, info.file_size, read)


def _unzipped(archive: zipfile.ZipFile, info: zipfile.ZipInfo, growth: Growth, size: int) -> bytes:
    """Return up to ``size`` bytes of a file; `zipfile` itself bounds no other compressions."""
    if info.flag_bits & _ZIP_ENCRYPTED:
        raise NotImplementedError("it is encrypted, and passwords are not asked for")
    if info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        raise NotImplementedError(f"its compression, type {info.compress_type}, is not deflate")
    with archive.open(info) as file:
        content = file.read(min(size, growth.left + 1))
    growth.count(len(content))
    return content


def _tar_files(data: bytes, _growth: Growth) -> Iterator[Member]:
    """Yield the regular files of a tar with headers of POSIX (ustar, pax) or GNU tar.

    `tarfile.TarFile` is not used: that of Python 3.11.7 searches pax headers in quadratic time, and
    a size below 0 leads it back for ever.
    """
    at, long_name = 0, ""
    for _ in range(MOST_FILES * _HEADERS_PER_FILE):
        block = data[at : at + _TAR_BLOCK]
        if not any(block):
            return
        info = tarfile.TarInfo.frombuf(block, "utf-8", "replace")
        start = at + _TAR_BLOCK
        end = start if info.type in _TAR_WITHOUT_DATA else start + info.size
        if info.size < 0:  # it would lead back, again and again
            raise tarfile.HeaderError(f"the header at byte {at:,} has a size of {info.size:,}")
        if info.type == tarfile.GNUTYPE_SPARSE:
            raise tarfile.HeaderError(f"{long_name or info.name} is sparse: pack it without -S")
        if end > len(data):
            raise EOFError(f"it ends at byte {len(data):,}, in {long_name or info.name}")
        if info.isreg():
            yield Member(long_name or info.name, info.size, partial(_slice, data, start, end))
        long_name = _long_name(info, data[start:end]) or (long_name if info.type == b"g" else "")
        at = start + -(-(end - start) // _TAR_BLOCK) * _TAR_BLOCK
    raise _TooManyFilesError


def _long_name(info: tarfile.TarInfo, content: bytes) -> str:
    """Return the next file's name if this header only holds that; else ""."""
    if info.type == tarfile.GNUTYPE_LONGNAME:
        return content.split(b"\0", 1)[0].decode("utf-8", "replace")
    path = _PAX_PATH.search(content) if info.type == tarfile.XHDTYPE else None
    return path[1].decode("utf-8", "replace") if path else ""


def _slice(data: bytes, start: int, end: int, size: int) -> bytes:
    return data[start : min(end, start + size)]


def is_zip(data: bytes) -> bool:
    """Whether these bytes start as a zip."""
    return data.startswith((ZIP_MAGIC, _EMPTY_ZIP))


def _is_tar(data: bytes) -> bool:
    return data.startswith(_TAR_MAGIC, _TAR_MAGIC_AT)


CONTAINERS = (
    Container("zip", is_zip, "unpack it alone (unzip FILE NAME)", _zip_files),
    Container("tar", _is_tar, "unpack it alone (tar -xf FILE NAME)", _tar_files),
)


def container(data: bytes) -> Container | None:
    """Return the kind of archive that these bytes are; None if they are none."""
    return next((each for each in CONTAINERS if each.recognises(data)), None)


def members(data: bytes, path: Path, growth: Growth) -> list[Member]:
    """Return the files in an archive except for hidden ones; errors name ``path``.

    Reading a file raises a `TraceError` if it is broken or encrypted, or unpacks to more than
    ``growth`` allows.
    """
    kind = container(data)
    if kind is None:
        return []
    try:
        files = _visible(kind.files(data, growth))
    except _TooManyFilesError:
        raise TraceError(_too_many(path, f"{kind.unpack_one}, and open that")) from None
    except _BROKEN as error:
        raise TraceError(
            f"{path}: starts as a {kind.name} but cannot be unpacked ({error}); copy the file "
            "again."
        ) from error
    return [_guarded(file, kind, path) for file in files]


def _guarded(member: Member, kind: Container, path: Path) -> Member:
    """Return the member with errors turned into `TraceError`."""

    def read(size: int) -> bytes:
        try:
            return member.read(size)
        except TooLargeError:  # a ValueError as well
            raise
        except _BROKEN as error:
            raise TraceError(
                f"{path}: {member.name!r} in this {kind.name} cannot be unpacked ({error}): copy "
                "the file again, or unpack it with another program and open the trace in it."
            ) from error

    return Member(member.name, member.size, read)


def folder_members(folder: Path) -> list[Member]:
    """Return the files in a folder, by name, without pipes, sockets and hidden files."""
    try:
        if isinstance(folder, RemotePath):
            return _remote_members(files_in(folder))
        paths = sorted(path for path in folder.iterdir() if path.is_file())
        return _visible(
            Member(path.name, path.stat().st_size, partial(beginning_of, path)) for path in paths
        )
    except _TooManyFilesError:
        raise TraceError(_too_many(folder, "name that")) from None
    except OSError as error:
        raise TraceError(cannot(folder, error)) from error


def _remote_members(sizes: Mapping[RemotePath, int | None]) -> list[Member]:
    """Return the files; the server is asked for sizes that its listing does not say."""
    return [_remote_member(file, sizes[file]) for file in _visible(sizes)]


def _remote_member(file: RemotePath, listed: int | None) -> Member:
    size = size_of(file) if listed is None else listed
    return Member(file.name, size, lambda most: content(file, most if most < size else None))


def _visible(files: Iterable[Named]) -> list[Named]:
    """Return the files but hidden ones, such as ``.DS_Store`` and ``__MACOSX/._run.json``."""
    visible = [file for file in files if not _HIDDEN.match(file.name)]
    if len(visible) > MOST_FILES:
        raise _TooManyFilesError
    return visible


def _too_many(where: Path, advice: str) -> str:
    return (
        f"{where}: holds more than {MOST_FILES:,} files, too many to look for a trace among them. "
        f"Find the file with the trace: {advice}."
    )
