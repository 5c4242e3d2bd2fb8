"""Which process of a distributed run a recording is of, and the name of its file."""

from __future__ import annotations

import os
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from gpuprof_widgets.capture.part import Context, Part
from gpuprof_widgets.trace.model import Trace

_SUFFIXES = (".gpuprof", ".zip")


def rank_and_world() -> tuple[int, int] | None:
    """This process's rank and the number of ranks; None in a program that runs alone.

    Known from the process group, where there is one by now, else from torchrun's environment.
    """
    # A program that has not imported it has no process group, and needs none from us.
    distributed: Any = sys.modules.get("torch.distributed")
    if distributed is not None and distributed.is_available() and distributed.is_initialized():
        return distributed.get_rank(), distributed.get_world_size()
    try:
        return int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    except (KeyError, ValueError):
        return None


def rank_file(save: str | os.PathLike[str], rank: int) -> Path:
    """``run.rank2.gpuprof`` for "run", "run.gpuprof" and "run.zip"."""
    path = Path(save).expanduser()
    stem = path.stem if path.suffix in _SUFFIXES else path.name
    return path.with_name(f"{stem}.rank{rank}.gpuprof")


def ranks(_: Context) -> Part:
    """The part that knows the rank; in a program that runs alone it does nothing."""
    return Rank()


class Rank:
    """Writes the rank into the tracks and the metadata."""

    loses = "no rank"

    def __init__(self) -> None:
        self._found: tuple[int, int] | None = None

    def start(self) -> None:
        """Nothing is put in; a process group may be gone at the end, or not be there yet."""
        self._found = rank_and_world() or self._found

    def stop(self) -> None:
        """Nothing to take out."""
        self._found = rank_and_world() or self._found

    def refine(self, trace: Trace) -> Trace:
        if self._found is None:
            return trace
        return replace(trace, tracks=trace.tracks.assign(rank=np.int32(self._found[0])))

    def notes(self) -> list[str]:
        return []

    def metadata(self) -> dict[str, Any]:
        if self._found is None:
            return {}
        rank, world = self._found
        return {"rank": rank, "world_size": world}
