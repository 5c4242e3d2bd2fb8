"""How long a user waits for the outputs once the cell has ended, beside torch's own table.

Each cell runs under torch.profiler, whose `key_averages().table()` is then made, and under
`%%gpuprofile` as it is, whose outputs are then made as in a notebook: first findings, tables and
picture, then the live views. All times are CPU time of the process after torch.profiler has
stopped, which both have to wait for alike; "first" and "all" are ratios to torch's table.

    python -m benchmarks.after_the_cell                          # some minutes
    python -m benchmarks.after_the_cell --output benchmarks/results/after_the_cell.md
"""

from __future__ import annotations

import argparse
import gc
import os
import platform
import resource
import statistics
import sys
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from time import process_time_ns
from typing import Any
from unittest.mock import patch

import torch
from IPython.core.interactiveshell import InteractiveShell
from torch import nn
from torch.profiler import ProfilerActivity, profile
from traitlets.config import Config

import gpuprof_widgets
from gpuprof_widgets.capture.torch_profiler import TorchRecording
from gpuprof_widgets.views import report

HAS_GPU = torch.cuda.is_available()
DEVICE = "cuda" if HAS_GPU else "cpu"
ACTIVITIES = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if HAS_GPU else [])]
CELLS = {
    "20 tiny adds": "for i in range(20):\n    y = x.add(1)",
    "adds, 20,000 slices": "for i in range(4_000):\n    y = x.add(1)",
    "adds, 100,000 slices": "for i in range(20_000):\n    y = x.add(1)",
    "adds, 500,000 slices": "for i in range(100_000):\n    y = x.add(1)",
    "training a transformer, 20,000 slices": "train(5)",
    "training a transformer, 100,000 slices": "train(25)",
    "training a transformer, 500,000 slices": "train(122)",
}


def names() -> dict[str, Any]:
    """The user's variables of the cells."""
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(32, 2, 64, batch_first=True)
    model = nn.Sequential(nn.TransformerEncoder(layer, 4, enable_nested_tensor=False)).to(DEVICE)
    optimizer = torch.optim.AdamW(model.parameters())
    batch = torch.rand(4, 16, 32, device=DEVICE)

    def train(steps: int) -> None:
        for _ in range(steps):
            optimizer.zero_grad()
            model(batch).square().mean().backward()
            optimizer.step()

    return {"x": torch.ones(4, 16, device=DEVICE), "model": model, "train": train}


@dataclass(frozen=True)
class Waits:
    """CPU times in ns of torch's table, our first outputs and all of them; slices of our record."""

    table: int
    first: int
    all: int
    slices: int


def table_of(shell: InteractiveShell, cell: str) -> int:
    """How long torch takes for its table."""
    with profile(activities=ACTIVITIES) as recording:
        exec(cell, shell.user_ns)
    began = process_time_ns()
    recording.key_averages().table(sort_by="cpu_time_total")
    return process_time_ns() - began


def measure(shell: InteractiveShell, cell: str) -> Waits:
    """Run the cell under both, and make all outputs."""
    gc.collect()
    table = table_of(shell, cell)
    gc.collect()
    stopped, stop = 0, TorchRecording.stop

    def stopping(recording: TorchRecording) -> int:
        nonlocal stopped
        waited = stop(recording)
        stopped = stopped or process_time_ns()  # it is asked to stop once more at the end
        return waited

    with patch.object(TorchRecording, "stop", stopping):
        shell.run_cell_magic("gpuprofile", "-q -o made", cell)
    made = shell.user_ns["made"]
    outputs = report.outputs(made, sort="device_self", top=15, embed_runtime=True)
    times = [process_time_ns() - stopped for output in outputs]
    return Waits(table, times[1], times[-1], len(made.trace))


def main() -> None:
    """Measure, print the table, and keep it where that is asked for."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--cells", nargs="+", choices=CELLS, default=list(CELLS))
    parser.add_argument("--output", type=Path, help="file that receives the table as well")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    shell = InteractiveShell(config=Config({"HistoryManager": {"enabled": False}}))
    shell.run_line_magic("load_ext", "gpuprof_widgets")
    shell.user_ns.update(names())
    lines = [
        "| cell | slices | `key_averages().table()` | first outputs | all outputs | first | all |",
        "| --- | ---: | ---: | ---: | ---: | ---: | ---: |",
    ]
    for title in arguments.cells:
        runs = [measure(shell, CELLS[title]) for _ in range(arguments.rounds)]
        table, first, whole = (
            statistics.median(getattr(run, name) for run in runs) / 1e9
            for name in ("table", "first", "all")
        )
        lines.append(
            f"| {title} | {runs[0].slices:,} | {table:.2f} s | {first:.2f} s | {whole:.2f} s | "
            f"{first / table:.2f} | {whole / table:.2f} |"
        )
        print(lines[-1], file=sys.stderr)
        gpuprof_widgets.last = None
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    device = torch.cuda.get_device_name() if HAS_GPU else platform.machine()
    text = (
        f"{datetime.now(UTC):%Y-%m-%d}, {device}, {os.cpu_count()} CPU cores (load "
        f"average {os.getloadavg()[0]:.1f}), Python {platform.python_version()}, torch "
        f"{torch.__version__}; medians of {arguments.rounds}; the process had {peak:.1f} GiB at "
        "most.\n\n" + "\n".join(lines) + "\n"
    )
    print(text)
    if arguments.output is not None:
        arguments.output.write_text(f"# After the cell\n\n{text}")


if __name__ == "__main__":
    main()
