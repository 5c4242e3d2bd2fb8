"""What each topic of a recording costs, side by side, as ratios to bare torch.profiler.

The same training steps run as a cell under every variant in turn, round after round. What is
compared is the time from the first statement of the cell to its last; what comes after (stopping,
reading the trace) stands apart, and happens in the last rounds alone. Without a GPU it is CPU time,
of the process and its workers, which other programs on the machine hardly change; with one it is
the clock on the wall. Prints a Markdown table.

    python benchmarks/topics.py                        # some minutes
    python benchmarks/topics.py --output benchmarks/results/topics-cpu.md
"""

from __future__ import annotations

import argparse
import gc
import os
import platform
import random
import resource
import statistics
import sys
from collections import defaultdict
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from time import perf_counter_ns, process_time_ns
from typing import Any

import torch
from IPython.core.interactiveshell import InteractiveShell
from torch.profiler import ProfilerActivity, profile
from torch.utils.data import DataLoader, Dataset
from traitlets.config import Config

from gpuprof_widgets import magic as gpuprofile
from gpuprof_widgets.exceptions import RecordingError

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
READ = 5
"""Rounds in which the recordings are read, which takes ten times as long as the cell."""

STEPS, LAYERS, WIDTH, BATCH, TOKENS = 10, 4, 32, 4, 16
"""Small on purpose: the shorter the ops, the more of the time is the recording's."""

WAIT = "torch.cuda.synchronize()" if DEVICE == "cuda" else "pass"

TRAINING = f"""\
began = clock()
for step in range({STEPS}):
    optimizer.zero_grad()
    logits = model(batch)
    loss = criterion(logits.flatten(0, 1), target)
    loss.backward()
    optimizer.step()
{WAIT}
ended = clock()
"""
LOADING = f"""\
began = clock()
for images in loader:
    logits = head(images.to(device))
    loss = logits.square().mean()
{WAIT}
ended = clock()
"""


class Images(Dataset[torch.Tensor]):
    """Items that a worker makes in about half a millisecond."""

    def __len__(self) -> int:
        return 128

    def __getitem__(self, row: int) -> torch.Tensor:
        return torch.full((64, 64), float(row)).exp().flatten()[:256]


@dataclass(frozen=True)
class Variant:
    """One way to run the cell; ``line`` is what stands behind `%%gpuprofile`."""

    name: str
    line: str
    cell: str = TRAINING
    needs_cuda: bool = False


PLAIN, BARE = "not profiled", "bare torch.profiler"
VARIANTS = (
    Variant("ops", "--record ops --no-cprofile"),
    Variant("shapes", "--record shapes --no-cprofile"),
    Variant("flops", "--record flops --no-cprofile"),
    Variant("sync", "--record sync --no-cprofile", needs_cuda=True),
    Variant("modules", "--record modules --no-cprofile"),
    Variant("lines", "--record lines --no-cprofile"),
    Variant("memory", "--record memory --no-cprofile"),
    Variant("stacks", "--record stacks --no-cprofile"),
    Variant("cProfile", "--record ops"),
    Variant("`%%gpuprofile` as it is", ""),
    Variant("a loader with 2 workers: ops", "--record ops --no-cprofile", LOADING),
    Variant("a loader with 2 workers: workers", "--record workers --no-cprofile", LOADING),
)


def cpu_time_ns() -> int:
    """What this process and the children that it has waited for have computed so far."""
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    return process_time_ns() + round((children.ru_utime + children.ru_stime) * 1e9)


def names() -> dict[str, Any]:
    """The user's variables of the cells."""
    torch.manual_seed(0)
    layer = torch.nn.TransformerEncoderLayer(WIDTH, 2, 2 * WIDTH, batch_first=True)
    encoder = torch.nn.TransformerEncoder(layer, LAYERS, enable_nested_tensor=False)
    model = torch.nn.Sequential(encoder, torch.nn.Linear(WIDTH, 10)).to(DEVICE)
    return {
        "torch": torch,
        "clock": perf_counter_ns if DEVICE == "cuda" else cpu_time_ns,
        "device": DEVICE,
        "model": model,
        "optimizer": torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9),
        "criterion": torch.nn.CrossEntropyLoss(),
        "batch": torch.rand(BATCH, TOKENS, WIDTH, device=DEVICE),
        "target": torch.arange(BATCH * TOKENS, device=DEVICE) % 10,
        "loader": DataLoader(Images(), batch_size=8, num_workers=2),
        "head": torch.nn.Linear(256, 10).to(DEVICE),
    }


@dataclass(frozen=True)
class Time:
    """Of one run: the cell itself, and how long one waits after it where one does, in ns."""

    cell: int
    after: int | None = None


def plain(shell: InteractiveShell, cell: str) -> Time:
    """Without any profiler."""
    exec(compile(cell, "<cell>", "exec"), shell.user_ns)
    return Time(in_cell(shell))


def in_cell(shell: InteractiveShell) -> int:
    """The time that the cell itself has measured."""
    return int(shell.user_ns["ended"] - shell.user_ns["began"])


def bare(shell: InteractiveShell, cell: str) -> Time:
    """Under torch.profiler as torch's own documentation starts it."""
    activities = [ProfilerActivity.CPU]
    if DEVICE == "cuda":
        activities.append(ProfilerActivity.CUDA)
    recording = profile(activities=activities)
    recording.start()
    time = plain(shell, cell)
    began = perf_counter_ns()
    recording.stop()
    return Time(time.cell, perf_counter_ns() - began)


def profiled(line: str) -> Callable[[InteractiveShell, str], Time]:
    """Under `%%gpuprofile`."""

    def run(shell: InteractiveShell, cell: str) -> Time:
        shell.run_cell_magic("gpuprofile", f"-q -o made {line}", cell)
        with suppress(RecordingError):  # most are not read
            return Time(in_cell(shell), shell.user_ns["made"].metadata["stop_ns"])
        return Time(in_cell(shell))

    return run


def measure(rounds: int) -> dict[tuple[str, str], list[Time]]:
    """The times by variant and cell; in each round every variant runs once, in a random order."""
    shell = InteractiveShell(config=Config({"HistoryManager": {"enabled": False}}))
    shell.run_line_magic("load_ext", "gpuprof_widgets")
    shell.user_ns.update(names())
    runs = [(PLAIN, cell, plain) for cell in (TRAINING, LOADING)]
    runs += [(BARE, cell, bare) for cell in (TRAINING, LOADING)]
    runs += [
        (variant.name, variant.cell, profiled(variant.line))
        for variant in VARIANTS
        if DEVICE == "cuda" or not variant.needs_cuda
    ]
    times: dict[tuple[str, str], list[Time]] = defaultdict(list)
    shuffled = random.Random(0)
    read = gpuprofile.read
    for number in range(rounds + 1):
        is_read = number == 0 or number > rounds - READ
        gpuprofile.read = read if is_read else lambda *_: []
        for name, cell, run in shuffled.sample(runs, len(runs)):
            gc.collect()  # not in the one cell that happens to come next
            time = run(shell, cell)
            if number:  # the first round pays for what is slow once
                times[name, cell].append(time)
        print(f"\rround {number} of {rounds}", end="", file=sys.stderr)
    print(file=sys.stderr)
    return times


def table(times: dict[tuple[str, str], list[Time]]) -> str:
    """The medians, as ratios to that of bare torch.profiler, in Markdown."""
    lines = [
        "| recorded | switches | time in the cell, bare torch.profiler = 1 | half of the runs in | "
        "then until the profile is there |",
        "| --- | --- | ---: | :---: | ---: |",
    ]
    rows = [(PLAIN, "", TRAINING), (BARE, "", TRAINING)]
    rows += [(one.name, f"`{one.line}`" if one.line else "", one.cell) for one in VARIANTS]
    for name, line, cell in rows:
        if (name, cell) not in times:
            lines.append(f"| {name} | {line} | needs CUDA | | |")
            continue
        reference = statistics.median(time.cell for time in times[BARE, cell])
        ratios = [time.cell / reference for time in times[name, cell]]
        low, middle, high = statistics.quantiles(ratios, n=4)
        waits = [time.after for time in times[name, cell] if time.after is not None]
        after = f"{statistics.median(waits) / 1e6:.0f} ms" if waits else ""
        lines.append(f"| {name} | {line} | {middle:.2f} | {low:.2f} to {high:.2f} | {after} |")
    return "\n".join(lines)


def header(times: dict[tuple[str, str], list[Time]], rounds: int) -> str:
    """What was measured, where and how."""
    device = torch.cuda.get_device_name() if DEVICE == "cuda" else platform.machine()
    cell = statistics.median(time.cell for time in times[PLAIN, TRAINING]) / 1e6
    kind = "on the clock" if DEVICE == "cuda" else "of CPU time"
    return (
        f"{datetime.now(UTC):%Y-%m-%d}, {device}, {os.cpu_count()} CPU cores "
        f"(load average {os.getloadavg()[0]:.1f}), "
        f"Python {platform.python_version()}, torch {torch.__version__}.\n"
        f"{STEPS} training steps of a transformer with {LAYERS} layers, "
        f"batch {BATCH} × {TOKENS} × {WIDTH}, "
        f"{cell:.0f} ms {kind} without a profiler; medians over {rounds} interleaved rounds."
    )


def main() -> None:
    """Measure, print the table, and keep it where that is asked for."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--output", type=Path, help="file that receives the table as well")
    arguments = parser.parse_args()
    torch.set_num_threads(1)  # threads of ops that wait for each other are the noisiest
    times = measure(arguments.rounds)
    text = f"{header(times, arguments.rounds)}\n\n{table(times)}\n"
    print(text)
    if arguments.output is not None:
        arguments.output.write_text(f"# What each topic costs\n\n{text}")


if __name__ == "__main__":
    main()
