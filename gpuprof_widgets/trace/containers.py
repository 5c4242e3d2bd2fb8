"""Zip and tar archives, and folders: their files are read one by one.

Those of an archive are read in memory, and never put on the disk.

So it does not matter what path a file in them claims to have, or where a link points: links are no
files. What all files together may unpack to is bounded as for any packed file.
"""

from __future__ import annotations

import io
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from gpuprof_widgets.exceptions import TraceError
from gpuprof_widgets.trace.files import beginning_of, cannot
from gpuprof_widgets.trace.packing import allowed_bytes, too_large

ZIP_MAGIC = b"PK\x03\x04"
_EMPTY_ZIP = b"PK\x05\x06"
_TAR_MAGIC, _TAR_MAGIC_AT = b"ustar", 257

_BROKEN = (
    *(zipfile.BadZipFile, tarfile.TarError, zlib.error, EOFError, OSError),
    *(RuntimeError, NotImplementedError, ValueError),
)
"""What zipfile and tarfile raise of broken files; RuntimeError where a member is encrypted."""

MOST_FILES = 10_000
"""An archive or folder of more files is no place for a trace: each of them would be looked at."""


@dataclass(frozen=True)
class Member:
    """A file in an archive or folder: its name there, its size unpacked as it says, its bytes.

    ``read`` takes the most bytes that are wanted.
    """

    name: str
    size: int
    read: Callable[[int], bytes]


@dataclass(frozen=True)
class Container:
    """A kind of archive: what it is called, how it is recognised, and the files in it."""

    name: str
    recognises: Callable[[bytes], bool]
    members: Callable[[bytes], Sequence[Member]]


def _zip_members(data: bytes) -> list[Member]:
    archive = zipfile.ZipFile(io.BytesIO(data))

    def member(info: zipfile.ZipInfo) -> Member:
        def read(size: int) -> bytes:
            with archive.open(info) as file:
                return file.read(size)

        return Member(info.filename, info.file_size, read)

    return [member(info) for info in archive.infolist() if not info.is_dir()]


def _tar_members(data: bytes) -> list[Member]:
    archive = tarfile.open(fileobj=io.BytesIO(data), mode="r:")  # noqa: SIM115  # of bytes

    def member(info: tarfile.TarInfo) -> Member:
        def read(size: int) -> bytes:
            file = archive.extractfile(info)
            return b"" if file is None else file.read(size)

        return Member(info.name, info.size, read)

    # A sparse file claims any size without having its bytes.
    return [member(info) for info in archive if info.isreg() and not info.issparse()]


def is_zip(data: bytes) -> bool:
    """Whether these bytes start as a zip."""
    return data.startswith((ZIP_MAGIC, _EMPTY_ZIP))


def _is_tar(data: bytes) -> bool:
    return data[_TAR_MAGIC_AT : _TAR_MAGIC_AT + len(_TAR_MAGIC)] == _TAR_MAGIC


CONTAINERS = (
    Container("zip", is_zip, _zip_members),
    Container("tar", _is_tar, _tar_members),
)


def container(data: bytes) -> Container | None:
    """The kind of archive that these bytes are; None where they are none."""
    return next((each for each in CONTAINERS if each.recognises(data)), None)


def members(data: bytes, path: Path, allowed: int | None = None) -> list[Member]:
    """The files in an archive, but no hidden ones; ``path`` is named in errors.

    Reading one raises a `TraceError` where it is broken, or where all that was read of the archive
    is more than ``allowed`` bytes (None: what its size allows).
    """
    kind = container(data)
    if kind is None:
        return []
    budget = _Budget(path, len(data), allowed_bytes(len(data)) if allowed is None else allowed)
    try:
        found = kind.members(data)
    except _BROKEN as error:
        raise TraceError(_does_not_unpack(path, kind.name, error)) from error
    seen = [budget.guarded(one, kind.name) for one in found if not _is_hidden(one.name)]
    return _not_too_many(seen, path)


def member_names(data: bytes) -> list[str]:
    """The names of the files in an archive; none where it is broken, or no archive."""
    kind = container(data)
    try:
        return [] if kind is None else [one.name for one in kind.members(data)]
    except _BROKEN:
        return []


class _Budget:
    """What may still be read of an archive, whatever its files claim."""

    def __init__(self, path: Path, packed: int, allowed: int) -> None:
        self._path = path
        self._packed = packed
        self._allowed = allowed
        self._left = allowed

    def guarded(self, member: Member, kind: str) -> Member:
        """The member, whose bytes count, and whose errors are ours."""

        def read(size: int) -> bytes:
            try:
                data = member.read(min(size, self._left + 1))
            except _BROKEN as error:
                raise TraceError(_does_not_unpack(self._path, kind, error, member.name)) from error
            self._left -= len(data)
            if self._left < 0:
                raise too_large(self._path, self._packed, self._allowed)
            return data

        return Member(member.name, member.size, read)


def folder_members(folder: Path) -> list[Member]:
    """The files in a folder (no pipes or sockets, no hidden files), in order of their names."""
    try:
        files = sorted(path for path in folder.iterdir() if path.is_file())
        sizes = {path: path.stat().st_size for path in files}
    except OSError as error:
        raise TraceError(cannot(folder, error)) from error
    found = [
        Member(path.name, sizes[path], partial(beginning_of, path))
        for path in files
        if not _is_hidden(path.name)
    ]
    return _not_too_many(found, folder)


def _not_too_many(found: list[Member], where: Path) -> list[Member]:
    if len(found) > MOST_FILES:
        raise TraceError(
            f"{where}: holds {len(found):,} files, and traces are looked for among "
            f"{MOST_FILES:,} at most; name the file with the trace, or put it elsewhere."
        )
    return found


def _is_hidden(name: str) -> bool:
    """What systems leave beside the files (``.DS_Store``, ``__MACOSX/._run.json``) among it."""
    return name.startswith("__MACOSX/") or name.rsplit("/", 1)[-1].startswith(".")


def _does_not_unpack(path: Path, kind: str, error: Exception, member: str = "") -> str:
    what = f"{member!r} in this {kind}" if member else f"starts as a {kind} but"
    return f"{path}: {what} cannot be unpacked ({error}); copy the file again."
