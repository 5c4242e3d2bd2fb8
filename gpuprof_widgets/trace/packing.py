"""Unpack gzip, bzip2, xz and zstandard, recognised by their first bytes, within bounds.

`Growth` limits how far data may grow, so that a small file can fill neither memory nor time. Real
traces shrink 7 to 30 times when packed. Equal kernels at regular times shrink 40 times with gzip,
100 with bzip2, 130 with zstandard and 500 with xz.
"""

from __future__ import annotations

import bz2
import io
import lzma
import re
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from gpuprof_widgets.exceptions import TraceError

if TYPE_CHECKING:
    import zstandard

GROWTH = 200
"""A file may unpack to this many times its size."""

GROWTH_OF_XZ = 1000
"""The same for parts that are packed as xz, which finds repetitions best."""

ALWAYS_BYTES = 64 << 20
"""A file may unpack to this size (bytes) in any case."""

_STEP_BYTES = 1 << 10
"""Packed bytes to unpack at a time: zstandard makes 32 MB of them at most and gzip 1 MB. The output
of bzip2 and xz is taken in blocks."""
_BLOCK_BYTES = 1 << 20

_SKIPPABLE = tuple(bytes([first]) + b"\x2a\x4d\x18" for first in range(0x50, 0x60))
"""First bytes of a zstandard frame without data (RFC 8878, 3.1.2); pzstd begins with one."""

MOST_PARTS = 100_000
"""Limit on the parts of all layers and members of a file: pigz and pzstd write one per 128 kB."""

_ZSTANDARD_WINDOW = 1 << 27
"""Largest window that the zstd program accepts by default."""

_GZIP = 16 + zlib.MAX_WBITS
_PADDING = re.compile(rb"\x00*+")
_BROKEN = (OSError, ValueError, zlib.error, lzma.LZMAError)


class TooLargeError(TraceError):
    """A packed file unpacks to more than a file of its size may."""


class _TooWideError(Exception):
    """A zstandard frame needs more memory than the limit."""


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
    """The number of bytes that a file of ``size`` bytes, with all layers, may still unpack to.

    There are two bounds: in total by the size of the file, and at any time by the packed bytes used
    so far. So a bomb is refused after `ALWAYS_BYTES`, not after all that its size allows.
    """

    def __init__(self, path: Path, size: int) -> None:
        self._path = path
        self._limit = max(ALWAYS_BYTES, GROWTH * size)
        self._left = self._limit
        self._may_be_xz = size
        self._ahead = ALWAYS_BYTES
        self._parts = 0

    def count_part(self) -> None:
        """Count another part; raise a `TooLargeError` if there are too many."""
        self._parts += 1
        if self._parts > MOST_PARTS:
            raise self._too_large(
                f"it is packed in more than {MOST_PARTS:,} parts", "are not cut up so"
            )

    def count(self, packed: int, size: int, times: int = GROWTH) -> None:
        """Count packed bytes that became ``size``; raise a `TooLargeError` if that is too much.

        ``times`` is the growth that these bytes may have.
        """
        # Each byte of the file counts as xz only once: else xz in xz would grow by the square.
        of_xz = min(packed, self._may_be_xz) if times > GROWTH else 0
        self._may_be_xz -= of_xz
        self._limit += of_xz * (times - GROWTH)
        self._left += of_xz * (times - GROWTH) + packed - size
        self._ahead = min(self._ahead + times * packed, ALWAYS_BYTES) - size
        if self._left < 0:
            raise self._too_large(
                f"its bytes unpack to more than {self._limit:,}, the most that is read from a "
                f"packed file of its size ({times} times, at least {ALWAYS_BYTES >> 20} MB)"
            )
        if self._ahead < 0:
            raise self._too_large(
                f"a part of its bytes unpacks to more than {ALWAYS_BYTES:,}, which is more than "
                f"{times} times its size"
            )

    def _too_large(self, reason: str, not_so: str = "do not pack so well") -> TooLargeError:
        return TooLargeError(
            f"{self._path}: {reason}. Traces {not_so}: do not trust this file. If you do, "
            "unpack it yourself and open that."
        )


class Part(Protocol):
    """A reader of one part of packed data (a member of gzip, a frame of zstandard, ...).

    ``unused_data`` is input from behind the end of the part.
    """

    @property
    def eof(self) -> bool: ...
    @property
    def unused_data(self) -> bytes: ...
    def decompress(self, data: bytes, /) -> bytes: ...


@cache
def _zstandard_reader() -> zstandard.ZstdDecompressor:
    import zstandard

    return zstandard.ZstdDecompressor(max_window_size=_ZSTANDARD_WINDOW)


class _ZstandardFrame:
    """A frame of zstandard, with its errors as built-in ones."""

    def __init__(self) -> None:
        import zstandard

        self._error = zstandard.ZstdError
        self._parameters = zstandard.get_frame_parameters
        self._begun = False
        self._frame = _zstandard_reader().decompressobj()

    @property
    def eof(self) -> bool:
        return self._frame.eof

    @property
    def unused_data(self) -> bytes:
        return self._frame.unused_data

    def decompress(self, data: bytes, /) -> bytes:
        try:
            if not self._begun and self._parameters(data).window_size > _ZSTANDARD_WINDOW:
                raise _TooWideError
            self._begun = True
            return self._frame.decompress(data)
        except self._error as error:
            raise OSError(str(error)) from error


def _whole(part: Part, packed: bytes) -> Iterator[bytes]:
    yield part.decompress(packed)


def _in_blocks(part: bz2.BZ2Decompressor | lzma.LZMADecompressor, packed: bytes) -> Iterator[bytes]:
    yield part.decompress(packed, _BLOCK_BYTES)
    while not (part.eof or part.needs_input):
        yield part.decompress(b"", _BLOCK_BYTES)


@dataclass(frozen=True)
class Packing:
    """A packed format: its name, the first bytes of its parts, and the reader of a part.

    ``unpack`` yields what a part makes of more packed bytes; ``growth`` limits how many times more.
    """

    name: str
    magics: tuple[bytes, ...]
    part: Callable[[], Part]
    unpack: Callable[[Any, bytes], Iterator[bytes]]
    growth: int = GROWTH


PACKINGS = (
    Packing("gzip", (b"\x1f\x8b",), lambda: zlib.decompressobj(_GZIP), _whole),
    Packing("zstandard", (b"\x28\xb5\x2f\xfd", *_SKIPPABLE), _ZstandardFrame, _whole),
    Packing("bzip2", (b"BZh",), bz2.BZ2Decompressor, _in_blocks),
    Packing("xz", (b"\xfd7zXZ\x00",), lzma.LZMADecompressor, _in_blocks, GROWTH_OF_XZ),
)


@dataclass(frozen=True)
class Piece:
    """A piece of unpacked data, and the place where its packed bytes end."""

    data: bytes
    end: int


def packing(data: bytes) -> Packing | None:
    """Return the format of packed bytes by how they start; None if they are not packed."""
    return next((each for each in PACKINGS if data.startswith(each.magics)), None)


def _pieces(data: bytes, how: Packing, growth: Growth) -> Iterator[Piece]:
    """Yield the content, part after part; raise EOFError if a part has no end."""
    at = 0
    while data.startswith(how.magics, at):
        growth.count_part()
        if data.startswith(_SKIPPABLE, at):
            at = _behind_skippable(data, at)
            yield Piece(b"", at)
            continue
        part = how.part()
        while not part.eof:
            step = data[at : at + _STEP_BYTES]
            if not step:
                raise EOFError
            for content in how.unpack(part, step):
                yield Piece(content, at + len(step) - len(part.unused_data))
            at += len(step) - len(part.unused_data)
        if padding := _PADDING.match(data, at):  # gzip and xz allow zeros between and behind parts
            at = padding.end()
            yield Piece(b"", at)


def _behind_skippable(data: bytes, at: int) -> int:
    """Return the end of a frame without data: magic number, size in 4 bytes, so many bytes."""
    end = at + 8 + int.from_bytes(data[at + 4 : at + 8], "little")
    if len(data) < max(end, at + 8):
        raise EOFError
    return end


@dataclass(frozen=True)
class Unpacked:
    """The content of packed data, and a note on bytes behind it ("" if none)."""

    data: bytes
    note: str = ""


def unpacked(data: bytes, path: Path, growth: Growth | None = None) -> Unpacked:
    """Return the content of packed data (one part or several); other data as it is.

    Damaged data, or growth beyond ``growth`` (by default, that of its size), raises a `TraceError`
    that names ``path``; a missing end raises a `CutOffError`.
    """
    how = packing(data)
    if how is None:
        return Unpacked(data)
    growth = growth or Growth(path, len(data))
    content, end = io.BytesIO(), 0
    try:
        for piece in _pieces(data, how, growth):
            growth.count(piece.end - end, len(piece.data), how.growth)
            content.write(piece.data)
            end = piece.end
    except EOFError as error:
        raise CutOffError(path, how.name, len(data), content.getvalue()) from error
    except _TooWideError:
        raise TraceError(
            f"{path}: was packed with a zstandard window of more than {_ZSTANDARD_WINDOW >> 20} "
            "MiB, so much memory that zstd itself asks before it unpacks it: unpack it first "
            "(zstd -d --long=31 FILE)."
        ) from None
    except TooLargeError:  # a ValueError as well
        raise
    except _BROKEN as error:
        raise TraceError(
            f"{path}: starts as {how.name} but does not unpack ({error}), after {content.tell():,} "
            "unpacked bytes; copy the file again."
        ) from error
    left = len(data) - end
    behind = f"{left:,} bytes behind the {how.name} data, which ends at byte {end:,}, are not read"
    return Unpacked(content.getvalue(), behind if left else "")


def beginning(data: bytes, size: int, growth: Growth) -> bytes:
    """Return up to ``size`` first bytes of packed data, as many as can be unpacked."""
    how = packing(data)
    content, end = b"", 0
    try:
        for piece in _pieces(data, how, growth) if how else ():
            growth.count(piece.end - end, len(piece.data), how.growth if how else GROWTH)
            content, end = content + piece.data, piece.end
            if len(content) >= size:
                break
    except TooLargeError:
        raise
    except (EOFError, _TooWideError, *_BROKEN):
        pass
    return (content or data)[:size]
