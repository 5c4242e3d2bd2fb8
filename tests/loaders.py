"""Datasets whose costs are known, for worker processes: a spawned one imports this module."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Iterator
from typing import Any

import torch
from torch import distributed
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import Dataset, IterableDataset, default_collate, get_worker_info

ITEM_S = 0.004
COLLATE_S = 0.006


def decode(index: int) -> torch.Tensor:
    time.sleep(ITEM_S)
    return torch.full((2,), index)


class Decoded(Dataset[torch.Tensor]):
    """Items that take ITEM_S each."""

    def __init__(self, length: int = 12) -> None:
        self.length = length

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> torch.Tensor:
        return decode(index)


class Wrapping(Dataset[torch.Tensor]):
    """A dataset that asks another one for its items, as users write them."""

    def __init__(self, dataset: Dataset[torch.Tensor]) -> None:
        self.dataset = dataset

    def __len__(self) -> int:
        return len(self.dataset)  # type: ignore[arg-type]

    def __getitem__(self, index: int) -> torch.Tensor:
        return self.dataset.__getitem__(index=index) + 1


class Collate:
    """Collates as torch does, and takes any name but a few for a key of a table."""

    def __call__(self, items: list[torch.Tensor]) -> Any:
        return default_collate(items)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise KeyError(name)
        raise AttributeError(name)


class AllAtOnce(Decoded):
    """A dataset that gets a batch's items in one go."""

    def __getitems__(self, indices: list[int]) -> list[torch.Tensor]:
        return [torch.full((2,), index) for index in indices]


class Stream(IterableDataset[torch.Tensor]):
    """Items one after another, shared out among the workers."""

    def __init__(self, length: int = 12) -> None:
        self.length = length

    def __iter__(self) -> Iterator[torch.Tensor]:
        worker = get_worker_info()
        first, step = (worker.id, worker.num_workers) if worker else (0, 1)
        for index in range(first, self.length, step):
            yield decode(index)


class Failing(Decoded):
    """An item that cannot be had, for a reason that lies in another dataset."""

    def __getitem__(self, index: int) -> torch.Tensor:
        if index < 5:
            return super().__getitem__(index)
        try:
            raise KeyError("no such file")
        except KeyError as error:
            raise ValueError(f"item {index} is broken") from error


class Dying(Decoded):
    """A worker that ends without a word at item 5, as one that runs out of memory does."""

    def __init__(self, *, killed: bool) -> None:
        super().__init__()
        self.killed = killed

    def __getitem__(self, index: int) -> torch.Tensor:
        if index == 5 and self.killed:
            os.kill(os.getpid(), signal.SIGKILL)
        if index == 5:
            os._exit(3)
        return super().__getitem__(index)


class Watched(Decoded):
    """Items that tell whether anything of ours is in the worker's process."""

    def __getitem__(self, index: int) -> torch.Tensor:
        method: Any = type(self).__getitem__
        return torch.tensor([hasattr(method, "gpuprof"), _is_profiled()])


def _is_profiled() -> bool:
    if sys.version_info >= (3, 12):
        return sys.monitoring.get_tool(sys.monitoring.PROFILER_ID) is not None
    return sys.getprofile() is not None


def slow_collate(items: list[torch.Tensor], seconds: float = COLLATE_S) -> Any:
    time.sleep(seconds)
    return default_collate(items)


def mean_rank(rank: int, factor: float) -> None:
    """What the ranks of a group do: an all_reduce whose result is known."""
    value = torch.full((4,), factor * rank)
    distributed.all_reduce(value)
    world = distributed.get_world_size()
    assert value.tolist() == [factor * sum(range(world))] * 4


def sum_on_gpu(rank: int) -> None:
    value = torch.ones(1024, device="cuda")
    distributed.all_reduce(value)
    assert value.mean().item() == distributed.get_world_size()


def train_on_gpu(rank: int) -> None:
    """Two steps of a rank that reduces its gradients with the others, if there are any."""
    torch.manual_seed(0)
    model = DistributedDataParallel(torch.nn.Linear(2048, 2048).cuda())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, fused=True)
    for _ in range(2):
        optimizer.zero_grad()
        model(torch.ones(1024, 2048, device="cuda")).sum().backward()
        optimizer.step()
    torch.cuda.synchronize()
