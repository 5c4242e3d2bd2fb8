"""Record what the docs' examples read beside GPU traces: tests/data/reader.

    python -m scripts.record_readers_files

``before.prof`` and ``after.prof`` are cProfile's, of a training whose images are normalised in
Python and of one without that; ``traces/`` has a trace per rank of four, of which rank 2 is late.
"""

from __future__ import annotations

import cProfile
import shutil
import tempfile
import time
from pathlib import Path

import torch
import torch.distributed
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset

import gpuprof_widgets

READER = Path(__file__).parents[1] / "tests" / "data" / "reader"
RANKS, LATE = 4, 2


class Images(Dataset):
    """Random images; ``in_python`` normalises each of them in a loop."""

    def __init__(self, in_python: bool) -> None:
        self.images = torch.rand(256, 3, 16, 16)
        self.in_python = in_python

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        image = self.images[index]
        return (normalised(image) if self.in_python else (image - 0.5) / 0.25), index % 10


def normalised(image: torch.Tensor) -> torch.Tensor:
    """Normalise an image, one pixel after the other."""
    pixels = [(value - 0.5) / 0.25 for value in image.flatten().tolist()]
    return torch.tensor(pixels).view_as(image)


def train(loader: DataLoader) -> None:
    """Train a small net for one epoch."""
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Flatten(), nn.LazyLinear(10))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for images, labels in loader:
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(images), labels).backward()
        optimizer.step()


def train_rank(rank: int, steps: int) -> None:
    """Train one rank; the late one loads its batches for longer."""
    torch.set_num_threads(1)
    torch.manual_seed(rank)
    model = DistributedDataParallel(
        nn.Sequential(nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 8))
    )
    for _ in range(steps):
        batch = torch.randn(64, 256)
        with torch.profiler.record_function("load batch"):
            time.sleep(0.02 if rank == LATE else 0.001)
        model(batch).sum().backward()


def main() -> None:
    """Record all of it."""
    shutil.rmtree(READER, ignore_errors=True)
    (READER / "traces").mkdir(parents=True)
    with tempfile.TemporaryDirectory() as folder:
        train(DataLoader(Images(in_python=False), batch_size=16))  # first calls
        for name, in_python in (("before", True), ("after", False)):
            loader, calls = DataLoader(Images(in_python), batch_size=16), cProfile.Profile()
            calls.runcall(train, loader)
            calls.dump_stats(f"{folder}/{name}.prof")
            profile = gpuprof_widgets.load(f"{folder}/{name}.prof")
            profile.export(READER / f"{name}.prof", redact=True)
        first = gpuprof_widgets.profile_ranks(
            train_rank, nprocs=RANKS, args=(8,), save=f"{folder}/run", quiet=True
        )
        for rank, file in enumerate(first.metadata["rank_files"]):
            profile = gpuprof_widgets.load(file)
            profile.export(READER / "traces" / f"rank{rank}.json.gz", redact=True)


if __name__ == "__main__":
    main()
