"""Every nanosecond of a GPU in one class: hand-made truths, brute force, identities, and HTA."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuprof_widgets.analyses.breakdown import (
    BUSY_CLASSES,
    CLASSES,
    HOST_CLASSES,
    IDLE_CLASSES,
    breakdown,
    breakdown_segments,
)
from gpuprof_widgets.analyses.collectives import collectives
from gpuprof_widgets.analyses.gpu_work import device_busy, gpu_kinds
from gpuprof_widgets.analyses.idle import idle
from gpuprof_widgets.analyses.reasons import why_empty
from gpuprof_widgets.analyses.regions import steps
from gpuprof_widgets.analyses.streams import overlaps
from gpuprof_widgets.exceptions import OptionError
from gpuprof_widgets.trace.model import Record
from gpuprof_widgets.trace.readers import load
from gpuprof_widgets.trace.window import window
from tests.hta_oracle import hta
from tests.records import records
from tests.traces import (
    Row,
    Shared,
    annotation,
    backward_op,
    calls_of,
    cell_line,
    copy,
    kernel,
    op,
    python,
    runtime,
    trace_of,
)

LOADING = "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__"
NCCL = "ncclDevKernel_AllReduce_Sum_f32_RING_LL"


def times(record: Record) -> dict[str, int]:
    """The classes that took any time, of a record with one device."""
    table = breakdown(record)
    return dict(table.loc[table["time_ns"] > 0, ["class", "time_ns"]].to_numpy().tolist())


def everything() -> Record:
    """Each class once; the comments say from when to when."""
    return trace_of(
        # 0: input pipeline to 20, Python to 60, CPU ops to 80, launching to 90, queued to 100
        annotation(LOADING, ts=0, dur=20),
        op("aten::mm", ts=60, dur=35),
        runtime("cudaLaunchKernel", ts=80, dur=10),
        kernel("gemm", ts=100, dur=100, launched_by=2),
        # compute to 200, communication to 260, copy to 300, memset to 310
        kernel(NCCL, ts=150, dur=110, stream=20),
        copy(ts=250, dur=50, stream=22),
        kernel("Memset (Device)", ts=290, dur=20, category="gpu_memset", stream=22),
        # queued to 330, compute to 400
        runtime("cudaLaunchKernel", ts=120, dur=5),
        kernel("relu", ts=330, dur=70, launched_by=7),
        # the host had waited for 30: synchronising to 430, Python to 480, launching to 485,
        # queued to 500
        op("aten::item", ts=375, dur=37),
        runtime("cudaStreamSynchronize", ts=380, dur=30),
        runtime("cudaLaunchKernel", ts=480, dur=5),
        kernel("gemm", ts=500, dur=10, launched_by=11),
        # Python to 520 and from 560 to 580, runtime calls between, launching to 585, queued to 600
        runtime("cudaMalloc", ts=520, dur=40),
        runtime("cudaLaunchKernel", ts=580, dur=5),
        kernel("gemm", ts=600, dur=100, launched_by=14),
        # launched by nobody: other to 720; nothing follows: other to 800
        kernel("stray", ts=720, dur=10),
        op("aten::add", ts=790, dur=10),
    )


def test_every_class_has_its_time() -> None:
    assert times(everything()) == {
        "compute": 100 + 70 + 10 + 100 + 10,
        "exposed communication": 60,
        "exposed copy": 40,
        "memset": 10,
        "input pipeline": 20,
        "synchronising": 30,
        "Python": 40 + 50 + 30,
        "CPU ops": 20,
        "runtime calls": 40,
        "launching": 10 + 5 + 5,
        "queued": 20 + 10 + 15 + 15,
        "other": 20 + 70,
    }


def test_a_table_has_all_classes_in_the_order_of_their_priority() -> None:
    table = breakdown(everything())
    assert table["class"].tolist() == list(CLASSES)
    assert table["state"].tolist() == ["busy"] * len(BUSY_CLASSES) + ["idle"] * len(IDLE_CLASSES)
    assert (table["span_ns"] == 800).all()
    assert (table["share"] == table["time_ns"] / 800).all()
    assert set(table["step"]) == {-1}


def launched_late(*cpu: Row, launch: int = 60, stops: int = 80, thread: int = 100) -> Record:
    """The gap [20, 80) between two kernels, the second launched at ``launch`` by that thread.

    cProfile saw Python: so what ran between ops was that.
    """
    return trace_of(
        runtime("cudaLaunchKernel", ts=launch, dur=5, thread=thread),
        kernel("first", ts=0, dur=20),
        kernel("second", ts=stops, dur=20, launched_by=0),
        *cpu,
        calls=PYTHON_RAN,
    )


PYTHON_RAN = calls_of((None, "main", 1, 100))


def waiting(ts: int, dur: int) -> Row:
    return runtime("cudaStreamSynchronize", ts=ts, dur=dur)


LAUNCHED = {"compute": 40, "launching": 5, "queued": 15}


@pytest.mark.parametrize(
    ("record", "expected"),
    [
        (launched_late(op("aten::mm", ts=0, dur=100)), LAUNCHED | {"CPU ops": 40}),
        # Seen: all launches had returned 125 ms before the first kernel began.
        (launched_late(stops=125_000_060), {"launching": 5, "queued": 125_000_060 - 65}),
        (launched_late(launch=16), {"launching": 1, "queued": 59}),
        (launched_late(launch=15), {"launching": 0, "queued": 60}),
        (launched_late(runtime("cudaLaunchKernel", ts=30, dur=10)), {"launching": 5 + 10}),
        (launched_late(runtime("cudaEventRecord", ts=30, dur=10)), {"runtime calls": 10}),
        # A wait costs the gap that begins in it as long as it lasted, another one its own time.
        (launched_late(waiting(15, 10)), LAUNCHED | {"synchronising": 10, "Python": 30}),
        (launched_late(waiting(0, 25)), LAUNCHED | {"synchronising": 25, "Python": 15}),
        (launched_late(waiting(10, 10)), {"synchronising": 0}),
        (launched_late(waiting(30, 4)), {"synchronising": 4}),
        (
            launched_late(
                *(waiting(0, 25), annotation(LOADING, ts=30, dur=20)),
                op("aten::stack", ts=32, dur=10),
            ),
            {"input pipeline": 20, "synchronising": 10},
        ),
        (
            launched_late(op("MyFunction", ts=20, dur=40), python("train.py(3): f", ts=30, dur=10)),
            {"CPU ops": 30, "Python": 10},
        ),
    ],
)
def test_a_gap_belongs_to_what_the_launching_thread_did(
    record: Record, expected: dict[str, int]
) -> None:
    found = times(record)
    assert {name: found.get(name, 0) for name in expected} == expected


def test_a_wait_that_a_window_cuts_costs_as_long_as_it_lasted() -> None:
    record = launched_late(runtime("cudaStreamSynchronize", ts=5, dur=20))
    assert times(window(record, 10, 100))["synchronising"] == 20


def test_a_thread_with_nothing_open_leaves_the_main_thread_to_tell() -> None:
    """The first launch of a backward pass waits for the main thread to get there."""
    found = times(
        trace_of(
            op("aten::mse_loss", ts=25, dur=10),
            *backward_op("MmBackward0", ts=50, dur=30, sequence=1, thread=200),
            runtime("cudaLaunchKernel", ts=60, dur=5, thread=200),
            kernel("first", ts=0, dur=20),
            kernel("second", ts=80, dur=20, launched_by=3),
        )
    )
    assert found == LAUNCHED | {"Python": 5 + 15, "CPU ops": 10 + 10}


def test_between_two_backward_ops_autograds_engine_is_at_work() -> None:
    """Its thread has no op open then, and the main thread waits for it in Python's backward()."""

    def between(*main: Row) -> dict[str, int]:
        return times(
            trace_of(
                python("train.py(9): step", ts=0, dur=200),
                *backward_op("MmBackward0", ts=10, dur=30, sequence=1, thread=200),
                *backward_op("AddBackward0", ts=50, dur=30, sequence=1, thread=200),
                runtime("cudaLaunchKernel", ts=60, dur=5, thread=200),
                kernel("first", ts=0, dur=20),
                kernel("second", ts=80, dur=120, launched_by=5),
                op("aten::mse_loss", ts=0, dur=5),
                *main,
            )
        )

    assert between() == {"compute": 140, "CPU ops": 40, "launching": 5, "queued": 15}
    busy_main = between(python("train.py(11): log", ts=42, dur=5))
    assert (busy_main["CPU ops"], busy_main["Python"]) == (30, 10)


def test_steps_have_their_own_rows() -> None:
    record = trace_of(
        annotation("ProfilerStep#4", ts=0, dur=100),
        annotation("ProfilerStep#5", ts=100, dur=50),
        runtime("cudaLaunchKernel", ts=10, dur=10),
        kernel("gemm", ts=40, dur=80, launched_by=2),
        calls=PYTHON_RAN,
    )
    table = breakdown(record, by="step")
    by_step = table[table["time_ns"] > 0].groupby("step")
    assert {step: dict(zip(g["class"], g["time_ns"], strict=True)) for step, g in by_step} == {
        4: {"compute": 60, "Python": 10, "launching": 10, "queued": 20},
        5: {"compute": 20, "other": 30},
    }
    assert table.groupby("step")["span_ns"].first().to_dict() == {4: 100, 5: 50}
    assert (table["share"] == table["time_ns"] / table["span_ns"]).all()


def test_without_a_gpu_the_time_is_the_main_threads() -> None:
    table = breakdown(
        trace_of(
            annotation(LOADING, ts=0, dur=20),
            op("aten::stack", ts=5, dur=10),
            cell_line(3, "loss = model(x)", ts=20, dur=60),
            op("aten::mm", ts=30, dur=40),
            op("elsewhere", ts=0, dur=100, thread=7),
        )
    )
    assert table["class"].tolist() == list(HOST_CLASSES)
    assert set(table["state"]) == {"host"}
    assert set(table["device"]) == {-1}
    assert table.set_index("class")["time_ns"].to_dict() == dict.fromkeys(HOST_CLASSES, 0) | {
        "input pipeline": 20,
        "Python": 10 + 30,
        "CPU ops": 40,
    }


def test_a_collective_of_the_cpu_that_no_op_hides_is_exposed_communication() -> None:
    gloo = {"thread": 7, "category": "user_annotation"}
    record = trace_of(
        op("aten::mm", ts=0, dur=30),
        op("c10d::allreduce_", ts=30, dur=10),
        op("gloo:all_reduce", ts=35, dur=45, **gloo),
        op("gloo:all_reduce", ts=50, dur=40, **(gloo | {"thread": 8})),
        op("aten::add", ts=60, dur=10),
        op("_c10d_functional::wait_tensor", ts=75, dur=15),
        op("aten::mul", ts=95, dur=5),
    )
    assert times(record) == {
        "CPU ops": 30 + 5 + 10 + 5,
        "exposed communication": 25 + 20,
        "Python": 5,
    }
    assert breakdown(record)["time_ns"].sum() == record.trace.span_ns
    assert collectives(record)["exposed_ns"].sum() == 45


def test_what_cannot_be_told_is_said() -> None:
    assert "neither GPU work nor CPU ops" in why_empty(breakdown(trace_of()))
    assert "no steps" in why_empty(breakdown(everything(), by="step"))
    cpu = trace_of(op("aten::mm", ts=0, dur=9))
    assert "no GPU work" in why_empty(overlaps(cpu))
    with pytest.raises(OptionError, match="by one of device, step"):
        breakdown(cpu, by="rank")
    with pytest.raises(OptionError, match="by one of device, step"):
        overlaps(cpu, by="rank")


def test_communication_comes_before_copies_unlike_in_the_tensorboard_plugin() -> None:
    """There a copy beside communication makes it vanish from the breakdown."""
    record = trace_of(
        op("x", ts=0, dur=10), kernel(NCCL, ts=0, dur=10), copy(ts=2, dur=5, stream=9)
    )
    assert times(record) == {"exposed communication": 10}


def test_what_overlaps_is_beside_the_classes() -> None:
    (row,) = overlaps(everything()).to_dict("records")
    assert (row["communication_ns"], row["communication_overlapped_ns"]) == (110, 50)
    assert row["communication_overlapped_share"] == 50 / 110
    assert (row["copy_ns"], row["copy_overlapped_ns"], row["memset_ns"]) == (50, 0, 20)
    assert row["busy_ns"] + row["idle_ns"] == row["span_ns"] == 800


def test_overlaps_of_steps_are_of_their_step_gpu_and_rank() -> None:
    trace = trace_of(
        annotation("ProfilerStep#4", ts=0, dur=100),
        annotation("ProfilerStep#6", ts=100, dur=50),
        kernel("gemm", ts=40, dur=80, device=1),
        copy(ts=60, dur=80, stream=9, device=1),
    ).trace
    record = Record(replace(trace, tracks=trace.tracks.assign(rank=3)))
    columns = ["rank", "device", "step", "span_ns", "busy_ns", "copy_ns", "copy_overlapped_ns"]
    table = overlaps(record, by="step")
    assert table[columns].to_numpy().tolist() == [
        [3, 1, 4, 100, 60, 40, 40],
        [3, 1, 6, 50, 40, 40, 20],
    ]
    assert table["copy_overlapped_share"].tolist() == [1, 0.5]
    assert overlaps(record)[["rank", "step"]].to_numpy().tolist() == [[3, -1]]
    assert set(breakdown(record)["rank"]) == {3}


def busy_class_by_counting(record: Record, device: int) -> dict[str, int]:
    """The same, moment by moment."""
    trace = record.trace
    rows, kinds = gpu_kinds(trace)
    here = trace.index.device[rows] == device
    found = dict.fromkeys(BUSY_CLASSES, 0)
    ts, dur = trace.slices["ts"].to_numpy(), trace.slices["dur"].to_numpy()
    for moment in range(trace.start_ns, trace.end_ns):
        running = {
            kind
            for row, kind in zip(rows[here], kinds[here], strict=True)
            if ts[row] <= moment < ts[row] + dur[row]
        }
        for name in BUSY_CLASSES:
            if name.removeprefix("exposed ") in running:
                found[name] += 1
                break
    return found


@given(records(), st.integers(0, 40))
def test_classes_add_up_and_busy_ones_are_what_counting_gives(record: Record, cut: int) -> None:
    table, trace = breakdown(record), record.trace
    assert (table.groupby("device")["time_ns"].sum() == trace.span_ns).all()
    for device in set(table["device"]) - {-1}:
        mine = table[table["device"] == device].set_index("class")["time_ns"]
        assert mine[list(BUSY_CLASSES)].to_dict() == busy_class_by_counting(record, device)
    by_step = breakdown(record, by="step").groupby(["device", "step"])
    assert (by_step["time_ns"].sum() == by_step["span_ns"].first()).all()
    for _, part in breakdown_segments(record).groupby("device"):
        assert part["start_ns"].iloc[0] == trace.start_ns
        assert part["end_ns"].iloc[-1] == trace.end_ns
        assert part["start_ns"].tolist()[1:] == part["end_ns"].tolist()[:-1]
        assert (part["class"].to_numpy()[1:] != part["class"].to_numpy()[:-1]).all()
    assert_windows_add_up(record, cut)


def assert_windows_add_up(record: Record, cut: int) -> None:
    """Busy classes exactly; idle time in sum: a window does not know what is launched after it."""
    trace = record.trace
    cut = min(max(cut, trace.start_ns), trace.end_ns)
    parts = [window(record, trace.start_ns, cut), window(record, cut, trace.end_ns)]
    if not device_busy(record)["slices"].sum() or not trace.span_ns:
        return
    whole = state_and_class(record)
    parts = [part for part in parts if part.trace.span_ns]
    halves = [state_and_class(part) for part in parts if len(device_busy(part))]
    inside = [part.trace.span_ns for part in parts if not len(device_busy(part))]
    for name in BUSY_CLASSES:
        assert whole[name] == sum(half[name] for half in halves)
    if len(device_busy(record)) == 1:
        assert whole["idle"] == sum(half["idle"] for half in halves) + sum(inside)


def state_and_class(record: Record) -> dict[str, int]:
    table = breakdown(record)
    by_class = table.groupby("class")["time_ns"].sum().to_dict()
    return by_class | table.groupby("state")["time_ns"].sum().to_dict()


def test_real_traces_are_in_agreement_with_the_other_analyses(shared_record: Record) -> None:
    record = shared_record
    trace = record.trace
    table = breakdown(record)
    if not len(table):
        assert why_empty(table)
        return
    assert (table.groupby("device")["time_ns"].sum() == trace.span_ns).all()
    busy = device_busy(record).set_index("device")
    by_state = table.pivot_table(index="device", columns="state", values="time_ns", aggfunc="sum")
    if len(busy):
        assert by_state["busy"].to_dict() == busy["busy_ns"].to_dict()
        assert by_state["idle"].to_dict() == busy["idle_ns"].to_dict()
    if len(steps(record)):
        by_step = breakdown(record, by="step").groupby(["device", "step"])
        assert (by_step["time_ns"].sum() == by_step["span_ns"].first()).all()
    totals = overlaps(record)
    if len(totals):
        hidden = totals["communication_ns"] - totals["communication_overlapped_ns"]
        exposed = table[table["class"] == "exposed communication"]
        assert hidden.tolist() == exposed["time_ns"].tolist()
        assert_windows_add_up(record, trace.start_ns + trace.span_ns // 3)


@pytest.mark.filterwarnings("ignore")  # of HTA's own making
@pytest.mark.parametrize(
    "name",
    ["hta/amd_mi250", "hta/nccl_a100_rank0_of_2", "tracelens/falconsai_h100_stacks_memory"],
)
def test_hta_has_the_same_between_first_and_last_kernel(name: str, shared: Shared) -> None:
    """It leaves out what lies before and after, and calls all but compute "non compute"."""
    path = shared(f"{name}.json.gz")
    analysis, record = hta(path), load(path)
    theirs = analysis.get_temporal_breakdown(visualize=False).iloc[0]
    gaps, (ours,) = idle(record), overlaps(record).to_dict("records")
    inner = gaps[(gaps["before"] >= 0) & (gaps["after"] >= 0)]["dur_ns"].sum()
    assert inner == ns(theirs["idle_time(us)"])
    assert ours["compute_ns"] == ns(theirs["compute_time(us)"])
    assert ours["busy_ns"] - ours["compute_ns"] == ns(theirs["non_compute_time(us)"])
    if ours["communication_ns"]:
        (overlap,) = analysis.get_comm_comp_overlap(visualize=False)["comp_comm_overlap_pctg"]
        assert round(100 * ours["communication_overlapped_share"], 2) == overlap


def ns(microseconds: float) -> int:
    return round(float(microseconds) * 1000)
