"""Windows: cut at the edges, and adding up to the whole."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuprof_widgets.exceptions import OptionError
from gpuprof_widgets.trace.links import self_times
from gpuprof_widgets.trace.model import Record, Trace
from gpuprof_widgets.trace.window import window
from tests.records import assert_same_record, records
from tests.traces import kernel, memory, op, python, runtime, trace_of


def rows_of(trace: Trace) -> list[tuple[str, int, int, int]]:
    """Name, start, duration and count of every row."""
    table = trace.slices[["name", "ts", "dur", "count"]]
    return list(table.itertuples(index=False, name=None))


def own_times(trace: Trace) -> pd.Series:
    """Self time by name."""
    slices = trace.slices
    end = (slices["ts"] + slices["dur"]).to_numpy()
    own = self_times(slices["ts"].to_numpy(), end, slices["parent"].to_numpy())
    names = slices["name"].astype(str) + slices["track"].astype(str)
    return pd.Series(own, dtype=np.int64).groupby(names).sum()


def test_slices_are_cut_at_both_edges() -> None:
    record = trace_of(op("outer", ts=0, dur=100), op("inner", ts=10, dur=20), op("b", ts=60, dur=9))
    cut = window(record, 20, 65).trace
    assert rows_of(cut) == [("outer", 20, 45, 1), ("inner", 20, 10, 1), ("b", 60, 5, 1)]
    assert cut.slices["parent"].tolist() == [-1, 0, 0]
    assert (cut.start_ns, cut.end_ns, cut.span_ns) == (20, 65, 45)


@pytest.mark.parametrize(
    ("bounds", "words"),
    [
        (("a", "b"), "two numbers of ns, not 'a' and 'b'"),
        (("b", "a"), "to start before it ends"),
        ((20, 10), r"to start before it ends, not \[20, 10\)"),
        (("5", 9), "two numbers of ns, not '5' and 9"),
        ((None, 1), "two numbers of ns, not None and 1"),
        ((0, float("nan")), "to start before it ends"),
        (([], [1]), "two numbers of ns"),
    ],
)
def test_bounds_that_are_no_range_are_told(bounds: tuple[Any, Any], words: str) -> None:
    record = trace_of(op("a", ts=0, dur=10))
    for subject in (record, record.trace):
        with pytest.raises(OptionError, match=words):
            window(subject, *bounds)


def test_a_moment_belongs_to_the_window_that_it_starts() -> None:
    record = trace_of(op("a", ts=0, dur=20), memory(5, ts=10), memory(6, ts=20))
    assert ("[memory]", 10, 0, 1) not in rows_of(window(record.trace, 0, 10))
    assert ("[memory]", 10, 0, 1) in rows_of(window(record.trace, 10, 20))
    assert ("[memory]", 20, 0, 1) in rows_of(window(record.trace, 10, 20))


def test_a_kernel_inside_keeps_its_launch_and_ops_outside() -> None:
    record = trace_of(
        op("linear", ts=0, dur=20),
        op("addmm", ts=1, dur=10),
        op("other", ts=21, dur=5),
        runtime("cudaLaunchKernel", ts=2, dur=3),
        kernel("gemm", ts=30, dur=10, launched_by=3),
    )
    cut = window(record.trace, 35, 40)
    assert rows_of(cut) == [
        ("linear", 35, 0, 0),
        ("addmm", 35, 0, 0),
        ("cudaLaunchKernel", 35, 0, 0),
        ("gemm", 35, 5, 1),
    ]
    gemm = cut.slices.iloc[3]
    assert (gemm["launch"], gemm["op"]) == (2, 1)
    assert cut.slices["parent"].tolist() == [-1, 0, 1, -1]
    assert cut.flows[["source", "target"]].to_numpy().tolist() == [[2, 3]]


def test_an_owner_of_nothing_inside_is_left_out() -> None:
    record = trace_of(
        op("addmm", ts=0, dur=10),
        kernel("early", ts=12, dur=5, launched_by=0),
        python("f", ts=0, dur=60),
    )
    assert rows_of(window(record.trace, 30, 40)) == [("f", 30, 10, 1)]


def test_a_child_that_outlasts_its_parent_hangs_on_the_nearest_one_left() -> None:
    record = trace_of(op("a", ts=0, dur=90), op("b", ts=10, dur=10), op("c", ts=15, dur=30))
    cut = window(record.trace, 25, 90)
    assert rows_of(cut) == [("a", 25, 65, 1), ("c", 25, 20, 1)]
    assert cut.slices["parent"].tolist() == [-1, 0]
    assert own_times(cut).tolist() == [45, 20]


def test_args_follow_their_rows() -> None:
    record = trace_of(op("a", ts=0, dur=5, shapes=[[1]]), op("b", ts=6, dur=5, shapes=[[2, 3]]))
    assert window(record.trace, 6, 11).args["Input Dims"].to_dict() == {0: [[2, 3]]}


def test_counters_bring_their_last_reading_along() -> None:
    record = trace_of(
        op("a", ts=0, dur=50), memory(5, ts=5, allocated=5), memory(7, ts=30, allocated=12)
    )
    counters = window(record.trace, 10, 50).counters
    assert counters[["ts", "value"]].to_numpy().tolist() == [[10, 5], [30, 12]]


def test_the_record_that_was_given_stays_as_it_was() -> None:
    record = trace_of(op("a", ts=0, dur=50), kernel("k", ts=60, dur=9, launched_by=0))
    before = pd.util.hash_pandas_object(record.trace.slices).tolist()
    window(record, 20, 65)
    assert pd.util.hash_pandas_object(record.trace.slices).tolist() == before


BOUNDS = st.lists(st.integers(0, 60), min_size=2, max_size=5).map(sorted)


@given(records())
def test_the_window_of_the_whole_is_the_whole(record: Record) -> None:
    whole = window(record, record.trace.start_ns, record.trace.end_ns)
    assert_same_record(whole, record)


@given(records(), BOUNDS)
def test_windows_that_tile_the_trace_add_up(record: Record, bounds: list[int]) -> None:
    trace = record.trace
    edges = [0, *[bound for bound in bounds if bound < trace.end_ns], trace.end_ns]
    tiles = [window(trace, a, b) for a, b in itertools.pairwise(edges)]
    tiles = [tile for tile in tiles if tile.span_ns] or [trace]
    names = trace.slices["name"].astype(str) + trace.slices["track"].astype(str)
    total = trace.slices["dur"].groupby(names).sum()
    parts = [
        t.slices["dur"].groupby(t.slices["name"].astype(str) + t.slices["track"].astype(str)).sum()
        for t in tiles
    ]
    summed = pd.concat(parts).groupby(level=0).sum()
    pd.testing.assert_series_equal(summed, total, check_names=False)
    own = pd.concat([own_times(tile) for tile in tiles]).groupby(level=0).sum()
    pd.testing.assert_series_equal(own, own_times(trace), check_names=False)
