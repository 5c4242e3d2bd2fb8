"""Samples of Python beside a GPU: what waits for it, and what launched its work."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest
import torch

import gpuprof_widgets

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="torch sees no CUDA device"),
]

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
ITEM = 8


def module(folder: Path) -> ModuleType:
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
def profile(tmp_path_factory: pytest.TempPathFactory) -> gpuprof_widgets.Profile:
    mine = module(tmp_path_factory.mktemp("mine"))
    weights, batch = torch.rand(2, 2048, 2048, device="cuda")
    mine.losses(weights, batch, 3)
    with gpuprof_widgets.profile(python="sampled", quiet=True) as run:
        mine.losses(weights, batch, 60)
    return run


def test_a_line_that_waits_for_the_gpu_has_these_waits(profile: gpuprof_widgets.Profile) -> None:
    waits = profile.waits()
    waited = int(waits.loc[waits["op_name"] == "aten::item", "dur_ns"].sum())
    table = profile.sampled_lines().set_index("line")
    assert table["code"][ITEM] == "total += batch.mean().item()"
    assert table["self_waiting_ns"][ITEM] == pytest.approx(waited, rel=0.05)
    assert table["self_waiting_ns"].drop(ITEM).sum() < 0.1 * waited


def test_a_kernel_names_the_function_that_launched_it(profile: gpuprof_widgets.Profile) -> None:
    kernels = profile.trace.slices["category"] == "kernel"
    frames = [
        profile.owners(int(row))["name"].astype(str).str.endswith("): losses").any()
        for row in profile.trace.slices.index[kernels][:200]
    ]
    assert sum(frames) > 0.9 * len(frames)


def test_the_functions_of_the_run_fill_its_time(profile: gpuprof_widgets.Profile) -> None:
    table = profile.python_time()
    assert table["self_ns"].sum() == pytest.approx(profile.trace.span_ns, rel=0.05)
