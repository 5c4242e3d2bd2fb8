"""The one call of an op that is worth jumping to."""

from __future__ import annotations

from typing import TypedDict

from gpuprof_widgets.trace.model import Record


class Place(TypedDict):
    """Where to look, as the arguments of a `Finding`."""

    start_ns: int
    end_ns: int
    rows: tuple[int, ...]


def longest_call(record: Record, name: str, category: str) -> Place:
    """The longest call of that name."""
    slices = record.trace.slices
    calls = slices.loc[(slices["name"] == name) & (slices["category"] == category), ["ts", "dur"]]
    row = int(calls["dur"].to_numpy().argmax())
    start, dur = (int(value) for value in calls.iloc[row])
    return Place(start_ns=start, end_ns=start + dur, rows=(int(calls.index[row]),))
