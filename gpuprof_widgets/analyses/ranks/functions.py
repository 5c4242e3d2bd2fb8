"""The Python functions of all ranks side by side: in which of them one rank is slower."""

from __future__ import annotations

import re
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pandas as pd

from gpuprof_widgets.analyses.lacking import lacking
from gpuprof_widgets.analyses.ranks.reduced import FUNCTION, FUNCTION_TIMES, ReducedRank

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
    own, total = (_side_by_side(having, time) for time in FUNCTION_TIMES)
    numbers = np.array([rank.rank for rank in having], np.int64)
    table = own.index.to_frame(index=False)
    table["ranks"] = sum(own.index.isin(_index(rank.functions)).astype(np.int64) for rank in having)
    table["self_spread_ns"] = np.ptp(own.to_numpy(), axis=1)
    table["slowest_rank"] = numbers[own.to_numpy().argmax(axis=1)]
    table["fastest_rank"] = numbers[own.to_numpy().argmin(axis=1)]
    table["total_spread_ns"] = np.ptp(total.to_numpy(), axis=1)
    table = pd.concat([table, own.reset_index(drop=True), total.reset_index(drop=True)], axis=1)
    return table.sort_values(
        ["self_spread_ns", "total_spread_ns"], ascending=False, kind="stable", ignore_index=True
    )


def self_times(table: pd.DataFrame) -> tuple[list[int], npt.NDArray[np.int64]]:
    """The ranks that `functions` compares, and their self times: a row per function."""
    found = [re.fullmatch(r"rank(\d+)_self_ns", str(name)) for name in table.columns]
    ranks = [int(match[1]) for match in found if match]
    return ranks, table[[column(rank, "self_ns") for rank in ranks]].to_numpy(np.int64)


def _side_by_side(ranks: Sequence[ReducedRank], time: str) -> pd.DataFrame:
    """A row per function of any rank, a column per rank."""
    columns = {
        column(rank.rank, time): pd.Series(
            rank.functions[time].to_numpy(np.int64), _index(rank.functions)
        )
        for rank in ranks
    }
    return pd.DataFrame(columns).fillna(0).astype(np.int64)


def _index(functions: pd.DataFrame) -> pd.MultiIndex:
    return pd.MultiIndex.from_frame(functions[list(FUNCTION)])
