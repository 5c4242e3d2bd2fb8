"""Ranks and workers beside a real GPU: spawned ranks with nccl, and pinned batches."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch.utils.data import DataLoader

import gpuprof_widgets
from gpuprof_widgets.exceptions import OptionError
from tests.loaders import Decoded, sum_on_gpu

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="torch sees no CUDA device"),
]


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
