"""Record the profiles in tests/data/gpu, each of a cell with a known cause, on a real GPU.

They are redacted and small, and tests read them where there is no GPU. Run it as

    python -m scripts.record_gpu_profiles FOLDER        # beside a GPU, with torch for CUDA
"""

from __future__ import annotations

import argparse
import gzip
import json
import pickle
import re
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from torch import nn
from torch.profiler import ProfilerActivity, profile

import gpuprof_widgets
from gpuprof_widgets import Profile
from tests.everyday import Everyday
from tests.everyday_gpu import GPU_CELLS, GPU_OPTIONS
from tests.loaders import train_on_gpu
from tests.shells import loaded

MOST_BYTES = 300_000

NOTEBOOK = Path(__file__).parents[1] / "notebooks" / "06_why_is_the_gpu_idle.ipynb"
OF_NOTEBOOK = ("before", "prepared", "after")
"""The variables of the notebook on idle GPUs that hold its profiles."""

AVERAGES = ("key", "count", "device_type", "cpu_time_total", "self_cpu_time_total")
AVERAGES += ("device_time_total", "self_device_time_total", "is_user_annotation")
"""What is kept of each row of `key_averages()`; times in microseconds."""


def file_name(cell_name: str) -> str:
    """The name of a cell's profile, without its ending."""
    return re.sub(r"[^a-z0-9.]+", "_", cell_name.lower())


def of_cell(cell: Everyday, options: str) -> Profile:
    """The profile of a cell's second run, in a shell of its own: the first one loads kernels."""
    shell: Any
    with loaded() as shell:
        shell.run_cell(cell.before, store_history=True).raise_error()
        shell.run_cell(cell.cell).raise_error()
        torch.cuda.synchronize()
        shell.run_cell_magic("gpuprofile", f"-q {options}", cell.cell)
        shell.run_cell(cell.after).raise_error()
    assert gpuprof_widgets.last is not None
    if error := gpuprof_widgets.last.metadata["error"]:
        raise RuntimeError(error)
    return gpuprof_widgets.last


def of_notebook() -> list[Profile]:
    """The profiles that the notebook on idle GPUs makes."""
    cells = json.loads(NOTEBOOK.read_text())["cells"]
    shell: Any
    with loaded() as shell:
        sys.path.insert(0, str(NOTEBOOK.parent))
        for cell in cells:
            source = "".join(cell["source"])
            if cell["cell_type"] == "code" and "load_ext" not in source:
                shell.run_cell(source, store_history=True).raise_error()
        return [shell.user_ns[name] for name in OF_NOTEBOOK]


def a_step() -> Callable[[], None]:
    """One training step on the GPU, which has been run once."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(512, 1024), nn.ReLU(), nn.Linear(1024, 10)).cuda()
    optimizer = torch.optim.AdamW(model.parameters())
    x, y = torch.randn(256, 512), torch.arange(256) % 10

    def step() -> None:
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(x.cuda()), y.cuda())
        loss.backward()
        optimizer.step()
        loss.item()

    step()
    return step


def torch_trace(path: Path) -> None:
    """A trace as torch.profiler itself exports it, and beside it what torch's own table says."""
    step = a_step()
    with profile(
        activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA], record_shapes=True
    ) as made:
        step()
        step()
        torch.cuda.synchronize()
    rows = [{key: _plain(getattr(row, key)) for key in AVERAGES} for row in made.key_averages()]
    beside = path.with_name(path.name.replace(".json.gz", ".key_averages.json"))
    beside.write_text(json.dumps(rows, indent=0))
    made.export_chrome_trace(str(path.with_suffix("")))
    content = json.loads(path.with_suffix("").read_text())
    path.with_suffix("").unlink()
    content["traceName"] = path.with_suffix("").name  # the folder is the machine's
    path.write_bytes(gzip.compress(json.dumps(content).encode(), mtime=0))


def _plain(value: Any) -> Any:
    return value if isinstance(value, str | int | float) else str(value)


def memory_snapshot(path: Path) -> None:
    """The allocator's snapshot of a training step that ends out of memory."""
    torch.cuda.empty_cache()
    torch.cuda.memory._record_memory_history(stacks="python")
    try:
        a_step()()
        total = torch.cuda.get_device_properties(0).total_memory
        torch.empty(total, dtype=torch.uint8, device="cuda")
    except torch.OutOfMemoryError:
        pass
    else:
        raise RuntimeError("the GPU has more memory than it says")
    finally:
        snapshot = torch.cuda.memory._snapshot()
        torch.cuda.memory._record_memory_history(enabled=None)
    _without_folders(snapshot)
    path.write_bytes(pickle.dumps(snapshot))


def _without_folders(part: Any) -> None:
    """Leave out of each frame in which folder of the machine its file lies."""
    values = part.values() if isinstance(part, dict) else part
    if isinstance(part, dict) and "filename" in part:
        part["filename"] = Path(part["filename"]).name
    for value in values:
        if isinstance(value, dict | list | tuple):
            _without_folders(value)


def of_ranks() -> Profile:
    """The first rank's profile of a job that reduces its gradients with NCCL."""
    with TemporaryDirectory() as folder:
        count = torch.cuda.device_count()
        first = gpuprof_widgets.profile_ranks(
            train_on_gpu, count, backend="nccl", save=f"{folder}/ddp"
        )
        return gpuprof_widgets.load(first.metadata["rank_files"][0])


def main() -> None:
    """Record what is not there yet, and say how large each has become or why it failed.

    Exits with 1 where one of them failed, so that it is tried again.
    """
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    folder = parser.parse_args().folder
    folder.mkdir(parents=True, exist_ok=True)
    failed = []

    def keep(name: str, make: Callable[[Path], object]) -> None:
        path = folder / name
        if path.exists():
            return
        try:
            made = make(path)
            if isinstance(made, Profile):
                made.save(path, redact=True)
        except Exception:  # whatever one of them meets, the others are still to be recorded
            path.unlink(missing_ok=True)
            failed.append(name)
            print(f"{name} FAILED\n{traceback.format_exc()}", flush=True)
            return
        size = path.stat().st_size
        print(f"{name}: {size:,} bytes{' TOO LARGE' * (size > MOST_BYTES)}", flush=True)

    for cell in GPU_CELLS:
        options = GPU_OPTIONS.get(cell.name, "")
        keep(f"{file_name(cell.name)}.gpuprof", lambda _, c=cell, o=options: of_cell(c, o))
    keep("torch_profiler_two_steps.json.gz", torch_trace)
    keep("out_of_memory.pickle", memory_snapshot)
    keep("ddp_with_nccl.gpuprof", lambda _: of_ranks())
    names = [f"idle_gpu_{name}.gpuprof" for name in OF_NOTEBOOK]
    if not all((folder / name).exists() for name in names):
        for name, made in zip(names, of_notebook(), strict=True):
            keep(name, lambda _, made=made: made)
    sys.exit(bool(failed))


if __name__ == "__main__":
    main()
