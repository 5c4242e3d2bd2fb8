"""What a faster op or kernel would save, on hand-made traces of which that is known."""

from __future__ import annotations

import pytest

from gpuprof_widgets.analyses.what_if import what_if, what_ifs
from gpuprof_widgets.exceptions import OptionError
from gpuprof_widgets.trace.model import Record
from gpuprof_widgets.trace.window import window
from tests.traces import annotation, backward_op, kernel, op, python, runtime, trace_of

pytestmark = pytest.mark.slow


def saved(record: Record, name: str, **given: object) -> int:
    """How much shorter the run would be, in ns."""
    table = what_if(record, name, **given)  # type: ignore[arg-type]
    assert len(table) == 1
    assert (table["span_ns"] - table["new_span_ns"]).tolist() == table["saved_ns"].tolist()
    return int(table["saved_ns"].iloc[0])


def on_the_cpu() -> Record:
    return trace_of(
        annotation("step", ts=0, dur=100),
        op("aten::linear", ts=10, dur=50),
        op("aten::addmm", ts=20, dur=30),
        op("aten::addmm", ts=70, dur=20),
    )


def test_time_in_which_nothing_is_known_to_have_run_is_on_the_path_too() -> None:
    """No op of torch is recorded: the rest of the step need not be Python."""
    record = trace_of(annotation("step", ts=0, dur=100), op("MatMul", ts=20, dur=30))
    row = what_if(record, "step").iloc[0]
    assert row[["time_ns", "path_ns", "saved_ns"]].tolist() == [100, 100, 100]


def test_the_row_says_what_was_changed() -> None:
    row = what_if(on_the_cpu(), "aten::addmm", scale=0.5).iloc[0]
    assert (row["name"], row["what"], row["scale"]) == ("aten::addmm", "op", 0.5)
    assert (row["calls"], row["time_ns"], row["path_ns"]) == (2, 50, 50)
    assert (row["span_ns"], row["new_span_ns"], row["saved_share"]) == (100, 75, 0.25)


def bound_by_the_gpu() -> Record:
    """Both kernels are launched while the first one has only begun; the launch takes 6."""
    return trace_of(
        op("aten::a", ts=0, dur=10),
        runtime("cudaLaunchKernel", ts=2, dur=5),
        op("aten::b", ts=10, dur=10),
        runtime("cudaLaunchKernel", ts=12, dur=5),
        kernel("first", ts=8, dur=42, launched_by=1),
        kernel("second", ts=52, dur=30, launched_by=3),
    )


def launch_bound() -> Record:
    return trace_of(
        op("aten::a", ts=0, dur=20),
        runtime("cudaLaunchKernel", ts=10, dur=5),
        op("aten::b", ts=20, dur=20),
        runtime("cudaLaunchKernel", ts=30, dur=5),
        kernel("short", ts=14, dur=2, launched_by=1),
        kernel("last", ts=36, dur=9, launched_by=3),
    )


def synchronised() -> Record:
    return trace_of(
        runtime("cudaLaunchKernel", ts=0, dur=5),
        op("aten::item", ts=10, dur=95),
        runtime("cudaStreamSynchronize", ts=12, dur=90),
        op("aten::add", ts=110, dur=10),
        kernel("long", ts=8, dur=90, launched_by=0),
    )


def of_two_streams() -> Record:
    return trace_of(
        runtime("cudaLaunchKernel", ts=0, dur=5),
        runtime("cudaStreamWaitEvent", ts=15, dur=1),
        runtime("cudaLaunchKernel", ts=17, dur=5),
        kernel("long", ts=5, dur=50, stream=7, launched_by=0),
        kernel("waits", ts=60, dur=100, stream=20, launched_by=2),
    )


def backward() -> Record:
    return trace_of(
        op("aten::mm", ts=0, dur=20, sequence=1),
        *backward_op("MmBackward0", ts=30, dur=40, sequence=1, thread=2),
        op("aten::add_", ts=80, dur=20),
    )


@pytest.mark.parametrize(
    ("record", "name", "scale", "expected"),
    [
        (on_the_cpu(), "aten::addmm", 0, 50),
        (on_the_cpu(), "aten::linear", 0, 50),
        (on_the_cpu(), "step", 0, 100),
        (on_the_cpu(), "aten::addmm", 0.5, 25),
        (on_the_cpu(), "aten::addmm", 1, 0),
        (on_the_cpu(), "aten::addmm", 2, -50),
        (bound_by_the_gpu(), "second", 0, 30),
        # Without the first the second would begin at 18: launched at 12, and launches take 6.
        (bound_by_the_gpu(), "first", 0, 52 - 18),
        # An op goes with its kernels, a launch with what it launched; the delays stay.
        (bound_by_the_gpu(), "aten::b", 0, 30),
        # The second is launched at 12 - 5 then, and 6 later it begins and ends.
        (bound_by_the_gpu(), "cudaLaunchKernel", 0, 82 - (7 + 6)),
        # Where launches are the bound, kernels save nothing but the last: the CPU ends at 40.
        (launch_bound(), "short", 0, 0),
        (launch_bound(), "last", 0, 5),
        (launch_bound(), "aten::a", 0, 20),
        # A wait ends with what it waits for, and no earlier than it begins.
        (synchronised(), "long", 0, 98 - 12),
        (synchronised(), "long", 0.5, 45),
        # 4 after the wait; the 2 before it do not matter: the kernel ends when it ends.
        (synchronised(), "cudaStreamSynchronize", 0, 4),
        (of_two_streams(), "long", 0.5, 25),
        (of_two_streams(), "long", 0, 60 - (17 + 5)),  # launches take 5 here
        (of_two_streams(), "waits", 0, 100),
        (backward(), "MmBackward0", 0, 38),
        (backward(), "aten::mm", 0, 20),
        (backward(), "autograd::engine::evaluate_function: MmBackward0", 0, 40),
    ],
)
def test_what_is_saved(record: Record, name: str, scale: float, expected: int) -> None:
    assert saved(record, name, scale=scale) == expected


def test_of_a_step_only_what_lies_in_it_counts() -> None:
    record = trace_of(
        annotation("ProfilerStep#1", ts=0, dur=50),
        op("aten::mm", ts=10, dur=20),
        annotation("ProfilerStep#2", ts=50, dur=50),
        op("aten::mm", ts=60, dur=30),
    )
    assert saved(record, "aten::mm") == 50
    assert saved(record, "aten::mm", step=2) == 30
    assert saved(record, "aten::mm", region=(65, 100)) == 25
    assert saved(window(record, 0, 50), "aten::mm") == 20


def test_a_name_that_is_not_there_is_an_error_with_a_hint() -> None:
    with pytest.raises(OptionError, match="did you mean 'aten::addmm'"):
        what_if(on_the_cpu(), "aten::admm")
    with pytest.raises(OptionError, match="a scale is 0"):
        what_if(on_the_cpu(), "aten::addmm", scale=-1)
    with pytest.raises(OptionError, match="not nan"):
        what_if(on_the_cpu(), "aten::addmm", scale=float("nan"))


def test_all_likely_ones_the_most_saved_first() -> None:
    table = what_ifs(bound_by_the_gpu())
    assert table["saved_ns"].is_monotonic_decreasing
    assert set(table["name"]) == {"aten::a", "aten::b", "first", "second"}
    for number, name in enumerate(table["name"]):
        alone = what_if(bound_by_the_gpu(), name)
        assert table.iloc[[number]].to_dict("list") == alone.to_dict("list")
    assert (table["scale"] == 0).all()
    assert (table["span_ns"] - table["new_span_ns"] == table["saved_ns"]).all()
    assert (table["saved_share"] == table["saved_ns"] / table["span_ns"]).all()


def test_a_python_function_is_called_one_and_found_by_its_name_alone() -> None:
    record = trace_of(python("/home/ada/train.py(3): step", ts=0, dur=9))
    with pytest.raises(OptionError, match=r"did you mean '/home/ada/train.py\(3\): step'"):
        what_if(record, "step")
    assert what_if(record, "/home/ada/train.py(3): step")["what"].tolist() == ["function"]
