"""Busy and idle time of GPUs, the gaps, and what the CPU did meanwhile."""

from __future__ import annotations

from itertools import pairwise

import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuprof_widgets.analyses.breakdown import breakdown
from gpuprof_widgets.analyses.findings import findings
from gpuprof_widgets.analyses.gpu_work import device_busy
from gpuprof_widgets.analyses.idle import idle, python_meanwhile
from gpuprof_widgets.analyses.kernels import kernels
from gpuprof_widgets.analyses.operators import operators
from gpuprof_widgets.analyses.reasons import why_empty
from gpuprof_widgets.analyses.regions import steps
from gpuprof_widgets.analyses.streams import overlaps, streams
from gpuprof_widgets.analyses.waits import waits
from gpuprof_widgets.trace.model import Record
from gpuprof_widgets.trace.window import window
from tests.traces import (
    Row,
    annotation,
    copy,
    gpu_annotation,
    kernel,
    op,
    python,
    runtime,
    trace_of,
)

pytestmark = pytest.mark.slow


def test_busy_and_idle_add_up_to_the_span_on_real_traces(shared_record: Record) -> None:
    record = shared_record
    busy, gaps = device_busy(record), idle(record)
    assert (busy["busy_ns"] + busy["idle_ns"] == busy["span_ns"]).all()
    assert (busy["busy_ns"] > 0).all()
    assert (busy["span_ns"] == record.trace.span_ns).all()
    by_device = gaps.groupby("device")["dur_ns"].sum().to_dict() if len(gaps) else {}
    assert by_device == busy.set_index("device")["idle_ns"].to_dict()
    # The same GPU time, summed by kernel and by op row.
    table = operators(record)
    is_gpu = table["category"].isin(["kernel", "gpu_memcpy", "gpu_memset"])
    assert table.loc[is_gpu, "device_self_ns"].sum() == kernels(record)["total_ns"].sum()
    assert (kernels(record)["share"] <= 1).all()
    assert busy["busy_ns"].sum() <= kernels(record)["total_ns"].sum()


def two_gpus() -> Record:
    return trace_of(
        op("aten::mm", ts=0, dur=100),
        kernel("gemm", ts=10, dur=20, device=0),
        kernel("relu", ts=90, dur=10, device=0),
        copy(ts=60, dur=10, device=1),
    )


def test_a_range_in_which_a_gpu_ran_nothing_has_it_idle_throughout() -> None:
    gap = window(two_gpus(), 35, 50)
    assert device_busy(gap)[["device", "span_ns", "busy_ns", "idle_ns", "slices"]].to_numpy(
        int
    ).tolist() == [[0, 15, 0, 15, 0], [1, 15, 0, 15, 0]]
    gaps = idle(gap)[["device", "start_ns", "end_ns", "before", "after", "cpu_name", "cause"]]
    assert gaps.to_numpy().tolist() == [
        [0, 35, 50, -1, -1, "aten::mm", "unknown"],
        [1, 35, 50, -1, -1, "aten::mm", "unknown"],
    ]
    classes = breakdown(gap).set_index(["device", "class"])["time_ns"]
    assert classes[classes > 0].to_dict() == {(0, "CPU ops"): 15, (1, "CPU ops"): 15}
    assert set(breakdown(gap)["state"]) == {"busy", "idle"}
    assert overlaps(gap)[["device", "span_ns", "idle_ns"]].to_numpy().tolist() == [
        [0, 15, 15],
        [1, 15, 15],
    ]
    assert streams(gap, by="concurrency")[["device", "active", "time_ns"]].to_numpy(
        int
    ).tolist() == [[0, 0, 15], [1, 0, 15]]
    assert not len(streams(gap))
    assert not len(streams(gap, by="pair"))
    assert not [finding for finding in findings(gap) if finding.rule == "device_idle"]
    texts = [finding.text for finding in findings(window(two_gpus(), 50, 70))]
    assert "GPU 0 was busy 0 % of 20 ns." in texts


@pytest.mark.parametrize("host", [[], [op("a", ts=0, dur=5), python("f", ts=0, dur=9)]])
def test_a_range_in_which_nothing_at_all_ran_has_its_gpu(host: list[Row]) -> None:
    run = trace_of(*host, kernel("gemm", ts=10, dur=20), kernel("gemm", ts=90, dur=10))
    gap = window(run, 40, 60)
    assert not len(gap.trace)
    assert device_busy(gap)["idle_ns"].tolist() == [20]
    assert idle(gap)["dur_ns"].tolist() == [20]
    assert breakdown(gap)["time_ns"].sum() == 20
    assert "device_idle" not in [finding.rule for finding in findings(gap)]
    assert not len(findings(window(run, 40, 40)))


def test_ranges_that_tile_a_run_add_up_to_it_for_every_gpu() -> None:
    whole, edges = two_gpus(), [0, 5, 35, 50, 65, 100]
    parts = [window(whole, t0, t1) for t0, t1 in pairwise(edges)]
    for analysis, keys, numbers in (
        (device_busy, ["device"], ["span_ns", "busy_ns", "idle_ns"]),
        (overlaps, ["device"], ["span_ns", "busy_ns", "idle_ns", "compute_ns", "copy_ns"]),
        (breakdown, ["device", "state"], ["time_ns"]),
        (idle, ["device"], ["dur_ns"]),
    ):
        added = pd.concat([analysis(part) for part in parts]).groupby(keys)[numbers].sum()
        pd.testing.assert_frame_equal(added, analysis(whole).groupby(keys)[numbers].sum())


def test_a_range_of_a_run_without_a_gpu_says_so() -> None:
    record = window(trace_of(op("aten::mm", ts=0, dur=100)), 20, 40)
    assert "GPU work" in why_empty(device_busy(record))
    assert "GPU work" in why_empty(idle(record))
    assert set(breakdown(record)["state"]) == {"host"}


def test_each_gpu_has_its_row() -> None:
    record = trace_of(
        op("aten::mm", ts=0, dur=100),
        kernel("gemm", ts=10, dur=20, device=1),
        kernel("relu", ts=20, dur=20, device=1, stream=8),
        copy(ts=50, dur=10, device=1),
        copy("Memset (Device)", ts=55, dur=8, device=1, category="gpu_memset"),
        kernel("gemm", ts=90, dur=10, device=3),
    )
    columns = ["device", "span_ns", "busy_ns", "idle_ns", "kernel_ns"]
    columns += ["copy_ns", "memset_ns", "slices"]
    assert device_busy(record)[columns].to_numpy().tolist() == [
        [1, 100, 43, 57, 30, 10, 8, 4],
        [3, 100, 10, 90, 10, 0, 0, 1],
    ]
    assert device_busy(record)["busy_share"].tolist() == [0.43, 0.1]


@given(
    st.lists(st.tuples(st.integers(0, 50), st.integers(1, 9), st.integers(7, 8)), min_size=1),
    st.integers(0, 60),
    st.integers(1, 30),
)
def test_busy_time_of_a_window_is_that_of_its_moments(
    rows: list[tuple[int, int, int]], t0: int, span: int
) -> None:
    record = trace_of(
        op("run", ts=0, dur=100),
        *(kernel("k", ts=ts, dur=dur, stream=stream) for ts, dur, stream in rows),
    )
    part = device_busy(window(record, t0, t0 + span))
    moments = {t for ts, dur, _ in rows for t in range(ts, ts + dur)} & set(range(t0, t0 + span))
    assert part["busy_ns"].tolist() == [len(moments)]
    assert (part["busy_ns"] + part["idle_ns"] == span).all()


def gap_between_two_kernels(*cpu: object, launch: int = 55) -> dict[str, object]:
    """The gap [20, 80) between two kernels; the second is launched at ``launch``."""
    record = trace_of(
        annotation("run", ts=0, dur=100),
        runtime("cudaLaunchKernel", ts=launch, dur=3),
        kernel("first", ts=0, dur=20),
        kernel("second", ts=80, dur=20, launched_by=1),
        *cpu,  # type: ignore[arg-type]
    )
    gaps = idle(record)
    assert len(gaps) == 1
    return dict(gaps.iloc[0])


def test_a_gap_names_what_surrounds_it_and_what_the_cpu_did() -> None:
    gap = gap_between_two_kernels(
        op("aten::slow", ts=10, dur=40), op("aten::part", ts=22, dur=5), op("aten::x", ts=60, dur=9)
    )
    assert (gap["start_ns"], gap["end_ns"], gap["dur_ns"]) == (20, 80, 60)
    assert (gap["before_name"], gap["after_name"]) == ("first", "second")
    assert gap["cpu_name"] == "aten::slow"
    assert gap["cpu_share"] == 25 / 60
    assert (gap["cause"], gap["launch_ns"]) == ("host", 55)


def test_short_calls_of_one_op_outweigh_a_longer_call_of_another() -> None:
    gap = gap_between_two_kernels(
        op("aten::once", ts=20, dur=20),
        *(op("aten::often", ts=40 + 13 * i, dur=12) for i in range(3)),
        launch=79,
    )
    assert gap["cpu_name"] == "aten::often"


SYNC = "cudaStreamSynchronize"


@pytest.mark.parametrize(
    ("launch", "cpu", "cause"),
    [
        (19, [], "device"),  # launched before the gap: it waited for the GPU itself
        (20, [], "host"),
        (55, [op("aten::item", ts=4, dur=26), runtime(SYNC, ts=5, dur=20)], "synchronise"),
        (55, [runtime(SYNC, ts=5, dur=20, thread=2)], "host"),
        (55, [runtime(SYNC, ts=5, dur=15)], "host"),
        (55, [annotation("enumerate(DataLoader)#__next__", ts=20, dur=30)], "host"),
        (55, [annotation("enumerate(DataLoader)#__next__", ts=20, dur=31)], "dataloader"),
    ],
)
def test_a_gap_has_one_cause(launch: int, cpu: list[Row], cause: str) -> None:
    assert gap_between_two_kernels(*cpu, launch=launch)["cause"] == cause


def test_of_a_gap_without_launch_the_thread_that_launches_most_tells() -> None:
    threads = [100, 200, 200, 300]
    calls = [
        runtime("cudaLaunchKernel", ts=n, dur=1, thread=thread) for n, thread in enumerate(threads)
    ]
    work = [kernel("gemm", ts=10 + 10 * n, dur=10, launched_by=n) for n in range(len(calls))]
    ops = [op(f"aten::on_{thread}", ts=50, dur=20, thread=thread) for thread in set(threads)]
    record = trace_of(*calls, *work, kernel("stray", ts=70, dur=10), *ops)
    gap = idle(record).set_index("start_ns").loc[50]
    assert (gap["cause"], gap["cpu_name"]) == ("unknown", "aten::on_200")
    assert record.trace.tracks["thread"][gap["thread"]] == "200"


def test_gaps_at_the_edges_and_without_launch_are_told_apart() -> None:
    record = trace_of(
        op("aten::mm", ts=0, dur=100),
        kernel("first", ts=30, dur=10),
        kernel("second", ts=60, dur=10),
    )
    gaps = idle(record).set_index("start_ns").sort_index()
    assert gaps["cause"].tolist() == ["start", "unknown", "end"]
    assert gaps["before_name"].tolist() == ["", "first", "second"]
    assert gaps["after_name"].tolist() == ["first", "second", ""]
    assert gaps["cpu_name"].tolist() == ["aten::mm"] * 3


def test_a_record_without_gpu_has_no_gaps_but_all_columns() -> None:
    none = idle(trace_of(op("aten::mm", ts=0, dur=9)))
    assert len(none) == 0
    assert list(none) == list(idle(trace_of(kernel("k", ts=0, dur=1), op("x", ts=0, dur=9))))
    assert len(idle(trace_of(kernel("only", ts=5, dur=9)))) == 0


SYNCHRONISING = [
    "cudaStreamSynchronize",
    "cudaDeviceSynchronize",
    "cudaEventSynchronize",
    "cudaMemcpy",
    "hipStreamSynchronize",
    "hipDeviceSynchronize",
    "hipMemcpyWithStream",
    "cuStreamSynchronize",
    "cuMemcpyDtoH_v2",
]


@pytest.mark.parametrize("name", SYNCHRONISING)
def test_a_call_that_waits_names_its_op_and_the_kernel_it_waited_for(name: str) -> None:
    category = "cuda_driver" if name.startswith(("cuS", "cuM")) else "cuda_runtime"
    record = trace_of(
        annotation("step", ts=0, dur=100),
        op("aten::item", ts=10, dur=50),
        op("aten::_local_scalar_dense", ts=11, dur=48),
        runtime(name, ts=20, dur=30, category=category),
        kernel("gemm", ts=0, dur=25),
        kernel("relu", ts=25, dur=20),
        kernel("later", ts=49, dur=30),
    )
    wait = waits(record).iloc[0]
    assert (wait["kind"], wait["name"], wait["dur_ns"]) == ("synchronise", name, 30)
    assert wait["op_name"] == "aten::item"
    assert wait["gpu_name"] == "relu"
    assert wait["gpu_busy_ns"] == 26


def test_neither_calls_that_return_at_once_nor_ops_named_like_calls_are_waits() -> None:
    at_once = ("cudaMemcpyAsync", "cudaLaunchKernel", "hipMemcpyAsync", "cudaEventRecord")
    calls = [runtime(name, ts=20, dur=30) for name in (*at_once, "cuMemcpyDtoHAsync_v2")]
    assert not len(waits(trace_of(*calls, op("cudaMemcpy", ts=20, dur=30))))


def test_an_asynchronous_copy_is_a_wait_if_it_returns_after_the_copy() -> None:
    def calls(end: int) -> Record:
        return trace_of(
            op("aten::nonzero", ts=10, dur=90),
            runtime("cudaMemcpyAsync", ts=20, dur=end - 20),
            copy("Memcpy DtoH (Device -> Pageable)", ts=60, dur=20, launched_by=1),
            kernel("gemm", ts=0, dur=58),
        )

    (wait,) = waits(calls(80)).itertuples()
    assert (wait.name, wait.dur_ns, wait.op_name) == ("cudaMemcpyAsync", 60, "aten::nonzero")
    assert (wait.gpu_busy_ns, wait.gpu_name) == (38 + 20, "gemm")
    assert (wait.copy, wait.copy_name) == (3, "Memcpy DtoH (Device -> Pageable)")
    assert len(waits(calls(79))) == 0
    cut = window(calls(79), 0, 70)  # the edge of a window ends both at once
    assert len(waits(cut)) == 0


def test_waits_for_the_dataloader_count_once_though_loaders_wrap_loaders() -> None:
    name = "enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__"
    record = trace_of(
        annotation(name, ts=0, dur=40),
        annotation("enumerate(DataPipe)#Shuffler", ts=1, dur=20),
        op(name, ts=50, dur=10, category="Operator"),
        op(name, ts=70, dur=5),
    )
    table = waits(record)
    assert table["kind"].tolist() == ["dataloader"] * 2
    assert table["dur_ns"].tolist() == [40, 5]


def test_steps_are_those_of_the_cpu() -> None:
    record = trace_of(
        annotation("ProfilerStep#3", ts=0, dur=50),
        annotation("ProfilerStep#4", ts=50, dur=60),
        gpu_annotation("ProfilerStep#3", ts=10, dur=80),
        kernel("gemm", ts=10, dur=20),
        kernel("relu", ts=45, dur=10, stream=9),
    )
    columns = ["step", "start_ns", "end_ns", "dur_ns", "gpu_busy_ns"]
    table = steps(record)
    assert table[columns].to_numpy().tolist() == [[3, 0, 50, 50, 25], [4, 50, 110, 60, 5]]
    slices = record.trace.slices.loc[table["row"]]
    assert slices["name"].tolist() == ["ProfilerStep#3", "ProfilerStep#4"]
    assert slices["dur"].tolist() == [50, 60]


def test_steps_of_a_trace_of_the_gpu_alone_are_those_of_its_streams() -> None:
    record = trace_of(
        gpu_annotation("ProfilerStep#3", ts=10, dur=20),
        gpu_annotation("ProfilerStep#3", ts=15, dur=30, stream=9),
        kernel("gemm", ts=12, dur=4),
    )
    columns = ["step", "start_ns", "end_ns", "gpu_busy_ns"]
    assert steps(record)[columns].to_numpy().tolist() == [[3, 0, 35, 4]]


def test_python_meanwhile_is_that_of_the_launching_thread() -> None:
    record = trace_of(
        op("aten::mm", ts=0, dur=5),
        python("train.py(3): step", ts=0, dur=100),
        python("train.py(9): prepare", ts=20, dur=50),
        op("aten::copy_", ts=0, dur=5, thread=2),
        python("threading.py(1): wait", ts=0, dur=100, thread=2),
    )
    tracks = record.trace.tracks
    thread = tracks.index[(tracks["kind"] == "cpu") & (tracks["thread"] == "100")][0]
    assert python_meanwhile(record.trace, int(thread), 10, 90) == "train.py(9): prepare"


def test_calls_that_launch_the_work_of_one_gpu_are_not_told_of_another_that_ran_nothing() -> None:
    us, rows = 1_000, []
    for number in range(6):
        began = number * 1000 * us
        rows += [
            op("aten::mm", ts=began, dur=500 * us),
            runtime("cudaLaunchKernel", ts=began + 50 * us, dur=400 * us),
            kernel("k", ts=began + 100 * us, dur=800 * us, launched_by=3 * number + 1),
        ]
    later = kernel("k", ts=6100 * us, dur=100 * us, device=1)
    part = window(trace_of(*rows, later), 1000 * us, 6000 * us)
    assert [one.rule for one in findings(part) if "GPU 1" in one.text] == ["device_idle"]


def test_work_that_took_no_time_is_work() -> None:
    """It began and ended in the run, which is no range within a gap."""
    run = trace_of(
        op("aten::mm", ts=0, dur=10),
        runtime("cudaLaunchKernel", ts=2, dur=2),
        kernel("k", ts=5, dur=0, launched_by=1),
    )
    assert idle(run)["cause"].tolist() == ["start"]
    classes = breakdown(run).set_index("class")["time_ns"]
    assert classes[classes > 0].to_dict() == {"other": 10}


def test_slices_without_duration_are_not_what_a_gap_lies_between() -> None:
    record = trace_of(
        kernel("empty", ts=10, dur=0, stream=5),
        kernel("empty", ts=20, dur=0, stream=5),
        kernel("first", ts=0, dur=10),
        kernel("second", ts=20, dur=10),
    )
    (gap,) = idle(record).to_dict("records")
    assert (gap["start_ns"], gap["end_ns"]) == (10, 20)
    assert (gap["before_name"], gap["after_name"]) == ("first", "second")
