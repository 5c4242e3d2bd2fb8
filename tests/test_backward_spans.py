"""The backward pass of modules, from the links between backward and forward ops alone."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuprof_widgets.trace.backward_spans import backward_spans
from gpuprof_widgets.trace.model import Record
from tests.traces import Row, annotation, backward_op, cell_line, module, op, trace_of

AUTOGRAD = 200
ACCUMULATE = "autograd::engine::evaluate_function: torch::autograd::AccumulateGrad"


def found(*rows: Row) -> list[tuple[str, int, int]]:
    """Name, start and end of the spans, outer ones first."""
    return [(one.name, one.ts, one.ts + one.dur) for one in backward_spans(trace_of(*rows).trace)]


def two_layers(start: int = 0, sequence: int = 1) -> list[Row]:
    """A model of two layers with one op each."""
    return [
        module("model", ts=start, dur=50),
        module("first", ts=start + 5, dur=10),
        op("aten::mm", ts=start + 6, dur=5, sequence=sequence),
        module("second", ts=start + 20, dur=10),
        op("aten::tanh", ts=start + 21, dur=5, sequence=sequence + 1),
    ]


def their_backward(start: int, sequence: int = 1, thread: int = 100) -> list[Row]:
    return [
        *backward_op("TanhBackward0", ts=start, dur=10, sequence=sequence + 1, thread=thread),
        *backward_op("MmBackward0", ts=start + 12, dur=10, sequence=sequence, thread=thread),
    ]


@pytest.mark.parametrize("thread", [100, AUTOGRAD], ids=["cpu", "cuda's autograd thread"])
def test_spans_nest_as_the_forwards_did(thread: int) -> None:
    rows = [*two_layers(), *their_backward(100, thread=thread)]
    assert found(*rows) == [("model", 100, 122), ("second", 100, 110), ("first", 112, 122)]


def test_spans_lie_on_the_thread_of_their_ops_and_tell_the_modules_class() -> None:
    trace = trace_of(*two_layers(), *their_backward(100, thread=AUTOGRAD)).trace
    tracks = {trace.tracks["thread"].iloc[one.track] for one in backward_spans(trace)}
    assert tracks == {str(AUTOGRAD)}
    (args,) = {tuple(one.args.items()) for one in backward_spans(trace)}
    assert args == (("class", "Module"), ("root", "model"))


def test_another_op_ends_the_spans() -> None:
    """The optimizer's ops after a pass are no part of it, nor what comes between two passes."""
    rows = [*two_layers(), *their_backward(100), op("aten::add_", ts=123, dur=5)]
    rows += [op(ACCUMULATE, ts=130, dur=5)]
    assert max(end for _, _, end in found(*rows)) == 122


def test_a_second_pass_through_one_graph_has_spans_of_its_own() -> None:
    rows = [*two_layers(), *their_backward(100), *their_backward(130)]
    assert Counter(name for name, _, _ in found(*rows)) == {"model": 2, "first": 2, "second": 2}


def test_several_backward_ops_of_one_forward_op_are_of_one_pass() -> None:
    """They share its sequence number."""
    rows = [module("only", ts=0, dur=20), op("aten::mm", ts=5, dur=5, sequence=1)]
    for name, ts in (("MmBackward0", 30), ("TBackward0", 50)):
        rows += backward_op(name, ts=ts, dur=10, sequence=1)
    assert found(*rows) == [("only", 30, 60)]


def test_a_pass_may_begin_as_the_module_ends() -> None:
    rows = [module("only", ts=0, dur=30), op("aten::mm", ts=5, dur=5, sequence=1)]
    assert found(*rows, *backward_op("MmBackward0", ts=30, dur=10, sequence=1)) == [
        ("only", 30, 40)
    ]


def test_each_thread_of_a_pass_has_spans_of_its_own() -> None:
    rows = [module("only", ts=0, dur=20)]
    for number, ts in ((1, 5), (2, 10)):
        rows.append(op("aten::mm", ts=ts, dur=5, sequence=number))
    rows += backward_op("MmBackward0", ts=30, dur=10, sequence=2, thread=AUTOGRAD)
    rows += backward_op("MmBackward0", ts=35, dur=10, sequence=1, thread=AUTOGRAD + 1)
    assert sorted(found(*rows)) == [("only", 30, 40), ("only", 35, 45)]


def test_a_span_does_not_leave_the_line_that_its_ops_lie_in() -> None:
    rows = [
        *two_layers(),
        cell_line(3, "a.backward()", ts=99, dur=12),
        cell_line(4, "b.backward()", ts=111, dur=20),
        *their_backward(100),
    ]
    assert [end for name, _, end in found(*rows) if name == "model"] == [110, 122]


def test_a_loss_outside_of_any_module_is_in_no_span() -> None:
    rows = [*two_layers(), op("aten::sum", ts=60, dur=5, sequence=3)]
    rows += [*backward_op("SumBackward0", ts=90, dur=9, sequence=3), *their_backward(100)]
    assert min(start for _, start, _ in found(*rows)) == 100


def test_a_module_that_runs_the_pass_itself_has_no_backward_span() -> None:
    trainer = module("trainer", ts=0, dur=200)
    rows = [trainer, *two_layers(1), *their_backward(100)]
    assert {name for name, _, _ in found(*rows)} == {"model", "first", "second"}


def test_a_forward_run_anew_within_a_backward_op_has_spans_there() -> None:
    """Reentrant checkpointing: the pass of the recomputed ops lies in the checkpoint's own."""
    rows = [
        module("model", ts=0, dur=50),
        module("block", ts=5, dur=20),
        op("CheckpointFunction", ts=6, dur=15, sequence=1),
        *backward_op("CheckpointFunctionBackward", ts=100, dur=60, sequence=1, thread=AUTOGRAD),
        module("block", ts=105, dur=20, thread=AUTOGRAD),
        op("aten::mm", ts=106, dur=5, sequence=9, thread=AUTOGRAD),
        *backward_op("MmBackward0", ts=130, dur=10, sequence=9, forward_thread=2, thread=AUTOGRAD),
    ]
    assert found(*rows) == [("model", 100, 160), ("block", 130, 140), ("block", 100, 160)]


def test_the_backward_of_a_backward_belongs_to_the_module_of_the_first_forward() -> None:
    rows = [
        module("model", ts=0, dur=50),
        op("aten::tanh", ts=5, dur=5, sequence=1),
        *backward_op("TanhBackward0", ts=60, dur=20, sequence=1),
        op("aten::mul", ts=65, dur=5, sequence=2),
        *backward_op("MulBackward0", ts=100, dur=10, sequence=2),
    ]
    assert found(*rows) == [("model", 60, 80), ("model", 100, 110)]


@dataclass
class Run:
    """A simulated forward of a tree of modules, its ops numbered as autograd does."""

    now: int = 0
    sequence: int = 0
    rows: list[Row] = field(default_factory=list)
    paths: list[tuple[int, ...]] = field(default_factory=list)
    instances: int = 0

    def forward(self, tree: list[Any], path: tuple[int, ...] = ()) -> None:
        for part in tree:
            self.now += 1
            if isinstance(part, list):
                number, start, place = self.instances, self.now, len(self.rows)
                self.instances += 1
                self.forward(part, (*path, number))
                self.now += 1
                self.rows.insert(place, module(f"m{number}", ts=start, dur=self.now - start))
            else:
                self.rows.append(
                    op(f"op{self.sequence}", ts=self.now, dur=2, sequence=self.sequence)
                )
                self.paths.append(path)
                self.sequence += 1
                self.now += 2

    def backward(self, accumulates: list[bool], thread: int) -> dict[int, tuple[int, int]]:
        """Adds the pass; returns when each module's first op began and its last one ended."""
        expected: dict[int, tuple[int, int]] = {}
        first = self.sequence - len(self.paths)
        for path, gap in reversed(list(zip(self.paths, accumulates, strict=True))):
            number = first + len(self.paths) - 1
            self.now += 3
            start = self.now
            self.rows += backward_op(f"Op{number}Backward", ts=start, dur=5, sequence=number,
                                     thread=thread)  # fmt: skip
            self.now += 5
            if gap:
                self.rows.append(op(ACCUMULATE, ts=self.now + 1, dur=2, thread=thread))
                self.now += 3
            for instance in path:
                expected[instance] = (expected.get(instance, (start, 0))[0], self.now)
            self.paths.pop()
        return expected


trees = st.recursive(st.just("op"), lambda inner: st.lists(inner, max_size=4), max_leaves=12)


@st.composite
def trained(draw: st.DrawFn) -> tuple[Record, dict[str, tuple[int, int]]]:
    """One to three steps of random trees of modules, and the spans that they must have."""
    run, expected = Run(), {}
    thread = draw(st.sampled_from([100, AUTOGRAD]))
    for _ in range(draw(st.integers(1, 3))):
        run.forward(draw(st.lists(trees, max_size=4)))
        gaps = draw(st.lists(st.booleans(), min_size=len(run.paths), max_size=len(run.paths)))
        expected |= {f"m{number}": when for number, when in run.backward(gaps, thread).items()}
    run.rows.append(annotation("the run", ts=0, dur=run.now + 1))
    return trace_of(*run.rows), expected


@given(trained())
def test_each_modules_span_goes_from_its_first_op_to_its_last(
    made: tuple[Record, dict[str, tuple[int, int]]],
) -> None:
    record, expected = made
    spans = backward_spans(record.trace)
    assert Counter(one.name for one in spans) == dict.fromkeys(expected, 1)
    assert {one.name: (one.ts, one.ts + one.dur) for one in spans} == expected
