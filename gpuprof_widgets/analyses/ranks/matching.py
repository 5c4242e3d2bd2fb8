"""Match the collectives of all ranks, and align the ranks' clocks by them.

`matched` pairs collectives by group, order and name. `alignment` derives clock offsets from
collectives that end on all ranks at once.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd

from gpuprof_widgets.analyses.collectives import SYNCHRONISING
from gpuprof_widgets.analyses.ranks.reduced import ReducedRank
from gpuprof_widgets.trace.arrays import Ints

POINT_TO_POINT = ("send", "recv", "send_recv")
"""Operations between two ranks have different names on each, so names cannot match them."""

COLUMNS = (
    *("collective", "rank", "name", "backend", "dtype", "bytes", "group", "ranks", "device"),
    *("start_ns", "end_ns", "dur_ns", "exposed_ns", "row"),
    *("lead_ns", "lead_compute_ns", "lead_input_ns", "lead_name", "lead_name_ns"),
)

MOST_SHIFT = 64
"""Collectives that a trace may lack at its beginning, besides the difference in their numbers."""


TOLERANCE_NS = 50_000
"""Ends of one collective differ by tens of µs between GPUs with one clock (up to 49 µs in the
Megatron traces that this was measured on), so smaller offsets prove nothing about clocks."""

SURE = 5
"""An offset beyond so many times its spread is taken for an offset of the clock."""


def matched(ranks: Sequence[ReducedRank]) -> pd.DataFrame:
    """Return one row per collective and rank in it; collectives of a single rank are left out.

    ``collective`` numbers them in order of time. Where torch numbered the collectives of a group
    (``Seq``), that number decides. Else their order within the group does: the n-th of one rank is
    the n-th of every other, if their names agree. Where a trace lacks some, its sequence is shifted
    against the longest one until most names agree; of several such shifts the one is taken at which
    the ends lie closest together. Times are ns since the epoch, on each rank's own clock.
    """
    tables = [rank.collectives.assign(rank=rank.rank) for rank in ranks if len(rank.collectives)]
    if not tables:
        return pd.DataFrame(columns=list(COLUMNS))
    calls = pd.concat(tables, ignore_index=True)
    calls = calls[~calls["name"].isin(POINT_TO_POINT)]
    # CPU and GPU backends have separate orders.
    key = [calls["device"] < 0, calls["group"].astype(str)]
    groups = [_with_positions(group) for _, group in calls.groupby(key, sort=False)]
    groups = [group.assign(of_group=n) for n, group in enumerate(groups) if len(group)]
    if not groups:
        return pd.DataFrame(columns=list(COLUMNS))
    table, keys = pd.concat(groups, ignore_index=True), ["of_group", "position"]
    first = table.groupby(keys)["start_ns"].min().reset_index().sort_values("start_ns")
    first = first.assign(collective=np.arange(len(first)))[[*keys, "collective"]]
    table = table.merge(first, on=keys)
    return table.sort_values(["collective", "rank"], ignore_index=True)[list(COLUMNS)]


def _with_positions(calls: pd.DataFrame) -> pd.DataFrame:
    """Return the rows of one group with ``position``, equal for one collective on all ranks."""
    calls = calls.sort_values(["rank", "start_ns"], kind="stable")
    if (calls["sequence"] >= 0).all():
        nth = calls.groupby(["rank", "sequence"]).cumcount()
        calls = calls.assign(position=calls["sequence"] * (int(nth.max()) + 1) + nth)
    else:
        calls = _by_order(calls)
    alike = calls.groupby("position")["name"].transform("nunique") == 1
    many = calls.groupby("position")["rank"].transform("nunique") > 1
    return calls[alike & many & (calls["position"] >= 0)]


def _by_order(calls: pd.DataFrame) -> pd.DataFrame:
    """Return the calls with the positions at which the longest rank has the same, else -1."""
    # The same operation on the same type of data; sizes may differ between ranks.
    text = calls["name"].astype(str) + " " + calls["dtype"].astype(str)
    names = pd.Series(pd.factorize(text)[0], index=calls.index)
    sequences = [table for _, table in calls.groupby("rank", sort=True)]
    longest = max(sequences, key=len)
    reference = names[longest.index].to_numpy(), longest["end_ns"].to_numpy(np.int64)
    parts = []
    for table in sequences:
        here = names[table.index].to_numpy(), table["end_ns"].to_numpy(np.int64)
        position = np.arange(len(table)) + _best_shift(here, reference)
        inside = (position >= 0) & (position < len(longest))
        alike = inside & (reference[0][np.where(inside, position, 0)] == here[0])
        parts.append(table.assign(position=np.where(alike, position, -1)))
    return pd.concat(parts)


def _best_shift(here: tuple[Ints, Ints], reference: tuple[Ints, Ints]) -> int:
    """Return the shift at which a sequence fits the reference best."""
    missing = len(reference[0]) - len(here[0])
    if not missing and np.array_equal(here[0], reference[0]):
        return 0
    shifts = range(-min(MOST_SHIFT, len(here[0])), missing + MOST_SHIFT + 1)
    return min(shifts, key=lambda shift: _misfit(shift, here, reference))


def _misfit(
    shift: int, here: tuple[Ints, Ints], reference: tuple[Ints, Ints]
) -> tuple[int, float, int]:
    """Return agreeing names (negated), distance of the ends, and shift; smaller is better."""
    low, high = max(0, -shift), min(len(here[0]), len(reference[0]) - shift)
    if high <= low:
        return 0, np.inf, abs(shift)
    alike = here[0][low:high] == reference[0][low + shift : high + shift]
    apart = (here[1][low:high] - reference[1][low + shift : high + shift])[alike]
    spread = float(np.abs(apart - np.median(apart)).mean()) if len(apart) else np.inf
    return -int(alike.sum()), spread, abs(shift)


def alignment(ranks: Sequence[ReducedRank], matched: pd.DataFrame) -> pd.DataFrame:
    """Return one row per rank: the offset of its clock from the first one's, and its correction.

    No rank can leave an all_reduce, all_gather, reduce_scatter, all_to_all or barrier before every
    rank has come, and all leave it nearly at once: with one clock the ends coincide. Columns (ns):
    ``rank``, ``host``, ``collectives`` (of these kinds), ``offset_ns`` (median of its ends less
    those of the first rank, from group to group where the two share none), ``spread_ns`` (median
    deviation from that), ``impossible`` (collectives that ended before some rank had begun, by the
    recorded clocks), ``shift_ns`` (added to its times: minus its offset where the clocks differ,
    else 0).

    Clocks are taken to differ where an offset exceeds 50 µs and 5 times its spread, or more than
    one collective in ten is impossible; never between ranks of one host, which have one clock.
    """
    hosts = {"rank": [rank.rank for rank in ranks], "host": [rank.host for rank in ranks]}
    table = pd.DataFrame(hosts)
    calls = matched[matched["name"].isin(SYNCHRONISING)]
    offsets = _offsets(calls, table["rank"].tolist())
    pairs = table["rank"].map(offsets).tolist()
    latest = calls.groupby("collective")["start_ns"].transform("max")
    impossible = calls[calls["end_ns"] < latest]["rank"].value_counts()
    table["collectives"] = table["rank"].map(calls["rank"].value_counts()).fillna(0).astype(int)
    table["offset_ns"] = np.array([offset for offset, _ in pairs], np.int64)
    table["spread_ns"] = np.array([spread for _, spread in pairs], np.int64)
    table["impossible"] = table["rank"].map(impossible).fillna(0).astype(int)
    return table.assign(shift_ns=np.where(clocks_differ(table), -table["offset_ns"], 0))


def clocks_differ(table: pd.DataFrame) -> bool:
    """Whether the ranks of an alignment have different clocks."""
    if len(table) < 2 or one_host(table):
        return False
    offset = table["offset_ns"].abs()
    sure = (offset > TOLERANCE_NS) & (offset > SURE * table["spread_ns"])
    impossible = table["impossible"] > 0.1 * table["collectives"].clip(lower=1)
    return bool(sure.any() or impossible.any())


def one_host(table: pd.DataFrame) -> bool:
    """Whether all ranks are known to have run on one machine."""
    return bool(table["host"].nunique() == 1 and table["host"].iloc[0])


def _offsets(calls: pd.DataFrame, ranks: Sequence[int]) -> dict[int, tuple[int, int]]:
    """Return offset and spread of every rank against the first one.

    Ranks that share no collectives with it, even through others, form groups with a first rank of
    their own.
    """
    left = links(calls)
    offsets = dict.fromkeys(ranks, (0, 0))
    known = set(ranks[:1])
    while left := [link for link in left if not known.issuperset(link[:2])]:
        at = next((n for n, (a, b, *_) in enumerate(left) if (a in known) != (b in known)), None)
        if at is None:
            known.add(min(left[0][:2]))
            continue
        a, b, offset, spread, _ = left.pop(at)
        if a in known:
            offsets[b] = (offsets[a][0] + offset, max(offsets[a][1], spread))
            known.add(b)
        else:
            offsets[a] = (offsets[b][0] - offset, max(offsets[b][1], spread))
            known.add(a)
    return offsets


def links(calls: pd.DataFrame) -> list[tuple[int, int, int, int, int]]:
    """Return two ranks, the second's offset, its spread and the number of shared collectives.

    Each rank is paired only with the lowest one of every collective, so that the number of pairs
    grows with the ranks and not with their square; the pairs that share most come first.
    """
    lowest = calls.sort_values(["collective", "rank"]).groupby("collective")
    table = calls.assign(
        base=lowest["rank"].transform("first"),
        apart=calls["end_ns"] - lowest["end_ns"].transform("first"),
    )
    table = table[table["rank"] != table["base"]]
    pairs = []
    for _, pair in table.groupby(["base", "rank"]):
        base, rank = (int(pair[key].iloc[0]) for key in ("base", "rank"))
        apart = pair["apart"].to_numpy(np.int64)
        offset = int(np.median(apart))
        spread = int(np.median(np.abs(apart - offset)))
        pairs.append((base, rank, offset, spread, len(apart)))
    return sorted(pairs, key=lambda link: (-link[4], link[3]))
