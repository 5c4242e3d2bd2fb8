"""Exports of Nsight Systems: what is read of each table, and what of a file that lacks some."""

from __future__ import annotations

from typing import Any

import pytest

from gpuprof_widgets.analyses import ANALYSES
from gpuprof_widgets.analyses.findings import FINDINGS
from gpuprof_widgets.analyses.reasons import MEMORY, why_empty
from gpuprof_widgets.exceptions import TraceError
from gpuprof_widgets.trace.model import Record, Trace
from tests.profiler_databases import NSYS, PID, TID, Nsys, emitted, global_id, notes, rows

pytestmark = pytest.mark.slow


def args(trace: Trace, row: int, *keys: str) -> list[Any]:
    return [trace.args[key].get(row) for key in keys]


def a_run() -> Nsys:
    """One op with one launch and one kernel, on a clock that begins at 1,000."""
    made = Nsys()
    made.range(emitted("aten::mm", number=1, sequence=0, sizes=[[4, 8], [8, 2]]), 1_000, 1_400)
    made.call("cudaLaunchKernel_v7000", 1_100, 1_200, correlation=77)
    made.kernel("void gemm<float>(float*)", 1_500, 2_500, correlation=77, device=1, stream=9)
    return made


def test_a_kernel_is_on_its_stream_and_knows_its_launch_and_op() -> None:
    trace = a_run().record().trace
    (kernel,) = rows(trace, "kernel").itertuples()
    assert (kernel.name, kernel.ts, kernel.dur) == ("void gemm<float>(float*)", 500, 1_000)
    assert (kernel.device, kernel.stream) == (1, 9)
    assert trace.slices["name"][kernel.launch] == "cudaLaunchKernel"
    assert trace.slices["name"][kernel.op] == "aten::mm"
    keys = ("grid", "block", "registers per thread", "shared memory", "context", "correlation")
    assert args(trace, kernel.Index, *keys[:-1]) == [[4, 2, 1], [64, 1, 1], 32, 24, 1]
    assert kernel.correlation == 77


def test_the_clock_begins_with_the_first_event_of_the_session() -> None:
    made = a_run()
    made.add("TARGET_INFO_SESSION_START_TIME", utcEpochNs=1_700_000_000_000_000_000)
    trace = made.record().trace
    assert (trace.start_ns, trace.end_ns) == (0, 1_500)
    assert trace.epoch_ns == 1_700_000_000_000_001_000


@pytest.mark.parametrize(
    ("written", "name", "category"),
    [
        ("cudaLaunchKernel_v7000", "cudaLaunchKernel", "cuda_runtime"),
        ("cudaLaunchKernelExC_v11060", "cudaLaunchKernelExC", "cuda_runtime"),
        ("cudaMemcpyAsync_ptsz_v7000", "cudaMemcpyAsync", "cuda_runtime"),
        ("cuLaunchKernel", "cuLaunchKernel", "cuda_driver"),
        ("cuMemcpyHtoDAsync_v2", "cuMemcpyHtoDAsync_v2", "cuda_driver"),
    ],
)
def test_calls_are_of_the_runtime_or_of_the_driver(written: str, name: str, category: str) -> None:
    made = Nsys()
    made.call(written, 10, 30, correlation=4)
    made.kernel("k", 40, 50, correlation=4)
    trace = made.record().trace
    (call,) = rows(trace, category).itertuples()
    assert (call.name, call.process, call.thread) == (name, str(PID), str(TID))
    assert rows(trace, "kernel")["launch"].tolist() == [call.Index]


@pytest.mark.parametrize(
    ("row", "name", "direction"),
    [
        ({"copyKind": 1, "srcKind": 0, "dstKind": 2}, "Memcpy HtoD (Pageable -> Device)", "HtoD"),
        ({"copyKind": 2, "srcKind": 2, "dstKind": 1}, "Memcpy DtoH (Device -> Pinned)", "DtoH"),
        ({"copyKind": 8, "srcKind": 2, "dstKind": 2}, "Memcpy DtoD (Device -> Device)", "DtoD"),
        ({"copyKind": 10, "srcDeviceId": 0, "dstDeviceId": 1}, None, "PtoP"),
        ({"copyKind": 11}, "Memcpy HtoD (Unified)", "HtoD"),
        ({"copyKind": 1}, "Memcpy HtoD (Unknown -> Unknown)", "HtoD"),
        ({"copyKind": 99}, None, ""),
        ({}, None, ""),
    ],
)
def test_copies_say_from_where_to_where(
    row: dict[str, int], name: str | None, direction: str
) -> None:
    made = Nsys()
    made.gpu("MEMCPY", 10, 30, bytes=4_096, **row)
    record = made.record()
    (copy,) = rows(record.trace, "gpu_memcpy").itertuples()
    assert name is None or copy.name == name
    (told,) = ANALYSES["copies"].function(record).itertuples()
    assert (told.direction, told.bytes, told.dur_ns) == (direction, 4_096, 20)


def test_kinds_of_memory_are_numbered_as_the_file_says() -> None:
    made = Nsys()
    made.add("ENUM_CUDA_MEM_KIND", id=5, name="X", label="Pinned")
    made.gpu("MEMSET", 10, 30, bytes=64, memKind=5)
    assert rows(made.record().trace, "gpu_memset")["name"].tolist() == ["Memset (Pinned)"]


def test_a_graph_that_was_traced_as_a_whole_is_gpu_work() -> None:
    made = Nsys()
    made.call("cudaGraphLaunch_v10000", 5, 8, correlation=3)
    made.gpu("GRAPH_TRACE", 10, 30, graphId=1, graphExecId=4, correlation=3)
    record = made.record()
    assert rows(record.trace, "kernel")["name"].tolist() == ["CUDA graph 4"]
    assert ANALYSES["device_busy"].function(record)["busy_ns"].tolist() == [20]


def test_a_stream_s_wait_for_an_event_knows_which_record_it_waits_for() -> None:
    """The latest record of that event before the wait; other events and later ones are not."""
    made = Nsys()
    for correlation, stream, event in ((1, 7, 5), (2, 8, 5), (3, 9, 6), (9, 10, 5)):
        ids = {"correlationId": correlation, "streamId": stream, "eventId": event}
        made.add("CUPTI_ACTIVITY_KIND_CUDA_EVENT", globalPid=global_id(PID, 0), **ids)
    made.gpu("SYNCHRONIZATION", 10, 20, correlation=4, stream=7, syncType=2, eventId=5)
    made.gpu("SYNCHRONIZATION", 30, 40, correlation=5, stream=7, syncType=1, eventId=77)
    made.gpu("SYNCHRONIZATION", 50, 60, correlation=6, stream=0xFFFFFFFF, syncType=4)
    trace = made.record().trace
    found = rows(trace, "cuda_sync").sort_values("ts")
    assert found["name"].tolist() == ["Stream Wait Event", "Event Sync", "Context Sync"]
    assert found["thread"].tolist() == ["7", "7", "-1"]
    keys = ("wait_on_stream", "wait_on_cuda_event_record_corr_id", "wait_on_cuda_event_id")
    told = [args(trace, row, *keys) for row in found.index]
    assert told == [[8, 2, 5], [None, None, 77], [None, None, None]]


def test_pushed_ranges_nest_and_own_what_was_launched_in_them() -> None:
    made = Nsys()
    made.range("epoch", 10, 100)
    made.range("step", 20, 60)
    made.call("cudaLaunchKernel_v7000", 30, 40, correlation=1)
    made.kernel("k", 50, 70, correlation=1)
    trace = made.record().trace
    notes = rows(trace, "user_annotation").set_index("name")
    names = trace.slices["name"].to_numpy(object)
    assert names[notes.loc["step", "parent"]] == "epoch"
    assert names[rows(trace, "kernel")["op"].item()] == "step"


def test_annotations_are_seen_on_each_stream_that_they_gave_work() -> None:
    """From the first to the last slice there; an op is none, and neither is what gave no work."""
    made = Nsys()
    made.range("step", 10, 500)
    made.range("forward", 20, 200)
    made.range("aten::mm, op_id = 1", 30, 190)
    made.range("idle", 210, 220)
    for correlation, at, stream in ((1, 40, 7), (2, 60, 8), (3, 300, 7)):
        made.call("cudaLaunchKernel_v7000", at, at + 5, correlation=correlation)
        made.kernel("k", at + 1_000, at + 1_050, correlation=correlation, stream=stream)
    trace = made.record().trace
    found = rows(trace, "gpu_user_annotation").sort_values(["ts", "name"])
    spans = found[["name", "stream", "ts", "end"]].astype({"name": object})
    assert list(spans.itertuples(index=False, name=None)) == [
        ("forward", 7, 1_030, 1_080),
        ("step", 7, 1_030, 1_340),
        ("forward", 8, 1_050, 1_100),
        ("step", 8, 1_050, 1_100),
    ]
    assert set(trace.tracks["kind"][found["track"]]) == {"annotation"}
    table = ANALYSES["annotations"].function(made.record()).set_index("name")
    assert table["gpu_span_ns"].to_dict() == {"step": 360, "forward": 100, "idle": 0}


def test_started_ranges_stand_apart_as_they_may_cross() -> None:
    """Three of which two are open at once take two rows, and none owns the launch in it."""
    made = Nsys()
    for name, start, end in (("a", 10, 100), ("b", 50, 150), ("c", 100, 200)):
        made.range(name, start, end, eventType=60, endGlobalTid=global_id(PID, 7))
    made.call("cudaLaunchKernel_v7000", 30, 40, correlation=1)
    made.kernel("k", 50, 70, correlation=1)
    trace = made.record().trace
    found = rows(trace, "nvtx_range").set_index("name")
    assert found["thread"].to_dict() == {
        "a": "NVTX start/end",
        "b": "NVTX start/end 2",
        "c": "NVTX start/end",
    }
    assert found["depth"].tolist() == [0, 0, 0]
    assert rows(trace, "kernel")["op"].tolist() == [-1]


def test_marks_are_moments_of_their_thread() -> None:
    made = a_run()
    made.range("here", 1_250, None, eventType=34)
    (mark,) = rows(made.record().trace, "cpu_instant_event").itertuples()
    assert (mark.name, mark.ts, mark.dur, mark.thread) == ("here", 250, 0, str(TID))


def test_registered_texts_and_domains_are_named() -> None:
    made = Nsys()
    made.range("NCCL", 1, None, eventType=75, domainId=2)
    made.range("", 10, 50, textId=made.text("ncclAllReduce"), domainId=2)
    made.range("", 20, 30)
    made.range("aten::add, op_id = 1", 60, 70, domainId=3)
    trace = made.record().trace
    found = rows(trace, "user_annotation")
    assert found["name"].tolist() == ["ncclAllReduce", "(unnamed range)", "aten::add, op_id = 1"]
    assert [trace.args["domain"].get(row) for row in found.index] == ["NCCL", None, "domain 3"]


@pytest.mark.parametrize("end", [None, 0], ids=["NULL", "0 in old exports"])
def test_ranges_without_an_end_end_with_the_recording(end: int | None) -> None:
    made = a_run()
    made.range("all of it", 900, end)
    record = made.record()
    (whole,) = rows(record.trace, "user_annotation").itertuples()
    assert (whole.ts, whole.dur) == (0, 1_600)
    assert "1 of 2 NVTX ranges were open when the recording ended" in notes(record)


def test_processes_share_neither_launches_nor_streams() -> None:
    """Two ranks on one GPU: their correlation ids and stream numbers are the same."""
    made = Nsys()
    for pid, at in ((100, 10), (200, 12)):
        made.call(f"cudaLaunchKernel{pid}", at, at + 5, correlation=1, pid=pid, tid=pid)
        made.kernel(f"k{pid}", at + 20, at + 60, correlation=1, pid=pid)
    trace = made.record().trace
    kernels = rows(trace, "kernel")
    names = trace.slices["name"].to_numpy(object)
    launched = dict(zip(kernels["name"], names[kernels["launch"]], strict=True))
    assert launched == {"k100": "cudaLaunchKernel100", "k200": "cudaLaunchKernel200"}
    assert kernels["track"].nunique() == 2
    assert kernels["stream"].tolist() == [7, 7]


def test_threads_and_processes_have_their_names() -> None:
    made = a_run()
    made.add("PROCESSES", globalPid=global_id(PID, 0), pid=PID, name="python3")
    for name, priority in (("worker", 10), ("main", 50), ("pool", 20)):
        number = made.text(name)
        made.add("ThreadNames", nameId=number, priority=priority, globalTid=global_id(PID, TID))
    trace = made.record().trace
    assert set(rows(trace, "cuda_runtime")["label"]) == {"main"}


def test_the_gpu_is_described_as_kineto_describes_it() -> None:
    made = a_run()
    gpu = {"name": "NVIDIA H100", "totalMemory": 80 << 30, "smCount": 132, "threadsPerWarp": 32}
    made.add("TARGET_INFO_GPU", id=0, cuDevice=1, computeMajor=9, computeMinor=0, **gpu)
    made.add("TARGET_INFO_SYSTEM_ENV", name="Hostname", value="node7")
    record = made.record()
    (device,) = record.metadata["devices"]
    assert device == {"index": 1, "name": "NVIDIA H100", "total_memory_bytes": 80 << 30}
    (told,) = ANALYSES["gpu_summary"].function(record).itertuples()
    assert (told.device_name, told.compute_capability) == ("NVIDIA H100", "9.0")
    assert record.metadata["host"] == "node7"
    # 8 blocks of the kernel's grid on 132 multiprocessors
    assert ANALYSES["kernels"].function(record)["blocks_per_sm"].tolist() == [8 / 132]


def test_what_only_draws_the_screen_is_no_gpu_of_the_run() -> None:
    made = a_run()
    made.add("TARGET_INFO_GPU", id=0, cuDevice=0, name="NVIDIA H100", computeMajor=9)
    made.add("TARGET_INFO_GPU", id=1, cuDevice=0, name="Basic Render Driver", computeMajor=0)
    made.add("TARGET_INFO_GPU", id=2, cuDevice=1, name="NVIDIA of an old export")
    devices = made.record().metadata["devices"]
    assert {one["index"]: one["name"] for one in devices} == {
        0: "NVIDIA H100",
        1: "NVIDIA of an old export",
    }


def test_processes_that_see_one_gpu_each_are_on_their_own() -> None:
    """With CUDA_VISIBLE_DEVICES each process calls its GPU 0."""
    made = Nsys()
    for gpu, pid in ((0, 100), (1, 200), (1, 300)):
        made.add("TARGET_INFO_CUDA_DEVICE", gpuId=gpu, cudaId=int(pid == 300), pid=pid)
    for gpu in (0, 1):
        made.add("TARGET_INFO_GPU", id=gpu, cuDevice=1 - gpu, name=f"GPU number {gpu}")
    for pid, device in ((100, 0), (200, 0), (300, 1), (400, 1), (500, 0)):
        made.kernel(f"of {pid}", 10, 50, pid=pid, device=device)
    memory = {"bytes": 512, "memKind": 2, "memoryOperationType": 0}
    owner = {"deviceId": 0, "globalPid": global_id(200, 0)}
    made.add("CUDA_GPU_MEMORY_USAGE_EVENTS", start=5, **owner, **memory)
    record = made.record()
    kernels = rows(record.trace, "kernel").set_index("name")
    # 400 is not in the table, but all who have a device 1 mean the same; 500's 0 stays as it is
    expected = {"of 100": 0, "of 200": 1, "of 300": 1, "of 400": 1, "of 500": 0}
    assert kernels["device"].to_dict() == expected
    assert record.trace.counters["name"].tolist() == ["GPU 1 reserved"]
    named = {one["index"]: one["name"] for one in record.metadata["devices"]}
    assert named == {0: "GPU number 0", 1: "GPU number 1"}


def with_memory(*events: tuple[int, int, int], made: Nsys | None = None, **place: int) -> Nsys:
    """A run with these events: time, 0 to take memory or 1 to give it back, bytes."""
    made = made or a_run()
    place = {"deviceId": 0, "memKind": 2, **place}
    for start, operation, size in events:
        change = {"bytes": size, "memoryOperationType": operation}
        made.add("CUDA_GPU_MEMORY_USAGE_EVENTS", start=start, **change, **place)
    return made


def test_memory_that_was_taken_from_the_driver_is_counted() -> None:
    made = with_memory((10, 0, 100), (20, 0, 50), (30, 1, 100))
    record = with_memory((15, 0, 8), made=made, memKind=1).record()
    counted = record.trace.counters
    values = {
        str(name): list(zip(table["ts"] + 10, table["value"], strict=True))
        for name, table in counted.groupby("name", observed=True)
    }
    assert values == {
        "GPU 0 reserved": [(10, 100), (20, 150), (30, 50)],
        "GPU 0 pinned memory used": [(15, 8)],
    }
    table = ANALYSES["counters"].function(record, derived=False)
    assert set(zip(table["name"], table["series"], table["unit"], strict=True)) == {
        ("GPU 0 memory", "reserved", "bytes"),
        ("GPU 0 pinned memory used", "", "bytes"),
    }


def with_totals() -> Record:
    """1,000 bytes of memory on a GPU, of which 950 were taken."""
    place = {"globalPid": global_id(PID, 0), "deviceId": 1}
    made = with_memory((1_100, 0, 950), (1_200, 1, 900), **place)
    made.add("TARGET_INFO_GPU", id=0, cuDevice=1, name="NVIDIA H100", totalMemory=1_000)
    return made.record()


def test_totals_of_memory_are_a_curve_where_no_allocation_is_known() -> None:
    record = with_totals()
    curve = ANALYSES["memory_curve"].function(record)
    assert list(curve.itertuples(index=False, name=None)) == [
        ("GPU 1", 100, -1, 950),
        ("GPU 1", 200, -1, 50),
    ]
    for name in ("allocations", "memory_peak", "memory"):
        assert why_empty(ANALYSES[name].function(record)) == MEMORY


def test_of_totals_a_full_gpu_is_told_and_no_fragmentation() -> None:
    (found,) = FINDINGS["memory_room"](with_totals())
    assert found.text == "GPU 1 had 95 % of its 1000 B of memory taken at 100 ns."


def test_memory_from_before_the_recording_never_counts_below_zero() -> None:
    made = with_memory((10, 1, 70), (20, 0, 30))
    assert made.record().trace.counters["value"].tolist() == [0, 30]


def test_metrics_of_the_gpu_are_counters() -> None:
    made = a_run()
    kind = (5 << 8) | 1
    made.add("TARGET_INFO_GPU_METRICS", typeId=kind, metricId=4, metricName="SMs Active [%]")
    for at, value in ((1_000, 20), (1_100, 80)):
        made.add("GPU_METRICS", timestamp=at, typeId=kind, metricId=4, value=value)
    table = ANALYSES["counters"].function(made.record(), derived=False)
    assert table[["name", "unit", "value"]].to_numpy().tolist() == [
        ["GPU 1 SMs Active [%]", "%", 20],
        ["GPU 1 SMs Active [%]", "%", 80],
    ]


@pytest.mark.parametrize(("table", "category"), [("OSRT_API", "osrt"), ("CUBLAS_EVENTS", "cublas")])
def test_calls_of_other_libraries_are_on_rows_of_their_own(table: str, category: str) -> None:
    """They do not come between a launch and its op."""
    made = a_run()
    number = made.text("pthread_cond_wait")
    made.add(table, start=1_050, end=1_300, globalTid=global_id(PID, TID), nameId=number)
    trace = made.record().trace
    (call,) = rows(trace, category).itertuples()
    assert (call.name, call.dur, call.thread) == ("pthread_cond_wait", 250, str(TID))
    assert trace.tracks["kind"][call.track] == "other"
    assert trace.slices["name"][rows(trace, "kernel")["op"].item()] == "aten::mm"


def test_what_the_profiler_cost_is_overhead() -> None:
    made = a_run()
    name = made.text("CUPTI buffer flush")
    made.add("PROFILER_OVERHEAD", start=1_000, end=1_600, globalTid=global_id(PID, 1), nameId=name)
    trace = made.record().trace
    assert rows(trace, "overhead")["name"].tolist() == ["CUPTI buffer flush"]
    assert trace.slices["name"][rows(trace, "kernel")["op"].item()] == "aten::mm"


def test_warnings_of_nsight_systems_are_passed_on() -> None:
    made = a_run()
    for level, label in ((1, "Information"), (2, "Warning"), (3, "Error")):
        made.add("ENUM_DIAGNOSTIC_SEVERITY_LEVEL", id=level, name="", label=label)
    texts = [(1, "all is well"), (2, "events were\n lost"), (2, "events were\n lost")]
    texts += [(3, f"error {number}") for number in range(6)]
    for level, text in texts:
        made.add("DIAGNOSTIC_EVENT", timestamp=1, severity=level, text=text)
    said = made.record().metadata["notes"]
    assert said[0] == "Nsight Systems: events were lost"
    assert said[-1] == "Nsight Systems: 2 more warnings"
    assert len(said) == 6


def test_tables_that_are_not_read_are_named() -> None:
    made = a_run()
    made.add("SCHED_EVENTS", start=5, cpu=1, isSchedIn=1, globalTid=global_id(PID, TID))
    assert notes(made.record()) == "SCHED_EVENTS is not read (1 rows)"


BAD_TIMES = {
    "no start": (None, 30),
    "ends before it starts": (30, 10),
    "negative": (-5, 10),
    "never measured": (0, 0),
    "beyond all clocks": (10, 2**63 - 1),
    "text": ("soon", "later"),
}


@pytest.mark.parametrize("times", BAD_TIMES.values(), ids=BAD_TIMES)
def test_rows_without_valid_times_are_left_out_and_counted(times: tuple[Any, Any]) -> None:
    made = a_run()
    made.kernel("odd", *times)
    record = made.record()
    assert rows(record.trace, "kernel")["name"].tolist() == ["void gemm<float>(float*)"]
    assert notes(record) == "1 of 4 rows have no valid times and were left out"


def test_real_numbers_as_times_are_whole_nanoseconds() -> None:
    made = a_run()
    made.kernel("odd", 500.7, 510.2)  # type: ignore[arg-type]
    assert rows(made.record().trace, "kernel")["dur"].tolist() == [10, 1_000]


@pytest.mark.parametrize("table", sorted(set(NSYS) - {"StringIds"}))
def test_any_table_may_be_missing(table: str) -> None:
    """Exports hold the tables of what was recorded, and differ by version."""
    made = a_run()
    made.without(table)
    record = made.record()
    assert len(record.trace) == 3 - (table in HOLDS_ONE)
    assert record.metadata["notes"] == []


HOLDS_ONE = ("CUPTI_ACTIVITY_KIND_KERNEL", "CUPTI_ACTIVITY_KIND_RUNTIME", "NVTX_EVENTS")


COLUMNS = [
    (table, column)
    for table in HOLDS_ONE
    for column in NSYS[table].split()
    if column not in ("start", "end")
]


@pytest.mark.parametrize(("table", "column"), COLUMNS)
def test_any_column_but_the_times_may_be_missing(table: str, column: str) -> None:
    made = a_run()
    made.run(f'ALTER TABLE {table} DROP COLUMN "{column}"')
    record = made.record()
    found = record.trace.slices["category"].value_counts()
    assert found["kernel"] == 1
    assert found["cuda_runtime"] == 1
    ranges = found.get("cpu_op", 0) + found.get("user_annotation", 0)
    assert ranges == 1 or "NVTX events of type unknown are not read" in notes(record)


def test_an_export_without_events_says_how_to_record_some() -> None:
    made = Nsys()
    for _ in range(2):
        with pytest.raises(TraceError, match=r"a single event of CUDA or NVTX.*--trace=cuda"):
            made.record()
        made.add("SCHED_EVENTS", start=5)  # which is not read
