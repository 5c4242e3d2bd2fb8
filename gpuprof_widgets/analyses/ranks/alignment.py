"""How far the clocks of the ranks are apart, told by collectives that end everywhere at once."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd

from gpuprof_widgets.analyses.collective_words import SYNCHRONISING
from gpuprof_widgets.analyses.ranks.reduced import ReducedRank

COLUMNS = ("rank", "host", "collectives", "offset_ns", "spread_ns", "impossible", "shift_ns")

TOLERANCE_NS = 50_000
"""Ends of one collective differ by tens of µs between GPUs with one clock (up to 49 µs in the
Megatron traces that this was measured on), so that less tells nothing of clocks."""

SURE = 5
"""Times its spread: from there on an offset is taken for one of the clock."""


def alignment(ranks: Sequence[ReducedRank], matched: pd.DataFrame) -> pd.DataFrame:
    """One row per rank: how far its clock is from that of the first, and what it is corrected by.

    No rank can leave an all_reduce, all_gather, reduce_scatter, all_to_all or barrier before every
    rank has come, and all leave it nearly at once: with one clock the ends coincide. Columns (ns):
    ``rank``, ``host``, ``collectives`` (that tell), ``offset_ns`` (median of its ends less those
    of the first rank, from group to group where the two share none), ``spread_ns`` (median
    deviation from that), ``impossible`` (ended before some rank had begun, by the clocks as
    recorded), ``shift_ns`` (added to its times: less its offset where the clocks differ, else 0).

    Clocks are taken to differ where an offset exceeds 50 µs and 5 times its spread, or more than
    one collective in ten is impossible; never between ranks of one host, which have one clock.
    """
    table = pd.DataFrame({"rank": [one.rank for one in ranks], "host": [one.host for one in ranks]})
    telling = matched[matched["name"].isin(SYNCHRONISING)]
    offsets = _offsets(telling, table["rank"].tolist())
    found = table["rank"].map(offsets).tolist()
    table["collectives"] = table["rank"].map(telling["rank"].value_counts()).fillna(0).astype(int)
    table["offset_ns"] = np.array([offset for offset, _ in found], np.int64)
    table["spread_ns"] = np.array([spread for _, spread in found], np.int64)
    table["impossible"] = table["rank"].map(_impossible(telling)).fillna(0).astype(int)
    differ = clocks_differ(table)
    table["shift_ns"] = np.where(differ, -table["offset_ns"], 0)
    return table[list(COLUMNS)]


def clocks_differ(table: pd.DataFrame) -> bool:
    """Whether the ranks of an alignment have clocks of their own."""
    if len(table) < 2 or one_host(table):
        return False
    offset = table["offset_ns"].abs()
    sure = (offset > TOLERANCE_NS) & (offset > SURE * table["spread_ns"])
    impossible = table["impossible"] > 0.1 * table["collectives"].clip(lower=1)
    return bool(sure.any() or impossible.any())


def one_host(table: pd.DataFrame) -> bool:
    """Whether all ranks are known to have run on one machine."""
    return bool(table["host"].nunique() == 1 and table["host"].iloc[0])


def _impossible(telling: pd.DataFrame) -> pd.Series:
    """Per rank how many of its collectives ended before another rank had begun them."""
    latest = telling.groupby("collective")["start_ns"].transform("max")
    return telling[telling["end_ns"] < latest]["rank"].value_counts()


def _offsets(telling: pd.DataFrame, ranks: Sequence[int]) -> dict[int, tuple[int, int]]:
    """Offset and spread of every rank against the first one.

    Ranks that nothing ties to that are against the first one of those that are tied to them.
    """
    left = links(telling)
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


def links(telling: pd.DataFrame) -> list[tuple[int, int, int, int, int]]:
    """Of pairs of ranks that share collectives: the offset of the second, its spread, how many.

    Each rank is compared with the lowest one of every collective, so that the number of pairs grows
    with the ranks and not with their square; the pairs that share most come first.
    """
    first = telling.sort_values(["collective", "rank"]).groupby("collective")
    table = telling.assign(
        base=first["rank"].transform("first"), apart=telling["end_ns"] - _first_end(telling)
    )
    table = table[table["rank"] != table["base"]]
    found = [_link(group) for _, group in table.groupby(["base", "rank"])]
    return sorted(found, key=lambda link: (-link[4], link[3]))


def _link(pair: pd.DataFrame) -> tuple[int, int, int, int, int]:
    apart = pair["apart"].to_numpy(np.int64)
    offset = int(np.median(apart))
    spread = int(np.median(np.abs(apart - offset)))
    return int(pair["base"].iloc[0]), int(pair["rank"].iloc[0]), offset, spread, len(apart)


def _first_end(telling: pd.DataFrame) -> pd.Series:
    """Per row the end of the same collective on its lowest rank."""
    ordered = telling.sort_values(["collective", "rank"])
    return ordered.groupby("collective")["end_ns"].transform("first").reindex(telling.index)
