"""The tables that compare the ranks of one run.

`waiting` splits the time of every collective into waiting and moving data; collectives, waits
between ranks, stragglers, the overview and steps follow from it. `functions` compares the Python
functions of all ranks.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

import numpy as np
import pandas as pd

from gpuprof_widgets.analyses.collectives import SYNCHRONISING, with_bandwidth
from gpuprof_widgets.analyses.ranks.matching import COLUMNS as MATCHED_COLUMNS
from gpuprof_widgets.analyses.ranks.reduced import FUNCTION_TIMES, WHOLE, WORKING, ReducedRank
from gpuprof_widgets.analyses.reasons import empty_table
from gpuprof_widgets.trace import intervals
from gpuprof_widgets.trace.arrays import Ints
from gpuprof_widgets.trace.pstats import FUNCTION_KEY

COLUMNS = (*MATCHED_COLUMNS, "latest_ns", "last_rank", "skew_ns", "wait_ns", "transfer_ns")
COLLECTIVE_COLUMNS = (
    *("collective", "name", "backend", "dtype", "bytes", "group", "ranks", "present"),
    *("start_ns", "latest_ns", "end_ns", "skew_ns", "transfer_ns", "waited_ns"),
    *("first_rank", "last_rank", "delay_ns", "algorithm_bytes_per_s", "bus_bytes_per_s"),
)
PAIR_COLUMNS = ("rank", "waits_for", "collectives", "wait_ns", "share")
STRAGGLER_COLUMNS = (
    *("rank", "collectives", "last", "delay_ns", "compute_ns", "input_ns", "idle_ns"),
    *("caused_wait_ns", "waited_ns", "transfer_ns"),
)
STEP_COLUMNS = (
    *("step", "rank", "start_ns", "end_ns", "dur_ns", "waited_ns", "own_ns", "imbalance"),
    *("compute_ns", "gpu_busy_ns"),
)
FUNCTION_COLUMNS = (
    *(*FUNCTION_KEY, "ranks", "self_spread_ns"),
    *("slowest_rank", "fastest_rank", "total_spread_ns"),
)
PARTS = ("computing_ns", "waiting_ns", "moving_ns", "copying_ns", "idle_ns")


def waiting(matched: pd.DataFrame, alignment: pd.DataFrame, origin_ns: int) -> pd.DataFrame:
    """Return one row per collective and rank: its time of waiting and of moving data.

    Columns (ns since ``origin_ns``, on the aligned clocks): those of `matched` and ``latest_ns``
    (when the last rank began), ``last_rank``, ``skew_ns`` (latest start less its own),
    ``wait_ns`` (the part of its time before the latest start) and ``transfer_ns`` (the rest; the
    two add up to ``dur_ns``). Waiting exists only where no rank can end before all have begun
    (all_reduce, all_gather, reduce_scatter, all_to_all, barrier); a broadcast or reduce, which some
    ranks leave earlier, is all transfer.
    """
    shift = matched["rank"].map(alignment.set_index("rank")["shift_ns"]).fillna(0).astype(np.int64)
    table = matched.assign(
        start_ns=matched["start_ns"] + shift - origin_ns,
        end_ns=matched["end_ns"] + shift - origin_ns,
    )
    table["latest_ns"] = table.groupby("collective")["start_ns"].transform("max")
    table["last_rank"] = table["rank"].where(table["start_ns"] == table["latest_ns"])
    table["last_rank"] = table.groupby("collective")["last_rank"].transform("min").astype(np.int64)
    table["skew_ns"] = table["latest_ns"] - table["start_ns"]
    waits = table["name"].isin(SYNCHRONISING)
    table["wait_ns"] = np.where(waits, np.minimum(table["skew_ns"], table["dur_ns"]), 0)
    table["transfer_ns"] = table["dur_ns"] - table["wait_ns"]
    return table[list(COLUMNS)]


def collectives_of(waiting: pd.DataFrame) -> pd.DataFrame:
    """Return one row per collective, in order of time, over all ranks that took part.

    Columns (ns): ``collective``, ``name``, ``backend``, ``dtype``, ``bytes``, ``group``, ``ranks``
    (in the group), ``present`` (of them in the traces); ``start_ns`` (first rank), ``latest_ns``
    (last rank), ``end_ns`` (of all); ``skew_ns`` (latest less first start), ``transfer_ns`` (end
    less latest start), ``waited_ns`` (of all ranks together), ``first_rank``, ``last_rank``,
    ``delay_ns`` (latest less second latest start: the cost of the last rank alone), and the
    bandwidths of the transfer (nccl-tests' formulas).
    """
    if not len(waiting):
        return pd.DataFrame(columns=list(COLLECTIVE_COLUMNS))
    ordered = waiting.sort_values(["collective", "start_ns", "rank"], kind="stable")
    by_collective = ordered.groupby("collective", sort=True)
    table = by_collective.agg(
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
    second = by_collective["start_ns"].nth(-2).to_numpy()
    table["delay_ns"] = table["latest_ns"] - second
    table["transfer_ns"] = (table["end_ns"] - table["latest_ns"]).clip(lower=0)
    table = with_bandwidth(table, "bytes", "transfer_ns")
    return table[list(COLLECTIVE_COLUMNS)]


def who_waits_for_whom(waiting: pd.DataFrame) -> pd.DataFrame:
    """Return one row per pair of ranks, the longest waiting first.

    Columns: ``rank`` waited ``wait_ns`` for ``waits_for``, which began last in so many
    ``collectives``; ``share`` of all waiting.
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


def stragglers(ranks: Sequence[ReducedRank], waiting: pd.DataFrame) -> pd.DataFrame:
    """Return one row per rank, the one that delayed the others most first.

    Columns (times in ns): ``rank``, ``collectives`` (that no rank can leave before all have come),
    ``last`` (in how many of them it came last), ``delay_ns`` (sum of how long it came after the
    second to last: the collectives would have begun so much earlier without it). The delay is split
    by what the rank did more than the median rank since the collective before: ``compute_ns`` (it
    computed), ``input_ns`` (it waited for its input pipeline), ``idle_ns`` (the rest: its GPU had
    nothing to do, or, on the CPU, no op ran). ``caused_wait_ns`` (waits of all others for it),
    ``waited_ns`` (its waits for others), ``transfer_ns`` (in collectives after the last rank had
    come).

    HTA's ``get_potential_stragglers`` ranks by the start of one kernel per step, the last one that
    takes 1 % of it on every rank; on the rank that comes last that kernel is often shorter, and so
    left out.
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
    delays = ("delay_ns", "compute_ns", "input_ns", "idle_ns")
    sums |= {key: late.groupby("rank")[key].sum() for key in delays}
    for key, values in sums.items():
        rows[key] = rows["rank"].map(values).fillna(0).astype(np.int64)
    rows = rows[list(STRAGGLER_COLUMNS)].sort_values(["delay_ns", "rank"], ascending=[False, True])
    return rows.reset_index(drop=True)


def _late(table: pd.DataFrame) -> pd.DataFrame:
    """Return the rows of ranks that came last, with the delay and its parts, which add up to it."""
    by_collective = table.groupby("collective")
    second = by_collective["start_ns"].transform(lambda starts: np.sort(starts)[-2:][0])
    more = {
        key: (table[key] - by_collective[key].transform("median")).round().astype(np.int64)
        for key in ("lead_compute_ns", "lead_input_ns")
    }
    table = table.assign(delay_ns=table["latest_ns"] - second, **more)
    late = table[table["rank"] == table["last_rank"]]
    delay = late["delay_ns"].to_numpy(np.int64)
    compute = np.clip(late["lead_compute_ns"].to_numpy(np.int64), 0, delay)
    waited = np.clip(late["lead_input_ns"].to_numpy(np.int64), 0, delay - compute)
    return late.assign(compute_ns=compute, input_ns=waited, idle_ns=delay - compute - waited)


def overview(ranks: Sequence[ReducedRank], waiting: pd.DataFrame) -> pd.DataFrame:
    """Return one row per rank: where its time went; the parts add up to the span.

    Columns (ns): ``rank``, ``span_ns`` (of all its GPUs together), ``computing_ns`` (compute
    kernels; without a GPU the main thread in ops), ``waiting_ns`` and ``moving_ns`` (exposed time
    of collectives, split like their whole time into before and after the last rank had come),
    ``copying_ns`` (exposed copies and memsets), ``idle_ns`` (the rest).
    """
    rows = []
    for rank in ranks:
        whole = rank.breakdown[rank.breakdown["step"] == WHOLE]
        times = whole.groupby("class")["time_ns"].sum().to_dict()
        span = int(whole.groupby("device")["span_ns"].first().sum()) if len(whole) else 0
        computing = int(times.get("compute" if "compute" in times else "CPU ops", 0))
        exposed = int(times.get("exposed communication", 0))
        copying = int(sum(times.get(name, 0) for name in ("exposed copy", "memset")))
        waited = round(exposed * _waited_share(waiting[waiting["rank"] == rank.rank]))
        idle = span - computing - exposed - copying
        rows.append((rank.rank, span, computing, waited, exposed - waited, copying, idle))
    return pd.DataFrame(rows, columns=["rank", "span_ns", *PARTS])


def _waited_share(waiting: pd.DataFrame) -> float:
    """Return the share of waiting in the exposed time of collectives."""
    exposed = waiting["exposed_ns"].to_numpy(np.float64)
    lasted = waiting["dur_ns"].clip(lower=1).to_numpy(np.float64)
    waited = float((exposed * waiting["wait_ns"].to_numpy(np.float64) / lasted).sum())
    total = float(exposed.sum())
    return waited / total if total else 0.0


def steps_of(
    ranks: Sequence[ReducedRank], waiting: pd.DataFrame, alignment: pd.DataFrame, origin_ns: int
) -> pd.DataFrame:
    """Return one row per step and rank, by time; without marked steps the whole run is step -1.

    Columns (ns since ``origin_ns``, on the aligned clocks): ``step``, ``rank``, ``start_ns``,
    ``end_ns``, ``dur_ns``; ``waited_ns`` (in collectives for other ranks), ``own_ns`` (the rest:
    ranks that wait for each other have steps of one length, and differ in this),
    ``imbalance`` (own time over the median of all ranks in that step, less 1), ``compute_ns``
    (while anything was computed), ``gpu_busy_ns`` (-1: not known).
    """
    shift = alignment.set_index("rank")["shift_ns"].to_dict()
    tables = [_rank_steps(rank, waiting, shift[rank.rank] - origin_ns) for rank in ranks]
    tables = tables or [pd.DataFrame(columns=list(STEP_COLUMNS))]
    table = pd.concat(tables, ignore_index=True)
    usual = table.groupby("step")["own_ns"].transform("median").clip(lower=1)
    table["imbalance"] = table["own_ns"] / usual - 1
    return table.sort_values(["step", "rank"], ignore_index=True)[list(STEP_COLUMNS)]


def _rank_steps(rank: ReducedRank, waiting: pd.DataFrame, shift_ns: int) -> pd.DataFrame:
    waiting = waiting[(waiting["rank"] == rank.rank) & (waiting["wait_ns"] > 0)]
    begin = waiting["start_ns"].to_numpy(np.int64)
    waits = intervals.union(begin, begin + waiting["wait_ns"].to_numpy(np.int64))
    table = rank.steps.assign(
        rank=rank.rank,
        start_ns=rank.steps["start_ns"] + shift_ns,
        end_ns=rank.steps["end_ns"] + shift_ns,
    )
    span = table["start_ns"].to_numpy(np.int64), table["end_ns"].to_numpy(np.int64)
    waited = intervals.overlap(span, waits)
    return table.assign(waited_ns=waited, own_ns=table["dur_ns"] - waited)


def column(rank: int, time: str) -> str:
    """Return the column of a rank's time, such as ``rank2_self_ns``."""
    return f"rank{rank}_{time}"


def functions(ranks: Sequence[ReducedRank]) -> pd.DataFrame:
    """Return one row per Python function; those whose self times differ most come first.

    Columns (ns): ``file``, ``line``, ``name``, ``ranks`` (that ran it), ``self_spread_ns`` (the
    slowest rank's self time less the fastest one's), ``slowest_rank``, ``fastest_rank`` (by self
    time), ``total_spread_ns``; then per rank ``rank0_self_ns``, ... and ``rank0_total_ns``, ...,
    which are 0 where it did not run the function. Ranks without Python calls have no columns.
    """
    times = function_times(ranks)
    if not len(times):
        return empty_table(FUNCTION_COLUMNS, "no rank has Python calls: record with cProfile")
    numbers = times[WORKING].columns.tolist()
    self_ns, total_ns = (times[time].fillna(0).to_numpy(np.int64) for time in FUNCTION_TIMES)
    table = times.index.to_frame(index=False)
    table["ranks"] = np.asarray(times[WORKING].notna()).sum(axis=1)
    table["self_spread_ns"] = np.ptp(self_ns, axis=1)
    table["slowest_rank"] = np.take(numbers, self_ns.argmax(axis=1))
    table["fastest_rank"] = np.take(numbers, self_ns.argmin(axis=1))
    table["total_spread_ns"] = np.ptp(total_ns, axis=1)
    names = [column(rank, time) for time in FUNCTION_TIMES for rank in numbers]
    columns = pd.DataFrame(np.hstack([self_ns, total_ns]), columns=names)
    order = np.lexsort((-self_ns.max(axis=1), -np.ptp(self_ns, axis=1)))
    return pd.concat([table, columns], axis=1).iloc[order].reset_index(drop=True)


def function_times(ranks: Sequence[ReducedRank]) -> pd.DataFrame:
    """Return a row per Python function and a column per time and rank; NaN where it did not run."""
    rows = pd.concat([rank.functions.assign(rank=rank.rank) for rank in ranks])
    return pd.DataFrame(rows.set_index([*FUNCTION_KEY, "rank"]).unstack("rank", sort=False))


def self_times(table: pd.DataFrame) -> tuple[list[int], Ints]:
    """Return the ranks that `functions` compares, and their self times: a row per function."""
    matches = [re.fullmatch(r"rank(\d+)_self_ns", str(name)) for name in table.columns]
    ranks = [int(match[1]) for match in matches if match]
    return ranks, table[[column(rank, "self_ns") for rank in ranks]].to_numpy(np.int64)
