"""Findings on several ranks: how long they wait for each other, and who is late and why."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pandas as pd

from gpuprof_widgets.analyses.columns import format_count, format_ns, format_share
from gpuprof_widgets.analyses.findings.finding import Finding, code
from gpuprof_widgets.analyses.findings.thresholds import check_limits, limits_for
from gpuprof_widgets.analyses.python_calls import function_labels, is_user_code
from gpuprof_widgets.analyses.ranks.reduced import WORKING
from gpuprof_widgets.analyses.ranks.tables import self_times
from gpuprof_widgets.trace.arrays import Ints
from gpuprof_widgets.trace.pstats import FUNCTION_KEY

MOST = 3
"""Stragglers or functions with a finding each."""

COMPUTE, INPUT, IDLE = "compute_ns", "input_ns", "idle_ns"

REMEDIES = {
    COMPUTE: "Give all ranks batches of one size (sequence "
    "lengths, experts, uneven shards), and check whether its processor is shared, throttled or "
    "older.",
    INPUT: "Its input pipeline is slower. Give its DataLoader as many workers as the others have. "
    "Give all ranks shards of one size, on equally fast storage.",
    IDLE: "Its GPU had nothing to do, because its CPU is late. Look for work that this rank alone "
    "does (logging, checkpoints, metrics), for other processes on its cores, and for garbage "
    "collection. If an op with next to no work takes that long, its thread was stopped: another "
    "process or Python thread had its core or lock.",
}
SHORTLY = {COMPUTE: "it computes more", INPUT: "its input is late", IDLE: "its GPU is idle"}
"""The cause in a title."""
CPU_REMEDY = (
    "Look for Python that this rank alone runs, for reading data, and "
    "for other processes on its cores."
)
NAMED_REMEDY = "Call {} less often, after the collective or in a thread, or divide it among ranks."
MOST_OF_DELAY, TOO_LONG = 0.5, 2.0
"""Shares of a delay between which a function explains it: with more, most of it was elsewhere."""
FUNCTION_REMEDY = (
    "Look for what makes that rank differ: uneven shards, work that it does alone (logging, "
    "checkpoints), other processes on its cores. If the function waits for other ranks, then the "
    "rank with the least time in it is late."
)
LONGER = ("total_ns", WORKING)
"""Times that must both be longer where a rank works longer in a function."""
IDLE_CLASSES = {
    "input pipeline": "the input pipeline",
    "synchronising": "calls that synchronise",
    "Python": "Python",
    "CPU ops": "CPU ops",
    "runtime calls": "calls of the CUDA runtime",
}
"""What the CPU did while its GPU had nothing to do, by the class of the breakdown."""


@dataclass(frozen=True)
class Compared:
    """The tables that the rules read; ``span_ns``: from the first start to the last end."""

    stragglers: pd.DataFrame
    collectives: pd.DataFrame
    waiting: pd.DataFrame
    breakdown: pd.DataFrame
    functions: pd.DataFrame
    function_times: pd.DataFrame
    span_ns: int


@dataclass(frozen=True)
class RankFinding:
    """A finding and the rank that it is about; -1: all ranks."""

    finding: Finding
    rank: int


def waiting_for_others(
    compared: Compared, *, rank_waiting_share: float = 0.05
) -> list[RankFinding]:
    """Report how long the ranks waited for each other, from 5 % of the run on.

    Cost: the time that the average rank waited.
    """
    table = compared.stragglers
    ranks = int((table["collectives"] > 0).sum())
    waited, moving = int(table["waited_ns"].sum()), int(table["transfer_ns"].sum())
    each = waited // max(ranks, 1)
    share = each / max(compared.span_ns, 1)
    if not ranks or share < rank_waiting_share:
        return []
    text = (
        f"The average rank spent {format_ns((waited + moving) // ranks)} in collectives. It waited "
        f"{format_ns(each)} for other ranks ({format_share(share)} of the run) and moved data for "
        f"{format_ns(moving // ranks)}."
    )
    span = _range_of_largest(compared.collectives, "waited_ns")
    remedy = _delay_remedy(table)
    title = "The ranks wait for each other"
    return [RankFinding(Finding(text, each, share, *span, (), remedy, title=title), -1)]


def _delay_remedy(table: pd.DataFrame) -> str:
    """Return a sentence on who delays the others, a few ranks or all in turn; "" without delay."""
    total = int(table["delay_ns"].sum())
    if not total:
        return ""
    parts = (table["delay_ns"] / total).tolist()
    needed = int(np.searchsorted(np.cumsum(parts), 0.75)) + 1
    if needed <= max(1, len(table) // 3):
        named = [f"rank {rank}" for rank in table["rank"].tolist()[:needed]]
        share = format_share(sum(parts[:needed]))
        return f"{' and '.join(named).capitalize()} caused {share} of the delay."
    return (
        "The ranks take turns in coming last. Look for work of uneven length (sequence lengths, "
        "data loading, garbage collection) rather than for one slow machine."
    )


def stragglers(compared: Compared, *, straggler_share: float = 0.05) -> list[RankFinding]:
    """Report at most three ranks that held up all others for 5 % of the run or more.

    If a rank's CPU is late, it names the user's function in which the rank works longer than all
    others, by half of the delay to twice the delay.

    Cost: how long after the second to last rank it came to its collectives, in all.
    """
    rows = compared.stragglers[compared.stragglers["delay_ns"] > 0].head(MOST)
    listed = [_straggler(compared, row) for row in rows.itertuples(index=False)]
    return [entry for entry in listed if entry.finding.share >= straggler_share]


def _straggler(compared: Compared, row: Any) -> RankFinding:
    share = row.delay_ns / max(compared.span_ns, 1)
    cause = max((COMPUTE, INPUT, IDLE), key=lambda key: int(getattr(row, key)))
    on_gpu = bool((compared.waiting["device"] >= 0).any())
    of_all = format_count(row.collectives, "collective")
    text = (
        f"Rank {row.rank} came last to {row.last:,} of {of_all}. In total, it came "
        f"{format_ns(row.delay_ns)} after the second to last ({format_share(share)} of the run). "
        f"The others together waited {format_ns(row.caused_wait_ns)} for it. "
        f"{_cause_words(compared, row, cause, on_gpu)}."
    )
    delayed = compared.collectives[compared.collectives["last_rank"] == row.rank]
    span = _range_of_largest(delayed, "delay_ns")
    remedy = REMEDIES[cause] if on_gpu or cause != IDLE else CPU_REMEDY
    why = "" if cause == IDLE and not on_gpu else f": {SHORTLY[cause]}"
    if cause == IDLE and (longer := _longer_function(compared, row)):
        name, sentence = longer
        text, remedy = f"{text} {sentence}", NAMED_REMEDY.format(name)
        why = f": {name} takes longer"
    title = f"Rank {row.rank} holds up the others{why}"
    finding = Finding(text, row.delay_ns, share, *span, (), remedy, title=title)
    return RankFinding(finding, int(row.rank))


def _range_of_largest(collectives: pd.DataFrame, key: str) -> tuple[int, int]:
    """Return the range from the first to the last rank's start, in the collective with most."""
    worst = int(collectives[key].to_numpy(np.int64).argmax())
    start, latest = collectives["start_ns"], collectives["latest_ns"]
    return int(start.iloc[worst]), int(latest.iloc[worst])


def _cause_words(compared: Compared, row: Any, cause: str, on_gpu: bool) -> str:
    """Say what the rank did in most of the delay."""
    part = int(getattr(row, cause))
    of_it = (
        "Meanwhile"
        if part > 0.99 * row.delay_ns
        else f"In {format_share(part / row.delay_ns)} of that time"
    )
    if cause == COMPUTE:
        return f"{of_it}, it computed more than the others"
    if cause == INPUT:
        return f"{of_it}, it waited for its input pipeline longer than the others"
    if not on_gpu:
        return f"{of_it}, it was in no op"
    words = f"{of_it}, its GPU was idle{_idle_in(compared.breakdown, row.rank)}"
    # The op in which its CPU was before the longest delay is named where one stands out.
    delayed = compared.collectives[compared.collectives["last_rank"] == row.rank]
    worst = delayed.iloc[int(delayed["delay_ns"].to_numpy(np.int64).argmax())]
    waiting = compared.waiting
    here = (waiting["collective"] == worst["collective"]) & (waiting["rank"] == row.rank)
    name, stretch = waiting["lead_name"][here].iloc[0], int(waiting["lead_name_ns"][here].iloc[0])
    if stretch < 0.25 * worst["delay_ns"]:
        return words
    return (
        f"{words}. In the longest delay ({format_ns(worst['delay_ns'])}), it was in one "
        f"{code(name)} for {format_ns(stretch)}"
    )


def _longer_function(compared: Compared, row: Any) -> tuple[str, str] | None:
    """Name the function in which the rank works longer than all others, by most of its delay.

    Of functions that call each other it is the innermost of the user's. A wait for the GPU or in a
    collective is no work.
    """
    times = compared.function_times
    if not len(times) or {*times[WORKING].columns} != {*compared.stragglers["rank"]}:
        return None
    others = {key: times[key].fillna(0).drop(columns=row.rank).max(axis=1) for key in LONGER}
    own = {key: times[key][row.rank].fillna(0) for key in LONGER}
    more = pd.concat([own[key] - others[key] for key in LONGER], axis=1).min(axis=1)
    more -= row.waited_ns
    is_long = more.between(MOST_OF_DELAY * row.idle_ns, TOO_LONG * row.delay_ns)
    is_long &= is_user_code(times.index.to_frame()) & (more > 0.8 * more[is_long].max())
    if not is_long.any():
        return None
    at = own["total_ns"][is_long].idxmin()
    name = code(function_labels(pd.DataFrame([at], columns=FUNCTION_KEY))[0])
    took, usual = format_ns(own["total_ns"][at]), format_ns(others["total_ns"][at])
    return name, f"{name} took {took} on rank {row.rank}, and at most {usual} on the others."


def _idle_in(breakdown: pd.DataFrame, rank: int) -> str:
    """Name the class of idle time in which the rank exceeds the median rank most."""
    whole = breakdown[(breakdown["step"] == -1) & breakdown["class"].isin(IDLE_CLASSES)]
    times = whole.groupby(["class", "rank"], as_index=False)["time_ns"].sum()
    of_rank = times[times["rank"] == rank].set_index("class")["time_ns"]
    usual = times.groupby("class")["time_ns"].median()
    more = (of_rank - usual).dropna()
    if not len(more) or more.max() <= 0:
        return ""
    worst = str(more.idxmax())
    spent, middle = format_ns(float(of_rank[worst])), format_ns(float(usual[worst]))
    place = IDLE_CLASSES[worst]
    return f", mostly while its CPU was in {place} ({spent} in the run, usually {middle})"


def slow_functions(compared: Compared, *, rank_function_share: float = 0.05) -> list[RankFinding]:
    """Report at most three functions in which the ranks differ; not if collectives tell more.

    The spread must be 5 % of the slowest rank's time in Python.

    Cost: the spread: the time of the slowest rank less that of the fastest.
    """
    table = compared.functions
    if not len(table) or int(compared.stragglers["collectives"].sum()):
        return []
    ranks, times = self_times(table)
    rank_ns = pd.Series(times.sum(axis=0), ranks)[table["slowest_rank"]]
    rows = zip(table.head(MOST).itertuples(index=False), times, rank_ns, strict=False)
    listed = [_slow_function(*row) for row in rows]
    return [entry for entry in listed if entry.finding.share >= rank_function_share]


def _slow_function(row: Any, self_ns: Ints, rank_ns: int) -> RankFinding:
    share = row.self_spread_ns / max(rank_ns, 1)
    (label,) = function_labels(pd.DataFrame([row._asdict()]))
    middle = (
        f", {format_ns(float(np.median(self_ns)))} on the rank in the middle"
        if len(self_ns) > 2
        else ""
    )
    text = (
        f"{code(label)} itself took {format_ns(self_ns.max())} on rank {row.slowest_rank}, "
        f"{format_ns(self_ns.min())} on rank {row.fastest_rank}{middle}. The difference is "
        f"{format_share(share)} of rank {row.slowest_rank}'s time in Python."
    )
    title = f"{code(label)} takes longest on rank {row.slowest_rank}"
    finding = Finding(text, row.self_spread_ns, share, remedy=FUNCTION_REMEDY, title=title)
    return RankFinding(finding, int(row.slowest_rank))


FINDINGS: dict[str, Callable[..., list[RankFinding]]] = {
    "waiting_for_others": waiting_for_others,
    "stragglers": stragglers,
    "slow_functions": slow_functions,
}
"""Rules over several ranks, by name; those over one record are in `analyses.findings`."""


def findings(compared: Compared, **limits: float) -> list[RankFinding]:
    """Return what all rules find, the costliest first; ``limits``: other thresholds, by name."""
    check_limits(limits, *FINDINGS.values())
    listed = [
        replace(entry, finding=replace(entry.finding, rule=name))
        for name, rule in FINDINGS.items()
        for entry in rule(compared, **limits_for(rule, limits))
    ]
    return sorted(listed, key=lambda entry: -entry.finding.cost_ns)
