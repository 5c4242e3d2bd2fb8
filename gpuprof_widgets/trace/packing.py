"""Unpack gzip, xz and zstandard, and the files in zip and tar archives and in folders.

`Growth` limits what a file may unpack to in all, so that a small file can fill neither memory nor
time. Real traces shrink 7 to 30 times when packed.

Files of an archive are read in memory, and never written to disk. So it does not matter what path
such a file claims to have, or where a link points: links are no files.
"""

from __future__ import annotations

import io
import lzma
import re
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any, Self, TypeVar

import zstandard

from gpuprof_widgets.exceptions import TraceError
from gpuprof_widgets.trace.files import beginning_of, cannot
from gpuprof_widgets.trace.remote import RemotePath, content, files_in, size_of

try:
    from isal import isal_zlib

    quick_zlib: ModuleType = isal_zlib
except ImportError:  # there is no wheel of it for some processors
    quick_zlib = zlib

GROWTH = 200
"""A file may unpack to this many times its size, with all layers and members."""

ALWAYS_BYTES = 64 << 20
"""A file may unpack to this size (bytes) in any case."""

_ZSTANDARD_WINDOW = 1 << 27
"""Largest window that the zstd program accepts by default."""

_GZIP = 16 + zlib.MAX_WBITS
_PADDING = re.compile(rb"\x00*+")
_BROKEN = (OSError, quick_zlib.error, zlib.error, lzma.LZMAError, zstandard.ZstdError)


class TooLargeError(TraceError):
    """A packed file unpacks to more than a file of its size may."""


class CutOffError(TraceError):
    """Packed data without its end; ``data`` is the part that could be unpacked."""

    def __init__(self, path: Path, name: str, packed: int) -> None:
        self.data = b""
        self.note = f"the {name} data ends at byte {packed:,}, before its end mark"
        super().__init__(
            f"{path}: {self.note}: the file was cut off while it was written or copied. Copy it "
            "again, or record again."
        )


class TrailingBytesError(TraceError):
    """Packed data with other bytes behind its end; ``data`` is the content of what is packed."""

    def __init__(self, path: Path, name: str, end: int, packed: int) -> None:
        self.data = b""
        left = f"{packed - end:,} bytes behind the {name} data"
        self.note = f"{left}, which ends at byte {end:,}, are not read"
        super().__init__(f"{path}: {self.note}; copy the file again, or record again.")


class Growth:
    """The number of bytes that a file of ``size`` bytes may unpack to, with all that is in it."""

    def __init__(self, path: Path, size: int) -> None:
        self._path = path
        self._limit = self.left = max(ALWAYS_BYTES, GROWTH * size)

    def count(self, size: int) -> None:
        """Count bytes that were unpacked; raise a `TooLargeError` if it is too many."""
        self.left -= size
        if self.left < 0:
            raise TooLargeError(
                f"{self._path}: its bytes unpack to more than {self._limit:,}, the most that is "
                f"read from a packed file of its size ({GROWTH} times, at least "
                f"{ALWAYS_BYTES >> 20} MB). Traces do not pack so well: do not trust this file. If "
                "you do, unpack it yourself and open that."
            )


@dataclass(frozen=True)
class Packing:
    """A packed format: its name, the first bytes of its parts, and the reader of a part.

    ``part`` makes a decompressor as `lzma` has it, for one gzip member, zstandard frame and so on;
    ``step`` is the number of packed bytes to give it at a time, which become 46 MB at most.
    """

    name: str
    magics: tuple[bytes, ...]
    part: Callable[[], Any]
    step: int


_SKIPPABLE = tuple(bytes([first]) + b"\x2a\x4d\x18" for first in range(0x50, 0x60))
"""First bytes of a zstandard frame without data (RFC 8878, 3.1.2); pzstd begins with one."""

_ZSTANDARD = zstandard.ZstdDecompressor(max_window_size=_ZSTANDARD_WINDOW)

PACKINGS = (
    Packing("gzip", (b"\x1f\x8b",), lambda: quick_zlib.decompressobj(_GZIP), 1 << 12),
    Packing("zstandard", (b"\x28\xb5\x2f\xfd", *_SKIPPABLE), _ZSTANDARD.decompressobj, 1 << 10),
    Packing("xz", (b"\xfd7zXZ\x00",), lzma.LZMADecompressor, 1 << 12),
)


def packing(data: bytes) -> Packing | None:
    """Return the format of packed bytes by how they start; None if they are not packed."""
    return next((each for each in PACKINGS if data.startswith(each.magics)), None)


def unpacked(data: bytes, path: Path, growth: Growth | None = None) -> bytes:
    """Return the content of packed data (one part or several), or other data as it is.

    Damaged data, or growth beyond ``growth`` (by default, that of its size), raise a `TraceError`
    that names ``path``; a missing end raises a `CutOffError`, and other bytes behind the packed
    ones a `TrailingBytesError`.
    """
    content = io.BytesIO()
    try:
        for piece in streamed(data, path, growth or Growth(path, len(data))):
            content.write(piece)
    except (CutOffError, TrailingBytesError) as error:
        error.data = content.getvalue()
        raise
    return content.getvalue() if packing(data) else data


def streamed(data: bytes, path: Path, growth: Growth) -> Iterator[bytes]:
    """Yield the content of packed data piece by piece.

    Nothing is packed in other data. Errors are those of `unpacked`.
    """
    how, at, size = packing(data), 0, 0
    if how is None:
        return
    try:
        while data.startswith(how.magics, at):
            part = how.part()
            while not part.eof:
                step = data[at : at + how.step]
                if not step:
                    raise CutOffError(path, how.name, len(data))
                piece = part.decompress(step)
                growth.count(len(piece))
                size += len(piece)
                at += len(step) - len(part.unused_data)
                yield piece
            if padding := _PADDING.match(data, at):  # gzip and xz allow zeros behind a part
                at = padding.end()
    except _BROKEN as error:
        raise TraceError(
            f"{path}: starts as {how.name} but does not unpack ({error}), after {size:,} unpacked "
            "bytes; copy the file again, or unpack it with another program."
        ) from error
    if at < len(data):
        raise TrailingBytesError(path, how.name, at, len(data))


def beginning(data: bytes, size: int, growth: Growth) -> bytes:
    """Return up to ``size`` first bytes of packed data, as many as can be unpacked."""
    content = b""
    try:
        for piece in streamed(data, Path(), growth):
            content += piece
            if len(content) >= size:
                break
    except TooLargeError:
        raise
    except TraceError:
        pass  # it is told when the whole is read
    return (content or data)[:size]


MOST_FILES = 10_000
"""Limit on the files of an archive or folder, because each of them is looked at for a trace."""

_ZIP_MAGICS = (b"PK\x03\x04", b"PK\x05\x06")
_ZIP_ENTRY = b"PK\x01\x02"
_TAR_MAGIC, _TAR_MAGIC_AT = b"ustar", 257
_LONGEST_HEADER = 4096
"""Bytes of a pax header at most: some versions of Python search it in quadratic time."""

_HIDDEN = re.compile(r"__MACOSX/|(?:.*/)?\.[^/]*\Z", re.DOTALL)

_BROKEN_ARCHIVE = (
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
    except _BROKEN_ARCHIVE as error:
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
        except _BROKEN_ARCHIVE as error:
            raise TraceError(
                f"{path}: {member.name!r} in this {kind} cannot be unpacked ({error}): copy the "
                "file again, or unpack it with another program and open the trace in it."
            ) from error

    return read


def folder_members(folder: Path) -> list[Member]:
    """Return the files in a folder, by name, without pipes, sockets and hidden files."""
    try:
        if isinstance(folder, RemotePath):
            sizes = files_in(folder)
            return [_remote_member(file, sizes[file]) for file in _visible(sizes)]
        paths = sorted(path for path in folder.iterdir() if path.is_file())
        return _visible(
            Member(path.name, path.stat().st_size, partial(beginning_of, path)) for path in paths
        )
    except _TooManyFilesError:
        raise TraceError(_too_many(folder, "name that")) from None
    except OSError as error:
        raise TraceError(cannot(folder, error)) from error


def _remote_member(file: RemotePath, listed: int | None) -> Member:
    """Return the file; the server is asked for a size that its listing does not say."""
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
