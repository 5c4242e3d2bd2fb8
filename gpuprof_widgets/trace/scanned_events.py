"""The quick reader of Chrome traces: a compiled scanner that makes no object per event.

`event_scanner.c` keeps the plain slices of a file as columns while its text is unpacked, so that
the memory never holds the whole text. It knows only what profilers write. Everything else raises an
`UnusualError`, and the complete reader (`event_json`) reads the file again, with the same result.

One thing is not the same: the complete reader takes brackets in texts for lists and objects when it
looks whether there are too many, the quick one does not.

The scanner is compiled where the package is built; where there was no compiler, all files are
read by the complete reader.
"""

from __future__ import annotations

import codecs
import ctypes
import secrets
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pandas as pd
from numpy.typing import NDArray

from gpuprof_widgets.trace.arrays import Codes, Mask
from gpuprof_widgets.trace.event_json import (
    BYTES_OF_A_CONTAINER,
    FREE_CONTAINERS,
    Event,
    Id,
    TraceFile,
    any_value,
    decoded_events,
)
from gpuprof_widgets.trace.events import Events, from_codes, typed

LIBRARY = Path(__file__).with_name("_event_scanner.so")

BLOCK_BYTES = 1 << 20
"""Bytes that are scanned at a time: they fit the cache of a core."""

_VERSION = 1
_PADDING = 16
_MORE, _END, _FULL, _BAD, _NO_MEMORY = range(5)
_CUT_OFF, _NO_JSON = -1, -2
_MOST_ODD = 4096
_ROWS, _EVENTS, _CONTAINERS, _KEYS = range(4)
_OF_ALL_ROWS, _TEXTS, _ARG_ROWS, _ARG_VALUES = range(4)
_TS, _DUR, _CODES, _INSTANTS = 0, 1, 2, 6
_NAMES, _CATEGORIES, _PROCESSES, _THREADS, _ARG_KEYS, _OTHER_VALUES = range(6)
_WHOLE, _FLOAT, _OTHER = range(3)
_KIND_TYPES = (np.int64, np.float64, np.int32)
_ARROWS = "stf"

_TEXT_LIST = msgspec.json.Decoder(list[str])
_ID_LIST = msgspec.json.Decoder(list[Id])
_ANY_LIST = msgspec.json.Decoder(list[Any])


class UnusualError(Exception):
    """The file has something that only the complete reader knows, or is no JSON."""


@cache
def _library() -> ctypes.CDLL | None:
    """Return the compiled scanner; None where there is none that fits this version."""
    try:
        library = ctypes.CDLL(str(LIBRARY))
        if library.scanner_version() != _VERSION:
            return None
    except (OSError, AttributeError):  # it is not there, or of another version of the package
        return None
    pointer, integer, number = ctypes.c_void_p, ctypes.c_int64, ctypes.c_int32
    for name, result, arguments in (
        ("new", pointer, [ctypes.c_uint64]),
        ("free", None, [pointer]),
        ("scan", integer, [pointer, pointer, integer, integer, pointer, integer, pointer, pointer]),
        ("skip", integer, [pointer, integer]),
        ("value", integer, [pointer, pointer, integer, integer]),
        ("total", integer, [pointer, number]),
        ("take", pointer, [pointer, number, number, number, pointer]),
        ("give_back", None, [pointer]),
    ):
        function = getattr(library, f"scanner_{name}")
        function.restype, function.argtypes = result, arguments
    return library


def is_compiled() -> bool:
    """Return whether this installation has the compiled scanner."""
    return _library() is not None


class _Scanner:
    """The compiled scanner, and the text that it has before it.

    Raises an `UnusualError` where the text is not what it should be.
    """

    def __init__(self, pieces: Iterable[bytes]) -> None:
        library = _library()
        if library is None:
            raise UnusualError("there is no compiled scanner")
        self._library = library
        self._self = library.scanner_new(secrets.randbits(64))
        if not self._self:
            raise MemoryError
        self._pieces = iter(pieces)
        self._decoder = codecs.getincrementaldecoder("utf-8")()
        self._text = np.zeros(BLOCK_BYTES + _PADDING, dtype=np.uint8)
        self._start = self._end = 0
        self._odd = np.empty((_MOST_ODD, 2), dtype=np.int64)
        self.size = 0

    def __del__(self) -> None:
        if getattr(self, "_self", None):
            self._library.scanner_free(self._self)

    def next_byte(self) -> bytes:
        """Return the next byte that is no space, without taking it; b"" at the end of the text."""
        while True:
            at = self._library.scanner_skip(self._address, self._start)
            self._start = min(at, self._end)
            if at < self._end:
                return self._text[at : at + 1].tobytes()
            if not self._read_more():
                return b""

    def take(self, *wanted: bytes) -> bytes:
        """Take the next byte that is no space, which has to be one of these."""
        byte = self.next_byte()
        if byte not in wanted:
            raise UnusualError(f"{byte!r} instead of one of {wanted}")
        self._start += 1
        return byte

    def take_value(self) -> bytes:
        """Take the next value, as text."""
        self.next_byte()
        while True:
            end = self._library.scanner_value(self._self, self._address, self._start, self._end)
            if end >= 0:
                self._check_containers()
                value = self._text[self._start : end].tobytes()
                self._start = end
                return value
            if end == _NO_JSON or not self._read_more():
                raise UnusualError("a value that is no JSON")

    def take_events(self) -> Iterator[list[bytes]]:
        """Take the items of a list and its end; yield the texts of odd events, block by block."""
        count, status = ctypes.c_int64(), ctypes.c_int32()
        while True:
            end = self._library.scanner_scan(
                self._self, self._address, self._start, self._end,
                self._odd.ctypes.data, _MOST_ODD, ctypes.byref(count), ctypes.byref(status),
            )  # fmt: skip
            self._check_containers()  # before what is odd becomes objects of Python
            places = self._odd[: count.value].tolist()
            yield [self._text[first:after].tobytes() for first, after in places]
            self._start = end
            if status.value == _END:
                return
            if status.value == _NO_MEMORY:
                raise MemoryError
            if status.value == _BAD or (status.value == _MORE and not self._read_more()):
                raise UnusualError("events that are no JSON, or too many keys of args")

    def total(self, what: int) -> int:
        """Return a total of the scan."""
        return int(self._library.scanner_total(self._self, what))

    def array(self, group: int, number: int, kind: int, dtype: Any) -> NDArray[Any]:
        """Take an array from the scanner, without a copy."""
        length = ctypes.c_int64()
        address = self._library.scanner_take(self._self, group, number, kind, ctypes.byref(length))
        if not address:
            return np.empty(0, dtype=dtype)
        return np.asarray(_Taken(self._library, address, length.value)).view(dtype)

    @property
    def _address(self) -> int:
        return self._text.ctypes.data

    def _check_containers(self) -> None:
        if self.total(_CONTAINERS) > FREE_CONTAINERS + self.size // BYTES_OF_A_CONTAINER:
            raise UnusualError("more lists and objects than any profiler writes")

    def _read_more(self) -> bool:
        """Read a block, or as much again as is left of the last ones; False at the end."""
        left = self._end - self._start
        wanted = max(left, BLOCK_BYTES // 2)
        pieces, length = [], 0
        while length < wanted and (piece := next(self._pieces, None)) is not None:
            if self._decoder.getstate()[0] or not piece.isascii():
                self._decoder.decode(piece)  # raises a UnicodeDecodeError where it is not UTF-8
            pieces.append(piece)
            length += len(piece)
        if not length:
            self._decoder.decode(b"", final=True)
            return False
        self.size += length
        text = self._text
        if left + length + _PADDING > len(text):
            text = np.empty(left + 2 * length + _PADDING, dtype=np.uint8)
        text[:left] = self._text[self._start : self._end]
        at = left
        for part in pieces:
            text[at : at + len(part)] = np.frombuffer(part, dtype=np.uint8)
            at += len(part)
        text[at : at + _PADDING] = 0
        self._text, self._start, self._end = text, 0, at
        return True


class _Taken:
    """Bytes that the scanner has allocated; they are freed with the last array of them."""

    def __init__(self, library: ctypes.CDLL, address: int, length: int) -> None:
        self._library, self._address = library, address
        self.__array_interface__ = {
            "shape": (length,),
            "typestr": "|u1",
            "data": (address, False),
            "version": 3,
        }

    def __del__(self) -> None:
        self._library.scanner_give_back(self._address)


class ScannedSlices:
    """The slices and instants that the scanner keeps.

    ``rows``: their number; ``arrows``: that of launch arrows, by phase.
    """

    def __init__(self, scanner: _Scanner) -> None:
        self._scanner = scanner
        self.rows = scanner.total(_ROWS)
        self.arrows = Counter({phase: scanner.total(ord(phase)) for phase in _ARROWS})

    def instants(self) -> list[int]:
        """Return the rows that are instants."""
        rows: list[int] = self._scanner.array(_OF_ALL_ROWS, _INSTANTS, 0, np.int32).tolist()
        return rows

    def events(self, category: Callable[[Any], str], id_text: Callable[[Any], str]) -> Events:
        """Return them as columns; only once, because it frees their parts."""
        array = self._scanner.array
        return Events(
            ts=array(_OF_ALL_ROWS, _TS, 0, np.int64),
            dur=array(_OF_ALL_ROWS, _DUR, 0, np.int64),
            name=self._categorical(_NAMES, _TEXT_LIST, str),
            category=self._categorical(_CATEGORIES, _TEXT_LIST, category),
            process=self._categorical(_PROCESSES, _ID_LIST, id_text),
            thread=self._categorical(_THREADS, _ID_LIST, id_text),
            args=self._args(),
        )

    def _categorical(
        self, dictionary: int, decoder: Any, text: Callable[[Any], str]
    ) -> pd.Categorical:
        codes = self._scanner.array(_OF_ALL_ROWS, _CODES + dictionary, 0, np.int32)
        return from_codes(codes, list(map(text, self._texts(dictionary, decoder))))

    def _texts(self, dictionary: int, decoder: Any) -> list[Any]:
        """Return the values in a dictionary of the scanner, each of which has a comma behind it."""
        texts = self._scanner.array(_TEXTS, dictionary, 0, np.uint8)[:-1].tobytes()
        values: list[Any] = decoder.decode(b"[%b]" % texts)
        return values

    def _args(self) -> dict[str, pd.Series]:
        others = self._texts(_OTHER_VALUES, _ANY_LIST)
        values = np.empty(len(others), dtype=object)
        values[:] = others
        numbers = np.array([type(value) in (int, float) for value in others], dtype=bool)
        keys = self._texts(_ARG_KEYS, _TEXT_LIST)
        columns = [self._arg(number, values, numbers) for number in range(len(keys))]
        named = zip(keys, _sharing(columns), strict=True)
        return {key: column for key, column in named if len(column)}

    def _arg(self, key: int, others: NDArray[np.object_], numbers: Mask) -> pd.Series:
        """Return the column of a key as `typed` makes it."""
        array = self._scanner.array
        rows = [array(_ARG_ROWS, key, kind, np.int32) for kind in range(len(_KIND_TYPES))]
        whole, real, codes = (
            array(_ARG_VALUES, key, kind, dtype) for kind, dtype in enumerate(_KIND_TYPES)
        )
        if not len(real) and not len(codes):
            return _series(whole, rows[_WHOLE])
        if not len(whole) and not len(codes):
            return _series(real, rows[_FLOAT])
        if not len(whole) and not len(real) and not numbers[codes].any():
            return _series(others[codes], rows[_OTHER])
        joined = np.concatenate(rows)
        order = np.argsort(joined, kind="stable")
        values = [*whole.tolist(), *real.tolist(), *others[codes].tolist()]
        return typed([values[at] for at in order.tolist()], joined[order].astype(np.int64))


def _sharing(columns: Iterable[pd.Series]) -> Iterator[pd.Series]:
    """Yield the columns; those with the same rows share an index."""
    known: dict[tuple[int, int, int], pd.Index] = {}
    for column in columns:
        rows = column.index.to_numpy()
        ends = (len(rows), int(rows[0]), int(rows[-1])) if len(rows) else (0, 0, 0)
        shared = known.setdefault(ends, column.index)
        yield column.set_axis(shared) if np.array_equal(shared, rows) else column


def _series(values: NDArray[Any], rows: Codes) -> pd.Series:
    return pd.Series(values, index=pd.Index(rows.astype(np.int64)), dtype=values.dtype)


def pieces_of(text: bytes) -> Iterator[bytes]:
    """Yield a text that is in memory block by block."""
    for start in range(0, len(text), BLOCK_BYTES):
        yield text[start : start + BLOCK_BYTES]


@dataclass
class ScannedFile(TraceFile):
    """A trace whose batches have the odd events only.

    Once all batches were taken, the header is complete and ``slices`` are known.
    """

    slices: ScannedSlices | None = None


def scanned_file(pieces: Iterable[bytes]) -> ScannedFile:
    """Return the trace in a text that comes in pieces.

    Taking its batches raises an `UnusualError`, a `UnicodeDecodeError` or a `DecodeError` of
    msgspec for what only the complete reader can read.
    """
    file = ScannedFile({})
    file.batches = _batches(_Scanner(pieces), file)
    return file


def _batches(scanner: _Scanner, file: ScannedFile) -> Iterator[list[Event]]:
    if scanner.take(b"{", b"[") == b"[":
        yield from _events(scanner, file)
    else:
        yield from _members(scanner, file)
    if scanner.next_byte():
        raise UnusualError("text behind the trace")
    file.slices = ScannedSlices(scanner)


def _members(scanner: _Scanner, file: ScannedFile) -> Iterator[list[Event]]:
    """Yield the odd events of an object, and keep its other members as the header."""
    keys: set[str] = set()
    while not keys or scanner.take(b",", b"}") == b",":
        key = msgspec.json.decode(scanner.take_value(), type=str)
        scanner.take(b":")
        if key in keys:
            raise UnusualError(f"{key!r} twice")
        keys.add(key)
        if key == "traceEvents":
            scanner.take(b"[")
            yield from _events(scanner, file)
        else:
            file.header[key] = any_value(msgspec.Raw(scanner.take_value()))
    if "traceEvents" not in keys:
        raise UnusualError("no events")


def _events(scanner: _Scanner, file: ScannedFile) -> Iterator[list[Event]]:
    for odd in scanner.take_events():
        events = decoded_events(b"[%b]" % b",".join(odd), file) if odd else []
        if any(event.sf is not None or event.stack is not None for event in events):
            raise UnusualError("stacks")
        yield events
