"""The steps of all ranks side by side: which rank had more to do in which."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd

from gpuprof_widgets.analyses.ranks.reduced import ReducedRank
from gpuprof_widgets.trace import intervals

COLUMNS = (
    *("step", "rank", "start_ns", "end_ns", "dur_ns", "waited_ns", "own_ns", "imbalance"),
    *("compute_ns", "gpu_busy_ns"),
)


def steps_of(
    ranks: Sequence[ReducedRank],
    waiting: pd.DataFrame,
    alignment: pd.DataFrame,
    origin_ns: int,
) -> pd.DataFrame:
    """One row per step and rank, in order of time; without marked steps the whole run is step -1.

    Columns (ns since ``origin_ns``, on the aligned clocks): ``step``, ``rank``, ``start_ns``,
    ``end_ns``, ``dur_ns``; ``waited_ns`` (in collectives for other ranks), ``own_ns`` (the rest:
    ranks that wait for each other have steps of one length, and differ in this),
    ``imbalance`` (own time over the median of all ranks in that step, less 1), ``compute_ns``
    (while anything was computed), ``gpu_busy_ns`` (-1: not known).
    """
    shift = alignment.set_index("rank")["shift_ns"].to_dict()
    tables = [_of_rank(one, waiting, shift[one.rank] - origin_ns) for one in ranks]
    table = pd.concat(tables, ignore_index=True) if tables else pd.DataFrame(columns=list(COLUMNS))
    usual = table.groupby("step")["own_ns"].transform("median").clip(lower=1)
    table["imbalance"] = table["own_ns"] / usual - 1
    table = table.sort_values(["step", "rank"], ignore_index=True)
    return table[list(COLUMNS)]


def _of_rank(rank: ReducedRank, waiting: pd.DataFrame, shift_ns: int) -> pd.DataFrame:
    own = waiting[(waiting["rank"] == rank.rank) & (waiting["wait_ns"] > 0)]
    begin = own["start_ns"].to_numpy(np.int64)
    waits = intervals.union(begin, begin + own["wait_ns"].to_numpy(np.int64))
    table = rank.steps.assign(
        rank=rank.rank,
        start_ns=rank.steps["start_ns"] + shift_ns,
        end_ns=rank.steps["end_ns"] + shift_ns,
    )
    span = table["start_ns"].to_numpy(np.int64), table["end_ns"].to_numpy(np.int64)
    waited = intervals.overlap(span, waits)
    return table.assign(waited_ns=waited, own_ns=table["dur_ns"] - waited)
