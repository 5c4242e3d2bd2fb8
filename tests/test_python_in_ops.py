"""Python that ran inside of an op's region is Python's time, on hand-made traces and a real run."""

from __future__ import annotations

import time

import pytest
import torch

from gpuprof_widgets.analyses.breakdown import breakdown
from gpuprof_widgets.capture.recorder import Recorder
from gpuprof_widgets.options import Options
from gpuprof_widgets.trace.model import Record
from tests.traces import Row, backward_op, calls_of, op, python, trace_of

BACKWARD = "<method 'run_backward' of 'torch._C._EngineBase' objects>"
US = 1000


def times(record: Record) -> dict[str, int]:
    table = breakdown(record)
    return dict(table.loc[table["time_ns"] > 0, ["class", "time_ns"]].to_numpy().tolist())


def function(name: str, node: str) -> Record:
    """A Function of 100 with an op of 30 in it, and its backward of 100 with one of 40."""
    return trace_of(
        op(name, ts=0, dur=100, sequence=1),
        op("aten::mul", ts=10, dur=30),
        *backward_op(node, ts=200, dur=102, sequence=1),
        op("aten::mul", ts=210, dur=40),
        op("aten::add", ts=302, dur=8),
    )


def test_a_functions_own_time_is_python_in_both_passes() -> None:
    assert times(function("Swish", "SwishBackward")) == {
        "Python": 70 + 100 + 60,  # between the two passes nothing but Python ran
        "CPU ops": 30 + 40 + 2 + 8,
    }


@pytest.mark.parametrize(
    ("name", "node"),
    [
        ("aten::mul", "MulBackward0"),
        ("CompiledFunction", "CompiledFunctionBackward"),
        ("torchvision::nms", "torch::autograd::CppNode<NMS>"),
        ("aten::add", "UndefinedBackward"),
    ],
)
def test_what_may_be_compiled_code_stays_an_op(name: str, node: str) -> None:
    assert times(function(name, node)) == {"Python": 100, "CPU ops": 100 + 102 + 8}


def hooked(took: int, engine: int, *more: Row) -> Record:
    """A node of 10 us in the engine's region; cProfile saw that hooks of so long were called."""
    return trace_of(
        op("autograd::engine::evaluate_function: MulBackward0", ts=0, dur=engine + 10 * US),
        op("MulBackward0", ts=0, dur=10 * US, sequence=1, forward_thread=1),
        op("aten::add", ts=engine + 10 * US, dur=US),
        *more,
        calls=calls_of((None, BACKWARD, 1, engine), (BACKWARD, "hook", 1, took)),
    )


@pytest.mark.parametrize(
    ("took", "engine", "expected"),
    [
        (80, 80, {"Python": 80 * US, "CPU ops": 11 * US}),
        (30, 80, {"CPU ops": 91 * US}),  # the engine took far longer than hooks did
        (400, 80, {"CPU ops": 91 * US}),  # a forward ran anew in a hook
        (49, 49, {"CPU ops": 60 * US}),  # as short as the engine's own times
    ],
)
def test_long_times_of_the_engine_are_hooks_if_cprofile_saw_as_long_ones(
    took: int, engine: int, expected: dict[str, int]
) -> None:
    assert times(hooked(took * US, engine * US)) == expected


def test_frames_tell_by_themselves_what_ran() -> None:
    frame = python("train.py(3): hook", ts=10 * US, dur=20 * US)
    assert times(hooked(80 * US, 80 * US, frame)) == {"Python": 20 * US, "CPU ops": 71 * US}


class Slow(torch.autograd.Function):
    @staticmethod
    def forward(ctx: object, given: torch.Tensor) -> torch.Tensor:
        time.sleep(0.05)
        return given * 2

    @staticmethod
    def backward(ctx: object, grad: torch.Tensor) -> torch.Tensor:
        time.sleep(0.05)
        return grad * 2


def sleepy(grad: torch.Tensor) -> None:
    time.sleep(0.05)


def test_sleeps_of_a_real_run_are_no_ops() -> None:
    """Seen: 388 of 418 ms of "CPU ops" were a Function and hooks that slept."""
    given = torch.ones(4, requires_grad=True)
    given.register_hook(sleepy)
    given.register_post_accumulate_grad_hook(sleepy)
    with Recorder(Options(), label="run") as recorder:
        Slow.apply(given).sum().backward()  # type: ignore[no-untyped-call]
    found = times(recorder.record())
    assert found["Python"] > 4 * 50_000_000
    assert found["CPU ops"] < found["Python"]
