"""The Python functions of all ranks side by side: in which of them one rank is slower."""

from __future__ import annotations

import re
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pandas as pd

from gpuprof_widgets.analyses.lacking import lacking
from gpuprof_widgets.analyses.ranks.reduced import FUNCTION, FUNCTION_TIMES, ReducedRank

Ints = npt.NDArray[np.int64]

COLUMNS = (*FUNCTION, "ranks", "self_spread_ns", "slowest_rank", "fastest_rank", "total_spread_ns")


def column(rank: int, time: str) -> str:
    """The column of that time of that rank: ``rank2_self_ns``."""
    return f"rank{rank}_{time}"


def functions(ranks: Sequence[ReducedRank]) -> pd.DataFrame:
    """One row per Python function, the one in whose self time the ranks differ most first.

    Columns (ns): ``file``, ``line``, ``name``, ``ranks`` (that ran it), ``self_spread_ns`` (the
    slowest rank's self time less the fastest one's), ``slowest_rank``, ``fastest_rank`` (by self
    time), ``total_spread_ns``; then per rank ``rank0_self_ns``, ... and ``rank0_total_ns``, ...,
    which are 0 where it did not run the function. Ranks without Python calls have no columns.
    """
    having = [rank for rank in ranks if len(rank.functions)]
    if not having:
        return lacking(COLUMNS, "no rank has Python calls: record with cProfile")
    rows = pd.concat(
        [rank.functions.assign(at=number) for number, rank in enumerate(having)], ignore_index=True
    )
    same = rows.groupby(list(FUNCTION), sort=False)
    table = same.size().reset_index(name="ranks")
    place = np.asarray(same.ngroup(), np.int64), np.asarray(rows["at"], np.int64)
    shape = len(table), len(having)
    own, total = (_placed(rows[time], place, shape) for time in FUNCTION_TIMES)
    numbers = [rank.rank for rank in having]
    table["self_spread_ns"] = np.ptp(own, axis=1)
    table["slowest_rank"] = np.take(numbers, own.argmax(axis=1))
    table["fastest_rank"] = np.take(numbers, own.argmin(axis=1))
    table["total_spread_ns"] = np.ptp(total, axis=1)
    names = [column(rank, time) for time in FUNCTION_TIMES for rank in numbers]
    times = pd.DataFrame(np.hstack([own, total]), columns=names)
    order = np.lexsort((-own.max(axis=1), -np.ptp(own, axis=1)))
    return pd.concat([table, times], axis=1).iloc[order].reset_index(drop=True)


def self_times(table: pd.DataFrame) -> tuple[list[int], Ints]:
    """The ranks that `functions` compares, and their self times: a row per function."""
    found = [re.fullmatch(r"rank(\d+)_self_ns", str(name)) for name in table.columns]
    ranks = [int(match[1]) for match in found if match]
    return ranks, table[[column(rank, "self_ns") for rank in ranks]].to_numpy(np.int64)


def _placed(values: pd.Series, place: tuple[Ints, Ints], shape: tuple[int, int]) -> Ints:
    """A row per function, a column per rank; 0 where that rank did not run it."""
    matrix = np.zeros(shape, np.int64)
    matrix[place] = values
    return matrix
