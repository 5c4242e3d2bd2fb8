"""The published case on this machine: what a gather in the backward pass costs, and indexing saves.

A Vision Transformer trains with and without dropping half of its patches, with deterministic
algorithms and without, and with the repair. Steps of all scenarios are timed by turns, without a
profiler; then each is profiled once, for the time that the CPU waited in the backward of the patch
dropout. Prints a Markdown table.

    python -m benchmarks.published_case --output benchmarks/results/published_case.md
"""

from __future__ import annotations

import argparse
import os
import platform
import statistics
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from time import perf_counter
from typing import Any

import torch
from torch import nn

import gpuprof_widgets
from tests.published_case import IndexingPatchDropout, vision_transformer

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
LARGE = {"img_size": 224, "patch_size": 16, "embed_dim": 768, "depth": 12, "num_heads": 12}
SMALL = {"img_size": 64, "patch_size": 8, "embed_dim": 96, "depth": 2, "num_heads": 3}
SIZE, BATCH = (LARGE, 256) if DEVICE == "cuda" else (SMALL, 8)


@dataclass(frozen=True)
class Scenario:
    """One way to train it."""

    name: str
    deterministic: bool
    drop: float = 0.5
    indexing: bool = False


SCENARIOS = (
    Scenario("all patches", deterministic=True, drop=0.0),
    Scenario("half of them, by gather", deterministic=False),
    Scenario("half of them, by gather", deterministic=True),
    Scenario("half of them, by indexing", deterministic=True, indexing=True),
)


class Training:
    """The training of a scenario."""

    def __init__(self, scenario: Scenario) -> None:
        torch.manual_seed(0)
        self.scenario = scenario
        self.model = vision_transformer(**SIZE, patch_drop_rate=scenario.drop).to(DEVICE)
        if scenario.indexing:
            self.model.patch_drop = IndexingPatchDropout()
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.01, momentum=0.9)
        side = SIZE["img_size"]
        self.images = torch.rand(BATCH, 3, side, side, device=DEVICE)
        self.labels = torch.arange(BATCH, device=DEVICE) % 10

    def step(self) -> None:
        """One step in 16 bits, launched."""
        self.optimizer.zero_grad()
        with torch.autocast(DEVICE, torch.bfloat16):
            loss = nn.functional.cross_entropy(self.model(self.images), self.labels)
        loss.backward()
        self.optimizer.step()

    def time_ms(self) -> float:
        """What three steps take, each."""
        torch.use_deterministic_algorithms(self.scenario.deterministic)
        _wait()
        began = perf_counter()
        for _ in range(3):
            self.step()
        _wait()
        return (perf_counter() - began) * 1000 / 3

    def waits_ms(self) -> tuple[str, float]:
        """Where in the backward of the patch dropout the CPU waits most, and how long per step."""
        torch.use_deterministic_algorithms(self.scenario.deterministic)
        with gpuprof_widgets.profile(quiet=True, python="off") as run:
            for _ in range(3):
                self.step()
        table = run.backward_ops()
        of_drop = table[table["module"] == "patch_drop"].sort_values("wait_ns", ascending=False)
        if of_drop.empty:
            return "–", 0.0
        if not of_drop["wait_ns"].iloc[0]:
            return "", 0.0
        return str(of_drop["name"].iloc[0]), float(of_drop["wait_ns"].iloc[0]) / 3e6


def _wait() -> None:
    if DEVICE == "cuda":
        torch.cuda.synchronize()


def table(rounds: int) -> str:
    """The rows of all scenarios, in Markdown."""
    trainings = [Training(scenario) for scenario in SCENARIOS]
    times: dict[Scenario, list[float]] = {scenario: [] for scenario in SCENARIOS}
    for number in range(rounds + 1):
        for training in trainings:
            time = training.time_ms()
            if number:  # the first round pays for what is slow once
                times[training.scenario].append(time)
    lines = [
        "| patches | deterministic algorithms | step, median | 5 % to 95 % | "
        "the CPU waits in the backward of `patch_drop`, each step |",
        "| --- | --- | ---: | :---: | --- |",
    ]
    for training in trainings:
        scenario = training.scenario
        low, *_, high = statistics.quantiles(times[scenario], n=20)
        where, waits = training.waits_ms()
        said = f"{waits:.2f} ms in `{where}`" if waits else where or "no"
        lines.append(
            f"| {scenario.name} | {'yes' if scenario.deterministic else 'no'} "
            f"| {statistics.median(times[scenario]):.2f} ms | {low:.2f} to {high:.2f} | {said} |"
        )
    return "\n".join(lines)


def header(rounds: int) -> str:
    """What was measured, where and how."""
    device = torch.cuda.get_device_name() if DEVICE == "cuda" else platform.machine()
    return (
        f"{datetime.now(UTC):%Y-%m-%d}, {device}, Python {platform.python_version()}, "
        f"torch {torch.__version__}.\n"
        f"timm's Vision Transformer, {SIZE['depth']} layers of {SIZE['embed_dim']}, batch {BATCH} "
        f"of {SIZE['img_size']} × {SIZE['img_size']}, bfloat16; {rounds} interleaved rounds "
        "of three steps."
    )


def main() -> None:
    """Measure, print the table, and keep it where that is asked for."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--output", type=Path, help="file that receives the table as well")
    arguments: Any = parser.parse_args()
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    text = f"{header(arguments.rounds)}\n\n{table(arguments.rounds)}\n"
    print(text)
    if arguments.output is not None:
        arguments.output.write_text(f"# The published case\n\n{text}")


if __name__ == "__main__":
    main()
