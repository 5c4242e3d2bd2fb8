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
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import IO

from gpuprof_widgets.exceptions import TraceError
from gpuprof_widgets.trace.files import beginning_of, cannot
from gpuprof_widgets.trace.packing import Growth, TooLargeError

MOST_FILES = 10_000
"""Limit on the files of an archive or folder, because each of them is looked at for a trace."""

ZIP_MAGIC = b"PK\x03\x04"
_EMPTY_ZIP = b"PK\x05\x06"
_ZIP_ENTRY = b"PK\x01\x02"
_ZIP_ENCRYPTED = 1
_ZIP_NAME = re.compile(
    rb"PK\x01\x02.{42}([ -~]{1,200}?(?:\.gpuprof|\.json(?:\.\w{2,3})?))", re.DOTALL
)
"""The name of a possible trace in a zip's list of files."""
_TAR_MAGIC, _TAR_MAGIC_AT = b"ustar", 257
_TAR_BLOCK = 512
_HEADERS_PER_FILE = 3
"""Headers of a file in a tar: those of pax, of its long name, and its own."""
_SPARSE_GOES_ON = (482, 504)
"""Places of GNU tar's flag that another block follows: in the header, and in such a block."""

_PAX_PATH = re.compile(rb"(?:^|\n)\d{1,5} path=([^\n]+)\n")

_TRACE_NAME = re.compile(r"\.gpuprof$|\.json(?:\.\w{2,3})?$")
_LISTED = 3
_BLOCK_BYTES = 1 << 20

_BROKEN = (
    *(zipfile.BadZipFile, tarfile.TarError, zlib.error, EOFError, OSError),
    *(RuntimeError, NotImplementedError, ValueError),
)
"""Errors that zipfile and tarfile raise on broken files."""


@dataclass(frozen=True)
class Member:
    """A file in an archive or folder: its name there, its stated size unpacked, its bytes.

    ``read`` takes the largest number of bytes to return.
    """

    name: str
    size: int
    read: Callable[[int], bytes]


@dataclass(frozen=True)
class Container:
    """A kind of archive: its name, its test, a command that unpacks one file, its members."""

    name: str
    recognises: Callable[[bytes], bool]
    unpack_one: str
    members: Callable[[bytes, Growth], Sequence[Member]]


class _TooManyError(Exception):
    """There are more than `MOST_FILES`; ``likely`` are some that have names of traces."""

    def __init__(self, names: Iterable[str]) -> None:
        self.likely = [name for name in names if _TRACE_NAME.search(name)][:_LISTED]
        super().__init__()


class _EncryptedError(Exception):
    """A file in a zip needs a password."""


def _zip_members(data: bytes, growth: Growth) -> list[Member]:
    if data.count(_ZIP_ENTRY) > MOST_FILES:
        raise _TooManyError(match[1].decode() for match in _ZIP_NAME.finditer(data))
    source = io.BytesIO(data)
    if not zipfile.is_zipfile(source):
        raise zipfile.BadZipFile("its list of files, which is its end, is missing: it was cut off")
    archive = zipfile.ZipFile(source)

    def member(info: zipfile.ZipInfo) -> Member:
        def read(size: int) -> bytes:
            if info.flag_bits & _ZIP_ENCRYPTED:
                raise _EncryptedError
            with archive.open(info) as file:
                return _unpacked(file, source, size, growth)

        return Member(info.filename, info.file_size, read)

    return [member(info) for info in archive.infolist() if not info.is_dir()]


def _unpacked(file: IO[bytes], source: io.BytesIO, size: int, growth: Growth) -> bytes:
    """Read up to ``size`` bytes of a file; ``source`` is the archive from which it is unpacked."""
    content, used = io.BytesIO(), source.tell()
    while block := file.read(min(_BLOCK_BYTES, max(size - content.tell(), 0))):
        growth.count(max(source.tell() - used, 0), len(block))
        content.write(block)
        used = source.tell()
    return content.getvalue()


def _tar_members(data: bytes, _: Growth) -> list[Member]:
    """Return the regular files of a tar with headers of POSIX (ustar, pax) or GNU tar.

    `tarfile` is not used, because it searches pax headers for sparse files in quadratic time.
    """
    files: list[Member] = []
    at, long_name, headers = 0, "", 0
    while at + _TAR_BLOCK <= len(data) and any(data[at : at + _TAR_BLOCK]):
        info = tarfile.TarInfo.frombuf(data[at : at + _TAR_BLOCK], "utf-8", "replace")
        headers += 1
        if info.size < 0:  # it would lead back, again and again
            raise tarfile.HeaderError(f"the header at byte {at:,} has a size of {info.size:,}")
        if headers > MOST_FILES * _HEADERS_PER_FILE:
            raise tarfile.HeaderError(f"it has more than {headers - 1:,} headers")
        start = _behind_header(data, at, info)
        end = start + info.size if _has_data(info) else start
        if end > len(data):
            raise EOFError(f"it ends at byte {len(data):,}, in {long_name or info.name}")
        if info.isreg() and not _is_sparse(info):
            files.append(
                Member(long_name or info.name, info.size, partial(_slice, data, start, end))
            )
        long_name = _long_name(info, data[start:end]) or (long_name if info.type == b"g" else "")
        at = start + -(-(end - start) // _TAR_BLOCK) * _TAR_BLOCK
        if len(files) > MOST_FILES:
            break
    return files


def _has_data(info: tarfile.TarInfo) -> bool:
    """Whether data follow the header; links, folders and devices may have a size, but no data."""
    special = (tarfile.XHDTYPE, tarfile.XGLTYPE, tarfile.GNUTYPE_LONGNAME, tarfile.GNUTYPE_LONGLINK)
    return info.isreg() or info.type in special or info.type not in tarfile.SUPPORTED_TYPES


def _behind_header(data: bytes, at: int, info: tarfile.TarInfo) -> int:
    """Return the start of a member's data; the map of a sparse file may take further blocks."""
    goes_on = _is_sparse(info) and data[at + _SPARSE_GOES_ON[0]]
    at += _TAR_BLOCK
    while goes_on and at + _TAR_BLOCK <= len(data):
        goes_on = data[at + _SPARSE_GOES_ON[1]]
        at += _TAR_BLOCK
    return at


def _is_sparse(info: tarfile.TarInfo) -> bool:
    return info.type == tarfile.GNUTYPE_SPARSE


def _long_name(info: tarfile.TarInfo, content: bytes) -> str:
    """Return the next member's name if this one only holds that; else ""."""
    if info.type == tarfile.GNUTYPE_LONGNAME:
        return content.split(b"\0", 1)[0].decode("utf-8", "replace")
    path = _PAX_PATH.search(content) if info.type == tarfile.XHDTYPE else None
    return path[1].decode("utf-8", "replace") if path else ""


def _slice(data: bytes, start: int, end: int, size: int) -> bytes:
    return data[start : min(end, start + max(size, 0))]


def is_zip(data: bytes) -> bool:
    """Whether these bytes start as a zip."""
    return data.startswith((ZIP_MAGIC, _EMPTY_ZIP))


def _is_tar(data: bytes) -> bool:
    return data[_TAR_MAGIC_AT : _TAR_MAGIC_AT + len(_TAR_MAGIC)] == _TAR_MAGIC


CONTAINERS = (
    Container("zip", is_zip, "unpack it alone (unzip FILE NAME)", _zip_members),
    Container("tar", _is_tar, "unpack it alone (tar -xf FILE NAME)", _tar_members),
)


def container(data: bytes) -> Container | None:
    """Return the kind of archive that these bytes are; None if they are none."""
    return next((each for each in CONTAINERS if each.recognises(data)), None)


def members(data: bytes, path: Path, growth: Growth | None = None) -> list[Member]:
    """Return the files in an archive except for hidden ones; errors name ``path``.

    Reading a file raises a `TraceError` if it is broken or encrypted, or unpacks to more than
    ``growth`` allows (by default, the growth for the archive's size).
    """
    kind = container(data)
    if kind is None:
        return []
    try:
        files = kind.members(data, growth or Growth(path, len(data)))
        visible = [_guarded(file, kind, path) for file in files if not _is_hidden(file.name)]
        return _not_too_many(visible)
    except _TooManyError as error:
        raise TraceError(_too_many(path, kind, error)) from None
    except _BROKEN as error:
        raise TraceError(_does_not_unpack(path, kind.name, error)) from error


def member_names(data: bytes) -> list[str]:
    """Return the names of the files in an archive; none if it is broken, or no archive."""
    kind = container(data)
    try:
        files = [] if kind is None else kind.members(data, Growth(Path(), len(data)))
        return [file.name for file in files]
    except (_TooManyError, *_BROKEN):
        return []


def _guarded(member: Member, kind: Container, path: Path) -> Member:
    """Return the member with errors turned into `TraceError`."""

    def read(size: int) -> bytes:
        try:
            return member.read(size)
        except TooLargeError:  # a ValueError as well
            raise
        except _EncryptedError:
            raise TraceError(
                f"{path}: {member.name!r} in this {kind.name} is encrypted, and passwords are not "
                "asked for: unpack it with its password first (7z x FILE, or unzip FILE), and open "
                "the trace that is then there."
            ) from None
        except _BROKEN as error:
            raise TraceError(_does_not_unpack(path, kind.name, error, member.name)) from error

    return Member(member.name, member.size, read)


def folder_members(folder: Path) -> list[Member]:
    """Return the files in a folder, by name, without pipes, sockets and hidden files."""
    try:
        files = sorted(path for path in folder.iterdir() if path.is_file())
        sizes = {path: path.stat().st_size for path in files}
    except OSError as error:
        raise TraceError(cannot(folder, error)) from error
    visible = [
        Member(path.name, sizes[path], partial(beginning_of, path))
        for path in files
        if not _is_hidden(path.name)
    ]
    try:
        return _not_too_many(visible)
    except _TooManyError as error:
        raise TraceError(_too_many(folder, None, error)) from None


def _not_too_many(files: list[Member]) -> list[Member]:
    if len(files) > MOST_FILES:
        raise _TooManyError(file.name for file in files)
    return files


def _too_many(where: Path, kind: Container | None, error: _TooManyError) -> str:
    likely = f" (perhaps {' or '.join(map(repr, error.likely))})" if error.likely else ""
    open_it = f"{kind.unpack_one}, and open that" if kind else "name that"
    return (
        f"{where}: holds more than {MOST_FILES:,} files, and a trace is looked for among so many "
        f"at most. Find the file with the trace{likely}: {open_it}."
    )


def _is_hidden(name: str) -> bool:
    """Whether a file is hidden, such as ``.DS_Store`` and ``__MACOSX/._run.json``."""
    return name.startswith("__MACOSX/") or name.rsplit("/", 1)[-1].startswith(".")


def _does_not_unpack(path: Path, kind: str, error: Exception, member: str = "") -> str:
    subject = f"{member!r} in this {kind}" if member else f"starts as a {kind} but"
    return f"{path}: {subject} cannot be unpacked ({error}); copy the file again."
