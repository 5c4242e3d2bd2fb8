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
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
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
_QUICK_GZIP = partial(quick_zlib.decompressobj, _GZIP)
_PADDING = re.compile(rb"\x00*+")
_BROKEN = (OSError, zlib.error, lzma.LZMAError, zstandard.ZstdError)


class TooLargeError(TraceError):
    """A packed file unpacks to more than a file of its size may."""


class CutOffError(TraceError):
    """Packed data without its end; ``data`` is the part that could be unpacked."""

    def __init__(self, path: Path, name: str, packed: int, data: bytes) -> None:
        self.data = data
        self.note = f"the {name} data ends at byte {packed:,}, before its end mark"
        super().__init__(
            f"{path}: {self.note}: the file was cut off while it was written or copied. Copy it "
            "again, or record again."
        )


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

    ``part`` makes a decompressor as `zlib` and `lzma` have it, for one gzip member, zstandard frame and so on;
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
    Packing("gzip", (b"\x1f\x8b",), partial(zlib.decompressobj, _GZIP), 1 << 12),
    Packing("zstandard", (b"\x28\xb5\x2f\xfd", *_SKIPPABLE), _ZSTANDARD.decompressobj, 1 << 10),
    Packing("xz", (b"\xfd7zXZ\x00",), lzma.LZMADecompressor, 1 << 12),
)


def packing(data: bytes) -> Packing | None:
    """Return the format of packed bytes by how they start; None if they are not packed."""
    return next((each for each in PACKINGS if data.startswith(each.magics)), None)


def unpacked(data: bytes, path: Path, growth: Growth | None = None) -> tuple[bytes, str]:
    """Return the content of packed data (one part or several), or other data as it is.

    The second value is a note on bytes behind the packed ones, "" if there are none. Damaged data,
    or growth beyond ``growth`` (by default, that of its size), raises a `TraceError` that names
    ``path``; a missing end raises a `CutOffError`.
    """
    how = packing(data)
    if how is None:
        return data, ""
    content, end = io.BytesIO(), 0
    try:
        for piece, at in _pieces(data, how, growth or Growth(path, len(data))):
            content.write(piece)
            end = at
    except EOFError as error:
        raise CutOffError(path, how.name, len(data), content.getvalue()) from error
    except _BROKEN as error:
        raise TraceError(
            f"{path}: starts as {how.name} but does not unpack ({error}), after "
            f"{content.tell():,} unpacked bytes; copy the file again, or unpack it with another "
            "program."
        ) from error
    left = len(data) - end
    behind = f"{left:,} bytes behind the {how.name} data, which ends at byte {end:,}, are not read"
    return content.getvalue(), behind if left else ""


def streamed(data: bytes, path: Path, growth: Growth) -> Iterator[tuple[bytes, float]]:
    """Yield the content of packed data piece by piece, with the share of the data that is read.

    Raise a `TraceError` where `unpacked` has more to say than the content: for damaged data, a
    missing end, bytes behind the packed ones, or too much growth.
    """
    how, end = packing(data), 0
    try:
        for piece, end in _pieces(data, how, growth, _QUICK_GZIP) if how else ():
            yield piece, end / len(data)
    except (EOFError, quick_zlib.error, *_BROKEN) as error:
        raise TraceError(f"{path}: does not unpack ({error})") from error
    if end < len(data):
        raise TraceError(f"{path}: {len(data) - end:,} bytes are not packed")


def beginning(data: bytes, size: int, growth: Growth) -> bytes:
    """Return up to ``size`` first bytes of packed data, as many as can be unpacked."""
    how, content = packing(data), b""
    with suppress(EOFError, *_BROKEN):
        for piece, _ in _pieces(data, how, growth) if how else ():
            content += piece
            if len(content) >= size:
                break
    return (content or data)[:size]


def _pieces(
    data: bytes, how: Packing, growth: Growth, gzip: Callable[[], Any] | None = None
) -> Iterator[tuple[bytes, int]]:
    """Yield the content, part after part, and the end of its packed bytes.

    ``gzip`` makes the decompressors of gzip in place of zlib. Raise EOFError if a part has no end.
    """
    at = 0
    while data.startswith(how.magics, at):
        part = gzip() if gzip and how.name == "gzip" else how.part()
        while not part.eof:
            step = data[at : at + how.step]
            if not step:
                raise EOFError
            piece = part.decompress(step)
            growth.count(len(piece))
            at += len(step) - len(part.unused_data)
            yield piece, at
        if padding := _PADDING.match(data, at):  # gzip and xz allow zeros between and behind parts
            at = padding.end()
            yield b"", at
