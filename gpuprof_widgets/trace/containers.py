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
from typing import Self, TypeVar

from gpuprof_widgets.exceptions import TraceError
from gpuprof_widgets.trace.files import beginning_of, cannot
from gpuprof_widgets.trace.packing import Growth, TooLargeError
from gpuprof_widgets.trace.remote import RemotePath, content, files_in, size_of

MOST_FILES = 10_000
"""Limit on the files of an archive or folder, because each of them is looked at for a trace."""

_ZIP_MAGICS = (b"PK\x03\x04", b"PK\x05\x06")
_ZIP_ENTRY = b"PK\x01\x02"
_TAR_MAGIC, _TAR_MAGIC_AT = b"ustar", 257
_LONGEST_HEADER = 4096
"""Bytes of a pax header at most: some versions of Python search it in quadratic time."""

_HIDDEN = re.compile(r"__MACOSX/|(?:.*/)?\.[^/]*\Z", re.DOTALL)

_BROKEN = (
    *(zipfile.BadZipFile, tarfile.TarError, zlib.error, EOFError, OSError, LookupError),
    *(RuntimeError, NotImplementedError, ValueError, ArithmeticError),
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


class _TooManyFilesError(Exception):
    """There are more than `MOST_FILES`."""


class _Header(tarfile.TarInfo):
    """A header of a tar that can be neither searched for long nor lead back in the file."""

    @classmethod
    def frombuf(cls, buf: bytes | bytearray, encoding: str, errors: str) -> Self:
        header = super().frombuf(buf, encoding, errors)
        is_pax = header.type in (tarfile.XHDTYPE, tarfile.XGLTYPE)
        if header.size < 0 or (is_pax and header.size > _LONGEST_HEADER):
            raise tarfile.ReadError(
                f"one of its headers has a size of {header.size:,}: tar -xf may unpack it"
            )
        return header


def is_zip(data: bytes) -> bool:
    """Whether these bytes start as a zip."""
    return data.startswith(_ZIP_MAGICS)


def is_container(data: bytes) -> bool:
    """Whether these bytes start as a zip or a tar."""
    return is_zip(data) or data.startswith(_TAR_MAGIC, _TAR_MAGIC_AT)


def _zip_files(data: bytes, growth: Growth) -> Iterator[Member]:
    if data.count(_ZIP_ENTRY) > MOST_FILES:  # `zipfile` would make an object of each
        raise _TooManyFilesError
    archive = zipfile.ZipFile(io.BytesIO(data))
    for info in archive.infolist():
        if not info.is_dir():
            read = partial(_unzipped, archive, info, growth)
            yield Member(info.filename, info.file_size, read)


def _unzipped(archive: zipfile.ZipFile, info: zipfile.ZipInfo, growth: Growth, size: int) -> bytes:
    """Return up to ``size`` bytes of a file; `zipfile` itself bounds no other compressions."""
    if info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        raise NotImplementedError(f"its compression, type {info.compress_type}, is not deflate")
    with archive.open(info) as file:
        content = file.read(min(size, growth.left + 1))
    growth.count(len(content))
    return content


def _tar_files(data: bytes, _growth: Growth) -> Iterator[Member]:
    file = io.BytesIO(data)
    archive = tarfile.TarFile(fileobj=file, tarinfo=_Header, encoding="utf-8", errors="replace")
    for number, info in enumerate(archive):
        if number == MOST_FILES:
            raise _TooManyFilesError
        if info.issparse():  # it would unpack to any size
            raise tarfile.ReadError(f"{info.name} is sparse: pack it without -S")
        if info.isreg():
            yield Member(info.name, info.size, partial(_untarred, archive, info))
    if 0 < len(data) - archive.offset < tarfile.BLOCKSIZE:
        raise EOFError(f"it ends at byte {len(data):,}, in a header")


def _untarred(archive: tarfile.TarFile, info: tarfile.TarInfo, size: int) -> bytes:
    file = archive.extractfile(info)
    return file.read(size) if file else b""


def members(data: bytes, path: Path, growth: Growth) -> list[Member]:
    """Return the files in a zip or tar except for hidden ones; errors name ``path``.

    Reading a file raises a `TraceError` if it is broken or encrypted, or unpacks to more than
    ``growth`` allows.
    """
    kind, files, unpack = (
        ("zip", _zip_files, "unzip FILE NAME")
        if is_zip(data)
        else ("tar", _tar_files, "tar -xf FILE NAME")
    )
    try:
        visible = _visible(files(data, growth))
    except _TooManyFilesError:
        advice = f"unpack it alone ({unpack}), and open that"
        raise TraceError(_too_many(path, advice)) from None
    except _BROKEN as error:
        raise TraceError(
            f"{path}: starts as a {kind} but cannot be unpacked ({error}); copy the file again."
        ) from error
    return [Member(file.name, file.size, _guarded(file, kind, path)) for file in visible]


def _guarded(member: Member, kind: str, path: Path) -> Callable[[int], bytes]:
    """Return a function that reads the file, with errors turned into `TraceError`."""

    def read(size: int) -> bytes:
        try:
            return member.read(size)
        except TooLargeError:  # a ValueError as well
            raise
        except _BROKEN as error:
            raise TraceError(
                f"{path}: {member.name!r} in this {kind} cannot be unpacked ({error}): copy the "
                "file again, or unpack it with another program and open the trace in it."
            ) from error

    return read


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
