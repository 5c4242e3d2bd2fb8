"""Hand-made ranks of one run: collectives of which each rank's begin and end are given."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from gpuprof_widgets.analyses.ranks.reduced import ReducedRank, reduced
from gpuprof_widgets.many_ranks.files import job
from gpuprof_widgets.many_ranks.profiles import RankProfiles
from gpuprof_widgets.trace.archive import save
from gpuprof_widgets.trace.model import Record
from tests.traces import Row, kernel, trace_of

EPOCH = 1_700_000_000_000_000_000
US, MS = 1_000, 1_000_000

STARTS = {0: [0, 3 * MS], 1: [200 * US, 5 * MS], 2: [100 * US, 3 * MS]}
"""Of three ranks when each comes to two collectives; rank 1 is the last to both."""


def collective(
    start: int,
    end: int,
    *,
    name: str = "allreduce",
    ranks: Sequence[int] = (),
    elements: int = 1_000_000,
    **args: Any,
) -> Row:
    """A collective of one rank on its GPU, ns after the job began."""
    told = {"Process Group Ranks": str(list(ranks)), "Group size": len(ranks)} if ranks else {}
    told |= {"Collective name": name, "dtype": "Float"}
    told |= {"In msg nelems": elements, "Out msg nelems": elements}
    return kernel("ncclDevKernel_Generic", ts=start, dur=end - start, stream=20, **told, **args)


def computing(start: int, end: int) -> Row:
    """A compute kernel."""
    return kernel("gemm", ts=start, dur=end - start)


def rank_record(rank: int, *rows: Row, clock: int = 0, world: int = -1, **metadata: Any) -> Record:
    """The record of one rank, whose clock is that many ns ahead of the job's."""
    moved = [_moved(row, EPOCH + clock) for row in rows]
    told = {"rank": rank, "world_size": world} if rank >= 0 else {}
    return trace_of(*moved, **{**told, **metadata})


def _moved(row: Row, by: int) -> Row:
    return Row(**{**vars(row), "ts": row.ts + by})


def run_of(*records: Record) -> RankProfiles:
    """The ranks of these records, compared."""
    return compared([reduced(record, source=f"rank{n}") for n, record in enumerate(records)])


def compared(ranks: Sequence[ReducedRank]) -> RankProfiles:
    """These reduced ranks, compared."""
    return RankProfiles(job([(Path(rank.sources[0]), rank) for rank in ranks]))


def in_lockstep(
    starts: Mapping[int, Sequence[int]], moving: int = 100 * US, **metadata: Any
) -> list[Record]:
    """One record per rank: its n-th all_reduce begins when told, and ends when all have come.

    The begin of each is after the end of the one before on all ranks.
    """
    common = [max(at) + moving for at in zip(*starts.values(), strict=True)]
    return [
        rank_record(
            rank,
            *(collective(at, end) for at, end in zip(begins, common, strict=True)),
            world=len(starts),
            **metadata,
        )
        for rank, begins in starts.items()
    ]


def saved(folder: Path, records: Sequence[Record], names: Sequence[str] = ()) -> list[Path]:
    """The records as files of that folder."""
    names = names or [f"run.rank{number}.gpuprof" for number in range(len(records))]
    return [save(record, folder / name) for record, name in zip(records, names, strict=True)]


def assert_same(left: RankProfiles, right: RankProfiles) -> None:
    """Every table, note and finding is equal."""
    for name in (
        "breakdown",
        "steps",
        "stragglers",
        "collectives",
        "waits",
        "functions",
        "alignment",
    ):
        pd.testing.assert_frame_equal(getattr(left, name)(), getattr(right, name)())
    assert left.notes == right.notes
    assert left.findings() == right.findings()
