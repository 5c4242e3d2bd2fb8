"""What only a real GPU shows: kernels, launches, waits, memory, samples, ranks and workers."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader

import gpuprof_widgets
from gpuprof_widgets.analyses.allocator import allocator_events
from gpuprof_widgets.analyses.findings import FINDINGS
from gpuprof_widgets.analyses.kernels import gpu_summary, kernels
from gpuprof_widgets.analyses.launches import UNLINKED, launches, queue_length, queues
from gpuprof_widgets.analyses.memory import allocations, memory_curve, memory_peak
from gpuprof_widgets.capture.recorder import Recorder
from gpuprof_widgets.capture.torch_profiler import SYNCHRONISE_REGION
from gpuprof_widgets.exceptions import OptionError
from gpuprof_widgets.options import Options
from gpuprof_widgets.trace.model import Record
from gpuprof_widgets.trace.schema import GPU_CATEGORIES
from tests.loaders import Decoded, sum_on_gpu

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="torch sees no CUDA device"),
]

MIB = 2**20
MATMULS = 20


@pytest.fixture(scope="module")
def weights() -> torch.Tensor:
    """A matrix on the GPU, with the context, cuBLAS and CUPTI started outside the tests."""
    matrix = torch.ones(2048, 2048, device="cuda")
    with Recorder(Options(python="off"), label="warm up"):
        matrix @ matrix
    return matrix


def queue_matmuls(weights: torch.Tensor) -> None:
    """Queue GPU work and return before it is done."""
    for _ in range(MATMULS):
        weights @ weights


def record(
    run: Callable[..., object],
    *arguments: object,
    names: dict[str, Any] | None = None,
    **options: bool,
) -> Record:
    made = Options(python="off", **options)  # type: ignore[arg-type]
    with Recorder(made, label="the run", namespace=names) as recorder:
        run(*arguments)
    return recorder.record()


def test_every_kernel_is_there_although_nobody_waited(weights: torch.Tensor) -> None:
    slices = record(queue_matmuls, weights).trace.slices
    kernels = slices[slices["category"] == "kernel"]
    assert len(kernels) >= MATMULS
    assert (kernels["dur"] > 0).all()
    region = slices[slices["name"] == "the run"].iloc[0]
    queued = region["ts"] + region["dur"]
    assert (kernels["ts"] + kernels["dur"]).max() > queued  # the tail, after the code had ended


def test_every_kernel_knows_its_launch_and_its_op(weights: torch.Tensor) -> None:
    slices = record(queue_matmuls, weights).trace.slices
    kernels = slices[slices["category"] == "kernel"]
    assert (kernels["launch"] >= 0).all()
    launches = slices.loc[kernels["launch"]]
    assert set(launches["category"]) <= {"cuda_runtime", "cuda_driver"}
    np.testing.assert_array_equal(launches["correlation"], kernels["correlation"])
    assert (launches["ts"].to_numpy() <= kernels["ts"].to_numpy()).all()
    assert set(slices.loc[kernels["op"], "name"]) == {"aten::mm"}


def test_our_own_wait_is_not_in_the_record(weights: torch.Tensor) -> None:
    slices = record(queue_matmuls, weights).trace.slices
    assert SYNCHRONISE_REGION not in set(slices["name"])
    assert not slices["name"].str.contains("cudaDeviceSynchronize").any()


def test_item_waits_in_a_copy_that_is_linked(weights: torch.Tensor) -> None:
    slices = record(lambda: weights.sum().item()).trace.slices
    copies = slices[slices["category"] == "gpu_memcpy"]
    assert len(copies) == 1
    assert slices.loc[copies["op"].iloc[0], "name"] == "aten::_local_scalar_dense"


def test_memory_counters_follow_an_allocation(weights: torch.Tensor) -> None:
    size = 64 * 2**20
    made = record(lambda: torch.empty(size, dtype=torch.uint8, device="cuda"), memory=True)
    allocated = made.trace.counters.query("name == 'GPU 0 allocated'")["value"]
    assert allocated.max() - allocated.min() >= size


def test_the_metadata_names_the_device(weights: torch.Tensor) -> None:
    metadata = record(queue_matmuls, weights).metadata
    assert metadata["cuda"] is True
    assert metadata["devices"][0]["name"] == torch.cuda.get_device_name(0)
    assert metadata["devices"][0]["total_memory_bytes"] > 2**30


def test_gpu_slices_lie_inside_the_trace(weights: torch.Tensor) -> None:
    trace = record(queue_matmuls, weights, stack=True).trace
    gpu = trace.slices[trace.slices["category"].isin(GPU_CATEGORIES)]
    assert (gpu["ts"] >= trace.start_ns).all()
    assert (gpu["ts"] + gpu["dur"] <= trace.end_ns).all()
    assert (trace.tracks.loc[gpu["track"], "device"] == 0).all()


ADDITIONS = 200


def repeated(run: Callable[[], object]) -> Record:
    """What it does the second time: the first starts CUDA and its libraries."""
    run()
    torch.cuda.synchronize()

    def again() -> None:
        run()
        torch.cuda.synchronize()

    return record(again)


def test_every_launch_is_there_and_the_queue_ends_empty() -> None:
    value = torch.ones(8, device="cuda")

    def add() -> None:
        for _ in range(ADDITIONS):
            value.add_(1)

    made = repeated(add)
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
    made = repeated(lambda: left @ left)
    table = kernels(made, by="geometry")
    product = table[table["op_name"] == "aten::mm"]
    if torch.cuda.get_device_capability() >= (8, 0):
        assert product["tensor_cores"].any()
    assert (product["eligible_share"] == 1).all()
    assert (product["grid"] != "").all()
    (gpu,) = gpu_summary(made).to_dict("records")
    assert 0 < gpu["utilisation"] <= 1
    assert 0 < gpu["sm_efficiency"] <= gpu["utilisation"] + 1e-9


memory_findings = FINDINGS["memory"]
GRANULE = 512


def test_an_allocation_has_its_life_and_its_op() -> None:
    def run() -> None:
        torch.empty(64 * MIB, dtype=torch.uint8, device="cuda")

    table = allocations(record(run, memory=True))
    (row,) = table[table["bytes"] == 64 * MIB].to_dict("records")
    assert (row["device"], row["op_name"]) == ("GPU 0", "aten::empty")
    assert row["end_ns"] > row["start_ns"]


def test_reserved_bytes_are_those_of_the_allocator() -> None:
    reserved = []

    def run() -> None:
        matrix = torch.ones(1024, 1024, device="cuda")
        matrix @ matrix
        reserved.append(torch.cuda.memory_reserved())

    curve = memory_curve(record(run, memory=True))
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

    made = record(run, names=names, memory=True)
    peak = memory_peak(made)
    peak = peak[peak["device"] == "GPU 0"]
    curve = memory_curve(made)
    most = curve[curve["device"] == "GPU 0"]["allocated_bytes"].max()
    assert peak["bytes"].sum() == most == peak["allocated_bytes"].iloc[0]
    parameters = sum(rounded(parameter) for parameter in model.parameters())
    by_category = peak.groupby("category")["bytes"].sum()
    assert by_category["parameters"] == parameters
    table = allocations(made)
    sizes = table[table["device"] == "GPU 0"].groupby("category")["bytes"].sum()
    assert sizes["gradients"] == sizes["optimizer state"] == parameters


def rounded(tensor: torch.Tensor) -> int:
    """What the caching allocator gives for a tensor."""
    return -(-tensor.numel() * tensor.element_size() // GRANULE) * GRANULE


def test_calls_of_the_driver_are_rows() -> None:
    torch.cuda.empty_cache()
    events = allocator_events(
        record(lambda: torch.empty(512 * MIB, dtype=torch.uint8, device="cuda"), memory=True)
    )
    (malloc,) = events[(events["kind"] == "malloc") & (events["op_name"] == "aten::empty")].index
    assert events.loc[malloc, "dur_ns"] > 0


def test_out_of_memory_is_a_row_a_count_and_a_finding() -> None:
    too_much = 2 * torch.cuda.get_device_properties(0).total_memory

    def run() -> None:
        with pytest.raises(torch.cuda.OutOfMemoryError):
            torch.empty(too_much, dtype=torch.uint8, device="cuda")

    made = record(run, memory=True)
    failed = allocator_events(made)
    failed = failed[failed["kind"] == "out of memory"]
    assert len(failed) == 1
    assert made.metadata["memory"]["out_of_memory"] == 1
    assert any("ran out of memory" in finding.text for finding in memory_findings(made))


SOURCE = """\
import torch

def losses(weights, batch, steps):
    total = 0.0
    for _ in range(steps):
        for _ in range(20):
            batch = (batch @ weights).relu()
        total += batch.mean().item()
        batch = batch / batch.norm()
    return total
"""
ITEM = 8  # the line with `item`


def module_in(folder: Path) -> ModuleType:
    """The source as a module in a file of the user's."""
    path = folder / "losses_of_mine.py"
    path.write_text(SOURCE)
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    made = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(made)
    return made


@pytest.fixture(scope="module")
def sampled(tmp_path_factory: pytest.TempPathFactory) -> gpuprof_widgets.Profile:
    mine = module_in(tmp_path_factory.mktemp("mine"))
    weights, batch = torch.rand(2, 2048, 2048, device="cuda")
    mine.losses(weights, batch, 3)
    with gpuprof_widgets.profile(python="sampled", quiet=True) as run:
        mine.losses(weights, batch, 60)
    return run


def test_a_line_that_waits_for_the_gpu_has_these_waits(sampled: gpuprof_widgets.Profile) -> None:
    waits = sampled.waits()
    waited = int(waits.loc[waits["op_name"] == "aten::item", "dur_ns"].sum())
    table = sampled.sampled_lines().set_index("line")
    assert table["code"][ITEM] == "total += batch.mean().item()"
    assert table["self_waiting_ns"][ITEM] == pytest.approx(waited, rel=0.05)
    assert table["self_waiting_ns"].drop(ITEM).sum() < 0.1 * waited


def test_a_kernel_names_the_function_that_launched_it(sampled: gpuprof_widgets.Profile) -> None:
    kernels = sampled.trace.slices["category"] == "kernel"
    frames = [
        sampled.owners(int(row))["name"].astype(str).str.endswith("): losses").any()
        for row in sampled.trace.slices.index[kernels][:200]
    ]
    assert sum(frames) > 0.9 * len(frames)


def test_the_functions_of_the_run_fill_its_time(sampled: gpuprof_widgets.Profile) -> None:
    table = sampled.python_time()
    assert table["self_ns"].sum() == pytest.approx(sampled.trace.span_ns, rel=0.05)


def test_ranks_with_nccl_record_their_kernels(tmp_path: Path) -> None:
    count = torch.cuda.device_count()
    profile = gpuprof_widgets.profile_ranks(
        sum_on_gpu, count, backend="nccl", save=tmp_path / "run"
    )
    assert len(profile.metadata["rank_files"]) == count
    assert len(profile.kernels()) >= 1
    assert "nccl:all_reduce" in set(profile.trace.slices["name"].cat.categories)


def test_once_cuda_is_in_use_a_local_function_is_refused_in_words(tmp_path: Path) -> None:
    torch.ones(1, device="cuda")
    with pytest.raises(OptionError, match="cannot be sent"):
        gpuprof_widgets.profile_ranks(lambda rank: None, 2, save=tmp_path / "run")


def test_the_workers_of_a_pinning_loader_are_recorded() -> None:
    loader = DataLoader(Decoded(8), batch_size=2, num_workers=2, pin_memory=True)
    with gpuprof_widgets.profile(quiet=True, workers=True) as run:
        came = [batch.to("cuda", non_blocking=True).tolist() for batch in loader]
    assert [row for batch in came for row in batch] == [[i, i] for i in range(8)]
    assert run.workers()["items"].tolist() == [4, 4]
