"""Rules on optimizers and layers: made up, and as torch's own matchers see a recording."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn
from torch.profiler import _pattern_matcher

from gpuprof_widgets.analyses.modules import STEP, kinds, single_tensor_ops, zeroing_ops
from gpuprof_widgets.analyses.sequences import biased_before_norm
from gpuprof_widgets.trace.model import Record
from tests.test_findings_work import recorded, said
from tests.traces import Row, annotation, kernel, module, op, runtime, trace_of

pytestmark = pytest.mark.slow

ZERO = "Optimizer.zero_grad#SGD.zero_grad"
ADAM = "Optimizer.step#Adam.step"
END = op("end", ts=9990, dur=10)
"""So that the run takes 10 µs."""


def zeroing(took: int) -> Record:
    rows = [annotation(ZERO, ts=0, dur=500), op("aten::zero_", ts=10, dur=took)]
    return trace_of(*rows, op("aten::fill_", ts=11, dur=took - 2), END)


def updating(number: int, took: int, name: str = "aten::addcdiv_", *more: Row) -> Record:
    """A step of so many ops that launch a kernel each, in ``took`` ns together."""
    rows: list[Row] = [annotation(ADAM, ts=0, dur=9000)]
    for at in range(number):
        start = 10 + at * 50
        dur = took // number + (1 if at < took % number else 0)
        rows.append(op(name, ts=start, dur=dur))
        rows.append(runtime("cudaLaunchKernel", ts=start + 1, dur=2))
        rows.append(kernel("update", ts=start + 5, dur=3, launched_by=len(rows) - 1))
    return trace_of(*rows, *more, END)


def convolved(
    *, bias: bool, channels: int = 8, between: tuple[str, ...] = (), name: str = "aten::conv2d"
) -> Record:
    types = ["float", "float", "float" if bias else ""]
    dims = [[1, 3, 9, 9], [channels, 3, 3, 3], [channels] if bias else []]
    others = [op(other, ts=110 + 10 * at, dur=5) for at, other in enumerate(between)]
    normed = {"Input type": ["float"] * 2}
    return trace_of(
        op(name, ts=0, dur=100, shapes=dims, **{"Input type": types}),
        op("aten::add_", ts=50, dur=20),
        *others,
        op("aten::batch_norm", ts=200, dur=50, shapes=[[1, 8, 7, 7], [8]], **normed),
        END,
    )


CASES = {
    "zeroed_gradients": (zeroing(50), zeroing(49)),
    "optimizer_loops": (updating(20, 210), updating(20, 209)),  # of 20 ops one is needed
    "bias_before_norm": (convolved(bias=True), convolved(bias=False)),
}
"""Per rule a trace that fires it and one just below."""


class TestZeroedGradients:
    def test_numbers(self) -> None:
        (finding,) = said("zeroed_gradients", zeroing(100))
        assert (finding.cost_ns, finding.start_ns, finding.end_ns) == (100, 0, 500)

    def test_zeros_that_are_made_anew_are_none(self) -> None:
        record = trace_of(
            annotation(ZERO, ts=0, dur=500),
            op("aten::zeros", ts=10, dur=400),
            op("aten::zero_", ts=20, dur=300),
            END,
        )
        assert said("zeroed_gradients", record) == []

    def test_zeros_elsewhere_are_the_users_business(self) -> None:
        assert said("zeroed_gradients", trace_of(op("aten::zero_", ts=0, dur=900), END)) == []


class TestOptimizerLoops:
    def test_numbers(self) -> None:
        (finding,) = said("optimizer_loops", updating(30, 1500))
        assert (finding.cost_ns, len(finding.rows)) == (1500 - 50, 30)

    def test_few_ops_are_no_loop(self) -> None:
        assert said("optimizer_loops", updating(19, 3000)) == []

    def test_many_tensors_at_once_are_fine(self) -> None:
        assert said("optimizer_loops", updating(30, 3000, "aten::_foreach_addcdiv_")) == []
        assert said("optimizer_loops", updating(30, 3000, "aten::_fused_adam_")) == []

    def test_no_more_than_the_run_waits_for_can_be_saved(self) -> None:
        """All the while another stream works, for which the CPU waits at last."""
        busy = [
            kernel("gemm", ts=0, dur=9900, stream=20),
            runtime("cudaDeviceSynchronize", ts=8000, dur=1950),
        ]
        assert said("optimizer_loops", updating(30, 1500, "aten::addcdiv_", *busy)) == []

    def test_a_loop_on_the_cpu_launches_nothing(self) -> None:
        ops = [op("aten::add_", ts=10 + 50 * at, dur=40) for at in range(40)]
        assert said("optimizer_loops", trace_of(annotation(ADAM, ts=0, dur=9000), *ops, END)) == []


class TestBiasBeforeNorm:
    def test_modules_are_named(self) -> None:
        types = {"Input type": ["float"] * 3}
        record = trace_of(
            module("features.0", ts=0, dur=100),
            op("aten::conv1d", ts=1, dur=90, shapes=[[1, 3, 9], [8, 3, 3], [8]], **types),
            module("features.1", ts=100, dur=100),
            op("aten::batch_norm", ts=110, dur=50, shapes=[[1, 8, 7], [8], [8]], **types),
        )
        (finding,) = said("bias_before_norm", record)
        assert "BatchNorm follows `features.0`" in finding.text

    def test_the_counter_of_batches_may_come_between(self) -> None:
        assert said("bias_before_norm", convolved(bias=True, between=("aten::add_",)))
        assert not said("bias_before_norm", convolved(bias=True, between=("aten::relu",)))

    def test_the_norm_is_of_the_convolutions_channels(self) -> None:
        assert not said("bias_before_norm", convolved(bias=True, channels=4))


def model(*, bias: bool, norm: bool = True) -> nn.Module:
    layers = [nn.Conv2d(3, 8, 3, bias=bias), nn.BatchNorm2d(8) if norm else nn.ReLU()]
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(8 * 36, 4))


GIVEN = torch.randn(2, 3, 8, 8)
MODELS: dict[str, Callable[[], nn.Module]] = {
    "bias": lambda: model(bias=True),
    "no bias": lambda: model(bias=False),
    "no norm": lambda: model(bias=True, norm=False),
    "evaluated": lambda: model(bias=True).eval(),
}


@pytest.mark.parametrize("case", MODELS)
def test_torch_finds_the_same_biases(case: str, tmp_path: Path) -> None:
    made = MODELS[case]()
    recording, record = recorded(lambda: made(GIVEN).sum().backward(), tmp_path)
    pattern = _pattern_matcher.Conv2dBiasFollowedByBatchNorm2dPattern(recording)
    assert len(biased_before_norm(record.trace)) == len(pattern.matched_events())


@pytest.mark.parametrize("set_to_none", [True, False])
@pytest.mark.parametrize("foreach", [True, False])
def test_torch_finds_the_same_zeros(set_to_none: bool, foreach: bool, tmp_path: Path) -> None:
    made = model(bias=False)
    optimizer = torch.optim.SGD(made.parameters(), foreach=foreach)

    def step() -> None:
        made(GIVEN).sum().backward()
        optimizer.zero_grad(set_to_none=set_to_none)

    recording, record = recorded(step, tmp_path)
    pattern = _pattern_matcher.GradNotSetToNonePattern(recording)
    theirs = bool(pattern.matched_events())
    rows, regions = zeroing_ops(record.trace)
    assert theirs == (not set_to_none)
    assert bool(len(rows)) == theirs
    assert len(np.unique(regions)) == int(theirs)


def on_gpu(record: Record) -> Record:
    """As if every op of the optimizer's step had launched a kernel."""
    trace = record.trace
    names = trace.slices["name"].astype(str)
    at = int(np.flatnonzero(names.str.startswith("Optimizer.step"))[0])
    begin, end = (int(trace.slices[key].iloc[at]) for key in ("ts", "dur"))
    inside = trace.slices[
        (trace.slices["ts"] > begin)
        & (trace.slices["ts"] < begin + end)
        & names.str.match(r"aten::(add_|addcmul_|addcdiv_|lerp_|mul_|_foreach_\w+)")
        & (trace.slices["category"] == "cpu_op")
    ]
    rows: list[Row] = [annotation(names.iloc[at], ts=begin, dur=end)]
    for name, ts, dur in zip(inside["name"], inside["ts"], inside["dur"], strict=True):
        rows.append(op(str(name), ts=int(ts), dur=int(dur)))
        rows.append(kernel("update", ts=int(ts), dur=1, launched_by=len(rows) - 1))
    return trace_of(*rows)


@pytest.mark.parametrize("foreach", [True, False])
def test_torch_finds_the_same_loops_by_the_frames(foreach: bool, tmp_path: Path) -> None:
    made = model(bias=False)
    optimizer = torch.optim.Adam(made.parameters(), foreach=foreach)
    made(GIVEN).sum().backward()
    recording, record = recorded(optimizer.step, tmp_path)
    pattern = _pattern_matcher.OptimizerSingleTensorPattern(recording)
    rows, regions = single_tensor_ops(on_gpu(record).trace)
    assert bool(len(rows)) == bool(pattern.matched_events()) == (not foreach)
    if not foreach:
        assert kinds(on_gpu(record).trace, STEP, regions) == ["Adam"]
