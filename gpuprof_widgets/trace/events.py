"""Events in file order, column by column: what readers hand to `assemble`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray


@dataclass(frozen=True)
class Names:
    """What the file calls its processes and threads; the keys are ids as text.

    ``process_order`` and ``thread_order``: where the file wants them, low numbers first.
    ``languages``: what the frames of a thread are of, where that is not Python ("": not known).
    """

    processes: Mapping[str, str] = field(default_factory=dict)
    threads: Mapping[tuple[str, str], str] = field(default_factory=dict)
    process_order: Mapping[str, float] = field(default_factory=dict)
    thread_order: Mapping[tuple[str, str], float] = field(default_factory=dict)
    languages: Mapping[tuple[str, str], str] = field(default_factory=dict)


@dataclass(frozen=True)
class Events:
    """Complete events and instants in file order, one row each; ts and dur in ns.

    ``args``: per key a Series whose index is the event's row.
    """

    ts: NDArray[np.int64]
    dur: NDArray[np.int64]
    name: pd.Categorical
    category: pd.Categorical
    process: pd.Categorical
    thread: pd.Categorical
    args: Mapping[str, pd.Series] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.ts)


@dataclass(frozen=True)
class EventFlows:
    """Arrows between events, of any kind: rows of `Events` at both ends, and what they are."""

    source: NDArray[np.int64] = field(default_factory=lambda: np.empty(0, dtype=np.int64))
    target: NDArray[np.int64] = field(default_factory=lambda: np.empty(0, dtype=np.int64))
    kind: Sequence[str] = ()


@dataclass(frozen=True)
class FlowEnd:
    """One end of a flow arrow: it meets the slice of that thread that starts at ``ts``."""

    id: Any
    process: str
    thread: str
    ts: int


def text_codes(values: Sequence[str]) -> pd.Categorical:
    """Dictionary-coded text whose dictionary is sorted, whatever the order of the values."""
    number = {value: index for index, value in enumerate(dict.fromkeys(values))}
    codes = np.fromiter(map(number.__getitem__, values), dtype=np.int32, count=len(values))
    return from_codes(codes, list(number))


def from_codes(codes: NDArray[np.int32], texts: Sequence[str]) -> pd.Categorical:
    """Codes into these texts, which may repeat, as codes into their sorted dictionary."""
    distinct = sorted(set(texts))
    place = {text: index for index, text in enumerate(distinct)}
    renumbered = np.array([place[text] for text in texts], dtype=np.int32)
    categories = pd.Index(distinct, dtype=object)
    return pd.Categorical.from_codes(renumbered[codes], categories=categories)


def typed(values: Sequence[Any], index: NDArray[np.int64]) -> pd.Series:
    """A column of args: int64 or float64 where all values are numbers, else objects as they are."""
    column: Any = None
    if len(values) and type(values[0]) in (int, float):
        column = _numbers(values, set(map(type, values)))
    if column is None:
        column = np.empty(len(values), dtype=object)
        column[:] = values
    rows = pd.Index(index, dtype=np.int64)
    series: pd.Series = pd.Series(column, index=rows, dtype=column.dtype)
    return series


def _numbers(values: Sequence[Any], kinds: set[type]) -> NDArray[Any] | None:
    """Numbers as an array if it can hold them all: int64 not what is above 2**63."""
    try:
        if kinds == {int}:
            return np.array(values, dtype=np.int64)
        if kinds <= {int, float}:
            array = np.array(values, dtype=np.float64)
            return array if bool(np.all(np.abs(array) < _EXACT) | (kinds == {float})) else None
    except OverflowError:
        pass
    return None


_EXACT = 2.0**53
"""Below it, float64 holds every integer."""


def empty(columns: Mapping[str, Any]) -> pd.DataFrame:
    """A table with these columns and no rows."""
    return pd.DataFrame({name: column([], kind) for name, kind in columns.items()})


def column(values: Any, kind: Any) -> Any:
    """The values as a column of a schema's type."""
    if kind == "category":
        return values if isinstance(values, pd.Categorical) else text_codes(values)
    return np.asarray(values, dtype=kind)
