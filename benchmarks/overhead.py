"""What recording adds to a cell, by topic, as ratios to the same recorders running bare.

Each cell runs under every recording in turn, round after round in a random order, together with the
bare recorders: torch.profiler with the same switches as ours, and cProfile where ours runs it. What
is compared is the time from the first statement of the cell to its last: CPU time of the cell's
thread, which other programs on the machine hardly change, or with a GPU the clock on the wall. A
ratio is formed in each round; the tables show the median, and the span of the middle half. The
column "bare again" is a second bare torch.profiler beside the first: the noise.

    python -m benchmarks.overhead                                # some minutes
    python -m benchmarks.overhead --rounds 5 --cells linear      # some of the cells
    python -m benchmarks.overhead --output benchmarks/results/overhead-cpu.md
"""

from __future__ import annotations

import argparse
import cProfile
import gc
import os
import platform
import random
import statistics
import sys
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from time import perf_counter_ns, thread_time_ns
from typing import Any

import torch
from IPython.core.interactiveshell import InteractiveShell
from torch import nn
from torch._C._profiler import _ExperimentalConfig
from torch.profiler import ProfilerActivity, profile
from torch.utils.data import DataLoader, Dataset
from traitlets.config import Config

from gpuprof_widgets import magic as gpuprofile
from tests.published_case import declare_missing_operators, vision_transformer

HAS_GPU = torch.cuda.is_available()
DEVICE = "cuda" if HAS_GPU else "cpu"
CLOCK = perf_counter_ns if HAS_GPU else thread_time_ns


@dataclass(frozen=True)
class Cell:
    """Code that is measured, and what it is called in the tables."""

    title: str
    code: str


TRAINING = """\
for step in range({steps}):
    optimizer_of_{model}.zero_grad()
    loss = {model}(images).square().mean()
    loss.backward()
    optimizer_of_{model}.step()
"""
CELLS = {
    "adds": Cell("20,000 tiny adds in a loop", "for i in range(20_000):\n    y = x.add(1)"),
    "linear": Cell("300 × 10 `Linear(16)`", "for i in range(300):\n    y = linear(x)"),
    "resnet18": Cell("resnet18, 4 training steps", TRAINING.format(model="resnet18", steps=4)),
    "vit": Cell("Vision Transformer, 4 training steps", TRAINING.format(model="vit", steps=4)),
    "python": Cell(
        "1 M iterations of Python in a function",
        "def spin():\n    n = 0\n    for i in range(1_000_000):\n        n += i\nspin()",
    ),
    "calls": Cell(
        "200,000 small Python calls",
        "def one():\n    return 1\nfor i in range(200_000):\n    one()",
    ),
    "loader": Cell(
        "a DataLoader with 2 workers, 16 batches",
        "for batch in loader:\n    y = batch.square().mean()",
    ),
}


@dataclass(frozen=True)
class Bare:
    """The recorders alone: ``switches`` and ``sync`` are torch.profiler's."""

    switches: tuple[str, ...] = ()
    cprofile: bool = False
    sync: bool = False


@dataclass(frozen=True)
class Column:
    """One way to record; ``line`` stands behind `%%gpuprofile`, and ``bare`` is the comparison."""

    title: str
    line: str
    bare: Bare = Bare()
    cells: tuple[str, ...] = tuple(CELLS)


COLUMNS = (
    Column("ops", "--record ops --python off"),
    Column("lines", "--record lines --python off"),
    Column("modules", "--record modules --python off"),
    Column("cProfile", "--record ops", Bare(cprofile=True)),
    Column("`%%gpuprofile` as it is", "", Bare(cprofile=True)),
    Column("`--python sampled`", "--python sampled"),
    Column("`--stack`", "--stack", Bare(("with_stack",))),
    Column("`--shapes`", "--shapes", Bare(("record_shapes",), cprofile=True)),
    Column("`--flops`", "--flops", Bare(("record_shapes",), cprofile=True)),
    Column("`--memory`", "--memory", Bare(("profile_memory",), cprofile=True)),
    Column("`--workers`", "--workers", Bare(cprofile=True), cells=("loader",)),
    Column(
        "`--sync`", "--sync", Bare(cprofile=True, sync=True), cells=tuple(CELLS) if HAS_GPU else ()
    ),
)
NOISE = "bare again"
PLAIN = "not profiled"


class Images(Dataset[torch.Tensor]):
    """Items that a worker makes in about half a millisecond."""

    def __len__(self) -> int:
        return 128

    def __getitem__(self, row: int) -> torch.Tensor:
        return torch.full((64, 64), float(row)).exp().flatten()[:256]


def names() -> dict[str, Any]:
    """The user's variables of the cells."""
    declare_missing_operators()
    from timm import create_model

    torch.manual_seed(0)
    resnet18 = create_model("resnet18", num_classes=10).to(DEVICE)
    vit = vision_transformer(patch_drop_rate=0.0, embed_dim=64, depth=4).to(DEVICE)
    return {
        "clock": CLOCK,
        "wait": torch.cuda.synchronize if HAS_GPU else lambda: None,
        "x": torch.ones(4, 16, device=DEVICE),
        "linear": nn.Sequential(*(nn.Linear(16, 16) for _ in range(10))).to(DEVICE),
        "images": torch.rand(4, 3, 32, 32, device=DEVICE),
        "resnet18": resnet18,
        "vit": vit,
        "optimizer_of_resnet18": torch.optim.SGD(resnet18.parameters(), lr=1e-3, momentum=0.9),
        "optimizer_of_vit": torch.optim.AdamW(vit.parameters(), lr=1e-3),
        "loader": DataLoader(Images(), batch_size=8, num_workers=2),
    }


Run = Callable[[InteractiveShell, str], int]
"""Runs a cell once and returns the time in it in ns."""


def plain(shell: InteractiveShell, code: str) -> int:
    """Without any profiler."""
    exec(compile(code, "<cell>", "exec"), shell.user_ns)
    return int(shell.user_ns["ended"] - shell.user_ns["began"])


def under(bare: Bare) -> Run:
    """Under the bare recorders."""

    def run(shell: InteractiveShell, code: str) -> int:
        activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if HAS_GPU else [])]
        recording = profile(
            activities=activities,
            experimental_config=_ExperimentalConfig(enable_cuda_sync_events=True)
            if bare.sync
            else None,
            **dict.fromkeys(bare.switches, True),
        )
        calls = cProfile.Profile()
        recording.start()
        if bare.cprofile:
            calls.enable()
        time = plain(shell, code)
        calls.disable()
        recording.stop()
        return time

    return run


def profiled(line: str) -> Run:
    """Under `%%gpuprofile`, whose recording is not read."""

    def run(shell: InteractiveShell, code: str) -> int:
        shell.run_cell_magic("gpuprofile", f"-q {line}", code)
        return int(shell.user_ns["ended"] - shell.user_ns["began"])

    return run


def runs_of(cell: str) -> dict[str | Bare, Run]:
    """Everything under which the cell runs, by column or bare recorders."""
    columns = [column for column in COLUMNS if cell in column.cells]
    runs: dict[str | Bare, Run] = {PLAIN: plain, NOISE: under(Bare()), Bare(): under(Bare())}
    runs |= {column.bare: under(column.bare) for column in columns}
    return runs | {column.title: profiled(column.line) for column in columns}


Times = dict[str, dict[str | Bare, list[int]]]
"""The times in each cell under each recording, one per round, in ns."""


def measure(cells: Sequence[str], rounds: int) -> Iterator[Times]:
    """Run every cell under everything, in a random order, and yield all times after each round."""
    shell = InteractiveShell(config=Config({"HistoryManager": {"enabled": False}}))
    shell.run_line_magic("load_ext", "gpuprof_widgets")
    shell.user_ns.update(names())
    gpuprofile.read = lambda *_: []
    times: Times = {cell: defaultdict(list) for cell in cells}
    order = random.Random(0)
    for number in range(rounds + 1):
        for cell in cells:
            code = f"began = clock()\n{CELLS[cell].code}\nwait()\nended = clock()\n"
            runs = list(runs_of(cell).items())
            for name, run in order.sample(runs, len(runs)):
                gc.collect()  # not in the one cell that happens to come next
                time = run(shell, code)
                if number:  # the first round pays for what is slow once
                    times[cell][name].append(time)
        print(f"\rround {number} of {rounds}", end="", file=sys.stderr)
        if number:
            yield times
    print(file=sys.stderr)


def ratio(times: dict[str | Bare, list[int]], one: str | Bare, other: str | Bare) -> str:
    """The median of the rounds' ratios, and between what limits the middle half of them is."""
    ratios = [a / b for a, b in zip(times[one], times[other], strict=True)]
    if len(ratios) < 2:
        return f"{ratios[0]:.2f}"
    low, middle, high = statistics.quantiles(ratios, n=4, method="inclusive")
    return f"{middle:.2f} ({low:.2f}–{high:.2f})"


def table(times: Times) -> str:
    """The ratios in Markdown: a row for each cell, a column for each recording."""
    columns = [column for column in COLUMNS if any(column.title in row for row in times.values())]
    titles = ["cell", PLAIN, NOISE, *(column.title for column in columns)]
    lines = [f"| {' | '.join(titles)} |", f"| --- |{' ---: |' * (len(titles) - 1)}"]
    for cell, of_cell in times.items():
        ratios = [ratio(of_cell, PLAIN, Bare()), ratio(of_cell, NOISE, Bare())]
        ratios += [
            ratio(of_cell, column.title, column.bare) if column.title in of_cell else ""
            for column in columns
        ]
        lines.append(f"| {CELLS[cell].title} | {' | '.join(ratios)} |")
    return "\n".join(lines)


def header(times: Times, rounds: int) -> str:
    """What was measured, where and how."""
    device = torch.cuda.get_device_name() if HAS_GPU else platform.machine()
    cells = ", ".join(
        f"{statistics.median(of_cell[PLAIN]) / 1e6:.0f} ms" for of_cell in times.values()
    )
    kind = "time on the clock" if HAS_GPU else "CPU time of the cell's thread"
    return (
        f"{datetime.now(UTC):%Y-%m-%d}, {device}, {os.cpu_count()} CPU cores "
        f"(load average {os.getloadavg()[0]:.1f}), Python {platform.python_version()}, "
        f"torch {torch.__version__}. Ratios of {kind} to torch.profiler (with cProfile where we "
        f"run it, and the same switches) alone; medians over {rounds} interleaved rounds, in "
        f"brackets the middle half. Without a profiler the cells take {cells}."
    )


def main() -> None:
    """Measure, print the table, and keep it where that is asked for."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--cells", nargs="+", choices=CELLS, default=list(CELLS))
    parser.add_argument("--output", type=Path, help="file that receives the table as well")
    arguments = parser.parse_args()
    torch.set_num_threads(1)  # threads of ops that wait for each other are the noisiest
    text = ""
    for rounds, times in enumerate(measure(arguments.cells, arguments.rounds), 1):
        text = f"{header(times, rounds)}\n\n{table(times)}\n"
        if arguments.output is not None:  # after each round, for the next one may be cut off
            arguments.output.write_text(f"# What recording adds to a cell\n\n{text}")
    print(text)


if __name__ == "__main__":
    main()
