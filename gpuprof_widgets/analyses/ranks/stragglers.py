"""The ranks that the others waited for, and what they did meanwhile."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pandas as pd

from gpuprof_widgets.analyses.collective_words import SYNCHRONISING
from gpuprof_widgets.analyses.ranks.reduced import ReducedRank

COLUMNS = (
    *("rank", "collectives", "last", "delay_ns", "compute_ns", "input_ns", "idle_ns"),
    *("caused_wait_ns", "waited_ns", "transfer_ns"),
)


def stragglers(ranks: Sequence[ReducedRank], waiting: pd.DataFrame) -> pd.DataFrame:
    """One row per rank, the one that delayed the others most first.

    Columns (times in ns): ``rank``, ``collectives`` (that no rank can leave before all have come),
    ``last`` (in how many of them it came last), ``delay_ns`` (how long after the second last, in
    all: so much earlier the collectives would have begun without it); that delay by what this rank
    did, since the collective before, more than the others in the middle: ``compute_ns`` (it
    computed), ``input_ns`` (it waited for its input pipeline), ``idle_ns`` (the rest: its GPU had
    nothing to do, or, on the CPU, no op ran); ``caused_wait_ns`` (what the others waited for it,
    together), ``waited_ns`` (what itself waited), ``transfer_ns`` (in collectives after the last
    rank had come).

    HTA's ``get_potential_stragglers`` ranks by the start of one kernel a step, the last that takes
    1 % of it on every rank; that of the rank which comes last is often shorter, and so left out.
    """
    table = waiting[waiting["name"].isin(SYNCHRONISING)]
    late = _late(table)
    rows = pd.DataFrame({"rank": [rank.rank for rank in ranks]})
    sums = {
        "collectives": table.groupby("rank")["collective"].nunique(),
        "last": late.groupby("rank")["collective"].nunique(),
        "caused_wait_ns": table.groupby("last_rank")["wait_ns"].sum(),
        "waited_ns": table.groupby("rank")["wait_ns"].sum(),
        "transfer_ns": table.groupby("rank")["transfer_ns"].sum(),
    }
    sums |= {key: late.groupby("rank")[key].sum() for key in _PARTS}
    for key, values in sums.items():
        rows[key] = rows["rank"].map(values).fillna(0).astype(np.int64)
    rows = rows[list(COLUMNS)].sort_values(["delay_ns", "rank"], ascending=[False, True])
    return rows.reset_index(drop=True)


_PARTS = ("delay_ns", "compute_ns", "input_ns", "idle_ns")


def _late(table: pd.DataFrame) -> pd.DataFrame:
    """The rows of ranks that came last, with the delay and its parts, which add up to it."""
    ordered = table.sort_values(["collective", "start_ns"], kind="stable")
    second = ordered.groupby("collective")["start_ns"].transform(_second_largest)
    table = table.assign(delay_ns=(table["latest_ns"] - second).reindex(table.index))
    more = {key: _more_than_others(table, f"lead_{key}_ns") for key in ("compute", "input")}
    table = table.assign(more_compute=more["compute"], more_input=more["input"])
    late = table[table["rank"] == table["last_rank"]]
    delay = late["delay_ns"].to_numpy(np.int64)
    compute = np.clip(late["more_compute"].to_numpy(np.int64), 0, delay)
    waited = np.clip(late["more_input"].to_numpy(np.int64), 0, delay - compute)
    return late.assign(compute_ns=compute, input_ns=waited, idle_ns=delay - compute - waited)


def _second_largest(starts: pd.Series) -> int:
    values = np.sort(starts.to_numpy())
    return int(values[-2] if len(values) > 1 else values[-1])


def _more_than_others(table: pd.DataFrame, key: str) -> npt.NDArray[np.int64]:
    """How much more of that each rank had before a collective than the ranks in the middle."""
    usual = table.groupby("collective")[key].transform("median")
    return np.asarray((table[key] - usual).round(), np.int64)
