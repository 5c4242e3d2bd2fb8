"""Packed data: gzip, bzip2, xz and zstandard, recognised by how they start, unpacked within bounds.

How far data may grow is stated (`allowed_bytes`), so that a small file cannot fill the memory. Real
traces pack 7 to 30 times, artificial ones (one event again and again) up to some hundred times.
"""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from gpuprof_widgets.exceptions import TraceError

GROWTH = 200
"""A file may unpack to this many times its size ..."""

ALWAYS_BYTES = 64 << 20
"""... and to this size (bytes) in any case."""

_BLOCK_BYTES = 1 << 20
_ZSTANDARD_STEP = 1 << 10
"""Of so many packed bytes zstandard makes 32 MB at most, which it does not let one bound."""

_SKIPPABLE = tuple(bytes([first]) + b"\x2a\x4d\x18" for first in range(0x50, 0x60))
"""How a frame of zstandard begins that holds no data (RFC 8878, 3.1.2); pzstd begins with one."""

_ZSTANDARD_WINDOW = 1 << 27
"""What the zstd program takes too without being asked."""


class TooLargeError(TraceError):
    """What a packed file holds is more than a file of its size may unpack to."""


class CutOffError(TraceError):
    """Packed data without its end; ``data`` is what could be unpacked of it."""

    def __init__(self, path: Path, name: str, packed: int, data: bytes) -> None:
        self.data = data
        self.note = f"the {name} data ends at byte {packed:,}, before its end mark"
        super().__init__(
            f"{path}: {self.note}: the file was cut off while it was written or copied. Copy it "
            "again, or record again."
        )


class Unpacking(Protocol):
    """A file that gives what another one holds packed."""

    def read1(self, size: int, /) -> bytes: ...


class _Zstandard:
    """Frames of zstandard one after another; its own reader takes a frame cut off for a whole."""

    def __init__(self, file: io.BytesIO) -> None:
        import zstandard

        self._file = file
        self._rest = b""
        self._frame: Any = None
        self._open = zstandard.ZstdDecompressor(max_window_size=_ZSTANDARD_WINDOW).decompressobj
        self._error = zstandard.ZstdError

    def read1(self, size: int, /) -> bytes:
        """Some more bytes, not exactly ``size``; none at the end."""
        while data := self._rest or self._file.read(_ZSTANDARD_STEP):
            if found := self._decompressed(data):
                return found
        if self._frame is None or not self._frame.eof:
            raise EOFError
        return b""

    def _decompressed(self, data: bytes) -> bytes:
        if self._frame is None or self._frame.eof:
            self._frame = self._open()
        try:
            found: bytes = self._frame.decompress(data)
        except self._error as error:
            raise OSError(str(error)) from error
        self._rest = self._frame.unused_data if self._frame.eof else b""
        return found


def _gzip(file: io.BytesIO) -> Unpacking:
    return gzip.GzipFile(fileobj=file)


@dataclass(frozen=True)
class Packing:
    """A way to pack data: its name, how packed data may start, and what unpacks it."""

    name: str
    magics: tuple[bytes, ...]
    unpack: Callable[[io.BytesIO], Unpacking]


PACKINGS = (
    Packing("gzip", (b"\x1f\x8b",), _gzip),
    Packing("zstandard", (b"\x28\xb5\x2f\xfd", *_SKIPPABLE), _Zstandard),
    Packing("bzip2", (b"BZh",), bz2.BZ2File),
    Packing("xz", (b"\xfd7zXZ\x00",), lzma.LZMAFile),
)


def packing(data: bytes) -> Packing | None:
    """How these bytes are packed, by how they start; None where they are not."""
    return next((each for each in PACKINGS if data.startswith(each.magics)), None)


def allowed_bytes(size: int) -> int:
    """To how many bytes a file of this size may unpack, everything in it together."""
    return max(ALWAYS_BYTES, GROWTH * size)


def unpacked(data: bytes, path: Path, allowed: int | None = None) -> bytes:
    """The content of packed data (one part or several); other data as it is.

    Raises a `TraceError` that names ``path`` where the data is damaged or unpacks to more than
    ``allowed`` bytes (None: what its size allows), a `CutOffError` where its end is missing.
    """
    how = packing(data)
    if how is None:
        return data
    limit = allowed_bytes(len(data)) if allowed is None else allowed
    content = io.BytesIO()
    try:
        _copy(how.unpack(io.BytesIO(data)), content, limit)
    except EOFError as error:
        raise CutOffError(path, how.name, len(data), content.getvalue()) from error
    except (OSError, ValueError, zlib.error, lzma.LZMAError) as error:
        if content.tell() and str(error).startswith("Not a gzipped file"):
            return content.getvalue()  # as gunzip: what stands behind the last part is no data
        raise TraceError(
            f"{path}: starts as {how.name} but does not unpack ({error}), after {content.tell():,} "
            "unpacked bytes; copy the file again."
        ) from error
    if content.tell() > limit:
        raise too_large(path, limit)
    return content.getvalue()


def _copy(source: Unpacking, content: io.BytesIO, limit: int) -> None:
    while content.tell() <= limit and (block := source.read1(_BLOCK_BYTES)):
        content.write(block)


def beginning(data: bytes, size: int) -> bytes:
    """The first bytes of what is packed, as far as they can be had."""
    how = packing(data)
    if how is None:
        return data[:size]
    try:
        return how.unpack(io.BytesIO(data)).read1(size)[:size]
    except (EOFError, OSError, ValueError, zlib.error, lzma.LZMAError):
        return data[:size]


def too_large(path: Path, limit: int) -> TooLargeError:
    """The error where a file unpacks to more than is allowed, in however many layers."""
    return TooLargeError(
        f"{path}: its bytes unpack to more than {limit:,}, the most that is read from a packed "
        f"file of its size ({GROWTH} times, at least {ALWAYS_BYTES >> 20} MB). Traces do not "
        "pack so well: do not trust this file. If you do, unpack it yourself and open that."
    )
