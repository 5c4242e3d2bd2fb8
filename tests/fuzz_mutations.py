"""Broken variants of good files: of their bytes, as AFL makes them, and of what they hold."""

from __future__ import annotations

import copy
import random
from collections.abc import Callable, Sequence
from typing import Any

TOKENS = (
    *(b"{", b"}", b"[", b"]", b",", b":", b'"', b"\\", b"\0", b"\n", b"\xff", b"\xef\xbb\xbf"),
    *(b"null", b"true", b"NaN", b"-Infinity", b"N/A", b"1e999", b"-1", b"0", b"\\ud800", b"\\"),
    *(b"9223372036854775807", b"-9223372036854775809", b"18446744073709551616", b"1e-9", b"0.1"),
    *(b'"ph": "B"', b'"ph": "E"', b'"ph": "C"', b'"ph": "s"', b'"ph": "f"', b'"ph": "M"'),
    *(b'"ph": "b"', b'"ph": "e"', b'"ph": "N"', b'"ph": "O"', b'"ph": "i"', b'"ph": "X"'),
    *(b'"traceEvents"', b'"ts"', b'"dur"', b'"args"', b'"correlation"', b'"stream"', b'"id"'),
    *(b"\x80\x04", b"\x94", b"(", b"t", b"c", b"R", b"\xfb", b"r\xff\xff\xff\x7f"),
    *(b"PK\x03\x04", b"\x1f\x8b", b"SQLite format 3\0", b"ustar", b"</script>", b"=1+1"),
)
"""What matters somewhere in one of the formats."""

NUMBERS = (
    *(0, 1, -1, 2, 127, 128, 255, 256, 2**31 - 1, 2**31, 2**32 - 1, 2**32, -(2**31) - 1),
    *(2**53 + 1, 2**63 - 1, 2**63, -(2**63), -(2**63) - 1, 2**64 - 1, 2**64, 10**30, -(10**30)),
    *(0.0, -0.5, 0.1, 1e-9, 1e18, 1e19, 1e308, -1e308, float("nan"), float("inf"), float("-inf")),
)
ODD = (
    *NUMBERS,
    *(None, True, False, "", "0", "-1", "1e5", "NaN", "N/A", "a", "\0", "\ud800", "\u202e", "💥"),
    *([], {}, [[]], [None], {"": None}, [1, 2, 3], [[1, 2], [3]], {"name": "x"}, "x" * 70_000),
)
"""Values where others are expected."""

MOST_BYTES = 1 << 20


def broken_bytes(rng: random.Random, data: bytes, others: Sequence[bytes]) -> bytes:
    """A few changes one after another; ``others`` are spliced with."""
    for _ in range(rng.choice((1, 1, 1, 2, 3, 8))):
        data = rng.choice(_CHANGES)(rng, data, others)[:MOST_BYTES]
    return data


def _flip(rng: random.Random, data: bytes, _: Sequence[bytes]) -> bytes:
    changed = bytearray(data)
    for _ in range(rng.choice((1, 1, 4, 32))):
        if changed:
            changed[rng.randrange(len(changed))] ^= 1 << rng.randrange(8)
    return bytes(changed)


def _cut(rng: random.Random, data: bytes, _: Sequence[bytes]) -> bytes:
    return data[: rng.randrange(len(data) + 1)]


def _overwrite(rng: random.Random, data: bytes, _: Sequence[bytes]) -> bytes:
    at = rng.randrange(len(data) + 1)
    new = rng.choice((rng.randbytes(rng.randrange(1, 9)), rng.choice(TOKENS)))
    return data[:at] + new + data[at + len(new) :]


def _insert(rng: random.Random, data: bytes, _: Sequence[bytes]) -> bytes:
    at = rng.randrange(len(data) + 1)
    return data[:at] + rng.choice(TOKENS) * rng.choice((1, 1, 1, 2, 300)) + data[at:]


def _part(rng: random.Random, data: bytes) -> tuple[int, int]:
    start = rng.randrange(len(data) + 1)
    return start, min(start + rng.choice((1, 2, 4, 16, 64, 256, 4_096)), len(data))


def _delete(rng: random.Random, data: bytes, _: Sequence[bytes]) -> bytes:
    start, end = _part(rng, data)
    return data[:start] + data[end:]


def _repeat(rng: random.Random, data: bytes, _: Sequence[bytes]) -> bytes:
    start, end = _part(rng, data)
    return data[:end] + data[start:end] * rng.choice((1, 2, 50)) + data[end:]


def _move(rng: random.Random, data: bytes, _: Sequence[bytes]) -> bytes:
    start, end = _part(rng, data)
    at = rng.randrange(len(data) + 1)
    return data[:at] + data[start:end] + data[at:]


def _splice(rng: random.Random, data: bytes, others: Sequence[bytes]) -> bytes:
    other = rng.choice(others)
    return data[: rng.randrange(len(data) + 1)] + other[rng.randrange(len(other) + 1) :]


def _number(rng: random.Random, data: bytes, _: Sequence[bytes]) -> bytes:
    """Another number where there are digits."""
    digits = [at for at, byte in enumerate(data[:65_536]) if 48 <= byte <= 57]
    if not digits:
        return data
    start = end = rng.choice(digits)
    while end < len(data) and 48 <= data[end] <= 57:
        end += 1
    return data[:start] + str(rng.choice(NUMBERS)).encode() + data[end:]


_CHANGES: tuple[Callable[[random.Random, bytes, Sequence[bytes]], bytes], ...] = (
    *(_flip, _cut, _overwrite, _insert, _delete, _repeat, _move, _splice, _number),
)


def broken_value(rng: random.Random, value: Any) -> Any:
    """A copy of nested lists and dicts in which a few things are odd, missing, double or moved."""
    value = copy.deepcopy(value)
    for _ in range(rng.choice((1, 1, 2, 4, 16))):
        places = list(_places(value))
        if not places:
            return rng.choice(ODD)
        _change(rng, places, *rng.choice(places))
    return value


def _places(value: Any) -> list[tuple[Any, Any]]:
    """Every (list or dict, index or key) below."""
    found: list[tuple[Any, Any]] = []
    waiting = [value]
    while waiting:
        held = waiting.pop()
        keys = range(len(held)) if isinstance(held, list) else held
        for key in keys:
            found.append((held, key))
            if isinstance(held[key], list | dict):
                waiting.append(held[key])
    return found


def _change(rng: random.Random, places: list[tuple[Any, Any]], held: Any, key: Any) -> None:
    what = rng.randrange(6)
    if what <= 1:
        held[key] = copy.deepcopy(rng.choice(ODD))
    elif what == 2:
        other, its_key = rng.choice(places)
        held[key] = copy.deepcopy(other[its_key])
    elif what == 3:
        del held[key]
    elif what == 4 and isinstance(held, list):
        held.insert(rng.randrange(len(held) + 1), copy.deepcopy(held[key]))
    elif isinstance(held[key], int | float) and not isinstance(held[key], bool):
        held[key] = held[key] + rng.choice((-1, 1, 1_000, -1_000)) * rng.choice((1, 10**6, 10**15))
    elif isinstance(held, dict):
        held[rng.choice(("name", "ts", "dur", "ph", "args", "x", ""))] = held.pop(key)
