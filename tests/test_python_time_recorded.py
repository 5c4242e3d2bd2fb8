"""Python time of real runs: on the CPU with waits put into the trace, on a GPU with its own."""

from __future__ import annotations

import time
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import torch

from gpuprof_widgets.analyses.python_calls import python_calls
from gpuprof_widgets.analyses.python_time import python_time
from gpuprof_widgets.analyses.waits import waits
from gpuprof_widgets.capture.recorder import Recorder
from gpuprof_widgets.options import Options
from gpuprof_widgets.trace.edit import NewSlice, with_slices
from gpuprof_widgets.trace.model import Record
from tests.published_case import Waiting

pytestmark = pytest.mark.slow

BUSY_NS = 3_000_000
CALLS = 3
stack = pytest.mark.parametrize("stack", [False, True])


def busy() -> None:
    """Python's own time."""
    end = time.perf_counter_ns() + BUSY_NS
    while time.perf_counter_ns() < end:
        pass


def find(mask: torch.Tensor) -> None:
    for _ in range(CALLS):
        torch.nonzero(mask)


def select(mask: torch.Tensor) -> None:
    mask[mask]


def recorded(run: object, *arguments: object, stack: bool) -> Record:
    with Recorder(Options(stack=stack), label="the run") as recorder:
        run(*arguments)  # type: ignore[operator]
    return recorder.record()


def waiting_in(record: Record, op: str) -> Record:
    """The record as if the inner half of every such op had been a wait for a GPU."""
    slices = record.trace.slices
    found = slices[(slices["name"] == op) & (slices["category"] == "cpu_op")]
    found = found[~np.isin(found["parent"], found.index)]
    added = [
        NewSlice(
            int(ts + dur // 4), int(dur // 2), "cudaStreamSynchronize", "cuda_runtime", int(track)
        )
        for ts, dur, track in zip(found["ts"], found["dur"], found["track"], strict=True)
    ]
    return replace(record, trace=with_slices(record.trace, added))


def by_name(record: Record) -> pd.DataFrame:
    return python_time(record).groupby("name").sum(numeric_only=True)


@pytest.fixture(scope="module")
def mask() -> torch.Tensor:
    made: torch.Tensor = torch.arange(400_000) % 3 == 0
    return made


@stack
def test_a_fake_wait_is_found_in_the_built_in_and_in_its_callers(
    mask: torch.Tensor, stack: bool
) -> None:
    def run() -> None:
        find(mask)
        busy()

    record = waiting_in(recorded(run, stack=stack), "aten::nonzero")
    measured = int(waits(record)["dur_ns"].sum())
    assert len(waits(record)) == CALLS
    table = by_name(record)
    (nonzero,) = [name for name in table.index if "nonzero" in name]
    assert table.loc[nonzero, "self_waiting_ns"] == pytest.approx(measured, abs=2)
    assert table.loc["find", "total_waiting_ns"] == pytest.approx(measured, abs=2)
    assert table.loc["run", "total_waiting_ns"] == pytest.approx(measured, abs=2)
    assert table.loc["busy", "total_waiting_ns"] == 0
    assert table.loc["busy", "total_python_ns"] >= BUSY_NS
    assert bool(python_time(record)["exact"].all()) is stack


@stack
def test_the_wait_of_an_operator_is_in_python_functions(mask: torch.Tensor, stack: bool) -> None:
    record = waiting_in(recorded(select, mask, stack=stack), "aten::index")
    measured = int(waits(record)["dur_ns"].sum())
    table = by_name(record)
    assert table.loc["select", "total_waiting_ns"] == pytest.approx(measured, abs=2)
    if stack:
        assert table.loc["select", "self_waiting_ns"] == measured


@stack
def test_the_table_is_that_of_python_calls(mask: torch.Tensor, stack: bool) -> None:
    record = recorded(find, mask, stack=stack)
    columns = ["file", "line", "name", "calls", "primitive_calls", "self_ns", "total_ns"]
    pd.testing.assert_frame_equal(python_time(record)[columns], python_calls(record)[columns])
    assert not python_time(record)["self_waiting_ns"].any()
    assert python_time(record)["exact"].all()


on_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="torch sees no CUDA device")


def read_results(weights: torch.Tensor) -> float:
    """Read a number for which the GPU has to multiply for a while."""
    product = weights
    for _ in range(40):
        product = weights @ product
    return float(product.sum().item())


def settle(weights: torch.Tensor) -> None:
    for _ in range(40):
        weights @ weights
    torch.cuda.synchronize()


@pytest.fixture(scope="module")
def weights() -> torch.Tensor:
    matrix = torch.ones(4096, 4096, device="cuda") / 4096
    recorded(read_results, matrix, stack=False)  # cuBLAS and CUPTI start outside of the tests
    return matrix


@pytest.mark.gpu
@on_gpu
@stack
def test_item_waits_for_the_matrix_product_before_it(weights: torch.Tensor, stack: bool) -> None:
    record = recorded(read_results, weights, stack=stack)
    table = python_time(record)
    (row,) = table[table["name"].str.contains("item")].to_dict("records")
    assert row["self_waiting_ns"] > 0.5 * row["self_ns"]
    caller = table.set_index("name").loc["read_results"]
    assert caller["total_waiting_ns"] == pytest.approx(row["self_waiting_ns"], rel=0.01)
    assert row["waited_for"]
    assert bool(row["exact"]) is stack


@pytest.mark.gpu
@on_gpu
@stack
def test_synchronize_is_all_waiting(weights: torch.Tensor, stack: bool) -> None:
    record = recorded(settle, weights, stack=stack)
    table = python_time(record)
    row = table[table["name"].str.contains("_cuda_synchronize")].iloc[0]
    assert row["self_waiting_ns"] > 0.9 * row["self_ns"]
    caller = table.set_index("name").loc["settle"]
    assert caller["total_waiting_ns"] >= row["self_waiting_ns"] * 0.99
    assert row["launched_by"] == "aten::mm"


@pytest.mark.gpu
@on_gpu
def test_the_caller_of_backward_waits_for_what_its_backward_reads(weights: torch.Tensor) -> None:
    def train() -> None:
        values = weights.clone().requires_grad_()
        Waiting.apply(values @ values).sum().backward()

    table = python_time(recorded(train, stack=True)).set_index("name")
    assert table.loc["train", "total_waiting_ns"] > 0
