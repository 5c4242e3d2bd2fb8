"""Kernels, launches and copies as a real GPU makes them."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from gpuprof_widgets.analyses.copies import copies
from gpuprof_widgets.analyses.gpu_use import gpu_summary
from gpuprof_widgets.analyses.kernels import kernels
from gpuprof_widgets.analyses.launches import UNLINKED, launches, queue_length, queues
from gpuprof_widgets.capture.recorder import Recorder
from gpuprof_widgets.options import Options
from gpuprof_widgets.trace.model import Record

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="torch sees no CUDA device"),
]

ADDITIONS = 200
MIB = 2**20


def record(run: Callable[[], object]) -> Record:
    """What it does the second time: the first starts CUDA and its libraries."""
    run()
    torch.cuda.synchronize()
    with Recorder(Options(python="off"), label="the run") as recorder:
        run()
        torch.cuda.synchronize()
    return recorder.record()


def test_every_launch_is_there_and_the_queue_ends_empty() -> None:
    value = torch.ones(8, device="cuda")

    def add() -> None:
        for _ in range(ADDITIONS):
            value.add_(1)

    made = record(add)
    table = launches(made)
    assert len(table) >= ADDITIONS
    assert table.attrs[UNLINKED] == 0
    assert (table["latency_ns"] == table["queue_ns"] + table["pure_latency_ns"]).all()
    lengths = queue_length(made)
    assert (lengths["length"] >= 0).all()
    assert lengths["length"].iloc[-1] == 0
    assert queues(made)["launches"].sum() == len(table)
    assert set(table.loc[table["kind"] == "compute", "op_name"]) == {"aten::add_"}


def test_a_product_in_half_precision_uses_tensor_cores() -> None:
    left = torch.ones(1024, 1024, device="cuda", dtype=torch.bfloat16)
    made = record(lambda: left @ left)
    table = kernels(made, by="geometry")
    product = table[table["op_name"] == "aten::mm"]
    if torch.cuda.get_device_capability() >= (8, 0):
        assert product["tensor_cores"].any()
    assert (product["eligible_share"] == 1).all()
    assert (product["grid"] != "").all()
    (gpu,) = gpu_summary(made).to_dict("records")
    assert 0 < gpu["utilisation"] <= 1
    assert 0 < gpu["sm_efficiency"] <= gpu["utilisation"] + 1e-9


@pytest.mark.parametrize(("pinned", "memory"), [(False, "pageable"), (True, "pinned")])
def test_a_copy_says_what_memory_it_came_from(pinned: bool, memory: str) -> None:
    batch = torch.ones(MIB)
    batch = batch.pin_memory() if pinned else batch
    table = copies(record(lambda: batch.to("cuda", non_blocking=True)))
    (row,) = table[table["direction"] == "HtoD"].to_dict("records")
    assert (row["source"], row["target"], row["bytes"]) == (memory, "device", 4 * MIB)
    assert row["bytes_per_s"] > 0
    assert row["op_name"] == "aten::to"


def test_there_and_back_without_work_in_between_is_needless() -> None:
    batch = torch.ones(MIB)
    table = copies(record(lambda: batch.to("cuda").to("cpu")))
    assert table["direction"].tolist() == ["HtoD", "DtoH"]
    assert set(table["needless"]) == {"there and back"}
    assert table["blocking"].all()


def test_a_graph_that_is_replayed_has_one_launch_for_all_its_kernels() -> None:
    value = torch.ones(8, device="cuda")
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(10):
            value.add_(1)
    table = launches(record(graph.replay))
    replayed = table[table["launch_name"].str.contains("GraphLaunch")]
    assert (replayed["launched"] == len(replayed)).all()
    assert len(replayed) >= 10
