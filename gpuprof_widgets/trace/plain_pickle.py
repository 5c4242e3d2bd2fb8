"""Pickles of plain data, read by an unpickler that refuses every name, so that no code can run.

Without names, `pickle` can still be made to crash (tuples nested 100,000 deep as a key) or to take
gigabytes for a few bytes (a memo of 2**31 entries). So `pickletools` lists the opcodes first: only
those that torch writes into a memory snapshot are read, from protocol 2 on.
"""

from __future__ import annotations

import io
import pickle
import pickletools
from pathlib import Path
from typing import NoReturn

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
