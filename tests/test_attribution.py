"""Who caused what: lines, modules, ops and functions, in both passes, and in exact sums."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuprof_widgets.analyses.attribution import LEVELS, attribution
from gpuprof_widgets.analyses.backward import backward_ns, backward_ops
from gpuprof_widgets.analyses.gpu_work import open_times
from gpuprof_widgets.analyses.operators import INSTANTS
from gpuprof_widgets.analyses.owners import forward_of, owners, region_around, region_behind
from gpuprof_widgets.analyses.waits import waits
from gpuprof_widgets.exceptions import OptionError
from gpuprof_widgets.trace import intervals
from gpuprof_widgets.trace.backward_spans import backward_spans
from gpuprof_widgets.trace.edit import with_slices
from gpuprof_widgets.trace.model import Record
from gpuprof_widgets.trace.window import window
from tests.records import records
from tests.traces import (
    Row,
    annotation,
    backward_op,
    cell_line,
    kernel,
    memory,
    module,
    op,
    python,
    runtime,
    trace_of,
)

AUTOGRAD = 200
SYNC = "cudaStreamSynchronize"


def trained(backward_thread: int = AUTOGRAD) -> list[Row]:
    """A line runs a module, another its backward on CUDA's autograd thread, which waits there."""
    return [
        annotation("Cell [3]", ts=0, dur=1000),
        cell_line(4, "loss = model(x)", ts=10, dur=200),
        module("model", ts=20, dur=150, kind="Net"),
        module("patch_drop", ts=30, dur=100, kind="PatchDropout"),
        op("aten::gather", ts=40, dur=50, sequence=5),
        runtime("cudaLaunchKernel", ts=50, dur=10),
        kernel("gather", ts=100, dur=70, launched_by=5),
        cell_line(5, "loss.backward()", ts=300, dur=500),
        *backward_op("GatherBackward0", ts=350, dur=300, sequence=5, thread=backward_thread),
        op("aten::scatter_add_", ts=360, dur=200, thread=backward_thread),
        runtime("cudaLaunchKernel", ts=370, dur=10, thread=backward_thread),
        kernel("scatter", ts=400, dur=90, launched_by=11),
        runtime(SYNC, ts=390, dur=120, thread=backward_thread),
    ]


def of(record: Record, level: str, name: str) -> dict[str, Any]:
    table = attribution(record, level)
    (row,) = table[table["name"] == name].to_dict("records")
    return row


def row_named(record: Record, name: str) -> int:
    return int(record.trace.slices.index[record.trace.slices["name"] == name][0])


class TestBothPasses:
    def test_a_module_has_what_its_backward_launched_and_waited_for(self) -> None:
        row = of(trace_of(*trained()), "module", "patch_drop")
        assert row["detail"] == "PatchDropout"
        assert row["calls"] == 1
        assert (row["cpu_self_ns"], row["backward_cpu_ns"]) == (100, 300)
        assert (row["device_ns"], row["backward_device_ns"]) == (70, 90)
        assert row["wait_ns"] == 120

    def test_the_module_around_it_has_the_same_in_its_totals_alone(self) -> None:
        row = of(trace_of(*trained()), "module", "model")
        assert (row["cpu_self_ns"], row["backward_cpu_ns"], row["device_ns"]) == (50, 0, 0)
        assert (row["cpu_total_ns"], row["device_total_ns"]) == (150 + 300, 70 + 90)

    def test_the_backward_counts_for_the_line_of_the_forward_op(self) -> None:
        record = trace_of(*trained())
        forward = of(record, "line", "4: loss = model(x)")
        assert forward["detail"] == "Cell [3]"
        assert (forward["cpu_self_ns"], forward["backward_cpu_ns"]) == (200, 300)
        assert (forward["device_ns"], forward["backward_device_ns"]) == (70, 90)
        calling = of(record, "line", "5: loss.backward()")
        assert (calling["cpu_self_ns"], calling["backward_cpu_ns"]) == (500, 0)

    def test_an_op_has_its_backward_op(self) -> None:
        row = of(trace_of(*trained()), "op", "aten::gather")
        assert (row["cpu_self_ns"], row["backward_cpu_ns"]) == (50, 300)
        assert (row["backward_device_ns"], row["wait_ns"], row["calls"]) == (90, 120, 1)
        assert "aten::scatter_add_" not in set(attribution(trace_of(*trained()), "op")["name"])

    def test_a_function_has_the_backward_of_the_ops_that_it_called(self) -> None:
        record = trace_of(
            annotation("ProfilerStep#1", ts=0, dur=300),
            python("train.py(4): forward", ts=0, dur=100),
            op("aten::mm", ts=10, dur=20, sequence=5),
            python("train.py(9): backward", ts=200, dur=100),
            *backward_op("MmBackward0", ts=210, dur=50, sequence=5),
        )
        forward = of(record, "python", "train.py(4): forward")
        assert (forward["cpu_self_ns"], forward["backward_cpu_ns"]) == (100, 50)
        assert of(record, "python", "train.py(9): backward")["cpu_self_ns"] == 50

    def test_what_belongs_to_nobody_is_in_the_last_row(self) -> None:
        table = attribution(trace_of(*trained()), "module")
        assert table["name"].tolist() == ["model", "patch_drop", ""]
        assert table["cpu_self_ns"].iloc[-1] == 1000 - 150

    def test_what_the_engine_does_in_a_span_is_the_modules(self) -> None:
        accumulate = "autograd::engine::evaluate_function: torch::autograd::AccumulateGrad"
        rows = [*trained(), op(accumulate, ts=660, dur=40, thread=AUTOGRAD)]
        trace = trace_of(*rows).trace
        record = Record(with_slices(trace, backward_spans(trace)))
        assert of(record, "module", "patch_drop")["backward_cpu_ns"] == 700 - 350

    def test_recursion_counts_once_in_a_total(self) -> None:
        record = trace_of(
            module("model", ts=0, dur=100),
            module("model", ts=10, dur=50),
            op("aten::mm", ts=20, dur=5),
        )
        row = of(record, "module", "model")
        assert (row["calls"], row["cpu_self_ns"], row["cpu_total_ns"]) == (2, 100, 100)

    def test_later_pieces_of_a_line_are_no_calls(self) -> None:
        record = trace_of(
            cell_line(3, "yield x", ts=0, dur=10), cell_line(3, "yield x", ts=20, dur=10, resumed=1)
        )
        row = of(record, "line", "3: yield x")
        assert (row["calls"], row["cpu_self_ns"]) == (1, 20)

    def test_an_unknown_level_is_refused(self) -> None:
        with pytest.raises(OptionError, match="line, module, op, python"):
            attribution(trace_of(*trained()), "kernel")


def cpu_time(record: Record) -> int:
    """The time in which any op, call or region of each thread ran."""
    index = record.trace.index
    kept = index.on_tracks("cpu") & ~index.in_category(INSTANTS)
    threads = (kept & (index.track == track) for track in np.unique(index.track))
    return sum(intervals.length(open_times(record.trace, thread)) for thread in threads)


def assert_adds_up(record: Record) -> None:
    trace = record.trace
    gpu = int(trace.slices["dur"].to_numpy()[trace.index.gpu].sum())
    waiting = waits(record)
    waited = int(waiting.loc[waiting["kind"] == "synchronise", "dur_ns"].sum())
    for level in LEVELS:
        table = attribution(record, level)
        assert (table["cpu_self_ns"] + table["backward_cpu_ns"]).sum() == cpu_time(record)
        assert (table["device_ns"] + table["backward_device_ns"]).sum() == gpu
        assert table["wait_ns"].sum() == waited
        assert not table[:-1].duplicated(["name", "detail"]).any()
        assert (table["cpu_total_ns"] >= table["cpu_self_ns"]).all()


@given(records(), st.integers(0, 40), st.integers(1, 40))
def test_it_adds_up_on_any_trace_and_window(record: Record, t0: int, span: int) -> None:
    assert_adds_up(record)
    assert_adds_up(window(record, t0, t0 + span))


def test_args_of_other_people_may_have_any_name_and_be_lists() -> None:
    record = trace_of(
        op("aten::mm", ts=0, dur=9, **{"": []}),
        Row("encoder", "module", ts=10, dur=5, args={"class": ["a", 1]}),
    )
    assert attribution(record, "op")["name"].tolist() == ["aten::mm", ""]
    assert attribution(record, "module")["detail"].tolist() == ["['a', 1]", ""]


def test_it_adds_up_on_real_traces(shared_record: Record) -> None:
    assert_adds_up(shared_record)


OTHER_THREAD = "threading.py(323): wait"


def with_frames(*more: Row) -> Record:
    """A module's frame with an op, a call and Python in it; another thread waits throughout."""
    return trace_of(
        python("nn.Module: Linear_0", ts=0, dur=100),
        op("aten::linear", ts=10, dur=40),
        runtime("cudaLaunchKernel", ts=20, dur=10),
        python("train.py(3): log", ts=60, dur=30),
        op("aten::item", ts=70, dur=5),
        python(OTHER_THREAD, ts=0, dur=1000, thread=7),
        *more,
    )


class TestFrames:
    @pytest.mark.parametrize("level", LEVELS)
    def test_a_thread_that_waits_in_python_is_nobodys_time(self, level: str) -> None:
        table = attribution(with_frames(), level)
        assert table["cpu_self_ns"].sum() == 40 + 5
        assert set(table.loc[table["name"] == OTHER_THREAD, "cpu_total_ns"]) <= {0}

    def test_a_function_has_what_it_ran_of_the_ops_time(self) -> None:
        record = with_frames()
        assert of(record, "python", "nn.Module: Linear_0")["cpu_self_ns"] == 40
        assert of(record, "python", "nn.Module: Linear_0")["cpu_total_ns"] == 40 + 5
        assert of(record, "python", "train.py(3): log")["cpu_self_ns"] == 5
        assert of(record, "module", "nn.Module: Linear_0")["cpu_self_ns"] == 40 + 5

    def test_within_a_region_a_function_has_its_python_as_well(self) -> None:
        record = with_frames(annotation("ProfilerStep#1", ts=0, dur=200))
        assert of(record, "python", "nn.Module: Linear_0")["cpu_self_ns"] == 100 - 30
        assert of(record, "python", "train.py(3): log")["cpu_self_ns"] == 30
        last = attribution(record, "python").iloc[-1]
        assert (last["name"], last["cpu_self_ns"]) == ("", 200 - 100)


class TestRegions:
    def test_a_kernel_of_the_backward_is_of_the_module_of_its_forward_op(self) -> None:
        record = trace_of(*trained())
        names = record.trace.slices["name"]
        behind = region_behind(record.trace, "module")
        assert names[behind[row_named(record, "scatter")]] == "patch_drop"
        assert names[behind[row_named(record, SYNC)]] == "patch_drop"
        assert region_around(record.trace, "module")[row_named(record, "scatter")] == -1

    def test_a_line_is_around_where_it_ran_and_behind_where_it_was_caused(self) -> None:
        record = trace_of(*trained(backward_thread=100))
        names = record.trace.slices["name"]
        node = row_named(record, "GatherBackward0")
        assert names[region_around(record.trace, "cell_line")[node]] == "5: loss.backward()"
        assert names[region_behind(record.trace, "cell_line")[node]] == "4: loss = model(x)"

    def test_a_backward_of_a_backward_goes_back_to_the_first_forward(self) -> None:
        record = trace_of(
            module("model", ts=0, dur=50),
            op("aten::tanh", ts=5, dur=5, sequence=1),
            *backward_op("TanhBackward0", ts=60, dur=20, sequence=1),
            op("aten::mul", ts=65, dur=5, sequence=2),
            *backward_op("MulBackward0", ts=100, dur=10, sequence=2),
        )
        node = row_named(record, "MulBackward0")
        slices = record.trace.slices
        assert slices["name"][forward_of(record.trace)[node]] == "aten::mul"
        assert slices["name"][region_behind(record.trace, "module")[node]] == "model"

    def test_a_module_run_anew_in_the_backward_comes_before_the_forwards(self) -> None:
        record = trace_of(
            module("outer", ts=0, dur=50),
            op("CheckpointFunction", ts=5, dur=5, sequence=1),
            *backward_op("CheckpointFunctionBackward", ts=60, dur=40, sequence=1),
            module("inner", ts=65, dur=20),
            op("aten::exp", ts=70, dur=5),
        )
        behind = region_behind(record.trace, "module")[row_named(record, "aten::exp")]
        assert record.trace.slices["name"][behind] == "inner"


def test_memory_belongs_to_the_line_of_its_forward_op() -> None:
    record = trace_of(
        cell_line(4, "loss = model(x)", ts=0, dur=90),
        op("aten::exp", ts=10, dur=20, sequence=5),
        memory(64, ts=15, device=0),
        cell_line(5, "loss.backward()", ts=100, dur=90),
        memory(8, ts=105, device=0),
        *backward_op("ExpBackward0", ts=120, dur=40, sequence=5),
        memory(16, ts=130, device=0),
        memory(-16, ts=135, device=0),
        memory(2, ts=195, device=0),
    )
    table = attribution(record, "line").set_index("name")["allocated_bytes"]
    assert table.to_dict() == {"4: loss = model(x)": 64 + 16, "5: loss.backward()": 8, "": 2}


class TestOwners:
    def test_a_backward_kernels_chain_has_both_sides(self) -> None:
        record = trace_of(*trained())
        chain = owners(record, row_named(record, "scatter"))
        assert chain[["role", "name"]].to_numpy().tolist() == [
            ["line", "4: loss = model(x)"],
            ["module", "model"],
            ["module", "patch_drop"],
            ["forward", "aten::gather"],
            ["op", "autograd::engine::evaluate_function: GatherBackward0"],
            ["op", "GatherBackward0"],
            ["op", "aten::scatter_add_"],
            ["launch", "cudaLaunchKernel"],
            ["gpu", "scatter"],
        ]

    @given(records(), st.data())
    def test_no_slice_comes_twice(self, record: Record, data: st.DataObject) -> None:
        row = data.draw(st.integers(0, len(record.trace) - 1))
        chain = owners(record, row)
        assert chain["row"].is_unique
        assert chain["row"].iloc[-1] == row


class TestBackwardOps:
    def test_an_op_is_named_with_its_forward_op_module_and_line(self) -> None:
        (row,) = backward_ops(trace_of(*trained())).to_dict("records")
        assert (row["name"], row["forward"]) == ("GatherBackward0", "aten::gather")
        assert (row["module"], row["line"], row["cell"]) == ("patch_drop", 4, "Cell [3]")
        assert (row["calls"], row["cpu_ns"], row["forward_cpu_ns"]) == (1, 300, 50)
        assert (row["device_ns"], row["wait_ns"], row["own_ns"]) == (90, 120, 298)

    def test_the_row_is_that_of_the_longest_call(self) -> None:
        record = trace_of(
            op("aten::exp", ts=0, dur=5, sequence=2),
            op("aten::exp", ts=10, dur=5, sequence=3),
            *backward_op("ExpBackward0", ts=50, dur=10, sequence=3),
            *backward_op("ExpBackward0", ts=80, dur=14, sequence=2),
        )
        (row,) = backward_ops(record).to_dict("records")
        assert (row["calls"], row["cpu_ns"], row["own_ns"]) == (2, 24, 8 + 12)
        assert record.trace.slices["ts"][row["row"]] == 80
        assert (row["module"], row["line"], row["cell"]) == ("", -1, "")

    def test_a_pass_within_a_backward_op_is_not_counted_twice(self) -> None:
        record = trace_of(
            op("CheckpointFunction", ts=5, dur=5, sequence=1),
            *backward_op("CheckpointFunctionBackward", ts=60, dur=40, sequence=1),
            op("aten::exp", ts=70, dur=5, sequence=2),
            *backward_op("ExpBackward0", ts=80, dur=10, sequence=2),
        )
        times = backward_ops(record).set_index("name")["cpu_ns"]
        assert times.to_dict() == {"CheckpointFunctionBackward": 30, "ExpBackward0": 10}
        assert times.sum() == backward_ns(record) == 40

    def test_real_traces_have_their_times(self, shared_record: Record) -> None:
        slices, table = shared_record.trace.slices, backward_ops(shared_record)
        linked = slices[slices["forward"] >= 0]
        assert bool(len(table)) == bool(len(linked))
        assert table["calls"].sum() <= len(linked)
        assert table["cpu_ns"].sum() <= backward_ns(shared_record)
