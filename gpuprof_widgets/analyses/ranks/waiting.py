"""Who waits for whom: the time of every collective split into waiting and moving data."""

from __future__ import annotations

import numpy as np
import pandas as pd

from gpuprof_widgets.analyses.collective_words import SYNCHRONISING
from gpuprof_widgets.analyses.collectives import with_bandwidth
from gpuprof_widgets.analyses.ranks.matching import COLUMNS as MATCHED_COLUMNS

COLUMNS = (*MATCHED_COLUMNS, "latest_ns", "last_rank", "skew_ns", "wait_ns", "transfer_ns")
COLLECTIVE_COLUMNS = (
    *("collective", "name", "backend", "dtype", "bytes", "group", "ranks", "present"),
    *("start_ns", "latest_ns", "end_ns", "skew_ns", "transfer_ns", "waited_ns"),
    *("first_rank", "last_rank", "delay_ns", "algorithm_bytes_per_s", "bus_bytes_per_s"),
)
PAIR_COLUMNS = ("rank", "waits_for", "collectives", "wait_ns", "share")


def waiting(matched: pd.DataFrame, alignment: pd.DataFrame, origin_ns: int) -> pd.DataFrame:
    """One row per collective and rank: how long it waited for the others, and how long it moved.

    Columns (ns since ``origin_ns``, on the aligned clocks): those of `matched` and ``latest_ns``
    (when the last rank began), ``last_rank``, ``skew_ns`` (latest start less its own),
    ``wait_ns`` (the part of its time before the latest start) and ``transfer_ns`` (the rest; the
    two add up to ``dur_ns``). Only where no rank can end before all have begun (all_reduce,
    all_gather, reduce_scatter, all_to_all, barrier) is there waiting; of a broadcast or reduce,
    which some ranks leave earlier, all is transfer.
    """
    shift = matched["rank"].map(alignment.set_index("rank")["shift_ns"]).fillna(0).astype(np.int64)
    table = matched.assign(
        start_ns=matched["start_ns"] + shift - origin_ns,
        end_ns=matched["end_ns"] + shift - origin_ns,
    )
    of_one = table.groupby("collective")
    table["latest_ns"] = of_one["start_ns"].transform("max")
    table["last_rank"] = table["rank"].where(table["start_ns"] == table["latest_ns"])
    table["last_rank"] = table.groupby("collective")["last_rank"].transform("min").astype(np.int64)
    table["skew_ns"] = table["latest_ns"] - table["start_ns"]
    waits = table["name"].isin(SYNCHRONISING)
    table["wait_ns"] = np.where(waits, np.minimum(table["skew_ns"], table["dur_ns"]), 0)
    table["transfer_ns"] = table["dur_ns"] - table["wait_ns"]
    return table[list(COLUMNS)]


def collectives_of(waiting: pd.DataFrame) -> pd.DataFrame:
    """One row per collective, in order of time, over all ranks that took part.

    Columns (ns): ``collective``, ``name``, ``backend``, ``dtype``, ``bytes``, ``group``, ``ranks``
    (in the group), ``present`` (of them in the traces); ``start_ns`` (first rank), ``latest_ns``
    (last rank), ``end_ns`` (of all); ``skew_ns`` (latest less first start), ``transfer_ns`` (end
    less latest start), ``waited_ns`` (of all ranks together), ``first_rank``, ``last_rank``,
    ``delay_ns`` (latest less second latest start: what the last rank alone cost), and the
    bandwidths of the transfer (nccl-tests' formulas).
    """
    if not len(waiting):
        return pd.DataFrame(columns=list(COLLECTIVE_COLUMNS))
    ordered = waiting.sort_values(["collective", "start_ns", "rank"], kind="stable")
    of_one = ordered.groupby("collective", sort=True)
    table = of_one.agg(
        **{key: (key, "first") for key in ("name", "backend", "dtype", "group", "ranks")},
        bytes=("bytes", "max"),
        present=("rank", "nunique"),
        start_ns=("start_ns", "min"),
        latest_ns=("latest_ns", "max"),
        end_ns=("end_ns", "max"),
        skew_ns=("skew_ns", "max"),
        waited_ns=("wait_ns", "sum"),
        first_rank=("rank", "first"),
        last_rank=("last_rank", "first"),
    ).reset_index()
    second = of_one["start_ns"].nth(-2).to_numpy()
    table["delay_ns"] = table["latest_ns"] - second
    table["transfer_ns"] = (table["end_ns"] - table["latest_ns"]).clip(lower=0)
    table = with_bandwidth(table, "bytes", "transfer_ns")
    return table[list(COLLECTIVE_COLUMNS)]


def who_waits_for_whom(waiting: pd.DataFrame) -> pd.DataFrame:
    """One row per pair of ranks, the longest waiting first.

    Columns: ``rank`` waited ``wait_ns`` for ``waits_for``, which began last in ``collectives`` of
    them; ``share`` of all waiting.
    """
    table = waiting[(waiting["wait_ns"] > 0) & (waiting["rank"] != waiting["last_rank"])]
    pairs = table.groupby(["rank", "last_rank"]).agg(
        collectives=("collective", "nunique"), wait_ns=("wait_ns", "sum")
    )
    pairs = pairs.reset_index().rename(columns={"last_rank": "waits_for"})
    pairs["share"] = pairs["wait_ns"] / max(int(pairs["wait_ns"].sum()), 1)
    return pairs.sort_values(
        ["wait_ns", "rank"], ascending=[False, True], kind="stable", ignore_index=True
    )[list(PAIR_COLUMNS)]
