"""How much of Python's time was waiting for the GPU: exact from frames, estimated from cProfile."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuprof_widgets.analyses.python_calls import python_calls
from gpuprof_widgets.analyses.python_time import python_time
from gpuprof_widgets.analyses.waits import waits
from gpuprof_widgets.trace.model import Record
from gpuprof_widgets.trace.pstats import calls_from_slices
from gpuprof_widgets.trace.window import window
from tests.traces import Row, annotation, calls_of, copy, kernel, op, python, runtime, trace_of

pytestmark = pytest.mark.slow

ITEM = "<method 'item' of 'torch._C.TensorBase' objects>"
CPU = "<method 'cpu' of 'torch._C.TensorBase' objects>"
SYNCHRONIZE = "<built-in method torch._C._cuda_synchronize>"
RUN_BACKWARD = "<method 'run_backward' of 'torch._C._EngineBase' objects>"
SYNC = "cudaStreamSynchronize"


def waiting(record: Record, column: str = "self_waiting_ns") -> dict[str, int]:
    """What each function waited, where it did."""
    table = python_time(record)
    return {n: w for n, w in zip(table["name"], table[column], strict=True) if w}


def item(at: int, wait: int) -> list[Row]:
    """`aten::item` from ``at`` on, waiting for a kernel until 10 ns before its end."""
    return [
        op("aten::item", ts=at, dur=wait + 20),
        op("aten::_local_scalar_dense", ts=at + 1, dur=wait + 18),
        runtime(SYNC, ts=at + 10, dur=wait),
        kernel("gemm", ts=at, dur=wait + 9),
    ]


def test_a_wait_is_the_innermost_frames_and_all_callers() -> None:
    record = trace_of(
        python("train.py(1): main", ts=0, dur=1000),
        python("train.py(5): step", ts=100, dur=600),
        python("<built-in method item of Tensor object at 0x7f10>", ts=200, dur=420),
        *item(210, 380),
        python("train.py(9): other", ts=800, dur=100),
    )
    name = "<built-in method item of Tensor object>"
    assert waiting(record) == {name: 380}
    assert waiting(record, "total_waiting_ns") == {name: 380, "step": 380, "main": 380}
    table = python_time(record).set_index("name")
    assert (table["calls"] == 1).all()
    assert (table["primitive_calls"] == 1).all()
    assert table["exact"].all()
    assert table.loc[name, ["self_ns", "self_python_ns"]].tolist() == [420, 40]
    assert table.loc["step", ["total_ns", "total_python_ns"]].tolist() == [600, 220]
    assert table.loc["main", "waited_for"] == "gemm"
    assert table.loc["other", "waited_for"] == ""


def test_waits_inside_waits_count_once() -> None:
    record = trace_of(
        python("a.py(1): f", ts=0, dur=1000),
        runtime("cudaStreamSynchronize", ts=100, dur=500),
        runtime("cuStreamSynchronize", ts=110, dur=480, category="cuda_driver"),
    )
    assert waiting(record) == {"f": 500}


def test_the_caller_of_backward_waits_for_the_threads_of_the_backward_pass() -> None:
    node = "autograd::engine::evaluate_function: GatherBackward0"
    record = trace_of(
        annotation("the run", ts=0, dur=1000),
        python("a.py(1): f", ts=0, dur=1000),
        python("<built-in method run_backward of EngineBase object at 0x1>", ts=100, dur=600),
        op(node, ts=200, dur=450, thread=7),
        runtime(SYNC, ts=250, dur=400, thread=7),
        op("aten::item", ts=800, dur=100, thread=8),
        runtime(SYNC, ts=810, dur=50, thread=8),
        label="the run",
    )
    assert waiting(record) == {"<built-in method run_backward of EngineBase object>": 400}
    assert waiting(record, "total_waiting_ns")["f"] == 400


def test_the_table_of_a_window_is_that_of_its_frames() -> None:
    record = trace_of(
        python("a.py(1): f", ts=0, dur=1000),
        runtime(SYNC, ts=100, dur=500),
        op("end", ts=0, dur=1000),
    )
    table = python_time(window(record, 0, 300))
    assert table[["self_ns", "self_waiting_ns"]].to_numpy().tolist() == [[300, 200]]


def test_a_window_without_the_runs_region_counts_the_frames_of_the_runs_thread() -> None:
    record = trace_of(
        annotation("the run", ts=0, dur=100),
        annotation("the run", ts=5, dur=900, thread=7),
        python("a.py(1): main", ts=0, dur=1000),
        python("b.py(1): worker", ts=0, dur=1000, thread=7),
        label="the run",
    )
    for part in record, window(record, 300, 400), window(window(record, 300, 400), 350, 360):
        assert python_time(part)["name"].tolist() == ["main"]


def test_a_built_in_has_the_waits_of_its_op_and_its_callers_their_share() -> None:
    calls = calls_of(
        (None, "main", 1, 100),
        ("main", "train", 1, 200),
        ("main", "check", 1, 300),
        ("train", ITEM, 3, 450),
        ("check", CPU, 1, 90),
    )
    record = trace_of(*item(0, 400), calls=calls)
    assert waiting(record) == {ITEM: 400}
    assert waiting(record, "total_waiting_ns") == {ITEM: 400, "train": 400, "main": 400}
    table = python_time(record).set_index("name")
    assert not table["exact"].any()
    assert table.loc["train", ["waited_for", "total_python_ns"]].tolist() == ["gemm", 250]


def test_callers_share_the_wait_by_the_time_of_their_calls() -> None:
    calls = calls_of((None, "a", 1, 0), (None, "b", 1, 0), ("a", ITEM, 1, 300), ("b", ITEM, 1, 100))
    shared = calls.edges.assign(total_ns=[300, 100])
    record = trace_of(*item(0, 200), calls=type(calls)(calls.functions, shared))
    assert waiting(record, "total_waiting_ns") == {ITEM: 200, "a": 150, "b": 50}


def test_a_built_in_waits_no_longer_than_its_own_time() -> None:
    """The rest is an operator's or an index's: no calls to cProfile, in the function itself."""
    calls = calls_of((None, "main", 1, 900), ("main", ITEM, 1, 100))
    assert waiting(trace_of(*item(0, 400), calls=calls)) == {ITEM: 100, "main": 300}


@pytest.mark.parametrize(
    ("builtin", "call", "name"),
    [
        (SYNCHRONIZE, "cudaDeviceSynchronize", ""),
        ("<method 'synchronize' of 'torch._C._CudaEventBase' objects>", "cudaEventSynchronize", ""),
        ("<built-in method torch._C._cuda_emptyCache>", "cudaFree", ""),
        (CPU, SYNC, "aten::to"),
        ("<method 'copy_' of 'torch._C.TensorBase' objects>", "cudaMemcpy", "aten::copy_"),
        ("<built-in method torch.nonzero>", SYNC, "aten::nonzero"),
        ("<built-in method nonzero of type object at 0x7f>", SYNC, "aten::nonzero"),
        ("<built-in method torch.where>", SYNC, "aten::nonzero_numpy"),
        (ITEM, SYNC, "aten::item"),
    ],
)
def test_built_ins_are_known_by_what_they_do(builtin: str, call: str, name: str) -> None:
    others = [("main", other, 1, 500) for other in ("<method 'index' of 'list' objects>", "f")]
    calls = calls_of((None, "main", 1, 500), ("main", builtin, 1, 500), *others)
    around = [op(name, ts=0, dur=490)] if name else [annotation("run", ts=0, dur=490)]
    rows = [*around, runtime(call, ts=10, dur=400), kernel("gemm", ts=0, dur=410)]
    assert waiting(trace_of(*rows, calls=calls)) == {builtin: 400}


def test_namesakes_of_numpy_do_not_wait_for_the_gpu() -> None:
    calls = calls_of((None, "main", 1, 500), ("main", "<method 'item' of 'numpy.generic'>", 9, 900))
    assert waiting(trace_of(*item(0, 400), calls=calls)) == {"main": 400}


def test_waits_of_the_backward_pass_are_in_run_backward() -> None:
    node = "autograd::engine::evaluate_function: GatherBackward0"
    calls = calls_of((None, "main", 1, 100), ("main", RUN_BACKWARD, 1, 700))
    record = trace_of(
        annotation("the run", ts=0, dur=900),
        op(node, ts=200, dur=450, thread=7),
        runtime(SYNC, ts=250, dur=300, thread=7),
        op(node, ts=400, dur=250, thread=8),
        runtime(SYNC, ts=450, dur=200, thread=8),
        op("aten::item", ts=0, dur=90, thread=9),
        runtime(SYNC, ts=1, dur=80, thread=9),
        calls=calls,
        label="the run",
    )
    assert waiting(record) == {RUN_BACKWARD: 400}, "two threads at once are one wait of the caller"


def line(number: int, ts: int, dur: int, code: str = "x") -> Row:
    place = {"cell": "Cell [3]", "line": number}
    return op(f"{number}: {code}", ts=ts, dur=dur, category="cell_line", **place)


def test_cell_lines_tell_in_which_function_an_operator_waited() -> None:
    source = "%%gpuprofile\n!ls\ndef f(x):\n    return x[x > 0]\n@cached\ndef g():\n    pass\nf(x)"
    calls = calls_of(("<module>", "f", 1, 400), ("<module>", "g", 1, 400), (None, "<module>", 1, 9))
    functions = calls.functions.assign(file="Cell [3]").set_index("name")
    functions.loc[["<module>", "f", "g"], "line"] = [1, 3, 5]
    calls = type(calls)(functions.reset_index()[list(calls.functions)], calls.edges)
    rows = [
        line(8, 0, 500), line(4, 10, 400), op("aten::index", ts=20, dur=300),
        runtime(SYNC, ts=30, dur=200), kernel("gemm", ts=0, dur=225, launched_by=2),
    ]  # fmt: skip
    cells = [{"label": "Cell [3]", "source": source, "first_line": 1, "statements": [8, 4]}]
    assert waiting(trace_of(*rows, calls=calls)) == {"f": 99, "g": 99, "<module>": 2}
    record = trace_of(*rows, calls=calls, lines={"cells": cells})
    assert waiting(record) == {"f": 200}
    found = python_time(record).set_index("name").loc["f"]
    assert found[["waited_for", "launched_by", "launched_at"]].tolist() == [
        "gemm",
        "aten::index",
        "Cell [3]:4",
    ]


def test_functions_that_call_each_other_in_a_circle_share_what_is_below() -> None:
    """As modules do: `_call_impl` calls `forward`, which calls `_call_impl`."""
    names = ["main", "call", "block", "leaf", ITEM]
    functions = pd.DataFrame(
        {
            "file": ["a.py"] * 4 + ["~"],
            "line": [1, 2, 3, 4, 0],
            "name": names,
            "calls": [1, 3, 1, 2, 2],
            "primitive_calls": [1, 1, 1, 2, 2],
            "self_ns": [10, 30, 20, 40, 500],
            "total_ns": [600, 590, 580, 540, 500],
        }
    )
    edges = pd.DataFrame(
        [(0, 1, 1, 590), (1, 2, 1, 580), (2, 1, 2, 560), (1, 3, 2, 540), (3, 4, 2, 500)],
        columns=["caller", "callee", "calls", "total_ns"],
    )
    edges = edges.assign(primitive_calls=edges["calls"], self_ns=1)
    calls = type(calls_of())(functions, edges)
    found = waiting(trace_of(*item(0, 400), calls=calls), "total_waiting_ns")
    assert found[ITEM] == found["leaf"] == found["main"] == 400
    assert found["call"] == 400
    assert 390 <= found["block"] <= 400


@dataclass
class Call:
    """A call of a program: a function with calls inside, or, without a name, a wait."""

    name: str
    own: int
    inside: list[Call] = field(default_factory=list)
    wait: int = 0


WAITS = {
    "item": (f"{ITEM}", "aten::item", SYNC),
    "cpu": (f"{CPU}", "aten::to", "cudaMemcpy"),
    "synchronize": (f"{SYNCHRONIZE}", "", "cudaDeviceSynchronize"),
    "mask": ("", "aten::index", SYNC),
}
OWN = st.integers(20, 50)
leaves = st.builds(
    Call,
    name=st.sampled_from(sorted(WAITS)),
    own=OWN,
    wait=st.one_of(st.just(0), st.integers(1, 99)),
)
programs = st.recursive(
    leaves,
    lambda inner: st.builds(
        Call, name=st.sampled_from("fgh"), own=OWN, inside=st.lists(inner, max_size=3)
    ),
    max_leaves=12,
)


@dataclass
class Run:
    """What a program leaves in a trace, and how long each function really waited."""

    frames: list[Row] = field(default_factory=list)
    rest: list[Row] = field(default_factory=list)
    own: Counter[str] = field(default_factory=Counter)
    total: Counter[str] = field(default_factory=Counter)
    now: int = 0

    def call(self, call: Call, above: tuple[str, ...]) -> None:
        began, self.now = self.now, self.now + call.own
        if call.name in WAITS:
            self._wait(call, began, above)
        else:
            for inner in call.inside:
                self.call(inner, (*above, call.name))
                self.now += 1
            self.frames.append(python(f"a.py(1): {call.name}", ts=began, dur=self.now - began))

    def _wait(self, call: Call, began: int, above: tuple[str, ...]) -> None:
        builtin, operator, name = WAITS[call.name]
        self.now += call.wait
        if builtin:
            self.frames.append(python(builtin, ts=began, dur=self.now - began))
            above = (*above, builtin)
        if operator:
            self.rest.append(op(operator, ts=began + 1, dur=self.now - began - 2))
        if call.wait:
            self.rest.append(runtime(name, ts=began + 5, dur=call.wait))
            self.own[above[-1]] += call.wait
            self.total.update(dict.fromkeys(above, call.wait))


def run_of(program: list[Call]) -> Run:
    run = Run(rest=[])
    run.call(Call("main", 50, program), ())
    run.rest.append(annotation("the run", ts=0, dur=run.now))
    return run


def record_of(run: Run, *, frames: bool) -> Record:
    """The run with its frames, or as cProfile and a trace without stacks tell of it."""
    full = trace_of(*run.rest, *run.frames, label="the run")
    calls = calls_from_slices(full.trace, "the run")
    return trace_of(*run.rest, *run.frames * frames, label="the run", calls=calls)


@given(st.lists(programs, max_size=4))
def test_recorded_frames_tell_the_truth(program: list[Call]) -> None:
    run = run_of(program)
    record = record_of(run, frames=True)
    assert waiting(record) == dict(run.own)
    assert waiting(record, "total_waiting_ns") == dict(run.total)


@pytest.mark.parametrize("frames", [True, False])
@given(program=st.lists(programs, max_size=4))
def test_times_add_up_and_none_is_negative(frames: bool, program: list[Call]) -> None:
    run = run_of(program)
    record = record_of(run, frames=frames)
    table = python_time(record)
    for kind in ("self", "total"):
        whole, waited, rest = (table[f"{kind}{part}_ns"] for part in ("", "_waiting", "_python"))
        assert (waited >= 0).all()
        assert (rest >= 0).all()
        assert (waited + rest == whole).all()
    assert (table["self_waiting_ns"] <= table["total_waiting_ns"]).all()
    measured, rounding = sum(run.own.values()), 0 if frames else len(table)
    assert measured == waits(record)["dur_ns"].sum()
    assert table["self_waiting_ns"].sum() == pytest.approx(measured, abs=rounding)
    top = table.set_index("name").loc["main", "total_waiting_ns"]
    assert top == pytest.approx(measured, abs=rounding)
    columns = ["file", "line", "name", "calls", "primitive_calls", "self_ns", "total_ns"]
    pd.testing.assert_frame_equal(table[columns], python_calls(record)[columns])


@given(st.lists(leaves.filter(lambda call: call.name != "mask"), max_size=6))
def test_the_estimate_is_the_truth_where_built_ins_wait_under_one_caller_each(
    program: list[Call],
) -> None:
    run = run_of(program)
    record = record_of(run, frames=False)
    assert waiting(record) == dict(run.own)
    assert waiting(record, "total_waiting_ns") == dict(run.total)


def test_a_run_that_never_waited_is_known_to_have_none() -> None:
    calls = calls_of((None, "main", 1, 100), ("main", ITEM, 1, 100))
    table = python_time(trace_of(op("aten::item", ts=0, dur=90), calls=calls))
    assert table["exact"].all()
    assert not table["self_waiting_ns"].any()


def test_a_file_of_cprofile_alone_knows_nothing_of_waits() -> None:
    table = python_time(trace_of(calls=calls_of((None, "main", 1, 100))))
    assert not table["exact"].any()


def test_a_copy_that_was_asked_for_is_named_where_nothing_else_ran() -> None:
    calls = calls_of((None, "main", 1, 500), ("main", CPU, 1, 450))
    record = trace_of(
        op("aten::to", ts=0, dur=420),
        runtime("cudaMemcpy", ts=10, dur=400),
        copy("Memcpy DtoH (Device -> Pageable)", ts=20, dur=380, launched_by=1),
        calls=calls,
    )
    assert python_time(record)["waited_for"].iloc[0] == "Memcpy DtoH (Device -> Pageable)"


def test_frees_wait_only_while_the_gpu_works() -> None:
    rows = [op("aten::empty", ts=0, dur=500), runtime("cudaFree", ts=10, dur=300)]
    assert len(waits(trace_of(*rows))) == 0
    assert waits(trace_of(*rows, kernel("gemm", ts=0, dur=200)))["name"].tolist() == ["cudaFree"]
