"""Record notebooks/data/two_steps.zip, the trace of the examples in docs/command_line.md.

Two training steps of a small network, with input shapes and without cProfile, whose file names
would be those of the recording machine. Run it as .venv/bin/python scripts/record_sample.py
"""

from __future__ import annotations

from pathlib import Path

import torch
from torch import nn

import gpuprof_widgets

SAMPLE = Path(__file__).parents[1] / "notebooks" / "data" / "two_steps.zip"


def main() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(3, 16, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(16, 32, 3, padding=1),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(4),
        nn.Flatten(),
        nn.Linear(512, 10),
    )
    optimizer = torch.optim.AdamW(model.parameters())
    images, labels = torch.rand(16, 3, 32, 32), torch.arange(16) % 10

    def step() -> float:
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(images), labels)
        loss.backward()
        optimizer.step()
        return loss.item()

    step()
    with gpuprof_widgets.profile(shapes=True, python="off", name="two training steps") as run:
        step()
        step()
    run.save(SAMPLE)
    print(f"{SAMPLE}: {SAMPLE.stat().st_size:,} bytes, {len(run.trace):,} slices")


if __name__ == "__main__":
    main()
