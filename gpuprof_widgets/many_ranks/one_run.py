"""Whether the traces are of one run at all: no comparison of ranks means anything otherwise."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import UTC, datetime

from gpuprof_widgets.analyses.collective_words import SYNCHRONISING
from gpuprof_widgets.analyses.ranks.alignment import SURE, TOLERANCE_NS, links
from gpuprof_widgets.analyses.ranks.matching import matched
from gpuprof_widgets.analyses.ranks.reduced import ReducedRank
from gpuprof_widgets.exceptions import TraceError

APART_NS = 3_600_000_000_000
"""An hour: clocks of machines that work together are wrong by less, time zones do not matter."""


def check_one_run(ranks: Sequence[ReducedRank]) -> None:
    """Raise a `TraceError` where some ranks have nothing to do with the others.

    Ranks belong together that were recorded within an hour of each other, or, whatever their
    clocks say, whose collectives (5 or more) end at equal distances to 50 µs.
    """
    if len(ranks) < 2:
        return
    together = _at_one_time(ranks)
    if len(_reached(ranks, together)) == len(ranks):
        return
    known = _reached(ranks, [*together, *_sharing_collectives(ranks)])
    strangers = [one for one in ranks if one.rank not in known]
    if strangers:
        raise TraceError(
            f"these are not traces of one run: {_when(ranks[0])}, {_when(strangers[0])}, and no "
            "collective ties them; give the traces that all ranks of one run recorded together, "
            'such as "run/*rank*.json.gz"'
        )


def _at_one_time(ranks: Sequence[ReducedRank]) -> list[set[int]]:
    """The ranks that have traces within an hour of one another."""
    spans = sorted((start, end, one.rank) for one in ranks for start, end in one.parts)
    sets: list[set[int]] = []
    reach = spans[0][0]
    for start, end, rank in spans:
        if not sets or start > reach + APART_NS:
            sets.append(set())
        sets[-1].add(rank)
        reach = max(reach, end)
    return sets


def _sharing_collectives(ranks: Sequence[ReducedRank]) -> list[set[int]]:
    """Pairs of ranks whose collectives are the same ones, for their clocks run alike in them."""
    table = matched(ranks)
    found = links(table[table["name"].isin(SYNCHRONISING)])
    return [{a, b} for a, b, _, spread, n in found if n >= SURE and spread <= TOLERANCE_NS]


def _reached(ranks: Sequence[ReducedRank], together: Iterable[set[int]]) -> set[int]:
    """The ranks to which these sets lead from the first one."""
    known, left = {ranks[0].rank}, list(together)
    while touching := [one for one in left if one & known]:
        known = known.union(*touching)
        left = [one for one in left if one not in touching]
    return known


def _when(rank: ReducedRank) -> str:
    start = datetime.fromtimestamp(rank.parts[0][0] / 1e9, UTC)
    return f"{rank.sources[0]} was recorded on {start:%Y-%m-%d at %H:%M} UTC"
