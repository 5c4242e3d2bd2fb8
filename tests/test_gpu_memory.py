"""What only a real GPU shows of memory: its allocator's totals, driver calls and failures."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from gpuprof_widgets.analyses.allocator import allocator_events
from gpuprof_widgets.analyses.findings import FINDINGS
from gpuprof_widgets.analyses.memory import allocations, memory_curve, memory_peak
from gpuprof_widgets.capture.recorder import Recorder
from gpuprof_widgets.options import Options
from gpuprof_widgets.trace.model import Record

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="torch sees no CUDA device"),
]

MIB = 2**20
memory_findings = FINDINGS["memory"]
GRANULE = 512


def recorded(run: Callable[[], Any], names: dict[str, Any] | None = None) -> Record:
    torch.ones(1, device="cuda")  # the context is there before
    options = Options(memory=True, python="off")
    with Recorder(options, label="the run", namespace=names) as recorder:
        run()
    return recorder.record()


def test_an_allocation_has_its_life_and_its_op() -> None:
    def run() -> None:
        torch.empty(64 * MIB, dtype=torch.uint8, device="cuda")

    table = allocations(recorded(run))
    (row,) = table[table["bytes"] == 64 * MIB].to_dict("records")
    assert (row["device"], row["op_name"]) == ("GPU 0", "aten::empty")
    assert row["end_ns"] > row["start_ns"]


def test_reserved_bytes_are_those_of_the_allocator() -> None:
    reserved = []

    def run() -> None:
        matrix = torch.ones(1024, 1024, device="cuda")
        matrix @ matrix
        reserved.append(torch.cuda.memory_reserved())

    curve = memory_curve(recorded(run))
    curve = curve[curve["device"] == "GPU 0"]
    assert (curve["reserved_bytes"] >= curve["allocated_bytes"]).all()
    assert curve["reserved_bytes"].iloc[-1] == reserved[0]


def test_the_peak_adds_up_and_names_the_parameters_from_before() -> None:
    model = torch.nn.Linear(1024, 1024).cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    batch = torch.ones(64, 1024, device="cuda")
    names = {"model": model, "optimizer": optimizer, "batch": batch}

    def run() -> None:
        model(batch).square().mean().backward()
        optimizer.step()

    record = recorded(run, names)
    peak = memory_peak(record)
    peak = peak[peak["device"] == "GPU 0"]
    curve = memory_curve(record)
    most = curve[curve["device"] == "GPU 0"]["allocated_bytes"].max()
    assert peak["bytes"].sum() == most == peak["allocated_bytes"].iloc[0]
    parameters = sum(rounded(parameter) for parameter in model.parameters())
    by_category = peak.groupby("category")["bytes"].sum()
    assert by_category["parameters"] == parameters
    table = allocations(record)
    sizes = table[table["device"] == "GPU 0"].groupby("category")["bytes"].sum()
    assert sizes["gradients"] == sizes["optimizer state"] == parameters


def rounded(tensor: torch.Tensor) -> int:
    """What the caching allocator gives for a tensor."""
    return -(-tensor.numel() * tensor.element_size() // GRANULE) * GRANULE


def test_calls_of_the_driver_are_rows() -> None:
    torch.cuda.empty_cache()
    events = allocator_events(
        recorded(lambda: torch.empty(512 * MIB, dtype=torch.uint8, device="cuda"))
    )
    (malloc,) = events[(events["kind"] == "malloc") & (events["op_name"] == "aten::empty")].index
    assert events.loc[malloc, "dur_ns"] > 0


def test_out_of_memory_is_a_row_a_count_and_a_finding() -> None:
    too_much = 2 * torch.cuda.get_device_properties(0).total_memory

    def run() -> None:
        with pytest.raises(torch.cuda.OutOfMemoryError):
            torch.empty(too_much, dtype=torch.uint8, device="cuda")

    record = recorded(run)
    failed = allocator_events(record)
    failed = failed[failed["kind"] == "out of memory"]
    assert len(failed) == 1
    assert record.metadata["memory"]["out_of_memory"] == 1
    assert any("ran out of memory" in finding.text for finding in memory_findings(record))
