"""Pickles of plain data, read without `pickle`, so that a file can neither import nor call code.

`pickle.loads` runs code that a file names, and even an unpickler that refuses every name can hang
or crash (tuples nested a million deep as a key, a memo of 2**31 entries). This reader knows only
numbers, text, lists, tuples, and dicts with text keys, which is all that torch writes into a memory
snapshot. Opcodes: ``Lib/pickletools.py``, protocols 0 to 5.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

from gpuprof_widgets.exceptions import TraceError

PROTOCOLS = (0, 1, 2, 3, 4, 5)
_FIRST_NUMBERED = 2
"""From this protocol on, a pickle begins with its protocol number."""
_BEGINS_OLD = re.compile(
    rb"\([dl]p0\n|[}\]]q\0|\(S'|\(*[ci][\w.]+\n[\w.]+\n(?:p\d+\n|q.|[(})t0Rob.])", re.DOTALL
)
"""Start of a dict or list as Python writes it in text or bytes, or of a call."""

_SHORT_GETS = re.compile(rb"(?:h.)+", re.DOTALL)
_LONG_GETS = re.compile(rb"(?:j.{4})+", re.DOTALL)
_SHORT_GET, _LONG_GET = ord("h"), ord("j")
_LONG_GET_LAYOUT = np.dtype([("opcode", "u1"), ("index", "<u4")])
_BYTES_OF_A_CONTAINER = 8
"""Bytes per list, dict or tuple, at least on average; a snapshot's entry has 50 with its keys."""
_FREE_CONTAINERS = 10_000
_MOST_MARKS = 1000
"""Levels of nested lists and dicts; a snapshot has 6."""
_LONGEST_NUMBER = 64
"""Bytes of an integer; no address or size has more than 8."""
_MOST_DIGITS = 160
"""Digits of such an integer as text."""

_STOP = ord(".")

_OBJECTS = {
    "R": "calls a function",
    "b": "sets an object's state",
    "o": "makes an object",
    "\x81": "makes an object",
    "\x92": "makes an object",
    "P": "asks for an object from elsewhere",
    "Q": "asks for an object from elsewhere",
    "\x82": "asks for a registered object",
    "\x83": "asks for a registered object",
    "\x84": "asks for a registered object",
}


def is_pickle(data: bytes) -> bool:
    """Whether these bytes start as a pickle of any protocol."""
    if data[:1] != b"\x80":
        return _BEGINS_OLD.match(data) is not None
    return data[1:2] != b"" and data[1] in PROTOCOLS[_FIRST_NUMBERED:]


def plain_data(data: bytes, path: Path) -> Any:
    """Return the pickled object; raise `TraceError` if it is no plain data, or damaged."""
    machine = _Machine(data, path)
    try:
        return machine.run()
    except (IndexError, struct.error) as error:
        raise machine.error(
            f"the pickle ends at byte {len(data):,}, before its end mark, or takes what is not "
            "there: the file was cut off or damaged. Copy it again, or dump the snapshot again"
        ) from error
    except UnicodeDecodeError as error:
        raise machine.error(
            f"what should be text before byte {machine.at:,} is none; copy the file again"
        ) from error


class _Machine:
    """The pickle machine: a stack, marks in it, and a memo of objects for later references."""

    def __init__(self, data: bytes, path: Path) -> None:
        self.data = data
        self.path = path
        self.at = 0
        self.stack: list[Any] = []
        self.marks: list[int] = []
        self.memo: list[Any] = []
        self.containers_left = _FREE_CONTAINERS + len(data) // _BYTES_OF_A_CONTAINER

    def run(self) -> Any:
        """Return the object on the stack at the end mark."""
        handlers, data = self._handlers(), self.data
        while True:
            opcode = data[self.at]
            self.at += 1
            if opcode == _STOP:
                return self.stack.pop()
            handler = handlers.get(opcode)
            if handler is None:
                raise self._refused(opcode)
            handler()

    def error(self, problem: str) -> TraceError:
        return TraceError(f"{self.path}: {problem}.")

    def _handlers(self) -> dict[int, Callable[[], None]]:
        push = self.stack.append
        constants = {"N": None, "\x88": True, "\x89": False}
        numbers = {"K": ("<B", 1), "M": ("<H", 2), "J": ("<i", 4), "G": (">d", 8)}
        texts = {"\x8c": "<B", "X": "<I", "\x8d": "<Q"}
        named: dict[str, Callable[[], None]] = {
            "\x80": lambda: self._skip(1),
            "\x95": lambda: self._skip(8),
            "(": self._mark,
            "}": lambda: self._push_container({}),
            "]": lambda: self._push_container([]),
            ")": lambda: push(()),
            "a": self._append,
            "e": self._appends,
            "s": self._set_item,
            "u": self._set_items,
            "t": lambda: self._push_container(tuple(self._above_mark())),
            "\x85": lambda: self._tuple(1),
            "\x86": lambda: self._tuple(2),
            "\x87": lambda: self._tuple(3),
            "\x8a": lambda: self._long("<B"),
            "\x8b": lambda: self._long("<i"),
            "h": self._short_gets,
            "j": self._long_gets,
            "q": lambda: self._put(self._unpacked("<B")),
            "r": lambda: self._put(self._unpacked("<I")),
            "\x94": lambda: self.memo.append(self.stack[-1]),
            # Lines of text, in protocols 0 and 1
            "I": lambda: push(self._written(_integer)),
            "L": lambda: push(self._written(_integer)),
            "F": lambda: push(self._written(float)),
            "V": lambda: push(str(self._line(), "raw-unicode-escape")),
            "l": lambda: self._push_container(self._above_mark()),
            "d": self._dict,
            "g": lambda: push(self.memo[self._written(_index)]),
            "p": lambda: self._put(self._written(_index)),
        }
        named |= {name: _pusher(push, value) for name, value in constants.items()}
        named |= {name: self._number(*layout) for name, layout in numbers.items()}
        named |= {name: self._text(length) for name, length in texts.items()}
        return {ord(name): handler for name, handler in named.items()}

    def _unpacked(self, layout: str) -> Any:
        (value,) = struct.unpack_from(layout, self.data, self.at)
        self.at += struct.calcsize(layout)
        return value

    def _push_container(self, container: Any) -> None:
        # The number is limited, because an empty dict is 1 byte in the file and 64 in memory.
        self.containers_left -= 1
        if self.containers_left < 0:
            raise self._misplaced("has more lists and dicts than its size allows")
        self.stack.append(container)

    def _mark(self) -> None:
        if len(self.marks) == _MOST_MARKS:
            raise self._misplaced(f"begins {_MOST_MARKS:,} lists within one another")
        self.marks.append(len(self.stack))

    def _skip(self, length: int) -> None:
        self.at += length

    def _number(self, layout: str, length: int) -> Callable[[], None]:
        push, data, unpack = self.stack.append, self.data, struct.Struct(layout).unpack_from

        def number() -> None:
            push(unpack(data, self.at)[0])
            self.at += length

        return number

    def _text(self, length_layout: str) -> Callable[[], None]:
        def text() -> None:
            self.stack.append(str(self._taken(self._unpacked(length_layout)), "utf-8", "strict"))

        return text

    def _long(self, length_layout: str) -> None:
        length = self._unpacked(length_layout)
        if not 0 <= length <= _LONGEST_NUMBER:
            raise self.error(f"an integer of {length:,} bytes before byte {self.at:,} is none")
        self.stack.append(int.from_bytes(self._taken(length), "little", signed=True))

    def _line(self) -> bytes:
        """Read up to the next line end."""
        start, end = self.at, self.data.find(b"\n", self.at)
        if end < 0:
            raise IndexError(start)
        self.at = end + 1
        return self.data[start:end]

    def _written(self, kind: Callable[[bytes], Any]) -> Any:
        """Read a number from a line of text."""
        line = self._line()
        with suppress(ValueError):
            if len(line) <= _MOST_DIGITS:
                return kind(line)
        raise self.error(f"{line[:40]!r} before byte {self.at:,} is no number; copy the file again")

    def _taken(self, length: int) -> bytes:
        start, self.at = self.at, self.at + length
        if self.at > len(self.data):
            raise IndexError(length)
        return self.data[start : self.at]

    def _above_mark(self) -> list[Any]:
        mark = self.marks.pop()
        items = self.stack[mark:]
        del self.stack[mark:]
        return items

    def _dict(self) -> None:
        items = self._above_mark()
        self._push_container({})
        self._update(items)

    def _tuple(self, length: int) -> None:
        if len(self.stack) < length:
            raise IndexError(length)
        items = tuple(self.stack[-length:])
        del self.stack[-length:]
        self._push_container(items)

    def _append(self) -> None:
        item = self.stack.pop()
        self._extend([item])

    def _appends(self) -> None:
        self._extend(self._above_mark())

    def _extend(self, items: list[Any]) -> None:
        if type(self.stack[-1]) is not list:
            raise self._misplaced("appends to what is no list")
        self.stack[-1].extend(items)

    def _set_item(self) -> None:
        value = self.stack.pop()
        self._update([self.stack.pop(), value])

    def _set_items(self) -> None:
        self._update(self._above_mark())

    def _update(self, items: list[Any]) -> None:
        target, keys = self.stack[-1], items[::2]
        if type(target) is not dict or len(items) % 2:
            raise self._misplaced("sets an item of what is no dict")
        if set(map(type, keys)) - {str}:
            raise self._misplaced("has a key that is not text")
        target.update(zip(keys, items[1::2], strict=True))

    def _put(self, index: int) -> None:
        """Remember the top of the stack; indexes come in order, so that the memo cannot explode."""
        if index > len(self.memo):
            raise self._misplaced(f"numbers an object {index:,} after {len(self.memo):,}")
        self.memo[index : index + 1] = [self.stack[-1]]

    def _short_gets(self) -> None:
        """Push a run of references, such as a stack of frames, at once."""
        data, at = self.data, self.at
        if data[at + 1] != _SHORT_GET:
            self.stack.append(self.memo[data[at]])
            self.at = at + 1
            return
        end = self._end_of_run(_SHORT_GETS)
        self.stack.extend(map(self.memo.__getitem__, self.data[self.at : end : 2]))
        self.at = end

    def _long_gets(self) -> None:
        data, at = self.data, self.at
        if data[at + 4] != _LONG_GET:
            self.stack.append(self.memo[int.from_bytes(data[at : at + 4], "little")])
            self.at = at + 4
            return
        end = self._end_of_run(_LONG_GETS)
        run = np.frombuffer(self.data, _LONG_GET_LAYOUT, (end - self.at + 1) // 5, self.at - 1)
        self.stack.extend(map(self.memo.__getitem__, run["index"].tolist()))
        self.at = end

    def _end_of_run(self, pattern: re.Pattern[bytes]) -> int:
        run = pattern.match(self.data, self.at - 1)
        if run is None:
            raise IndexError(self.at)
        return run.end()

    def _misplaced(self, problem: str) -> TraceError:
        return self.error(
            f"the pickle {problem} at byte {self.at:,}: the file is damaged, or was made to do "
            "harm. Dump the snapshot again"
        )

    def _refused(self, opcode: int) -> TraceError:
        """Return the error for an opcode that is refused, with what the file asked for."""
        name = chr(opcode)
        request = _OBJECTS.get(name, f"has the opcode 0x{opcode:02x}, which plain data has not")
        if name in "ci":
            lines = self.data[self.at : self.at + 200].split(b"\n")[:2]
            request = f"asks for {'.'.join(repr(line)[2:-1] for line in lines)}"
        elif name == "\x93":
            asked = [str(part)[:100] for part in self.stack[-2:] if type(part) is str]
            request = f"asks for {'.'.join(asked)}"
        return self.error(
            f"the pickle {request} at byte {self.at - 1:,}. A memory snapshot "
            "(torch.cuda.memory._dump_snapshot) holds numbers, text, lists and dicts alone; "
            "other pickles can run any code and are not opened. Nothing of this one was run"
        )


def _pusher(push: Callable[[Any], None], value: Any) -> Callable[[], None]:
    return lambda: push(value)


def _integer(line: bytes) -> int | bool:
    """Return an integer, which may end in L, or a bool, which is written with two digits."""
    return line == b"01" if line in (b"00", b"01") else int(line.removesuffix(b"L"))


def _index(line: bytes) -> int:
    """Return an index of the memo."""
    index = int(line)
    if index < 0:
        raise ValueError(index)
    return index
