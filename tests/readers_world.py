"""What a reader of the docs has before a page begins: a small training, and files of one.

The GPU's traces are recordings of tests/data/gpu and notebooks/data, made on an NVIDIA H200;
scripts/record_readers_files.py has recorded the rest, in tests/data/reader.
"""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import gpuprof_widgets

ROOT = Path(__file__).parents[1]
READER = ROOT / "tests" / "data" / "reader"
GPU = ROOT / "tests" / "data" / "gpu"
NOTEBOOKS = ROOT / "notebooks" / "data"

TRAINING = """\
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

model = nn.Sequential(
    nn.Conv2d(3, 16, 3, padding=1),
    nn.BatchNorm2d(16),
    nn.ReLU(),
    nn.AdaptiveAvgPool2d(4),
    nn.Flatten(),
    nn.Linear(256, 10),
)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
loss_fn = nn.CrossEntropyLoss()
dataset = TensorDataset(torch.randn(512, 3, 32, 32), torch.randint(10, (512,)))
loader = DataLoader(dataset, batch_size=16)


def train_step(images, labels):
    optimizer.zero_grad()
    loss = loss_fn(model(images), labels)
    loss.backward()
    optimizer.step()
    return loss
"""

PRELUDE = f"{TRAINING}\n\nimages, labels = next(iter(loader))\n"
"""The cells above the page's first one."""

SCRIPT = f"""\
import argparse

{TRAINING}

parser = argparse.ArgumentParser()
parser.add_argument("--epochs", type=int, default=1)
for epoch in range(parser.parse_args().epochs):
    for images, labels in loader:
        loss = train_step(images, labels)
    print(f"epoch {{epoch}}: loss {{loss.item():.3f}}")
"""
"""train.py."""

USES_TORCHVISION = re.compile(r"^(from|import) (lightning|transformers|timm)\b", re.MULTILINE)
TORCHVISION = """\
from tests.published_case import declare_missing_operators

declare_missing_operators()
"""
"""Before pages with packages that import it: our torch has no CUDA, torchvision's wheels have."""

TRAINERS = """\
from lightning import LightningModule
from transformers import TrainingArguments


class Classifier(LightningModule):
    def __init__(self, model):
        super().__init__()
        self.model = model

    def training_step(self, batch, number):
        images, labels = batch
        return loss_fn(self.model(images), labels)

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.01)


class Transformer(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 1)

    def forward(self, x, labels):
        return {"loss": (self.layer(x) - labels).square().mean(), "logits": labels}


lightning_module, transformer = Classifier(model), Transformer()
texts = [{"x": torch.ones(4), "labels": torch.ones(1)} for _ in range(200)]
args = TrainingArguments("output", report_to=[], save_strategy="no", disable_tqdm=True)
"""
"""A module for Lightning's Trainer; a model, arguments and items for Hugging Face's."""

BEFORE: dict[str, str] = {"docs/topics/loops.md": TRAINERS}
"""What a page needs beside that, by its path in the repository: the code of one more cell."""


def make_files(folder: Path) -> None:
    """Put the reader's files into a folder."""
    shutil.copytree(READER, folder, dirs_exist_ok=True)
    (folder / "train.py").write_text(SCRIPT, encoding="utf-8")
    training = GPU / "a_training_that_keeps_its_gpu_busy.gpuprof"
    shutil.copy(training, folder / "run.gpuprof")
    for source, name in (
        (training, "trace.json.gz"),
        (NOTEBOOKS / "idle_gpu_before.gpuprof", "before.json.gz"),
        (NOTEBOOKS / "idle_gpu_after.gpuprof", "after.json.gz"),
    ):
        gpuprof_widgets.load(source).export(folder / name)
    shutil.copy(GPU / "out_of_memory.pickle", folder / "snapshot.pickle")
