"""Traces put one after another: nothing is lost, mixed up or linked across."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuprof_widgets.analyses.regions import steps
from gpuprof_widgets.trace.edit import joined, starts_when_joined
from gpuprof_widgets.trace.model import Record, Trace
from gpuprof_widgets.trace.window import window
from tests.records import records
from tests.traces import annotation, kernel, memory, op, python, runtime, trace_of

pytestmark = pytest.mark.slow

LINKS = ("parent", "launch", "op", "forward")


def step(number: int, *, stream: int = 7) -> Trace:
    """A step of 100 ns that runs one op and its kernel, under ids that every step uses again."""
    return trace_of(
        annotation(f"ProfilerStep#{number}", ts=1000, dur=100),
        op("aten::mm", ts=1010, dur=20, shapes=[[number]]),
        runtime("cudaLaunchKernel", ts=1012, dur=5),
        kernel("gemm", ts=1030, dur=50, launched_by=2, stream=stream),
        memory(64, ts=1015, allocated=64 * number),
    ).trace


def test_each_trace_begins_where_the_one_before_it_ended() -> None:
    both = joined([step(3), step(7)])
    table = steps(Record(both))
    assert table[["step", "start_ns", "end_ns"]].to_numpy().tolist() == [[3, 0, 100], [7, 100, 200]]
    assert (both.start_ns, both.end_ns) == (0, 200)
    assert both.counters[["ts", "value"]].to_numpy().tolist() == [[15, 192.0], [115, 448.0]]
    assert starts_when_joined([step(3), step(7)]) == [0, 100]


def test_a_kernel_keeps_its_owner_where_ids_repeat() -> None:
    both = joined([step(1), step(2), step(3)])
    slices = both.slices
    kernels = slices[slices["name"] == "gemm"]
    assert (slices["ts"].to_numpy()[kernels["launch"]] == kernels["ts"] - 18).all()
    assert (slices["ts"].to_numpy()[kernels["op"]] == kernels["ts"] - 20).all()
    shapes = both.args["Input Dims"]
    assert [shapes[row] for row in kernels["op"]] == [[[1]], [[2]], [[3]]]


def test_the_same_thread_and_stream_are_one_track_and_others_follow() -> None:
    both = joined([step(1), step(2, stream=20), step(3)])
    assert both.tracks["kind"].tolist() == ["cpu", "gpu", "gpu"]
    assert both.tracks["stream"].tolist() == [-1, 7, 20]
    kernels = both.slices[both.slices["name"] == "gemm"]
    assert kernels.sort_values("ts")["track"].tolist() == [1, 2, 1]


def test_a_thread_that_came_later_stands_before_the_devices() -> None:
    later = trace_of(
        op("a", ts=0, dur=5), op("b", ts=0, dur=5, thread=200), python("f", ts=0, dur=9)
    ).trace
    both = joined([step(1), later])
    assert both.tracks["kind"].tolist() == ["cpu", "python", "cpu", "gpu"]
    assert both.tracks["thread"].tolist() == ["100", "100", "200", "7"]
    assert both.tracks["lane"].tolist() == [0, 0, 1, 2]


@given(st.lists(records(), min_size=2, max_size=3))
def test_joining_keeps_order_links_and_args(several: list[Record]) -> None:
    traces = [record.trace for record in several]
    both = joined(traces)
    slices = both.slices
    assert len(slices) == sum(map(len, traces))
    assert int(slices["dur"].sum()) == sum(int(trace.slices["dur"].sum()) for trace in traces)
    ts, track = slices["ts"].to_numpy(), slices["track"].to_numpy()
    assert np.array_equal(
        np.lexsort((-slices["dur"].to_numpy(), ts, track)), np.arange(len(slices))
    )
    for name in LINKS:
        row = slices[name].to_numpy()
        assert (row < len(slices)).all()
        named = [
            (t.slices["name"].to_numpy(object)[r], t.slices["name"].to_numpy(object)[i])
            for t in traces
            for i, r in enumerate(t.slices[name])
            if r >= 0
        ]
        texts = slices["name"].to_numpy(object)
        assert sorted((texts[r], texts[i]) for i, r in enumerate(row) if r >= 0) == sorted(named)
    assert (track[slices["parent"]] == track)[slices["parent"] >= 0].all()
    assert len(both.flows) == sum(len(trace.flows) for trace in traces)
    assert sorted(both.args) == sorted({key for trace in traces for key in trace.args})
    for key, values in both.args.items():
        assert len(values) == sum(len(t.args[key]) for t in traces if key in t.args)


def moments(table: pd.DataFrame) -> Counter[tuple[int, str]]:
    """Time and name of each row."""
    return Counter(zip(table["ts"].astype(int), table["name"].astype(str), strict=True))


def test_a_range_of_a_trace_is_moved_to_its_place() -> None:
    """A range keeps the times of its trace, so it does not start at 0."""
    first, part = step(1), window(Record(step(2)), 12, 90).trace
    assert len(part.counters)
    assert part.start_ns == 12
    both, moved = joined([first, part]), first.span_ns - part.start_ns
    for table in ("slices", "counters"):
        at_first, later, now = (getattr(trace, table) for trace in (first, part, both))
        assert moments(now) == moments(at_first) + moments(later.assign(ts=later["ts"] + moved))
    assert joined([part, first]).epoch_ns == part.epoch_ns + 12
