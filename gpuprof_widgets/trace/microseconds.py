"""From the text of microseconds to integer nanoseconds, without a float in between.

A float64 resolves 0.25 µs at today's epoch microseconds: the digits have to be taken as digits.
"""

from __future__ import annotations

from collections.abc import Sequence
from decimal import ROUND_HALF_EVEN, Context

import numpy as np
from numpy.typing import NDArray

_LIMIT = 2**62
_MOST_DIGITS = 16
_POINT, _ZERO = ord("."), ord("0")


def nanoseconds(texts: Sequence[bytes]) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """Nanoseconds of each number of microseconds, and which texts are such numbers.

    Exact up to 3 decimals, which is all that Kineto writes; beyond, rounded half to even.
    """
    lengths = np.fromiter(map(len, texts), dtype=np.int64, count=len(texts))
    joined = np.frombuffer(b"".join(texts), dtype=np.uint8)
    starts = np.cumsum(lengths) - lengths
    values = np.zeros(len(texts), dtype=np.int64)
    valid = np.zeros(len(texts), dtype=bool)
    for length in np.unique(lengths):
        rows = np.flatnonzero(lengths == length)
        characters = joined[np.arange(length)[:, None] + starts[rows]]
        values[rows], valid[rows] = _same_length(characters)
        longer = rows[~valid[rows]]
        if len(longer) and length > 5:
            values[longer], valid[longer] = _rounded(characters[:, ~valid[rows]])
    for row in np.flatnonzero(~valid).tolist():  # signs, exponents, more digits, quoted numbers
        exact = _one(texts[row])
        if exact is not None:
            values[row], valid[row] = exact, True
    return values, valid


def _same_length(characters: NDArray[np.uint8]) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """The simple ones among texts of one length: digits, and at most one point and 3 decimals.

    ``characters[place]`` holds the characters of all texts at that place.
    """
    length, rows = characters.shape
    values = np.zeros(rows, dtype=np.int64)
    valid = np.zeros(rows, dtype=bool)
    digits = characters - _ZERO  # wraps around below "0", so that anything else is above 9
    for decimals in (3, 2, 1, 0):
        place = length - 1 - decimals if decimals else length
        if not 0 < place <= _MOST_DIGITS or valid.all():
            continue
        has_point = characters[place] == _POINT if decimals else ~valid
        if not has_point.any():
            continue
        value, fits = _number(digits, [p for p in range(length) if p != place])
        scale = 10 ** (3 - decimals)
        fits &= has_point & (value < _LIMIT // scale)
        values[fits] = value[fits].astype(np.int64) * scale
        valid |= fits
    return values, valid


def _rounded(characters: NDArray[np.uint8]) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """Those among texts of one length that are digits, one point, and more than 3 decimals."""
    length, rows = characters.shape
    values = np.zeros(rows, dtype=np.int64)
    valid = np.zeros(rows, dtype=bool)
    digits = characters - _ZERO
    points = characters == _POINT
    place = np.where(points.sum(axis=0) == 1, points.argmax(axis=0), 0)
    for point in np.unique(place).tolist():
        if not 0 < point < min(length - 4, _MOST_DIGITS):
            continue
        columns = np.flatnonzero(place == point)
        of = digits[:, columns]
        value, fits = _number(of, [p for p in range(point + 4) if p != point])
        fits &= (of[point + 4 :] <= 9).all(axis=0) & (value < _LIMIT)
        first, more = of[point + 4], (of[point + 5 :] > 0).any(axis=0)
        up = (first > 5) | ((first == 5) & (more | (value % np.uint64(2) == 1)))
        values[columns] = np.where(fits, value + up, 0).astype(np.int64)
        valid[columns] = fits
    return values, valid


def _number(
    digits: NDArray[np.uint8], places: Sequence[int]
) -> tuple[NDArray[np.uint64], NDArray[np.bool_]]:
    """The number that the digits at these places make, and where they all are digits."""
    value = np.zeros(digits.shape[1], dtype=np.uint64)
    highest = np.zeros(digits.shape[1], dtype=np.uint8)
    for place in places:
        value *= np.uint64(10)
        value += digits[place]
        np.maximum(highest, digits[place], out=highest)
    return value, highest <= 9


def _one(text: bytes) -> int | None:
    if not text.isascii():
        return None
    # Of our own: precise enough for all digits, and what is no number is NaN, not an error.
    exactly = Context(prec=len(text) + 3, rounding=ROUND_HALF_EVEN, traps=[])
    number = exactly.create_decimal(text.decode("ascii").strip().strip('"'))
    if not number.is_finite() or number.adjusted() > _MOST_DIGITS:
        return None
    exact = exactly.multiply(number, 1000)
    return int(exactly.to_integral_value(exact)) if exact.copy_abs() < _LIMIT else None
