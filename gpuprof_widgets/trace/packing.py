"""Unpack gzip, xz and zstandard, recognised by their first bytes, up to a size.

`Growth` limits what a file may unpack to in all, so that a small file can fill neither memory nor
time. Real traces shrink 7 to 30 times when packed.
"""

from __future__ import annotations

import io
import lzma
import re
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import zstandard

from gpuprof_widgets.exceptions import TraceError

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
