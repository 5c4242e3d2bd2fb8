"""The part of a recording that writes down which rank of a distributed run it is of."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from gpuprof_widgets.capture.part import Context, Part
from gpuprof_widgets.capture.ranks.launchers import ProcessRank, process_rank
from gpuprof_widgets.trace.model import Trace


def rank_in(metadata: Mapping[str, Any]) -> ProcessRank | None:
    """The rank that a recording's metadata names; None in a program that ran alone."""
    if "rank" not in metadata:
        return None
    return ProcessRank(metadata["rank"], metadata.get("world_size"))


def ranks(_: Context) -> Part:
    """The part that knows the rank; in a program that runs alone it does nothing."""
    return Rank()


class Rank:
    """Writes the rank into the tracks and the metadata."""

    loses = "no rank"

    def __init__(self) -> None:
        self._found: ProcessRank | None = None

    def start(self) -> None:
        """Nothing is put in; a process group may be gone at the end, or not be there yet."""
        self._look()

    def stop(self) -> None:
        """Nothing to take out."""
        self._look()

    def _look(self) -> None:
        """What a process group said stays, where the launcher knows of no other rank."""
        found = process_rank()
        if self._found is None or (found is not None and not found.is_alone):
            self._found = found

    def refine(self, trace: Trace) -> Trace:
        if self._found is None:
            return trace
        return replace(trace, tracks=trace.tracks.assign(rank=np.int32(self._found.rank)))

    def notes(self) -> list[str]:
        return []

    def metadata(self) -> dict[str, Any]:
        if self._found is None:
            return {}
        told = self._found._asdict()
        return {key: number for key, number in told.items() if number is not None}
