"""JSON that takes many times its bytes in memory, found before it is decoded.

``{},`` is 3 bytes in a file and 100 in memory; a number among events is an object of its own.
"""

from __future__ import annotations

import re

import msgspec

_FREE_CONTAINERS = 100_000
_BYTES_OF_A_CONTAINER = 25
"""So many bytes of the file each list or object beside the events takes at least on average, and
some are free."""
_FREE_IN_AN_EVENT = 10_000
_BYTES_IN_AN_EVENT = 6
"""The same of the args of one event: shapes of scalars are ``[]``."""

_STRING = re.compile(rb'"(?:[^"\\]|\\.)*+"', re.DOTALL)
_BARE_VALUE = re.compile(rb'"(?:[^"\\]|\\.)*+"|[-+.\w]++', re.DOTALL)
_BARE_VALUES = re.compile(rb'\[(?:\s*+(?:[-+.\w]++|"(?:[^"\\]|\\.)*+")\s*+[,\]])++', re.DOTALL)
_KEYS = msgspec.json.Decoder(dict[str, msgspec.Raw])


def most_containers(size: int) -> int:
    """How many lists and objects may stand beside the events of a file of so many bytes."""
    return _FREE_CONTAINERS + size // _BYTES_OF_A_CONTAINER


def most_in_events(size: int) -> int:
    """How many lists and objects events of so many bytes may have."""
    return _FREE_IN_AN_EVENT + size // _BYTES_IN_AN_EVENT


def containers(text: bytes | msgspec.Raw, most: int) -> int:
    """How many lists and objects JSON has; where brackets in text are too few to matter, these
    as well.
    """
    plain = bytes(text)
    if plain.count(b"{") + plain.count(b"[") > most:
        plain = _STRING.sub(b"", plain)
    return plain.count(b"{") + plain.count(b"[")


def without_vast_args(event: bytes) -> bytes | None:
    """The event without its args, if these are more lists and objects than any profiler writes."""
    most = most_in_events(len(event))
    if containers(event, most) <= most:
        return None
    try:
        keys = _KEYS.decode(event)
    except (msgspec.DecodeError, RecursionError):  # to be mended, or left out
        return None
    return None if keys.pop("args", None) is None else msgspec.json.encode(keys)


def without_bare_values(text: bytes) -> tuple[bytes, int]:
    """A list of events without the numbers and texts that it begins with, and their number."""
    values = _BARE_VALUES.match(text)
    if values is None:
        return text, 0
    count = sum(1 for _ in _BARE_VALUE.finditer(text, 0, values.end()))
    rest = text[values.end() :]
    return b"[" + (rest if rest.strip() else b"]"), count
