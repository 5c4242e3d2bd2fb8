"""Analyses that are done once per record."""

from __future__ import annotations

import gc
import weakref

import numpy as np
import pandas as pd

from gpuprof_widgets.analyses.remembered import remembered, remembered_for_ranges
from gpuprof_widgets.trace.model import Record
from tests.traces import op, trace_of


def test_a_record_is_analysed_once_and_each_caller_may_change_what_it_gets() -> None:
    seen: list[Record] = []

    @remembered
    def names(record: Record) -> pd.DataFrame:
        seen.append(record)
        return pd.DataFrame({"name": record.trace.slices["name"].astype(object)})

    first, second = (trace_of(op(name, ts=0, dur=1)) for name in ("a", "b"))
    table = names(first)
    table.loc[0, "name"] = "changed"
    assert names(first)["name"].tolist() == ["a"]
    assert names(second)["name"].tolist() == ["b"]
    assert seen == [first, second]


def test_it_is_done_once_for_each_question() -> None:
    asked: list[str] = []

    @remembered
    def named(record: Record, name: str) -> list[int]:
        asked.append(name)
        return np.flatnonzero(record.trace.slices["name"] == name).tolist()

    record = trace_of(op("a", ts=0, dur=1), op("b", ts=2, dur=1))
    assert [named(record, name) for name in "abab"] == [[0], [1], [0], [1]]
    assert asked == ["a", "b"]


def test_of_ranges_only_the_last_two_are_kept() -> None:
    asked: list[int] = []

    @remembered_for_ranges
    def length(record: Record, start: int, end: int) -> int:
        asked.append(start)
        return end - start

    record = trace_of(op("a", ts=0, dur=9))
    assert [length(record, start, 9) for start in (0, 1, 0, 2, 1, 0)] == [9, 8, 9, 7, 8, 9]
    assert asked == [0, 1, 2, 0]


def test_nothing_keeps_a_record_alive() -> None:
    lengths = remembered(lambda record: [len(record.trace)])
    record = trace_of(op("a", ts=0, dur=1))
    assert lengths(record) == [1]
    gone = weakref.ref(record)
    del record
    gc.collect()
    assert gone() is None
