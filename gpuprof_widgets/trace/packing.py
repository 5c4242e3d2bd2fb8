"""Packed data: gzip, bzip2, xz and zstandard, recognised by how they start, unpacked within bounds.

How far data may grow is stated (`Growth`), so that a small file can fill neither memory nor time.
Real traces pack 7 to 30 times; of equal kernels at regular times gzip makes a 40th, bzip2 a 100th,
zstandard a 130th and xz a 500th.
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
"""A file may unpack to this many times its size ..."""

GROWTH_OF_XZ = 1000
"""(of what is packed as xz, which finds repetitions best, to this many times)"""

ALWAYS_BYTES = 64 << 20
"""... and to this size (bytes) in any case."""

_STEP_BYTES = 1 << 10
"""Of so many packed bytes zstandard makes 32 MB at most and gzip 1 MB; what bzip2 and xz make of
them is taken in blocks."""
_BLOCK_BYTES = 1 << 20

_SKIPPABLE = tuple(bytes([first]) + b"\x2a\x4d\x18" for first in range(0x50, 0x60))
"""How a frame of zstandard begins that holds no data (RFC 8878, 3.1.2); pzstd begins with one."""

MOST_PARTS = 100_000
"""Parts of a packed file, all layers and members together: pigz and pzstd write one per 128 kB."""

_ZSTANDARD_WINDOW = 1 << 27
"""What the zstd program takes too without being asked."""

_GZIP = 16 + zlib.MAX_WBITS
_PADDING = re.compile(rb"\x00*+")
_BROKEN = (OSError, ValueError, zlib.error, lzma.LZMAError)


class TooLargeError(TraceError):
    """What a packed file holds is more than a file of its size may unpack to."""


class _TooWideError(Exception):
    """A frame of zstandard needs more memory than is given to one."""


class CutOffError(TraceError):
    """Packed data without its end; ``data`` is what could be unpacked of it."""

    def __init__(self, path: Path, name: str, packed: int, data: bytes) -> None:
        self.data = data
        self.note = f"the {name} data ends at byte {packed:,}, before its end mark"
        super().__init__(
            f"{path}: {self.note}: the file was cut off while it was written or copied. Copy it "
            "again, or record again."
        )


class Growth:
    """What may still be unpacked of a file of ``size`` bytes, all layers and members together.

    It is bounded twice: in all by the size of the file, and on the way by the packed bytes that
    were used. So a bomb is refused after `ALWAYS_BYTES`, not after all that its size allows.
    """

    def __init__(self, path: Path, size: int) -> None:
        self._path = path
        self._limit = max(ALWAYS_BYTES, GROWTH * size)
        self._left = self._limit
        self._may_be_xz = size
        self._ahead = ALWAYS_BYTES
        self._parts = 0

    def count_part(self) -> None:
        """Another part begins; a `TooLargeError` where there are too many."""
        self._parts += 1
        if self._parts > MOST_PARTS:
            raise self._too_large(
                f"it is packed in more than {MOST_PARTS:,} parts", "are not cut up so"
            )

    def count(self, packed: int, size: int, times: int = GROWTH) -> None:
        """So many packed bytes have become ``size``; a `TooLargeError` where that is too much.

        ``times``: how far these may grow.
        """
        # As often as the file has bytes: else xz in xz would grow by the square.
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

    def _too_large(self, what: str, not_so: str = "do not pack so well") -> TooLargeError:
        return TooLargeError(
            f"{self._path}: {what}. Traces {not_so}: do not trust this file. If you do, "
            "unpack it yourself and open that."
        )


class Part(Protocol):
    """One of the parts of packed data (members of gzip, frames of zstandard, ...), as it is read.

    ``unused_data``: what was given and stands behind its end.
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
    """A frame of zstandard, whose error is no built-in one."""

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
    """A way to pack data: its name, how each of its parts may start, and what unpacks one.

    ``unpack`` gives what a part makes of some more packed bytes, ``growth`` how many times as many.
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
    """Some more of what was packed: the bytes, and where the packed ones end that they were."""

    data: bytes
    end: int


def packing(data: bytes) -> Packing | None:
    """How these bytes are packed, by how they start; None where they are not."""
    return next((each for each in PACKINGS if data.startswith(each.magics)), None)


def _pieces(data: bytes, how: Packing, growth: Growth) -> Iterator[Piece]:
    """The content, part after part, until what follows is none; EOFError where one has no end."""
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
            for found in how.unpack(part, step):
                yield Piece(found, at + len(step) - len(part.unused_data))
            at += len(step) - len(part.unused_data)
        if padding := _PADDING.match(data, at):  # gzip and xz allow zeros between and behind parts
            at = padding.end()
            yield Piece(b"", at)


def _behind_skippable(data: bytes, at: int) -> int:
    """The end of a frame without data: a magic number, its size in 4 bytes, and so many bytes."""
    end = at + 8 + int.from_bytes(data[at + 4 : at + 8], "little")
    if len(data) < max(end, at + 8):
        raise EOFError
    return end


@dataclass(frozen=True)
class Unpacked:
    """The content of packed data, and a note on what stands behind it ("" where nothing does)."""

    data: bytes
    note: str = ""


def unpacked(data: bytes, path: Path, growth: Growth | None = None) -> Unpacked:
    """The content of packed data (one part or several); other data as it is.

    Raises a `TraceError` that names ``path`` where the data is damaged or grows more than
    ``growth`` allows (None: what its size does), a `CutOffError` where its end is missing.
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
    """The first bytes of what is packed, as far as they can be had."""
    how = packing(data)
    found, end = b"", 0
    try:
        for piece in _pieces(data, how, growth) if how else ():
            growth.count(piece.end - end, len(piece.data), how.growth if how else GROWTH)
            found, end = found + piece.data, piece.end
            if len(found) >= size:
                break
    except TooLargeError:
        raise
    except (EOFError, _TooWideError, *_BROKEN):
        pass
    return (found or data)[:size]
