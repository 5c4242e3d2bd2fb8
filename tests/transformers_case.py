"""A small model that Hugging Face's Trainer trains, and what its forward passes saw.

Imported where a test needs it: the Trainer takes seconds to load.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import Dataset
from transformers import Trainer, TrainingArguments

from gpuprof_widgets.capture.torch_profiler import profiler_is_running


class Items(Dataset[dict[str, torch.Tensor]]):
    """Items that are made by an op of their own."""

    def __init__(self, length: int) -> None:
        self.length = length

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        return {"x": torch.full((4,), float(index)), "labels": torch.ones(1)}


class Net(torch.nn.Module):
    """Counts its batches; ``before`` is called with the number of each before it is trained on."""

    def __init__(self, before: Callable[[int], None] = lambda number: None) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(4, 1)
        self.before = before
        self.profiled: list[bool] = []  # of every batch: whether torch's profiler ran
        self.evaluated = 0

    def forward(self, x: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
        if self.training:
            self.before(len(self.profiled))
            self.profiled.append(profiler_is_running())
        else:
            self.evaluated += 1
            torch.zeros(1)
        return {"loss": (self.layer(x) - labels).square().mean(), "logits": labels}


def trainer(net: Net, folder: Path, *callbacks: Any, items: int = 100, **keywords: Any) -> Trainer:
    """A trainer on the CPU that saves nothing."""
    given = {"per_device_train_batch_size": 1, "per_device_eval_batch_size": 1} | keywords
    quiet = {"report_to": [], "save_strategy": "no", "disable_tqdm": True, "use_cpu": True}
    return Trainer(
        model=net,
        args=TrainingArguments(output_dir=str(folder), **quiet | given),
        train_dataset=Items(items),
        eval_dataset=Items(3),
        callbacks=list(callbacks),
    )
