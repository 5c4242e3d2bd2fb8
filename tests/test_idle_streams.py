"""Gaps of each stream and their causes, and what streams do side by side."""

from __future__ import annotations

import pytest
from hypothesis import given

from gpuprof_widgets.analyses.idle import idle
from gpuprof_widgets.analyses.reasons import why_empty
from gpuprof_widgets.analyses.streams import streams
from gpuprof_widgets.exceptions import OptionError
from gpuprof_widgets.trace.model import Record
from gpuprof_widgets.trace.readers import load
from tests.hta_oracle import hta
from tests.records import records
from tests.traces import (
    Row,
    Shared,
    backward_op,
    cell_line,
    copy,
    kernel,
    module,
    op,
    python,
    runtime,
    trace_of,
)

US = 1_000
NCCL = "ncclDevKernel_AllReduce_Sum_f32_RING_LL"


def waiting(*rows: Row, launched: int, starts: int) -> str:
    """Cause of the gap of stream 7 from 20 us on, after which a kernel launched then starts."""
    record = trace_of(
        op("aten::mm", ts=0, dur=400 * US),
        runtime("cudaLaunchKernel", ts=launched * US, dur=US),
        kernel("first", ts=0, dur=20 * US),
        kernel("second", ts=starts * US, dur=20 * US, launched_by=1),
        *rows,
    )
    gaps = idle(record, by="stream")
    (cause,) = gaps[(gaps["stream"] == 7) & (gaps["start_ns"] == 20 * US)]["cause"]
    return str(cause)


def other(ts: int, dur: int) -> Row:
    return kernel("other", ts=ts * US, dur=dur * US, stream=9)


def test_a_kernel_that_was_queued_waits_for_the_stream_whose_work_ends_just_before_it() -> None:
    assert waiting(other(10, 68), launched=5, starts=80) == "stream"
    assert waiting(other(10, 70), launched=5, starts=80) == "stream"
    assert waiting(other(10, 60), launched=5, starts=80) == "device"  # 10 us before it
    assert waiting(other(10, 90), launched=5, starts=80) == "device"  # which goes on
    assert waiting(launched=5, starts=80) == "device"


def test_short_gaps_between_queued_kernels_are_back_to_back() -> None:
    assert waiting(launched=5, starts=29) == "back to back"
    assert waiting(other(10, 18), launched=5, starts=29) == "back to back"
    assert waiting(launched=5, starts=30) == "device"


def test_a_kernel_that_was_launched_in_the_gap_waited_for_the_host_whatever_others_did() -> None:
    assert waiting(other(10, 68), launched=30, starts=80) == "host"
    assert waiting(launched=21, starts=29) == "host"


def test_the_threshold_of_back_to_back_can_be_chosen() -> None:
    record = trace_of(
        runtime("cudaLaunchKernel", ts=0, dur=5),
        kernel("first", ts=0, dur=20),
        kernel("second", ts=50, dur=50, launched_by=0),
    )
    for threshold, cause in ((30, "device"), (31, "back to back")):
        assert idle(record, by="stream", back_to_back_ns=threshold)["cause"].tolist() == [cause]
    with pytest.raises(OptionError, match="by one of device, stream"):
        idle(record, by="thread")


def test_each_stream_has_its_gaps_also_while_others_work() -> None:
    record = trace_of(
        op("aten::mm", ts=0, dur=100),
        kernel("a", ts=0, dur=60),
        kernel("b", ts=50, dur=50, stream=9),
    )
    assert len(idle(record)) == 0
    gaps = idle(record, by="stream")
    assert gaps[["stream", "start_ns", "end_ns", "cause"]].to_numpy().tolist() == [
        [9, 0, 50, "start"],
        [7, 60, 100, "end"],
    ]


def doing(*cpu: Row) -> tuple[str, str]:
    """Line and module of what the CPU did in the gap [20, 80)."""
    record = trace_of(
        runtime("cudaLaunchKernel", ts=70, dur=5),
        kernel("first", ts=0, dur=20),
        kernel("second", ts=80, dur=20, launched_by=0),
        *cpu,
    )
    (gap,) = idle(record).to_dict("records")
    return gap["line"], gap["module"]


def test_a_gap_names_the_line_and_the_module_in_which_the_cpu_was() -> None:
    assert doing(
        cell_line(4, "y = model(x)", ts=0, dur=100),
        module("encoder.0", ts=10, dur=60),
        op("aten::mm", ts=25, dur=40),
    ) == ("4: y = model(x)", "encoder.0")
    assert doing(op("aten::mm", ts=25, dur=40)) == ("", "")


def test_in_the_backward_pass_the_module_is_that_of_the_forward_op() -> None:
    line, name = doing(
        cell_line(4, "y = model(x)", ts=0, dur=8),
        module("encoder.0", ts=1, dur=6),
        op("aten::mm", ts=2, dur=3, sequence=1),
        cell_line(5, "y.backward()", ts=10, dur=90),
        *backward_op("MmBackward0", ts=21, dur=50, sequence=1),
    )
    assert (line, name) == ("5: y.backward()", "encoder.0")


def test_of_a_saved_trace_with_stacks_it_is_the_python_frame_and_its_module() -> None:
    assert doing(
        op("aten::mm", ts=25, dur=40),
        python("train.py(3): step", ts=0, dur=100),
        python("nn.Module: Linear_0", ts=20, dur=60),
        python("torch/nn/modules/linear.py(124): forward", ts=21, dur=50),
        python("<built-in function linear>", ts=22, dur=48),
    ) == ("torch/nn/modules/linear.py(124): forward", "nn.Module: Linear_0")


def test_gaps_of_streams_add_up_to_what_they_leave_of_the_trace(shared_record: Record) -> None:
    gaps, table = idle(shared_record, by="stream"), streams(shared_record)
    if not len(table):
        assert why_empty(table) == "the trace has no GPU work on any stream"
        assert why_empty(gaps)
        return
    left = gaps.groupby(["device", "stream"])["dur_ns"].sum().to_dict()
    span = shared_record.trace.span_ns
    for row in table.to_dict("records"):
        assert span - row["busy_ns"] == left.get((row["device"], row["stream"]), 0)
    assert (table["alone_ns"] + table["shared_ns"] == table["busy_ns"]).all()
    active = streams(shared_record, by="concurrency")
    assert (active.groupby("device")["time_ns"].sum() == span).all()
    assert (active["active"] * active["time_ns"]).sum() == table["busy_ns"].sum()


@pytest.mark.filterwarnings("ignore")  # of HTA's own making
@pytest.mark.parametrize(
    ("name", "ties_ns"),
    [("tracelens/falconsai_h100_stacks_memory", 0), ("megatron-tp8/rank0", 24 * US)],
)
def test_hta_splits_the_gaps_of_a_stream_alike(name: str, ties_ns: int, shared: Shared) -> None:
    """Its threshold of 30 is compared in us, and a launch in the very us of the end is not late.

    What it returns it rounds to 10 ns.
    """
    path = shared(f"{name}.json.gz")
    theirs = hta(path).get_idle_time_breakdown(ranks=[0], visualize=False)[0]
    theirs = theirs.set_index(["stream", "idle_category"])["idle_time"].mul(US)
    gaps = idle(load(path), by="stream", back_to_back_ns=30 * US)
    inner = gaps[(gaps["before"] >= 0) & (gaps["after"] >= 0)]
    ours = inner.groupby(["stream", "cause"])["dur_ns"].sum()
    host = sum(ours.get((7, cause), 0) for cause in ("host", "dataloader", "synchronise"))
    assert host - ties_ns == pytest.approx(theirs[7, "host_wait"], abs=5)
    short = ours.get((7, "back to back"), 0) + ties_ns
    assert short == pytest.approx(theirs[7, "kernel_wait"], abs=5)
    rest = sum(ours.get((7, cause), 0) for cause in ("stream", "device"))
    assert rest == pytest.approx(theirs.get((7, "other"), 0), abs=5)


def three_streams() -> Record:
    """Stream 7 computes and copies, 9 computes as well, 20 communicates alone."""
    return trace_of(
        op("train", ts=0, dur=200),
        kernel("gemm", ts=0, dur=50),
        copy(ts=50, dur=30),
        kernel("relu", ts=60, dur=10, stream=9),
        kernel(NCCL, ts=70, dur=50, stream=20),
        copy("Memcpy DtoD", ts=150, dur=10, stream=20),
    )


def test_a_stream_has_its_kinds_and_what_ran_beside_others() -> None:
    table = streams(three_streams()).set_index("stream")
    assert table.index.tolist() == [7, 20, 9]
    columns = ["calls", "busy_ns", "compute_ns", "communication_ns", "copy_ns", "alone_ns"]
    assert table[columns].to_numpy().tolist() == [
        [2, 80, 50, 0, 30, 60],  # beside 9 from 60 to 70, beside 20 from 70 to 80
        [2, 60, 0, 50, 10, 50],
        [1, 10, 10, 0, 0, 0],
    ]
    assert (table["busy_share"] == table["busy_ns"] / 200).all()
    assert table.loc[20, ["start_ns", "end_ns"]].tolist() == [70, 160]


def test_streams_of_each_gpu_are_its_own() -> None:
    memset = kernel("Memset (Device)", ts=60, dur=30, category="gpu_memset", device=1)
    record = trace_of(kernel("gemm", ts=0, dur=50), kernel("gemm", ts=0, dur=40, device=1), memset)
    columns = ["device", "stream", "calls", "compute_ns", "memset_ns", "alone_ns", "shared_ns"]
    assert streams(record)[columns].to_numpy().tolist() == [
        [0, 7, 1, 50, 0, 50, 0],
        [1, 7, 2, 40, 30, 70, 0],
    ]


def test_copies_behind_the_compute_of_their_own_stream_are_serialised() -> None:
    """Ten of thirty ns are hidden behind the compute of another stream."""
    table = streams(three_streams()).set_index("stream")
    assert table["serialised_ns"].to_dict() == {7: 20, 20: 0, 9: 0}


def test_pairs_and_numbers_of_streams_that_were_busy_together() -> None:
    pairs = streams(three_streams(), by="pair").set_index(["stream", "other"])
    assert pairs["overlap_ns"].to_dict() == {(7, 9): 10, (7, 20): 10, (9, 20): 0}
    assert pairs["share"].to_dict() == {(7, 9): 1.0, (7, 20): 10 / 60, (9, 20): 0.0}
    active = streams(three_streams(), by="concurrency").set_index("active")
    assert active["time_ns"].to_dict() == {0: 70, 1: 110, 2: 20, 3: 0}
    with pytest.raises(OptionError, match="by one of stream, pair, concurrency"):
        streams(three_streams(), by="kernel")


@given(records())
def test_streams_are_what_counting_gives(record: Record) -> None:
    trace = record.trace
    gpu = trace.slices[trace.slices["category"].isin(["kernel", "gpu_memcpy"])]
    stream = trace.tracks["stream"].to_numpy()[gpu["track"]]
    moments = range(trace.start_ns, trace.end_ns)
    busy = [set(stream[(gpu["ts"] <= t) & (gpu["ts"] + gpu["dur"] > t)]) for t in moments]
    for row in streams(record).to_dict("records"):
        mine = [t for t in busy if row["stream"] in t]
        assert row["busy_ns"] == len(mine)
        assert row["alone_ns"] == sum(len(t) == 1 for t in mine)
        assert row["alone_ns"] + row["shared_ns"] == row["busy_ns"]
    for row in streams(record, by="pair").to_dict("records"):
        assert row["overlap_ns"] == sum({row["stream"], row["other"]} <= t for t in busy)
    for row in streams(record, by="concurrency").to_dict("records"):
        assert row["time_ns"] == sum(len(t) == row["active"] for t in busy)
