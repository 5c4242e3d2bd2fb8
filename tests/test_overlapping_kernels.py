"""The critical path through kernels of one stream that overlap, and through replays of graphs."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuprof_widgets.analyses.critical_path import ON_GPU, critical_path
from gpuprof_widgets.analyses.path_graph import (
    BY_LAUNCH,
    KERNEL_DELAY,
    STREAM_WAIT,
    UNKNOWN,
    PathGraph,
    path_graph,
)
from gpuprof_widgets.analyses.what_if import Changes, replayed, what_if
from gpuprof_widgets.trace.model import Record
from gpuprof_widgets.trace.readers import load
from tests.test_critical_path import Piece, path_of
from tests.traces import Row, Shared, kernel, runtime, trace_of

pytestmark = pytest.mark.slow

OF_THE_STREAM = (KERNEL_DELAY, STREAM_WAIT, UNKNOWN)
"""Delays in which the stream itself was idle; a launch is under way whatever the stream does."""
NAMES = ("gemm", "add")


def graph_launch(ts: int = 0, dur: int = 5, name: str = "cudaGraphLaunch") -> Row:
    return runtime(name, ts=ts, dur=dur)


def graph(record: Record) -> PathGraph:
    return path_graph(record, record.trace.start_ns, record.trace.end_ns)


def back_to_back(*took: int, overlap: tuple[int, ...] = (64, 128, 256)) -> Record:
    """A replay of gemm, add, gemm and so on; each but the last is said to end after the next began.

    ``took``: from the beginning of one to that of the next.
    """
    rows, start = [graph_launch()], 5_000
    for number, time in enumerate(took):
        late = overlap[number % len(overlap)] if number < len(took) - 1 else 0
        name = NAMES[number % 2]
        rows.append(kernel(name, ts=start, dur=time + late, launched_by=0))
        start += time
    return trace_of(*rows)


def test_a_slice_is_left_where_the_one_that_overlaps_it_begins() -> None:
    assert path_of(back_to_back(2_000, 30_000, 1_000, 4_000)) == [
        ("launch delay", 5_000, "gemm"),
        ("compute", 2_000, "gemm"),
        ("compute", 30_000, "add"),
        ("compute", 1_000, "gemm"),
        ("compute", 4_000, "add"),
    ]


TIMES = st.lists(st.integers(400, 20_000).map(lambda half: 2 * half), min_size=1, max_size=12)
OVERLAPS = st.lists(st.integers(64, 256), min_size=1, max_size=5).map(tuple)


@given(TIMES, OVERLAPS)
def test_what_if_of_a_replay_is_what_its_kernels_truly_took(
    took: list[int], overlap: tuple[int, ...]
) -> None:
    record = back_to_back(*took, overlap=overlap)
    for number, name in enumerate(NAMES[: len(took)]):
        row = what_if(record, name, scale=0.5).iloc[0]
        assert row["saved_ns"] * 2 == row["path_ns"] == sum(took[number::2])
        slower = what_if(record, name, scale=1.5).iloc[0]
        assert slower["saved_ns"] == -row["saved_ns"]


def in_branches(fast: int) -> Record:
    """A replay of fork, then slow beside two of the other branch, then join: all on one stream."""
    return trace_of(
        graph_launch(),
        kernel("fork", ts=10, dur=10, launched_by=0),
        kernel("slow", ts=21, dur=100, launched_by=0),
        kernel("fast", ts=22, dur=fast, launched_by=0),
        kernel("faster", ts=23 + fast, dur=40, launched_by=0),
        kernel("join", ts=max(121, 63 + fast) + 1, dur=28, launched_by=0),
    )


BY_SLOW: list[Piece] = [
    ("launch delay", 10, "fork"),
    ("compute", 10, "fork"),
    ("kernel-to-kernel delay", 1, "slow"),
    ("compute", 100, "slow"),
    ("kernel-to-kernel delay", 1, "join"),
    ("compute", 28, "join"),
]
BY_FAST: list[Piece] = [
    ("launch delay", 10, "fork"),
    ("compute", 10, "fork"),
    ("kernel-to-kernel delay", 1, "fast"),
    ("compute", 1, "slow"),  # by then the stream ran that
    ("compute", 80, "fast"),
    ("compute", 1, "slow"),  # between fast and faster
    ("compute", 40, "faster"),
    ("kernel-to-kernel delay", 1, "join"),
    ("compute", 28, "join"),
]


@pytest.mark.parametrize(("fast", "path"), [(40, BY_SLOW), (80, BY_FAST)], ids=["slow", "fast"])
def test_branches_of_a_graph_are_followed_one_by_one(fast: int, path: list[Piece]) -> None:
    assert path_of(in_branches(fast)) == path


@pytest.mark.parametrize(
    ("name", "fast", "saved"),
    [
        ("slow", 40, 18),  # the other branch ends at 103
        ("fast", 40, 0),
        ("faster", 40, 0),
        ("slow", 80, 0),
        ("faster", 80, 22),  # slow ends at 121, faster at 143
        ("fast", 80, 22),
        ("join", 80, 28),
    ],
)
def test_a_join_waits_for_both_branches(name: str, fast: int, saved: int) -> None:
    assert what_if(in_branches(fast), name)["saved_ns"].tolist() == [saved]


def assert_delays_are_idle(record: Record) -> None:
    """In no delay that is a stream's own did that stream run anything."""
    path, work = critical_path(record), graph(record).work
    stream_of = dict(zip(work.row.tolist(), work.stream.tolist(), strict=True))
    delays = path[path["kind"].isin(OF_THE_STREAM) & path["row"].isin(work.row)]
    by_launch = work.row[graph(record).bound_by == BY_LAUNCH]  # where that takes 1.5 ms or more
    for row, start, end in delays[["row", "start_ns", "end_ns"]].itertuples(index=False):
        if row in by_launch:
            continue
        mine = work.stream == stream_of[row]
        ran = np.minimum(work.end[mine], end) - np.maximum(work.start[mine], start)
        assert (ran <= 0).all()


def assert_scale_one_changes_nothing(record: Record) -> None:
    everything = Changes(np.zeros(len(record.trace) + 1, np.intp), np.ones((1, 1), bool), 1.0)
    assert replayed(graph(record), everything).tolist() == [record.trace.span_ns]


@st.composite
def replays(draw: st.DrawFn) -> Record:
    """Launches of graphs, and slices on two streams that overlap in any way."""
    calls = draw(st.lists(st.integers(0, 20), max_size=3))
    rows = [graph_launch(ts, dur=draw(st.integers(1, 5))) for ts in calls]
    callers = st.sampled_from([None, *range(len(calls))])
    for name, ts, dur, stream, caller in draw(
        st.lists(
            st.tuples(
                st.sampled_from(NAMES), st.integers(0, 60), st.integers(1, 40),
                st.sampled_from([7, 7, 7, 20]), callers,
            ),
            min_size=1,
            max_size=12,
        )
    ):  # fmt: skip
        rows.append(kernel(name, ts=ts, dur=dur, stream=stream, launched_by=caller))
    return trace_of(*rows)


@given(replays())
def test_no_delay_of_a_stream_covers_what_it_ran(record: Record) -> None:
    assert_delays_are_idle(record)
    assert_scale_one_changes_nothing(record)
    bounds = critical_path(record)[["start_ns", "end_ns"]].to_numpy()
    assert (bounds[1:, 0] == bounds[:-1, 1]).all()
    assert bounds[-1, 1] - bounds[0, 0] == record.trace.span_ns


def test_no_delay_of_a_stream_covers_what_it_ran_in_any_real_trace(shared_record: Record) -> None:
    assert_delays_are_idle(shared_record)
    assert_scale_one_changes_nothing(shared_record)


@given(st.lists(st.tuples(st.integers(0, 60), st.integers(1, 40)), min_size=1, max_size=12))
def test_the_path_of_one_stream_is_its_busy_time(times: list[tuple[int, int]]) -> None:
    record = trace_of(*(kernel("gemm", ts=ts, dur=dur) for ts, dur in times))
    path = critical_path(record)
    busy = {moment for ts, dur in times for moment in range(ts, ts + dur)}
    assert path.loc[path["kind"].isin(ON_GPU), "dur_ns"].sum() == len(busy)


@pytest.mark.parametrize("name", ["05", "06"])
def test_a_real_replay_is_as_busy_on_its_path_as_its_stream(name: str, shared: Shared) -> None:
    """One stream, launched far ahead: nothing but what it ran and when it was idle."""
    record = load(shared(f"luatil/rtx3060_compile_cuda_graphs_{name}.json.gz"))
    path, work = critical_path(record), graph(record).work
    reached = np.maximum.accumulate(work.end)
    idle = int(np.maximum(work.start[1:] - reached[:-1], 0).sum())
    on_gpu = path.loc[path["kind"].isin(ON_GPU), "dur_ns"].sum()
    assert on_gpu == work.end.max() - work.start[0] - idle


def replay_on_two_streams(name: str) -> Record:
    """Launches usually take 35; the replay begins 20 after its own, so its launch could explain
    all of it that begins until 135.
    """
    return trace_of(
        runtime("cudaLaunchKernel", ts=0, dur=5),
        graph_launch(100, name=name),
        kernel("before", ts=50, dur=10, launched_by=0),
        kernel("a", ts=120, dur=5, launched_by=1),
        kernel("b", ts=126, dur=4, launched_by=1),
        kernel("c", ts=121, dur=7, stream=20, launched_by=1),
        kernel("d", ts=130, dur=30, stream=20, launched_by=1),
    )


@pytest.mark.parametrize("name", ["cudaGraphLaunch", "hipGraphLaunch"])
def test_a_graph_s_launch_leads_to_what_begins_its_replay_on_each_stream(name: str) -> None:
    record = replay_on_two_streams(name)
    assert path_of(record)[-4:] == [
        ("launch delay", 21, "c"),
        ("compute", 7, "c"),
        ("kernel-to-kernel delay", 2, "d"),
        ("compute", 30, "d"),
    ]
    found = graph(record)
    names = record.trace.slices["name"].to_numpy(object)[found.work.row[found.boundary >= 0]]
    assert names.tolist() == ["before", "a", "c"]


def test_every_launch_of_a_real_trace_begins_what_it_launched(shared_record: Record) -> None:
    found = graph(shared_record)
    work, launch = found.work, shared_record.trace.slices["launch"].to_numpy()
    begun = np.flatnonzero((found.boundary >= 0) & (launch[work.row] >= 0))
    pairs = np.stack([launch[work.row[begun]], work.stream[begun]])
    assert np.unique(pairs, axis=1).shape == pairs.shape


def test_delays_too_long_for_a_launch_are_not_the_usual_ones() -> None:
    """The only launches of an idle stream took 2 ms each: with them the replay began when the
    stream let it, 10 after the kernel before it.
    """
    record = trace_of(
        runtime("cudaLaunchKernel", ts=0, dur=5),
        graph_launch(10),
        kernel("before", ts=2_000_000, dur=10_000, launched_by=0),
        kernel("first", ts=2_010_010, dur=500, launched_by=1),
    )
    assert path_of(record) == [
        ("unknown", 2_000_000, "before"),
        ("compute", 10_000, "before"),
        ("kernel-to-kernel delay", 10, "first"),
        ("compute", 500, "first"),
    ]
