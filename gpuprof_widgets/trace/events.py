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
    """What the file calls its processes and threads; the keys are ids as text."""

    processes: Mapping[str, str] = field(default_factory=dict)
    threads: Mapping[tuple[str, str], str] = field(default_factory=dict)


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
class FlowEnd:
    """One end of a flow arrow: it meets the slice of that thread that starts at ``ts``."""

    id: Any
    process: str
    thread: str
    ts: int


def text_codes(values: Sequence[str]) -> pd.Categorical:
    """Dictionary-coded text whose dictionary is sorted, whatever the order of the values."""
    distinct = sorted(set(values))
    code = {value: index for index, value in enumerate(distinct)}
    codes = np.fromiter(map(code.__getitem__, values), dtype=np.int32, count=len(values))
    return pd.Categorical.from_codes(codes, categories=pd.Index(distinct, dtype=object))


def typed(values: Sequence[Any], index: NDArray[np.int64]) -> pd.Series:
    """A column of args: int64 or float64 where every value is one, else objects as they are."""
    column: Any = None
    kind = type(values[0]) if len(values) else None
    if kind in (int, float) and set(map(type, values)) == {kind}:
        column = _numbers(values, kind)
    if column is None:
        column = np.empty(len(values), dtype=object)
        column[:] = values
    return pd.Series(column, index=pd.Index(index, dtype=np.int64))


def _numbers(values: Sequence[Any], kind: Any) -> NDArray[Any] | None:
    try:
        return np.array(values, dtype=np.int64 if kind is int else np.float64)
    except OverflowError:  # addresses and hashes above 2**63 stay Python ints
        return None


def empty(columns: Mapping[str, Any]) -> pd.DataFrame:
    """A table with these columns and no rows."""
    return pd.DataFrame({name: column([], kind) for name, kind in columns.items()})


def column(values: Any, kind: Any) -> Any:
    """The values as a column of a schema's type."""
    if kind == "category":
        return values if isinstance(values, pd.Categorical) else text_codes(values)
    return np.asarray(values, dtype=kind)
