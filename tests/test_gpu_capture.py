"""What only a real GPU shows: kernels, their launches, the tail of the queue, waits and memory."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from gpuprof_widgets.capture.recorder import Recorder
from gpuprof_widgets.capture.torch_profiler import SYNCHRONISE_REGION
from gpuprof_widgets.options import Options
from gpuprof_widgets.trace.model import Record
from gpuprof_widgets.trace.schema import GPU_CATEGORIES

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="torch sees no CUDA device"),
]

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


def record(run: object, *arguments: object, **options: bool) -> Record:
    with Recorder(Options(python="off", **options), label="the run") as recorder:  # type: ignore[arg-type]
        run(*arguments)  # type: ignore[operator]
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


def test_a_wait_of_the_user_is_seen_with_its_length(weights: torch.Tensor) -> None:
    def run() -> None:
        queue_matmuls(weights)
        torch.cuda.synchronize()

    slices = record(run).trace.slices
    (wait,) = slices.index[slices["name"].str.contains("cudaDeviceSynchronize")]
    kernels = slices[slices["category"] == "kernel"]
    busy_from_wait = kernels["ts"].max() - slices.loc[wait, "ts"]
    assert slices.loc[wait, "dur"] >= busy_from_wait * 0.9


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
