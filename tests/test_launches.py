"""Launch calls, what waited for what, and queues: by hand, by loops, by HTA, on real traces."""

from __future__ import annotations

from typing import Any

import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuprof_widgets.analyses.launches import FULL, launches, queue_length, queues
from gpuprof_widgets.trace.model import Record
from gpuprof_widgets.trace.readers import load
from gpuprof_widgets.trace.window import window
from gpuprof_widgets.views.panels.kernels import launches_panel
from tests.hta_oracle import hta
from tests.traces import Shared, copy, kernel, op, runtime, trace_of

US = 1_000
LAUNCH = "cudaLaunchKernel"
SPLIT = ["from_call_ns", "latency_ns", "queue_ns", "pure_latency_ns"]


def two_on_a_stream(second_starts: int, *, on: int = 7) -> pd.DataFrame:
    """The first runs on stream 7 from 20 to 50; the second's call lasts from 15 to 25."""
    record = trace_of(
        op("aten::mm", ts=0, dur=30),
        runtime(LAUNCH, ts=1, dur=5),
        runtime(LAUNCH, ts=15, dur=10),
        kernel("gemm", ts=20, dur=30, launched_by=1),
        kernel("relu", ts=second_starts, dur=3, launched_by=2, stream=on),
    )
    return launches(record).set_index("name")


def test_latency_runs_from_the_end_of_the_call_to_the_start_on_the_gpu() -> None:
    table = two_on_a_stream(52)
    assert table.loc["gemm", SPLIT].tolist() == [19, 14, 0, 14]
    assert table.loc["gemm", ["call_start_ns", "call_ns", "start_ns", "dur_ns"]].tolist() == [
        *(1, 5, 20, 30)
    ]


def test_what_ran_on_the_stream_meanwhile_is_queueing_and_the_rest_is_launching() -> None:
    assert two_on_a_stream(52).loc["relu", SPLIT].tolist() == [37, 27, 25, 2]
    assert two_on_a_stream(52, on=9).loc["relu", SPLIT].tolist() == [37, 27, 0, 27]


def test_a_launch_has_its_call_its_thread_and_the_kind_of_its_work() -> None:
    record = trace_of(
        runtime(LAUNCH, ts=0, dur=5),
        runtime("cudaMemcpyAsync", ts=10, dur=5, thread=200),
        kernel("gemm", ts=12, dur=9, launched_by=0),
        copy(ts=40, dur=9, launched_by=1),
    )
    table = launches(record)
    assert record.trace.tracks["thread"][table["thread"]].tolist() == ["100", "200"]
    assert table[["launch_name", "category", "kind"]].to_numpy().tolist() == [
        [LAUNCH, "kernel", "compute"],
        ["cudaMemcpyAsync", "gpu_memcpy", "copy"],
    ]


@pytest.mark.parametrize(
    ("call", "gpu", "short", "slow"),
    [
        (10 * US, 9 * US, True, False),
        (10 * US, 10 * US, False, False),
        (50 * US, 1 * US, True, False),
        (50 * US + 1, 1 * US, False, True),
    ],
)
def test_a_short_kernel_takes_less_time_than_its_call_unless_that_was_held_up(
    call: int, gpu: int, short: bool, slow: bool
) -> None:
    record = trace_of(runtime(LAUNCH, ts=0, dur=call), kernel("k", ts=call, dur=gpu, launched_by=0))
    (row,) = launches(record).to_dict("records")
    assert (row["short"], row["slow_call"]) == (short, slow)


@pytest.mark.parametrize(("starts", "late"), [(110 * US, False), (110 * US + 1, True)])
def test_a_kernel_is_late_after_100_us(starts: int, late: bool) -> None:
    record = trace_of(
        runtime(LAUNCH, ts=0, dur=10 * US), kernel("k", ts=starts, dur=1, launched_by=0)
    )
    assert launches(record)["late"].tolist() == [late]


def test_the_kernels_of_a_graph_share_the_time_of_its_launch() -> None:
    gpu = [kernel(f"k{i}", ts=20 + 4 * i, dur=4, launched_by=0) for i in range(3)]
    record = trace_of(runtime("cudaGraphLaunch", ts=0, dur=11), *gpu)
    table = launches(record)
    assert table["launched"].tolist() == [3, 3, 3]
    assert not table["short"].any()  # 12 ns of work for 11 ns of launching
    assert queues(record)[["launches", "longest"]].to_numpy().tolist() == [[1, 1]]
    panel = launches_panel(record)
    assert panel is not None
    assert panel.rows[["launches", "call_ns", "gpu_ns", "short"]].to_numpy().tolist() == [
        [1, 11, 12, 0]
    ]


def test_gpu_work_without_a_launch_has_no_row_but_is_counted_and_keeps_its_stream_busy() -> None:
    record = trace_of(
        runtime(LAUNCH, ts=0, dur=5),
        kernel("stray", ts=3, dur=20),
        kernel("gemm", ts=25, dur=5, launched_by=0),
    )
    table = launches(record)
    assert table["name"].tolist() == ["gemm"]
    assert table.attrs["unlinked"] == queues(record).attrs["unlinked"] == 1
    assert table[SPLIT].to_numpy().tolist() == [[25, 20, 18, 2]]


def test_the_queue_is_longer_by_each_launch_and_shorter_by_each_start() -> None:
    record = trace_of(
        runtime(LAUNCH, ts=0, dur=5), runtime(LAUNCH, ts=10, dur=5),
        runtime("cudaMemcpyAsync", ts=20, dur=5), runtime(LAUNCH, ts=30, dur=5),
        kernel("a", ts=12, dur=9, launched_by=0), kernel("b", ts=30, dur=9, launched_by=1),
        copy(ts=40, dur=9, launched_by=2), kernel("other", ts=90, dur=10, launched_by=3, stream=9),
    )  # fmt: skip
    table = queue_length(record)
    on_7 = table[table["stream"] == 7]
    assert on_7[["ts_ns", "length"]].to_numpy().tolist() == [
        *([0, 1], [10, 2], [12, 1], [20, 2], [30, 1], [40, 0])
    ]
    summary = queues(record).set_index("stream")
    assert summary.loc[7, ["launches", "longest", "waiting_ns"]].tolist() == [3, 2, 40]
    assert summary.loc[7, "average"] == (10 + 2 * 2 + 8 + 2 * 10 + 10) / 100
    assert summary.loc[9, ["launches", "longest", "waiting_ns"]].tolist() == [1, 1, 60]


def test_a_full_queue_blocks() -> None:
    calls = [runtime(LAUNCH, ts=i, dur=1) for i in range(FULL)]
    gpu = [kernel("k", ts=3_000 + 2 * i, dur=2, launched_by=i) for i in range(FULL)]
    (row,) = queues(trace_of(*calls, *gpu)).to_dict("records")
    assert row["full_ns"] == 3_000 - (FULL - 1)
    assert row["full_share"] == row["full_ns"] / (3_000 + 2 * FULL)


WORK = st.lists(
    st.tuples(st.integers(0, 60), st.integers(0, 9), st.integers(0, 80), st.integers(0, 9),
              st.sampled_from([(0, 7), (0, 8), (1, 7)])),
    min_size=1, max_size=8,
)  # fmt: skip
"""Of each launch: start and length of the call, of its kernel, and the latter's GPU and stream."""


@given(WORK)
def test_equal_to_plain_loops(work: list[tuple[int, int, int, int, tuple[int, int]]]) -> None:
    calls = [runtime(LAUNCH, ts=ts, dur=dur) for ts, dur, *_ in work]
    gpu = [
        kernel(f"k{i}", ts=at, dur=took, launched_by=i, device=device, stream=stream)
        for i, (_, _, at, took, (device, stream)) in enumerate(work)
    ]
    record = trace_of(*calls, *gpu)
    origin = min(min(ts, at) for ts, _, at, _, _ in work)
    table = launches(record).set_index("name")
    for i, (ts, dur, at, took, stream) in enumerate(work):
        earlier = [
            other_at + other_took
            for j, (_, _, other_at, other_took, other) in enumerate(work)
            if other == stream and (other_at, other_at + other_took, j) < (at, at + took, i)
        ]
        waited = max(at - ts - dur, 0)
        behind = max(min(max([origin, *earlier]), at) - ts - dur, 0)
        expected = [at - ts, waited, min(behind, waited), waited - min(behind, waited)]
        found = table.loc[f"k{i}", SPLIT].tolist()
        same_time = [w for w in work if (w[2], w[2] + w[3], w[4]) == (at, at + took, stream)]
        if len(same_time) == 1:  # of two at one moment either may be the first
            assert found == expected
        assert found[:2] == expected[:2]
    lengths = queue_length(record)
    for stream in {w[4] for w in work}:
        here = (lengths["device"] == stream[0]) & (lengths["stream"] == stream[1])
        of_stream = lengths[here].set_index("ts_ns")["length"]
        for t, length in (of_stream.set_axis(of_stream.index + origin)).items():
            held = [w for w in work if w[4] == stream and w[0] <= t < max(w[2], w[0])]
            assert length == len(held)
        assert of_stream.iloc[-1] == 0


def test_each_stream_of_each_gpu_sums_its_launches_up() -> None:
    places = [(0, 7), (0, 8), (1, 7)] * 2 + [(1, 7)]
    calls = [
        runtime(LAUNCH, ts=100 * US * n, dur=(20 + 9 * n) * US, thread=n)
        for n in range(len(places))
    ]
    gpu = [
        kernel("k", ts=(20 + 130 * n) * US, dur=99 * US * (n % 3), launched_by=n, device=device,
               stream=stream)
        for n, (device, stream) in enumerate(places)
    ]  # fmt: skip
    record = trace_of(*calls, *gpu)
    summary = queues(record).set_index(["device", "stream"])
    by_stream = launches(record).groupby(["device", "stream"])
    assert summary.index.tolist() == list(by_stream.groups)
    assert summary["launches"].tolist() == by_stream.size().tolist()
    for name, share in (("latency_p50_ns", 0.5), ("latency_p99_ns", 0.99)):
        assert summary[name].tolist() == pytest.approx(by_stream["latency_ns"].quantile(share))
    for name in ("queue_ns", "pure_latency_ns", "short", "slow_calls", "late"):
        column = name.replace("calls", "call")
        assert summary[name].tolist() == by_stream[column].sum().tolist()


def test_in_a_window_calls_before_it_keep_their_times() -> None:
    record = trace_of(
        op("aten::mm", ts=0, dur=100),
        runtime(LAUNCH, ts=10, dur=5),
        kernel("gemm", ts=40, dur=30, launched_by=1),
    )
    (row,) = launches(window(record, 50, 90)).to_dict("records")
    assert (row["call_start_ns"], row["call_ns"], row["start_ns"]) == (10, 5, 40)
    assert (row["latency_ns"], row["dur_ns"]) == (25, 20)


HTA_LAUNCHES = ("cudaLaunchKernel", "cudaLaunchKernelExC", "cudaMemcpyAsync", "cudaMemsetAsync")
TRACES = [
    "megatron-tp8/rank0",
    "tracelens/falconsai_h100_stacks_memory",
    "hta/nccl_a100_rank0_of_2",
]


@pytest.fixture(scope="module", params=TRACES)
def both(request: pytest.FixtureRequest, shared: Shared) -> tuple[Record, Any]:
    """A real trace as we and as HTA read it."""
    path = shared(f"{request.param}.json.gz")
    return load(path), hta(path)


def test_launch_statistics_equal_those_of_hta(both: tuple[Record, Any]) -> None:
    """HTA knows four calls by name; the driver's (Triton, cuBLAS) are ours alone."""
    record, theirs = both
    table = launches(record)
    table = table[table["launch_name"].isin(HTA_LAUNCHES)]
    of_hta = theirs.get_cuda_kernel_launch_stats(ranks=[0], visualize=False)[0]
    ours = pd.DataFrame(
        {
            "correlation": record.trace.slices["correlation"].to_numpy()[table["launch"]],
            "cpu_duration": table["call_ns"],
            "gpu_duration": table["dur_ns"],
            "launch_delay": table["latency_ns"],
        }
    )
    key = ["correlation", "gpu_duration"]
    assert len(ours) == len(of_hta) > 0
    left, right = (
        (frame * [1, unit, unit, unit]).round().sort_values(key, ignore_index=True)
        for frame, unit in ((ours, 1), (of_hta, 1000))
    )
    assert (left["correlation"] == right["correlation"]).all()
    for column in ("cpu_duration", "gpu_duration"):
        assert (left[column] - right[column]).abs().max() <= 1
    # Their float64 microseconds since the epoch resolve a quarter of one only.
    assert (left["launch_delay"] - right["launch_delay"]).abs().max() <= 500
    short = (of_hta["cpu_duration"] <= 50) & (of_hta["gpu_duration"] < of_hta["cpu_duration"])
    assert int(table["short"].sum()) == int(short.sum())
    assert int(table["slow_call"].sum()) == int((of_hta["cpu_duration"] > 50).sum())


def test_queue_lengths_equal_those_of_hta(both: tuple[Record, Any]) -> None:
    """HTA has a row per event, ours one per moment: the last of a moment is the same."""
    record, theirs = both
    series = theirs.get_queue_length_time_series(ranks=[0])[0]
    table = queue_length(record)
    for stream, of_hta in series.groupby("stream"):
        by_moment = of_hta.groupby("ts", sort=True)["queue_length"].last().to_numpy()
        ours = table.loc[table["stream"] == stream, "length"].to_numpy()
        assert ours.max() == of_hta["queue_length"].max()
        assert by_moment.tolist() == ours.tolist()
    summary = queues(record)
    assert len(summary) == series["stream"].nunique()
    assert 2 * summary["launches"].sum() == len(series)
