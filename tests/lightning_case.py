"""A small model that Lightning trains, and what its training steps saw.

Imported where a test needs it: Lightning takes seconds to load.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from lightning.pytorch import LightningModule, Trainer
from torch.utils.data import DataLoader, Dataset

from gpuprof_widgets.capture.torch_profiler import profiler_is_running


class Items(Dataset[torch.Tensor]):
    """Items that are made by an op of their own."""

    def __init__(self, length: int) -> None:
        self.length = length

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.full((4,), float(index))


class Net(LightningModule):
    """Counts its batches; ``before`` is called with the number of each before it is trained on."""

    def __init__(self, before: Callable[[int], None] = lambda number: None) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(4, 1)
        self.before = before
        self.profiled: list[bool] = []  # of every batch: whether torch's profiler ran
        self.validated = 0

    def training_step(self, batch: torch.Tensor, batch_idx: int) -> torch.Tensor:
        self.before(len(self.profiled))
        self.profiled.append(profiler_is_running())
        return self.layer(batch).mean()

    def validation_step(self, batch: torch.Tensor, batch_idx: int) -> None:
        self.validated += 1
        torch.zeros(1)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.1)


def batches(number: int) -> DataLoader[torch.Tensor]:
    return DataLoader(Items(number), batch_size=1)


def trainer(callback: Any, kind: type[Any] = Trainer, **keywords: Any) -> Any:
    """A trainer on the CPU that writes and prints nothing."""
    off = ("logger", "enable_checkpointing", "enable_progress_bar", "enable_model_summary")
    quiet = dict.fromkeys(off, False)
    given = {"max_epochs": 2, "accelerator": "cpu"} | quiet | keywords
    return kind(callbacks=[callback], **given)
