"""CPU and GPU time per annotation, each call counted once."""

from __future__ import annotations

import pytest

from gpuprof_widgets.analyses.reasons import why_empty
from gpuprof_widgets.analyses.regions import annotations as by_annotation
from gpuprof_widgets.trace.model import Record
from gpuprof_widgets.trace.readers import load
from gpuprof_widgets.trace.window import window
from gpuprof_widgets.views.panels.regions import annotations_panel
from tests.hta_oracle import hta
from tests.traces import (
    Row,
    Shared,
    annotation,
    backward_op,
    gpu_annotation,
    kernel,
    op,
    runtime,
    trace_of,
)


def nested() -> Record:
    """``outer`` launches on two streams at once, ``inner`` within it once more."""
    return trace_of(
        annotation("outer", ts=0, dur=100),
        runtime("cudaLaunchKernel", ts=5, dur=5),
        runtime("cudaLaunchKernel", ts=15, dur=5),
        annotation("inner", ts=40, dur=50),
        runtime("cudaLaunchKernel", ts=45, dur=5),
        kernel("a", ts=20, dur=30, launched_by=1),
        kernel("b", ts=40, dur=20, launched_by=2, stream=8),
        kernel("c", ts=80, dur=10, launched_by=4),
        gpu_annotation("outer", ts=20, dur=70),
        gpu_annotation("outer", ts=40, dur=20, stream=8),
        gpu_annotation("inner", ts=80, dur=10),
    )


def test_each_call_counts_once_and_self_is_without_the_annotations_within() -> None:
    """Work of streams that overlap adds up, and keeps the GPU busy once."""
    table = by_annotation(nested()).set_index("name")
    assert table[["calls", "kernels"]].to_dict("index") == {
        "outer": {"calls": 1, "kernels": 3},
        "inner": {"calls": 1, "kernels": 1},
    }
    times = ["cpu_total_ns", "cpu_self_ns", "kernel_ns", "kernel_self_ns"]
    assert table[times].T.to_dict("list") == {"outer": [100, 50, 60, 50], "inner": [50, 50, 10, 10]}
    times = ["device_busy_ns", "device_self_busy_ns", "gpu_span_ns"]
    assert table[times].T.to_dict("list") == {"outer": [50, 40, 70 + 20], "inner": [10, 10, 10]}


def test_the_row_is_that_of_the_longest_call() -> None:
    calls = [annotation("a", ts=10 * n, dur=dur) for n, dur in enumerate((3, 9, 5))]
    record = trace_of(*calls, annotation("b", ts=40, dur=1))
    table = by_annotation(record).set_index("name")
    assert record.trace.slices["dur"][table["row"]].tolist() == [9, 1]
    assert record.trace.slices["name"][table["row"]].tolist() == table.index.tolist()


def test_an_annotation_within_its_own_name_counts_once() -> None:
    record = trace_of(
        annotation("a", ts=0, dur=100),
        annotation("a", ts=10, dur=50),
        runtime("cudaLaunchKernel", ts=20, dur=5),
        kernel("k", ts=200, dur=30, launched_by=2),
    )
    row = by_annotation(record).iloc[0]
    assert (row["calls"], row["cpu_total_ns"], row["cpu_self_ns"]) == (2, 100, 100)
    assert (row["kernel_ns"], row["kernel_self_ns"], row["kernels"]) == (30, 30, 1)


def test_what_the_backward_thread_launches_is_the_callers() -> None:
    record = trace_of(
        annotation("step", ts=0, dur=500),
        op("aten::mm", ts=10, dur=20, sequence=1, forward_thread=0),
        annotation("backward", ts=100, dur=300),
        *backward_op("MmBackward0", ts=150, dur=100, sequence=1, thread=2),
        runtime("cudaLaunchKernel", ts=160, dur=5, thread=2),
        kernel("k", ts=300, dur=40, launched_by=5),
        annotation("all_reduce", ts=200, dur=20, thread=2),
        runtime("ncclLaunch", ts=205, dur=5, thread=2),
        kernel("nccl", ts=350, dur=60, launched_by=8),
    )
    work = by_annotation(record).set_index("name")["kernel_ns"].to_dict()
    assert work == {"step": 100, "backward": 100, "all_reduce": 60}


def test_steps_are_one_row() -> None:
    rows = [annotation(f"ProfilerStep#{n}", ts=n * 100, dur=90) for n in range(3)]
    table = by_annotation(trace_of(*rows))
    assert table[["name", "calls", "cpu_total_ns"]].to_numpy().tolist() == [
        ["ProfilerStep*", 3, 270]
    ]


def test_the_gpus_side_alone_will_do() -> None:
    record = trace_of(
        gpu_annotation("outer", ts=0, dur=100),
        gpu_annotation("inner", ts=10, dur=50),
        gpu_annotation("outer", ts=0, dur=90, stream=8),
        kernel("a", ts=10, dur=20),
        kernel("b", ts=70, dur=20),
        kernel("c", ts=20, dur=5, stream=8),
        kernel("outside", ts=200, dur=5),
    )
    table = by_annotation(record).set_index("name")
    assert table["calls"].to_dict() == {"outer": 1, "inner": 1}
    assert table["kernel_ns"].to_dict() == {"outer": 45, "inner": 20}
    assert table["kernel_self_ns"].to_dict() == {"outer": 25, "inner": 20}
    assert table["cpu_total_ns"].tolist() == [0, 0]


@pytest.mark.parametrize("gpu_side", [(), (gpu_annotation("step", ts=200, dur=90),)])
def test_work_that_outlasts_its_annotation_is_its_own_in_a_window(
    gpu_side: tuple[Row, ...],
) -> None:
    """As in the replay of a CUDA graph: the window has no time of the annotation itself."""
    record = trace_of(
        annotation("step", ts=0, dur=50),
        runtime("cudaGraphLaunch", ts=10, dur=5),
        kernel("a", ts=200, dur=40, launched_by=1),
        kernel("b", ts=250, dur=40, launched_by=1),
        *gpu_side,
    )
    (row,) = by_annotation(window(record, 220, 290)).to_dict("records")
    assert (row["name"], row["calls"], row["cpu_total_ns"]) == ("step", 0, 0)
    assert (row["kernel_ns"], row["kernels"], row["gpu_span_ns"]) == (60, 2, 70 if gpu_side else 0)


def test_a_trace_without_annotations_says_so() -> None:
    table = by_annotation(trace_of(op("aten::mm", ts=0, dur=9)))
    assert "record_function" in why_empty(table)


def test_identities_on_real_traces(shared_record: Record) -> None:
    table = by_annotation(shared_record)
    if why_empty(table):
        return
    trace = shared_record.trace
    work = int(trace.slices["dur"].to_numpy()[trace.index.gpu].sum())
    assert table["kernel_self_ns"].sum() <= work
    assert (table["kernel_ns"] >= table["kernel_self_ns"]).all()
    assert (table["device_busy_ns"] <= table["kernel_ns"]).all()
    assert (table["cpu_self_ns"] <= table["cpu_total_ns"]).all()
    middle = trace.start_ns + trace.span_ns // 2
    halves = [
        by_annotation(window(shared_record, t0, t1))
        for t0, t1 in ((trace.start_ns, middle), (middle, trace.end_ns))
    ]
    for column in ("cpu_total_ns", "cpu_self_ns", "kernel_ns", "kernel_self_ns"):
        assert sum(half[column].sum() for half in halves) == table[column].sum(), column


@pytest.mark.parametrize("name", ["nccl_a100_rank0_of_2", "gpu_user_annotation_gp100"])
def test_spans_are_those_of_hta(name: str, shared: Shared) -> None:
    """HTA adds up the spans on the GPU's side, by name and stream.

    On purpose different: ``kernel_ns`` and ``device_busy_ns`` have no pauses between kernels, and
    hold what autograd's thread launched for the annotation; HTA does not know the steps.
    """
    path = shared(f"hta/{name}.json.gz")
    theirs = hta(path).get_gpu_user_annotation_breakdown(visualize=False, num_kernels=1000)
    spans = (theirs.set_index("name")["sum (us)"] * 1000).round().astype(int)
    ours = by_annotation(load(path)).set_index("name")["gpu_span_ns"]
    ours = ours[(ours > 0) & ~ours.index.str.startswith("ProfilerStep")]
    assert ours.to_dict() == spans.to_dict()


def test_the_panel_has_a_row_per_annotation_and_its_calls() -> None:
    panel = annotations_panel(nested())
    assert panel is not None
    assert panel.events is not None
    assert panel.rows["name"].tolist() == ["outer", "inner"]
    assert panel.events[["group", "start_ns", "end_ns"]].to_numpy().tolist() == [
        [0, 0, 100],
        [1, 40, 90],
    ]
    assert annotations_panel(trace_of()) is None
