"""Columns of events in file order, which readers pass to `assemble`, and exact times from text.

A float64 resolves no more than 0.25 µs at today's epoch microseconds, so `nanoseconds` reads the
digits of the text without a float in between.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from decimal import ROUND_HALF_EVEN, Context
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from gpuprof_widgets.trace.arrays import Codes, Ints, Mask
from gpuprof_widgets.trace.schema import FLOW_COLUMNS

_EXACT = 2.0**53
"""Below it, float64 holds every integer."""

_LIMIT = 2**62
_MOST_DIGITS = 16
_POINT, _ZERO = ord("."), ord("0")


@dataclass(frozen=True)
class Names:
    """The file's names of its processes and threads; the keys are ids as text.

    ``process_order`` and ``thread_order``: positions that the file asks for, low numbers first.
    """

    processes: Mapping[str, str] = field(default_factory=dict)
    threads: Mapping[tuple[str, str], str] = field(default_factory=dict)
    process_order: Mapping[str, float] = field(default_factory=dict)
    thread_order: Mapping[tuple[str, str], float] = field(default_factory=dict)


@dataclass(frozen=True)
class Events:
    """Complete events and instants in file order, one row each; ts and dur in ns.

    ``args``: per key a Series whose index is the event's row.
    """

    ts: Ints
    dur: Ints
    name: pd.Categorical
    category: pd.Categorical
    process: pd.Categorical
    thread: pd.Categorical
    args: Mapping[str, pd.Series] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.ts)


def no_rows() -> Ints:
    """Return an array of no numbers."""
    return np.empty(0, dtype=np.int64)


def no_events() -> Events:
    """Return columns without rows."""
    no_text = text_codes([])
    return Events(no_rows(), no_rows(), no_text, no_text, no_text, no_text)


@dataclass(frozen=True)
class EventFlows:
    """Arrows between events: rows of `Events` at both ends, and the kind of each arrow."""

    source: Ints = field(default_factory=no_rows)
    target: Ints = field(default_factory=no_rows)
    kind: Sequence[str] = ()


@dataclass(frozen=True)
class FlowEnd:
    """One end of an arrow, which meets the slice of that thread that starts at ``ts``."""

    id: Any
    process: str
    thread: str
    ts: int


def text_codes(values: Sequence[str]) -> pd.Categorical:
    """Return dictionary-coded text with a sorted dictionary."""
    number = {value: index for index, value in enumerate(dict.fromkeys(values))}
    codes = np.fromiter(map(number.__getitem__, values), dtype=np.int32, count=len(values))
    return from_codes(codes, list(number))


def from_codes(codes: Codes, texts: Sequence[str]) -> pd.Categorical:
    """Turn codes into these texts, which may repeat, into codes into their sorted dictionary."""
    distinct = sorted(set(texts))
    place = {text: index for index, text in enumerate(distinct)}
    renumbered = np.array([place[text] for text in texts], dtype=np.int32)
    categories = pd.Index(distinct, dtype=object)
    return pd.Categorical.from_codes(renumbered[codes], categories=categories)


def joined_texts(columns: Sequence[pd.Categorical]) -> pd.Categorical:
    """Return dictionary-coded columns, one after another, as one."""
    texts: list[str] = []
    codes = []
    for values in columns:
        codes.append(values.codes.astype(np.int32) + len(texts))
        texts += map(str, values.categories)
    return from_codes(np.concatenate(codes).astype(np.int32), texts)


def typed(values: Sequence[Any], index: Ints) -> pd.Series:
    """Return a column of args: int64 or float64 if all values are numbers, else objects."""
    column: Any = None
    if len(values) and type(values[0]) in (int, float):
        column = _numbers(values, set(map(type, values)))
    if column is None:
        column = np.empty(len(values), dtype=object)
        column[:] = values
    series: pd.Series = pd.Series(column, pd.Index(index, dtype=np.int64), column.dtype)
    return series


def _numbers(values: Sequence[Any], kinds: set[type]) -> NDArray[Any] | None:
    """Return the numbers as an array, or None if neither int64 nor float64 holds all exactly."""
    try:
        if kinds == {int}:
            return np.array(values, dtype=np.int64)
        if kinds <= {int, float}:
            array = np.array(values, dtype=np.float64)
            return array if bool(np.all(np.abs(array) < _EXACT) | (kinds == {float})) else None
    except OverflowError:
        pass
    return None


def flow_table(source: Any, target: Any, kind: Sequence[str]) -> pd.DataFrame:
    """Return arrows between slice rows as a table with the columns of `FLOW_COLUMNS`."""
    types: Mapping[str, Any] = FLOW_COLUMNS
    return pd.DataFrame(
        {
            "source": np.asarray(source, types["source"]),
            "target": np.asarray(target, types["target"]),
            "kind": text_codes(kind),
        }
    )


def nanoseconds(texts: Sequence[bytes]) -> tuple[Ints, Mask]:
    """Turn texts of microseconds into ns, and return which texts are such numbers.

    The ns are exact for up to 3 decimals, as Kineto writes them; more are rounded half to even.
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
        exact = _exact_ns(texts[row])
        if exact is not None:
            values[row], valid[row] = exact, True
    return values, valid


def _same_length(characters: NDArray[np.uint8]) -> tuple[Ints, Mask]:
    """Read texts of one length that are digits with at most one point and 3 decimals.

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


def _rounded(characters: NDArray[np.uint8]) -> tuple[Ints, Mask]:
    """Read texts of one length that are digits with one point and more than 3 decimals."""
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
        part = digits[:, columns]
        value, fits = _number(part, [p for p in range(point + 4) if p != point])
        fits &= (part[point + 4 :] <= 9).all(axis=0) & (value < _LIMIT)
        first, more = part[point + 4], (part[point + 5 :] > 0).any(axis=0)
        up = (first > 5) | ((first == 5) & (more | (value % np.uint64(2) == 1)))
        values[columns] = np.where(fits, value + up, 0).astype(np.int64)
        valid[columns] = fits
    return values, valid


def _number(digits: NDArray[np.uint8], places: Sequence[int]) -> tuple[NDArray[np.uint64], Mask]:
    """Return the number that the digits at these places make, and where all are digits."""
    value = np.zeros(digits.shape[1], dtype=np.uint64)
    highest = np.zeros(digits.shape[1], dtype=np.uint8)
    for place in places:
        value *= np.uint64(10)
        value += digits[place]
        np.maximum(highest, digits[place], out=highest)
    return value, highest <= 9


def _exact_ns(text: bytes) -> int | None:
    """Return the ns of any number of microseconds, by decimal arithmetic; None if it is none."""
    if not text.isascii():
        return None
    # This context is precise enough for all digits, and turns other text into NaN, not an error.
    exactly = Context(prec=len(text) + 3, rounding=ROUND_HALF_EVEN, traps=[])
    number = exactly.create_decimal(text.decode("ascii").strip().strip('"'))
    if not number.is_finite() or number.adjusted() > _MOST_DIGITS:
        return None
    exact = exactly.multiply(number, 1000)
    return int(exactly.to_integral_value(exact)) if exact.copy_abs() < _LIMIT else None
