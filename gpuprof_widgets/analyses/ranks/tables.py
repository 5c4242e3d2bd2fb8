"""Who waits for whom: the time of every collective split into waiting and moving data."""

from __future__ import annotations

import re
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pandas as pd

from gpuprof_widgets.analyses.collectives import SYNCHRONISING, with_bandwidth
from gpuprof_widgets.analyses.ranks.matching import COLUMNS as MATCHED_COLUMNS
from gpuprof_widgets.analyses.ranks.reduced import FUNCTION, FUNCTION_TIMES, WHOLE, ReducedRank
from gpuprof_widgets.analyses.reasons import lacking
from gpuprof_widgets.trace import intervals

Ints = npt.NDArray[np.int64]

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


STRAGGLER_COLUMNS = (
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
    rows = rows[list(STRAGGLER_COLUMNS)].sort_values(["delay_ns", "rank"], ascending=[False, True])
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


PARTS = ("computing_ns", "waiting_ns", "moving_ns", "copying_ns", "idle_ns")
OVERVIEW_COLUMNS = ("rank", "span_ns", *PARTS)

COMPUTING, COMMUNICATION = "compute", "exposed communication"
COPYING = ("exposed copy", "memset")
OPS = "CPU ops"


def overview(ranks: Sequence[ReducedRank], waiting: pd.DataFrame) -> pd.DataFrame:
    """One row per rank: where its time went; the parts add up to the span.

    Columns (ns): ``rank``, ``span_ns`` (of all its GPUs together), ``computing_ns`` (compute
    kernels; without a GPU the main thread in ops), ``waiting_ns`` and ``moving_ns`` (in
    collectives with nothing computed meanwhile: before and after the last rank had come, split as
    the collectives are as a whole), ``copying_ns`` (copies and memsets that nothing hid),
    ``idle_ns`` (the rest).
    """
    rows = [_row(one, waiting[waiting["rank"] == one.rank]) for one in ranks]
    return pd.DataFrame(rows, columns=list(OVERVIEW_COLUMNS))


def _row(rank: ReducedRank, waiting: pd.DataFrame) -> dict[str, int]:
    whole = rank.breakdown[rank.breakdown["step"] == WHOLE]
    times = whole.groupby("class")["time_ns"].sum().to_dict()
    span = int(whole.groupby("device")["span_ns"].first().sum()) if len(whole) else 0
    computing = int(times.get(COMPUTING if COMPUTING in times else OPS, 0))
    exposed = int(times.get(COMMUNICATION, 0))
    copying = int(sum(times.get(name, 0) for name in COPYING))
    waited = round(exposed * _waited_share(waiting))
    return {
        "rank": rank.rank,
        "span_ns": span,
        "computing_ns": computing,
        "waiting_ns": waited,
        "moving_ns": exposed - waited,
        "copying_ns": copying,
        "idle_ns": span - computing - exposed - copying,
    }


def _waited_share(waiting: pd.DataFrame) -> float:
    """What share of the exposed time of collectives was waiting."""
    exposed = waiting["exposed_ns"].to_numpy(np.float64)
    lasted = waiting["dur_ns"].clip(lower=1).to_numpy(np.float64)
    waited = float((exposed * waiting["wait_ns"].to_numpy(np.float64) / lasted).sum())
    total = float(exposed.sum())
    return waited / total if total else 0.0


STEP_COLUMNS = (
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
    table = (
        pd.concat(tables, ignore_index=True) if tables else pd.DataFrame(columns=list(STEP_COLUMNS))
    )
    usual = table.groupby("step")["own_ns"].transform("median").clip(lower=1)
    table["imbalance"] = table["own_ns"] / usual - 1
    table = table.sort_values(["step", "rank"], ignore_index=True)
    return table[list(STEP_COLUMNS)]


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


FUNCTION_COLUMNS = (
    *FUNCTION,
    "ranks",
    "self_spread_ns",
    "slowest_rank",
    "fastest_rank",
    "total_spread_ns",
)


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
        return lacking(FUNCTION_COLUMNS, "no rank has Python calls: record with cProfile")
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
