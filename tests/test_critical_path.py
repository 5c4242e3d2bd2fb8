"""The critical path of hand-made traces whose path is known."""

from __future__ import annotations

import pandas as pd
import pytest

from gpuprof_widgets.analyses.critical_path import critical_path
from gpuprof_widgets.analyses.what_if import what_if
from gpuprof_widgets.exceptions import OptionError
from gpuprof_widgets.trace.model import Record
from tests.traces import (
    annotation,
    backward_op,
    calls_of,
    cell_line,
    copy,
    kernel,
    module,
    op,
    python,
    runtime,
    trace_of,
)

Piece = tuple[str, int, str]


def path_of(record: Record, **given: object) -> list[Piece]:
    """Kind, length and name of each segment, once it is clear that they tile the range."""
    path = critical_path(record, **given)  # type: ignore[arg-type]
    assert path["start_ns"].tolist()[1:] == path["end_ns"].tolist()[:-1]
    return list(path[["kind", "dur_ns", "name"]].itertuples(index=False, name=None))


def launch(ts: int, dur: int = 5, **given: object) -> object:
    return runtime("cudaLaunchKernel", ts=ts, dur=dur, **given)  # type: ignore[arg-type]


def test_without_a_gpu_it_is_what_the_thread_did() -> None:
    record = trace_of(
        annotation("step", ts=0, dur=100),
        op("aten::linear", ts=10, dur=50),
        op("aten::addmm", ts=20, dur=30),
    )
    assert path_of(record) == [
        ("python", 10, "step"),
        ("cpu op", 10, "aten::linear"),
        ("cpu op", 30, "aten::addmm"),
        ("cpu op", 10, "aten::linear"),
        ("python", 40, "step"),
    ]


def test_python_frames_are_named_where_they_were_recorded() -> None:
    record = trace_of(
        python("train.py(3): step", ts=0, dur=60),
        op("aten::mm", ts=10, dur=10),
        python("loss.py(9): loss", ts=30, dur=20),
    )
    assert path_of(record) == [
        ("python", 10, "train.py(3): step"),
        ("cpu op", 10, "aten::mm"),
        ("python", 10, "train.py(3): step"),
        ("python", 20, "loss.py(9): loss"),
        ("python", 10, "train.py(3): step"),
    ]


def test_a_run_that_waits_for_its_launches_is_bound_by_the_cpu() -> None:
    """Short kernels, each long done when the next one is launched."""
    record = trace_of(
        op("aten::a", ts=0, dur=20),
        launch(10),
        op("aten::b", ts=20, dur=20),
        launch(30),
        kernel("short", ts=14, dur=2, launched_by=1),
        kernel("short", ts=36, dur=9, launched_by=3),
    )
    assert path_of(record) == [
        ("cpu op", 10, "aten::a"),
        ("runtime", 5, "cudaLaunchKernel"),
        ("cpu op", 5, "aten::a"),
        ("cpu op", 10, "aten::b"),
        ("launch delay", 6, "short"),
        ("compute", 9, "short"),
    ]


def test_a_full_queue_is_bound_by_the_gpu() -> None:
    record = trace_of(
        op("aten::a", ts=0, dur=10),
        launch(2),
        launch(11),
        launch(17),
        kernel("first", ts=8, dur=42, launched_by=1),
        kernel("second", ts=52, dur=30, launched_by=2),
        kernel("third", ts=85, dur=15, launched_by=3),
    )
    assert path_of(record) == [
        ("cpu op", 2, "aten::a"),
        ("launch delay", 6, "first"),
        ("compute", 42, "first"),
        ("kernel-to-kernel delay", 2, "second"),
        ("compute", 30, "second"),
        ("kernel-to-kernel delay", 3, "third"),
        ("compute", 15, "third"),
    ]


def test_a_launch_just_before_the_stream_is_free_is_what_a_kernel_waits_for() -> None:
    """Launches usually take 10 here, so that of the last slice was not there any earlier."""
    record = trace_of(
        launch(0, 1),
        launch(100, 1),
        launch(196, 1),
        kernel("a", ts=10, dur=20, launched_by=0),
        kernel("b", ts=110, dur=90, launched_by=1),
        kernel("c", ts=206, dur=20, launched_by=2),
    )
    assert path_of(record)[-2:] == [("launch delay", 10, "c"), ("compute", 20, "c")]


def test_a_synchronisation_leads_to_the_gpu_and_back() -> None:
    record = trace_of(
        launch(0),
        op("aten::item", ts=10, dur=95),
        runtime("cudaStreamSynchronize", ts=12, dur=90),
        op("aten::add", ts=110, dur=10),
        kernel("long", ts=8, dur=90, launched_by=0),
    )
    assert path_of(record) == [
        ("launch delay", 8, "long"),
        ("compute", 90, "long"),
        ("synchronisation", 4, "cudaStreamSynchronize"),
        ("cpu op", 3, "aten::item"),
        ("python", 5, ""),
        ("cpu op", 10, "aten::add"),
    ]


def test_a_synchronisation_that_found_the_gpu_done_is_the_cpu_s_own_time() -> None:
    record = trace_of(
        launch(0),
        runtime("cudaStreamSynchronize", ts=40, dur=5),
        kernel("early", ts=8, dur=10, launched_by=0),
        calls=calls_of((None, "main", 1, 45)),
    )
    assert path_of(record) == [
        ("runtime", 5, "cudaLaunchKernel"),
        ("python", 35, ""),
        ("synchronisation", 5, "cudaStreamSynchronize"),
    ]


def test_a_blocking_copy_is_waited_for() -> None:
    record = trace_of(
        op("aten::copy_", ts=0, dur=60),
        runtime("cudaMemcpyAsync", ts=10, dur=45),
        copy(ts=20, dur=30, launched_by=1),
    )
    assert path_of(record) == [
        ("cpu op", 10, "aten::copy_"),
        ("launch delay", 10, "Memcpy HtoD (Pageable -> Device)"),
        ("copy", 30, "Memcpy HtoD (Pageable -> Device)"),
        ("synchronisation", 5, "cudaMemcpyAsync"),
        ("cpu op", 5, "aten::copy_"),
    ]


def test_a_call_that_stages_its_copy_is_at_work_itself() -> None:
    """Launches take 10 in this trace; the call of the copy was busy for 190 before that."""
    record = trace_of(
        launch(0),
        launch(100),
        runtime("cudaMemcpyAsync", ts=200, dur=240),
        kernel("a", ts=10, dur=20, launched_by=0),
        kernel("b", ts=110, dur=20, launched_by=1),
        copy(ts=400, dur=30, launched_by=2),
    )
    assert path_of(record)[-4:] == [
        ("runtime", 190, "cudaMemcpyAsync"),
        ("launch delay", 10, "Memcpy HtoD (Pageable -> Device)"),
        ("copy", 30, "Memcpy HtoD (Pageable -> Device)"),
        ("synchronisation", 10, "cudaMemcpyAsync"),
    ]


def test_a_copy_behind_a_kernel_waits_for_that_however_long_its_call_takes() -> None:
    record = trace_of(
        launch(0),
        runtime("cudaMemcpyAsync", ts=20, dur=240),
        kernel("long", ts=10, dur=190, launched_by=0),
        copy(ts=201, dur=30, launched_by=1),
    )
    assert path_of(record)[-4:] == [
        ("compute", 190, "long"),
        ("kernel-to-kernel delay", 1, "Memcpy HtoD (Pageable -> Device)"),
        ("copy", 30, "Memcpy HtoD (Pageable -> Device)"),
        ("synchronisation", 29, "cudaMemcpyAsync"),
    ]


def test_a_delay_that_no_launch_explains_is_unknown() -> None:
    """Something was waited for that is not in the trace: work from before it, say."""
    record = trace_of(launch(0), kernel("late", ts=1_500_000, dur=20, launched_by=0))
    assert path_of(record)[0] == ("unknown", 1_500_000, "late")
    record = trace_of(launch(0), kernel("late", ts=1_499_999, dur=20, launched_by=0))
    assert path_of(record)[0] == ("launch delay", 1_499_999, "late")


def sync_event(name: str, *, ts: int, correlation: int, stream: int, **args: int) -> object:
    return kernel(
        name, ts=ts, dur=1, stream=stream, category="cuda_sync", correlation=correlation, **args
    )


def two_streams(*more: object) -> Record:
    """The second stream waits for an event recorded behind the first one's long kernel."""
    return trace_of(
        launch(0),
        runtime("cudaEventRecord", ts=6, dur=1, correlation=71),
        launch(8),
        runtime("cudaStreamWaitEvent", ts=15, dur=1, correlation=72),
        launch(17),
        kernel("long", ts=5, dur=50, stream=7, launched_by=0),
        kernel("behind the event", ts=56, dur=40, stream=7, launched_by=2),
        kernel("waits", ts=60, dur=100, stream=20, launched_by=4),
        *more,  # type: ignore[arg-type]
    )


TOLD = sync_event(
    "Stream Wait Event",
    ts=16,
    correlation=72,
    stream=20,
    wait_on_stream=7,
    wait_on_cuda_event_record_corr_id=71,
)


@pytest.mark.parametrize("more", [(TOLD,), ()], ids=["told", "inferred"])
def test_an_event_joins_two_streams(more: tuple[object, ...]) -> None:
    """It waited for the slice before the record, not for the one that was queued behind it."""
    assert path_of(two_streams(*more)) == [
        ("launch delay", 5, "long"),
        ("compute", 50, "long"),
        ("kernel-to-kernel delay", 5, "waits"),
        ("compute", 100, "waits"),
    ]


def test_without_a_wait_for_an_event_streams_are_independent() -> None:
    record = trace_of(
        launch(0),
        launch(50),
        kernel("other", ts=5, dur=50, stream=7, launched_by=0),
        kernel("own", ts=60, dur=100, stream=20, launched_by=1),
    )
    assert path_of(record)[-2:] == [("launch delay", 10, "own"), ("compute", 100, "own")]
    assert "other" not in {name for _, _, name in path_of(record)}


def test_a_wait_for_an_event_is_not_inferred_from_another_gpu() -> None:
    record = trace_of(
        launch(0),
        runtime("cudaStreamWaitEvent", ts=15, dur=1),
        launch(17),
        kernel("busy", ts=5, dur=50, stream=7, device=1, launched_by=0),
        kernel("late", ts=60, dur=100, stream=20, launched_by=2),
    )
    assert "busy" not in {name for _, _, name in path_of(record)}


def test_an_event_is_of_its_gpu_though_streams_of_others_have_the_same_numbers() -> None:
    awaited = {"wait_on_stream": 7, "wait_on_cuda_event_record_corr_id": 71}
    record = trace_of(
        launch(0),
        launch(2),
        runtime("cudaEventRecord", ts=8, dur=1, correlation=71),
        runtime("cudaStreamWaitEvent", ts=15, dur=1, correlation=72),
        launch(17),
        kernel("other GPU", ts=5, dur=52, stream=7, launched_by=0),
        kernel("long", ts=7, dur=48, stream=7, device=1, launched_by=1),
        kernel("waits", ts=60, dur=100, stream=20, device=1, launched_by=4),
        kernel("other GPU", ts=60, dur=10, stream=20),
        sync_event("Stream Wait Event", ts=16, correlation=72, stream=20, device=1, **awaited),
    )
    assert path_of(record)[-3:] == [
        ("compute", 48, "long"),
        ("kernel-to-kernel delay", 5, "waits"),
        ("compute", 100, "waits"),
    ]


def copy_beside(stream_end: int, *, at: int = 40) -> Record:
    """A copy, launched at ``at`` on a stream without other work, begins at 200,000 nevertheless.

    Launches take 5 in this trace. On another stream a kernel ends at ``stream_end``; no event was
    traced.
    """
    return trace_of(
        launch(0),
        launch(10),
        launch(20),
        launch(at),
        kernel("short", ts=5, dur=1, stream=20, launched_by=0),
        kernel("short", ts=15, dur=1, stream=20, launched_by=1),
        kernel("busy", ts=25, dur=stream_end - 25, stream=164, launched_by=2),
        copy(ts=200_000, dur=100, stream=7, launched_by=3),
    )


def test_a_slice_that_begins_as_another_stream_ends_waited_for_that() -> None:
    assert path_of(copy_beside(180_000))[-4:] == [
        ("launch delay", 5, "busy"),
        ("compute", 179_975, "busy"),
        ("stream wait (inferred)", 20_000, "Memcpy HtoD (Pageable -> Device)"),
        ("copy", 100, "Memcpy HtoD (Pageable -> Device)"),
    ]


def test_a_slice_before_which_nothing_ended_waited_for_something_else() -> None:
    """1 ns further away, and it is not taken for what was waited for."""
    assert path_of(copy_beside(179_999))[-2:] == [
        ("launch delay", 199_960, "Memcpy HtoD (Pageable -> Device)"),
        ("copy", 100, "Memcpy HtoD (Pageable -> Device)"),
    ]


def test_where_the_other_stream_explains_little_of_a_delay_it_may_be_chance() -> None:
    """It ended 20,000 after the launch would usually have let the copy begin; 1 more is enough."""
    names = {name for _, _, name in path_of(copy_beside(180_000, at=159_995))}
    assert "busy" not in names
    names = {name for _, _, name in path_of(copy_beside(180_000, at=159_994))}
    assert "busy" in names


def test_another_gpu_s_slices_are_not_what_a_slice_waits_for() -> None:
    record = trace_of(
        launch(0),
        launch(8),
        kernel("busy", ts=5, dur=190_000, stream=164, device=1, launched_by=0),
        kernel("late", ts=200_000, dur=100, stream=7, launched_by=1),
    )
    assert "busy" not in {name for _, _, name in path_of(record)}


@pytest.mark.parametrize(
    ("name", "began", "kind"),
    [
        ("add", 50_000, "stream wait (inferred)"),
        ("add", 60_000, "unknown"),
        ("ncclDevKernel_AllReduce", 60_000, "stream wait (inferred)"),
    ],
    ids=["one slice throughout", "launched who knows when", "communication"],
)
def test_without_a_launch_it_takes_more_to_infer_a_wait(name: str, began: int, kind: str) -> None:
    """The stream is free at 50,000; a slice of another ends just before the next one begins."""
    record = trace_of(
        launch(0),
        kernel("first", ts=10, dur=49_990, stream=7, launched_by=0),
        kernel("other", ts=began, dur=150_000 - began, stream=20),
        kernel(name, ts=150_010, dur=100, stream=7),
    )
    assert kind in {piece for piece, _, _ in path_of(record)}
    assert ("other" in {piece for _, _, piece in path_of(record)}) == (kind != "unknown")


def test_what_if_follows_an_inferred_wait() -> None:
    """Were the kernel over at once, at 25, the copy would still come the recorded 20,000 later."""
    row = what_if(copy_beside(180_000), "busy").iloc[0]
    assert (row["span_ns"], row["new_span_ns"]) == (200_100, 20_125)


def test_a_synchronised_stream_is_told_from_the_others() -> None:
    """Both kernels end within the call; it returned after that of the stream it is for."""
    told = sync_event("Stream Sync", ts=12, correlation=90, stream=7)
    record = trace_of(
        launch(0),
        launch(5),
        runtime("cudaStreamSynchronize", ts=11, dur=89, correlation=90),
        kernel("own", ts=8, dur=70, stream=7, launched_by=0),
        kernel("other", ts=12, dur=86, stream=20, launched_by=1),
        told,  # type: ignore[arg-type]
    )
    assert path_of(record)[-2:] == [
        ("compute", 70, "own"),
        ("synchronisation", 22, "cudaStreamSynchronize"),
    ]


def training_step() -> Record:
    """Forward on one thread, backward on another, and the optimizer after it."""
    rows = [
        cell_line(1, "loss = model(x)", ts=0, dur=30),
        op("aten::mm", ts=10, dur=15, sequence=1),
        cell_line(2, "loss.backward()", ts=35, dur=65),
        cell_line(3, "optimizer.step()", ts=100, dur=50),
        op("aten::add_", ts=110, dur=40),
    ]
    return trace_of(
        *rows,
        *backward_op("MmBackward0", ts=40, dur=20, sequence=1, thread=2),
        *backward_op("AccumulateGrad", ts=64, dur=30, sequence=2, thread=2),
    )


def test_the_caller_of_a_backward_pass_waits_for_its_thread() -> None:
    assert path_of(training_step()) == [
        ("python", 10, "1: loss = model(x)"),
        ("cpu op", 15, "aten::mm"),
        ("python", 5, "1: loss = model(x)"),
        ("python", 5, ""),
        ("python", 5, "2: loss.backward()"),
        ("cpu op", 1, "autograd::engine::evaluate_function: MmBackward0"),
        ("cpu op", 18, "MmBackward0"),
        ("cpu op", 1, "autograd::engine::evaluate_function: MmBackward0"),
        ("cpu op", 4, ""),
        ("cpu op", 1, "autograd::engine::evaluate_function: AccumulateGrad"),
        ("cpu op", 28, "AccumulateGrad"),
        ("cpu op", 1, "autograd::engine::evaluate_function: AccumulateGrad"),
        ("python", 6, "2: loss.backward()"),
        ("python", 10, "3: optimizer.step()"),
        ("cpu op", 40, "aten::add_"),
    ]


def test_kernels_of_the_backward_pass_lead_back_to_the_forward_thread() -> None:
    record = trace_of(
        op("aten::mm", ts=0, dur=20, sequence=1),
        *backward_op("MmBackward0", ts=30, dur=20, sequence=1, thread=2),
        launch(40, thread=2),
        kernel("gemm", ts=48, dur=60, launched_by=3),
    )
    assert path_of(record) == [
        ("cpu op", 20, "aten::mm"),
        ("python", 10, ""),
        ("cpu op", 1, "autograd::engine::evaluate_function: MmBackward0"),
        ("cpu op", 9, "MmBackward0"),
        ("launch delay", 8, "gemm"),
        ("compute", 60, "gemm"),
    ]


def test_a_thread_that_nobody_waits_for_is_not_on_the_path() -> None:
    record = trace_of(
        annotation("step", ts=0, dur=100),
        op("aten::pin_memory", ts=20, dur=40, thread=9),
    )
    assert path_of(record) == [("python", 100, "step")]


def test_waiting_for_a_batch_is_data_loading_with_all_that_runs_in_it() -> None:
    name = "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__"
    record = trace_of(
        annotation(name, ts=0, dur=50),
        op("aten::stack", ts=10, dur=20),
        op("aten::mm", ts=55, dur=10),
    )
    assert path_of(record) == [
        ("data loading", 10, name),
        ("data loading", 20, "aten::stack"),
        ("data loading", 20, name),
        ("python", 5, ""),
        ("cpu op", 10, "aten::mm"),
    ]


def test_gpu_work_without_launches_follows_its_stream() -> None:
    record = trace_of(kernel("a", ts=0, dur=10), kernel("b", ts=14, dur=10))
    assert path_of(record) == [("compute", 10, "a"), ("unknown", 4, "b"), ("compute", 10, "b")]


def test_the_path_of_a_step_lies_within_it() -> None:
    record = trace_of(
        annotation("ProfilerStep#4", ts=0, dur=100),
        annotation("ProfilerStep#5", ts=100, dur=80),
        op("aten::mm", ts=90, dur=40),
    )
    assert path_of(record, step=5) == [
        ("cpu op", 30, "aten::mm"),
        ("python", 50, "ProfilerStep#5"),
    ]


def test_a_step_that_the_gpu_works_through_is_bound_by_the_gpu() -> None:
    """The CPU runs ahead: at the end of its step the GPU is busy with work from before."""
    record = trace_of(
        annotation("ProfilerStep#1", ts=0, dur=20),
        launch(2),
        annotation("ProfilerStep#2", ts=20, dur=20),
        launch(22),
        kernel("slow", ts=8, dur=50, launched_by=1),
        kernel("slow", ts=58, dur=50, launched_by=3),
    )
    assert path_of(record, step=2) == [("compute", 20, "slow")]


def test_a_region_may_be_named_or_be_a_pair_of_times() -> None:
    record = trace_of(
        module("encoder", ts=0, dur=30),
        op("aten::mm", ts=10, dur=10),
        module("encoder", ts=60, dur=30),
    )
    named = path_of(record, region="encoder")
    assert named == [
        ("python", 10, "encoder"),
        ("cpu op", 10, "aten::mm"),
        ("python", 10, "encoder"),
    ]
    assert path_of(record, region=(0, 30)) == named


def test_a_region_that_is_not_there_is_an_error_with_a_hint() -> None:
    record = trace_of(annotation("encoder", ts=0, dur=10))
    with pytest.raises(OptionError, match="did you mean 'encoder'"):
        critical_path(record, region="encodr")
    with pytest.raises(OptionError, match="there is no step 3"):
        critical_path(record, step=3)
    with pytest.raises(OptionError, match="not both"):
        critical_path(record, step=3, region="encoder")
    with pytest.raises(OptionError, match="not by 'kernel'"):
        critical_path(record, by="kernel")


def test_owners_of_the_pieces() -> None:
    """A delay belongs to whoever launched what was late."""
    record = trace_of(
        cell_line(7, "y = model(x)", ts=0, dur=40),
        module("encoder", ts=5, dur=30),
        op("aten::mm", ts=10, dur=20),
        launch(12),
        kernel("gemm", ts=20, dur=60, launched_by=3),
    )
    path = critical_path(record)
    assert path["op_name"].tolist() == ["", "", "aten::mm", "aten::mm", "aten::mm"]
    assert path["module_name"].tolist() == ["", *["encoder"] * 4]
    assert path["line_name"].tolist() == ["7: y = model(x)"] * 5
    assert path["thread"].tolist()[-1] == "GPU 0 · stream 7"


def test_added_up_by_kind_by_op_and_by_line() -> None:
    record = trace_of(
        cell_line(7, "y = model(x)", ts=0, dur=40),
        op("aten::mm", ts=10, dur=20),
        launch(12),
        kernel("gemm", ts=20, dur=60, launched_by=2),
    )
    by_kind = critical_path(record, by="kind").set_index("kind")["dur_ns"].to_dict()
    assert by_kind == {"compute": 60, "python": 10, "launch delay": 8, "cpu op": 2}
    by_op = critical_path(record, by="op")
    expected = pd.DataFrame(
        {
            "op_name": ["aten::mm", ""],
            "dur_ns": [70, 10],
            "share": [0.875, 0.125],
            "segments": [3, 1],
            "cpu_ns": [2, 10],
            "gpu_ns": [60, 0],
            "delay_ns": [8, 0],
        }
    )
    pd.testing.assert_frame_equal(by_op, expected, check_dtype=False)
    assert critical_path(record, by="line")["line_name"].tolist() == ["7: y = model(x)"]


def test_work_of_every_kind_is_time_of_the_gpu() -> None:
    record = trace_of(
        launch(0),
        kernel("gemm", ts=5, dur=10, launched_by=0),
        kernel("ncclDevKernel_AllReduce", ts=15, dur=20),
        copy(ts=35, dur=30),
        kernel("Memset (Device)", ts=65, dur=40, category="gpu_memset"),
    )
    table = critical_path(record, by="kind").set_index("kind")
    assert table["gpu_ns"].to_dict() == {
        "memset": 40,
        "copy": 30,
        "communication": 20,
        "compute": 10,
        "launch delay": 0,
    }
    assert table["delay_ns"].to_dict() == {**dict.fromkeys(table.index, 0), "launch delay": 5}
