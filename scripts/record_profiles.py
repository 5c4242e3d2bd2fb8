"""Record the profiles in tests/data/recorded, of which a test keeps the digest.

Cells as people write them every day, with one option or another, some of them once more beside a
simulated GPU; the files are redacted. Run it as

    .venv/bin/python -m scripts.record_profiles && .venv/bin/python scripts/digest.py \
        tests/data/recorded tests/data/gpu notebooks/data tests/data/*.json* \
        --out tests/digest.json
"""

from __future__ import annotations

import re
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import gpuprof_widgets
from gpuprof_widgets import Profile
from tests.everyday import CELLS, Everyday
from tests.shells import loaded
from tests.simulated_gpu import ImaginaryGpu, simulate

FOLDER = Path(__file__).parents[1] / "tests" / "data" / "recorded"

RANKS = 2

OPTIONS = {
    "evaluation that forgot torch.no_grad": "--stack",
    "evaluation under torch.inference_mode": "--shapes --flops",
    "pandas only": "--stack",
    "imports": "",
    "definitions": "",
    "tokenising in a Python loop, then an embedding": "--shapes --memory",
    "a checkpoint in every step": "--shapes",
    "a dataset that reads a file per item": "",
    "torch.compile with sequences of every length": "--shapes --flops",
    "activation checkpointing": "--shapes --memory",
    "a Trainer with one call in the cell": "",
    "waiting for a service": "",
    "a logging thread that idles": "--shapes --memory",
    "one large product of matrices": "--stack",
    "more threads than processors": "--shapes --flops",
    "a DataLoader with workers": "",
    "gradient accumulation with a scheduler": "--shapes",
}
"""Which cells are recorded, and with what options."""

SIMULATED = (
    "evaluation under torch.inference_mode",
    "a checkpoint in every step",
    "activation checkpointing",
)
"""Which of them are written beside a simulated GPU as well: it needs their shapes."""


def record(cell: Everyday, options: str) -> Profile:
    """The profile of a cell, run in a shell of its own."""
    shell: Any
    with loaded() as shell:
        shell.run_cell(cell.before, store_history=True)
        shell.run_cell_magic("gpuprofile", f"-q {options}", cell.cell)
        shell.run_cell(cell.after)
    assert gpuprof_widgets.last is not None
    return gpuprof_widgets.last


def train(rank: int) -> None:
    """Two steps of a rank, of which each has less to do than the one before."""
    torch.manual_seed(0)
    model = DistributedDataParallel(nn.Linear(32, 8))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(2):
        optimizer.zero_grad()
        model(torch.ones(4096 * (RANKS - rank), 32)).sum().backward()
        optimizer.step()


def main() -> None:
    """Record all of them, and say how large each has become."""
    torch.set_num_threads(1)
    FOLDER.mkdir(exist_ok=True)
    for cell in CELLS:
        if cell.name in OPTIONS:
            profile = record(cell, OPTIONS[cell.name])
            _save(profile, cell.name)
            if cell.name in SIMULATED:
                _save(simulate(profile, ImaginaryGpu()), f"{cell.name}, simulated GPU")
    with TemporaryDirectory() as folder:
        first = gpuprof_widgets.profile_ranks(train, RANKS, save=f"{folder}/training")
        for file in map(Path, first.metadata["rank_files"]):
            _save(gpuprof_widgets.load(file), file.stem)


def _save(profile: Profile, name: str) -> None:
    path = FOLDER / f"{re.sub(r'[^a-z0-9.]+', '_', name.lower())}.gpuprof"
    profile.save(path, redact=True)
    print(f"{path.name}: {path.stat().st_size:,} bytes, {len(profile.trace):,} slices")


if __name__ == "__main__":
    main()
