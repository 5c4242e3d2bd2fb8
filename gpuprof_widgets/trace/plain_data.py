"""Pickles and marshalled statistics of plain data, read so that no code can run.

A pickle is read by an unpickler that refuses every name. Without names, `pickle` can still be made
to crash (tuples nested 100,000 deep as a key) or to take gigabytes for a few bytes (a memo of 2**31
entries). So `pickletools` lists the opcodes first: only those that torch writes into a memory
snapshot are read, from protocol 2 on.

cProfile's statistics are read without `marshal`, which is documented as unsafe on erroneous or
hostile data: it builds code objects and trusts every length. This reader knows numbers, text,
tuples and dicts only, accepts no length beyond the end of the file, and requires the keys of dicts
to be functions (file, line, name). Format: ``Python/marshal.c``, versions 0 to 5.
"""

from __future__ import annotations

import io
import pickle
import pickletools
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

from gpuprof_widgets.exceptions import TraceError

PROTOCOLS = (2, 3, 4, 5)

_VALUES = {
    *("NONE", "NEWTRUE", "NEWFALSE", "BININT", "BININT1", "BININT2", "LONG1", "BINFLOAT"),
    *("SHORT_BINUNICODE", "BINUNICODE", "BINUNICODE8"),
}
_TUPLES = {"TUPLE1": 1, "TUPLE2": 2, "TUPLE3": 3}
"""Opcodes of tuples, and how many objects they take from the stack."""
_CONTAINERS = {"EMPTY_DICT", "EMPTY_LIST", *_TUPLES}
_PUTS = {"MEMOIZE", "BINPUT", "LONG_BINPUT"}
_FREE_TUPLES = 500
"""Tuples that may hold others: Python crashes when it takes the hash of 100,000 in one another."""
_OTHERS = {
    *("PROTO", "FRAME", "STOP", "MARK", "EMPTY_TUPLE", "TUPLE", "BINGET", "LONG_BINGET"),
    *("APPEND", "APPENDS", "SETITEM", "SETITEMS"),
}
_PLAIN = _VALUES | _CONTAINERS | _PUTS | _OTHERS
_NAMES = {"GLOBAL", "STACK_GLOBAL", "INST"}
"""Opcodes that ask for a class or function, at which the unpickler stops."""

_BYTES_OF_A_CONTAINER = 8
"""Bytes per list, dict or tuple, at least on average; a snapshot's entry has 50 with its keys."""
_FREE_CONTAINERS = 10_000

_BROKEN = (
    *(pickle.UnpicklingError, EOFError, OverflowError),
    *(AttributeError, LookupError, TypeError, ValueError),
)
"""Errors that `pickle` and `pickletools` raise on damaged data."""


class _NameError(Exception):
    """The pickle asks for a class or function."""


class _PlainUnpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str, /) -> NoReturn:
        raise _NameError(f"{module}.{name}"[:200])


def is_pickle(data: bytes) -> bool:
    """Whether these bytes start as a pickle of protocol 2 to 5."""
    return data[:1] == b"\x80" and data[1:2] != b"" and data[1] in PROTOCOLS


def plain_data(data: bytes, path: Path) -> object:
    """Return the pickled object; raise `TraceError` if it is no plain data, or damaged."""
    try:
        _check(data, path)
        return _PlainUnpickler(io.BytesIO(data)).load()
    except TraceError:  # a ValueError as well
        raise
    except _NameError as error:
        raise _refused(path, f"asks for {error}") from None
    except _BROKEN as error:
        raise TraceError(
            f"{path}: the pickle of {len(data):,} bytes was cut off or damaged ({error}). Copy it "
            "again, or dump the snapshot again."
        ) from error


def _check(data: bytes, path: Path) -> None:
    """Raise a `TraceError` for opcodes that plain data does not have, or that would do harm."""
    # An empty dict is 1 byte in the file and 64 in memory.
    containers_left = _FREE_CONTAINERS + len(data) // _BYTES_OF_A_CONTAINER
    tuples_left = _FREE_TUPLES
    values = 0  # numbers and texts in a row before the opcode
    for opcode, argument, position in pickletools.genops(data):
        name, at = opcode.name, position or 0
        if name in _NAMES:
            return
        if name not in _PLAIN:
            raise _refused(path, f"has the opcode {name} at byte {at:,}")
        tuples_left -= name == "TUPLE" or values < _TUPLES.get(name, 0)
        if tuples_left < 0:
            raise _harmful(path, f"has more than {_FREE_TUPLES} tuples that may hold others", at)
        if name == "LONG_BINPUT" and (argument or 0) > at:
            raise _harmful(path, f"numbers an object {argument:,}", at)
        containers_left -= name in _CONTAINERS
        if containers_left < 0:
            raise _harmful(path, "has more lists and dicts than its size allows", at)
        if name not in _PUTS:
            values = values + 1 if name in _VALUES else 0


def _refused(path: Path, request: str) -> TraceError:
    return TraceError(
        f"{path}: the pickle {request}. A memory snapshot (torch.cuda.memory._dump_snapshot) holds "
        "numbers, text, lists and dicts alone; other pickles can run any code and are not opened. "
        "Nothing of this one was run."
    )


def _harmful(path: Path, problem: str, at: int) -> TraceError:
    return TraceError(
        f"{path}: the pickle {problem} at byte {at:,}: the file is damaged, or was made to do "
        "harm. Dump the snapshot again."
    )


DEEPEST = 8
"""Levels of nested objects; cProfile's statistics have 5."""

_REFERRED_TO = 0x80
_END_OF_DICT = object()
_UNFINISHED = object()
_FUNCTION = (str, int, str)
_LONGEST_TUPLE = 5
"""Items: a function's entry has 5, a caller 4, a function's name 3."""
_LONGEST_NUMBER = 64
"""Digits of an integer, 15 bits each."""


def plain_statistics(data: bytes, path: Path) -> Any:
    """Return the marshalled object; raise `TraceError` if it is no statistics, or damaged."""
    reader = _Reader(data, path)
    try:
        return reader.value(0)
    except TraceError:  # which is a ValueError
        raise
    except (struct.error, IndexError) as error:
        raise reader.error(
            f"ends at byte {len(data):,} within what began as a file of cProfile; it was cut off "
            "or damaged"
        ) from error
    except (UnicodeDecodeError, OverflowError, ValueError) as error:
        raise reader.error(
            f"text or a number at byte {reader.at:,} cannot be read ({error})"
        ) from error


class _Reader:
    """Reads object after object; ``referred`` holds those to which later ones may refer."""

    def __init__(self, data: bytes, path: Path) -> None:
        self.data = data
        self.path = path
        self.at = 0
        self.referred: list[Any] = []
        self.kinds: dict[int, Callable[[int], Any]] = {
            ord("N"): lambda _: None,
            ord("i"): lambda _: self.unpacked("<i"),
            ord("l"): lambda _: self._long(),
            ord("g"): lambda _: self.unpacked("<d"),
            ord("f"): lambda _: float(self._taken(self.unpacked("<B"))),
            ord("("): lambda depth: self._tuple(self.unpacked("<i"), depth),
            ord(")"): lambda depth: self._tuple(self.unpacked("<B"), depth),
            ord("{"): self._dict,
            **{ord(kind): lambda _: self._text("<i", "utf-8") for kind in "ut"},
            **{ord(kind): lambda _: self._text("<i", "latin-1") for kind in "aA"},
            **{ord(kind): lambda _: self._text("<B", "latin-1") for kind in "zZ"},
        }

    def error(self, reason: str) -> TraceError:
        return TraceError(
            f"{self.path}: starts as a file of cProfile but cannot be read: {reason}. Copy the "
            "file again, or write it again with cProfile's dump_stats or Profile.save_pstats."
        )

    def value(self, depth: int) -> Any:
        """Return the next object, or the mark that ends a dict."""
        if depth > DEEPEST:
            raise self.error(f"objects in one another, {depth} deep, at byte {self.at:,}")
        byte = self.data[self.at]
        self.at += 1
        kind = byte & ~_REFERRED_TO
        if kind == ord("r"):
            number = self.unpacked("<i")
            if number < 0 or self.referred[number] is _UNFINISHED:
                raise self.error(f"an object that holds itself at byte {self.at:,}")
            return self.referred[number]
        if kind == ord("0"):
            return _END_OF_DICT
        place = len(self.referred)
        if byte & _REFERRED_TO:
            self.referred.append(_UNFINISHED)
        if kind not in self.kinds:
            raise self.error(
                f"byte {self.at - 1:,} begins an object of type {chr(kind)!r}, where statistics "
                "have numbers, text, tuples and dicts"
            )
        value = self.kinds[kind](depth)
        if byte & _REFERRED_TO:
            self.referred[place] = value
        return value

    def unpacked(self, layout: str) -> Any:
        (value,) = struct.unpack_from(layout, self.data, self.at)
        self.at += struct.calcsize(layout)
        return value

    def _taken(self, length: int) -> bytes:
        start, self.at = self.at, self.at + length
        if length < 0 or self.at > len(self.data):
            raise IndexError(length)
        return self.data[start : self.at]

    def _text(self, length_layout: str, encoding: str) -> str:
        return self._taken(self.unpacked(length_layout)).decode(encoding, "surrogatepass")

    def _long(self) -> int:
        """Read digits of 15 bits, lowest first; their count has the sign of the number."""
        count = self.unpacked("<i")
        if abs(count) > _LONGEST_NUMBER:
            raise self.error(f"a number of {abs(count):,} digits at byte {self.at:,}")
        digits = [self.unpacked("<H") for _ in range(abs(count))]
        size: int = sum(digit << 15 * place for place, digit in enumerate(digits))
        return -size if count < 0 else size

    def _tuple(self, length: int, depth: int) -> tuple[Any, ...]:
        if not 0 <= length <= len(self.data) - self.at:
            raise IndexError(length)
        if length > _LONGEST_TUPLE:
            raise self.error(f"a tuple of {length:,} items at byte {self.at:,}")
        items = tuple(self._inner(depth) for _ in range(length))
        if any(type(item) in (tuple, dict) for item in items[:-1]):
            raise self.error(f"a tuple or dict before byte {self.at:,} where a number belongs")
        return items

    def _inner(self, depth: int) -> Any:
        value = self.value(depth + 1)
        if value is _END_OF_DICT:
            raise self.error(f"the end of a dict that did not begin, at byte {self.at - 1:,}")
        return value

    def _dict(self, depth: int) -> dict[Any, Any]:
        entries: dict[Any, Any] = {}
        while (key := self.value(depth + 1)) is not _END_OF_DICT:
            if type(key) is not tuple or tuple(map(type, key)) != _FUNCTION:
                raise self.error(
                    f"a key before byte {self.at:,} is no function (file, line and name)"
                )
            entries[key] = self._inner(depth)
        return entries
